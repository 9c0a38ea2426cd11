"""Readers of feature lists: the same specs, one step after another.

A feature list's column is that of an Example whose records are the steps, and where each record's steps begin and end.
So the readers of Examples read the steps of all records at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.errors import LimitExceededError, ParseError, TFRecordError
from torch_tfrecord.features.specs import Feature, Image, VarLenFeature
from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature, RaggedFeature
from torch_tfrecord.parsing.columns import (
    Column,
    Reader,
    key_of,
    labelled,
    read_each,
    reserve_for_values,
    rows_of,
    stack,
)
from torch_tfrecord.parsing.message_columns import columns_of
from torch_tfrecord.parsing.padded_columns import pad_numbers, pad_strings
from torch_tfrecord.parsing.ragged_columns import RaggedNumbers, RaggedStrings, value_key
from torch_tfrecord.parsing.wants import Want, at_step, list_want
from torch_tfrecord.values.containers import Nested, split_lists
from torch_tfrecord.values.dtypes import DType, cast, nest

__all__ = [
    "RaggedSteps",
    "RowSteps",
    "StepColumn",
    "StepReader",
    "ValueSteps",
    "VarLenSteps",
    "read_steps",
    "steps_of",
]

_Ints: TypeAlias = "npt.NDArray[np.int64]"
_NO_OFFSETS = np.zeros(0, np.int64)


class StepColumn(NamedTuple):
    """What the feature lists of N records have of a Want, whatever its number of values.

    Attributes:
        steps: The values of all steps: a Column of any count, whose records are the steps.
        borders: int64 [N + 1], where each record's steps begin and end.
        missing: uint8 [N], 1 where a record lacks the feature list.
    """

    steps: Column
    borders: _Ints
    missing: npt.NDArray[np.uint8]


class StepReader(Protocol):
    """Reads one feature list; as a `Reader`, by the columns of its wants, which are of any number of values.

    Attributes:
        wants: Of the feature lists; the first one is that of the values.
        step_wants: The same, as each step has to fit them.
        context_wants: Of the context, for steps that lack the others.
        is_required: Whether a record that lacks the first list is an error.
    """

    wants: tuple[Want, ...]
    step_wants: tuple[Want, ...]
    context_wants: tuple[Want, ...]
    is_required: bool

    def read(self, lists: Sequence[StepColumn], context: Callable[[], Sequence[Column]]) -> Any:
        """The batch's column of N records; of ragged numbers a `Nested`."""


class RowSteps:
    """Reads the steps of a FixedLenSequenceFeature: [N, longest T, *shape] if it pads, else jagged [N, *, *shape].

    Raises:
        ValueError: The spec has a default value, which only an Example has.
    """

    context_wants: tuple[Want, ...] = ()

    def __init__(self, name: str, spec: FixedLenSequenceFeature, *, pads: bool) -> None:
        if spec.default_value is not None:
            raise ValueError(f"Value feature_list.dense_defaults[{name}] must be None: a feature list is padded with 0")
        size = math.prod(spec.shape)
        self._want = list_want(name, key_of(name, spec), spec.dtype, num_values=size, shape=spec.shape)
        self._spec, self._pads = spec, pads
        self.is_required = not spec.allow_missing
        self.step_wants: tuple[Want, ...] = (self._want,)
        self.wants: tuple[Want, ...] = (_of_any_number(self._want),)

    def read(self, lists: Sequence[StepColumn], context: Callable[[], Sequence[Column]]) -> Any:
        """The batch's column; strings are lists of N lists."""
        if self.is_required:
            _check_all_there(self._want, lists[0])
        _check_counts(self._want, lists[0])
        steps, borders, _ = lists[0]
        shape, dtype = self._spec.shape, self._spec.dtype
        if isinstance(dtype, torch.dtype):
            values: torch.Tensor = labelled(self._want, cast, steps.values, dtype)
            values = values.reshape(int(borders[-1]), *shape)
            if self._pads:
                return pad_numbers(self._want, values, borders, 0)
            reserve_for_values(self._want, values.nbytes, borders)
            return Nested(values, (torch.from_numpy(borders),))
        strings = nest(labelled(self._want, steps.strings, dtype), (int(borders[-1]), *shape))
        rows = split_lists(strings, [borders.tolist()])
        return pad_strings(self._want, rows, self._spec) if self._pads else rows


