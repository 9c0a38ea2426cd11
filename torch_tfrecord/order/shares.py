"""How an epoch is split: positions and batches for ranks, files for the consumers of a stream."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_tfrecord.order.orders import Order

__all__ = ["FileShare", "RankShare", "file_shares", "rank_size"]


def rank_size(num_positions: int, world_size: int, *, drop_last: bool = False) -> int:
    """How many positions each of `world_size` ranks gets.

    Example:
        >>> rank_size(5, 2), rank_size(5, 2, drop_last=True)
        (3, 2)
    """
    return num_positions // world_size if drop_last else -(-num_positions // world_size)


class RankShare:
    """One rank's positions of an epoch, the same number for each rank; each can be computed by
    itself.

    The ranks take one place each in turn, from `start` on: rank r of w has the places start + r,
    start + r + w, start + r + 2w, ... If they cannot be divided evenly, the order is extended with
    its beginning (place N is place 0 again) until every rank has the same number, as torch's
    DistributedSampler does; or with `drop_last` the last (N - start) modulo w places are dropped.
    So after k positions on each rank the places up to start + k * w are taken, whatever w is, and a
    share of any other world size can begin there.

    Args:
        order: The epoch's order, of N positions.
        rank, world_size: 0 <= rank < world_size.
        start: Places taken before, 0 <= start <= N.
        drop_last: Drop positions instead of repeating some.

    Example:
        >>> from torch_tfrecord.order.orders import Sequential
        >>> [RankShare(Sequential(5), rank, 2).numbers(0, 3) for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 0]]
        >>> [RankShare(Sequential(5), rank, 3, start=2).numbers(0, 1) for rank in (0, 1, 2)]
        [[2], [3], [4]]
    """

    def __init__(
        self, order: Order, rank: int, world_size: int, *, start: int = 0, drop_last: bool = False
    ) -> None:
        self._order = order
        self._first = start + rank
        self._world_size = world_size
        self._size = rank_size(len(order) - start, world_size, drop_last=drop_last)

    def __len__(self) -> int:
        return self._size

    def numbers(self, start: int, end: int) -> list[int]:
        """The share's positions number `start` to `end` - 1, as integers."""
        places = (
            self._first + np.arange(start, min(end, self._size), dtype=np.int64) * self._world_size
        )
        numbers: list[int] = self._order.positions(places % max(len(self._order), 1)).tolist()
        return numbers


class FileShare(NamedTuple):
    """One consumer's part of a file: the records whose number modulo `parts` is `part`."""

    file: int
    part: int
    parts: int


def file_shares(num_files: int, consumer: int, num_consumers: int) -> list[FileShare]:
    """Split files over consumers so that every record of every file goes to exactly one of them.

    Whole files are assigned round-robin, the same number to each consumer; leftover files (all of
    them, if there are fewer files than consumers) are split by record, each among the consumers
    that share it.

    Args:
        num_files: Files, numbered from 0.
        consumer: Number of this consumer, 0 <= consumer < num_consumers.
        num_consumers: Ranks times workers.

    Example:
        >>> file_shares(5, 1, 4)
        [FileShare(file=1, part=0, parts=1), FileShare(file=4, part=1, parts=4)]
    """
    rounds, left_over = divmod(num_files, num_consumers)
    shares = [FileShare(turn * num_consumers + consumer, 0, 1) for turn in range(rounds)]
    if left_over:
        group = consumer % left_over
        parts = len(range(group, num_consumers, left_over))
        shares.append(FileShare(rounds * num_consumers + group, consumer // left_over, parts))
    return shares
