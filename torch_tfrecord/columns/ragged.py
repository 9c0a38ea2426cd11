"""The specs of values and of what places them, each at a key of its own: RaggedFeature (the partitions
that define rows) and SparseFeature (indices), and their readers.

Each partition defines where the rows of one dimension begin and end, and which key of the record
holds that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise, takewhile
from typing import ClassVar

import numpy as np
import torch

from torch_tfrecord.batch_memory import NO_INTS, Ints, reserve, splits_of
from torch_tfrecord.columns.containers import (
    Nested,
    SparseList,
    make_sparse,
    split_lists,
)
from torch_tfrecord.columns.dtypes import (
    MAX_INT64,
    DType,
    cast_array,
    check_dimension,
    check_key,
    check_list_dtype,
    fixed_shape,
)
from torch_tfrecord.columns.feature import Feature, Layout
from torch_tfrecord.columns.lists import ListSteps, VarLenReader
from torch_tfrecord.columns.reading import (
    Column,
    Reader,
    StepReader,
    Want,
    labelled,
    reserve_for,
)
from torch_tfrecord.columns.tensors import MAX_FILL_BYTES
from torch_tfrecord.errors import LimitExceededError, ParseError, read_each
from torch_tfrecord.samples import Value

__all__ = ["RaggedFeature", "SparseFeature"]

_LIST_BYTES = 112  # an empty list's: its slot in the outer list, and its row split
# A few row ids can imply more rows than the record has bytes.
_MAX_EMPTY_ROWS = MAX_FILL_BYTES // 8
# More than fits a record, since protobuf limits messages to 2 GiB.
_MAX_LENGTH = 1 << 33


@dataclass(frozen=True, repr=False)
class Partition:
    """How the rows of one ragged dimension are stored; the base of the partition classes of
    :class:`RaggedFeature`.
    """

    def __repr__(self) -> str:
        """Show the Python code that builds it."""
        (value,) = vars(self).values()
        return f"RaggedFeature.{type(self).__name__}({value!r})"

    def row_splits(self, stored: Ints, count: int, validate: bool) -> Ints:
        """The row splits of one record.

        Args:
            stored: The integers at the partition's key.
            count: Number of values in the rows.
            validate: Whether splits that do not fit the values are an error; else rows end where
                the values end.

        Raises:
            ParseError: The splits do not fit the values.
            LimitExceededError: A few row ids imply a huge number of rows.
        """
        if validate:
            self._check_order(stored)
        splits = self._splits(stored, count)
        if validate:
            _check(splits, count)
            return splits
        # The rows that slicing would give: within the values, never of negative length.
        clipped = np.maximum.accumulate(np.clip(splits, 0, count))
        clipped[0] = 0
        return clipped

    def _splits(self, stored: Ints, count: int) -> Ints:
        raise NotImplementedError

    def _check_order(self, stored: Ints) -> None:
        """Raise for stored values that are invalid regardless of the splits."""


@dataclass(frozen=True, repr=False)
class _KeyPartition(Partition):
    key: str

    def __post_init__(self) -> None:
        """Check the key."""
        check_key("key", self.key)


class RowSplits(_KeyPartition):
    """Key of the list of row splits, starting with 0: ``[0, 2, 2, 3]`` is rows of 2, 0 and 1
    values.
    """

    def _splits(self, stored: Ints, count: int) -> Ints:
        return stored if len(stored) else np.zeros(1, np.int64)  # a missing list means no rows


class RowLengths(_KeyPartition):
    """Key of the list of row lengths: ``[2, 0, 1]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        # Clipped before summing: a sum that overflows might look right.
        return splits_of(np.clip(stored, -_MAX_LENGTH, _MAX_LENGTH))


class RowStarts(_KeyPartition):
    """Key of the list of row starts: ``[0, 2, 2]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        # The last row ends where the values end.
        return np.append(stored, count)


class RowLimits(_KeyPartition):
    """Key of the list of row ends: ``[2, 2, 3]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        return np.concatenate([[0], stored])


