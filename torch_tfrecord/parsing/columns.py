"""What all readers share: the protocols, and the steps from a spec to a lookup and from lists to values.

A reader turns a record into a sample's value and several records into a batch's column. A record is the map of key to
Feature message; for the readers of ``step_columns`` it is a SequenceExample message. A new spec is a class in
``features``, a reader in a module of its family, a row in ``spec_readers``.

A reader that says what it ``wants`` of the compiled core (``native.columns``) also turns that into a column, or into
the samples' values. These three ways give the same values; errors are worded on the first alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.features.specs import Feature, mark_ragged
from torch_tfrecord.native import native_module
from torch_tfrecord.parsing.lookup import Lookup
from torch_tfrecord.protobuf.example import join_arrays
from torch_tfrecord.values.containers import jagged_tensor
from torch_tfrecord.values.dtypes import INT64_LIST, DType, ListKind, cast, decode_text, dtype_name, list_kind

__all__ = [
    "Column",
    "NativeReader",
    "Reader",
    "Want",
    "jagged_column",
    "jagged_rows",
    "join",
    "key_of",
    "labelled",
    "list_lookup",
    "read_each",
    "reserve_for",
    "rows_of",
    "stack",
    "string_rows",
    "strings",
    "torch_dtype",
]


class Reader(Protocol):
    """Reads one feature."""

    def sample(self, record: Any) -> Any:
        """The value of one record."""

    def batch(self, records: Sequence[Any]) -> Any:
        """The column of several records."""


class Want(NamedTuple):
    """What a reader wants of each record: a key's list, its number of values (None: any), and whether it must be."""

    key: str
    kind: ListKind
    num_values: int | None
    is_required: bool


class Column(NamedTuple):
    """What the compiled core found for a Want in N records.

    Attributes:
        values: int64 or float32: [N, count], [N] for a count of 1, [M] for any count; the arrays of a batch may be
            parts of one block of memory, and are nobody else's. Of strings their spans in the buffer, int64 [..., 2]:
            first byte, number of bytes.
        offsets: int64 [N + 1], for any count: where each record's values begin and end; else empty.
        missing: bool [N], True where the record lacks the key or the kind of its list is not set, its values then
            zeros; None where no record does.
        buffer: The bytes that the spans speak of.
    """

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    missing: npt.NDArray[np.bool_] | None
    buffer: memoryview

    def views(self) -> list[memoryview]:
        """The strings of all records, not copied."""
        buffer = self.buffer
        return [buffer[start : start + length] for start, length in self.values.reshape(-1, 2).tolist()]

    def strings(self, dtype: DType) -> list[Any]:
        """The strings of all records, as bytes or str.

        Raises:
            UnicodeDecodeError: A str is not UTF-8.
        """
        native = native_module("columns")
        if native is None:
            raise RuntimeError("columns come from the compiled core only")
        found: list[Any] = (native.copies if dtype is bytes else native.texts)(self.buffer, self.values.reshape(-1))
        return found

    def bounds(self) -> list[tuple[int, int]]:
        """Where each record's values begin and end, for any count."""
        return list(pairwise(self.offsets.tolist()))


class NativeReader(Reader, Protocol):
    """A reader that also takes columns of the compiled core; ``wants`` None: not this one.

    Both methods may raise any TFRecordError or UnicodeDecodeError where a value does not fit: the records are then
    read again one by one, for the error's words and position. A reader whose ``keyed`` is true takes the records' keys
    (uint64 [N]) as one more argument in ``batch``, ``from_columns`` and ``rows``, and a record's in ``sample``.
    """

    wants: tuple[Want, ...] | None

    def from_columns(self, columns: Sequence[Column]) -> Any:
        """The column of several records, from what was wanted."""

    def rows(self, columns: Sequence[Column]) -> list[Any]:
        """The same as a list of what :meth:`sample` gives; tensors may be parts of one memory."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype, which is known to be a torch dtype."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no tensor holds {dtype_name(dtype)}")
    return dtype


def key_of(name: str, spec: Feature) -> str:
    """Name in the record of an output's feature."""
    return name if spec.key is None else spec.key


