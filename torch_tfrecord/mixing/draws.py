"""Which dataset of a mixture comes at each place, and which of its samples: arithmetic on sizes and
weights.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from fractions import Fraction
from itertools import count
from math import gcd, lcm
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.random_stream import RandomStream

__all__ = [
    "STOPS",
    "ChoicePlan",
    "WeightedPlan",
    "listed_weights",
    "mixture_weights",
]

STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never")


class Turn(NamedTuple):
    """A turn: the number of the component, and how many turns it had before."""

    component: int
    turns_before: int


def _as_fraction(weight: float | Fraction) -> Fraction:
    fraction = Fraction()
    with suppress(ValueError, ZeroDivisionError):
        fraction = weight if isinstance(weight, Fraction) else Fraction(str(weight))
    if fraction <= 0:
        raise ValueError(f"weights must be finite numbers above 0, got {weight!r}")
    return fraction


class WeightedTurns:
    """An endless schedule of turns, a pure function of (weights, seeds), in which every component
    keeps to its weight.

    After any number of turns, each of two components has had its share to within 1. With more
    components each level of the tree adds to the error: usually it is between 1 and 2, and always
    below 4. Over a long run the proportions are exact.

    The components are the leaves of a Huffman tree over the weights. At a node where the lighter
    side has the share p / s, its m-th turn is one of the node's turns from ceil(m s / p) to ceil((m
    + 1) s / p) - 1, chosen at random by the seeds. One turn in each such stretch keeps the counts
    right, without a pattern that ranks or batches could fall into step with. A turn costs one step
    for each level of the tree.

    (In a Huffman tree a node that is not a leaf has at most 2/3 of its parent. A stretch has one
    turn, so a node adds less than 1 to what is left of its parent's error: 1 + 2/3 + 4/9 + ... = 3
    for inner nodes, and 1 + 3 for a leaf.)

    Args:
        weights: Whole numbers above 0.
        seeds: Integers of any size.

    Example:
        >>> turns = WeightedTurns([2, 1], 0)
        >>> [turns.turn(place).component for place in range(9)]
        [1, 0, 0, 1, 0, 0, 0, 1, 0]
    """

    def __init__(self, weights: Sequence[int], *seeds: int) -> None:
        self._weights = weights
        self._tree = _huffman_tree(weights, seeds)

    def turn(self, place: int) -> Turn:
        """The turn at a place, from 0."""
        node = self._tree
        while isinstance(node, _Node):
            before, now = node.lighter_turns(place)
            place = before if now else place - before
            node = node.lighter if now else node.heavier
        return Turn(node, place)

    def counts(self, num_turns: int) -> list[int]:
        """How many of the first turns each component has."""
        counts = [0] * len(self._weights)
        nodes = [(self._tree, num_turns)]
        while nodes:
            node, turns = nodes.pop()
            if isinstance(node, int):
                counts[node] = turns
            else:
                before, _ = node.lighter_turns(turns)
                nodes += [(node.lighter, before), (node.heavier, turns - before)]
        return counts

    def turns_until(self, component: int, limit: int) -> int:
        """How many turns come before the one that would give a component more than its limit."""
        # It is at most 4 turns from its share.
        enough = max(limit + 5, 0) * sum(self._weights) // self._weights[component] + 1
        turns = range(enough + 1)
        return (
            bisect_right(turns, limit, max(limit, 0), key=lambda n: self.counts(n)[component]) - 1
        )


class _Node(NamedTuple):
    """A node of the tree: turns that two sides share."""

    lighter: _Node | int
    heavier: _Node | int
    share: int
    whole: int
    stream: RandomStream

    def lighter_turns(self, place: int) -> tuple[int, bool]:
        """How many turns the lighter side has before a place, and whether that place is its turn,
        too.
        """
        number = place * self.share // self.whole
        begin = -(-number * self.whole // self.share)
        end = -(-(number + 1) * self.whole // self.share)
        chosen = begin + (self.stream.number_at(number) * (end - begin) >> 64)
        return number + (chosen < place), chosen == place


def _huffman_tree(weights: Sequence[int], seeds: tuple[int, ...]) -> _Node | int:
    numbers = count(len(weights))  # the nodes' numbers; they break ties, too
    heap: list[tuple[int, int, _Node | int]] = [
        (weight, number, number) for number, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        (light, _, lighter), (heavy, _, heavier) = heapq.heappop(heap), heapq.heappop(heap)
        number, divisor = next(numbers), gcd(light, heavy)
        node = _Node(
            lighter,
            heavier,
            light // divisor,
            (light + heavy) // divisor,
            RandomStream(*seeds, number),
        )
        heapq.heappush(heap, (light + heavy, number, node))
    return heap[0][2]


class _Phase(NamedTuple):
    """Turns from `begin` on, of the components that are not exhausted, with the turns that they had
    before.
    """

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
        length: Samples until it stops; None if it never stops.

    Raises:
        ValueError: A component that must be repeated is empty.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[int], seed: int, stop: str) -> None:
        if stop in ("all_exhausted", "never"):
            _check_not_empty(sizes, stop)
        self._sizes, self._seed, self._stop = sizes, seed, stop
        self._phases: list[_Phase] = []
        self.length = self._go_on(0, weights)

    def changed(self, position: int, weights: Sequence[int]) -> WeightedPlan:
        """The same plan up to a position, with other weights from there on.

        Each component goes on after the samples that it gave, so what was exhausted stays so.

        Args:
            position: Before the end of this plan; 0 is as if it had these weights from the start.
            weights: Whole numbers above 0, one for each component.
        """
        plan = copy(self)
        plan._phases = [phase for phase in self._phases if phase.begin < position]
        plan.length = plan._go_on(position, weights)
        return plan

    def _go_on(self, begin: int, weights: Sequence[int]) -> int | None:
        """Add the phases from a position on; returns the length.

        Without replacement a new phase begins each time an exhausted component has its turn; later
        phases leave it out.
        """
        components = self._phases[-1].components if self._phases else list(range(len(self._sizes)))
        while components:
            before = self.counts(begin)
            # A phase's number is its seed, so no two phases of an epoch have the same turns.
            turns = WeightedTurns(
                [weights[component] for component in components], self._seed, len(self._phases)
            )
            self._phases.append(_Phase(begin, components, before, turns))
            if self._stop == "never":
                return None
            ends = {
                begin
                + turns.turns_until(number, self._sizes[component] - before[component]): component
                for number, component in enumerate(components)
            }
            if self._stop == "all_exhausted":
                return max(ends)
            begin = min(ends)
            if self._stop == "first_exhausted":
                return begin
            components = [component for component in components if component != ends[begin]]
        return begin

    def turn(self, position: int) -> Turn:
        """Component at a position, and how many samples of it come before."""
        phase = self._phase_at(position)
        number, before = phase.turns.turn(position - phase.begin)
        component = phase.components[number]
        return Turn(component, phase.turns_before[component] + before)

    def counts(self, num_samples: int) -> list[int]:
        """How many of the first samples each component has."""
        if not self._phases:
            return [0] * len(self._sizes)
        phase = self._phase_at(num_samples)
        counts = phase.turns_before.copy()
        for component, taken in zip(
            phase.components, phase.turns.counts(num_samples - phase.begin), strict=True
        ):
            counts[component] += taken
        return counts

    def _phase_at(self, position: int) -> _Phase:
        return self._phases[bisect_right(self._phases, position, key=lambda phase: phase.begin) - 1]


class ChoicePlan:
    """A mixture by an explicit sequence of components; it ends with the sequence at the latest.

    Args:
        sizes: Samples of each component.
        choices: Number of a component for each sample.
        stop: One of `STOPS`.

    Attributes:
        length: Samples until it stops.

    Raises:
        ValueError: As for `WeightedPlan`; or a choice is not the number of a component.
    """

    def __init__(self, sizes: Sequence[int], choices: npt.ArrayLike, stop: str) -> None:
        chosen = _checked_choices(choices, len(sizes))
        before = np.empty(len(chosen), np.int64)
        for component in range(len(sizes)):
            mine = chosen == component
            before[mine] = np.arange(np.count_nonzero(mine))
        again = before >= np.asarray(sizes, np.int64)[chosen]
        if stop in ("all_exhausted", "never"):
            used = set(chosen.tolist())
            _check_not_empty(
                [size if component in used else 1 for component, size in enumerate(sizes)], stop
            )
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
        return np.bincount(self._components[:num_samples], minlength=self._num_components).tolist()


def _first(marks: npt.NDArray[np.bool_]) -> int:
    """Place of the first True, or the number of places."""
    return int(marks.argmax()) if marks.any() else len(marks)


def _checked_choices(choices: npt.ArrayLike, num_components: int) -> npt.NDArray[np.int64]:
    """The choices as an array; ValueError if one is not the number of a component."""
    array = np.asarray(choices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"choices must be a sequence of integers, got {array.dtype} with shape {list(array.shape)}"
        )
    wrong = array[(array < 0) | (array >= num_components)]
    if wrong.size:
        raise ValueError(f"choices must be from 0 to {num_components - 1}, got {wrong[0]}")
    return array.astype(np.int64)


def _check_not_empty(sizes: Sequence[int], stop: str) -> None:
    """ValueError for a component that cannot be drawn from."""
    if 0 in sizes:
        raise ValueError(
            f"dataset {list(sizes).index(0)} is empty: stop={stop!r} would draw from it forever"
        )


def listed_weights(names: Sequence[str] | None, weights: Any) -> Any:
    """Weights by name, a dict or pairs, in the order of the names; other weights as they are.

    In pairs, the first weight of a name counts, as for Octo and OpenVLA, some of whose mixtures
    name a dataset twice.

    Raises:
        ValueError: The datasets have no names, or others.

    Example:
        >>> listed_weights(["bridge", "kuka"], [("kuka", 0.5), ("bridge", 1.0), ("kuka", 2.0)])
        [1.0, 0.5]
    """
    is_paired = isinstance(weights, Sequence) and any(isinstance(each, tuple) for each in weights)
    if not isinstance(weights, Mapping) and not is_paired:
        return weights
    by_name = dict(weights if isinstance(weights, Mapping) else reversed(weights))
    if names is None:
        raise ValueError("weights by name need names: datasets must be a dict")
    if by_name.keys() != set(names):
        raise ValueError(f"weights must name each of {list(names)}, got {list(by_name)}")
    return [by_name[name] for name in names]


def mixture_weights(
    num_datasets: int,
    weights: Sequence[float | Fraction] | None,
    choices: npt.ArrayLike | None,
    factors: Sequence[int] | None = None,
) -> list[int]:
    """One whole number for each dataset, the smallest in the proportion of weights times factors; a
    float counts as the decimal that it prints as.

    Raises:
        ValueError: The arguments do not fit together, or a weight is not above 0 and finite.

    Example:
        >>> mixture_weights(3, [0.7, 0.2, 0.1], None)
        [7, 2, 1]
    """
    if not num_datasets:
        raise ValueError("datasets must hold at least one dataset")
    if weights is not None and choices is not None:
        raise ValueError("weights and choices cannot be given together")
    every = [1] * num_datasets
    weights = every if weights is None else weights
    if len(weights) != num_datasets:
        raise ValueError(
            f"weights must have one number for each of {num_datasets} datasets, got {len(weights)}"
        )
    if factors is not None and choices is not None:
        raise ValueError("balance_weights and choices cannot be given together")
    factors = every if factors is None else list(factors)
    if 0 in factors:
        raise ValueError(
            f"dataset {factors.index(0)} is empty: balance_weights would give it no weight"
        )
    pairs = zip(weights, factors, strict=True)
    fractions = [_as_fraction(weight) * factor for weight, factor in pairs]
    denominator = lcm(*(fraction.denominator for fraction in fractions))
    numbers = [int(fraction * denominator) for fraction in fractions]
    divisor = gcd(*numbers)
    return [number // divisor for number in numbers]
