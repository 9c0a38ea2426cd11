"""Where to go on behind damage: the next place of a compressed file that decompresses."""

from __future__ import annotations

import re

from torch_tfrecord.files.deflate import (
    GZIP_MAGIC,
    NO_WINDOW,
    TRIAL_BYTES,
    block_bits,
    decompresses,
)
from torch_tfrecord.files.seek_points import SeekPoint
from torch_tfrecord.files.storage import ByteSource

__all__ = ["find_start"]

_PIECE_BYTES = 1 << 16  # searched at a time


def find_start(
    source: ByteSource, begin: int, compression_type: str, member: int | None = None
) -> SeekPoint:
    """The next header of a member, or block with codes of its own, from which data decompress.

    Args:
        source: The compressed file.
        begin: The first byte that may have it.
        compression_type: "GZIP" or "ZLIB".
        member: Where a damaged member begins: what damage made of it may have led past the next
            one, which is looked for from here on.

    Returns:
        The place, at offset 0; the end of the file where there is none. What a block refers to
        before it is zero.
    """
    if member is not None:
        passed = source.read(begin + TRIAL_BYTES - member, member)
        for at in _headers(passed[: begin - member + 2], compression_type):
            if at and decompresses(passed, 8 * at, False, compression_type):
                return SeekPoint(8 * (member + at), 0)
    while piece := source.read(_PIECE_BYTES + TRIAL_BYTES, begin):
        places = [(8 * at, False) for at in _headers(piece[: _PIECE_BYTES + 2], compression_type)]
        places += [(bit, True) for bit in block_bits(piece, _PIECE_BYTES)]
        for bit, is_block in sorted(places):
            if decompresses(piece, bit, is_block, compression_type):
                window = NO_WINDOW if is_block else b""
                return SeekPoint(8 * begin + bit, 0, is_block, window)
        begin += min(len(piece), _PIECE_BYTES)
    return SeekPoint(8 * begin, 0)


def _headers(data: bytes, compression_type: str) -> list[int]:
    is_gzip = compression_type == "GZIP"
    return [found.start() for found in re.finditer(GZIP_MAGIC, data)] if is_gzip else []
