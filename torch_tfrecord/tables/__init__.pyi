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
from .kept_columns import StoredColumns
from .record_dataset import TFRecordDataset
from .scan_tasks import ScanTask
from .spread import spread_records

__all__ = [
    "ArrowColumns",
    "ExampleColumns",
    "KeyCheck",
    "ScanTask",
    "StoredColumns",
    "TFRecordDataset",
    "build_index",
    "decode_record",
    "features_of",
    "infer_features",
    "infer_through",
    "looks_like",
    "spread_records",
    "write_arrow",
]
