"""What all readers share: columns, how a reader turns them into a batch's column, and how that comes apart.

A reader says what it wants of each record, and makes of the columns of N records what a batch has of them. This is its
only way from bytes to values: a sample is the row of a batch of one. Columns come from the compiled core, or from
protobuf's messages (``column_plan``). A new spec is a class in ``features``, a reader in a module of its family, a row
in ``spec_readers``.
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
from torch_tfrecord.errors import LimitExceededError, ParseError, TFRecordError
from torch_tfrecord.features.specs import Feature, mark_ragged
from torch_tfrecord.native import native_module
from torch_tfrecord.parsing.wants import Want
from torch_tfrecord.values.containers import Nested, RaggedTensor, SparseList, make_sparse, wrap_nested
from torch_tfrecord.values.dtypes import DType, cast, decode_text, dtype_name

__all__ = [
    "Column",
    "Reader",
    "is_ascending",
    "jagged_column",
    "key_of",
    "labelled",
    "read_columns",
    "read_each",
    "reserve_for",
    "reserve_for_values",
    "rows_of",
    "stack",
    "string_rows",
    "torch_dtype",
]


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
    offsets: npt.NDArray[np.int64]
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
    [N]) as one more argument. One with ``row_bytes`` needs so much for each record, which the parser reserves.
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


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype, which is known to be a torch dtype."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no tensor holds {dtype_name(dtype)}")
    return dtype


def key_of(name: str, spec: Feature) -> str:
    """Name in the record of an output's feature."""
    return name if spec.key is None else spec.key


def labelled(want: Want, convert: Callable[..., Any], *args: Any) -> Any:
    """Call ``convert``; its errors get the feature's label."""
    try:
        return convert(*args)
    except TFRecordError as error:
        raise want.labelled(error) from error.__cause__


def reserve_for(want: Want, num_bytes: int, offsets: Any = ()) -> None:
    """`reserve` for a feature, whose name its error gets; with where each record ends, the longest one's number."""
    try:
        reserve(num_bytes)
    except LimitExceededError as error:
        longest = int(np.diff(offsets).argmax()) if len(offsets) > 1 else None
        raise want.labelled(error).locate(position=longest) from None


def reserve_for_values(want: Want, num_bytes: int, offsets: npt.NDArray[np.int64]) -> None:
    """`reserve_for` of values that the records hold themselves: one alone needs no more than its bytes allow."""
    if len(offsets) > 2:
        reserve_for(want, num_bytes, offsets)


def read_each(read: Callable[[Any], Any], records: Sequence[Any]) -> list[Any]:
    """Read several records; the error of one that is larger than the batch may still be gets the record's number."""
    values = []
    try:
        for record in records:
            values.append(read(record))
    except LimitExceededError as error:
        raise error.locate(position=len(values)) from error.__cause__
    return values


def jagged_column(column: Column, want: Want, dtype: torch.dtype) -> Nested:
    """Numbers of any count, of a dtype."""
    values = labelled(want, cast, column.values, dtype)
    reserve_for_values(want, values.nbytes, column.offsets)
    return Nested(values, (torch.from_numpy(column.offsets),))


def string_rows(column: Column, want: Want, dtype: DType) -> list[list[Any]]:
    """Strings of any count as a list for each record."""
    rows: list[list[Any]] = labelled(want, column.strings, dtype, True)
    return rows


# Put together, and taken apart.


def stack(values: list[Any]) -> Any:
    """Stack tensors of one shape and dtype; everything else stays a list.

    Raises:
        LimitExceededError: As `reserve`.
    """
    first = values[0] if values else None
    if not isinstance(first, torch.Tensor):
        return values
    if any(not isinstance(item, torch.Tensor) for item in values):
        return values
    if any(item.shape != first.shape or item.dtype != first.dtype for item in values):
        return values
    if len(values) > 1:
        reserve(len(values) * first.nbytes)
    stacked = torch.stack(values) if len(values) > 1 else first.as_subclass(torch.Tensor)[None]
    return tv_tensors.wrap(stacked, like=first) if isinstance(first, tv_tensors.TVTensor) else stacked


def rows_of(column: Any) -> Any:
    """What each sample has of a reader's column, without copying: views of its tensors."""
    if isinstance(column, list):
        return column
    if isinstance(column, Nested):
        return _nested_rows(column)
    if isinstance(column, SparseList):
        return _sparse_rows(column.indices, column.values, column.shape)
    if isinstance(column, RaggedTensor):
        return _nested_rows(Nested(column.flat_values, column.row_splits))
    if column.layout == torch.jagged:
        return _nested_rows(Nested(column.values(), (column.offsets(),)))
    if column.layout == torch.sparse_coo:
        return _sparse_rows(column._indices(), column._values(), tuple(column.shape))
    if isinstance(column, tv_tensors.TVTensor):
        return [tv_tensors.wrap(row, like=column) for row in column.as_subclass(torch.Tensor).unbind()]
    return column.unbind()


def _nested_rows(column: Nested) -> list[Any]:
    if len(column.row_splits[0]) == 2:  # a batch of one
        return [
            wrap_nested(Nested(column.values, column.row_splits[1:]))
            if column.row_splits[1:]
            else mark_ragged(column.values)
        ]
    if len(column.row_splits) > 1:
        ragged = RaggedTensor(*column)
        return [ragged[number] for number in range(len(ragged))]
    return [mark_ragged(row) for row in torch.split(column.values, column.row_splits[0].diff().tolist())]


def _sparse_rows(indices: torch.Tensor, values: Any, shape: tuple[int, ...]) -> list[Any]:
    """One sparse sample for each first index; those ascend."""
    ends = torch.bincount(indices[0], minlength=shape[0]).cumsum(0).tolist()
    return [
        make_sparse(part := indices[1:, begin:end], values[begin:end], shape[1:], is_coalesced=is_ascending(part))
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def is_ascending(indices: torch.Tensor) -> bool:
    """Whether indices [ndim, nnz] ascend, none of them twice: what torch calls coalesced."""
    is_less = torch.zeros(max(indices.shape[1] - 1, 0), dtype=torch.bool)
    for axis in reversed(indices):
        is_less = (axis[:-1] < axis[1:]) | ((axis[:-1] == axis[1:]) & is_less)
    return bool(is_less.all())