class ValueRowIds(_KeyPartition):
    """Key of the list of each value's row: ``[0, 0, 2]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        if len(stored) != count:
            raise _invalid(f"expected {count} row ids, one per value, got {len(stored)}")
        if count and stored.min() < 0:
            raise _invalid(f"expected row ids of at least 0, got {stored.min()}")
        # The last id alone says how many rows there are: the format has no other number for that.
        rows = int(stored.max()) + 1 if count else 0
        if rows > max(_MAX_EMPTY_ROWS, count):
            raise LimitExceededError(
                f"{count} row ids imply {rows} rows, more than the limit of {_MAX_EMPTY_ROWS}"
            )
        reserve((rows + 1) * 8)
        splits = np.zeros(rows + 1, np.int64)
        # How many values have each id is the length of that row.
        np.bincount(stored, minlength=rows).cumsum(out=splits[1:])
        return splits

    def _check_order(self, stored: Ints) -> None:
        if (stored[1:] < stored[:-1]).any():
            raise _invalid("expected row ids that never decrease")


@dataclass(frozen=True, repr=False)
class UniformRowLength(Partition):
    """All rows have this many values."""

    length: int

    def __post_init__(self) -> None:
        """Check the length."""
        length = check_dimension(self.length)
        # Rows of 0 values would leave open how many of them there are.
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        object.__setattr__(self, "length", length)

    def _splits(self, stored: Ints, count: int) -> Ints:
        if count % self.length:
            raise _invalid(f"expected a multiple of {self.length} values or rows, got {count}")
        return np.arange(0, count + 1, self.length, dtype=np.int64)


def _invalid(reason: str) -> ParseError:
    return ParseError(f"the rows and the values do not form a valid RaggedTensor: {reason}")


def _check(splits: Ints, count: int) -> None:
    if splits[0] != 0:
        raise _invalid(f"expected the first row to start at 0, got {splits[0]}")
    if (splits[1:] < splits[:-1]).any():
        raise _invalid("expected row ends that never decrease, got a row of negative length")
    if splits[-1] != count:
        raise _invalid(f"expected rows that end at {count}, got {splits[-1]}")


@dataclass(frozen=True, repr=False)
class RaggedFeature(Feature):
    """Values in rows of different lengths, optionally nested.

    A sample is a 1-D tensor without partitions, a dense tensor with only uniform partitions, a
    jagged nested tensor with one ragged dimension, and a :class:`RaggedTensor` with more. A batch
    or a feature list adds one ragged dimension. With dtype ``bytes`` or ``str``: nested lists.

    Args:
        dtype: See :class:`FixedLenFeature`.
        value_key: Name of the values in the record; None means the name of the output.
        partitions: How the values are split into rows, outermost dimension first:
            ``RaggedFeature.RowSplits(key)``, ``RowLengths(key)``, ``RowStarts(key)``,
            ``RowLimits(key)``, ``ValueRowIds(key)`` (the key of an int64_list in the record) or
            ``UniformRowLength(length)``.
        row_splits_dtype: ``torch.int32`` or ``torch.int64``, accepted so that TensorFlow specs port
            unchanged. Row splits are always int64, as in torch's jagged nested tensors, so they do
            not overflow.
        validate: Raise ParseError for partitions that do not fit the values. With False they are
            accepted as in TensorFlow, whose default is False: rows end where the values end.
        key: The same as ``value_key``.

    Raises:
        TypeError: The dtype is unknown, or a partition has the wrong type.
        ValueError: Another row_splits_dtype, a uniform length below 1, or different key and
            value_key.

    Example:
        >>> RaggedFeature(torch.int64, "values", [RaggedFeature.RowLengths("lengths")])
        RaggedFeature(torch.int64, value_key='values',
        partitions=(RaggedFeature.RowLengths('lengths'),))
    """

    RowSplits: ClassVar[type[RowSplits]] = RowSplits
    RowLengths: ClassVar[type[RowLengths]] = RowLengths
    RowStarts: ClassVar[type[RowStarts]] = RowStarts
    RowLimits: ClassVar[type[RowLimits]] = RowLimits
    ValueRowIds: ClassVar[type[ValueRowIds]] = ValueRowIds
    UniformRowLength: ClassVar[type[UniformRowLength]] = UniformRowLength

    _may_lack = True

    dtype: DType
    value_key: str | None = None
    partitions: tuple[Partition, ...] = ()
    row_splits_dtype: torch.dtype = torch.int64
    validate: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_list_dtype(self.dtype)
        if self.value_key is not None:
            check_key("value_key", self.value_key)
            if self.key not in (None, self.value_key):
                raise ValueError(
                    f"key and value_key must be equal, got {self.key!r} and {self.value_key!r}"
                )
        if self.row_splits_dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"row_splits_dtype must be torch.int32 or torch.int64, got {self.row_splits_dtype!r}"
            )
        object.__setattr__(self, "partitions", tuple(self.partitions))
        for partition in self.partitions:
            if not isinstance(partition, Partition):
                raise TypeError(
                    f"a partition must be RaggedFeature.RowSplits, RowLengths or the like, got {partition!r}"
                )

    def _key_of(self, name: str) -> str:
        """Name of the values in the record."""
        return super()._key_of(name) if self.value_key is None else self.value_key

    def _layout(self) -> Layout:
        return self.dtype, (None, *[None] * self._depth, *self._inner)

    @property
    def _inner(self) -> tuple[int, ...]:
        """Uniform innermost partitions become a dense inner shape."""
        lengths = (getattr(one, "length", 0) for one in reversed(self.partitions))
        return tuple(takewhile(bool, lengths))[::-1]

    @property
    def _depth(self) -> int:
        """How many partitions are outside that shape."""
        return len(self.partitions) - len(self._inner)

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        if self.partitions:
            return _RaggedReader(name, self)
        return VarLenReader(name, self)

    def _context_reader(self, name: str) -> Reader:
        """Build the reader for a context."""
        return self._reader(name)

    def _step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for feature lists, where each step has its own values and partitions."""
        return ListSteps(self._reader(name), validate=self.validate)


