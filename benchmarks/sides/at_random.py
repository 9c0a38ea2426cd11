"""Which records are read at random, the same on all sides, and how a side hands them out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from side import Job, Side

__all__ = ["positions_of", "side_at_random"]

_MOST = 40_000


def positions_of(job: Job) -> list[int]:
    """A number of positions at random that batches of 1,024 share out evenly; some come twice."""
    return random.Random(0).choices(
        range(job.count), k=min(_MOST, job.count) // 1024 * 1024 or 1024
    )


def side_at_random(
    job: Job,
    one: Callable[[int], bytes],
    several: Callable[[Sequence[int]], Sequence[bytes]],
    keys: Sequence[Any],
) -> Side:
    """One by one, or in batches of the size that the variant's name ends in.

    Args:
        job: What to run.
        one: The record, or its feature "data", of a key.
        several: The same of several keys.
        keys: What the side finds a record by, for each of `positions_of`.
    """
    size = job.variant.partition("_")[2]
    if not size:
        return Side(lambda: map(one, keys), lambda record: {"data": [record]}, is_single=True)
    batches = [keys[begin : begin + int(size)] for begin in range(0, len(keys), int(size))]

    def items() -> Iterable[Sequence[bytes]]:
        return map(several, batches)

    return Side(items, lambda batch: {"data": [*batch]}, len)
