"""The seam of the extension `compression`: what the core asks of compressed files.

TFRecord compression wraps the whole file (RFC 1952 gzip, RFC 1950 zlib or blocks of Snappy), so
offsets refer to the decompressed stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from torch_tfrecord.batch_memory import Buffer, Ints
from torch_tfrecord.errors import CompressionError
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import FileSource
from torch_tfrecord.records.array_record import ArrayRecordStream
from torch_tfrecord.records.framing import ARRAY_RECORD_MAGIC, is_header

__all__ = ["DETECTED_BYTES", "Gap", "Packer", "Packing", "SeekPoints", "codecs", "open_stream"]

DETECTED_BYTES = 64
"""First bytes of a file by which its compression is detected."""


class SeekPoints(Protocol):
    """Where a compressed file can be entered."""

    def __len__(self) -> int: ...

    def to_bytes(self) -> bytes:
        """For the index."""


class Gap(Protocol):
    """Damage that the decompression of a file went past."""

    @property
    def begin(self) -> int:
        """First byte of the file that was passed over."""

    @property
    def end(self) -> int:
        """Where decompression went on."""

    @property
    def kind(self) -> str:
        """ "cut", "trailing bytes", or such as "gzip CRC" (all was decompressed, and some of it is
        wrong) and "gzip data".
        """

    @property
    def error(self) -> CompressionError:
        """The error that it is without `gaps`."""


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


class Packer(Protocol):
    """Compresses a file that is written."""

    def pack(self, parts: Iterable[Buffer], length: int) -> Iterable[bytes]:
        """The bytes to write for the parts of a framed record, whose payload has this length."""

    def flush(self, *, is_end: bool) -> bytes:
        """The bytes that were kept back so far, or all with the end of the stream."""

    def points(self, file_size: int) -> SeekPoints | None:
        """Where the file, of so many bytes, can be entered; None where it is empty."""


class Codecs(Protocol):
    """Compressed files; `compression` attaches it as ``CODECS``."""

    def detect(self, first_bytes: bytes) -> str:
        """ "", "GZIP", "ZLIB" or "SNAPPY", by the first `DETECTED_BYTES` of a file (or all)."""

    def open(
        self,
        source: FileSource,
        first_bytes: bytes,
        compression_type: str,
        points_ratio: float | None,
        gaps: list[Gap] | None,
    ) -> tuple[FileSource, str]:
        """See `open_stream`, for what is no plain record file."""

    def points_of(self, stream: FileSource) -> SeekPoints | None:
        """The seek points that a stream has found on the way."""

    def points_from(self, data: bytes, num_points: int, file_size: int) -> SeekPoints:
        """The points of bytes that `SeekPoints.to_bytes` made.

        Raises:
            IndexMismatchError: It cannot be.
        """

    def members(
        self, file: FileSource, points_ratio: float
    ) -> tuple[Ints, SeekPoints | None] | None:
        """Payload lengths of all records, int64 [N], and the seek points, if the headers of all
        gzip members say them.
        """

    def packer(self, packing: Packing) -> Packer:
        """A compressor for one file."""


def codecs() -> Codecs:
    """The codecs of the extension `compression`.

    Raises:
        ImportError: The extension is not installed.
    """
    return attached("compression", "CODECS")


def open_stream(
    source: FileSource,
    compression_type: str,
    points_ratio: float | None = None,
    gaps: list[Gap] | None = None,
) -> tuple[FileSource, str]:
    """Wrap the bytes of a file with the decompression it needs.

    Args:
        source: The bytes of the file.
        compression_type: A result of `check_compression_type`.
        points_ratio: Find places where decompression can begin, which take at most this share of
            the file: see `Codecs.points_of`.
        gaps: Takes damage of the compression, which is passed.

    Returns:
        The stream of records, and the compression found: "", "GZIP", "ZLIB" or "SNAPPY"; or
        "ARRAY_RECORD", whose records come as those of a TFRecord file.

    Raises:
        CompressionError: The declared type does not match the first bytes.
        ImportError: It is compressed, and the extension is not installed.
    """
    first_bytes = source.read(DETECTED_BYTES, 0)
    if not first_bytes:  # whatever the compression: TensorFlow reads no record from it, either
        return source, "" if compression_type == "auto" else compression_type
    if compression_type in ("auto", ""):
        if first_bytes.startswith(ARRAY_RECORD_MAGIC):
            return ArrayRecordStream(source), "ARRAY_RECORD"
        if is_header(first_bytes):
            return source, ""
    try:
        found = codecs()
    except ImportError:  # then what is no record is damage, unless it looks like gzip or zlib
        if compression_type not in ("auto", "") or first_bytes.startswith((b"\x1f\x8b", b"\x78")):
            raise
        return source, ""
    return found.open(source, first_bytes, compression_type, points_ratio, gaps)
