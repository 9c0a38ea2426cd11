"""Readers of RaggedFeature: values, and the partitions that tell their rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import LimitExceededError, ParseError
from torch_tfrecord.features.structured_specs import (
    Partition,
    RaggedFeature,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from torch_tfrecord.parsing.columns import Column, key_of, labelled, read_each, reserve_for, string_rows, torch_dtype
from torch_tfrecord.parsing.wants import Want, list_want
from torch_tfrecord.values.containers import Nested, join_nested, split_lists
from torch_tfrecord.values.dtypes import INT64_LIST, cast
from torch_tfrecord.values.tensors import MAX_FILL_BYTES

__all__ = ["RaggedNumbers", "RaggedStrings", "needs", "value_key"]

_Ints: TypeAlias = "npt.NDArray[np.int64]"

# Row ids alone can stand for more rows than the record has bytes.
_MAX_EMPTY_ROWS = MAX_FILL_BYTES // 8
_LIST_BYTES = 112  # of an empty list among others, and where it ends
# More than a record can hold, since protobuf reads no message from 2 GiB on.
_MAX_LENGTH = 1 << 33
_NOTHING = np.zeros(0, np.int64)


def value_key(name: str, spec: RaggedFeature) -> str:
    """Name in the record of the values."""
    return key_of(name, spec) if spec.value_key is None else spec.value_key


class _Partitions:
    """The row splits of records, as the partitions of a spec tell them."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._validate = spec.validate
        self._splits_of = _SPLITS if spec.validate else _SPLITS | {ValueRowIds: _from_row_ids}
        self._all = [(partition, _want(name, partition)) for partition in spec.partitions]
        self.wants = tuple(want for partition, want in self._all if not isinstance(partition, UniformRowLength))

    def read(self, columns: Sequence[Column], counts: Sequence[int]) -> list[list[_Ints]]:
        """Row splits of every partition, outermost first, of each record.

        Args:
            columns: Of what is wanted.
            counts: How many values each record has.

        Raises:
            ParseError: They do not fit the values.
            LimitExceededError: A few row ids stand for a huge number of rows.
        """
        bounds = [column.bounds() for column in columns]

        def one(row: int) -> list[_Ints]:
            places = zip(columns, bounds, strict=True)
            return self._levels([column.values[slice(*places[row])] for column, places in places], counts[row])

        return read_each(one, range(len(counts)))

    def _levels(self, stored: list[_Ints], count: int) -> list[_Ints]:
        levels: list[_Ints] = []
        for partition, want in reversed(self._all):
            own = _NOTHING if isinstance(partition, UniformRowLength) else stored.pop()
            levels.insert(0, labelled(want, self._splits, partition, own, count))
            count = len(levels[0]) - 1
        return levels if self._validate else _trimmed(levels)

    def _splits(self, partition: Partition, stored: _Ints, count: int) -> _Ints:
        splits = self._splits_of[type(partition)](partition, stored, count)
        if not self._validate:
            return _clipped(splits, count)
        _check(splits, count)
        return splits

    def read_together(self, columns: Sequence[Column], ends: _Ints) -> tuple[_Ints, _Ints] | None:
        """Of one partition by lengths or splits the row splits of all records together: of records to rows, of rows to
        values. None where they do not fit, or for other partitions.

        Args:
            columns: Of what is wanted.
            ends: Where each record's values begin and end.
        """
        if not self._validate or len(self._all) != 1 or type(self._all[0][0]) not in (RowLengths, RowSplits):
            return None
        stored, bounds = columns[0].values, columns[0].offsets
        if isinstance(self._all[0][0], RowSplits):
            return _splits_together(stored, bounds, ends)
        splits = np.concatenate([[0], np.clip(stored, -1, _MAX_LENGTH).cumsum()])
        return None if (stored < 0).any() or (splits[bounds] != ends).any() else (bounds, splits)