class VarLenSteps:
    """Reads the steps of a VarLenFeature, or of a RaggedFeature without partitions."""

    context_wants: tuple[Want, ...] = ()
    is_required = False

    def __init__(self, name: str, spec: VarLenFeature | RaggedFeature) -> None:
        key = value_key(name, spec) if isinstance(spec, RaggedFeature) else key_of(name, spec)
        self._want = list_want(name, key, spec.dtype)
        self.wants: tuple[Want, ...] = (self._want,)
        self.step_wants: tuple[Want, ...] = self.wants
        self._dtype: DType = spec.dtype

    def read(self, lists: Sequence[StepColumn], context: Callable[[], Sequence[Column]]) -> Any:
        """The batch's column: [N, *, *], or a list of N lists of lists."""
        steps, borders, _ = lists[0]
        if not isinstance(self._dtype, torch.dtype):
            strings = labelled(self._want, steps.strings, self._dtype)
            return split_lists(strings, [borders.tolist(), steps.offsets.tolist()])
        values = labelled(self._want, cast, steps.values, self._dtype)
        reserve_for_values(self._want, values.nbytes + 8 * len(steps.offsets), borders)
        return Nested(values, (torch.from_numpy(borders), torch.from_numpy(steps.offsets)))


class RaggedSteps:
    """Reads the steps of a RaggedFeature with partitions: each step has its own values and partitions."""

    context_wants: tuple[Want, ...] = ()
    is_required = False

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        is_numbers = isinstance(spec.dtype, torch.dtype)
        self._reader: Reader = RaggedNumbers(name, spec) if is_numbers else RaggedStrings(name, spec)
        self.wants: tuple[Want, ...] = self._reader.wants
        self.step_wants: tuple[Want, ...] = self.wants
        self._validate = spec.validate

    def read(self, lists: Sequence[StepColumn], context: Callable[[], Sequence[Column]]) -> Any:
        """The batch's column: two ragged dimensions more than a step of an Example has, or nested lists."""
        lengths = np.stack([np.diff(column.borders) for column in lists])
        self._check_lengths(lengths, np.stack([column.missing for column in lists]))
        borders = np.concatenate([[0], lengths.max(axis=0).cumsum()])
        columns = [_with_empty_steps(column, borders) for column in lists]
        found = _read_steps(self._reader, columns) if len(borders) == 2 else _read_all(self._reader, columns, borders)
        if isinstance(found, list):
            return split_lists(found, [borders.tolist()])
        return Nested(found.values, (torch.from_numpy(borders), *found.row_splits))

    def _check_lengths(self, lengths: _Ints, missing: npt.NDArray[np.uint8]) -> None:
        """Lists that a record has are of one length; those that it lacks have no values in any step."""
        wrong = ((lengths != lengths.max(axis=0)) & (missing == 0)).any(axis=0)
        if self._validate and wrong.any():
            row = wrong.argmax()
            each = zip(self.wants, lengths[:, row].tolist(), missing[:, row].tolist(), strict=True)
            found = {want.key: length for want, length, is_missing in each if not is_missing}
            raise self.wants[0].error(f"expected feature lists of one length, got {found}")


class ValueSteps:
    """Reads the steps of a spec of one bytes value: images, arrays, text. Sizes are those of the step or the context.

    A sample is stacked where all steps are of one shape and dtype (images to a ``tv_tensors.Video``), else a list.

    Args:
        name: Name of the output.
        spec: Its spec.
        reader: Reads the spec from an Example.
        pads: Whether samples that are alike are stacked once more; else the column is a list of samples.
    """

    is_required = True

    def __init__(self, name: str, spec: Feature, reader: Reader, *, pads: bool) -> None:
        self._reader, self._pads = reader, pads
        self.step_wants = reader.wants
        self.wants = tuple(map(_of_any_number, reader.wants))
        self.context_wants = self.wants[1:]
        self._is_image = isinstance(spec, Image)

    def read(self, lists: Sequence[StepColumn], context: Callable[[], Sequence[Column]]) -> Any:
        """The batch's column."""
        want, borders = self.step_wants[0], lists[0].borders
        _check_all_there(want, lists[0])
        _check_counts(want, lists[0])
        pairs = enumerate(zip(self.step_wants[1:], lists[1:], strict=True))
        sizes = [_sizes(want, column, borders, context, place) for place, (want, column) in pairs]
        columns = [lists[0].steps._replace(offsets=_NO_OFFSETS), *sizes]
        samples = read_each(lambda ends: self._sample(columns, *ends), list(pairwise(borders.tolist())))
        return labelled(want, stack, samples) if self._pads else samples

    def _sample(self, columns: Sequence[Column], begin: int, end: int) -> Any:
        """One record's steps, as records of a batch."""
        if begin == end:
            return []
        found = _read_steps(self._reader, [_part(column, begin, end) for column in columns])
        return tv_tensors.Video(found) if self._is_image and isinstance(found, torch.Tensor) else found


def _of_any_number(want: Want) -> Want:
    found = copy.copy(want)
    found.num_values, found.is_required = None, False
    return found


def _check_all_there(want: Want, column: StepColumn) -> None:
    if np.count_nonzero(column.missing):
        raise want.error(f"Feature list {want.key!r} is required but could not be found")


