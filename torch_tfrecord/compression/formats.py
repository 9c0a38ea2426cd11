"""Whole-file compression of TFRecord files: its names, and which of them a file has.

TFRecord compression wraps the whole file (RFC 1952 gzip, RFC 1950 zlib or blocks of Snappy), so
offsets refer to the decompressed stream.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from torch_tfrecord.compression.deflate import GZIP_MAGIC, WINDOW_BITS
from torch_tfrecord.compression.gzip_members import MemberPacker
from torch_tfrecord.compression.inflated import Gap, InflatedSource, is_zlib_header
from torch_tfrecord.compression.seek_points import PointFinder
from torch_tfrecord.compression.snappy import SNAPPY_PREFIX_BYTES, SnappySource, first_uncompressed
from torch_tfrecord.errors import CompressionError
from torch_tfrecord.files import ByteSource
from torch_tfrecord.records import ARRAY_RECORD_MAGIC, HEADER_BYTES, ArrayRecordStream, is_header

__all__ = [
    "DETECTED_BYTES",
    "MEMBER_BYTES",
    "Packing",
    "check_compression_type",
    "check_written_type",
    "detect_compression",
    "open_stream",
]

_DESCRIPTION = {
    "": "an uncompressed TFRecord file",
    "GZIP": "a gzip stream",
    "ZLIB": "a zlib stream",
    "SNAPPY": "a Snappy stream",
}

DETECTED_BYTES = SNAPPY_PREFIX_BYTES
"""First bytes of a file by which its compression is detected."""


def check_compression_type(compression_type: str | None) -> str:
    """Normalise a compression type to "auto", "", "GZIP", "ZLIB" or "SNAPPY"; raise ValueError for
    anything else.
    """
    return _checked_type(compression_type, (*WINDOW_BITS, "SNAPPY"))


def check_written_type(compression_type: str | None) -> str:
    """The same for a file to write: Snappy is only read."""
    return _checked_type(compression_type, (*WINDOW_BITS,))


def _checked_type(compression_type: str | None, types: tuple[str, ...]) -> str:
    name = "" if compression_type is None else compression_type
    if isinstance(name, str):
        if name.lower() == "auto":
            return "auto"
        if name.upper() in ("", *types):
            return name.upper()
    *others, last = map(repr, ("auto", None, "", *types))
    raise ValueError(
        f"compression_type must be {', '.join(others)} or {last}, got {compression_type!r}"
    )


def detect_compression(first_bytes: bytes) -> str:
    """Detect "", "GZIP", "ZLIB" or "SNAPPY" from the first `DETECTED_BYTES` (or all) bytes of a
    file.

    A valid record header takes precedence: a plain file whose first record has 35,615 bytes starts
    like gzip. A Snappy stream has no mark of its own; it is one if the header of a record comes out
    of it.
    """
    if is_header(first_bytes[:HEADER_BYTES]):
        return ""
    # Of a file cut within the magic bytes, too, so that the error names its compression.
    if first_bytes[:3] == GZIP_MAGIC or first_bytes in (b"\x1f", b"\x1f\x8b"):
        return "GZIP"
    is_zlib = is_zlib_header(first_bytes) or first_bytes == b"\x78"
    if is_zlib and is_header(_inflated(first_bytes)):  # what zlib stores may also look like Snappy
        return "ZLIB"
    if is_header(first_uncompressed(first_bytes, HEADER_BYTES)):
        return "SNAPPY"
    return "ZLIB" if is_zlib else ""


def _inflated(first_bytes: bytes) -> bytes:
    """The first `HEADER_BYTES` of a zlib stream, as far as there are some."""
    try:
        return zlib.decompressobj().decompress(first_bytes, HEADER_BYTES)
    except zlib.error:
        return b""


MEMBER_BYTES = 1 << 20
"""Of records in a GZIP member: larger ones save less than 0.1 % of a file, smaller ones cost more."""


class Packing(NamedTuple):
    """How a file is compressed; deterministic, as a gzip header has no time or name.

    Attributes:
        compression_type: "", "GZIP" or "ZLIB".
        level: 0 to 9; -1 for zlib's default.
        member_bytes: So many bytes of records, then the next one begins a GZIP member, or follows a
            full flush of the ZLIB stream; None for never.
    """

    compression_type: str
    level: int
    member_bytes: int | None

    def begin(self) -> zlib._Compress | MemberPacker | None:
        """What compresses a stream or a member."""
        if self.compression_type == "GZIP":
            return MemberPacker(self.level)
        if self.compression_type == "ZLIB":
            return zlib.compressobj(self.level, zlib.DEFLATED, WINDOW_BITS["ZLIB"], 9)
        return None


def open_stream(
    source: ByteSource,
    compression_type: str,
    finder: PointFinder | None = None,
    gaps: list[Gap] | None = None,
) -> tuple[ByteSource, str]:
    """Wrap the bytes of a file with the decompression it needs.

    Args:
        source: The bytes of the file.
        compression_type: A result of `check_compression_type`.
        finder: Is shown where decompression may begin.
        gaps: Takes damage of the compression, which is passed: see `InflatedSource`.

    Returns:
        The stream of records, and the compression found: "", "GZIP", "ZLIB" or "SNAPPY"; or
        "ARRAY_RECORD", whose records come as those of a TFRecord file.

    Raises:
        CompressionError: The declared type does not match the first bytes.
    """
    first_bytes = source.read(DETECTED_BYTES, 0)
    if compression_type in ("auto", "") and first_bytes.startswith(ARRAY_RECORD_MAGIC):
        return ArrayRecordStream(source), "ARRAY_RECORD"
    found = detect_compression(first_bytes)
    # the reader has a better error
    cut_header = compression_type == "" and len(first_bytes) < HEADER_BYTES
    is_declared = compression_type not in ("auto", found)
    is_plain = is_header(first_bytes[:HEADER_BYTES])
    if gaps is not None and compression_type != "auto" and not is_plain and found != "GZIP":
        found = compression_type  # what damaged first bytes look like counts less
    elif first_bytes and is_declared and not cut_header:
        raise CompressionError(
            f"expected {_DESCRIPTION[compression_type]} (compression_type={compression_type!r}), "
            f"got {_DESCRIPTION[found] if found or is_plain else 'neither gzip nor zlib nor a record'}",
            path=source.path,
            offset=0,
        )
    # An empty file is of any compression: TensorFlow reads no record from it, either.
    if not first_bytes:
        found = "" if compression_type == "auto" else compression_type
    if not found or not first_bytes:
        return source, found
    kind = SnappySource if found == "SNAPPY" else InflatedSource
    return kind(source, found, None, finder, gaps), found
