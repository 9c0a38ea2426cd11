"""Facts of deflate streams (RFC 1951)."""

from __future__ import annotations

import functools
import zlib
from types import ModuleType

from torch_tfrecord.errors import optional_import

__all__ = [
    "GZIP_MAGIC",
    "MOST_EXPANSION",
    "TRAILER_BYTES",
    "WINDOW_BITS",
    "WINDOW_BYTES",
    "fastest",
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


@functools.cache
def fastest() -> ModuleType:
    """The package isal, which has zlib's functions at twice its speed, or zlib."""
    return optional_import("isal.isal_zlib", "zlib takes its place, at half the speed") or zlib


# Empty blocks that end before each bit of a byte: of fixed codes, 10 bits each; where the bit is odd
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
