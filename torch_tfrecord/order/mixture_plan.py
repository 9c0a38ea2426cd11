"""Which sample of which dataset stands at a position of a mixture: arithmetic on sizes and weights."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.order.mixing import Turn, WeightedTurns

__all__ = ["STOPS", "ChoicePlan", "WeightedPlan"]

STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never")


class _Phase(NamedTuple):
    """Turns from `begin` on, of those components that are not exhausted, which had some turns before."""

    begin: int
    components: list[int]
    turns_before: list[int]
    turns: WeightedTurns


class WeightedPlan:
    """A mixture by weights.

    Args:
        sizes: Samples of each component.
        weights: Whole numbers above 0, one for each component.
        seed: Decides the order of turns.
        stop: One of `STOPS`.

    Attributes:
        length: Samples until it stops; None where it does not.

    Raises:
        ValueError: A component without samples that would be drawn from again and again.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[int], seed: int, stop: str) -> None:
        self._sizes = sizes
        everyone = list(range(len(sizes)))
        turns = WeightedTurns(weights, seed, 0)
        self._phases = [_Phase(0, everyone, [0] * len(sizes), turns)]
        self.length: int | None = None
        if stop in ("all_exhausted", "never"):
            check_not_empty(sizes, stop)
        if stop == "first_exhausted":
            self.length = min(turns.turns_until(component, sizes[component]) for component in everyone)
        elif stop == "all_exhausted":
            self.length = max(turns.turns_until(component, sizes[component]) for component in everyone)
        elif stop == "all_exhausted_without_replacement":
            self.length = self._add_phases(weights, seed)
        self._begins = [phase.begin for phase in self._phases]

    def _add_phases(self, weights: Sequence[int], seed: int) -> int:
        """A phase more each time that it is the turn of an exhausted component, which is in no later one."""
        while True:
            begin, components, before, turns = self._phases[-1]
            limits = [self._sizes[component] - before[component] for component in components]
            length, ended = min((turns.turns_until(number, limit), number) for number, limit in enumerate(limits))
            counts = turns.counts(length)
            before = before.copy()
            for component, taken in zip(components, counts, strict=True):
                before[component] += taken
            components = components[:ended] + components[ended + 1 :]
            if not components:
                return begin + length
            turns = WeightedTurns([weights[component] for component in components], seed, len(self._phases))
            self._phases.append(_Phase(begin + length, components, before, turns))

    def turn(self, position: int) -> Turn:
        """Component at a position, and how many samples of it come before."""
        phase = self._phases[bisect.bisect_right(self._begins, position) - 1]
        number, before = phase.turns.turn(position - phase.begin)
        component = phase.components[number]
        return Turn(component, phase.turns_before[component] + before)

    def counts(self, num_samples: int) -> list[int]:
        """How many of the first samples each component has."""
        phase = self._phases[bisect.bisect_right(self._begins, num_samples) - 1]
        counts = phase.turns_before.copy()
        for component, taken in zip(phase.components, phase.turns.counts(num_samples - phase.begin), strict=True):
            counts[component] += taken
        return counts


class ChoicePlan:
    """A mixture by an explicit sequence of components; it ends with the sequence at the latest.

    Args:
        sizes: Samples of each component.
        choices: Number of a component for each sample.
        stop: One of `STOPS`.

    Attributes:
        length: Samples until it stops.

    Raises:
        ValueError: As for `WeightedPlan`; a number that no component has.
    """

    def __init__(self, sizes: Sequence[int], choices: npt.ArrayLike, stop: str) -> None:
        chosen = checked_choices(choices, len(sizes))
        before = np.empty(len(chosen), np.int64)
        for component in range(len(sizes)):
            mine = chosen == component
            before[mine] = np.arange(np.count_nonzero(mine))
        again = before >= np.asarray(sizes, np.int64)[chosen] if len(chosen) else np.zeros(0, bool)
        if stop in ("all_exhausted", "never"):
            used = set(chosen.tolist())
            check_not_empty([size if component in used else 1 for component, size in enumerate(sizes)], stop)
        if stop == "first_exhausted":
            kept: slice | npt.NDArray[np.bool_] = slice(_first(again))
        elif stop == "all_exhausted":
            firsts = [_first(again & (chosen == component)) for component in range(len(sizes))]
            kept = slice(max(firsts))
        else:
            kept = ~again if stop == "all_exhausted_without_replacement" else slice(None)
        self._num_components = len(sizes)
        self._components, self._before = chosen[kept], before[kept]
        self.length: int | None = len(self._components)

    def turn(self, position: int) -> Turn:
        """Component at a position, and how many samples of it come before."""
        return Turn(int(self._components[position]), int(self._before[position]))

    def counts(self, num_samples: int) -> list[int]:
        """How many of the first samples each component has."""
        counts: list[int] = np.bincount(self._components[:num_samples], minlength=self._num_components).tolist()
        return counts


def _first(marks: npt.NDArray[np.bool_]) -> int:
    """Place of the first mark, or how many places there are."""
    return int(marks.argmax()) if marks.any() else len(marks)


def checked_choices(choices: npt.ArrayLike, num_components: int) -> npt.NDArray[np.int64]:
    """The choices as an array; ValueError for one that is no component's number."""
    array = np.asarray(choices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"choices must be a sequence of integers, got {array.dtype} with shape {list(array.shape)}")
    wrong = array[(array < 0) | (array >= num_components)]
    if wrong.size:
        raise ValueError(f"choices must be from 0 to {num_components - 1}, got {wrong[0]}")
    return array.astype(np.int64)


def check_not_empty(sizes: Sequence[int], stop: str) -> None:
    """ValueError for a component that cannot be drawn from."""
    if 0 in sizes:
        raise ValueError(f"dataset {list(sizes).index(0)} is empty: stop={stop!r} would draw from it for ever")
