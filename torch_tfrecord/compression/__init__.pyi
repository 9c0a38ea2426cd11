from .deflate import GZIP_MAGIC, MOST_EXPANSION, TRAILER_BYTES, WINDOW_BITS, WINDOW_BYTES, lead_in
from .formats import (
    DETECTED_BYTES,
    MEMBER_BYTES,
    Packing,
    check_compression_type,
    check_written_type,
    detect_compression,
    open_stream,
)
from .gzip_members import MemberPacker, member_lengths
from .inflated import Gap, PipeSource, SequentialSource
from .inflated_file import MOST_INFLATED_BYTES, InflatedFile, Stretches, offset_note
from .seek_points import INDEX_BYTES_RATIO, MOST_POINT_BYTES, PointFinder, SeekPoint, SeekPoints

__all__ = [
    "DETECTED_BYTES",
    "GZIP_MAGIC",
    "INDEX_BYTES_RATIO",
    "MEMBER_BYTES",
    "MOST_EXPANSION",
    "MOST_INFLATED_BYTES",
    "MOST_POINT_BYTES",
    "TRAILER_BYTES",
    "WINDOW_BITS",
    "WINDOW_BYTES",
    "Gap",
    "InflatedFile",
    "MemberPacker",
    "Packing",
    "PipeSource",
    "PointFinder",
    "SeekPoint",
    "SeekPoints",
    "SequentialSource",
    "Stretches",
    "check_compression_type",
    "check_written_type",
    "detect_compression",
    "lead_in",
    "member_lengths",
    "offset_note",
    "open_stream",
]
