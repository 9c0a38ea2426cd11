from .collating import ColumnCollate, collate
from .column_batch import BatchParser, ColumnBatch
from .dataset_options import dataset_parser
from .device import DevicePrefetcher
from .map_dataset import DatasetOptions, MapDataset
from .nested_dataset import StagedDataset, usual_num_threads
from .read_ahead import ReadAheadLoader
from .record_files import ArrayRecordFiles, RecordFiles, open_indexed
from .sample_maker import RecordRows, SampleMaker

__all__ = [
    "ArrayRecordFiles",
    "BatchParser",
    "ColumnBatch",
    "ColumnCollate",
    "DatasetOptions",
    "DevicePrefetcher",
    "MapDataset",
    "ReadAheadLoader",
    "RecordFiles",
    "RecordRows",
    "SampleMaker",
    "StagedDataset",
    "collate",
    "dataset_parser",
    "open_indexed",
    "usual_num_threads",
]