def _splits_together(stored: _Ints, bounds: _Ints, ends: _Ints) -> tuple[_Ints, _Ints] | None:
    sizes = np.diff(bounds)
    if not sizes.all():
        return None  # a missing list is no rows
    splits = np.concatenate([[0], np.delete(stored + np.repeat(ends[:-1], sizes), bounds[:-1])])
    rows = np.concatenate([[0], (sizes - 1).cumsum()])
    fits = not stored[bounds[:-1]].any() and (splits[rows] == ends).all() and (splits[1:] >= splits[:-1]).all()
    return (rows, splits) if fits else None


def _want(name: str, partition: Partition) -> Want:
    key = name if isinstance(partition, UniformRowLength) else vars(partition)["key"]
    return Want(name, key, INT64_LIST, type(partition).__name__)


def _invalid(reason: str) -> ParseError:
    return ParseError(f"the rows and the values do not form a valid RaggedTensor: {reason}")


def _from_splits(partition: Partition, stored: _Ints, count: int) -> _Ints:
    return stored if len(stored) else np.zeros(1, np.int64)  # a missing list is no rows


def _from_lengths(partition: Partition, stored: _Ints, count: int) -> _Ints:
    # Bounded before they are added up, since a sum that wraps around might look right.
    return np.concatenate([[0], np.clip(stored, -_MAX_LENGTH, _MAX_LENGTH).cumsum()])


def _from_starts(partition: Partition, stored: _Ints, count: int) -> _Ints:
    return np.append(stored, count)


def _from_limits(partition: Partition, stored: _Ints, count: int) -> _Ints:
    return np.concatenate([[0], stored])


def _from_row_ids(partition: Partition, stored: _Ints, count: int) -> _Ints:
    if len(stored) != count:
        raise _invalid(f"expected {count} row ids, one for each value, got {len(stored)}")
    if count and stored.min() < 0:
        raise _invalid(f"expected row ids of at least 0, got {stored.min()}")
    rows = int(stored.max()) + 1 if count else 0
    if rows > max(_MAX_EMPTY_ROWS, count):
        raise LimitExceededError(f"{count} row ids stand for {rows} rows, more than the limit of {_MAX_EMPTY_ROWS}")
    reserve((rows + 1) * 8)
    splits = np.zeros(rows + 1, np.int64)
    np.bincount(stored, minlength=rows).cumsum(out=splits[1:])
    return splits


def _from_sorted_row_ids(partition: Partition, stored: _Ints, count: int) -> _Ints:
    if (stored[1:] < stored[:-1]).any():
        raise _invalid("expected row ids that never decrease")
    return _from_row_ids(partition, stored, count)


def _from_uniform(partition: Partition, stored: _Ints, count: int) -> _Ints:
    length = vars(partition)["length"]
    if count % length:
        raise _invalid(f"expected a multiple of {length} values or rows, got {count}")
    return np.arange(0, count + 1, length, dtype=np.int64)


_SPLITS: dict[type[Partition], Callable[[Partition, _Ints, int], _Ints]] = {
    RowLengths: _from_lengths,
    RowLimits: _from_limits,
    RowSplits: _from_splits,
    RowStarts: _from_starts,
    UniformRowLength: _from_uniform,
    ValueRowIds: _from_sorted_row_ids,
}


def _check(splits: _Ints, count: int) -> None:
    if splits[0] != 0:
        raise _invalid(f"expected the first row to start at 0, got {splits[0]}")
    if (splits[1:] < splits[:-1]).any():
        raise _invalid("expected row ends that never decrease, got a row of negative length")
    if splits[-1] != count:
        raise _invalid(f"expected rows that end at {count}, got {splits[-1]}")


def _clipped(splits: _Ints, count: int) -> _Ints:
    """The rows that slicing gives: within the values, and never of negative length."""
    clipped = np.maximum.accumulate(np.clip(splits, 0, count))
    clipped[0] = 0
    return clipped


def _trimmed(levels: list[_Ints]) -> list[_Ints]:
    """Leave out rows at the end of a dimension that no row of the outer one has."""
    for outer, inner in pairwise(range(len(levels))):
        levels[inner] = levels[inner][: levels[outer][-1] + 1]
    return levels


