"""Shared by all readers: what they want from each record, the columns of N records, and the error
texts.

A reader declares what it wants from each record, and turns the columns of N records into batch
values. This is the only way from bytes to values: a sample is the row of a batch of one. Columns
come from the compiled core, or from protobuf messages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import nearest
from torch_tfrecord.batch_memory import NO_INTS, Array, Buffer, Ints, Keys, as_tensor, reserve
from torch_tfrecord.columns.dtypes import DType, ListKind, cast_array, decode_text, list_kind
from torch_tfrecord.errors import LimitExceededError, ParseError, TFRecordError, raise_first
from torch_tfrecord.native import native_module
from torch_tfrecord.samples import Value
from torch_tfrecord.shown import dtype_name, shown_keys

if TYPE_CHECKING:
    from torch_tfrecord.native.jobs import Job

__all__ = [
    "NO_OFFSETS",
    "Column",
    "LackingError",
    "ReadContext",
    "Reader",
    "StepColumn",
    "StepReader",
    "Want",
    "Work",
    "check_steps",
    "labelled",
    "locate_row",
    "read_columns",
    "read_record",
    "read_records",
    "reserve_for",
    "reserve_for_values",
]

_T = TypeVar("_T")
NO_OFFSETS = NO_INTS
"""The offsets of a Column with a known number of values."""
_AT_ONCE = 500  # For more numbers NumPy lets go of the GIL.
_PARTS = ("size", "shape", "index")  # what is read for another feature, not for its own sake


class Want:
    """A reader's want from each record: a key's list, its number of values, and whether it is
    required.

    Args:
        name: Name of the output.
        key: Name in the record.
        dtype: Dtype of the values, which says the kind of list.
        what: The dtype or spec, as shown in the label; None for the dtype.
        num_values: Number of values in each record; None for any number.
        is_required: Whether a record without the key is an error.
        shape: Shape of the values, as shown in errors.

    Attributes:
        kind: Kind of list that should have the values.
        label: Prefix of error texts.
    """

    def __init__(
        self,
        name: str,
        key: str,
        dtype: DType,
        what: str | None = None,
        *,
        num_values: int | None = None,
        is_required: bool = False,
        shape: tuple[int, ...] = (),
    ) -> None:
        kind = list_kind(dtype)
        if kind is None:
            raise TypeError(f"no list holds {dtype_name(dtype)}")
        self.key, self.kind = key, kind
        self.what = what = dtype_name(dtype) if what is None else what
        self.num_values, self.is_required, self.shape = num_values, is_required, shape
        self.label = (
            f"feature {name!r} ({what})"
            if name == key
            else f"feature {name!r} ({what}, key {key!r})"
        )

    def missing(self, record: Iterable[str]) -> ParseError:
        """The error for a record that lacks the feature; it lists the record's keys, as misspelt
        keys are common.
        """
        there = (
            "it is there without a value"
            if self.key in record
            else f"the record has {shown_keys(record)}"
        )
        # A size in a shape is always required: no default_value would help.
        is_size = self.what in _PARTS
        hint = ("" if self.key in record else nearest(self.key, record)) or (
            ""
            if is_size
            else "; to read records that lack it, take VarLenFeature, or a spec with default_value="
        )
        return self.error(f"key {self.key!r} is required but could not be found: {there}{hint}")

    def lacking(self) -> LackingError:
        """The error for code that sees only the columns; the parser, which sees the record, turns
        it into `missing`.
        """
        return LackingError(self)

    def missing_list(self, lists: Iterable[str]) -> ParseError:
        """The error for a SequenceExample that lacks the feature list."""
        return self.error(
            f"Feature list {self.key!r} is required but could not be found: the record has "
            f"{shown_keys(lists)}{nearest(self.key, lists)}. Did you mean to give allow_missing=True?"
        )

    def wrong_count(self, found: int) -> ParseError:
        """The error for a list with the wrong number of values."""
        return self.error(
            f"Number of {self.kind.counted} values != expected: got {found}, expected {self.num_values} "
            f"for shape {[*self.shape]}"
        )

    def wrong_kind(self, found: ListKind) -> ParseError:
        """The error for values in another kind of list, as TensorFlow words it."""
        hint = "" if self.what in _PARTS else f"; the record holds {found.read_by}"
        return self.error(
            f"Data types don't match. Data type: {found.tf_name} but expected type: {self.kind.tf_name}{hint}"
        )

    def error(self, text: str) -> ParseError:
        """An error of this feature."""
        return ParseError(f"{self.label}: {text}")

    def labelled(self, error: TFRecordError) -> TFRecordError:
        """The same error, with this feature's label as prefix."""
        return type(error)(f"{self.label}: {error.args[0]}", position=error.position)


class LackingError(ParseError):
    """A record lacks a required key, as found from columns, which do not have the record's keys."""

    def __init__(self, want: Want) -> None:
        super().__init__(f"{want.label}: key {want.key!r} is required but could not be found")
        self.want = want


