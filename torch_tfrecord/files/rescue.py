"""Where to go on behind damage: the next place of a compressed file that decompresses, and the end
of what was written twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files.deflate import (
    GZIP_MAGIC,
    NO_WINDOW,
    TRIAL_BYTES,
    block_bits,
    decompresses,
)
from torch_tfrecord.files.seek_points import SeekPoint
from torch_tfrecord.files.storage import ByteSource

__all__ = ["DOUBLE_BYTES", "behind_double", "find_start", "is_double"]

_PIECE_BYTES = 1 << 16  # searched at a time
DOUBLE_BYTES = 1 << 22
"""A piece that is there twice is looked for in so many bytes before damage."""

_EDGE_BYTES = 1 << 6
_PATTERN_BYTES = (1 << 12, 1 << 8, 1 << 5, 1 << 4)  # by its first bytes


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
    found: list[int] = []
    while (
        compression_type == "GZIP"
        and (at := data.find(GZIP_MAGIC, found[-1] + 1 if found else 0)) >= 0
    ):
        found.append(at)
    return found


def behind_double(
    source: ByteSource, begin: int, found: int, most_bytes: int = DOUBLE_BYTES
) -> int | None:
    """Where damage ends that comes from a piece of the file that was written twice.

    Bytes b to c, written twice, stand in what was begun before c; there the damage begins. What is
    found behind it are the bytes from b on, a second time; what was begun goes on, whole, as far
    from `begin` as the copies are from each other.

    Args:
        source: The file.
        begin: Where what is damaged begins.
        found: Where the file is good again: behind, or in, the second copy.
        most_bytes: How far before the damage the first copy may begin.

    Returns:
        Where what is damaged begins a second time; None if nothing was written twice.
    """
    low = max(begin - most_bytes, 0)
    most_pattern = min(_PATTERN_BYTES[0], most_bytes // 4)
    before = source.read(begin - low + most_pattern, low)
    left = most_bytes  # that may be compared
    following = source.read(most_pattern, found)
    for size in _PATTERN_BYTES:
        pattern = following[:size]
        place = begin - low + 1  # the damage itself may begin with the pattern
        while len(pattern) == size and left > 0:
            place = before.rfind(pattern, 0, max(place + size - 1, 0))
            if place < 0:
                break
            distance = found - low - place
            left -= 3 * distance
            if is_double(source, begin, distance, distance, distance, 0.75):
                return begin + distance
    return None


def is_double(
    source: ByteSource, begin: int, before: int, behind: int, size: int, least: float
) -> bool:
    """Whether the bytes from a damaged place on are a copy of others, or are there once more.

    Args:
        source: The file.
        begin: Where the damage begins.
        before, behind: How far before, and behind, each byte its like is.
        size: Bytes of the damage, of which the first and the last ones are compared.
        least: The share of them that must be alike, since copies may be damaged, too.
    """
    places = np.arange(min(size, before))
    edges = np.concatenate([places[:_EDGE_BYTES], places[_EDGE_BYTES:][-_EDGE_BYTES:]])
    damage, first, second = (
        _bytes(source, begin + at, len(places))[edges] for at in (0, -before, behind)
    )
    if not len(damage) or damage[-1] < 0:
        return False
    # In data that repeat themselves, both are alike.
    alike = float(((damage == first) | (damage == second)).mean())
    both = float((((damage == first) | (first < 0)) & ((damage == second) | (second < 0))).mean())
    return alike > least and both < (0.9 if alike == 1 else 0.5)


def _bytes(source: ByteSource, begin: int, size: int) -> npt.NDArray[np.int16]:
    """Bytes of the file; -1 where it has not begun, or has ended."""
    found, low = np.full(size, -1, np.int16), max(begin, 0)
    content = np.frombuffer(source.read(max(begin + size - low, 0), low), np.uint8)
    found[low - begin :][: len(content)] = content
    return found
