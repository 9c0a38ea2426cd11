"""Keys for random draws: a 64-bit number for each record and epoch, the same on every machine and in every process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.order.random_stream import RandomStream

__all__ = ["draw_salt", "record_keys", "salted_keys"]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def record_keys(positions: npt.NDArray[np.int64], *seeds: int) -> npt.NDArray[np.uint64]:
    """The key of each position: number `position` of a SplitMix64 stream that the seeds choose.

    Which worker or thread reads a record, and in which batch, is of no matter.

    Args:
        positions: int64 [N], from 0.
        seeds: The epoch, and whatever else the stream shall depend on.

    Example:
        >>> record_keys(np.array([3, 0]), 0) == record_keys(np.array([0, 3]), 0)[::-1]
        array([ True,  True])
    """
    first = np.uint64(RandomStream(*seeds).below(1 << 64))
    z = positions.astype(np.uint64) * _STEP + first
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    keys: npt.NDArray[np.uint64] = z ^ z >> np.uint64(31)
    return keys


def salted_keys(count: int, salt: int) -> npt.NDArray[np.uint64]:
    """The keys of a batch of no known epoch, by place in it: a record that stands in it twice is drawn twice."""
    return record_keys(np.arange(count), salt, 0, 0)  # as many seeds as no keys of records have


def draw_salt() -> int:
    """A number of 63 bits from torch's default generator: the only place where global random state is used."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())
