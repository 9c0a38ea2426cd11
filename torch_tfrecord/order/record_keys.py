"""Keys for random draws: a 64-bit number for each record and epoch, the same on every machine and in every process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torch_tfrecord.order.random_stream import RandomStream

__all__ = ["record_keys"]

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
