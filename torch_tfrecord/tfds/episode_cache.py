"""Keeps what was read of the last episodes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

__all__ = ["EpisodeCache"]


class EpisodeCache:
    """Keeps what was read of the last episodes, up to a number of bytes; each process has its own.

    Args:
        max_bytes: The most bytes kept; the last episode is kept always.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._state = _CacheState()

    def get(self, number: int, load: Callable[[int], tuple[Any, int]]) -> Any:
        """The episode, which `load` gives with its number of bytes where it is not here."""
        state = self._state
        if state.pid != os.getpid():  # a fork may have copied a lock that another thread held
            state = self._state = _CacheState()
        with state.lock:
            found = state.episodes.get(number)
            if found is not None:
                state.episodes.move_to_end(number)
                return found[0]
        episode, num_bytes = load(number)
        with state.lock:
            if number not in state.episodes:
                state.episodes[number] = (episode, num_bytes)
                state.num_bytes += num_bytes
            while state.num_bytes > self._max_bytes and len(state.episodes) > 1:
                state.num_bytes -= state.episodes.popitem(last=False)[1][1]
        return episode

    def __reduce__(self) -> tuple[type[EpisodeCache], tuple[int]]:
        """Pickle the limit, not what is kept."""
        return type(self), (self._max_bytes,)


class _CacheState:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.episodes: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self.num_bytes = 0
