from .array_record import ArrayRecordFile
from .codecs import open_stream
from .data_file import ArrayRecordIndex, FileIndex
from .framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    checksum_error,
    find_headers,
    is_header,
    payload_length,
)
from .index import RecordIndex
from .index_keeper import IndexKeeper, Kept, SidecarKeeper
from .index_paths import remove_sidecar, sidecar_path, write_sidecar
from .packed_records import PackedRecords
from .paths import find_files, found_files, without_companions
from .reader import RecordReader, read_blocks, read_records
from .record_table import RecordPlaces, RecordTable, Table, open_table
from .scan import Block, RecordScanner, SkippedBytes
from .sidecar import SidecarFormat
from .writer import ShardedTFRecordWriter, TFRecordWriter

__all__ = [
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "OVERHEAD_BYTES",
    "ArrayRecordFile",
    "ArrayRecordIndex",
    "Block",
    "FileIndex",
    "IndexKeeper",
    "Kept",
    "PackedRecords",
    "RecordIndex",
    "RecordPlaces",
    "RecordReader",
    "RecordScanner",
    "RecordTable",
    "ShardedTFRecordWriter",
    "SidecarFormat",
    "SidecarKeeper",
    "SkippedBytes",
    "TFRecordWriter",
    "Table",
    "checksum_error",
    "find_files",
    "find_headers",
    "found_files",
    "is_header",
    "open_stream",
    "open_table",
    "payload_length",
    "read_blocks",
    "read_records",
    "remove_sidecar",
    "sidecar_path",
    "without_companions",
    "write_sidecar",
]
