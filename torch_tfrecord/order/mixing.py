"""Which of several datasets comes when: counts in proportion to weights at every moment, computed place by place."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from math import gcd, lcm
from typing import NamedTuple

from torch_tfrecord.order.random_stream import RandomStream

__all__ = ["Turn", "WeightedTurns", "whole_weights"]


class Turn(NamedTuple):
    """Whose turn it is: number of the component, and how many turns it had before."""

    component: int
    turns_before: int


def whole_weights(weights: Sequence[float | Fraction]) -> list[int]:
    """The smallest whole numbers in the same proportion; floats are taken as the decimals that they print as.

    Raises:
        ValueError: A weight that is not above 0 and finite.

    Example:
        >>> whole_weights([0.7, 0.2, 0.1])
        [7, 2, 1]
    """
    fractions = [_as_fraction(weight) for weight in weights]
    denominator = lcm(*(fraction.denominator for fraction in fractions))
    numbers = [int(fraction * denominator) for fraction in fractions]
    divisor = gcd(*numbers) or 1
    return [number // divisor for number in numbers]


def _as_fraction(weight: float | Fraction) -> Fraction:
    try:
        fraction = weight if isinstance(weight, Fraction) else Fraction(str(weight))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"weights must be finite numbers above 0, got {weight!r}") from None
    if fraction <= 0:
        raise ValueError(f"weights must be finite numbers above 0, got {weight!r}")
    return fraction


class WeightedTurns:
    """An endless schedule of turns, a pure function of (weights, seeds), in which every component keeps to its weight.

    Of any number of first turns each of two components has had its share to within 1. With more components each level
    of the tree adds to that, mostly to between 1 and 2, never to 4. Over a long run the proportions are exact.

    The components are the leaves of a Huffman tree over the weights. At a node where the lighter side has the share
    p / s, its m-th turn falls on one of the node's turns from ceil(m s / p) to ceil((m + 1) s / p) - 1, chosen at
    random by the seeds: one in each stretch, so that counts follow, without a pattern that ranks or batches could fall
    in step with. A turn costs one step for each level of the tree.

    (In a Huffman tree a node that is not a leaf has at most 2/3 of its parent. A stretch holds one turn, so a node adds
    less than 1 to what is left of its parent's error: 1 + 2/3 + 4/9 + ... = 3 for inner nodes, and 1 + 3 for a leaf.)

    Args:
        weights: Whole numbers above 0.
        seeds: Integers of any size.

    Example:
        >>> turns = WeightedTurns([2, 1], 0)
        >>> [turns.turn(place).component for place in range(9)]
        [1, 0, 0, 1, 0, 0, 0, 1, 0]
    """

    def __init__(self, weights: Sequence[int], *seeds: int) -> None:
        self._num_components = len(weights)
        self._tree = _huffman_tree(weights, seeds)

    def turn(self, place: int) -> Turn:
        """Whose turn the place-th is, from 0."""
        node = self._tree
        while isinstance(node, _Node):
            before, now = node.lighter_turns(place)
            place = before if now else place - before
            node = node.lighter if now else node.heavier
        return Turn(node, place)

    def counts(self, num_turns: int) -> list[int]:
        """How many of the first turns each component has."""
        counts = [0] * self._num_components
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
        """How many turns there are before the one with which a component would have more than its limit."""
        # Grown until too many, then halved.
        high = limit + 1
        while self.counts(high)[component] <= limit:
            high *= 2
        low = limit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.counts(middle)[component] <= limit else (low, middle)
        return low


class _Node:
    """A node of the tree: turns that two sides share."""

    def __init__(
        self, lighter: _Node | int, heavier: _Node | int, share: int, whole: int, stream: RandomStream
    ) -> None:
        self.lighter, self.heavier = lighter, heavier
        self._share, self._whole = share, whole
        self._stream = stream

    def lighter_turns(self, place: int) -> tuple[int, bool]:
        """How many turns the lighter side has before the place-th, and whether that one is its turn, too."""
        number = place * self._share // self._whole
        begin = -(-number * self._whole // self._share)
        end = -(-(number + 1) * self._whole // self._share)
        chosen = begin + (self._stream.number_at(number) * (end - begin) >> 64)
        return number + (chosen < place), chosen == place


def _huffman_tree(weights: Sequence[int], seeds: tuple[int, ...]) -> _Node | int:
    numbers = count(len(weights))  # of the nodes; they break ties, too
    heap: list[tuple[int, int, _Node | int]] = [(weight, number, number) for number, weight in enumerate(weights)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (light, _, lighter), (heavy, _, heavier) = heapq.heappop(heap), heapq.heappop(heap)
        number, divisor = next(numbers), gcd(light, heavy)
        node = _Node(lighter, heavier, light // divisor, (light + heavy) // divisor, RandomStream(*seeds, number))
        heapq.heappush(heap, (light + heavy, number, node))
    return heap[0][2]