def at_step(error: TFRecordError, step: int) -> TFRecordError:
    """The same error, with the step number in the feature list as prefix."""
    return type(error)(f"step {step}: {error.args[0]}")


class Column(NamedTuple):
    """The values of N records for one `Want`.

    Attributes:
        values: int64 or float32: [N, count], [N] for a count of 1, [M] for any count; the arrays of
            a batch may share one block of memory, which nothing else uses. For strings, spans in
            the buffer, int64 [..., 2]: first byte, number of bytes.
        offsets: int64 [N + 1] for any count: the row splits of the records; else empty.
        missing: uint8 [N]: 1 if the record lacks the key, 2 if the kind of its list is not set; its
            values are then zeros or none. None if every record has values.
        buffer: The bytes that the spans refer to.
    """

    values: Array
    offsets: Ints
    missing: npt.NDArray[np.uint8] | None
    buffer: Buffer

    def views(self) -> list[memoryview]:
        """The strings of all records, without copying."""
        buffer = memoryview(self.buffer)
        return [
            buffer[start : start + length] for start, length in self.values.reshape(-1, 2).tolist()
        ]

    def strings(self, dtype: DType, in_rows: bool = False) -> list[Value]:
        """The strings of all records, as bytes or str; with ``in_rows`` (for any count) as one list
        per record.

        Raises:
            ParseError: A str is not UTF-8.
        """
        native = native_module("columns")
        if native is not None:
            read: Callable[..., list[Value]] = native.copies if dtype is bytes else native.texts
            with suppress(UnicodeDecodeError):  # whose error is worded below
                return read(self.buffer, self.values.reshape(-1), self.offsets if in_rows else None)
        values = [bytes(view) if dtype is bytes else decode_text(view) for view in self.views()]
        return [values[begin:end] for begin, end in self.bounds()] if in_rows else values

    @staticmethod
    def cast(values: Array, dtype: torch.dtype) -> torch.Tensor:
        """Numbers of a column as a tensor of this dtype; see `cast_array`."""
        return as_tensor(cast_array(values, dtype), dtype)

    def bounds(self) -> list[tuple[int, int]]:
        """(begin, end) of each record's values, for any count."""
        return list(pairwise(self.offsets.tolist()))

    def part(self, begin: int, end: int) -> Column:
        """The column of some of the records."""
        missing = None if self.missing is None else self.missing[begin:end]
        # With any number of values even an empty column has one offset, so none means a known number.
        if not len(self.offsets):
            return self._replace(values=self.values[begin:end], missing=missing)
        offsets = self.offsets[begin : end + 1]
        return self._replace(
            values=self.values[offsets[0] : offsets[-1]],
            offsets=_from_zero(offsets),
            missing=missing,
        )

    def copied(self) -> Column:
        """The same in memory of its own, as a reader may make its tensors of the arrays."""
        return self._replace(values=self.values.copy(), offsets=self.offsets.copy())


class Reader(Protocol):
    """Reads one feature.

    It may raise any TFRecordError if a value does not fit: the records are then read again as
    batches of one, to raise the error of the first bad record. A reader with ``keyed = True`` takes
    the records' random keys (uint64 [N]) as an extra argument. A reader with ``is_plain = True`` returns the
    core's values unchanged, in the spec's shape. One that wants a known number of values may have a
    method ``begin(column, keys)``: called before the array of its first column is filled, it returns a
    `Work` that is run after them and takes the place of `read`, or None.
    """

    @property
    def wants(self) -> tuple[Want, ...]:
        """Its wants from each record."""

    def read(self, columns: Sequence[Column]) -> Value:
        """Turn the wanted columns of N records into the batch's column; ragged numbers become a
        `Nested`.
        """


class Work(Protocol):
    """A reader's own work on a batch.

    Attributes:
        job: Runs without the GIL after those that read the records and fill their columns. What it
            finds unusual it leaves to `finish`. None, where there is nothing to run.
    """

    job: Job | None

    def finish(self, columns: Sequence[Column]) -> Value:
        """The batch's column, of the columns as `Reader.read` takes them."""


def read_columns(reader: Reader, columns: Sequence[Column], keys: Keys | int) -> Value:
    """Call a reader, with the records' random keys (uint64 [N], or a single key) if it draws at
    random.
    """
    read: Callable[..., Value] = reader.read
    return (
        read(columns, np.atleast_1d(np.uint64(keys)))
        if getattr(reader, "keyed", False)
        else read(columns)
    )


def labelled(want: Want, convert: Callable[..., _T], *args: object) -> _T:
    """Call ``convert`` and add the feature's label to its errors."""
    try:
        return convert(*args)
    except TFRecordError as error:
        # The cause stays what the codec or the library said: the error before would only repeat it.
        raise want.labelled(error) from error.__cause__