class _RaggedReader:
    """Reads a RaggedFeature: one more ragged dimension than a record has, or a list of N nested
    lists.
    """

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._spec, self._want = spec, Want(name, spec._key_of(name), spec.dtype)
        # A uniform length has no key, but errors of its rows need a label.
        self._partitions = [
            (one, Want(name, getattr(one, "key", name), torch.int64, type(one).__name__))
            for one in spec.partitions
        ]
        keyed = (want for one, want in self._partitions if isinstance(one, _KeyPartition))
        self.wants = (self._want, *keyed)

    def read(self, columns: Sequence[Column]) -> Nested | list[Value]:
        """The batch's column."""
        spec, dtype = self._spec, self._spec.dtype
        numbers, ends, _, _ = columns[0]
        strings = []
        if not isinstance(dtype, torch.dtype):
            strings = labelled(self._want, columns[0].strings, dtype)
        # A loop over the records takes far longer, and most features have one partition.
        splits = self._together(columns[1:], ends)
        if splits is None:
            counts = np.diff(ends)
            stored = [
                [column.values[begin:end] for begin, end in column.bounds()]
                for column in columns[1:]
            ]
            records = read_each(
                lambda row: self._levels([each[row] for each in stored], counts[row]),
                range(len(counts)),
            )
            lengths = zip(*([*map(np.diff, levels)] for levels in records), strict=True)
            splits = [
                splits_of([len(levels[0]) - 1 for levels in records]),
                *(splits_of(np.concatenate(each)) for each in lengths),
            ]
            # A batch without records takes its depth from here.
            splits += [np.zeros(1, np.int64)] * (1 + len(spec.partitions) - len(splits))
            if not spec.validate:  # values after the last row belong to none
                counts = np.array([levels[-1][-1] for levels in records], np.int64)
                kept = np.arange(counts.sum()) + np.repeat(
                    ends[:-1] - splits_of(counts)[:-1], counts
                )
                numbers = numbers[kept]
                strings = [strings[place] for place in kept] if strings else strings
        if not isinstance(dtype, torch.dtype):
            # A list takes many times the bytes of its split, so it counts before it is made.
            num_lists = sum(len(each) + len(ends) - 2 for each in splits[1:])
            reserve_for(self._want, num_lists * _LIST_BYTES, splits[0])
            return split_lists(strings, [each.tolist() for each in splits])
        # The splits between the records are left out: they are one number a record.
        del splits[spec._depth + 1 :]
        num_splits = sum(len(each) - 1 for each in splits[1:])
        reserve_for(self._want, numbers.size * dtype.itemsize + 8 * num_splits, splits[0])
        array = labelled(self._want, cast_array, numbers, dtype)
        if spec._inner:
            # Rows of one length need no splits: they are a dimension of the values.
            array = array.reshape(len(array) // math.prod(spec._inner), *spec._inner)
        return Nested(array, dtype, tuple(splits))

    def _together(self, columns: Sequence[Column], ends: Ints) -> list[Ints] | None:
        """The row splits of all records at once, for a single RowLengths or RowSplits: records to
        rows, rows to values.

        None if they do not fit, or for other partitions: those are read one by one, where the error
        says why.

        Args:
            columns: The columns of the partitions.
            ends: Where each record's values begin and end.
        """
        kinds = [*map(type, self._spec.partitions)]
        if not self._spec.validate or kinds not in ([RowLengths], [RowSplits]):
            return None
        lengths, rows = columns[0].values, columns[0].offsets
        if kinds == [RowSplits]:
            sizes = np.diff(rows)
            # A missing list means no rows, and the splits of each record begin at 0.
            if not sizes.all() or lengths[rows[:-1]].any():
                return None
            lengths, rows = np.delete(np.diff(lengths), rows[1:-1] - 1), splits_of(sizes - 1)
        # Clipped, so that no sum overflows to one that looks right.
        splits = splits_of(np.clip(lengths, -1, _MAX_LENGTH))
        # The rows of each record must end where its values end.
        return None if (lengths < 0).any() or (splits[rows] != ends).any() else [rows, splits]

    def _levels(self, stored: list[Ints], count: int) -> list[Ints]:
        """The row splits of every partition of a record, outermost first."""
        levels: list[Ints] = []
        validate = self._spec.validate
        # From the inside out: the rows of a partition are the values of the one around it.
        for partition, want in reversed(self._partitions):
            own = stored.pop() if isinstance(partition, _KeyPartition) else NO_INTS
            levels.insert(0, labelled(want, partition.row_splits, own, count, validate))
            count = len(levels[0]) - 1
        if not validate:  # drop trailing rows that belong to no row of the outer dimension
            for outer, inner in pairwise(range(len(levels))):
                levels[inner] = levels[inner][: levels[outer][-1] + 1]
        return levels


@dataclass(frozen=True, repr=False)
class SparseFeature(Feature):
    """The values of a sparse array and their indices.

    A sample is a ``torch.sparse_coo`` tensor of ``size``, a batch [B, *size]; with dtype ``bytes``
    or ``str``, a :class:`SparseList`. A record that lacks all the keys has no values.

    Args:
        index_key: Key of the int64_list of indices, or a list of keys, one per dimension of
            ``size``.
        value_key: Key of the values; as many as indices, else ParseError.
        dtype: See :class:`FixedLenFeature`.
        size: Size of the array, or a list of sizes.
        already_sorted: Keep the values in the stored order; by default they are sorted by index.
        key: Not supported; use index_key and value_key.
        validate: Raise ParseError for duplicate indices. False keeps both, as in TensorFlow, and
            torch adds them up when you make the tensor dense. An index out of range always raises
            ParseError, as torch would otherwise access memory out of bounds.

    Raises:
        TypeError: The dtype is unknown, or keys or sizes have another type.
        ValueError: The numbers of keys and sizes differ, a size is negative, or ``key`` is given.

    Example:
        >>> SparseFeature(["row", "column"], "value", torch.float32, [100, 3])
        SparseFeature(('row', 'column'), 'value', torch.float32, (100, 3))
    """

    _may_lack = True

    index_key: tuple[str, ...]
    value_key: str
    dtype: DType
    size: tuple[int, ...]
    already_sorted: bool = False
    _: KW_ONLY
    validate: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.key is not None:
            raise ValueError("key is not supported by SparseFeature: use index_key and value_key")
        keys = (self.index_key,) if isinstance(self.index_key, str) else tuple(self.index_key)
        for name, key in (*(("index_key", key) for key in keys), ("value_key", self.value_key)):
            check_key(name, key)
        check_list_dtype(self.dtype)
        size = fixed_shape(self.size)
        if len(size) != len(keys) or not keys:
            raise ValueError(
                f"index_key and size have to have equal lengths, at least 1, got {len(keys)} keys and {len(size)} sizes"
            )
        object.__setattr__(self, "index_key", keys)
        object.__setattr__(self, "size", size)

    def _layout(self) -> dict[str, Layout]:
        place = (len(self.size),) if len(self.size) > 1 else ()
        return {
            "indices": (torch.int64, (None, *place)),
            "values": (self.dtype, (None,)),
        }

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return _SparseReader(name, self)


class _SparseReader:
    """Reads a SparseFeature: [N, *size], with the record's number as first index."""

    def __init__(self, name: str, spec: SparseFeature) -> None:
        self._spec = spec
        self._values = Want(name, spec.value_key, spec.dtype)
        self._indices = [Want(name, key, torch.int64, "index") for key in spec.index_key]
        self.wants = (self._values, *self._indices)

    def read(self, columns: Sequence[Column]) -> torch.Tensor | SparseList:
        """The batch's column."""
        spec, ends = self._spec, columns[0].offsets
        shape = (len(ends) - 1, *spec.size)
        # torch counts the elements of a sparse tensor in an int64, too.
        if math.prod(shape) > MAX_INT64:
            raise LimitExceededError(
                f"{self._values.label}: shape {[*shape]} has more elements than an int64 counts"
            )
        for want, column, size in zip(self._indices, columns[1:], spec.size, strict=True):
            self._check(want, column, size, np.diff(ends))
        # The number of the record is the first index of each of its values.
        rows = np.repeat(np.arange(shape[0]), np.diff(ends))
        indices = np.stack([rows, *(column.values for column in columns[1:])])
        # lexsort sorts by the last key first.
        ascending = np.lexsort(indices[::-1])
        ordered = indices[:, ascending]
        # They are sorted, so duplicates are neighbours.
        repeated = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0).sum()
        if repeated and spec.validate:
            raise self._values.error(f"expected distinct indices, got {repeated} duplicates")
        order = np.arange(len(rows)) if spec.already_sorted else ascending
        place = torch.from_numpy(np.take(indices, order, axis=1))
        if isinstance(spec.dtype, torch.dtype):
            numbers = columns[0].values[order]
            return make_sparse(
                place, labelled(self._values, Column.cast, numbers, spec.dtype), shape
            )
        strings = labelled(self._values, columns[0].strings, spec.dtype)
        return make_sparse(place, [strings[number] for number in order], shape)

    def _check(self, want: Want, column: Column, size: int, counts: Ints) -> None:
        found = np.diff(column.offsets)
        if (found != counts).any():
            row = int((found != counts).argmax())
            raise want.error(
                f"Dimensions {found[row]} and {counts[row]} are not compatible: expected an index for each of the "
                f"{counts[row]} values of key {self._values.key!r}, got {found[row]}"
            )
        # Always checked, as torch reads and writes out of bounds otherwise.
        outside = column.values[(column.values < 0) | (column.values >= size)]
        if len(outside):
            raise want.error(f"expected indices from 0 to {size - 1}, got {outside[0]}")
