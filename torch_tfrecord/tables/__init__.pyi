from .arrow import ArrowColumns, write_arrow
from .index_columns import ExampleColumns, build_index
from .inference import (
    Decoded,
    InferredFeatures,
    KeyCheck,
    decode_record,
    features_of,
    infer_features,
    infer_through,
    looks_like,
    propose_features,
    read_text,
)
from .kept_columns import KeptColumn, KeptColumns, StoredColumns, check_columns, pack_columns
from .scan_tasks import ScanTask
from .spread import SpreadRecord, records_of, spread_records
from .tables import TableDataset

__all__ = [
    "ArrowColumns",
    "Decoded",
    "ExampleColumns",
    "InferredFeatures",
    "KeptColumn",
    "KeptColumns",
    "KeyCheck",
    "ScanTask",
    "SpreadRecord",
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
    "propose_features",
    "read_text",
    "records_of",
    "spread_records",
    "write_arrow",
]
