"""A batch of columns that is also a sequence of samples, and the parser that makes it from
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, check_max_batch_bytes
from torch_tfrecord.columns import (
    RecordFeatures,
    SequenceFeatures,
    Source,
    as_plain,
    make_parser,
    rows_of,
)
from torch_tfrecord.loading.collating import make_batch, numbers, take_columns
from torch_tfrecord.loading.sample import Sample, SampleBlock, take_apart, to_html
from torch_tfrecord.loading.transport import for_transport, register_in_worker
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import (
    WHOLE_KINDS,
    Batch,
    Columns,
    Places,
    RecordPlace,
    SampleList,
    Samples,
    Transform,
    Value,
    Values,
    check_for_torch,
)
from torch_tfrecord.torch_internals import collate_by_kinds, collate_functions, register_as_dict

__all__ = [
    "BatchParser",
    "ChainedTransforms",
    "ColumnBatch",
    "ColumnTransform",
    "with_label",
]


class ColumnBatch(MutableSequence[Value]):
    """The result of `TFRecordDataset.__getitems__`: the samples at several positions, as
    columns.

    `collate` and torch's ``default_collate`` take the columns as they are. Everything else sees a
    list of samples, made on first access: sample i is what the dataset returns for position i
    alone, and its tensors are views of their columns. From then on the list counts, not the
    columns, since a custom `collate_fn` may sort or filter it; but a `Sample` that was not changed
    is still joined from its columns. No batch shares memory with a sample: the columns of samples
    that are first looked at after a batch took them are parsed again.

    Args:
        columns: Columns by name, or a tuple of such mappings and columns, nested like one sample. A
            column is the batch of several values, or a list of the values.
        num_samples: Number of samples.

    Example:
        >>> import torch
        >>> batch = ColumnBatch({"x": torch.tensor([4, 5]), "name": [b"a", b"b"]}, 2)
        >>> len(batch), batch[1]
        (2, {'x': tensor(5), 'name': b'b'})
    """

    def __init__(self, columns: Columns, num_samples: int) -> None:
        self.block = SampleBlock(columns, num_samples)
        self._num_samples = num_samples
        self._places: Places | None = None
        self._single: dict[int, Sample] = {}  # samples that were accessed by their number
        self._samples: Values | None = None
        # Here, since a batch of ours may reach torch's collate in a process that made none before.
        register_samples()

    @property
    def is_columns(self) -> bool:
        """Whether no sample was accessed yet, so that the columns are up to date."""
        return self._samples is None and all(sample.is_unseen for sample in self._single.values())

    @property
    def columns(self) -> Columns:
        """The columns; parsed again if a batch took them."""
        return self.block.columns

    def take_columns(self) -> Columns | None:
        """The columns, for one batch only; None if samples may differ from them or share their
        memory.
        """
        return self.block.take(0, self._num_samples) if self.is_columns else None

    def __len__(self) -> int:
        return self._num_samples if self._samples is None else len(self._samples)

    @property
    def places(self) -> Places | None:
        """The record of each sample, by its number; None once the samples may have been
        reordered.
        """
        return self._places if self._samples is None else getattr(self._samples, "places", None)

    def located(self, places: Places | None, again: Callable[[], Columns] | None) -> ColumnBatch:
        """This batch with the record of each sample, and what parses the columns once more, into
        new memory.

        Without the latter the columns are copied for each batch.
        """
        self._places, self.block.again = places, again
        return self

    def __getitem__(self, number: Any) -> Any:
        if self._samples is None and self.block.template and type(number) is int:
            row = number + len(self) if number < 0 else number
            # torch's collate first looks at one sample: do not make the others
            if 0 <= row < len(self):
                if row not in self._single:
                    self._single[row] = self.block.samples([row])[0]
                return self._single[row]
        return self._all()[number]

    def __setitem__(self, number: Any, sample: Value) -> None:
        self._all()[number] = sample

    def __delitem__(self, number: Any) -> None:
        del self._all()[number]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, ColumnBatch) else other)

    __hash__ = None  # type: ignore[assignment]  # like a list
    _repr_html_ = to_html

    def __add__(self, other: Samples) -> Values:
        return [*self, *other]

    def insert(self, index: int, value: Value) -> None:
        """Like ``list.insert``."""
        self._all().insert(index, value)

    def sort(self, *, key: Transform | None = None, reverse: bool = False) -> None:
        """Like ``list.sort``, which many custom collate functions call before they pad."""
        self._all().sort(key=key, reverse=reverse)

    def _all(self) -> Values:
        if self._samples is None:
            is_dict = self.block.template
            samples = (
                self.block.samples() if is_dict else [*take_apart(self.columns, self._num_samples)]
            )
            for number, sample in self._single.items():
                samples[number] = sample
            self._samples = SampleList(samples, self._places)
        return self._samples

    def map(self, function: Transform, again: Transform | None = None) -> ColumnBatch:
        """The batch with the columns that a function returns for these; `again` returns the same
        once more.
        """
        # Whoever needs the columns again gets them from the records, through the same functions.
        repeat, parse = again or function, self.block.again
        return ColumnBatch(function(self.columns), self._num_samples).located(
            self._places, parse and (lambda: repeat(parse()))
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Without `places`, which do not pickle. Samples become dicts.
        return (
            ColumnBatch,
            (self.columns, self._num_samples),
            None if self.is_columns else list(self),
        )

    def __setstate__(self, samples: Values) -> None:
        self._samples = SampleList(samples, None)

    def __repr__(self) -> str:
        return f"ColumnBatch({len(self)} samples)"


class ColumnTransform:
    """A transform that can be applied to columns, so that no samples need to be made for it."""

    def __call__(self, sample: Value) -> Value:
        """Transform one sample."""
        raise NotImplementedError

    def columns(self, columns: Columns) -> Columns:
        """Transform the columns of a batch, with the same result as transforming each sample."""
        raise NotImplementedError


class ChainedTransforms:
    """One transform, then another.

    Args:
        first, second: Called with a sample, and with the first one's result.
    """

    def __init__(self, first: Transform, second: Transform) -> None:
        self.first, self.second = first, second

    def __call__(self, sample: Value) -> Value:
        """Apply both to a sample."""
        return self.second(self.first(sample))


def with_label(transform: Transform | None, label_key: str | None) -> Transform | None:
    """The transform, and then (features, label) of its sample."""
    if label_key is None:
        return transform
    split = _SplitLabel(label_key)
    return split if transform is None else ChainedTransforms(transform, split)


class _SplitLabel(ColumnTransform):
    """(features, label) of a sample, or of the columns of a batch."""

    def __init__(self, label_key: str) -> None:
        self._label_key = label_key

    def __call__(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(
                f"the dataset or the transform must return a mapping with the key label_key={self._label_key!r}"
            )
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]

    def columns(self, columns: Columns) -> tuple[dict[str, Columns], Columns]:
        """Take the label's column out."""
        return self(columns)


