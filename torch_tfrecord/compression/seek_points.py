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

from torch_tfrecord.compression.deflate import WINDOW_BYTES, lead_in
from torch_tfrecord.errors import IndexMismatchError, warn_once
from torch_tfrecord.native import fallback_reason, how_to_install

__all__ = [
    "BEGINNING",
    "INDEX_BYTES_RATIO",
    "MOST_POINT_BYTES",
    "PointFinder",
    "SeekPoint",
    "SeekPoints",
]

INDEX_BYTES_RATIO = 0.005
"""Seek points take at most this share of the compressed file."""

_LEAST_BYTES = 1 << 14  # which they may take in any case
MOST_POINT_BYTES = 1 << 26
"""Seek points never take more."""

_BLOCK_SPACING, _MEMBER_SPACING = 1 << 20, 1 << 16  # decompressed bytes between two points
_POINT_BYTES = 32
_NOT_BUILT = (
    "a gzip or zlib file is entered at its beginning, or that of a member, which is slow where they are long: "
    "torch_tfrecord.native.inflate was not built. Install the headers of zlib (apt install zlib1g-dev or dnf "
    f"install zlib-devel), then {how_to_install()}"
)


class SeekPoint(NamedTuple):
    """A place where decompression can begin.

    Attributes:
        bit: First bit in the compressed file, of a block, a member's header, or a Snappy block.
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
        bits, offsets, are_blocks, ends = table.T
        is_good = len(table) > 0 and table.min() >= 0 and not offsets[0] and are_blocks.max() < 2
        is_good = is_good and bits[-1] < 8 * file_size and offsets[-1] < 1 << 62
        steps = table[1:] - table[:-1]  # numbers are not negative: no overflow
        is_good = is_good and (steps[:, :2] > 0).all() and (steps[:, 3] >= 0).all()
        is_good = is_good and not (bits % 8 > 7 * are_blocks).any()  # headers begin at bytes
        if not is_good or ends[-1] != len(windows):
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
            window = zlib.decompressobj(-15).decompress(packed, WINDOW_BYTES)
        except zlib.error as error:
            raise IndexMismatchError(
                f"expected the window of seek point {number}, got damaged bytes"
            ) from error
        return SeekPoint(bit, offset, bool(is_block), window)

    def to_bytes(self) -> bytes:
        """The table, then the windows."""
        return self._table.astype("<i8").tobytes() + self._windows

    @classmethod
    def from_bytes(cls, data: bytes, num_points: int, file_size: int) -> SeekPoints:
        """The points of bytes that `to_bytes` made.

        Raises:
            IndexMismatchError: It cannot be.
        """
        end = num_points * _POINT_BYTES
        if not 0 < end <= len(data):
            raise IndexMismatchError(f"expected {num_points} seek points, got {len(data)} bytes")
        table = np.frombuffer(data[:end], "<i8").astype(np.int64).reshape(-1, 4)
        return cls(table, data[end:], file_size)


BEGINNING = SeekPoints(np.zeros((1, 4), np.int64), b"", 1)
"""The seek points of a file of which none are known."""


class PointFinder:
    """Chooses seek points while a file is decompressed from front to back, within a budget that
    grows with what was read.

    Args:
        file_size: Bytes of the compressed file.
        ratio: Share of it that they may take; 16 KiB are always allowed, and at most 64 MiB.
    """

    def __init__(self, file_size: int, ratio: float = INDEX_BYTES_RATIO) -> None:
        self._file_size = file_size
        self._ratio = min(ratio, MOST_POINT_BYTES / max(file_size, 1))
        self._rows: list[tuple[int, int, bool, bytes]] = []
        self._num_bytes = 0

    def see(
        self, border: tuple[int, int, bytes] | None, data: bytes, begin: int, offset: int
    ) -> None:
        """A piece of a member, decompressed; a block that begins there is taken where one is due.

        Args:
            border: Where that is, as `native.inflate` says it.
            data: Compressed bytes.
            begin: The first of them in the file.
            offset: Offset of the piece in the decompressed stream.
        """
        if offset < self._last_offset + _BLOCK_SPACING:
            return
        if border is None:
            if fallback_reason("inflate") == "not built":
                warn_once(_NOT_BUILT)
            return
        place, bit, window = border
        if self._may_take(begin):
            needed = _needed_window(window, lead_in(memoryview(data)[bit >> 3 :], bit & 7))
            if needed is not None:
                self._add(8 * begin + bit, offset + place, True, _packed(needed))

    def _may_take(self, begin: int) -> bool:
        """Whether the budget has room for one more point."""
        num_bytes = _POINT_BYTES + self._num_bytes // max(len(self._rows), 1)
        return self._num_bytes + num_bytes <= max(self._ratio * begin, _LEAST_BYTES)

    def add_member(self, begin: int, offset: int, is_block: bool = False) -> None:
        """A member's header, a Snappy block, or a block that refers to none before it, at a byte of
        the file; taken where one is due.
        """
        is_due = offset >= self._last_offset + _MEMBER_SPACING and self._may_take(begin)
        if not self._rows or is_due:
            self._add(8 * begin, offset, is_block, b"")

    def add_start(self, point: SeekPoint) -> None:
        """A place after damage, which cannot be reached from before it."""
        while self._rows and self._rows[-1][1] >= point.offset:
            self._rows.pop()
        if point.bit < 8 * self._file_size:
            self._add(point.bit, point.offset, point.is_block, _packed(point.window))

    def _add(self, bit: int, offset: int, is_block: bool, window: bytes) -> None:
        self._rows.append((bit, offset, is_block, window))
        self._num_bytes += _POINT_BYTES + len(window)

    @property
    def _last_offset(self) -> int:
        return self._rows[-1][1] if self._rows else -1

    def points(self) -> SeekPoints | None:
        """Those found; None for an empty file."""
        if not self._rows:
            return None
        bits, offsets, are_blocks, windows = zip(*self._rows, strict=True)
        ends = np.cumsum([*map(len, windows)])
        table = np.array([bits, offsets, are_blocks, ends], np.int64).T
        return SeekPoints(table, b"".join(windows), self._file_size)


def _needed_window(window: bytes, following: bytes) -> bytes | None:
    """The bytes before a place that the blocks after it need.

    Args:
        window: Those bytes, at most 32 KiB.
        following: Compressed bytes from the place on; see `lead_in`.

    Returns:
        The window from the first byte on to which they refer, zeros where they do not; None where
        they are too few to say.
    """
    # Decompressed with the low bytes of the positions in place of the window, then with the high
    # ones, each byte of the output says the position that it comes from.
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


def _packed(window: bytes) -> bytes:
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packed.compress(window) + packed.flush() if window else b""
