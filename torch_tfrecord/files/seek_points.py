"""Seek points: places of a compressed file where decompression can begin, and what it needs there.

A point at the header of a gzip member or a block of Snappy needs nothing else. One between two
blocks of a deflate stream needs the 32 KiB before it, of which only those bytes are kept that later
data refers to (as in rapidgzip: Knespel and Brunst, 2023).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import IndexMismatchError

__all__ = [
    "FOLLOWING_BYTES",
    "INDEX_BYTES_RATIO",
    "MOST_POINT_BYTES",
    "NO_WINDOW",
    "PointFinder",
    "SeekPoint",
    "SeekPoints",
    "lead_in",
]

INDEX_BYTES_RATIO = 0.01
"""Seek points take at most this share of the compressed file."""

_LEAST_BYTES = 1 << 14  # which they may take in any case
MOST_POINT_BYTES = 1 << 26
"""Seek points never take more."""

_BLOCK_SPACING, _MEMBER_SPACING = 1 << 20, 1 << 16  # decompressed bytes between two points
_WINDOW_BYTES = 1 << 15
NO_WINDOW = bytes(_WINDOW_BYTES)
"""In place of one that is not known."""
_POINT_BYTES = 32
FOLLOWING_BYTES = 40 << 10
"""Compressed bytes behind a point that show which bytes before it are needed."""


# Blocks without content (RFC 1951): one of the fixed codes, of 10 bits, and one with codes of its
# own, of 97 bits: 17 + 19 * 3 of lengths of codes, 22 of codes, and the end of the block.
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


class SeekPoint(NamedTuple):
    """A place where decompression can begin.

    Attributes:
        bit: First bit in the compressed file: of a block, a member's header, or a Snappy block.
        offset: First byte in the decompressed stream.
        is_block: Whether it is in the midst of a member.
        window: What was decompressed before it, as far as it is needed; at most 32 KiB.
    """

    bit: int
    offset: int
    is_block: bool = False
    window: bytes = b""


class SeekPoints:
    """The seek points of one file, ascending.

    Args:
        table: int64 [P, 4]: bit, offset, is_block, and the end of its window in `windows`; the
            first point is the file's first byte.
        windows: The windows, each compressed.
        file_size: Bytes of the compressed file.

    Raises:
        IndexMismatchError: They are not ascending, or not within the file.
    """

    def __init__(self, table: npt.NDArray[np.int64], windows: bytes, file_size: int) -> None:
        bits, offsets, are_blocks, window_ends = table.T
        is_good = len(table) > 0 and bits[0] >= 0 and not offsets[0]
        is_good = is_good and bool((np.diff(bits) > 0).all() and (np.diff(offsets) > 0).all())
        is_good = is_good and bits[-1] < 8 * file_size and offsets[-1] < 1 << 62
        is_good = is_good and bool(np.isin(are_blocks, (0, 1)).all())
        ends = np.append(0, window_ends)
        if not is_good or (np.diff(ends) < 0).any() or ends[-1] != len(windows):
            raise IndexMismatchError("expected ascending seek points within the file, got others")
        self._table, self._windows = table, windows
        self.offsets: list[int] = offsets.tolist()

    def __len__(self) -> int:
        return len(self._table)

    def find(self, offset: int) -> int:
        """The number of the last point at or before an offset of the decompressed stream."""
        return bisect_right(self.offsets, offset) - 1

    def byte(self, number: int) -> int:
        """The compressed byte that has the first bit of a point."""
        return int(self._table[number, 0]) >> 3

    def point(self, number: int) -> SeekPoint:
        """A point, with its window."""
        bit, offset, is_block, end = self._table[number].tolist()
        begin = int(self._table[number - 1, 3]) if number else 0
        packed = self._windows[begin:end]
        try:
            window = zlib.decompressobj(-15).decompress(packed, _WINDOW_BYTES) if packed else b""
        except zlib.error as error:
            text = f"expected the window of seek point {number}, got damaged bytes"
            raise IndexMismatchError(text) from error
        return SeekPoint(bit, offset, bool(is_block), window)

    def to_bytes(self) -> bytes:
        """The table, then the windows."""
        return self._table.astype("<i8").tobytes() + self._windows

    @classmethod
    def from_bytes(cls, data: bytes, num_points: int, file_size: int) -> SeekPoints:
        """What `to_bytes` made.

        Raises:
            IndexMismatchError: It cannot be.
        """
        end = num_points * _POINT_BYTES
        if not 0 < end <= len(data):
            raise IndexMismatchError(f"expected {num_points} seek points, got {len(data)} bytes")
        table = np.frombuffer(data[:end], "<i8").astype(np.int64).reshape(-1, 4)
        return cls(table, data[end:], file_size)


class PointFinder:
    """Chooses seek points while a file is decompressed from front to back, within a budget: where
    they would take more, every second one is dropped, and the next are twice as far apart.

    Args:
        file_size: Bytes of the compressed file.
        ratio: Share of it that they may take; 16 KiB are always allowed, and at most 64 MiB.
    """

    def __init__(self, file_size: int, ratio: float = INDEX_BYTES_RATIO) -> None:
        self._file_size = file_size
        self._budget = min(max(int(file_size * ratio), _LEAST_BYTES), MOST_POINT_BYTES)
        self._rows: list[tuple[int, int, bool, bytes]] = []
        self._num_bytes = 0
        self._scale = 1
        self._starts: set[int] = set()  # offsets of points that are kept in any case

    def left(self, offset: int) -> int:
        """Bytes from an offset to where the next point between two blocks is wanted."""
        return self._last_offset + self._scale * _BLOCK_SPACING - offset

    @property
    def _last_offset(self) -> int:
        return self._rows[-1][1] if self._rows else -_BLOCK_SPACING

    def add_member(self, begin: int, offset: int) -> None:
        """A member's header, or a Snappy block, at a byte of the file; taken where one is due."""
        if not self._rows or offset - self._last_offset >= self._scale * _MEMBER_SPACING:
            self._add(8 * begin, offset, False, b"")

    def add_block(self, bit: int, offset: int, window: bytes, following: bytes) -> None:
        """A border of two blocks.

        Args:
            bit, offset: As of `SeekPoint`.
            window: The bytes before it.
            following: `FOLLOWING_BYTES` of the file, the first of which has the bit.
        """
        if offset > self._last_offset:
            needed = _needed(window, lead_in(following, bit & 7))
            self._add(bit, offset, True, _packed(needed))

    def add_start(self, point: SeekPoint) -> None:
        """A place behind damage, which cannot be reached from before it."""
        while self._rows and self._rows[-1][1] >= point.offset:
            self._rows.pop()
        if point.bit < 8 * self._file_size:
            self._starts.add(point.offset)
            self._add(point.bit, point.offset, point.is_block, _packed(point.window))

    def _add(self, bit: int, offset: int, is_block: bool, window: bytes) -> None:
        self._rows.append((bit, offset, is_block, window))
        self._num_bytes += _POINT_BYTES + len(window)
        while self._num_bytes > self._budget and len(self._rows) > 1 + len(self._starts):
            starts = [row for row in self._rows if row[1] in self._starts]
            others = [row for row in self._rows if row[1] not in self._starts]
            self._rows = sorted(others[::2] + starts)
            self._num_bytes = sum(_POINT_BYTES + len(row[3]) for row in self._rows)
            self._scale *= 2

    def points(self) -> SeekPoints | None:
        """Those found; None for an empty file."""
        if not self._rows:
            return None
        bits, offsets, are_blocks, windows = zip(*self._rows, strict=True)
        ends = np.cumsum([*map(len, windows)])
        table = np.array([bits, offsets, are_blocks, ends], np.int64).T
        return SeekPoints(table, b"".join(windows), self._file_size)