def _from_zero(offsets: Ints) -> Ints:
    found = np.empty_like(offsets)
    for first in range(0, len(offsets), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        np.subtract(offsets[part], offsets[0], out=found[part])
    return found


def locate_row(splits: Ints, position: int) -> tuple[int, int]:
    """The row that has an inner position, and the number of the position in it."""
    row = int(np.searchsorted(splits, position, side="right")) - 1
    return row, position - int(splits[row])


def reserve_for(want: Want, num_bytes: int, offsets: Ints | None = None) -> None:
    """`reserve` for a feature; the error names it and, given ``offsets``, the record with the most
    values.
    """
    try:
        reserve(num_bytes)
    except LimitExceededError as error:
        # With one record its number says nothing.
        longest = (
            int(np.diff(offsets).argmax()) if offsets is not None and len(offsets) > 1 else None
        )
        raise want.labelled(error).locate(position=longest) from None


def reserve_for_values(want: Want, num_bytes: int, offsets: Ints) -> None:
    """`reserve_for` for values stored in the records: a single record cannot need more than its
    bytes allow.
    """
    # Two or more records: one bad length must not let a batch grow without bound.
    if len(offsets) > 2:
        reserve_for(want, num_bytes, offsets)


class StepColumn(NamedTuple):
    """The values in the feature lists of N records for one `Want` with any number of values.

    Attributes:
        steps: The values of all steps: a Column of any count, whose records are the steps.
        borders: int64 [N + 1]: the row splits of the steps.
        missing: uint8 [N]: 1 if a record lacks the feature list.
    """

    steps: Column
    borders: Ints
    missing: npt.NDArray[np.uint8]

    def part(self, begin: int, end: int) -> StepColumn:
        """The column of some of the records."""
        # The usual case: one batch was read, and this is all of it.
        if end - begin == len(self.missing):
            return self
        borders = self.borders[begin : end + 1]
        return StepColumn(
            self.steps.part(borders[0], borders[-1]), borders - borders[0], self.missing[begin:end]
        )

    def copied(self) -> StepColumn:
        """The same in memory of its own; see `Column.copied`."""
        return self._replace(steps=self.steps.copied(), borders=self.borders.copy())


ReadContext: TypeAlias = Callable[[], Sequence[Column]]
"""Reads the context columns that a StepReader wants; called only if they are needed."""


class StepReader:
    """Reads one feature list like a `Reader`, from columns with any number of values.

    Args:
        step_wants: What each step must provide; the first is the values.

    Attributes:
        wants: The same for the feature lists, with any number of values.
        context_wants: What to read from the context, for steps without their own.
        is_required: Whether a record without the first list is an error.
    """

    context_wants: tuple[Want, ...] = ()
    is_required = False

    def __init__(self, *step_wants: Want) -> None:
        self.step_wants = step_wants
        # The core does not count the values of a step: `check_steps` does, and can name the step.
        self.wants = tuple(map(_of_any_number, step_wants))

    def read(self, lists: Sequence[StepColumn], context: ReadContext) -> Value:
        """The batch's column of N records; ragged numbers become a `Nested`."""
        raise NotImplementedError


def _of_any_number(want: Want) -> Want:
    # The label stays, so that errors of the steps name the same feature.
    found = copy.copy(want)
    found.num_values, found.is_required = None, False
    return found


def check_steps(want: Want, column: StepColumn, *, is_required: bool) -> None:
    """Check that a required list is in every record, and that each step has the wanted number of
    values.
    """
    if is_required and np.count_nonzero(column.missing):
        raise want.error(f"Feature list {want.key!r} is required but could not be found")
    if want.num_values is None:
        return
    offsets = column.steps.offsets
    for first in range(0, len(offsets) - 1, _AT_ONCE):
        ends = offsets[first : first + _AT_ONCE + 1]
        counts = ends[1:] - ends[:-1]
        wrong = counts != want.num_values
        if np.count_nonzero(wrong):  # faster than any(), which matters for a single record
            number = int(wrong.argmax())
            _, step = locate_row(column.borders, first + number)
            raise at_step(want.wrong_count(int(counts[number])), step)


def read_records(reader: Reader, columns: Sequence[Column], borders: Ints) -> Value:
    """Read the steps of several records as records of a batch; a LimitExceededError names the
    record and step.
    """
    try:
        return reader.read(columns)
    except LimitExceededError as error:
        # No position: it was not one of several steps that was too large.
        if error.position is None:
            raise
        record, step = locate_row(borders, error.position)
        raise at_step(error, step).locate(position=record) from error.__cause__


def read_record(reader: Reader, columns: Sequence[Column]) -> Value:
    """Read the steps of one record as records of a batch; errors name the step."""
    num_steps = len(columns[0].offsets) - 1 if len(columns[0].offsets) else len(columns[0].values)
    try:
        return read_records(reader, columns, np.array([0, num_steps]))
    except LimitExceededError as error:
        error.position = None  # the caller knows the record's own number
        raise
    except TFRecordError:
        raise_first(
            "step",
            num_steps,
            lambda number: reader.read([column.part(number, number + 1) for column in columns]),
        )
        # No step fails by itself, so the error of all together is the one to show.
        raise
