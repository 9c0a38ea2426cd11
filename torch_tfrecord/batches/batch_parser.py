"""Records to what datasets hand out: single samples, or batches as columns wherever `collate` would make the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.batches.column_batch import ColumnBatch
from torch_tfrecord.errors import ParseError
from torch_tfrecord.features.specs import Feature, VarLenFeature
from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature, SequenceFeatures
from torch_tfrecord.parsing.parsers import make_parser
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.containers import jagged_tensor
from torch_tfrecord.values.dtypes import nest

__all__ = ["BatchParser"]


class BatchParser:
    """Parses the records of a dataset; pickles, safe from several threads.

    `parse_example` and `collate` differ on one spec: the one pads a FixedLenSequenceFeature, as TensorFlow does, the
    other makes it jagged, like every feature of varying length. So its columns are read as those of a VarLenFeature.

    Args:
        features: What to read; see `TFRecordDataset`.
        max_batch_bytes: As of `TFRecordDataset`.
    """

    def __init__(
        self, features: Mapping[str, Any] | SequenceFeatures, *, max_batch_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        self._parser = make_parser(features, max_batch_bytes=max_batch_bytes)
        self.max_batch_bytes = max_batch_bytes
        self.features: Mapping[str, Any] | SequenceFeatures = self._parser.features
        self.needs_keys: bool = self._parser.needs_keys
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._column_parser: Any = None
        if not isinstance(features, SequenceFeatures):
            self._shapes = {
                name: spec.shape for name, spec in features.items() if isinstance(spec, FixedLenSequenceFeature)
            }
            jagged = {name: _var_len(name, spec) for name, spec in features.items()}
            self._column_parser = make_parser(jagged, max_batch_bytes=max_batch_bytes)

    def single(self, record: bytes, key: int = 0) -> Any:
        """One sample."""
        return self._parser.single(record, key)

    def samples(
        self, records: PackedRecords, keys: npt.NDArray[np.uint64] | None = None, num_batches: int = 1
    ) -> list[Any]:
        """Several samples, of so many batches."""
        samples: list[Any] = self._parser.samples(records, keys, num_batches)
        return samples

    def batch(self, records: PackedRecords, keys: npt.NDArray[np.uint64] | None = None) -> Any:
        """Several samples, as columns where they can be."""
        return self.batches(records, keys, (0, len(records)))[0]

    def batches(
        self, records: PackedRecords, keys: npt.NDArray[np.uint64] | None, borders: Sequence[int]
    ) -> list[Sequence[Any]]:
        """Several calls of `batch` at once: their records one behind the other, and where each begins and ends."""
        if self._column_parser is None:  # a batch of SequenceExamples is padded, one of samples is not
            samples = self.samples(records, keys, len(borders) - 1)
            return [samples[begin:end] for begin, end in pairwise(borders)]
        found = self._column_parser.batches(records, keys, borders)
        for columns in found:
            for name, shape in self._shapes.items():
                columns[name] = _steps(columns[name], shape)
        sizes = (end - begin for begin, end in pairwise(borders))
        return [*map(ColumnBatch, found, sizes)]


def _var_len(name: str, spec: Feature) -> Feature:
    if not isinstance(spec, FixedLenSequenceFeature):
        return spec
    return VarLenFeature(spec.dtype, key=name if spec.key is None else spec.key)


def _steps(column: Any, shape: tuple[int, ...]) -> Any:
    """Rows of values as rows of steps of a shape."""
    if shape == ():
        return column
    size = math.prod(shape)
    lengths = torch.tensor([*map(len, column)]) if isinstance(column, list) else column.offsets().diff()
    if not size or (lengths % size).any():
        raise ParseError(f"expected a multiple of {size} values")  # read one by one, the record says more
    if isinstance(column, list):
        return [nest(values, (len(values) // size, *shape)) for values in column]
    return jagged_tensor(column.values().reshape(-1, *shape), column.offsets() // size)
