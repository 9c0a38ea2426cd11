"""Which part of an epoch's order is whose: the split over ranks, of a whole epoch or of what is left of one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Order", "RankShare", "Renumbered", "Sequential", "rank_size"]

_Positions = npt.NDArray[np.int64]


def rank_size(num_positions: int, world_size: int, *, drop_last: bool = False) -> int:
    """How many positions each of so many ranks gets.

    Example:
        >>> rank_size(5, 2), rank_size(5, 2, drop_last=True)
        (3, 2)
    """
    return num_positions // world_size if drop_last else -(-num_positions // world_size)


class Order(Protocol):
    """All positions of an epoch, in its order."""

    def __len__(self) -> int: ...

    def positions(self, places: _Positions) -> _Positions:
        """The positions that stand at these places of the order."""
        ...


class Sequential:
    """The order of the files: at each place the position of the same number."""

    def __init__(self, num_positions: int) -> None:
        self._num_positions = num_positions

    def __len__(self) -> int:
        return self._num_positions

    def positions(self, places: _Positions) -> _Positions:
        """The places."""
        return places


class Renumbered:
    """An order of numbers that stand for positions.

    Args:
        order: Of 0 to N - 1.
        positions: int64 [N]: the position that each number stands for.
    """

    def __init__(self, order: Order, positions: _Positions) -> None:
        self._order, self._positions = order, positions

    def __len__(self) -> int:
        return len(self._order)

    def positions(self, places: _Positions) -> _Positions:
        """The positions at places of the order."""
        found: _Positions = self._positions[self._order.positions(places)]
        return found


class RankShare:
    """One rank's positions of an epoch, as many for each rank; each can be computed by itself.

    All ranks together take the order place by place from `start` on: rank r of w has the places start + r, start + r +
    w, start + r + 2w, ... Where what is left cannot be divided evenly the order goes on with its beginning (place N is
    place 0 again) until every rank has as many, as torch's DistributedSampler does; or with `drop_last` the last N -
    start modulo w places are left out. So after k positions of each rank the places up to start + k * w are taken,
    whatever w is, and a share of any other world size can begin there.

    Args:
        order: The epoch's order, of N positions.
        rank, world_size: 0 <= rank < world_size.
        start: Places taken before, 0 <= start <= N.
        drop_last: Leave out instead of repeating.

    Example:
        >>> [RankShare(Sequential(5), rank, 2).numbers(0, 3) for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 0]]
        >>> [RankShare(Sequential(5), rank, 3, start=2).numbers(0, 1) for rank in (0, 1, 2)]
        [[2], [3], [4]]
    """

    def __init__(self, order: Order, rank: int, world_size: int, *, start: int = 0, drop_last: bool = False) -> None:
        self._order = order
        self._first = start + rank
        self._world_size = world_size
        self._size = rank_size(len(order) - start, world_size, drop_last=drop_last)

    def __len__(self) -> int:
        return self._size

    def numbers(self, start: int, end: int) -> list[int]:
        """The share's positions from the start-th up to the one before the end-th, as integers."""
        places = self._first + np.arange(start, min(end, self._size), dtype=np.int64) * self._world_size
        numbers: list[int] = self._order.positions(places % max(len(self._order), 1)).tolist()
        return numbers
