"""The RaggedFeature spec (values and the partitions that define their rows), and its readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.columns.containers import Nested, join_nested, split_lists
from torch_tfrecord.columns.dtypes import DType, cast, check_key, check_list_dtype
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.lists import VarLenSteps
from torch_tfrecord.columns.partitions import (
    Partition,
    Partitions,
    RowLengths,
    RowLimits,
    RowSplits,
    RowStarts,
    UniformRowLength,
    ValueRowIds,
)
from torch_tfrecord.columns.reading import (
    Column,
    Ints,
    Reader,
    StepColumn,
    StepReader,
    labelled,
    list_want,
    read_each,
    read_record,
    read_records,
    reserve_for,
)

__all__ = ["RaggedFeature"]

_LIST_BYTES = 112  # of an empty list, its slot in the outer list, and its row split


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

    def key_of(self, name: str) -> str:
        """Name of the values in the record."""
        return super().key_of(name) if self.value_key is None else self.value_key

    def reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return _RaggedReader(name, self)

    def context_reader(self, name: str) -> Reader:
        """Build the reader for a context."""
        return _RaggedReader(name, self)

    def step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for feature lists, where each step has its own values and partitions."""
        if self.partitions:
            return _RaggedSteps(_RaggedReader(name, self), validate=self.validate)
        return VarLenSteps(list_want(name, self.key_of(name), self.dtype), self.dtype)


class _RaggedReader:
    """Reads a RaggedFeature: one more ragged dimension than a record has, or a list of N nested
    lists.
    """

    def __init__(self, name: str, spec: RaggedFeature) -> None:
        self._want = list_want(name, spec.key_of(name), spec.dtype)
        self._partitions = Partitions(name, spec.partitions, validate=spec.validate)
        self.wants = (self._want, *self._partitions.wants)
        self._dtype = spec.dtype
        # Uniform innermost partitions become a dense inner shape.
        ragged = [
            number
            for number, one in enumerate(spec.partitions, 1)
            if not isinstance(one, UniformRowLength)
        ]
        self._depth = max(ragged, default=0)
        self._inner = tuple(
            one.length
            for one in spec.partitions[self._depth :]
            if isinstance(one, UniformRowLength)
        )

    def read(self, columns: Sequence[Column]) -> Nested | list[Any]:
        """The batch's column."""
        if not isinstance(self._dtype, torch.dtype):
            return self._strings(columns)
        together = self._together(columns, self._dtype)
        return self._one_by_one(columns, self._dtype) if together is None else together

    def _together(self, columns: Sequence[Column], dtype: torch.dtype) -> Nested | None:
        """The values of all records at once; None if records must be read one by one."""
        values, ends, _, _ = columns[0]
        if self._inner:
            return None
        splits = (ends,) if len(columns) == 1 else self._partitions.read_together(columns[1:], ends)
        if splits is None:
            return None
        num_bytes = values.size * dtype.itemsize + 8 * sum(len(level) - 1 for level in splits[1:])
        reserve_for(self._want, num_bytes, ends)
        tensor = labelled(self._want, cast, values, dtype)
        return Nested(tensor, tuple(map(torch.from_numpy, splits)))

    def _one_by_one(self, columns: Sequence[Column], dtype: torch.dtype) -> Nested:
        bounds = columns[0].bounds()
        levels = self._partitions.read(columns[1:], [end - begin for begin, end in bounds])
        pairs = zip(bounds, levels, strict=True)
        parts = [self._nested(columns[0].values[slice(*ends)], rows, dtype) for ends, rows in pairs]
        sizes = [
            part.values.nbytes + sum(8 * (len(splits) - 1) for splits in part.row_splits)
            for part in parts
        ]
        reserve_for(self._want, sum(sizes), np.cumsum([0, *sizes]))
        nothing = torch.empty(0, *self._inner, dtype=dtype)
        return join_nested(
            parts, Nested(nothing, (torch.zeros(1, dtype=torch.int64),) * self._depth)
        )

    def _nested(self, values: npt.NDArray[Any], levels: list[Ints], dtype: torch.dtype) -> Nested:
        if levels:
            values = values[: levels[-1][-1]]
        tensor = labelled(self._want, cast, values, dtype)
        if self._inner:
            tensor = tensor.reshape(len(tensor) // math.prod(self._inner), *self._inner)
        return Nested(tensor, tuple(map(torch.from_numpy, levels[: self._depth])))

    def _strings(self, columns: Sequence[Column]) -> list[Any]:
        rows = split_lists(
            labelled(self._want, columns[0].strings, self._dtype), [columns[0].offsets.tolist()]
        )
        levels = self._partitions.read(columns[1:], [*map(len, rows)])
        return read_each(lambda pair: self._nested_lists(*pair), zip(rows, levels, strict=True))

    def _nested_lists(self, values: list[Any], levels: list[Ints]) -> list[Any]:
        reserve_for(self._want, sum(map(len, levels)) * _LIST_BYTES)
        return split_lists(values, [splits.tolist() for splits in levels])


class _RaggedSteps(StepReader):
    """Reads the steps of a RaggedFeature: two more ragged dimensions than one step has, or nested
    lists.
    """

    def __init__(self, reader: Reader, *, validate: bool) -> None:
        super().__init__(*reader.wants)
        self._reader, self._validate = reader, validate

    def read(self, lists: Sequence[StepColumn], context: object) -> Nested | list[Any]:
        """The batch's column."""
        lengths = np.stack([np.diff(column.borders) for column in lists])
        self._check_lengths(lengths, np.stack([column.missing for column in lists]))
        borders = np.concatenate([[0], lengths.max(axis=0).cumsum()])
        columns = [_with_empty_steps(column, borders) for column in lists]
        alone = len(borders) == 2
        found = (
            read_record(self._reader, columns)
            if alone
            else read_records(self._reader, columns, borders)
        )
        if isinstance(found, list):
            return split_lists(found, [borders.tolist()])
        return Nested(found.values, (torch.from_numpy(borders), *found.row_splits))

    def _check_lengths(self, lengths: Ints, missing: npt.NDArray[np.uint8]) -> None:
        """Check that all feature lists in a record have the same length; missing ones are empty in
        every step.
        """
        wrong = ((lengths != lengths.max(axis=0)) & (missing == 0)).any(axis=0)
        if self._validate and wrong.any():
            row = wrong.argmax()
            each = zip(self.wants, lengths[:, row].tolist(), missing[:, row].tolist(), strict=True)
            found = {want.key: length for want, length, is_missing in each if not is_missing}
            raise self.wants[0].error(f"expected feature lists of equal length, got {found}")


def _with_empty_steps(column: StepColumn, borders: Ints) -> Column:
    """The steps, with empty steps appended to records that have fewer than their other lists."""
    steps, own, _ = column
    if (own == borders).all():
        return steps
    counts = np.zeros(borders[-1], np.int64)
    counts[np.arange(own[-1]) + np.repeat(borders[:-1] - own[:-1], np.diff(own))] = np.diff(
        steps.offsets
    )
    return steps._replace(offsets=np.concatenate([[0], counts.cumsum()]))
