from .iterable_dataset import TFRecordIterableDataset

__all__ = [
    "TFRecordIterableDataset",
]
