"""How much threads read ahead: batches in a task, tasks at once; learned from how long they
take.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

__all__ = ["Pace"]

# A task loads as many batches as take about this long, but never more than that number.
_TASK_SECONDS = 4e-3
_MOST_BATCHES = 4
# Threads that compute for less of their time than this may be waiting for each other: for the GIL.
_BUSY = 0.95
# Fewer threads must be at least as fast, up to noise.
_AS_FAST = 0.95
# A number of threads is judged by the median of so many groups of tasks, after a first few that
# find everything cold.
_GROUPS = 8
_FIRST_TASKS = 32
# After so many more, begin again with all threads: a file may be in memory now, or no longer.
_TASKS_BETWEEN = 2000


class _Speed(NamedTuple):
    num_threads: int
    batches_per_second: float


class Pace:
    """How many batches a task loads, and how many threads run tasks; learned over all iterations of
    a loader.

    Batches of numbers and of images are made without the GIL: threads share the work. Batches of
    many small Python objects (words, padded lists) hold it: two threads take turns, and waking each
    other costs more than the work. So where threads wait, half of them are tried, and kept if that
    is as fast. Where they wait for a disk, it is not.

    Args:
        num_threads: The number to begin with, and never exceeded.
        is_fixed: Keep that number.
    """

    def __init__(self, num_threads: int, *, is_fixed: bool = False) -> None:
        self.num_batches = 1
        self.num_threads = num_threads
        self._most, self._is_fixed = num_threads, is_fixed or num_threads < 2
        self._before: _Speed | None = None  # where fewer are on trial
        self._is_chosen = False
        self._since, self._num_received = 0.0, 0  # of this group of tasks
        # batches a second, by group: pauses of the training are in a few
        self._rates: list[float] = []
        self._busy: list[float] = []  # the part of its time that the thread computed, by task
        self._num_ignored = _FIRST_TASKS

    def learn(self, num_batches: int, seconds: float, cpu_seconds: float, now: float) -> None:
        """Note how long a task took, how long of that its thread computed, and when it was
        received.
        """
        each = max(seconds, 1e-9) / num_batches
        self.num_batches = min(
            max(int(_TASK_SECONDS / each), 1), 2 * self.num_batches, _MOST_BATCHES
        )
        if self._is_fixed:
            return
        if self._num_ignored:
            self._num_ignored -= 1
            self._since = now
            if self._is_chosen and not self._num_ignored:
                self._is_chosen = False
                self._use(self._most)
            return
        self._busy.append(cpu_seconds / max(seconds, 1e-9))
        self._num_received += num_batches
        if len(self._busy) % self._most:  # so many may end together
            return
        self._rates.append(self._num_received / max(now - self._since, 1e-9))
        self._since, self._num_received = now, 0
        if len(self._rates) == _GROUPS:
            self._choose(_Speed(self.num_threads, median(self._rates)), median(self._busy))

    def _use(self, num_threads: int) -> None:
        """Begin to judge a number of threads."""
        self._num_ignored = self.num_threads + 1  # tasks that have begun with another number
        self.num_threads = num_threads
        self._num_received = 0
        self._rates.clear()
        self._busy.clear()

    def _choose(self, now: _Speed, busy: float) -> None:
        """Keep the number of threads, try half of them, or take back what was tried."""
        before, self._before = self._before, None
        if before is not None and now.batches_per_second < _AS_FAST * before.batches_per_second:
            self._use(before.num_threads)
        elif now.num_threads > 1 and busy < _BUSY:
            self._before = now
            self._use(now.num_threads // 2)
            return
        self._is_chosen, self._num_ignored = True, _TASKS_BETWEEN
