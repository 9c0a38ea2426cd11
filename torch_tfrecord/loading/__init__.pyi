from .collating import collate, make_batch, numbers, take_columns
from .column_batch import BatchParser, ColumnBatch
from .dataset_options import dataset_parser, with_label
from .device import DevicePrefetcher
from .map_dataset import DatasetOptions, MapDataset
from .nested_dataset import (
    NestedDataset,
    StagedDataset,
    loads_ahead,
    transform_samples,
    usual_num_threads,
)
from .read_ahead import ReadAheadLoader, collate_left
from .record_files import (
    ArrayRecordFiles,
    RecordFiles,
    open_indexed,
    warn_of_no_records,
)
from .sample import find_rows, is_jagged, take_apart
from .sample_maker import RecordRows, SampleMaker
from .transport import for_transport, register_in_worker

__all__ = [
    "ArrayRecordFiles",
    "BatchParser",
    "ColumnBatch",
    "DatasetOptions",
    "DevicePrefetcher",
    "MapDataset",
    "NestedDataset",
    "ReadAheadLoader",
    "RecordFiles",
    "RecordRows",
    "SampleMaker",
    "StagedDataset",
    "collate",
    "collate_left",
    "dataset_parser",
    "find_rows",
    "for_transport",
    "is_jagged",
    "loads_ahead",
    "make_batch",
    "numbers",
    "open_indexed",
    "register_in_worker",
    "take_apart",
    "take_columns",
    "transform_samples",
    "usual_num_threads",
    "warn_of_no_records",
    "with_label",
]
