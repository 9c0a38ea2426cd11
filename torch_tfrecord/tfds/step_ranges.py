"""Which steps of which episodes a dataset has samples of: ranges of steps, and the step at each
position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Ranges", "StepRanges", "kept_parts"]

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of steps of an episode: the first one, and the one behind the last."""

_Integers = npt.NDArray[np.int64]


class StepRanges:
    """Ranges of steps, one after another, whose steps are the positions of a dataset.

    Args:
        episodes: int64 [N], the episode of each range, ascending.
        firsts: int64 [N], the first step of each range.
        stops: int64 [N], the step behind each range; not after the first step for an empty one.

    Example:
        >>> ranges = StepRanges(np.array([0, 2]), np.array([5, 0]), np.array([7, 3]))
        >>> len(ranges), ranges.find(np.array([1, 2]))
        (5, ([0, 2], [6, 0]))
    """

    def __init__(self, episodes: _Integers, firsts: _Integers, stops: _Integers) -> None:
        counts = np.maximum(stops - firsts, 0)
        self._episodes = episodes  # ascending
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts
        self._offsets = firsts - self._begins  # from a position to its step

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def find(self, positions: _Integers) -> tuple[list[int], list[int]]:
        """The episodes and the steps at these positions."""
        numbers = self._ends.searchsorted(positions, side="right")
        return self._episodes[numbers].tolist(), (positions + self._offsets[numbers]).tolist()

    def steps_of(self, episode: int) -> _Integers:
        """The steps of one episode, int64 [N]."""
        begin, end = self._episodes.searchsorted([episode, episode + 1]).tolist()
        parts = zip(
            self._begins[begin:end], self._ends[begin:end], self._offsets[begin:end], strict=True
        )
        steps = [np.arange(first, stop, dtype=np.int64) + offset for first, stop, offset in parts]
        return np.concatenate(steps) if steps else np.empty(0, np.int64)


def kept_parts(firsts: _Integers, stops: _Integers, kept: Iterable[Ranges]) -> StepRanges:
    """The steps of each episode that are in one of the kept ranges of that episode.

    Args:
        firsts: int64 [episodes], the first step of each episode that can have a sample.
        stops: int64 [episodes], the step behind the last one.
        kept: For each episode its ranges [first step, end), in any order; they may overlap, and go
            past the episode.
    """
    parts: list[tuple[int, int, int]] = []
    for number, (first, stop, ranges) in enumerate(
        zip(firsts.tolist(), stops.tolist(), kept, strict=True)
    ):
        for begin, end in sorted(ranges):
            begin, end = max(begin, first), min(end, stop)
            if begin < end:
                parts.append((number, begin, end))
                first = end
    rows = np.array(parts, np.int64).reshape(-1, 3)
    return StepRanges(rows[:, 0], rows[:, 1], rows[:, 2])
