"""Columns from protobuf messages: the Python fallback of the compiled core, and the source of
record error texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import Array, Ints, splits_of
from torch_tfrecord.columns.containers import rows_of
from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST
from torch_tfrecord.columns.reading import (
    NO_OFFSETS,
    Column,
    LackingError,
    Reader,
    StepColumn,
    StepReader,
    Want,
    read_columns,
)
from torch_tfrecord.errors import TFRecordError, raise_first
from torch_tfrecord.protobuf import join_arrays
from torch_tfrecord.samples import Value

__all__ = ["columns_of", "read_one", "read_steps", "steps_of"]

_Message: TypeAlias = Any
"""A protobuf message: the classes are made when the program runs, so their fields have no types."""
_Features: TypeAlias = "Mapping[str, _Message] | _Step"
"""A map of key to Feature message."""

_KINDS = {kind.field: kind for kind in (BYTES_LIST, FLOAT_LIST, INT64_LIST)}


def columns_of(wants: Sequence[Want], records: Sequence[_Features]) -> list[Column]:
    """The columns of records for several wants.

    Raises:
        ParseError: A record does not fit a want; not always the first such record.
    """
    return [_column(want, records) for want in wants]


def read_one(reader: Reader, record: _Features, key: int = 0) -> Value:
    """The value of one record, the row of a batch of one; raises the errors of `columns_of` and the
    reader.

    Args:
        reader: Reads the feature.
        record: The record.
        key: Random key for readers that draw at random, an unsigned 64-bit integer.
    """
    columns = columns_of(reader.wants, [record])
    try:
        column = read_columns(reader, columns, key)
    except LackingError as error:
        raise error.want.missing(record) from None
    except TFRecordError as error:
        error.position = None  # only the number within the batch of one
        raise
    return rows_of(column)[0]


def _column(want: Want, records: Sequence[_Features]) -> Column:
    found = [_list_of(want, record) for record in records]
    counts = np.array([0 if item is None else len(item.value) for item in found], np.int64)
    present = [item for item in found if item is not None]
    missing = None
    if len(present) < len(found):
        pairs = zip(found, records, strict=True)
        # 2 is a key that is there without a list: in a context that is another error than 1.
        missing = np.array(
            [item is None and (2 if want.key in record else 1) for item, record in pairs], np.uint8
        )
    values, buffer = _spans(present) if want.kind is BYTES_LIST else (_numbers(want, present), b"")
    if want.num_values is None:
        return Column(values, splits_of(counts), missing, buffer)
    return Column(_dense(want, values, missing, len(records)), NO_OFFSETS, missing, buffer)


def _list_of(want: Want, record: _Features) -> _Message | None:
    """The list message; None if the record lacks the key, or its kind is not set."""
    feature = record.get(want.key)
    if feature is None or not feature.HasField(want.kind.field):
        # A Feature whose kind is not set counts as missing, as in TensorFlow.
        stored = None if feature is None else feature.WhichOneof("kind")
        if stored is not None:
            # Even an empty list of another kind is an error, as in TensorFlow.
            raise want.wrong_kind(_KINDS[stored])
        if want.is_required:
            raise want.missing(record)
        return None
    found = getattr(feature, want.kind.field)
    if want.num_values is not None and len(found.value) != want.num_values:
        raise want.wrong_count(len(found.value))
    return found


def _numbers(want: Want, found: Sequence[_Message]) -> Array:
    return (
        join_arrays(found)
        if found
        else np.zeros(0, np.float32 if want.kind is FLOAT_LIST else np.int64)
    )


def _spans(found: Sequence[_Message]) -> tuple[Ints, bytes]:
    values = [value for item in found for value in item.value]
    lengths = np.array([*map(len, values)], np.int64)
    return np.stack([lengths.cumsum() - lengths, lengths], axis=1), b"".join(values)


def _dense(
    want: Want, values: Array, missing: npt.NDArray[np.uint8] | None, num_records: int
) -> Array:
    shape = (
        num_records,
        *(() if want.num_values == 1 else (want.num_values or 0,)),
        *values.shape[1:],
    )
    if missing is None:
        return values.reshape(shape)
    # Records without values get zeros; the reader puts its default there.
    dense = np.zeros(shape, values.dtype)
    dense[missing == 0] = values.reshape(-1, *shape[1:])
    return dense


def steps_of(want: Want, messages: Sequence[_Message]) -> StepColumn:
    """The steps of SequenceExample messages for a want with any number of values.

    Raises:
        ParseError: A step has another kind of list.
    """
    lists = [message.feature_lists.feature_list for message in messages]
    # Asked for first, as looking up a key adds it to protobuf's map.
    found = [each[want.key].feature if want.key in each else () for each in lists]
    # Each step is an Example with one feature, so one function reads both.
    [steps] = columns_of(
        [want], [{want.key: feature} for features in found for feature in features]
    )
    borders = splits_of([*map(len, found)])
    return StepColumn(steps, borders, np.array([want.key not in each for each in lists], np.uint8))


def read_steps(reader: StepReader, message: _Message) -> Value:
    """The value of one SequenceExample message, like `read_one`."""

    def context() -> list[Column]:
        return columns_of(reader.context_wants, [message.context.feature])

    try:
        return rows_of(reader.read([steps_of(want, [message]) for want in reader.wants], context))[
            0
        ]
    except TFRecordError:
        # The columns do not know the record's keys, which the best error lists.
        _check(reader, message)
        raise


def _check(reader: StepReader, message: _Message) -> None:
    """Check that a message has what a reader wants, with complete error texts."""
    lists = message.feature_lists.feature_list
    first = reader.step_wants[0]
    if reader.is_required and first.key not in lists:
        raise first.missing_list(lists)
    # Where no size is shared, a step must have all of its values itself.
    context = message.context.feature if reader.context_wants else {}
    found = [lists[want.key].feature for want in reader.step_wants if want.key in lists]
    raise_first(
        "step",
        max(map(len, found), default=0),
        lambda number: columns_of(reader.step_wants, [_Step(lists, context, number)]),
    )


class _Step:
    """One step of some feature lists, viewed as an Example's map of key to Feature."""

    def __init__(
        self, lists: Mapping[str, _Message], context: Mapping[str, _Message], number: int
    ) -> None:
        self._lists, self._context, self._number = lists, context, number

    def get(self, key: str) -> _Message | None:
        found = self._lists.get(key)
        if found is None or len(found.feature) <= self._number:
            return self._context.get(key)
        return found.feature[self._number]

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter({*self._lists, *self._context})
