"""Specs applied to records: several records to a batch of columns, one record to a sample, the row of a batch of one.

Where something is wrong with a batch its records are read again as batches of one, so that the error is the first bad
record's. What is wrong with one record is worded by protobuf's messages (``message_columns``).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes, reserve
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.features.columns import Column, Reader, read_columns, reserve_for
from torch_tfrecord.features.feature import (
    Feature,
    SequenceFeatures,
    make_context_reader,
    make_reader,
    make_step_reader,
)
from torch_tfrecord.features.rows import FixedLenSequenceFeature
from torch_tfrecord.features.steps import StepReader
from torch_tfrecord.parsing.column_plan import ColumnPlan
from torch_tfrecord.parsing.message_columns import read_one, read_steps
from torch_tfrecord.parsing.row_plan import RowPlan
from torch_tfrecord.parsing.sequence_plan import SequenceColumns, SequencePlan
from torch_tfrecord.protobuf.example import parse_message
from torch_tfrecord.protobuf.messages import SequenceExample
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.containers import Nested, wrap_nested
from torch_tfrecord.values.stacking import rows_of

__all__ = [
    "ExampleParser",
    "SequenceExampleParser",
    "make_parser",
]

_Bytes: TypeAlias = bytes | bytearray | memoryview
_Keys: TypeAlias = "npt.NDArray[np.uint64]"
_Values: TypeAlias = dict[str, Any]
_Sample = TypeVar("_Sample")
_Batch = TypeVar("_Batch")


class _Parser(Generic[_Sample, _Batch]):
    """What both parsers share: a batch reports the lowest position that fails."""

    needs_keys = False
    """Whether a spec draws at random, so that the records' keys make a difference."""

    def __init__(self, max_batch_bytes: int) -> None:
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)

    def budget(self, num_batches: int = 1) -> BatchBudget:
        """What so many batches may need; each ``with`` is another one."""
        return BatchBudget(self.max_batch_bytes * num_batches)

    def single(self, serialized: _Bytes, key: int = 0) -> _Sample:
        """Parse one record."""
        raise NotImplementedError

    def batch(self, records: Iterable[_Bytes], keys: _Keys | None = None) -> _Batch:
        """Parse several records into columns.

        Dense columns of one batch may be neighbours in one block of memory, which lives as long as any of them.

        Args:
            records: PackedRecords, which are not copied, or each record's bytes.
            keys: uint64 [N], a random key for each record: what specs that draw at random draw from. None is zeros.

        Raises:
            TFRecordError: Of the lowest record that fails; ``position`` is its number among these.
        """
        rows = _packed(records)
        return self.batches(rows, keys, (0, len(rows)))[0]

    def batches(self, records: PackedRecords, keys: _Keys | None, borders: Sequence[int]) -> list[_Batch]:
        """Several calls of :meth:`batch` at once.

        Args:
            records: The records of all batches, one behind the other.
            keys: As of :meth:`batch`, of all.
            borders: Where each batch begins, from 0 on, and where the last one ends.

        Raises:
            TFRecordError: As :meth:`batch`; ``position`` counts the records of all.
        """
        keys = _checked_keys(keys, len(records))
        try:
            return self._batches(records, keys, borders)
        except TFRecordError:
            for position, (row, key) in enumerate(zip(records, keys.tolist(), strict=True)):
                self._single_at(position, row, key)
            raise

    def _single_at(self, position: int, row: _Bytes, key: int) -> _Sample:
        try:
            return self.single(row, key)
        except TFRecordError as error:
            raise error.locate(position=position) from error.__cause__

    def _batches(self, rows: PackedRecords, keys: _Keys, borders: Sequence[int]) -> list[_Batch]:
        batches = []
        with self.budget(len(borders) - 1):
            found = self._plan.read(rows, borders)
        for columns, (begin, end) in zip(found, itertools.pairwise(borders), strict=True):
            try:
                with self.budget():
                    batches.append(self._read(columns, end - begin, keys[begin:end]))
            except LimitExceededError as error:
                error.position = None if error.position is None else error.position + begin
                raise
        return batches

    @functools.cached_property
    def _plan(self) -> Any:
        """Of which ``read`` gives the columns of several batches."""
        raise NotImplementedError

    def _read(self, found: Any, num_records: int, keys: _Keys) -> _Batch:
        """Read every feature of a batch from its columns."""
        raise NotImplementedError


