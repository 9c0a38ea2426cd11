"""Readers of feature lists: the same specs, one step after another.

A record is a SequenceExample message here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torchvision import tv_tensors

from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.features.specs import Feature, Image, VarLenFeature
from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature, RaggedFeature, UniformRowLength
from torch_tfrecord.parsing.columns import (
    Reader,
    Want,
    join,
    key_of,
    labelled,
    list_lookup,
    read_each,
    reserve_for,
    stack,
    strings,
    torch_dtype,
)
from torch_tfrecord.parsing.lookup import Lookup, at_step
from torch_tfrecord.parsing.ragged_columns import RaggedNumbers, RaggedStrings, needs, value_key
from torch_tfrecord.values.containers import Nested, join_nested, offsets_of, wrap_nested
from torch_tfrecord.values.dtypes import BYTES_LIST, DType, cast

__all__ = ["RaggedSteps", "StepLists", "ValueSteps", "VarLenSteps", "step_lists"]


def _lists(record: Any) -> Any:
    """The map of key to FeatureList message."""
    return record.feature_lists.feature_list


def _steps(lookup: Lookup, record: Any) -> Any | None:
    """The Feature messages of a list's steps; None where the record lacks the list."""
    found = _lists(record).get(lookup.key)
    return None if found is None else found.feature


def _list_messages(lookup: Lookup, steps: Any) -> Iterator[Any | None]:
    """Each step's list message; None where the kind is not set.

    Raises:
        ParseError: A step's values are in another kind of list.
    """
    for number, feature in enumerate(steps):
        try:
            yield lookup.list_in(feature)
        except ParseError as error:
            raise at_step(error, number) from None


class StepLists:
    """Finds the rows of a FixedLenSequenceFeature; see ``padded_columns.RowLists``."""

    wants: tuple[Want, ...] | None = None

    def __init__(self, name: str, spec: FixedLenSequenceFeature) -> None:
        self.lookup = list_lookup(name, key_of(name, spec), spec.dtype)
        self._shape = spec.shape
        self._row_size = math.prod(spec.shape)
        self._allow_missing = spec.allow_missing

    def find(self, record: Any) -> tuple[list[Any], int]:
        """The list messages that hold the values, and the number of rows."""
        steps = _steps(self.lookup, record)
        if steps is None:
            if not self._allow_missing:
                raise self.lookup.missing_list(_lists(record))
            return [], 0
        found = []
        for number, message in enumerate(_list_messages(self.lookup, steps)):
            count = 0 if message is None else len(message.value)
            if count != self._row_size:
                raise at_step(self.lookup.wrong_count(count, self._row_size, self._shape), number)
            if count:
                found.append(message)
        return found, len(steps)

    def count(self, record: Any) -> int:
        """The number of rows of a record that is known to be right."""
        return len(_steps(self.lookup, record) or ())


def step_lists(name: str, spec: FixedLenSequenceFeature) -> StepLists:
    """The finder for a feature list.

    Raises:
        ValueError: The spec has a default value, which only an Example has.
    """
    if spec.default_value is not None:
        raise ValueError(f"Value feature_list.dense_defaults[{name}] must be None: a feature list is padded with 0")
    return StepLists(name, spec)


class VarLenSteps:
    """Reads the steps of a VarLenFeature, or of a RaggedFeature without partitions."""

    def __init__(self, name: str, spec: VarLenFeature | RaggedFeature) -> None:
        key = value_key(name, spec) if isinstance(spec, RaggedFeature) else key_of(name, spec)
        self._lookup = list_lookup(name, key, spec.dtype)
        self._dtype: DType = spec.dtype

    def sample(self, record: Any) -> Any:
        """The rows of one record: jagged [T, *], or a list of T lists."""
        messages = self._messages(record)
        if isinstance(self._dtype, torch.dtype):
            return wrap_nested(self._nested(messages))
        return [[] if message is None else strings(self._lookup, message, self._dtype) for message in messages]

    def batch(self, records: Sequence[Any]) -> Any:
        """The rows of several records: a RaggedTensor [B, *, *], or a list of samples."""
        if not isinstance(self._dtype, torch.dtype):
            return [self.sample(record) for record in records]
        parts = [self._nested(self._messages(record)) for record in records]
        reserve_for(self._lookup, *needs(parts))
        return wrap_nested(join_nested(parts, self._nested([])))

    def _messages(self, record: Any) -> list[Any]:
        return list(_list_messages(self._lookup, _steps(self._lookup, record) or ()))

    def _nested(self, messages: Sequence[Any]) -> Nested:
        dtype = torch_dtype(self._dtype)
        values = join([message for message in messages if message is not None], dtype)
        lengths = [0 if message is None else len(message.value) for message in messages]
        return Nested(labelled(self._lookup, cast, values, dtype), (offsets_of(lengths),))


