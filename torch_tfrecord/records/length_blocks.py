"""Lengths of neighbouring records in few bits: what a block adds to its least one, the longest few
apart.

::

    8 bytes      the least length
    1 byte       bits of each difference from it, 0 to 56
    2 bytes      number of exceptions
    n * bits     the low bits of each difference, one behind the other, from the lowest bit of each byte on
    2 bytes each numbers of the exceptions in the block, ascending
    8 bytes each what is above the low bits of each

All integers are little-endian. Records of one kind need little more than the bits in which their
lengths differ, and records of equal length none.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_RECORDS", "pack_lengths", "unpack_lengths"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

BLOCK_RECORDS = 2048  # of the manifest's format: a block is read and checked as a whole
_MOST_BITS = 56  # such a difference lies within 8 bytes, wherever it begins
_HEAD_BYTES = 11
_EXCEPTION_BYTES = 10
_POWERS = 1 << np.arange(_MOST_BITS + 1, dtype=np.int64)


def pack_lengths(lengths: _Integers) -> bytes:
    """The bytes of a block.

    Args:
        lengths: int64 [N], each from 0 to 2^62; 1 to `BLOCK_RECORDS` of them.

    Example:
        >>> len(pack_lengths(np.full(2048, 100_000)))
        11
    """
    least = lengths.min()
    over = lengths - least
    # How many differences do not fit in each number of bits, and what all need then.
    exceptions = len(over) - np.searchsorted(np.sort(over), _POWERS)
    needed = (len(over) * np.arange(_MOST_BITS + 1) + 7) // 8 + exceptions * _EXCEPTION_BYTES
    bits = int(needed.argmin())
    high = over >> bits
    at = np.flatnonzero(high)
    matrix = (over[:, None] >> np.arange(bits)) & 1
    low = np.packbits(matrix.astype(np.uint8), bitorder="little")
    head = int(least).to_bytes(8, "little") + bytes([bits]) + len(at).to_bytes(2, "little")
    return b"".join(
        [head, low.tobytes(), at.astype("<u2").tobytes(), high[at].astype("<i8").tobytes()]
    )


def unpack_lengths(block: bytes, count: int) -> _Integers:
    """The lengths that `pack_lengths` was given: int64 [count].

    Raises:
        ValueError: no block of so many records. What the lengths say is not looked at, not even
            their sign.
    """
    bits = block[8] if len(block) >= _HEAD_BYTES else _MOST_BITS + 1
    if bits > _MOST_BITS:
        raise ValueError(f"a block's head with at most {_MOST_BITS} bits, got {len(block)} bytes")
    num_exceptions = int.from_bytes(block[9:_HEAD_BYTES], "little")
    low_bytes = (count * bits + 7) // 8
    end = _HEAD_BYTES + low_bytes
    if len(block) != end + num_exceptions * _EXCEPTION_BYTES:
        raise ValueError(
            f"a block of {end + num_exceptions * _EXCEPTION_BYTES} bytes, got {len(block)}"
        )
    lengths = np.full(count, int.from_bytes(block[:8], "little", signed=True))
    if bits:
        padded = block + bytes(8)
        words = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))  # one at each byte
        begins = np.arange(count, dtype=np.int64) * bits
        begins += _HEAD_BYTES * 8
        lengths += (
            (words[begins >> 3] >> (begins & 7).view(np.uint64)) & np.uint64((1 << bits) - 1)
        ).view(np.int64)
    if num_exceptions:
        at = np.frombuffer(block, "<u2", num_exceptions, end)
        if at.max() >= count:
            raise ValueError(f"exceptions among {count} records, got number {at.max()}")
        high = np.frombuffer(block, "<i8", num_exceptions, end + 2 * num_exceptions)
        with np.errstate(over="ignore"):
            lengths[at] += high << bits
    return lengths
