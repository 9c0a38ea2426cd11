"""Blocks of deflate streams (RFC 1951): where they may begin, and what they need of the 32 KiB
before them.
"""

from __future__ import annotations

import functools
import zlib
from types import ModuleType

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import optional_import

__all__ = [
    "GZIP_MAGIC",
    "MOST_EXPANSION",
    "NO_WINDOW",
    "TRAILER_BYTES",
    "TRIAL_BYTES",
    "WINDOW_BITS",
    "WINDOW_BYTES",
    "block_bits",
    "decompresses",
    "fastest",
    "lead_in",
    "needed_window",
]

GZIP_MAGIC = b"\x1f\x8b\x08"
WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}
TRAILER_BYTES = {"GZIP": 8, "ZLIB": 4}
"""Behind the deflate stream of a member."""

MOST_EXPANSION = 1032
"""Times that data can be larger than what they are compressed to: 258 bytes from 2 bits."""

WINDOW_BYTES = 1 << 15
NO_WINDOW = bytes(WINDOW_BYTES)
"""In place of one that is not known."""

TRIAL_BYTES = 1 << 16
"""Bytes behind a place, and from it, that must decompress."""

_HEADER_TRIAL, _SHORT_TRIAL = 1 << 8, 1 << 9

# Bits of a block's header: 1 for the last one, 2 of its kind, 5, 5 and 4 of counts; then up to 19
# lengths of 3 bits, which fill a code where their shares of 128 add up to 128.
_COUNT_AT, _LENGTHS_AT = 13, 17
_HEADER_BYTES = 17  # as many as are read behind the first bit, which may be in the midst of a byte
_SHARES = np.array([0, 64, 32, 16, 8, 4, 2, 1], np.int64)
_FIVE = np.arange(1 << 15, dtype=np.int64)
_SHARES_OF_FIVE = sum(_SHARES[_FIVE >> 3 * number & 7] for number in range(5)).astype(np.int16)
_MASKS = (1 << 3 * (np.arange(16, dtype=np.int64) + 4)) - 1
_COUNTS = np.arange(1 << 13)
_LOOKS_RIGHT = (_COUNTS & 6 == 4) & (_COUNTS >> 3 & 31 < 30) & (_COUNTS >> 8 < 30)


@functools.cache
def fastest() -> ModuleType:
    """The package isal, which has zlib's functions at twice its speed, or zlib."""
    return optional_import("isal.isal_zlib", "zlib takes its place, at half the speed") or zlib


def block_bits(data: bytes | memoryview, num_bytes: int) -> list[int]:
    """Bits at which a block may begin, ascending: one with codes of its own in the first
    `num_bytes`, or any behind one there that is stored. Few other places look so.
    """
    num_bytes = min(num_bytes, len(data) - _HEADER_BYTES)
    if num_bytes <= 0:
        return []
    content = np.frombuffer(data, np.uint8, num_bytes + _HEADER_BYTES)
    view = np.lib.stride_tricks.sliding_window_view(content, 8)
    words = np.ascontiguousarray(view).view("<u8")[:, 0]
    heads = words[:num_bytes].astype(np.uint32)
    shifted = (heads[:, None] >> np.arange(8, dtype=np.uint32)) & (len(_COUNTS) - 1)
    bits = np.flatnonzero(_LOOKS_RIGHT[shifted])
    lengths = _bits_at(words, bits + _LENGTHS_AT)
    lengths &= _MASKS[_bits_at(words, bits + _COUNT_AT) & 15]
    shares = sum(_SHARES_OF_FIVE[lengths >> 15 * part & 0x7FFF] for part in range(4))
    # A block that is stored has its length, and the complement of that.
    length = heads & 0xFFFF
    at = np.flatnonzero(length ^ heads >> 16 == 0xFFFF)
    ends = at + 4 + length[at]
    found = np.concatenate([bits[shares == 128], 8 * ends[ends < len(data)]])
    return [int(bit) for bit in np.unique(found)]