class _Step:
    """One step of some feature lists as a record of its own: a map of key to Feature, as an Example has."""

    def __init__(self, lists: Any, context: Any, number: int) -> None:
        self._lists, self._context, self._number = lists, context, number

    def get(self, key: str) -> Any | None:
        found = self._lists.get(key)
        if found is None or len(found.feature) <= self._number:
            return self._context.get(key)
        return found.feature[self._number]

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter({*self._lists, *self._context})


class RaggedSteps:
    """Reads the steps of a RaggedFeature with partitions: each step has its own values and partitions."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._numbers = RaggedNumbers(name, spec) if isinstance(spec.dtype, torch.dtype) else None
        self._reader: Reader = self._numbers or RaggedStrings(name, spec)
        self._lookup = list_lookup(name, value_key(name, spec), spec.dtype)
        partitions = [partition for partition in spec.partitions if not isinstance(partition, UniformRowLength)]
        self._keys = [self._lookup.key, *(vars(partition)["key"] for partition in partitions)]
        self._validate = spec.validate

    def sample(self, record: Any) -> Any:
        """The rows of one record: one ragged dimension more than an Example has."""
        if self._numbers is None:
            return self._read(record, self._reader.sample)
        return wrap_nested(self._joined(record, self._numbers))

    def batch(self, records: Sequence[Any]) -> Any:
        """The rows of several records: two ragged dimensions more."""
        if self._numbers is None:
            return read_each(self.sample, records)
        numbers = self._numbers
        parts = read_each(lambda record: self._joined(record, numbers), records)
        reserve_for(self._lookup, *needs(parts))
        return wrap_nested(join_nested(parts, join_nested([], numbers.empty)))

    def _joined(self, record: Any, numbers: RaggedNumbers) -> Nested:
        parts = self._read(record, numbers.nested)
        reserve_for(self._lookup, needs(parts)[0])
        return join_nested(parts, numbers.empty)

    def _read(self, record: Any, read: Any) -> list[Any]:
        lists = _lists(record)
        lengths = {key: len(lists[key].feature) for key in self._keys if key in lists}
        if self._validate and len(set(lengths.values())) > 1:
            raise self._lookup.error(f"expected feature lists of one length, got {lengths}")
        return _each_step(read, (_Step(lists, {}, number) for number in range(max(lengths.values(), default=0))))


class ValueSteps:
    """Reads the steps of a spec of one bytes value: images, arrays, text. Sizes are those of the step or the context.

    A sample is stacked where all steps are of one shape and dtype (images to a ``tv_tensors.Video``), else a list.
    """

    def __init__(self, name: str, spec: Feature, reader: Reader) -> None:
        self._reader = reader
        self._lookup = Lookup(name, key_of(name, spec), BYTES_LIST, type(spec).__name__)
        self._is_image = isinstance(spec, Image)

    def sample(self, record: Any) -> Any:
        """The steps of one record."""
        steps = _steps(self._lookup, record)
        if steps is None:
            raise self._lookup.missing_list(_lists(record))
        lists, context = _lists(record), record.context.feature
        values = _each_step(self._reader.sample, (_Step(lists, context, number) for number in range(len(steps))))
        stacked = labelled(self._lookup, stack, values)
        return tv_tensors.Video(stacked) if self._is_image and isinstance(stacked, torch.Tensor) else stacked

    def batch(self, records: Sequence[Any]) -> Any:
        """The steps of several records: stacked once more where all samples are alike."""
        return labelled(self._lookup, stack, read_each(self.sample, records))


def _each_step(read: Any, steps: Iterator[_Step]) -> list[Any]:
    values = []
    for number, step in enumerate(steps):
        try:
            values.append(read(step))
        except TFRecordError as error:
            raise at_step(error, number) from error.__cause__
    return values
