"""Facts of deflate streams (RFC 1951), and where to go on in one after damage."""

from __future__ import annotations

import functools
import re
import zlib
from types import ModuleType
from typing import Protocol, TypeAlias

import numpy as np

from torch_tfrecord.errors import optional_import
from torch_tfrecord.files import FileSource

__all__ = [
    "GZIP_MAGIC",
    "MOST_EXPANSION",
    "NO_WINDOW",
    "TRAILER_BYTES",
    "WINDOW_BITS",
    "WINDOW_BYTES",
    "Engine",
    "Inflater",
    "fastest",
    "find_start",
    "lead_in",
]

GZIP_MAGIC = b"\x1f\x8b\x08"
WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}
TRAILER_BYTES = {"GZIP": 8, "ZLIB": 4}
"""Behind the deflate stream of a member."""

MOST_EXPANSION = 1032
"""Times that data can be larger than what they are compressed to: 258 bytes from 2 bits."""

WINDOW_BYTES = 1 << 15
"""As far back as a block refers."""


class Inflater(Protocol):
    """A decompression object of zlib, isal or our core; isal's has no `unconsumed_tail`, since it keeps its input."""

    @property
    def eof(self) -> bool:
        """Whether the member has ended."""

    @property
    def unused_data(self) -> bytes:
        """The input after its end."""

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes:
        """What is decompressed next, up to so many bytes."""


class _Isal:
    """The package isal under zlib's names: its `igzip_lib` allocates as much as is asked for, and takes the GIL once
    for it; its `isal_zlib` takes it after each of 16, 32, 64, ... KiB.
    """

    def __init__(self, package: ModuleType) -> None:
        self.error, self._package = package.error, package

    def decompressobj(self, bits: int, **window: bytes) -> Inflater:
        """As zlib's."""
        kind = {31: "DECOMP_GZIP", 15: "DECOMP_ZLIB", -15: "DECOMP_DEFLATE"}[bits]
        return self._package.IgzipDecompressor(getattr(self._package, kind), **window)


Engine: TypeAlias = ModuleType | _Isal
"""Has zlib's names."""


@functools.cache
def fastest() -> Engine:
    """The package isal, at twice zlib's speed, or zlib."""
    package = optional_import("isal.igzip_lib", "zlib takes its place, at half the speed")
    return zlib if package is None else _Isal(package)


# Empty blocks that end before each bit of a byte, with fixed codes of 10 bits each; where the bit is odd
# after one with codes of its own (byte 0 and the end have codes of one bit), 97 bits.
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
    """The data from bit `shift` (0 to 7) of its first byte on, after empty blocks that end there:
    blocks that are stored begin at whole bytes, so that nothing can be shifted.
    """
    if not shift or not data:
        return bytes(data)
    *lead, last = _LEADS[shift]
    return bytes([*lead, last | data[0] >> shift << shift]) + data[1:]


_PIECE_BYTES = 1 << 16  # searched at a time
_TRIAL_BYTES = 1 << 16  # after a place, and from it, that must decompress
_HEADER_TRIAL, _SHORT_TRIAL = 1 << 8, 1 << 9
NO_WINDOW = bytes(WINDOW_BYTES)  # in place of one that is not known

# Shares of 128 that codes of 0 to 7 bits have of all: those of a code that is complete add up to it.
_SHARES = np.array([0, 64, 32, 16, 8, 4, 2, 1])
# The head of a block with codes of its own: 17 bits and 19 lengths, from within a byte on.
_HEADER_BYTES = 11


def find_start(
    source: FileSource, begin: int, compression_type: str, member: int | None
) -> tuple[int, bool]:
    """The next header of a member, or block with codes of its own, from which data decompress.

    Args:
        source: The compressed file.
        begin: The first byte that may have it.
        compression_type: "GZIP" or "ZLIB".
        member: Where a damaged member begins: what damage made of it may have led past the next
            one, which is looked for from here on.

    Returns:
        Its first bit, that of the file's end where there is none; and whether it is a block: what
        that refers to before it is taken for `NO_WINDOW`.
    """
    if member is not None:
        passed = source.read(begin + _TRIAL_BYTES - member, member)
        for at in _headers(passed[: begin - member + 2], compression_type):
            if at and _decompresses(passed, 8 * at, False, compression_type):
                return 8 * (member + at), False
    while piece := source.read(_PIECE_BYTES + _TRIAL_BYTES, begin):
        places = [(8 * at, False) for at in _headers(piece[: _PIECE_BYTES + 2], compression_type)]
        places += [(bit, True) for bit in _block_bits(piece, _PIECE_BYTES)]
        for bit, is_block in sorted(places):
            if _decompresses(piece, bit, is_block, compression_type):
                return 8 * begin + bit, is_block
        begin += min(len(piece), _PIECE_BYTES)
    return 8 * begin, False


def _headers(data: bytes, compression_type: str) -> list[int]:
    is_gzip = compression_type == "GZIP"
    return [found.start() for found in re.finditer(GZIP_MAGIC, data)] if is_gzip else []


def _block_bits(data: bytes | memoryview, num_bytes: int) -> list[int]:
    """Bits at which a block may begin, ascending: one with codes of its own in the first
    `num_bytes`, or any after one there that is stored. Few other places look so.
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


def _decompresses(
    data: bytes | memoryview, bit: int, is_block: bool, compression_type: str
) -> bool:
    """Whether something that decompresses begins at a bit: a block, or a header of a member, of
    which little is asked, as few bytes look like one.
    """
    first, window = bit >> 3, {"zdict": NO_WINDOW} if is_block else {}
    try:
        for num_bytes in (_SHORT_TRIAL, _TRIAL_BYTES):  # most others are found out soon
            bits = -15 if is_block else WINDOW_BITS[compression_type]
            inflater = zlib.decompressobj(bits, **window)
            piece = lead_in(data[first : first + num_bytes], bit & 7)
            inflater.decompress(piece, _TRIAL_BYTES if is_block else _HEADER_TRIAL)
    except zlib.error:
        return False
    behind = inflater.unused_data[TRAILER_BYTES[compression_type] if is_block else 0 :]
    # A few bits may pass for a block that ends: then a file or another member must follow.
    return not inflater.eof or not behind or behind[:2] == GZIP_MAGIC[:2]
