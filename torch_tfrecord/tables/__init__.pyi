from .arrow import write_arrow
from .found_records import FoundRecord
from .index_columns import ExampleColumns, build_index
from .inference import KeyCheck, Survey, infer_features
from .kept_columns import StoredColumns
from .record_dataset import TFRecordDataset
from .scan_tasks import ScanTask

__all__ = [
    "ExampleColumns",
    "FoundRecord",
    "KeyCheck",
    "ScanTask",
    "StoredColumns",
    "Survey",
    "TFRecordDataset",
    "build_index",
    "infer_features",
    "write_arrow",
]
