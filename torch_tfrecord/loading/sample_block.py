"""Columns and their rows: split into samples, and joined again from samples that were not
changed.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import empty_bytes
from torch_tfrecord.columns.containers import RaggedTensor, SparseList, jagged_tensor
from torch_tfrecord.columns.listed_values import WHOLE_KINDS
from torch_tfrecord.columns.stacking import as_kind_of, is_listed, mark_listed, rows_of
from torch_tfrecord.loading.sample import UNSEEN, Sample, make_samples
from torch_tfrecord.torch_internals import jagged_parts

__all__ = ["SampleBlock", "join_samples", "take_apart"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


class _Dense(NamedTuple):
    """A dense column as a NumPy array, as integers if NumPy does not have its dtype."""

    kind: type[torch.Tensor]
    dtype: torch.dtype
    inner: tuple[int, ...]
    array: npt.NDArray[Any]


class SampleBlock:
    """The columns of several samples, by name. A sample's values are made on first access, and
    kept.

    Tensors of samples are views of their column, so an in-place change of one changes the column,
    but no batch. The first access to a column makes one view; on the second, the whole column is
    split at once.

    Args:
        columns: As for `ColumnBatch`; only those by name have samples.
        num_rows: Number of samples.

    Attributes:
        again: Parses the columns once more, into new memory; if it is known, a batch may `take` the
            columns.
    """

    __slots__ = (
        "_apart",
        "_columns",
        "_dense",
        "_is_read",
        "_looked",
        "_rows",
        "again",
        "lock",
        "num_rows",
        "template",
    )

    def __init__(self, columns: Any, num_rows: int) -> None:
        self._columns = columns
        self.num_rows = num_rows
        self.again: Callable[[], Any] | None = None
        self._is_read = False
        self.lock = threading.Lock()
        self.template: dict[Any, object] = dict.fromkeys(
            columns if isinstance(columns, dict) else (), UNSEEN
        )
        self._apart: dict[Any, Sequence[Any]] = {}
        self._dense: dict[Any, _Dense | None] = {}
        self._looked: set[Any] = set()  # names of columns with one accessed value; None for a row
        self._rows: list[tuple[Any, ...]] | None = None

    @property
    def columns(self) -> Any:
        """The columns; parsed again if a batch took them."""
        self._is_read = True  # first set, then read: `take` does it in the other order
        columns = self._columns
        if columns is None:
            columns = self._columns = self.again()  # type: ignore[misc]  # None only after `take`
        return columns

    def take(self) -> Any | None:
        """The columns, for one batch only; None if it must copy, as another batch or sample may
        share the memory.
        """
        if self.again is None or self._is_read:
            return None
        columns, self._columns = self._columns, None
        if self._is_read and columns is not None:  # another thread has just read them
            self._columns = columns
            return None
        return columns

    def samples(self, rows: Iterable[int] | None = None) -> list[Sample]:
        """New samples of some rows, or of all."""
        return make_samples(self, range(self.num_rows) if rows is None else rows)

    def value(self, name: Any, row: int) -> Any:
        """One value."""
        values = self._apart.get(name)
        if values is None:
            column = self.columns[name]
            if (
                name not in self._looked
                and isinstance(column, torch.Tensor)
                and column.layout == torch.strided
            ):
                self._looked.add(name)
                return as_kind_of(column.as_subclass(torch.Tensor)[row], column)
            values = self._values(name)
        return values[row]

    def _values(self, name: Any) -> Sequence[Any]:
        values = self._apart.get(name)
        if values is None:  # if two threads make the values, the first one's are kept
            values = self._apart.setdefault(name, take_apart(self.columns[name], self.num_rows))
        return values

    def row(self, row: int) -> dict[Any, Any]:
        """All values of one row."""
        if self._rows is None and None not in self._looked:
            self._looked.add(None)
            return {name: self.value(name, row) for name in self.columns}
        if self._rows is None:
            self._rows = list(zip(*map(self._values, self.columns), strict=True))
        return dict(zip(self.columns, self._rows[row], strict=True)) if self.columns else {}

    def dense(self, name: Any) -> _Dense | None:
        """The column, if it is dense."""
        if name not in self._dense:
            self._dense[name] = _dense(self.columns[name])
        return self._dense[name]


# Splitting.


def take_apart(columns: Any, num_rows: int) -> Sequence[Any]:
    """The value of each row; for columns by name, or a tuple of columns, the samples."""
    if isinstance(columns, dict):
        return SampleBlock(columns, num_rows).samples()
    if isinstance(columns, tuple):
        return list(zip(*(take_apart(column, num_rows) for column in columns), strict=True))
    if isinstance(columns, (list, torch.Tensor, RaggedTensor, SparseList)):
        rows: Sequence[Any] = rows_of(columns)
        return rows
    return [columns[number] for number in range(num_rows)]


# Joining.


def join_samples(samples: Sequence[Any]) -> dict[Any, Any] | None:
    """The columns whose rows the samples are, for one batch only; None if one was changed or is not
    a `Sample`.

    A feature that was accessed is the list of the samples' values, since those may have been
    changed in place.
    """
    if set(map(type, samples)) != {Sample}:
        return None
    blocks = [*map(_BLOCK, samples)]
    distinct: dict[int, Any] = dict(zip(map(id, blocks), blocks, strict=True))
    names = None if id(None) in distinct else list(blocks[0].template)
    if names is None or any(block.template.keys() != set(names) for block in distinct.values()):
        return None
    rows = np.fromiter(map(_ROW, samples), np.int64, len(samples))
    taken = _taken(blocks[-1], rows) if len(distinct) == 1 else None
    if taken is not None:
        return taken
    looked = _looked(samples, names, rows)
    chosen = (
        _chosen(blocks, distinct, np.where(rows < 0, ~rows, rows))
        if len(looked) < len(names)
        else None
    )
    columns: dict[Any, Any] = {}
    for name in names:
        column = None
        if chosen is not None and name not in looked:
            column = _joined([*distinct.values()], name, chosen)
        values = [sample[name] for sample in samples] if column is None else column
        columns[name] = [*map(_own, values)] if type(values) is list else values
    return columns


def _own(value: Any) -> Any:
    """A copy of what a batch would list as it is; other tensors are about to be stacked."""
    if isinstance(value, (bytes, str)):
        return value
    if type(value) is list:  # of strings, or of lists
        return [*map(_own, value)] if value and type(value[0]) is list else value[:]
    if type(value) is dict:
        return {name: _own(part) for name, part in value.items()}
    if is_listed(value):
        return mark_listed(copy.deepcopy(value))  # a copy of a tv_tensor has no marks
    return copy.deepcopy(value) if isinstance(value, WHOLE_KINDS) else value


_BLOCK, _ROW = attrgetter("_block"), attrgetter("_row")


def _taken(block: SampleBlock, rows: _Integers) -> dict[Any, Any] | None:
    """The columns themselves, if these are all rows of the block, in order."""
    is_whole = len(rows) == block.num_rows and bool((rows == np.arange(len(rows))).all())
    return block.take() if is_whole else None


def _looked(samples: Sequence[Sample], names: Sequence[Any], rows: _Integers) -> set[Any]:
    """The names of features with an accessed value."""
    looked: set[Any] = set()
    get = dict.__getitem__
    for number in np.flatnonzero(rows < 0).tolist():
        looked.update([name for name in names if get(samples[number], name) is not UNSEEN])
        if len(looked) == len(names):
            break
    return looked


class _Chosen(NamedTuple):
    """Rows of several blocks: for each block its rows, and their places among all; slices if they
    are neighbours.
    """

    num_rows: int
    rows: list[slice | _Integers]
    places: list[slice | _Integers]


def _chosen(blocks: Sequence[Any], distinct: dict[int, Any], rows: _Integers) -> _Chosen:
    if len(distinct) == 1:
        return _Chosen(len(rows), [_neighbours(rows)], [slice(0, len(rows))])
    numbers = {key: number for number, key in enumerate(distinct)}
    of_block = np.array([numbers[id(block)] for block in blocks], np.int64)
    ends = np.bincount(of_block).cumsum()[:-1]
    places = np.split(np.argsort(of_block, kind="stable"), ends)
    return _Chosen(
        len(rows), [_neighbours(rows[each]) for each in places], [*map(_neighbours, places)]
    )


def _neighbours(numbers: _Integers) -> slice | _Integers:
    is_slice = int(numbers[-1]) - int(numbers[0]) + 1 == len(numbers) and bool(
        (np.diff(numbers) == 1).all()
    )
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if is_slice else numbers


def _joined(blocks: Sequence[SampleBlock], name: Any, chosen: _Chosen) -> Any:
    """The chosen rows of one feature; None if only its values can be collated."""
    dense = _same([block.dense(name) for block in blocks])
    columns = [block.columns[name] for block in blocks]
    if dense is not None:
        return as_kind_of(_joined_rows(dense, chosen), columns[0])
    if all(isinstance(column, list) for column in columns):
        return _joined_lists(columns, chosen)
    if all(
        isinstance(column, torch.Tensor) and column.layout == torch.jagged for column in columns
    ):
        return _joined_jagged(columns, chosen)
    return None


def _same(parts: Sequence[_Dense | None]) -> list[_Dense] | None:
    """The columns, if all are dense and of the same type."""
    first = parts[0]
    if first is None:
        return None
    same = [part for part in parts if part is not None and part[:3] == first[:3]]
    return same if len(same) == len(parts) else None


def _joined_lists(columns: Sequence[list[Any]], chosen: _Chosen) -> list[Any]:
    values: list[Any] = [None] * chosen.num_rows
    for column, rows, places in zip(columns, chosen.rows, chosen.places, strict=True):
        picked = column[rows] if isinstance(rows, slice) else [column[row] for row in rows.tolist()]
        if isinstance(places, slice):
            values[places] = picked
        else:
            for place, value in zip(places.tolist(), picked, strict=True):
                values[place] = value
    return values


def _joined_rows(parts: Sequence[_Dense], chosen: _Chosen) -> torch.Tensor:
    """The rows of dense columns, in new memory. Uses NumPy: torch's threads take longer to sync
    than one to copy.
    """
    _, dtype, inner, first = parts[0]
    shape = (chosen.num_rows, *inner)
    joined = empty_bytes(math.prod(shape) * first.itemsize).view(first.dtype).reshape(shape)
    for part, rows, places in zip(parts, chosen.rows, chosen.places, strict=True):
        joined[places] = part.array[rows]
    tensor = torch.from_numpy(joined)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def _dense(column: Any) -> _Dense | None:
    """The column, if it is dense and in this process's memory."""
    if (
        not isinstance(column, torch.Tensor)
        or column.layout != torch.strided
        or column.device.type != "cpu"
    ):
        return None
    if column.is_nested or column.requires_grad or column.is_conj() or column.is_neg():
        return None
    plain = column.as_subclass(torch.Tensor)
    array = (plain if plain.dtype in _NUMPYS else plain.view(_INTEGERS[plain.itemsize])).numpy()
    return _Dense(type(column), column.dtype, tuple(column.shape[1:]), array)


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPYS = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
}
_NUMPYS |= {torch.uint16, torch.uint32, torch.uint64, *_INTEGERS.values()}


def _joined_jagged(columns: Sequence[Any], chosen: _Chosen) -> torch.Tensor | None:
    parts = [part for part in map(jagged_parts, columns) if part is not None]
    values = _same([_dense(part[0]) for part in parts]) if len(parts) == len(columns) else None
    if values is None:
        return None
    offsets = [part[1].numpy() for part in parts]
    joined = np.zeros(chosen.num_rows + 1, np.int64)
    for each, rows, places in zip(offsets, chosen.rows, chosen.places, strict=True):
        joined[1:][places] = np.diff(each)[rows]
    np.cumsum(joined, out=joined)
    wanted = (
        [*map(_ragged, offsets, chosen.rows)],
        [_ragged(joined, places) for places in chosen.places],
    )
    return jagged_tensor(
        _joined_rows(values, _Chosen(int(joined[-1]), *wanted)), torch.from_numpy(joined)
    )


def _ragged(offsets: _Integers, rows: slice | _Integers) -> slice | _Integers:
    """The values of some rows."""
    if isinstance(rows, slice):
        return slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    begins, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    ends = lengths.cumsum()
    numbers: _Integers = np.repeat(begins - ends + lengths, lengths) + np.arange(int(ends[-1]))
    return numbers
