"""The codecs that the core asks, see `Codecs` in `records`: how a file is compressed, its stream, and the
file read at random, which is decompressed from the last seek point on; what was decompressed is kept
for a while.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sized
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from torch_tfrecord.compression.deflate import GZIP_MAGIC, MOST_EXPANSION, WINDOW_BITS
from torch_tfrecord.compression.gzip_members import MemberPacker, member_lengths
from torch_tfrecord.compression.inflated import (
    Gap,
    InflatedSource,
    SnappySource,
    first_uncompressed,
    is_zlib_header,
)
from torch_tfrecord.compression.seek_points import BEGINNING, PointFinder, SeekPoints
from torch_tfrecord.errors import CompressionError, IndexMismatchError
from torch_tfrecord.files import FileSource, LocalFile
from torch_tfrecord.native import native_module
from torch_tfrecord.per_process import ProcessCache, each_at_once, num_processors
from torch_tfrecord.records import OVERHEAD_BYTES, is_header

__all__ = ["CODECS", "InflatedFile", "InflatedFiles", "detect_compression"]

_HEADER_BYTES = 12  # a record's
# A stretch of more bytes is read forward, and not kept: its file has few seek points or none.
_MOST_STRETCH_BYTES = 1 << 26

_MOST_INPUT_BYTES = 1 << 20  # compressed bytes of a stretch that are read at a time
_MOST_REQUESTS = 32  # stretches of a remote file that are read at once


class InflatedFiles(ProcessCache[InflatedSource]):
    """Compressed files that are read at random, and what is decompressed of them: by file and
    number of the seek point.

    Args:
        most_bytes: Decompressed bytes that are kept, in each process.
    """

    most_bytes: int = 1 << 28

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = self.most_bytes if most_bytes is None else most_bytes
        super().__init__(self.most_bytes, attrgetter("most_bytes"))

    def open(
        self,
        file: FileSource,
        compression_type: str,
        size: int,
        points: Sized | None,
        number: int = 0,
    ) -> FileSource:
        """See `InflatedFile`."""
        known = points if isinstance(points, SeekPoints) else None
        return InflatedFile(file, compression_type, size, known, self, number)


class InflatedFile(FileSource):
    """The decompressed content of a file, of known size. Safe from threads, which share what is
    decompressed: each stretch from one seek point to the next once.

    Args:
        file: The compressed file.
        compression_type: "GZIP", "ZLIB" or "SNAPPY".
        size: Decompressed bytes.
        points: Where decompression can begin; None for the beginning only.
        stretches: Keeps what is decompressed.
        number: Number of the file among those that share `stretches`.

    Attributes:
        file: The compressed file.

    Raises:
        IndexMismatchError: So much does not fit the file.
    """

    max_gap_bytes = LocalFile.max_gap_bytes
    chunk_bytes = 1 << 19
    is_inflated = True

    def __init__(
        self,
        file: FileSource,
        compression_type: str,
        size: int,
        points: SeekPoints | None,
        stretches: InflatedFiles,
        number: int,
    ) -> None:
        # Before memory is taken for what it says.
        most = MOST_EXPANSION * file.file_size
        if compression_type in WINDOW_BITS and size > most:
            raise IndexMismatchError(
                f"expected at most {most} decompressed bytes in a file of {file.file_size}, got {size} in the index",
                path=file.path,
            )
        self.path, self.size, self.file_size = file.path, size, size
        self.mtime_ns, self.etag = file.mtime_ns, file.etag
        self.file, self._type, self._points = file, compression_type, points or BEGINNING
        self._stretches, self._number = stretches, number

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """See `FileSource`.

        Raises:
            CompressionError: The file is damaged before that.
        """
        done, wanted = 0, min(len(buffer), self.file_size - offset)
        while done < wanted:
            number = self._points.find(offset + done)
            end = min(wanted, self._end(number) - offset)
            stretch = self._stretches.find((self._number, number), self._open)
            got = stretch.read_into(buffer[done:end], offset + done)
            done += got
            if done < end:
                stretch.check_end()
                break
        return done

    def read_ranges(self, ranges: npt.NDArray[np.int64], buffer: memoryview) -> None:
        """See `FileSource`: stretches that are not kept are decompressed at once, by threads."""
        begins, sizes, places = ranges
        borders = np.array([*self._points.offsets, self.file_size])
        first = borders.searchsorted(begins, "right") - 1
        # Each range in its parts, by stretch.
        counts = np.maximum(borders.searchsorted(begins + sizes) - first, 0)
        numbers = np.arange(counts.sum()) + np.repeat(first + counts - np.cumsum(counts), counts)
        begins, ends, shifts = np.repeat([begins, begins + sizes, places - begins], counts, axis=1)
        begins = np.maximum(begins, borders[numbers])
        sizes = np.minimum(ends, borders[numbers + 1]) - begins
        order = numbers.argsort(kind="stable")  # as some overlap
        parts = np.stack([begins, sizes, begins + shifts])[:, order]
        wanted, edges = np.unique(numbers[order], return_index=True)
        new = {key for key in wanted.tolist() if (self._number, key) not in self._stretches}
        most = num_processors() if self.file.together is None else _MOST_REQUESTS
        begun = each_at_once(self._content, sorted(new), most)
        native = native_module("frames")
        for number, own in zip(wanted.tolist(), np.split(parts, edges[1:], axis=1), strict=False):
            is_begun = number in new and len(new) > 1
            content = next(begun) if is_begun else self._content(number)
            low = self._points.offsets[number]
            # Without the core, or where it is long or damaged.
            if native is None or not native.copy(content, low, own, buffer):
                super().read_ranges(own, buffer)

    def _content(self, number: int) -> memoryview:
        """A stretch, as far as it is not damaged; nothing of a long one."""
        stretch = self._stretches.find((self._number, number), self._open)
        num_bytes = 0 if stretch.keep_from is None else stretch.most_bytes
        return stretch.view(num_bytes, self._points.offsets[number])

    def forget(self, begin: int, end: int) -> bool:
        """See `FileSource`."""
        first, last = (self._points.find(max(offset, 0)) for offset in (begin, end))
        for number in range(first, last + 1):
            self._stretches.drop((self._number, number))
        return self.file.forget(self._extent(first)[0], self._extent(last)[1])

    def _end(self, number: int) -> int:
        offsets = self._points.offsets
        return offsets[number + 1] if number + 1 < len(offsets) else self.file_size

    def _extent(self, number: int) -> tuple[int, int]:
        """The compressed bytes of a stretch."""
        is_last = number + 1 == len(self._points)
        # with the bits before the next point
        end = self.file.file_size if is_last else self._points.byte(number + 1) + 1
        return self._points.byte(number), end

    def _open(self, key: tuple[int, int]) -> InflatedSource:
        number = key[1]
        begin, end = self._extent(number)
        point = self._points.point(number)
        kind = SnappySource if self._type == "SNAPPY" else InflatedSource
        stretch = kind(self.file.ahead(end), self._type, point)
        num_bytes = self._end(number) - point.offset
        if max(num_bytes, end - begin) <= _MOST_STRETCH_BYTES:
            stretch.keep_from, stretch.most_bytes = point.offset, num_bytes
            stretch.end = point.offset + num_bytes
            stretch.input_bytes = min(end - begin, _MOST_INPUT_BYTES)
        return stretch


_DESCRIPTION = {
    "": "an uncompressed TFRecord file",
    "GZIP": "a gzip stream",
    "ZLIB": "a zlib stream",
    "SNAPPY": "a Snappy stream",
}


def detect_compression(first_bytes: bytes) -> str:
    """Detect "", "GZIP", "ZLIB" or "SNAPPY" from the first `DETECTED_BYTES` (or all) bytes of a
    file.

    A valid record header takes precedence: a plain file whose first record has 35,615 bytes starts
    like gzip. A Snappy stream has no mark of its own; it is one if the header of a record comes out
    of it.
    """
    if is_header(first_bytes):
        return ""
    # Also a file cut within the magic bytes, so that the error names its compression.
    if first_bytes[:3] == GZIP_MAGIC or first_bytes in (b"\x1f", b"\x1f\x8b"):
        return "GZIP"
    is_zlib = is_zlib_header(first_bytes) or first_bytes == b"\x78"
    if is_zlib and is_header(_inflated(first_bytes)):  # what zlib stores may also look like Snappy
        return "ZLIB"
    if is_header(first_uncompressed(first_bytes, _HEADER_BYTES)):
        return "SNAPPY"
    return "ZLIB" if is_zlib else ""


def _inflated(first_bytes: bytes) -> bytes:
    """The header in a zlib stream, as far as there are some."""
    try:
        return zlib.decompressobj().decompress(first_bytes, _HEADER_BYTES)
    except zlib.error:
        return b""


class _Packer:
    """See `records.Packer`."""

    def __init__(self, packing: tuple[str, int, int | None]) -> None:
        self._type, self._level, self._member_bytes = packing
        self._deflater: zlib._Compress | MemberPacker
        if self._type == "GZIP":
            self._deflater = MemberPacker(self._level)
        else:
            self._deflater = zlib.compressobj(self._level, zlib.DEFLATED, WINDOW_BITS["ZLIB"], 9)
        # Where decompression can begin: compressed byte and decompressed byte.
        self._points = [(0, 0)]
        self.file_bytes = self._num_bytes = 0

    def pack(self, parts: Iterable[bytes | bytearray | memoryview], length: int) -> Iterable[bytes]:
        most = self._member_bytes
        if most and self._num_bytes - self._points[-1][1] >= most:
            yield self._begin_member()
        if isinstance(self._deflater, MemberPacker):
            self._deflater.lengths.append(length)
        for part in parts:
            self._num_bytes += len(part)
            yield self._counted(self._deflater.compress(part))

    def flush(self, *, is_end: bool) -> bytes:
        return self._counted(self._deflater.flush(zlib.Z_FINISH if is_end else zlib.Z_SYNC_FLUSH))

    def points(self, file_size: int) -> SeekPoints | None:
        finder = PointFinder(file_size)
        for begin, offset in self._points if file_size else ():
            # After the first, points of a zlib stream follow a full flush.
            is_block = begin > 0 and not isinstance(self._deflater, MemberPacker)
            finder.add_member(begin, offset, is_block)
        return finder.points()

    def _begin_member(self) -> bytes:
        """Make the next record a place where decompression can begin."""
        if isinstance(self._deflater, MemberPacker):
            self._deflater.says_size = True
            ended = self._deflater.flush()
            self._deflater = MemberPacker(self._level, says_size=True)
        else:  # TensorFlow stops at the end of a zlib stream
            ended = self._deflater.flush(zlib.Z_FULL_FLUSH)
        ended = self._counted(ended)
        self._points.append((self.file_bytes, self._num_bytes))
        return ended

    def _counted(self, data: bytes) -> bytes:
        self.file_bytes += len(data)
        return data


class _Codecs:
    """See `records.Codecs`."""

    detect = staticmethod(detect_compression)
    points_from = SeekPoints.from_bytes
    packer = _Packer
    inflated_files = InflatedFiles

    def open(
        self,
        source: FileSource,
        first_bytes: bytes,
        compression_type: str,
        points_ratio: float | None,
        gaps: list[Gap] | None,
    ) -> tuple[FileSource, str]:
        found = detect_compression(first_bytes)
        # the reader has a better error
        cut_header = compression_type == "" and len(first_bytes) < _HEADER_BYTES
        is_declared = compression_type not in ("auto", found)
        is_plain = is_header(first_bytes)
        if gaps is not None and compression_type != "auto" and not is_plain and found != "GZIP":
            found = compression_type  # what damaged first bytes look like counts less
        elif is_declared and not cut_header:
            raise CompressionError(
                f"expected {_DESCRIPTION[compression_type]} (compression_type={compression_type!r}), "
                f"got {_DESCRIPTION[found] if found or is_plain else 'neither gzip nor zlib nor a record'}",
                path=source.path,
                offset=0,
            )
        if not found:
            return source, ""
        finder = None if points_ratio is None else PointFinder(source.size or 0, points_ratio)
        kind = SnappySource if found == "SNAPPY" else InflatedSource
        return kind(source, found, None, finder, gaps), found

    def points_of(self, stream: FileSource) -> SeekPoints | None:
        finder = stream.finder if isinstance(stream, InflatedSource) else None
        return None if finder is None else finder.points()

    def members(
        self, file: FileSource, points_ratio: float
    ) -> tuple[npt.NDArray[np.int64], SeekPoints | None] | None:
        found = member_lengths(file, file.file_size)
        if found is None:
            return None
        finder, end = PointFinder(file.file_size, points_ratio), 0
        for begin, lengths in found:
            finder.add_member(begin, end)
            end += int(lengths.sum()) + OVERHEAD_BYTES * len(lengths)
        return np.concatenate(
            [np.empty(0, np.int64), *(each for _, each in found)]
        ), finder.points()


CODECS = _Codecs()
