"""The parser for each kind of records: Examples and what holds several, or one value of any
kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.example_list import ExampleListFeatures
from torch_tfrecord.columns.example_lists import ExampleListParser
from torch_tfrecord.columns.feature import Feature, SequenceFeatures, make_reader
from torch_tfrecord.columns.parsers import (
    ExampleParser,
    Parser,
    PartParser,
    SequenceExampleParser,
    wrapped,
)
from torch_tfrecord.columns.reading import NO_OFFSETS, Column, read_columns
from torch_tfrecord.columns.stacking import rows_of
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["RecordFeatures", "ValueParser", "is_record_features", "make_parser"]

RecordFeatures: TypeAlias = Mapping[str, Any] | SequenceFeatures | ExampleListFeatures | Feature
"""What to read from records: features of Examples by name, or the spec of another kind of record."""


def is_record_features(value: object) -> bool:
    """Whether it is one of `RecordFeatures`."""
    return isinstance(value, (Mapping, SequenceFeatures, ExampleListFeatures, Feature))


def make_parser(
    features: RecordFeatures, *, pads: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
) -> Parser[Any, Any]:
    """Build the parser for the kind of records that ``features`` describes.

    Raises:
        TypeError, ValueError: See the parsers.
    """
    if isinstance(features, SequenceFeatures):
        own = features.context_features, features.sequence_features
        return SequenceExampleParser(*own, pads=pads, max_batch_bytes=max_batch_bytes)
    if isinstance(features, ExampleListFeatures):
        return ExampleListParser(features, pads=pads, max_batch_bytes=max_batch_bytes)
    if isinstance(features, Feature):
        return ValueParser(features, pads=pads, max_batch_bytes=max_batch_bytes)
    return ExampleParser(features, pads=pads, max_batch_bytes=max_batch_bytes)


class ValueParser(PartParser):
    """Parses records that are one value each, such as an image, a message or JSON: what a bytes
    feature could hold.

    Args:
        features: The spec.
        pads, max_batch_bytes: See `ExampleParser`.

    Raises:
        ValueError: The spec needs more than one bytes value.
    """

    def __init__(
        self, features: Feature, *, pads: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        super().__init__(max_batch_bytes)
        self.features, self._pads = features, pads
        self._reader = make_reader("record", features, pads=pads)
        want, *others = self._reader.wants
        takes_one = want.is_required and want.num_values in (1, None)
        if others or want.kind is not BYTES_LIST or not takes_one or features.key is not None:
            raise ValueError(
                f"features must be a mapping of names to specs, or one spec that reads the record's bytes alone, got "
                f"{features!r}"
            )
        want.label = want.what
        self.needs_keys = getattr(self._reader, "keyed", False)

    def _row(self, record: PackedRecords, keys: Any) -> Any:
        return rows_of(self._column(record, keys))[0]

    def _read(self, found: PackedRecords, num_records: int, keys: Any) -> Any:
        return wrapped(self._column(found, keys))

    def _column(self, records: PackedRecords, keys: Any) -> Any:
        spans = np.stack([records.starts, records.lengths], axis=1)
        offsets = NO_OFFSETS if self._reader.wants[0].num_values == 1 else np.arange(len(spans) + 1)
        return read_columns(self._reader, [Column(spans, offsets, None, records.buffer)], keys)
