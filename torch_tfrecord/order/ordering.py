"""The order of data as pure functions: integers in, integers out, the same on every machine and in every release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from torch_tfrecord.order.random_stream import RandomStream

__all__ = ["FileShare", "RandomStream", "file_shares", "shuffled"]

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