# What torch's own collate makes of samples.


def register_samples() -> None:
    """Register `Sample`, and what a batch keeps whole, with torch's functions that look values up
    by their class.
    """
    register_in_worker()
    functions = collate_functions()
    # Once a process: torch keeps the functions for all loaders.
    if Sample not in functions:
        register_as_dict(Sample, "torch_tfrecord.Sample")
        functions.update(dict.fromkeys(WHOLE_KINDS, _make_list))
        functions[Sample] = _collate_for_torch


def _make_list(values: Samples, *, collate_fn_map: object = None) -> Values:
    return list(values)


def _collate_for_torch(samples: Samples, *, collate_fn_map: Any = None) -> Batch:
    """``default_collate`` of samples: the batch of `collate`.

    If a sample was changed, torch gets plain dicts instead and collates them itself.
    """
    columns = take_columns(samples)
    if columns is not None:
        return for_transport(as_plain(make_batch(samples, columns)))
    check_for_torch(samples, getattr(samples, "places", None))
    # torch makes a batch of the first sample's class, which must be a plain dict.
    plain = [sample.copy() if isinstance(sample, Sample) else sample for sample in samples]
    return collate_by_kinds(plain, collate_fn_map | dict.fromkeys((bool, int, float), numbers))


# From records.


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
        self._sources, stored = _split_sources(features)
        # Features that are all a `Source` need no parser: no record is read.
        self._parser = None
        if stored or not self._sources:
            self._parser = make_parser(stored, pads=False, max_batch_bytes=max_batch_bytes)
        self.features: RecordFeatures = features if self._parser is None else self._parser.features
        if self._sources:
            # The user's mapping may change later.
            self.features = copy(features)
        self.needs_keys: bool = self._parser is not None and self._parser.needs_keys
        self.optional = {} if self._parser is None else self._parser.optional
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)
        register_samples()

    def single(self, record: bytes, key: int, where: Callable[[], RecordPlace]) -> Value:
        """One sample; `where` gives the place of its record."""
        sample = self._no_values if self._parser is None else self._parser.single(record, key)
        # The usual case: nothing asks for the record's place.
        if not self._sources:
            return sample
        place = where()
        return self._complete(
            sample, {name: spec._value(place) for name, spec in self._sources.items()}
        )

    def batches(
        self,
        records: PackedRecords,
        keys: npt.NDArray[np.uint64] | None,
        borders: Sequence[int],
        place: Callable[[int], RecordPlace],
    ) -> list[Samples]:
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
            # Once for all of them: a place is looked up in the index.
            places = [*map(place, range(begin, end))]
            columns = {name: spec._column(places) for name, spec in self._sources.items()}
            found[number] = self._complete(found[number], columns)
        return [
            _batch(columns, end - begin) for columns, (begin, end) in zip(found, ends, strict=True)
        ]

    @property
    def _no_values(self) -> Value:
        return ({}, {}) if isinstance(self.features, SequenceFeatures) else {}

    def _complete(self, values: Value, sources: Mapping[str, object]) -> Value:
        """Values with those of each `Source`, in the order of the features."""
        if isinstance(self.features, SequenceFeatures):
            context = {**values[0], **sources}
            return {name: context[name] for name in self.features.context_features or {}}, values[1]
        values = {**values, **sources}
        return {name: values[name] for name in cast("Mapping[str, object]", self.features)}


def _split_sources(features: Any) -> tuple[dict[str, Source], Any]:
    """Each `Source`, and the features that are read from records; a false value if there are
    none.
    """
    sources: dict[str, Source] = {}
    stored = features
    if isinstance(features, SequenceFeatures):
        sources, context = _split_sources(features.context_features)
        steps = features.sequence_features
        stored = SequenceFeatures(context, steps) if context or steps else None
    elif isinstance(features, Mapping):
        sources = {name: spec for name, spec in features.items() if isinstance(spec, Source)}
        stored = {name: spec for name, spec in features.items() if name not in sources}
    return sources, stored


def _batch(columns: Columns, num_samples: int) -> Samples:
    if type(columns) in (dict, tuple):
        return ColumnBatch(columns, num_samples)
    register_samples()
    # of samples that are tensors, torch's default_collate takes a list alone
    return [*rows_of(columns)]
