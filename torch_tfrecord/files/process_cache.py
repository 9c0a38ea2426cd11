"""A least-recently-used cache, separate in each process and safe from threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["ProcessCache"]

_Value = TypeVar("_Value")


class ProcessCache(Generic[_Value]):
    """Caches values by number; the least recently used are dropped first.

    Nothing is shared after a fork, and a pickled copy is empty. Two threads may load the same value
    at once; both then get the one that was stored first.

    Args:
        max_size: The most to keep; the latest value is always kept.
        size_of: Returns the size of a value; None counts 1 for each, so that `max_size` is a number
            of values.

    Example:
        >>> cache = ProcessCache(2)
        >>> [cache.find(number, str) for number in (1, 2, 3)]
        ['1', '2', '3']
        >>> 1 in cache, 3 in cache
        (False, True)
    """

    def __init__(self, max_size: int, size_of: Callable[[_Value], int] | None = None) -> None:
        self._max_size = max_size
        self._size_of = size_of
        self._state: _State[_Value] = _State()

    def find(self, number: int, load: Callable[[int], _Value]) -> _Value:
        """The value of a number; `load` is called if it is not in the cache."""
        state = self._state
        if state.pid != os.getpid():  # a fork may have copied a lock that another thread held
            state = self._state = _State()
        with state.lock:
            found = state.values.get(number)
            if found is not None:
                state.values.move_to_end(number)
                return found
        value = load(number)
        size = 1 if self._size_of is None else self._size_of(value)
        with state.lock:
            first = state.values.get(number)
            if first is not None:
                return first
            while state.values and state.size + size > self._max_size:
                state.size -= state.sizes.pop(state.values.popitem(last=False)[0])
            state.values[number], state.sizes[number] = value, size
            state.size += size
        return value

    @property
    def size(self) -> int:
        """The total size of the cached values."""
        return self._state.size

    def __len__(self) -> int:
        return len(self._state.values)

    def __contains__(self, number: object) -> bool:
        return number in self._state.values

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_state": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._state = _State()


class _State(Generic[_Value]):
    """What belongs to one process; replaced as a whole, since a thread may be in the middle of
    `find`.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.values: OrderedDict[int, _Value] = OrderedDict()
        self.sizes: dict[int, int] = {}
        self.size = 0