def list_lookup(name: str, key: str, dtype: DType) -> Lookup:
    """The lookup of a list that holds a dtype."""
    kind = list_kind(dtype)
    if kind is None:
        raise TypeError(f"no list holds {dtype_name(dtype)}")
    return Lookup(name, key, kind, dtype_name(dtype))


def labelled(lookup: Lookup, convert: Callable[..., Any], *args: Any) -> Any:
    """Call ``convert``; its errors get the feature's label."""
    try:
        return convert(*args)
    except TFRecordError as error:
        raise lookup.labelled(error) from error.__cause__


def reserve_for(lookup: Lookup, num_bytes: int, lengths: Sequence[int] = ()) -> None:
    """`reserve` for a feature, whose name its error gets; with how long each record is, the longest one's number."""
    try:
        reserve(num_bytes)
    except LimitExceededError as error:
        longest = lengths.index(max(lengths)) if lengths else None
        raise lookup.labelled(error).locate(position=longest) from None


def read_each(read: Callable[[Any], Any], records: Sequence[Any]) -> list[Any]:
    """Read several records; the error of one that is larger than the batch may still be gets the record's number."""
    values = []
    try:
        for record in records:
            values.append(read(record))
    except LimitExceededError as error:
        raise error.locate(position=len(values)) from error.__cause__
    return values


def strings(lookup: Lookup, found: Any, dtype: DType) -> list[Any]:
    """The values of a BytesList message, as bytes or str."""
    if dtype is bytes:
        return list(found.value)
    return [labelled(lookup, decode_text, value) for value in found.value]


def join(found: Sequence[Any], dtype: torch.dtype) -> Any:
    """Join the values of several lists into one array, int64 or float32."""
    if not found:
        return np.zeros(0, np.int64 if list_kind(dtype) is INT64_LIST else np.float32)
    return join_arrays(found)


def stack(samples: list[Any]) -> Any:
    """Stack tensors of one shape and dtype; everything else stays a list.

    Raises:
        LimitExceededError: As `reserve`.
    """
    first = samples[0] if samples else None
    if not isinstance(first, torch.Tensor):
        return samples
    if any(not isinstance(item, torch.Tensor) for item in samples):
        return samples
    if any(item.shape != first.shape or item.dtype != first.dtype for item in samples):
        return samples
    reserve(len(samples) * first.nbytes)
    stacked = torch.stack(samples)
    return tv_tensors.wrap(stacked, like=first) if isinstance(first, tv_tensors.TVTensor) else stacked


def rows_of(column: Any) -> list[Any]:
    """The samples' values of a column that :func:`stack` made, or that is a list."""
    if isinstance(column, list):
        return column
    rows = column.as_subclass(torch.Tensor).unbind()
    if isinstance(column, tv_tensors.TVTensor):
        return [tv_tensors.wrap(row, like=column) for row in rows]
    return list(rows)


def jagged_column(column: Column, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of any count as a jagged nested tensor of a dtype."""
    reserve(column.values.size * dtype.itemsize)
    return jagged_tensor(cast(column.values, dtype), torch.from_numpy(column.offsets))


def jagged_rows(column: Column, dtype: torch.dtype) -> list[torch.Tensor]:
    """Numbers of any count as 1-D tensors, marked as ragged."""
    if len(column.offsets) < 2:
        return []
    return [mark_ragged(part) for part in torch.split(cast(column.values, dtype), np.diff(column.offsets).tolist())]


def string_rows(column: Column, dtype: DType) -> list[list[Any]]:
    """Strings of any count as a list for each record."""
    values = column.strings(dtype)
    return [values[begin:end] for begin, end in column.bounds()]
