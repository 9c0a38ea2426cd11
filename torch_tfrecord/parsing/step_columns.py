"""Readers of feature lists: the same specs, one step after another.

A record is a SequenceExample message here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.features.specs import Feature, Image, VarLenFeature, mark_ragged
from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature, RaggedFeature, UniformRowLength
from torch_tfrecord.parsing.columns import Reader, key_of, labelled, read_each, reserve_for, stack, torch_dtype
from torch_tfrecord.parsing.message_columns import columns_of, read_one
from torch_tfrecord.parsing.padded_columns import pad_numbers, pad_strings
from torch_tfrecord.parsing.ragged_columns import RaggedNumbers, RaggedStrings, needs, value_key
from torch_tfrecord.parsing.wants import Want, at_step, list_want
from torch_tfrecord.protobuf.example import join_arrays
from torch_tfrecord.values.containers import Nested, join_nested, offsets_of, wrap_nested
from torch_tfrecord.values.dtypes import BYTES_LIST, INT64_LIST, DType, cast, decode_text, list_kind, nest

__all__ = ["PaddedSteps", "RaggedSteps", "StepReader", "ValueSteps", "VarLenSteps"]


class StepReader(Protocol):
    """Reads one feature list."""

    def sample(self, record: Any) -> Any:
        """The value of one record."""

    def batch(self, records: Sequence[Any]) -> Any:
        """The column of several records."""


def _lists(record: Any) -> Any:
    """The map of key to FeatureList message."""
    return record.feature_lists.feature_list


def _steps(want: Want, record: Any) -> Any | None:
    """The Feature messages of a list's steps; None where the record lacks the list."""
    found = _lists(record).get(want.key)
    return None if found is None else found.feature


def _list_messages(want: Want, steps: Any) -> Iterator[Any | None]:
    """Each step's list message; None where the kind is not set.

    Raises:
        ParseError: A step's values are in another kind of list.
    """
    for number, feature in enumerate(steps):
        try:
            yield want.list_in(feature)
        except ParseError as error:
            raise at_step(error, number) from None


def _strings(want: Want, found: Any, dtype: DType) -> list[Any]:
    if dtype is bytes:
        return list(found.value)
    return [labelled(want, decode_text, value) for value in found.value]


def _join(found: Sequence[Any], dtype: torch.dtype) -> Any:
    if not found:
        return np.zeros(0, np.int64 if list_kind(dtype) is INT64_LIST else np.float32)
    return join_arrays(found)


class PaddedSteps:
    """Reads the steps of a FixedLenSequenceFeature.

    Raises:
        ValueError: The spec has a default value, which only an Example has.
    """

    def __init__(self, name: str, spec: FixedLenSequenceFeature) -> None:
        if spec.default_value is not None:
            raise ValueError(f"Value feature_list.dense_defaults[{name}] must be None: a feature list is padded with 0")
        size = math.prod(spec.shape)
        self._want = list_want(name, key_of(name, spec), spec.dtype, num_values=size, shape=spec.shape)
        self._spec = spec

    def sample(self, record: Any) -> Any:
        """The rows of one record: [T, *shape], or a list of T."""
        found, rows = self._find(record)
        if isinstance(self._spec.dtype, torch.dtype):
            return mark_ragged(self._rows(found, rows))
        values = [value for item in found for value in _strings(self._want, item, self._spec.dtype)]
        return nest(values, (rows, *self._spec.shape))

    def batch(self, records: Sequence[Any]) -> Any:
        """The rows of several records, [B, longest T, *shape], or lists of the longest T."""
        if not isinstance(self._spec.dtype, torch.dtype):
            return pad_strings(self._want, [self.sample(record) for record in records], self._spec)
        found = [self._find(record) for record in records]
        ends = np.cumsum([0, *(rows for _, rows in found)], dtype=np.int64)
        values = self._rows([item for items, _ in found for item in items], int(ends[-1]))
        return pad_numbers(self._want, values, ends, 0)

    def count(self, record: Any) -> int:
        """The number of rows of a record that is known to be right."""
        return len(_steps(self._want, record) or ())

    def _find(self, record: Any) -> tuple[list[Any], int]:
        """The list messages that hold the values, and the number of rows."""
        steps = _steps(self._want, record)
        if steps is None:
            if not self._spec.allow_missing:
                raise self._want.missing_list(_lists(record))
            return [], 0
        found = []
        for number, message in enumerate(_list_messages(self._want, steps)):
            count = 0 if message is None else len(message.value)
            if count != self._want.num_values:
                raise at_step(self._want.wrong_count(count), number)
            if count:
                found.append(message)
        return found, len(steps)

    def _rows(self, found: Sequence[Any], rows: int) -> torch.Tensor:
        dtype = torch_dtype(self._spec.dtype)
        values: torch.Tensor = labelled(self._want, cast, _join(found, dtype), dtype)
        return values.reshape(rows, *self._spec.shape)


