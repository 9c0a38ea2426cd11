"""The partitions of RaggedFeature: each defines where rows begin and end, and which key of the
record holds that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.columns.dtypes import INT64_LIST, check_dimension, check_key
from torch_tfrecord.columns.reading import Column, Ints, Want, labelled, read_each
from torch_tfrecord.columns.tensors import MAX_FILL_BYTES
from torch_tfrecord.errors import LimitExceededError, ParseError

__all__ = [
    "Partition",
    "Partitions",
    "RowLengths",
    "RowLimits",
    "RowSplits",
    "RowStarts",
    "UniformRowLength",
    "ValueRowIds",
]


# A few row ids can imply more rows than the record has bytes.
_MAX_EMPTY_ROWS = MAX_FILL_BYTES // 8
# More than a record can hold, since protobuf limits messages to 2 GiB.
_MAX_LENGTH = 1 << 33
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, repr=False)
class Partition:
    """How the rows of one ragged dimension are stored; the base of the partition classes of
    :class:`RaggedFeature`.
    """

    def __repr__(self) -> str:
        """Show the Python code that builds it."""
        (value,) = vars(self).values()
        return f"RaggedFeature.{type(self).__name__}({value!r})"

    def row_splits(self, stored: Ints, count: int, *, validate: bool) -> Ints:
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


@dataclass(frozen=True, repr=False)
class RowSplits(_KeyPartition):
    """Key of the list of row splits, starting with 0: ``[0, 2, 2, 3]`` is rows of 2, 0 and 1
    values.
    """

    def _splits(self, stored: Ints, count: int) -> Ints:
        return stored if len(stored) else np.zeros(1, np.int64)  # a missing list means no rows


@dataclass(frozen=True, repr=False)
class RowLengths(_KeyPartition):
    """Key of the list of row lengths: ``[2, 0, 1]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        # Clipped before summing: a sum that overflows might look right.
        return np.concatenate([[0], np.clip(stored, -_MAX_LENGTH, _MAX_LENGTH).cumsum()])


@dataclass(frozen=True, repr=False)
class RowStarts(_KeyPartition):
    """Key of the list of row starts: ``[0, 2, 2]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        return np.append(stored, count)


@dataclass(frozen=True, repr=False)
class RowLimits(_KeyPartition):
    """Key of the list of row ends: ``[2, 2, 3]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        return np.concatenate([[0], stored])


@dataclass(frozen=True, repr=False)
class ValueRowIds(_KeyPartition):
    """Key of the list of each value's row: ``[0, 0, 2]``."""

    def _splits(self, stored: Ints, count: int) -> Ints:
        if len(stored) != count:
            raise _invalid(f"expected {count} row ids, one per value, got {len(stored)}")
        if count and stored.min() < 0:
            raise _invalid(f"expected row ids of at least 0, got {stored.min()}")
        rows = int(stored.max()) + 1 if count else 0
        if rows > max(_MAX_EMPTY_ROWS, count):
            raise LimitExceededError(
                f"{count} row ids imply {rows} rows, more than the limit of {_MAX_EMPTY_ROWS}"
            )
        reserve((rows + 1) * 8)
        splits = np.zeros(rows + 1, np.int64)
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


class Partitions:
    """Reads the row splits of records.

    Args:
        name: Name of the output.
        partitions: The partitions of the spec, outermost first.
        validate: See `Partition.row_splits`.

    Attributes:
        wants: The wants of the partitions that have a key.
    """

    def __init__(self, name: str, partitions: Sequence[Partition], *, validate: bool) -> None:
        self._validate = validate
        keys = [one.key if isinstance(one, _KeyPartition) else name for one in partitions]
        wants = [
            Want(name, key, INT64_LIST, type(one).__name__)
            for key, one in zip(keys, partitions, strict=True)
        ]
        self._all = list(zip(partitions, wants, strict=True))
        self.wants = tuple(
            want for partition, want in self._all if isinstance(partition, _KeyPartition)
        )

    def read(self, columns: Sequence[Column], counts: Sequence[int]) -> list[list[Ints]]:
        """The row splits of every partition, outermost first, for each record.

        Args:
            columns: The wanted columns.
            counts: Number of values in each record.

        Raises:
            TFRecordError: See `Partition.row_splits`.
        """
        bounds = [column.bounds() for column in columns]

        def one(row: int) -> list[Ints]:
            places = zip(columns, bounds, strict=True)
            return self._levels(
                [column.values[slice(*places[row])] for column, places in places], counts[row]
            )

        return read_each(one, range(len(counts)))

    def _levels(self, stored: list[Ints], count: int) -> list[Ints]:
        levels: list[Ints] = []
        for partition, want in reversed(self._all):
            own = stored.pop() if isinstance(partition, _KeyPartition) else _NOTHING
            levels.insert(0, labelled(want, self._row_splits, partition, own, count))
            count = len(levels[0]) - 1
        if not self._validate:  # drop trailing rows that belong to no row of the outer dimension
            for outer, inner in pairwise(range(len(levels))):
                levels[inner] = levels[inner][: levels[outer][-1] + 1]
        return levels

    def _row_splits(self, partition: Partition, stored: Ints, count: int) -> Ints:
        return partition.row_splits(stored, count, validate=self._validate)

    def read_together(self, columns: Sequence[Column], ends: Ints) -> tuple[Ints, ...] | None:
        """The row splits of all records at once, for a single RowLengths or RowSplits: records to
        rows, rows to values.

        None if they do not fit, or for other partitions.

        Args:
            columns: The wanted columns.
            ends: Where each record's values begin and end.
        """
        if (
            not self._validate
            or len(self._all) != 1
            or type(self._all[0][0]) not in (RowLengths, RowSplits)
        ):
            return None
        stored, bounds = columns[0].values, columns[0].offsets
        if isinstance(self._all[0][0], RowSplits):
            return _splits_together(stored, bounds, ends)
        splits = np.concatenate([[0], np.clip(stored, -1, _MAX_LENGTH).cumsum()])
        return None if (stored < 0).any() or (splits[bounds] != ends).any() else (bounds, splits)


def _splits_together(stored: Ints, bounds: Ints, ends: Ints) -> tuple[Ints, Ints] | None:
    sizes = np.diff(bounds)
    if not sizes.all():
        return None  # a missing list means no rows
    splits = np.concatenate([[0], np.delete(stored + np.repeat(ends[:-1], sizes), bounds[:-1])])
    rows = np.concatenate([[0], (sizes - 1).cumsum()])
    fits = (
        not stored[bounds[:-1]].any()
        and (splits[rows] == ends).all()
        and (splits[1:] >= splits[:-1]).all()
    )
    return (rows, splits) if fits else None
