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
from torch_tfrecord.features.specs import mark_ragged
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
from torch_tfrecord.parsing.columns import (
    Column,
    Want,
    jagged_column,
    jagged_rows,
    join,
    key_of,
    labelled,
    list_lookup,
    read_each,
    reserve_for,
    string_rows,
    strings,
    torch_dtype,
)
from torch_tfrecord.parsing.lookup import Lookup
from torch_tfrecord.protobuf.example import to_array
from torch_tfrecord.values.containers import Nested, join_nested, split_lists, wrap_nested
from torch_tfrecord.values.dtypes import INT64_LIST, cast
from torch_tfrecord.values.tensors import MAX_FILL_BYTES

__all__ = ["Partitions", "RaggedNumbers", "RaggedStrings", "needs", "value_key"]

_Ints: TypeAlias = "npt.NDArray[np.int64]"

# Row ids alone can stand for more rows than the record has bytes.
_MAX_EMPTY_ROWS = MAX_FILL_BYTES // 8
_LIST_BYTES = 112  # of an empty list among others, and where it ends
# More than a record can hold, since protobuf reads no message from 2 GiB on.
_MAX_LENGTH = 1 << 33


def value_key(name: str, spec: RaggedFeature) -> str:
    """Name in the record of the values."""
    return key_of(name, spec) if spec.value_key is None else spec.value_key


class Partitions:
    """The row splits of one record, as the partitions of a spec tell them."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._validate = spec.validate
        self._splits_of = _SPLITS if spec.validate else _SPLITS | {ValueRowIds: _from_row_ids}
        self._all = [(partition, _lookup(name, partition)) for partition in spec.partitions]

    def read(self, record: Any, num_values: int) -> list[_Ints]:
        """Row splits of every partition, outermost first.

        Raises:
            ParseError: They do not fit the values.
            LimitExceededError: A few row ids stand for a huge number of rows.
        """
        levels: list[_Ints] = []
        count = num_values
        for partition, lookup in reversed(self._all):
            stored = _stored(partition, lookup, record)
            levels.insert(0, labelled(lookup, self._splits, partition, stored, count))
            count = len(levels[0]) - 1
        return levels if self._validate else _trimmed(levels)

    def _splits(self, partition: Partition, stored: _Ints, count: int) -> _Ints:
        splits = self._splits_of[type(partition)](partition, stored, count)
        if not self._validate:
            return _clipped(splits, count)
        _check(splits, count)
        return splits


def _lookup(name: str, partition: Partition) -> Lookup:
    key = name if isinstance(partition, UniformRowLength) else vars(partition)["key"]
    return Lookup(name, key, INT64_LIST, type(partition).__name__)


def _stored(partition: Partition, lookup: Lookup, record: Any) -> _Ints:
    found = None if isinstance(partition, UniformRowLength) else lookup.find(record)
    return np.zeros(0, np.int64) if found is None else to_array(found).astype(np.int64, copy=False)


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


def _wants(lookup: Lookup, spec: RaggedFeature) -> tuple[Want, ...] | None:
    """What a spec without partitions wants: it reads as a VarLenFeature does. Partitions are read one by one."""
    return None if spec.partitions else (Want(lookup.key, lookup.kind, None, False),)


class RaggedNumbers:
    """Reads a RaggedFeature of numbers."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._lookup = list_lookup(name, value_key(name, spec), spec.dtype)
        self.wants = _wants(self._lookup, spec)
        self._dtype = torch_dtype(spec.dtype)
        self._partitions = Partitions(name, spec)
        self._depth = len(spec.partitions) - _num_uniform(spec.partitions)
        self._inner = tuple(vars(partition)["length"] for partition in spec.partitions[self._depth :])
        self.empty = self.nested({})

    def sample(self, record: Any) -> Any:
        """The rows of one record."""
        value = wrap_nested(self.nested(record))
        return value if self._depth else mark_ragged(value)

    def batch(self, records: Sequence[Any]) -> Any:
        """The rows of several records: one ragged dimension more."""
        parts = read_each(self.nested, records)
        reserve_for(self._lookup, *needs(parts))
        return wrap_nested(join_nested(parts, self.empty))

    def from_columns(self, columns: Sequence[Column]) -> Any:
        """The rows of several records, from the compiled core."""
        return jagged_column(columns[0], self._dtype)

    def rows(self, columns: Sequence[Column]) -> list[torch.Tensor]:
        """The values of several records, from the compiled core."""
        return jagged_rows(columns[0], self._dtype)

    def nested(self, record: Any) -> Nested:
        """The values of one record and their row splits."""
        found = self._lookup.find(record)
        values = join([] if found is None else [found], self._dtype)
        levels = self._partitions.read(record, len(values))
        if levels:
            values = values[: levels[-1][-1]]
        tensor = labelled(self._lookup, cast, values, self._dtype)
        if self._inner:
            tensor = tensor.reshape(len(tensor) // math.prod(self._inner), *self._inner)
        return Nested(tensor, tuple(torch.from_numpy(splits) for splits in levels[: self._depth]))


def needs(parts: Sequence[Nested]) -> tuple[int, list[int]]:
    """What parts need when they are joined, and how large each is."""
    sizes = [part.values.nbytes + sum(8 * (len(splits) - 1) for splits in part.row_splits) for part in parts]
    return sum(sizes), sizes


class RaggedStrings:
    """Reads a RaggedFeature of bytes or str: nested lists."""

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._lookup = list_lookup(name, value_key(name, spec), spec.dtype)
        self.wants = _wants(self._lookup, spec)
        self._dtype = spec.dtype
        self._partitions = Partitions(name, spec)

    def sample(self, record: Any) -> list[Any]:
        """The rows of one record."""
        found = self._lookup.find(record)
        values = [] if found is None else strings(self._lookup, found, self._dtype)
        levels = self._partitions.read(record, len(values))
        reserve_for(self._lookup, sum(map(len, levels)) * _LIST_BYTES)
        return split_lists(values, [splits.tolist() for splits in levels])

    def batch(self, records: Sequence[Any]) -> list[Any]:
        """The rows of several records."""
        return read_each(self.sample, records)

    def from_columns(self, columns: Sequence[Column]) -> list[Any]:
        """The rows of several records, from the compiled core."""
        return string_rows(columns[0], self._dtype)

    def rows(self, columns: Sequence[Column]) -> list[Any]:
        """The values of several records, from the compiled core."""
        return self.from_columns(columns)
