"""The order of data as pure functions: integers in, integers out, the same on every machine and in every release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from torch_tfrecord.random_stream import RandomStream

__all__ = [
    "FileShare",
    "RandomStream",
    "file_shares",
    "interleave",
    "permutation",
    "rank_share",
    "rank_size",
    "shuffled",
]

_T = TypeVar("_T")


def shuffled(items: Sequence[_T], *seeds: int) -> list[_T]:
    """The items in an order that is a pure function of the seeds (Fisher-Yates).

    Example:
        >>> shuffled(range(5), 0, 0)
        [1, 3, 0, 4, 2]
    """
    order = list(items)
    random = RandomStream(*seeds)
    for last in range(len(order) - 1, 0, -1):
        chosen = random.below(last + 1)
        order[last], order[chosen] = order[chosen], order[last]
    return order


def permutation(num_records: int, seed: int, epoch: int) -> list[int]:
    """The positions 0 to num_records - 1 in an order that is a pure function of (seed, epoch).

    The order of each position's own random number, all of which are made at once: a million positions take a tenth of
    a second, where `shuffled` takes one.

    Example:
        >>> permutation(5, 0, 0)
        [2, 3, 0, 1, 4]
    """
    numbers = RandomStream(seed, epoch).next_numbers(num_records)
    order: list[int] = np.argsort(numbers, kind="stable").tolist()
    return order


def rank_size(num_records: int, world_size: int, *, drop_last: bool = False) -> int:
    """How many positions `rank_share` gives to each rank.

    Example:
        >>> rank_size(5, 2), rank_size(5, 2, drop_last=True)
        (3, 2)
    """
    return num_records // world_size if drop_last else -(-num_records // world_size)


def rank_share(order: Sequence[int], rank: int, world_size: int, *, drop_last: bool = False) -> list[int]:
    """One rank's positions, as many for each rank: order[rank], order[rank + world_size], ...

    Where the positions cannot be divided evenly the first ones are repeated at the end, as torch's DistributedSampler
    does, or with `drop_last` the last ones are left out.

    Example:
        >>> [rank_share(range(5), rank, 2) for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 0]]
    """
    end = world_size * rank_size(len(order), world_size, drop_last=drop_last)
    return [order[number % len(order)] for number in range(rank, end, world_size)]


class FileShare(NamedTuple):
    """One consumer's part of a file: the records whose number modulo `parts` is `part`."""

    file: int
    part: int
    parts: int


def file_shares(num_files: int, consumer: int, num_consumers: int) -> list[FileShare]:
    """Deal files out to consumers so that every record of every file goes to exactly one of them.

    Whole files are dealt round robin, the same number to each consumer; the files that are left over (all of them,
    where there are fewer files than consumers) are split by record, each among the consumers that share it.

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


def interleave(streams: Iterator[Iterator[_T]], cycle_length: int, block_length: int = 1) -> Iterator[_T]:
    """Items of several streams in turn, as tf.data's ``interleave(cycle_length, block_length)``.

    `cycle_length` slots are visited in a circle. An empty slot opens the next stream at its turn, then up to
    `block_length` items are taken. A stream found at its end empties its slot, and the turn ends: the replacement
    starts at that slot's next turn. Taking exactly `block_length` items does not yet find the end.

    Example:
        >>> "".join(interleave(map(iter, ["aaaaa", "bbb", "c", "eeee"]), 2))
        'abababaaceeee'
    """
    slots: list[Iterator[_T] | None] = [None] * cycle_length
    exhausted = False
    while not exhausted or any(slot is not None for slot in slots):
        for number in range(cycle_length):
            stream = slots[number]
            if stream is None and not exhausted:
                stream = slots[number] = next(streams, None)
                exhausted = stream is None
            if stream is None:
                continue
            taken = 0
            for item in islice(stream, block_length):
                taken += 1
                yield item
            if taken < block_length:
                slots[number] = None
