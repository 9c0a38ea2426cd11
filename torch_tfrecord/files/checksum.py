"""Masked CRC-32C, the checksum of TFRecord files, and the CRC-32C of many ranges of a stream.

CRC-32C is Castagnoli (reflected polynomial ``0x82F63B78``, initial and final xor ``0xFFFFFFFF``).
TFRecord stores it *masked*, so that the checksum of data that itself contains checksums stays
strong: rotated right by 15 bits, plus a constant, modulo 2^32.

The CRC-32C of a range is that of all bytes up to its end, minus the effect of the bytes before its
beginning: with `F` for the former and `Z` for the effect of one zero byte on a checksum, ``F(end) ^
Z^(end - begin) F(begin)``. `Z` can be inverted, so a range has the checksum `c` exactly if ``Z^-end
(F(end) ^ c) == Z^-begin F(begin)``: one number per beginning, one per end, and no work per pair. So
the time grows with the stream and the number of ranges, not with their bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

__all__ = [
    "MARK_BYTES",
    "RunningChecksums",
    "crc32c",
    "crc_table",
    "mask",
    "masked_crc32c",
    "moved",
    "moved_by",
    "unmask",
]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
_Checksums: TypeAlias = "npt.NDArray[np.uint32]"
_Crc = TypeVar("_Crc", int, "_Checksums")

MARK_BYTES = 1 << 12
_MASK_DELTA = 0xA282EAD8
_UINT32 = 0xFFFFFFFF
_READ_BYTES = 1 << 20
# This many zero bytes leave every checksum unchanged: the order of x in the polynomials modulo
# Castagnoli's.
_PERIOD = 2**31 - 1


def mask(crc: _Crc) -> _Crc:
    """Mask a CRC-32C, or a uint32 array of them: ``rotate_right(crc, 15) + 0xA282EAD8`` modulo
    2^32.
    """
    masked: _Crc = ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32  # type: ignore[assignment]  # the dtype stays uint32
    return masked


def unmask(masked: _Crc) -> _Crc:
    """Undo `mask`."""
    rotated = (masked - _MASK_DELTA) & _UINT32
    crc: _Crc = (rotated << 15 | rotated >> 17) & _UINT32  # type: ignore[assignment]
    return crc


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Compute the masked CRC-32C of a bytes-like object.

    Example:
        >>> hex(masked_crc32c(b""))
        '0xa282ead8'
    """
    return mask(crc32c(data))