def _packed(window: bytes) -> bytes:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packed.compress(window) + packed.flush() if window else b""


def _needed(window: bytes, following: bytes) -> bytes:
    """The window from the first byte on to which the next blocks refer; zeros where they do not."""
    # Decompressed with the low bytes of the positions in place of the window, then with the high
    # ones, each byte of the output tells the position that it comes from.
    positions = np.arange(len(window))
    found = []
    for fake in (positions & 255, positions >> 8):
        inflater = zlib.decompressobj(-15, zdict=fake.astype(np.uint8).tobytes())
        try:
            out = inflater.decompress(following, _WINDOW_BYTES)
        except zlib.error:  # an error of the stream, that whoever reads on meets
            return window
        if len(out) < _WINDOW_BYTES and not inflater.eof:
            return window
        found.append(np.frombuffer(out, np.uint8).astype(np.int64))
    low, high = found
    used = np.zeros(1 << 16, bool)
    used[low + 256 * high] = True  # also where a literal looks like a position: one byte too many
    used = used[: len(window)]
    if not used.any():
        return b""
    kept = np.where(used, np.frombuffer(window, np.uint8), 0).astype(np.uint8)
    return kept[int(used.argmax()) :].tobytes()


def lead_in(data: bytes, shift: int) -> bytes:
    """The data from bit `shift` (0 to 7) of its first byte on, behind empty blocks that end there:
    blocks that are stored begin at whole bytes, so that nothing can be shifted.
    """
    if not shift or not data:
        return data
    bits, width = _ODD_BLOCK if shift % 2 else (0, 0)
    while width % 8 != shift:
        bits, width = bits | _EMPTY_BLOCK << width, width + _EMPTY_WIDTH
    bits |= data[0] >> shift << width
    return bits.to_bytes(width // 8 + 1, "little") + data[1:]
