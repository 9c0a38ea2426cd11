"""What belongs to one process, and a least-recently-used cache that does."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerProcess", "ProcessCache"]

_State = TypeVar("_State")
_Value = TypeVar("_Value")


class PerProcess(Generic[_State]):
    """What belongs to one process: made when it is first needed, and anew after a fork and in a
    pickled copy. Safe from threads, which all get the same.

    A fork copies locks that another thread may hold, and connections without their threads.

    Args:
        make: Makes it.
        keeps_parents: Never drop what a parent process has made, as its end would wait for threads
            that are not here.

    Example:
        >>> numbers = PerProcess(list)
        >>> numbers.get().append(1)
        >>> numbers.get()
        [1]
    """

    def __init__(self, make: Callable[[], _State], *, keeps_parents: bool = False) -> None:
        self._make, self._keeps_parents = make, keeps_parents
        self._made: dict[int, _State] = {}  # by the process's number

    def get(self) -> _State:
        """That of this process."""
        pid = os.getpid()
        found = self._made.get(pid)
        if found is None:
            found = self._made.setdefault(pid, self._make())
            if not self._keeps_parents:
                for other in {*self._made} - {pid}:
                    self._made.pop(other, None)
        return found

    @property
    def was_forked(self) -> bool:
        """Whether a parent process had made its own; only known with `keeps_parents`."""
        return bool(self._made.keys() - {os.getpid()})

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _copy, (self._make, self._keeps_parents)


def _copy(make: Callable[[], _State], keeps_parents: bool) -> PerProcess[_State]:
    return PerProcess(make, keeps_parents=keeps_parents)


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
        self._kept: PerProcess[_Kept[_Value]] = PerProcess(_Kept)

    def find(self, number: int, load: Callable[[int], _Value]) -> _Value:
        """The value of a number; `load` is called if it is not in the cache."""
        kept = self._kept.get()
        with kept.lock:
            if number in kept.values:
                kept.values.move_to_end(number)
                return kept.values[number][0]
        value = load(number)
        size = 1 if self._size_of is None else self._size_of(value)
        with kept.lock:
            if number not in kept.values:
                while kept.values and kept.size + size > self._max_size:
                    kept.size -= kept.values.popitem(last=False)[1][1]
                kept.values[number] = value, size
                kept.size += size
            return kept.values[number][0]

    @property
    def size(self) -> int:
        """The total size of the cached values."""
        return self._kept.get().size

    def __len__(self) -> int:
        return len(self._kept.get().values)

    def __contains__(self, number: object) -> bool:
        return number in self._kept.get().values


class _Kept(Generic[_Value]):
    """The values of one process, each with its size."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: OrderedDict[int, tuple[_Value, int]] = OrderedDict()
        self.size = 0