def _num_uniform(partitions: Sequence[Partition]) -> int:
    """How many of the innermost partitions are uniform: they make a dense inner shape."""
    ragged = [number for number, one in enumerate(partitions, 1) if not isinstance(one, UniformRowLength)]
    return len(partitions) - max(ragged, default=0)


class RaggedNumbers:
    """Reads a RaggedFeature of numbers."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._want = list_want(name, value_key(name, spec), spec.dtype)
        self._partitions = _Partitions(name, spec)
        self.wants = (self._want, *self._partitions.wants)
        self._dtype = torch_dtype(spec.dtype)
        self._depth = len(spec.partitions) - _num_uniform(spec.partitions)
        self._inner = tuple(vars(partition)["length"] for partition in spec.partitions[self._depth :])
        nothing = torch.empty(0, *self._inner, dtype=self._dtype)
        self.empty = Nested(nothing, (torch.zeros(1, dtype=torch.int64),) * self._depth)

    def read(self, columns: Sequence[Column]) -> Nested:
        """The batch's column: one ragged dimension more than a record has."""
        together = self._together(columns)
        if together is not None:
            return together
        parts = self.parts(columns)
        reserve_for(self._want, *needs(parts))
        return join_nested(parts, self.empty)

    def parts(self, columns: Sequence[Column]) -> list[Nested]:
        """The values of each record and their row splits."""
        bounds = columns[0].bounds()
        levels = self._partitions.read(columns[1:], [end - begin for begin, end in bounds])
        return [self._nested(columns[0].values[slice(*ends)], rows) for ends, rows in zip(bounds, levels, strict=True)]

    def _nested(self, values: Any, levels: list[_Ints]) -> Nested:
        if levels:
            values = values[: levels[-1][-1]]
        tensor = labelled(self._want, cast, values, self._dtype)
        if self._inner:
            tensor = tensor.reshape(len(tensor) // math.prod(self._inner), *self._inner)
        return Nested(tensor, tuple(torch.from_numpy(splits) for splits in levels[: self._depth]))

    def _together(self, columns: Sequence[Column]) -> Nested | None:
        """The values of all records, where no record needs to be looked at alone."""
        values, ends, _, _ = columns[0]
        if len(columns) == 1 and not self._inner:
            splits: tuple[_Ints, ...] | None = (ends,)
        else:
            splits = None if self._inner else self._partitions.read_together(columns[1:], ends)
        if splits is None:
            return None
        num_bytes = values.size * self._dtype.itemsize + 8 * sum(len(level) - 1 for level in splits[1:])
        reserve_for(self._want, num_bytes, ends)
        tensor = labelled(self._want, cast, values, self._dtype)
        return Nested(tensor, tuple(torch.from_numpy(level) for level in splits))


def needs(parts: Sequence[Nested]) -> tuple[int, _Ints]:
    """What parts need when they are joined, and where each would begin and end."""
    sizes = [part.values.nbytes + sum(8 * (len(splits) - 1) for splits in part.row_splits) for part in parts]
    return sum(sizes), np.cumsum([0, *sizes])


class RaggedStrings:
    """Reads a RaggedFeature of bytes or str: nested lists."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._want = list_want(name, value_key(name, spec), spec.dtype)
        self._partitions = _Partitions(name, spec)
        self.wants = (self._want, *self._partitions.wants)
        self._dtype = spec.dtype

    def read(self, columns: Sequence[Column]) -> list[Any]:
        """The batch's column: a list of N nested lists."""
        rows = string_rows(columns[0], self._want, self._dtype)
        levels = self._partitions.read(columns[1:], [*map(len, rows)])
        return read_each(lambda pair: self._nested(*pair), list(zip(rows, levels, strict=True)))

    def _nested(self, values: list[Any], levels: list[_Ints]) -> list[Any]:
        reserve_for(self._want, sum(map(len, levels)) * _LIST_BYTES)
        return split_lists(values, [splits.tolist() for splits in levels])