@lru_cache(maxsize=1)
def crc_table() -> _Checksums:
    """The standard CRC-32C byte table: uint32 [256]."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(0x82F63B78), crc >> 1).astype(np.uint32)
    return crc


# Checksums of many ranges of a stream.


class RunningChecksums:
    """CRC-32C of a stream from a start byte up to each of many later points.

    Each byte is processed once, plus at most `MARK_BYTES` per requested point: the checksum is
    stored at each multiple of that.

    Args:
        read: See `ByteSource.read`.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._restart(0)

    def _restart(self, offset: int) -> None:
        self._begin = self._end = offset
        self._crc = self._crc_at_end = 0
        # starting at the first multiple of MARK_BYTES at or after the beginning
        self._marks = array("I")

    def start(self, offset: int) -> None:
        """Set the start byte, before which nothing is requested any more. Later checksums are
        kept.
        """
        mark = _mark_at_or_behind(offset)
        number = (mark - _mark_at_or_behind(self._begin)) // MARK_BYTES
        if not self._begin <= offset or number >= len(self._marks):
            self._restart(offset)
            return
        self._crc = moved_by(
            self._marks[number] ^ crc32c(self._read(mark - offset, offset)), offset - mark
        )
        self._begin = offset
        del self._marks[:number]

    def extend(self, end: int) -> int:
        """Continue at least to `end`, or to the end of the stream; return the position reached."""
        while self._end < end:
            wanted = min(_mark_at_or_behind(end) - self._end, _READ_BYTES)
            piece = memoryview(self._read(wanted, self._end))
            at = 0
            while at < len(piece):
                here = self._end + at
                if here % MARK_BYTES == 0:
                    self._marks.append(self._crc_at_end)
                step = MARK_BYTES - here % MARK_BYTES
                self._crc_at_end = crc32c(piece[at : at + step], self._crc_at_end)
                at += step
            self._end += len(piece)
            if len(piece) < wanted:
                break
        return self._end

    def up_to(self, points: _Integers) -> _Checksums:
        """The checksum of all bytes from the start to each point.

        Args:
            points: int64 [N], each from the start to the end of the stream.

        Returns:
            uint32 [N].
        """
        distinct, numbers = np.unique(points, return_inverse=True)
        self.extend(int(distinct[-1]) if len(distinct) else 0)
        crc, last, begin, block = 0, -1, 0, memoryview(b"")
        found = np.empty(len(distinct), np.uint32)
        for number, point in enumerate(distinct.tolist()):
            if last < 0 or point // MARK_BYTES > begin // MARK_BYTES:  # in another block
                last = begin = max(point - point % MARK_BYTES, self._begin)
                block = memoryview(self._read(MARK_BYTES - begin % MARK_BYTES, begin))
                crc = self._up_to_block(begin)
            crc, last = crc32c(block[last - begin : point - begin], crc), point
            found[number] = crc
        checksums: _Checksums = found[numbers.reshape(-1)]
        return checksums

    def _up_to_block(self, begin: int) -> int:
        """The checksum up to a mark, or up to the beginning."""
        if begin == self._end:  # no block follows it
            return self._crc_at_end
        if begin % MARK_BYTES:
            return self._crc
        return self._marks[(begin - _mark_at_or_behind(self._begin)) // MARK_BYTES]


def _mark_at_or_behind(offset: int) -> int:
    return -(-offset // MARK_BYTES) * MARK_BYTES


def moved(crcs: _Checksums, num_bytes: _Integers) -> _Checksums:
    """Extend each checksum by `num_bytes` zero bytes, with powers of two as in zlib's
    crc32_combine.

    Args:
        crcs: uint32 [N].
        num_bytes: int64 [N]; a negative number removes that many zero bytes.
    """
    rest = num_bytes % _PERIOD
    for power in range(int(rest.max(initial=0)).bit_length()):
        crcs = np.where(rest >> power & 1, _by(_zeros_table(power), crcs), crcs)
    return crcs


def moved_by(crc: int, num_bytes: int) -> int:
    """`moved` for a single checksum."""
    rest, power = num_bytes % _PERIOD, 0
    while rest:
        if rest & 1:
            first, second, third, fourth = _zeros_rows(power)
            crc = (
                first[crc & 0xFF]
                ^ second[crc >> 8 & 0xFF]
                ^ third[crc >> 16 & 0xFF]
                ^ fourth[crc >> 24]
            )
        rest, power = rest >> 1, power + 1
    return crc


@lru_cache(maxsize=64)
def _zeros_rows(power: int) -> list[list[int]]:
    rows: list[list[int]] = _zeros_table(power).tolist()
    return rows


@lru_cache(maxsize=64)
def _zeros_table(power: int) -> _Checksums:
    """uint32 [4, 256]: the effect of 2^power zero bytes on each byte of a checksum; linear, so xor
    the four.
    """
    if power:
        half = _zeros_table(power - 1)
        return _by(half, half.reshape(-1)).reshape(4, 256)
    bytes_ = np.arange(256, dtype=np.uint32)
    # the lowest byte is shifted out, the others move down
    return np.stack([crc_table(), bytes_, bytes_ << 8, bytes_ << 16])


def _by(table: _Checksums, crcs: _Checksums) -> _Checksums:
    result: _Checksums = table[0][crcs & np.uint32(0xFF)]
    for byte in range(1, 4):
        result = result ^ table[byte][(crcs >> np.uint32(8 * byte)) & np.uint32(0xFF)]
    return result
