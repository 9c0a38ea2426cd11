from .codecs import open_stream
from .framing import OVERHEAD_BYTES, is_header
from .index import RecordIndex
from .index_keeper import IndexKeeper, SidecarKeeper
from .packed_records import PackedRecords
from .paths import find_files, found_files, without_companions
from .reader import RecordReader, read_blocks, read_records
from .record_table import RecordTable
from .scan import Block, RecordScanner, SkippedBytes
from .sidecar import SidecarFormat
from .writer import ShardedTFRecordWriter, TFRecordWriter

__all__ = [
    "OVERHEAD_BYTES",
    "Block",
    "IndexKeeper",
    "PackedRecords",
    "RecordIndex",
    "RecordReader",
    "RecordScanner",
    "RecordTable",
    "ShardedTFRecordWriter",
    "SidecarFormat",
    "SidecarKeeper",
    "SkippedBytes",
    "TFRecordWriter",
    "find_files",
    "found_files",
    "is_header",
    "open_stream",
    "read_blocks",
    "read_records",
    "without_companions",
]
