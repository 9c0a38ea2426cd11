"""What all readers share: what they want of each record, the columns of it, and the errors' words.

A reader says what it wants of each record, and makes of the columns of N records what a batch has of them. This is its
only way from bytes to values: a sample is the row of a batch of one. Columns come from the compiled core, or from
protobuf's messages (``parsing/message_columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import LimitExceededError, ParseError, TFRecordError
from torch_tfrecord.native import native_module
from torch_tfrecord.values.dtypes import DType, ListKind, decode_text, dtype_name, list_kind

__all__ = [
    "NO_OFFSETS",
    "Column",
    "Ints",
    "LackingError",
    "Reader",
    "Want",
    "at_step",
    "labelled",
    "list_want",
    "read_columns",
    "read_each",
    "reserve_for",
    "reserve_for_values",
]

_T = TypeVar("_T")
Ints: TypeAlias = "npt.NDArray[np.int64]"
NO_OFFSETS = np.zeros(0, np.int64)
"""Of a Column of a known number of values."""
_SHOWN_KEYS = 8


class Want:
    """What a reader wants of each record: a key's list, its number of values, and whether it must be there.

    Args:
        name: Name of the output.
        key: Name in the record.
        kind: The list that should hold the values.
        what: The dtype or spec, as the label shows it.
        num_values: How many each record has; None for any number.
        is_required: Whether a record that lacks it is an error.
        shape: Of the values, as errors show it.

    Attributes:
        label: What begins the errors.
    """

    def __init__(
        self,
        name: str,
        key: str,
        kind: ListKind,
        what: str,
        *,
        num_values: int | None = None,
        is_required: bool = False,
        shape: tuple[int, ...] = (),
    ) -> None:
        self.key = key
        self.kind, self.what = kind, what
        self.num_values, self.is_required, self.shape = num_values, is_required, shape
        self.label = f"feature {name!r} ({what})" if name == key else f"feature {name!r} ({what}, key {key!r})"

    def missing(self, record: Iterable[str]) -> ParseError:
        """The error for a record that lacks the feature; it names the record's keys, since a misspelt key is common."""
        there = "it is there without a value" if self.key in record else f"the record has {_shown_keys(record)}"
        return self.error(f"key {self.key!r} is required but could not be found: {there}")

    def lacking(self) -> LackingError:
        """The error for whoever sees the columns only: the parser, which sees the record, makes it `missing`."""
        return LackingError(self)

    def missing_list(self, lists: Iterable[str]) -> ParseError:
        """The error for a SequenceExample that lacks the feature list."""
        return self.error(
            f"Feature list {self.key!r} is required but could not be found: the record has "
            f"{_shown_keys(lists)}. Did you mean to give allow_missing=True?"
        )

    def wrong_count(self, found: int) -> ParseError:
        """The error for a list with another number of values."""
        return self.error(
            f"Number of {self.kind.counted} values != expected: got {found}, expected {self.num_values} "
            f"for shape {[*self.shape]}"
        )

    def wrong_kind(self, found: ListKind) -> ParseError:
        """The error for values in another kind of list."""
        return self.error(f"Data types don't match. Data type: {found.tf_name} but expected type: {self.kind.tf_name}")

    def error(self, text: str) -> ParseError:
        """An error of this feature."""
        return ParseError(f"{self.label}: {text}")

    def labelled(self, error: TFRecordError) -> TFRecordError:
        """The same error, with this feature's label before its text."""
        return type(error)(f"{self.label}: {error.args[0]}", position=error.position)


class LackingError(ParseError):
    """A record lacks what a reader needs, as columns show it: without the record's keys."""

    def __init__(self, want: Want) -> None:
        super().__init__(f"{want.label}: key {want.key!r} is required but could not be found")
        self.want = want


def list_want(
    name: str,
    key: str,
    dtype: DType,
    *,
    num_values: int | None = None,
    is_required: bool = False,
    shape: tuple[int, ...] = (),
) -> Want:
    """The Want of a list that holds a dtype; options as of `Want`."""
    kind = list_kind(dtype)
    if kind is None:
        raise TypeError(f"no list holds {dtype_name(dtype)}")
    return Want(name, key, kind, dtype_name(dtype), num_values=num_values, is_required=is_required, shape=shape)


def at_step(error: TFRecordError, step: int) -> TFRecordError:
    """The same error, with the number of the feature list's step before its text."""
    return type(error)(f"step {step}: {error.args[0]}")