class VarLenSteps:
    """Reads the steps of a VarLenFeature, or of a RaggedFeature without partitions."""

    def __init__(self, name: str, spec: VarLenFeature | RaggedFeature) -> None:
        key = value_key(name, spec) if isinstance(spec, RaggedFeature) else key_of(name, spec)
        self._want = list_want(name, key, spec.dtype)
        self._dtype: DType = spec.dtype

    def sample(self, record: Any) -> Any:
        """The rows of one record: jagged [T, *], or a list of T lists."""
        messages = self._messages(record)
        if isinstance(self._dtype, torch.dtype):
            return wrap_nested(self._nested(messages))
        return [[] if message is None else _strings(self._want, message, self._dtype) for message in messages]

    def batch(self, records: Sequence[Any]) -> Any:
        """The rows of several records: a RaggedTensor [B, *, *], or a list of samples."""
        if not isinstance(self._dtype, torch.dtype):
            return [self.sample(record) for record in records]
        parts = [self._nested(self._messages(record)) for record in records]
        reserve_for(self._want, *needs(parts))
        return wrap_nested(join_nested(parts, self._nested([])))

    def _messages(self, record: Any) -> list[Any]:
        return list(_list_messages(self._want, _steps(self._want, record) or ()))

    def _nested(self, messages: Sequence[Any]) -> Nested:
        dtype = torch_dtype(self._dtype)
        values = _join([message for message in messages if message is not None], dtype)
        lengths = [0 if message is None else len(message.value) for message in messages]
        return Nested(labelled(self._want, cast, values, dtype), (offsets_of(lengths),))


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
        self._want = list_want(name, value_key(name, spec), spec.dtype)
        partitions = [partition for partition in spec.partitions if not isinstance(partition, UniformRowLength)]
        self._keys = [self._want.key, *(vars(partition)["key"] for partition in partitions)]
        self._validate = spec.validate

    def sample(self, record: Any) -> Any:
        """The rows of one record: one ragged dimension more than an Example has."""
        if self._numbers is None:
            return self._read(record, lambda step: read_one(self._reader, step))
        return wrap_nested(self._joined(record, self._numbers))

    def batch(self, records: Sequence[Any]) -> Any:
        """The rows of several records: two ragged dimensions more."""
        if self._numbers is None:
            return read_each(self.sample, records)
        numbers = self._numbers
        parts = read_each(lambda record: self._joined(record, numbers), records)
        reserve_for(self._want, *needs(parts))
        return wrap_nested(join_nested(parts, join_nested([], numbers.empty)))

    def _joined(self, record: Any, numbers: RaggedNumbers) -> Nested:
        parts = self._read(record, lambda step: numbers.parts(columns_of(numbers.wants, [step]))[0])
        reserve_for(self._want, needs(parts)[0])
        return join_nested(parts, numbers.empty)

    def _read(self, record: Any, read: Any) -> list[Any]:
        lists = _lists(record)
        lengths = {key: len(lists[key].feature) for key in self._keys if key in lists}
        if self._validate and len(set(lengths.values())) > 1:
            raise self._want.error(f"expected feature lists of one length, got {lengths}")
        return _each_step(read, (_Step(lists, {}, number) for number in range(max(lengths.values(), default=0))))


class ValueSteps:
    """Reads the steps of a spec of one bytes value: images, arrays, text. Sizes are those of the step or the context.

    A sample is stacked where all steps are of one shape and dtype (images to a ``tv_tensors.Video``), else a list.
    """

    def __init__(self, name: str, spec: Feature, reader: Reader) -> None:
        self._reader = reader
        self._want = Want(name, key_of(name, spec), BYTES_LIST, type(spec).__name__)
        self._is_image = isinstance(spec, Image)

    def sample(self, record: Any) -> Any:
        """The steps of one record."""
        steps = _steps(self._want, record)
        if steps is None:
            raise self._want.missing_list(_lists(record))
        lists, context = _lists(record), record.context.feature
        values = _each_step(
            lambda step: read_one(self._reader, step), (_Step(lists, context, number) for number in range(len(steps)))
        )
        stacked = labelled(self._want, stack, values)
        return tv_tensors.Video(stacked) if self._is_image and isinstance(stacked, torch.Tensor) else stacked

    def batch(self, records: Sequence[Any]) -> Any:
        """The steps of several records: stacked once more where all samples are alike."""
        return labelled(self._want, stack, read_each(self.sample, records))


def _each_step(read: Any, steps: Iterator[_Step]) -> list[Any]:
    values = []
    for number, step in enumerate(steps):
        try:
            values.append(read(step))
        except TFRecordError as error:
            raise at_step(error, number) from error.__cause__
    return values
