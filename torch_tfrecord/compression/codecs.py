"""The codecs that the core asks: see `Codecs` in `records`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from torch_tfrecord.compression.deflate import GZIP_MAGIC, WINDOW_BITS
from torch_tfrecord.compression.gzip_members import MemberPacker, member_lengths
from torch_tfrecord.compression.inflated import Gap, InflatedSource, is_zlib_header
from torch_tfrecord.compression.inflated_file import InflatedFiles
from torch_tfrecord.compression.seek_points import PointFinder, SeekPoints
from torch_tfrecord.compression.snappy import SnappySource, first_uncompressed
from torch_tfrecord.errors import CompressionError
from torch_tfrecord.files import FileSource
from torch_tfrecord.records import OVERHEAD_BYTES, is_header

__all__ = ["CODECS", "detect_compression"]

_HEADER_BYTES = 12  # of a record

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
        self._file_bytes = self._num_bytes = 0

    def pack(
        self, parts: Iterable[bytes | bytearray | memoryview], lengths: Sequence[int]
    ) -> Iterable[bytes]:
        most = self._member_bytes
        if most and self._num_bytes - self._points[-1][1] >= most:
            yield self._begin_member()
        if isinstance(self._deflater, MemberPacker):
            self._deflater.lengths += lengths
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
        self._points.append((self._file_bytes, self._num_bytes))
        return ended

    def _counted(self, data: bytes) -> bytes:
        self._file_bytes += len(data)
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