def _shown_keys(record: Iterable[str]) -> str:
    keys = sorted(key if len(key) <= 60 else key[:57] + "..." for key in record)
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(map(repr, keys[:_SHOWN_KEYS])) + more or "no features"


class Column(NamedTuple):
    """What N records have of a Want.

    Attributes:
        values: int64 or float32: [N, count], [N] for a count of 1, [M] for any count; the arrays of a batch may be
            parts of one block of memory, and are nobody else's. Of strings their spans in the buffer, int64 [..., 2]:
            first byte, number of bytes.
        offsets: int64 [N + 1], for any count: where each record's values begin and end; else empty.
        missing: uint8 [N]: 1 where the record lacks the key, 2 where the kind of its list is not set, its values then
            zeros or none; None where no record lacks it.
        buffer: The bytes that the spans speak of.
    """

    values: npt.NDArray[Any]
    offsets: Ints
    missing: npt.NDArray[np.uint8] | None
    buffer: Any

    def views(self) -> list[memoryview]:
        """The strings of all records, not copied."""
        buffer = memoryview(self.buffer)
        return [buffer[start : start + length] for start, length in self.values.reshape(-1, 2).tolist()]

    def strings(self, dtype: DType, in_rows: bool = False) -> list[Any]:
        """The strings of all records, as bytes or str; ``in_rows`` of any count, as a list for each record.

        Raises:
            ParseError: A str is not UTF-8.
        """
        native, offsets = native_module("columns"), self.offsets if in_rows else None
        if native is None:
            values = [bytes(view) if dtype is bytes else decode_text(view) for view in self.views()]
            return [values[begin:end] for begin, end in self.bounds()] if in_rows else values
        try:
            read: Callable[..., list[Any]] = native.copies if dtype is bytes else native.texts
            return read(self.buffer, self.values.reshape(-1), offsets)
        except UnicodeDecodeError as error:
            raise ParseError(
                f"expected UTF-8 text, got an invalid byte at {error.start} of {len(error.object)}"
            ) from None

    def bounds(self) -> list[tuple[int, int]]:
        """Where each record's values begin and end, for any count."""
        return list(pairwise(self.offsets.tolist()))


class Reader(Protocol):
    """Reads one feature.

    It may raise any TFRecordError where a value does not fit: the records are then read again as batches of one, so
    that the first bad record's error is raised. A reader with ``keyed = True`` takes the records' random keys (uint64
    [N]) as one more argument. One with ``row_bytes`` needs so much for each record, which the parser reserves. One with
    ``is_plain = True`` has the core's values, in the spec's shape.
    """

    @property
    def wants(self) -> tuple[Want, ...]:
        """What it wants of each record."""

    def read(self, columns: Sequence[Column]) -> Any:
        """The batch's column of N records, of the columns of what is wanted; of ragged numbers a `Nested`."""


def read_columns(reader: Reader, columns: Sequence[Column], keys: Any) -> Any:
    """What a reader makes of its columns, with the records' random keys (uint64 [N], or the only one's) if it draws."""
    read: Any = reader.read
    return read(columns, np.atleast_1d(np.uint64(keys))) if getattr(reader, "keyed", False) else read(columns)


def labelled(want: Want, convert: Callable[..., _T], *args: object) -> _T:
    """Call ``convert``; its errors get the feature's label."""
    try:
        return convert(*args)
    except TFRecordError as error:
        raise want.labelled(error) from error.__cause__


def reserve_for(want: Want, num_bytes: int, offsets: Ints | None = None) -> None:
    """`reserve` for a feature, whose name its error gets; with where each record ends, the longest one's number."""
    try:
        reserve(num_bytes)
    except LimitExceededError as error:
        longest = int(np.diff(offsets).argmax()) if offsets is not None and len(offsets) > 1 else None
        raise want.labelled(error).locate(position=longest) from None


def reserve_for_values(want: Want, num_bytes: int, offsets: Ints) -> None:
    """`reserve_for` of values that the records hold themselves: one alone needs no more than its bytes allow."""
    if len(offsets) > 2:
        reserve_for(want, num_bytes, offsets)


def read_each(read: Callable[[Any], _T], records: Iterable[Any]) -> list[_T]:
    """Read several records; the error of one that is larger than the batch may still be gets the record's number."""
    values = []
    try:
        for record in records:
            values.append(read(record))
    except LimitExceededError as error:
        raise error.locate(position=len(values)) from error.__cause__
    return values