def _check_counts(want: Want, column: StepColumn) -> None:
    """Whether each step has as many values as are wanted."""
    offsets = column.steps.offsets
    counts = offsets[1:] - offsets[:-1]
    wrong = counts != want.num_values
    if np.count_nonzero(wrong):  # for one record it counts that this is faster than any()
        step = int(wrong.argmax())
        record = int(np.searchsorted(column.borders, step, side="right")) - 1
        raise at_step(want.wrong_count(int(counts[step])), step - int(column.borders[record]))


def _with_empty_steps(column: StepColumn, borders: _Ints) -> Column:
    """The steps, with empty ones behind those of each record that has fewer than others say."""
    steps, own, _ = column
    if (own == borders).all():
        return steps
    counts = np.zeros(borders[-1], np.int64)
    counts[np.arange(own[-1]) + np.repeat(borders[:-1] - own[:-1], np.diff(own))] = np.diff(steps.offsets)
    return steps._replace(offsets=np.concatenate([[0], counts.cumsum()]))


def _sizes(
    want: Want, column: StepColumn, borders: _Ints, context: Callable[[], Sequence[Column]], place: int
) -> Column:
    """A number for each step: that of the step where the record's list has so many, else that of the context.

    Raises:
        ParseError: There is not exactly one.
    """
    lengths = np.diff(borders)
    record = np.repeat(np.arange(len(lengths)), lengths)
    number = np.arange(borders[-1]) - borders[record]
    is_own = number < np.diff(column.borders)[record]
    values = np.zeros(len(record), np.int64)
    values[is_own] = _one_each(want, column.steps, (column.borders[record] + number)[is_own])
    if not is_own.all():
        values[~is_own] = _one_each(want, context()[place], record[~is_own])
    return Column(values, _NO_OFFSETS, None, b"")


def _one_each(want: Want, column: Column, rows: _Ints) -> _Ints:
    begins = column.offsets[rows]
    if (column.offsets[rows + 1] - begins != 1).any():
        raise want.error("expected one value")
    found: _Ints = column.values[begins]
    return found


def _read_all(reader: Reader, columns: Sequence[Column], borders: _Ints) -> Any:
    """The steps of several records as records of a batch; what is too large for a batch is found in its record."""
    try:
        return reader.read(columns)
    except LimitExceededError as error:
        if error.position is None:
            raise
        record = int(np.searchsorted(borders, error.position, side="right")) - 1
        raise at_step(error, error.position - int(borders[record])).locate(position=record) from error.__cause__


def _read_steps(reader: Reader, columns: Sequence[Column]) -> Any:
    """The steps of one record as records of a batch; errors name the step."""
    try:
        return _read_all(reader, columns, np.array([0, _num_steps(columns[0])]))
    except LimitExceededError as error:
        error.position = None  # among others this record's is another
        raise
    except TFRecordError:
        for number in range(_num_steps(columns[0])):
            try:
                reader.read([_part(column, number, number + 1) for column in columns])
            except TFRecordError as error:
                raise at_step(error, number) from error.__cause__
        raise


def _num_steps(column: Column) -> int:
    return len(column.offsets) - 1 if len(column.offsets) else len(column.values)


def _part(column: Column, begin: int, end: int) -> Column:
    """Some steps of a column."""
    if not len(column.offsets):
        return column._replace(values=column.values[begin:end])
    offsets = column.offsets[begin : end + 1]
    return column._replace(values=column.values[offsets[0] : offsets[-1]], offsets=offsets - offsets[0])


# On messages: the twin of the compiled core, and the words of errors.


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


def steps_of(want: Want, messages: Sequence[Any]) -> StepColumn:
    """What SequenceExample messages have of a want of any number of values.

    Raises:
        ParseError: A step's values are in another kind of list.
    """
    lists = [message.feature_lists.feature_list for message in messages]
    found = [each[want.key].feature if want.key in each else () for each in lists]
    [steps] = columns_of([want], [{want.key: feature} for features in found for feature in features])
    borders = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return StepColumn(steps, borders, np.array([want.key not in each for each in lists], np.uint8))


def read_steps(reader: StepReader, message: Any) -> Any:
    """The value of one SequenceExample message; as ``message_columns.read_one``."""

    def context() -> list[Column]:
        return columns_of(reader.context_wants, [message.context.feature])

    try:
        return rows_of(reader.read([steps_of(want, [message]) for want in reader.wants], context))[0]
    except TFRecordError:
        _check(reader, message)
        raise


def _check(reader: StepReader, message: Any) -> None:
    """Whether a message has what a reader wants; here the errors have their words."""
    lists = message.feature_lists.feature_list
    first = reader.step_wants[0]
    if reader.is_required and first.key not in lists:
        raise first.missing_list(lists)
    context = message.context.feature if reader.context_wants else {}
    found = [lists[want.key].feature for want in reader.step_wants if want.key in lists]
    for number in range(max(map(len, found), default=0)):
        try:
            columns_of(reader.step_wants, [_Step(lists, context, number)])
        except ParseError as error:
            raise at_step(error, number) from None
