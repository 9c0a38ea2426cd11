from .arrow import ArrowColumns, write_arrow
from .index_columns import ExampleColumns, build_index
from .inference import (
    KeyCheck,
    decode_record,
    features_of,
    infer_features,
    infer_through,
    looks_like,
)
from .kept_columns import KeptColumn, KeptColumns, StoredColumns, check_columns, pack_columns
from .scan_tasks import ScanTask
from .spread import records_of, spread_records
from .tables import TableDataset

__all__ = [
    "ArrowColumns",
    "ExampleColumns",
    "KeptColumn",
    "KeptColumns",
    "KeyCheck",
    "ScanTask",
    "StoredColumns",
    "TableDataset",
    "build_index",
    "check_columns",
    "decode_record",
    "features_of",
    "infer_features",
    "infer_through",
    "looks_like",
    "pack_columns",
    "records_of",
    "spread_records",
    "write_arrow",
]
