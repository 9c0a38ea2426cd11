"""From records to single samples, or to batches as the columns that `collate` would make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.batches.collate import register_samples
from torch_tfrecord.batches.column_batch import ColumnBatch
from torch_tfrecord.parsing.record_parsers import RecordFeatures, make_parser
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.stacking import rows_of

__all__ = ["BatchParser"]


class BatchParser:
    """Parses the records of a dataset; pickles, safe from several threads.

    `parse_example` and `collate` differ on one feature type: `parse_example` pads a FixedLenSequenceFeature, as
    TensorFlow does, while `collate` makes it jagged, like every var-length feature. Here it is read jagged.

    Args:
        features: What to read; see `TFRecordDataset`.
        max_batch_bytes: As for `TFRecordDataset`.
    """

    def __init__(self, features: RecordFeatures, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self._parser = make_parser(features, pads=False, max_batch_bytes=max_batch_bytes)
        self.features: RecordFeatures = self._parser.features
        self.needs_keys: bool = self._parser.needs_keys
        self.max_batch_bytes = max_batch_bytes
        register_samples()

    def single(self, record: bytes, key: int = 0) -> Any:
        """One sample."""
        return self._parser.single(record, key)

    def batch(self, records: PackedRecords, keys: npt.NDArray[np.uint64] | None = None) -> Sequence[Any]:
        """Several samples, as columns if possible."""
        return self.batches(records, keys, (0, len(records)))[0]

    def batches(
        self, records: PackedRecords, keys: npt.NDArray[np.uint64] | None, borders: Sequence[int]
    ) -> list[Sequence[Any]]:
        """Several calls of `batch` in one: all their records in a row, and the borders between batches."""
        sizes = (end - begin for begin, end in pairwise(borders))
        return [*map(_batch, self._parser.batches(records, keys, borders), sizes)]


def _batch(columns: Any, num_samples: int) -> Sequence[Any]:
    if isinstance(columns, (dict, tuple)):
        return ColumnBatch(columns, num_samples)
    register_samples()
    return [*rows_of(columns)]  # of samples that are tensors, torch's default_collate takes a list alone
