"""Blocks of deflate streams (RFC 1951): where they may begin, and what they need of the 32 KiB
before them.
"""

from __future__ import annotations

import functools
import zlib
from types import ModuleType

import numpy as np

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

# Shares of 128 that codes of 0 to 7 bits have of all: those of a code that is complete add up to it.
_SHARES = np.array([0, 64, 32, 16, 8, 4, 2, 1])
_HEADER_BYTES = (
    11  # of a block with codes of its own: 17 bits and 19 lengths, in the midst of a byte
)


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
    bits = np.unpackbits(content, bitorder="little")
    # A header: 1 bit for the last block, 01 for such a kind, 5, 5 and 4 bits of counts, up to 19
    # lengths of 3 bits. Sums of the shares of every third place give those of any such lengths.
    at = np.flatnonzero(bits[2:] > bits[1:-1])
    at = at[at < 8 * num_bytes]
    values = bits[:-2] + 2 * bits[1:-1] + 4 * bits[2:]
    sums = np.cumsum(_SHARES[values[: len(values) // 3 * 3]].reshape(-1, 3), 0).ravel()
    counts = values[at + 13] + 8 * bits[at + 16].astype(int) + 4
    codes = at[sums[at + 14 + 3 * counts] - sums[at + 14] == 128]
    # A block that is stored has its length, and the complement of that.
    words = content[:-1] + content[1:] * np.uint32(256)
    stored = np.flatnonzero(words[:num_bytes] ^ words[2 : num_bytes + 2] == 0xFFFF)
    ends = 8 * (stored + 4 + words[stored])
    return [int(bit) for bit in np.union1d(codes, ends[ends < 8 * len(data)])]


def decompresses(data: bytes | memoryview, bit: int, is_block: bool, compression_type: str) -> bool:
    """Whether something that decompresses begins at a bit: a block, or a header of a member, of
    which little is asked, as few bytes look like one.
    """
    first, window = bit >> 3, {"zdict": NO_WINDOW} if is_block else {}
    try:
        for num_bytes in (_SHORT_TRIAL, TRIAL_BYTES):  # most others are found out soon
            bits = -15 if is_block else WINDOW_BITS[compression_type]
            inflater = zlib.decompressobj(bits, **window)
            piece = lead_in(data[first : first + num_bytes], bit & 7)
            inflater.decompress(piece, TRIAL_BYTES if is_block else _HEADER_TRIAL)
    except zlib.error:
        return False
    behind = inflater.unused_data[TRAILER_BYTES[compression_type] if is_block else 0 :]
    # A few bits may pass for a block that ends: then a file or another member must follow.
    return not inflater.eof or not behind or behind[:2] == GZIP_MAGIC[:2]


def needed_window(window: bytes, following: bytes) -> bytes | None:
    """What the blocks behind a place need of the bytes before it.

    Args:
        window: Those bytes, at most 32 KiB.
        following: Compressed bytes from the place on; see `lead_in`.

    Returns:
        The window from the first byte on to which they refer, zeros where they do not; None where
        they are too few to say.
    """
    # Decompressed with the low bytes of the positions in place of the window, then with the high
    # ones, each byte of the output tells the position that it comes from.
    positions = np.arange(len(window))
    used = np.zeros(1 << 16, np.uint8)
    found = np.uint16(0)
    for part, shift in ((positions & 255, 0), (positions >> 8, 8)):
        inflater = zlib.decompressobj(-15, zdict=part.astype(np.uint8).tobytes())
        out = inflater.decompress(following, WINDOW_BYTES)
        if not inflater.eof and len(out) < WINDOW_BYTES:
            return None
        found = found + (np.frombuffer(out, np.uint8).astype(np.uint16) << shift)
    used[found] = 1  # also where a literal looks like a position: one byte too many
    kept = np.frombuffer(window, np.uint8) * used[: len(window)]
    return kept[int(used.argmax()) :].tobytes()


# Empty blocks that end before each bit of a byte: of fixed codes, 10 bits each; where the bit is odd
# behind one with codes of its own (byte 0 and the end have codes of one bit), 97 bits.
_LEADS = (
    b"\0",
    b"\x04\xe0\x81\x08\0\0\0\0 \xecO}\x01",
    b"\x02\0",
    b"\x04\xe0\x81\x08\0\0\0\0 \xecO}\x05\0",
    b"\x02\x08\0",
    b"\x04\xe0\x81\x08\0\0\0\0 \xecO}\x05\x10\0",
    b"\x02\x08 \0",
    b"\x04\xe0\x81\x08\0\0\0\0 \xecO}\x05\x10@\0",
)


def lead_in(data: bytes | memoryview, shift: int) -> bytes:
    """The data from bit `shift` (0 to 7) of its first byte on, behind empty blocks that end there:
    blocks that are stored begin at whole bytes, so that nothing can be shifted.
    """
    if not shift or not data:
        return bytes(data)
    *lead, last = _LEADS[shift]
    return bytes([*lead, last | data[0] >> shift << shift]) + data[1:]
