from .collating import ColumnBatch, ColumnCollate, collate
from .device import DevicePrefetcher
from .map_dataset import DatasetOptions, MapDataset, StagedDataset
from .read_ahead import ReadAheadLoader
from .record_files import RecordFiles
from .sample_maker import RecordRows, SampleMaker

__all__ = [
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
]
