"""Checksums of many ranges of one buffer, in time that grows with the buffer and the ranges, not with their bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.records.checksum import crc32c

__all__ = ["range_checksums"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
_Checksums: TypeAlias = "npt.NDArray[np.uint32]"


def range_checksums(buffer: bytes, begins: _Integers, ends: _Integers) -> _Checksums:
    """CRC-32C of each range: that of all bytes up to its end, without what those up to its beginning have in it.

    Args:
        buffer: Each byte of it is looked at once.
        begins, ends: int64 [N], 0 <= begin <= end <= len(buffer).

    Returns:
        uint32 [N].

    Example:
        >>> range_checksums(b"abcdef", np.array([2]), np.array([5]))[0] == crc32c(b"cde")
        np.True_
    """
    points, numbers = np.unique(np.concatenate([begins, ends]), return_inverse=True)
    content, crc, last = memoryview(buffer), 0, 0
    up_to = np.empty(len(points), np.uint32)
    for number, point in enumerate(points.tolist()):
        crc, last = crc32c(content[last:point], crc), point
        up_to[number] = crc
    before, whole = up_to[numbers[: len(begins)]], up_to[numbers[len(begins) :]]
    return whole ^ _moved(before, ends - begins)


def _moved(crcs: _Checksums, num_bytes: _Integers) -> _Checksums:
    """What each checksum becomes when so many zeros follow, as zlib's crc32_combine does it: by powers of two."""
    for power in range(int(num_bytes.max(initial=0)).bit_length()):
        crcs = np.where(num_bytes >> power & 1, _by(_zeros_table(power), crcs), crcs)
    return crcs


@lru_cache(maxsize=64)
def _zeros_table(power: int) -> _Checksums:
    """uint32 [4, 256]: what each byte of a checksum becomes by 2^power zeros; linear, so the four are added."""
    if power:
        half = _zeros_table(power - 1)
        return _by(half, half.reshape(-1)).reshape(4, 256)
    values = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    for _ in range(8):
        values = np.where(values & 1, (values >> np.uint32(1)) ^ np.uint32(0x82F63B78), values >> np.uint32(1))
    return values.astype(np.uint32)


def _by(table: _Checksums, crcs: _Checksums) -> _Checksums:
    moved: _Checksums = table[0][crcs & np.uint32(0xFF)]
    for byte in range(1, 4):
        moved = moved ^ table[byte][(crcs >> np.uint32(8 * byte)) & np.uint32(0xFF)]
    return moved
