"""From records to single samples, or to batches as the columns that `collate` would make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, check_max_batch_bytes
from torch_tfrecord.columns.feature import SequenceFeatures
from torch_tfrecord.columns.record_parsers import RecordFeatures, make_parser
from torch_tfrecord.columns.source import Source
from torch_tfrecord.columns.stacking import rows_of
from torch_tfrecord.loading.collate import register_samples
from torch_tfrecord.loading.column_batch import ColumnBatch
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.samples import RecordPlace

__all__ = ["BatchParser"]


class BatchParser:
    """Parses the records of a dataset; pickles, safe from several threads.

    `parse_example` and `collate` differ on one feature type: `parse_example` pads a
    FixedLenSequenceFeature, as TensorFlow does, while `collate` makes it jagged, like every
    var-length feature. Here it is read jagged.

    Args:
        features: What to read; see `TFRecordDataset`. A `Source` is not read, but made from the
            record's place.
        max_batch_bytes: As for `TFRecordDataset`.
    """

    def __init__(self, features: RecordFeatures, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self._sources, stored = _sources_apart(features)
        self._parser = None
        if stored or not self._sources:
            self._parser = make_parser(stored, pads=False, max_batch_bytes=max_batch_bytes)
        self.features: RecordFeatures = features if self._parser is None else self._parser.features
        if self._sources:
            self.features = copy(features)
        self.needs_keys: bool = self._parser is not None and self._parser.needs_keys
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)
        register_samples()

    def single(self, record: bytes, key: int, where: Callable[[], RecordPlace]) -> Any:
        """One sample; `where` tells the place of its record."""
        sample = self._no_values if self._parser is None else self._parser.single(record, key)
        if not self._sources:
            return sample
        place = where()
        return self._complete(
            sample, {name: spec.value(place) for name, spec in self._sources.items()}
        )

    def batches(
        self,
        records: PackedRecords,
        keys: npt.NDArray[np.uint64] | None,
        borders: Sequence[int],
        place: Callable[[int], RecordPlace],
    ) -> list[Sequence[Any]]:
        """Several batches, as columns if possible: all their records in a row, the borders between
        them, the places.
        """
        ends = [*pairwise(borders)]
        found = (
            [self._no_values] * len(ends)
            if self._parser is None
            else self._parser.batches(records, keys, borders)
        )
        for number, (begin, end) in enumerate(ends if self._sources else []):
            places = [*map(place, range(begin, end))]
            columns = {name: spec.column(places) for name, spec in self._sources.items()}
            found[number] = self._complete(found[number], columns)
        return [
            _batch(columns, end - begin) for columns, (begin, end) in zip(found, ends, strict=True)
        ]

    @property
    def _no_values(self) -> Any:
        return ({}, {}) if isinstance(self.features, SequenceFeatures) else {}

    def _complete(self, values: Any, sources: Mapping[str, Any]) -> Any:
        """Values with those of each `Source`, in the order of the features."""
        if isinstance(self.features, SequenceFeatures):
            context = {**values[0], **sources}
            return {name: context[name] for name in self.features.context_features or {}}, values[1]
        values = {**values, **sources}
        return {name: values[name] for name in cast("Mapping[str, Any]", self.features)}


def _sources_apart(features: Any) -> tuple[dict[str, Source], Any]:
    """Each `Source`, and the features that are read from records; a false value if there are
    none.
    """
    sources: dict[str, Source] = {}
    stored = features
    if isinstance(features, SequenceFeatures):
        sources, context = _sources_apart(features.context_features)
        steps = features.sequence_features
        stored = SequenceFeatures(context, steps) if context or steps else None
    elif isinstance(features, Mapping):
        sources = {name: spec for name, spec in features.items() if isinstance(spec, Source)}
        stored = {name: spec for name, spec in features.items() if name not in sources}
    return sources, stored


def _batch(columns: Any, num_samples: int) -> Sequence[Any]:
    if isinstance(columns, (dict, tuple)):
        return ColumnBatch(columns, num_samples)
    register_samples()
    # of samples that are tensors, torch's default_collate takes a list alone
    return [*rows_of(columns)]
