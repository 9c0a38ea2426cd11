"""From records to single samples, or to batches as the columns that `collate` would make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.batches.column_batch import ColumnBatch
from torch_tfrecord.features.feature import SequenceFeatures
from torch_tfrecord.parsing.parsers import make_parser
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["BatchParser"]


class BatchParser:
    """Parses the records of a dataset; pickles, safe from several threads.

    `parse_example` and `collate` differ on one feature type: `parse_example` pads a FixedLenSequenceFeature, as
    TensorFlow does, while `collate` makes it jagged, like every var-length feature. Here it is read jagged.

    Args:
        features: What to read; see `TFRecordDataset`.
        max_batch_bytes: As for `TFRecordDataset`.
    """

    def __init__(
        self, features: Mapping[str, Any] | SequenceFeatures, *, max_batch_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        self._parser = make_parser(features, pads=False, max_batch_bytes=max_batch_bytes)
        self.features: Mapping[str, Any] | SequenceFeatures = self._parser.features
        self.needs_keys: bool = self._parser.needs_keys
        self.max_batch_bytes = max_batch_bytes

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
        return [*map(ColumnBatch, self._parser.batches(records, keys, borders), sizes)]
