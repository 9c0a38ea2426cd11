"""Masked CRC-32C, the checksum of TFRecord files, and the CRC-32Cs of many ranges of one stream.

CRC-32C is Castagnoli (reflected polynomial ``0x82F63B78``, initial and final xor ``0xFFFFFFFF``). TFRecord stores it
*masked*, so that the checksum of bytes that themselves hold a checksum stays strong: rotated right by 15 bits, plus a
constant, modulo 2^32.

The CRC-32C of a range is that of all bytes up to its end, without what those up to its beginning have in it: with `F`
for the first and `Z` for what one zero byte does to a checksum, ``F(end) ^ Z^(end - begin) F(begin)``. `Z` can be
undone, so that a range has the checksum `c` just where ``Z^-end (F(end) ^ c) == Z^-begin F(begin)``: one number for
each beginning, one for each end, and no work for each pair of them. So the time grows with the stream and the ranges,
not with the ranges' bytes.
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
# So many zero bytes leave every checksum as it is: the order of x in the polynomials modulo Castagnoli's.
_PERIOD = 2**31 - 1


def mask(crc: _Crc) -> _Crc:
    """Mask a CRC-32C, or a uint32 array of them: ``rotate_right(crc, 15) + 0xA282EAD8`` modulo 2^32."""
    masked: _Crc = ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32  # type: ignore[assignment]  # it stays uint32
    return masked


def unmask(masked: _Crc) -> _Crc:
    """Undo `mask`."""
    rotated = (masked - _MASK_DELTA) & _UINT32
    crc: _Crc = (rotated << 15 | rotated >> 17) & _UINT32  # type: ignore[assignment]
    return crc


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Masked CRC-32C of a bytes-like object.

    Example:
        >>> hex(masked_crc32c(b""))
        '0xa282ead8'
    """
    return mask(crc32c(data))


@lru_cache(maxsize=1)
def crc_table() -> _Checksums:
    """What each byte becomes when a zero follows: uint32 [256]."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(0x82F63B78), crc >> 1).astype(np.uint32)
    return crc


# Of many ranges of a stream.


class RunningChecksums:
    """CRC-32C of all bytes of a stream from some byte on, up to each of many later ones.

    Each byte is gone over once, and for every point asked for at most `MARK_BYTES` again: the checksum is noted at each
    multiple of that.

    Args:
        read: As `ByteSource.read`.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._restart(0)

    def _restart(self, offset: int) -> None:
        self._begin = self._end = offset
        self._crc = self._crc_at_end = 0
        self._marks = array("I")  # from the first multiple of MARK_BYTES at or behind the beginning

    def start(self, offset: int) -> None:
        """Begin at a byte: no earlier one is asked for any more. What is known of those behind is kept."""
        mark = _mark_at_or_behind(offset)
        number = (mark - _mark_at_or_behind(self._begin)) // MARK_BYTES
        if not self._begin <= offset or number >= len(self._marks):
            self._restart(offset)
            return
        self._crc = moved_by(self._marks[number] ^ crc32c(self._read(mark - offset, offset)), offset - mark)
        self._begin = offset
        del self._marks[:number]

    def extend(self, end: int) -> int:
        """Go on to `end` at least, or to the end of the stream; returns how far that was."""
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
        """The checksum of all bytes from the beginning to each point.

        Args:
            points: int64 [N], any from the beginning to the stream's end.

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
        """Up to a mark, or to the beginning."""
        if begin == self._end:  # no block is behind it
            return self._crc_at_end
        if begin % MARK_BYTES:
            return self._crc
        return self._marks[(begin - _mark_at_or_behind(self._begin)) // MARK_BYTES]


def _mark_at_or_behind(offset: int) -> int:
    return -(-offset // MARK_BYTES) * MARK_BYTES


def moved(crcs: _Checksums, num_bytes: _Integers) -> _Checksums:
    """What each checksum becomes when so many zeros follow, as zlib's crc32_combine does it: by powers of two.

    Args:
        crcs: uint32 [N].
        num_bytes: int64 [N]; a negative number undoes so many.
    """
    rest = num_bytes % _PERIOD
    for power in range(int(rest.max(initial=0)).bit_length()):
        crcs = np.where(rest >> power & 1, _by(_zeros_table(power), crcs), crcs)
    return crcs


def moved_by(crc: int, num_bytes: int) -> int:
    """`moved`, of one checksum."""
    rest, power = num_bytes % _PERIOD, 0
    while rest:
        if rest & 1:
            first, second, third, fourth = _zeros_rows(power)
            crc = first[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ fourth[crc >> 24]
        rest, power = rest >> 1, power + 1
    return crc


@lru_cache(maxsize=64)
def _zeros_rows(power: int) -> list[list[int]]:
    rows: list[list[int]] = _zeros_table(power).tolist()
    return rows


@lru_cache(maxsize=64)
def _zeros_table(power: int) -> _Checksums:
    """uint32 [4, 256]: what each byte of a checksum becomes by 2^power zeros; linear, so the four are added."""
    if power:
        half = _zeros_table(power - 1)
        return _by(half, half.reshape(-1)).reshape(4, 256)
    bytes_ = np.arange(256, dtype=np.uint32)
    return np.stack([crc_table(), bytes_, bytes_ << 8, bytes_ << 16])  # the lowest byte is shifted out, the others down


def _by(table: _Checksums, crcs: _Checksums) -> _Checksums:
    result: _Checksums = table[0][crcs & np.uint32(0xFF)]
    for byte in range(1, 4):
        result = result ^ table[byte][(crcs >> np.uint32(8 * byte)) & np.uint32(0xFF)]
    return result
