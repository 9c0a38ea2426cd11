from .array_record import ArrayRecordFile
from .codecs import open_stream
from .data_file import (
    ArrayRecordIndex,
    FileIndex,
    array_record_indexes,
    has_ranges,
    open_records,
    read_record,
    record_offset,
)
from .framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    check_payload,
    checksum_error,
    find_headers,
    is_header,
    payload_length,
)
from .index import COMPRESSION_TYPES, RecordIndex, index_source, load_fresh
from .index_keeper import IndexKeeper, Kept, SidecarKeeper
from .index_paths import SIDECAR_FOLDER, remove_sidecar, sidecar_path, write_sidecar
from .packed_records import PackedRecords
from .paths import Paths, find_files, found_files, without_companions
from .reader import RecordReader, read_blocks, read_records
from .record_table import RecordPlaces, RecordTable, Table, open_table
from .scan import Block, RecordScanner, SkippedBytes
from .sidecar import SidecarFormat, pack, read_sidecar, read_source, stored_number
from .writer import ShardedTFRecordWriter, TFRecordWriter

__all__ = [
    "COMPRESSION_TYPES",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "OVERHEAD_BYTES",
    "SIDECAR_FOLDER",
    "ArrayRecordFile",
    "ArrayRecordIndex",
    "Block",
    "FileIndex",
    "IndexKeeper",
    "Kept",
    "PackedRecords",
    "Paths",
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
    "array_record_indexes",
    "check_payload",
    "checksum_error",
    "find_files",
    "find_headers",
    "found_files",
    "has_ranges",
    "index_source",
    "is_header",
    "load_fresh",
    "open_records",
    "open_stream",
    "open_table",
    "pack",
    "payload_length",
    "read_blocks",
    "read_record",
    "read_records",
    "read_sidecar",
    "read_source",
    "record_offset",
    "remove_sidecar",
    "sidecar_path",
    "stored_number",
    "without_companions",
    "write_sidecar",
]