class ExampleParser(_Parser[_Values, _Values]):
    """Reads records by a mapping of specs; built once, used for every record. Pickles; safe from several threads.

    Args:
        features: Name of the output -> spec.
        pads: Whether rows of a FixedLenSequenceFeature are padded in a batch, as TensorFlow does; else they are jagged.
        max_batch_bytes: What the values of a batch, or of a sample, may need; see `parse_example`.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty or None, or a spec cannot be read from an Example.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features.lists import FixedLenFeature
        >>> parser = ExampleParser({"a": FixedLenFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("0a0c0a0a0a016112051a030a0105"))
        {'a': tensor(5)}
    """

    def __init__(
        self, features: Mapping[str, Feature], *, pads: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
    ) -> None:
        super().__init__(max_batch_bytes)
        if features is None or (isinstance(features, Mapping) and not features):
            raise ValueError(f"Argument `features` cannot be None or empty, got {features!r}")
        if not isinstance(features, Mapping):
            raise TypeError(f"features must be a mapping of names to specs, got {type(features).__name__}")
        self.features: _Values = dict(features)
        self._pads = pads
        # Of samples, and of batches: they differ where rows are padded.
        self._use([make_reader(name, spec) for name, spec in self.features.items()])
        if pads and any(isinstance(spec, FixedLenSequenceFeature) for spec in self.features.values()):
            self._readers = [make_reader(name, spec, pads=True) for name, spec in self.features.items()]

    @classmethod
    def of_readers(cls, readers: Mapping[str, Reader], *, max_batch_bytes: int = MAX_BATCH_BYTES) -> ExampleParser:
        """A parser by readers of its caller's, who does not pickle it."""
        parser = cls.__new__(cls)
        _Parser.__init__(parser, max_batch_bytes)
        parser.features = dict(readers)
        parser._use([*readers.values()])
        return parser

    def _use(self, readers: list[Reader]) -> None:
        self._row_readers = self._readers = readers
        self._row_bytes = _row_bytes(readers)
        self.needs_keys = any(getattr(reader, "keyed", False) for reader in readers)

    def __reduce__(self) -> tuple[Callable[..., ExampleParser], tuple[dict[str, Feature]]]:
        """Pickle the specs; the readers are built again."""
        build = functools.partial(type(self), pads=self._pads, max_batch_bytes=self.max_batch_bytes)
        return build, (self.features,)

    def single(self, serialized: _Bytes, key: int = 0) -> _Values:
        """Parse one serialized Example; see `parse_single_example`.

        Args:
            serialized: The record's bytes.
            key: What specs that draw at random draw from, an unsigned number of 64 bits.
        """
        found = self._row_plan.read(serialized, key)
        if found is None:
            record = parse_message(serialized).features.feature
            with self.budget():
                found = [read_one(reader, record, key) for reader in self._row_readers]
        return dict(zip(self.features, found, strict=True))

    @functools.cached_property
    def _plan(self) -> ColumnPlan:
        return ColumnPlan(self._readers)

    @functools.cached_property
    def _row_plan(self) -> RowPlan:
        return RowPlan(self._row_readers, self.budget)

    def _read(self, columns: Sequence[Sequence[Column]], num_records: int, keys: _Keys) -> _Values:
        """Read every feature from its columns."""
        _reserve(self._readers, self._row_bytes, num_records)
        values: _Values = {}
        for name, reader, found in zip(self.features, self._readers, columns, strict=True):
            column = read_columns(reader, found, keys) if self.needs_keys else reader.read(found)
            values[name] = _wrapped(column)
        return values