def _bits_at(words: npt.NDArray[np.uint64], bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """57 bits from each place on, the first as the lowest."""
    found: npt.NDArray[np.int64] = words[bits >> 3] >> (bits & 7).astype(np.uint64)
    return found.astype(np.int64)


def decompresses(data: bytes | memoryview, bit: int, is_block: bool, compression_type: str) -> bool:
    """Whether something that decompresses begins at a bit: a block, or a header of a member, of
    which little is asked, as few bytes look like one.
    """
    first = bit >> 3
    try:
        if is_block:  # most others are found out soon
            for num_bytes in (_SHORT_TRIAL, TRIAL_BYTES):
                inflater = zlib.decompressobj(-15, zdict=NO_WINDOW)
                piece = lead_in(data[first : first + num_bytes], bit & 7)
                inflater.decompress(piece, TRIAL_BYTES)
        else:
            inflater = zlib.decompressobj(WINDOW_BITS[compression_type])
            inflater.decompress(data[first : first + TRIAL_BYTES], _HEADER_TRIAL)
    except zlib.error:
        return False
    behind = inflater.unused_data[TRAILER_BYTES[compression_type] if is_block else 0 :]
    # A few bits may pass for a block that ends: then a file or another member must follow.
    return not inflater.eof or not behind or behind[:2] == GZIP_MAGIC[:2]


def needed_window(window: bytes, following: bytes, out: bytes) -> bytes | None:
    """What the blocks behind a place need of the bytes before it.

    Args:
        window: Those bytes, at most 32 KiB.
        following: Compressed bytes from the place on; see `lead_in`.
        out: What they hold: 32 KiB, or all.

    Returns:
        The window from the first byte on to which they refer, zeros where they do not; None where
        they hold something else.
    """
    # Decompressed with the low bytes of the positions in place of the window, then with the high
    # ones, each byte of the output tells the position that it comes from.
    positions = np.arange(len(window))
    found = []
    for before in (window, _bytes(positions & 255), _bytes(positions >> 8)):
        inflater = zlib.decompressobj(-15, zdict=before)
        try:
            found.append(inflater.decompress(following, WINDOW_BYTES))
        except zlib.error:
            return None
    is_whole = inflater.eof or len(found[0]) == WINDOW_BYTES
    if not is_whole or not found[0] or not out.startswith(found[0]):
        return None
    low, high = (np.frombuffer(part, np.uint8).astype(np.int64) for part in found[1:])
    used = np.zeros(1 << 16, bool)
    used[low + 256 * high] = True  # also where a literal looks like a position: one byte too many
    used = used[: len(window)]
    kept = np.where(used, np.frombuffer(window, np.uint8), 0)
    return _bytes(kept[int(used.argmax()) :]) if used.any() else b""


def _bytes(numbers: npt.NDArray[np.int64]) -> bytes:
    return numbers.astype(np.uint8).tobytes()


# Blocks without content: one of the fixed codes, of 10 bits, and one with codes of its own, of 97
# bits: 17 + 19 * 3 of lengths of codes, 22 of codes, and the end of the block.
_EMPTY_BLOCK, _EMPTY_WIDTH = 0b010, 10


def _odd_block() -> tuple[int, int]:
    lengths = {18: 1, 0: 2, 1: 2}  # of the codes of runs of zeros, of 0, and of 1
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    fields = [(0, 1), (2, 2), (0, 5), (0, 5), (15, 4)]
    fields += [(lengths.get(symbol, 0), 3) for symbol in order]
    # Byte 0 and the end have codes of one bit, the 255 between none, and no distance has one.
    fields += [(3, 2), (0, 1), (127, 7), (0, 1), (106, 7), (3, 2), (1, 2), (1, 1)]
    bits = width = 0
    for value, size in fields:
        bits, width = bits | value << width, width + size
    return bits, width


_ODD_BLOCK = _odd_block()


def lead_in(data: bytes | memoryview, shift: int) -> bytes:
    """The data from bit `shift` (0 to 7) of its first byte on, behind empty blocks that end there:
    blocks that are stored begin at whole bytes, so that nothing can be shifted.
    """
    if not shift or not data:
        return bytes(data)
    bits, width = _ODD_BLOCK if shift % 2 else (0, 0)
    while width % 8 != shift:
        bits, width = bits | _EMPTY_BLOCK << width, width + _EMPTY_WIDTH
    bits |= data[0] >> shift << width
    return bits.to_bytes(width // 8 + 1, "little") + data[1:]