class SequenceExampleParser(_Parser[tuple[_Values, _Values], Any]):
    """As :class:`ExampleParser`, for SequenceExamples.

    Args:
        context_features: Name of the output -> spec, for the context.
        sequence_features: Name of the output -> spec, for the feature lists.
        pads: Whether batches are those of `parse_sequence_example`, padded, with the numbers of steps; else they are
            what `collate` makes of samples, or the list of them where it has to decide.
        max_batch_bytes: As of :class:`ExampleParser`.

    Raises:
        TypeError: One of them is not a mapping of str to specs.
        ValueError: Both are None or empty, or a spec cannot be read from a context or a feature list.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features.rows import FixedLenSequenceFeature
        >>> parser = SequenceExampleParser(None, {"x": FixedLenSequenceFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("120e0a0c0a017812070a051a030a0105"))
        ({}, {'x': tensor([5])})
    """

    def __init__(
        self,
        context_features: Mapping[str, Feature] | None = None,
        sequence_features: Mapping[str, Feature] | None = None,
        *,
        pads: bool = True,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(max_batch_bytes)
        self.features = SequenceFeatures(context_features, sequence_features)
        context, steps = self.features.context_features or {}, self.features.sequence_features or {}
        self._pads = pads
        self._context = {name: make_context_reader(name, spec) for name, spec in context.items()}
        self._row_bytes = _row_bytes([*self._context.values()])
        self._steps = {name: make_step_reader(name, spec) for name, spec in steps.items()}
        self._counted = [name for name, spec in steps.items() if isinstance(spec, FixedLenSequenceFeature)]

    def __reduce__(self) -> tuple[Callable[..., SequenceExampleParser], tuple[Any, Any]]:
        """Pickle the specs; the readers are built again."""
        build = functools.partial(type(self), pads=self._pads, max_batch_bytes=self.max_batch_bytes)
        return build, (self.features.context_features, self.features.sequence_features)

    def single(self, serialized: _Bytes, key: int = 0) -> tuple[_Values, _Values]:
        """Parse one serialized SequenceExample; see `parse_single_sequence_example`."""
        sample = self._compiled(serialized)
        if sample is not None:
            return sample
        message = parse_message(serialized, SequenceExample)
        with self.budget():
            return (
                {name: read_one(reader, message.context.feature) for name, reader in self._context.items()},
                {name: read_steps(reader, message) for name, reader in self._steps.items()},
            )

    def _compiled(self, serialized: _Bytes) -> tuple[_Values, _Values] | None:
        """One sample by the compiled core; None where it cannot, or something is wrong: messages word that."""
        if not self._plan.is_compiled or not isinstance(serialized, (bytes, bytearray, memoryview)):
            return None
        try:
            record, found = self._plan.read_one(serialized)
            with self.budget():
                context = self._row_plan.read(record, 0) if self._context else ()
                lists = zip(self._steps.values(), found.lists, found.sizes, strict=True)
                sequences = [rows_of(reader.read(columns, sizes))[0] for reader, columns, sizes in lists]
        except TFRecordError:
            return None
        if context is None:
            return None
        return dict(zip(self._context, context, strict=True)), dict(zip(self._steps, sequences, strict=True))

    @functools.cached_property
    def _plan(self) -> SequencePlan:
        return SequencePlan([*self._context.values()], [*self._steps.values()])

    @functools.cached_property
    def _row_plan(self) -> RowPlan:
        return RowPlan([*self._context.values()], self.budget)

    @functools.cached_property
    def _padded(self) -> dict[str, StepReader]:
        specs = self.features.sequence_features or {}
        return {name: make_step_reader(name, spec, pads=True) for name, spec in specs.items()}

    def _read(self, found: SequenceColumns, num_records: int, keys: _Keys) -> tuple[_Values, ...]:
        _reserve([*self._context.values()], self._row_bytes, num_records)
        readers = zip(self._context.items(), found.context, strict=True)
        context = {name: _wrapped(reader.read(columns)) for (name, reader), columns in readers}
        steps = zip((self._padded if self._pads else self._steps).items(), found.lists, found.sizes, strict=True)
        sequences = {name: _wrapped(reader.read(columns, sizes)) for (name, reader), columns, sizes in steps}
        if not self._pads:
            return context, sequences
        lists = dict(zip(self._steps, found.lists, strict=True))
        lengths = {name: torch.from_numpy(np.diff(lists[name][0].borders)) for name in self._counted}
        return context, sequences, lengths

    def scalar(self, serialized: _Bytes) -> tuple[_Values, _Values, dict[str, torch.Tensor]]:
        """One record as a batch without the batch dimension, as TensorFlow gives it."""
        context, sequences = self.single(serialized)
        return context, sequences, {name: torch.tensor(len(sequences[name])) for name in self._counted}


def make_parser(
    features: Mapping[str, Feature] | SequenceFeatures, *, pads: bool = True, max_batch_bytes: int = MAX_BATCH_BYTES
) -> ExampleParser | SequenceExampleParser:
    """The parser of the records that ``features`` speaks of.

    Raises:
        TypeError, ValueError: As the parsers' own.
    """
    if isinstance(features, SequenceFeatures):
        own = features.context_features, features.sequence_features
        return SequenceExampleParser(*own, pads=pads, max_batch_bytes=max_batch_bytes)
    return ExampleParser(features, pads=pads, max_batch_bytes=max_batch_bytes)


def _row_bytes(readers: Sequence[Reader]) -> int:
    return sum(getattr(reader, "row_bytes", 0) for reader in readers)


def _reserve(readers: Sequence[Reader], row_bytes: int, num_records: int) -> None:
    """Reserve what columns of numbers need, at once; where it is too much one by one, for the error's label."""
    try:
        reserve(num_records * row_bytes)
    except LimitExceededError:
        for reader in readers:
            reserve_for(reader.wants[0], num_records * _row_bytes([reader]))
        raise


def _wrapped(column: Any) -> Any:
    return wrap_nested(column) if type(column) is Nested else column


def _packed(records: Any) -> PackedRecords:
    if isinstance(records, PackedRecords):
        return records
    fixed_width = isinstance(records, np.ndarray) and records.dtype.kind == "S"  # drops trailing NULs
    if fixed_width or isinstance(records, (bytes, bytearray, memoryview, str)):
        raise TypeError("serialized must be a list of the records' bytes")
    rows = list(records)
    for position, row in enumerate(rows):
        if not isinstance(row, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"Expected serialized to be a scalar or vector: a list of bytes, got {type(row).__name__} at {position}"
            )
    parts = [row if isinstance(row, bytes) else bytes(row) for row in rows]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return PackedRecords(b"".join(parts), ends[:-1], np.diff(ends))


def _checked_keys(keys: _Keys | None, num_records: int) -> _Keys:
    if keys is None:
        return np.zeros(num_records, np.uint64)
    if len(keys) != num_records:
        raise ValueError(f"expected a key for each of {num_records} records, got {len(keys)}")
    return np.asarray(keys, np.uint64)
