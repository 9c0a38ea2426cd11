"""Specs applied to messages: one record to a sample, several records to a batch of columns.

Batches of Examples are read by the compiled core where there is one, the records are plain and nothing is wrong with
them; all else goes through protobuf's messages, with the same values, and it is there that errors get their words.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes, reserve
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.features.specs import Feature
from torch_tfrecord.features.structured_specs import SequenceFeatures
from torch_tfrecord.parsing.column_plan import ColumnPlan
from torch_tfrecord.parsing.columns import Column
from torch_tfrecord.parsing.spec_readers import make_context_reader, make_reader, make_step_counter, make_step_reader
from torch_tfrecord.protobuf.example import parse_message
from torch_tfrecord.protobuf.messages import SequenceExample
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = [
    "ExampleParser",
    "SequenceExampleParser",
    "make_parser",
]

# Fewer records than this are read faster one by one than taken out of columns.
_FEW_RECORDS = 4

_Bytes: TypeAlias = bytes | bytearray | memoryview
_Keys: TypeAlias = "npt.NDArray[np.uint64]"
# The method of a reader by which it is read.
_Reading: TypeAlias = Callable[[Any], Callable[..., Any]]
_FROM_COLUMNS: _Reading = attrgetter("from_columns")
_BATCH: _Reading = attrgetter("batch")


class _Parser:
    """What both parsers share: a batch reports the lowest position that fails."""

    needs_keys = False
    """Whether a spec draws at random, so that the records' keys make a difference."""

    def __init__(self, max_batch_bytes: int) -> None:
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)

    def budget(self, num_batches: int = 1) -> BatchBudget:
        """What so many batches may need; each ``with`` is another one."""
        return BatchBudget(self.max_batch_bytes * num_batches)

    def single(self, serialized: _Bytes, key: int = 0) -> Any:
        """Parse one record."""
        raise NotImplementedError

    def batch(self, records: Iterable[_Bytes], keys: _Keys | None = None) -> Any:
        """Parse several records into columns.

        Dense columns of one batch may be neighbours in one block of memory, which lives as long as any of them.

        Args:
            records: PackedRecords, which are not copied, or each record's bytes.
            keys: uint64 [N], a random key for each record: what specs that draw at random draw from. None is zeros.

        Raises:
            TFRecordError: Of the lowest record that fails; ``position`` is its number among these.
        """
        rows, keys = _rows_and_keys(records, keys)
        try:
            return self._columns(rows, keys)
        except TFRecordError:
            # Columns are read one by one: this error may not be the lowest record's.
            for row, key, position in zip(rows, keys.tolist(), range(len(rows)), strict=True):
                self._single_at(position, row, key)
            raise

    def batches(self, records: PackedRecords, keys: _Keys | None, borders: Sequence[int]) -> list[Any]:
        """Several calls of :meth:`batch` at once.

        Args:
            records: The records of all batches, one behind the other.
            keys: As of :meth:`batch`, of all.
            borders: Where each batch begins, from 0 on, and where the last one ends.
        """
        return [
            self.batch(records[begin:end], None if keys is None else keys[begin:end])
            for begin, end in itertools.pairwise(borders)
        ]

    def samples(self, records: Iterable[_Bytes], keys: _Keys | None = None, num_batches: int = 1) -> list[Any]:
        """Parse several records into a list of what :meth:`single` gives of each; arguments as of :meth:`batch`.

        Tensors of different samples may be parts of one memory. They may need as much as so many batches.
        """
        with self.budget(num_batches):
            return self._singles(*_rows_and_keys(records, keys))

    def _columns(self, rows: Sequence[_Bytes], keys: _Keys) -> Any:
        raise NotImplementedError

    def _singles(self, rows: Sequence[_Bytes], keys: _Keys) -> list[Any]:
        positions = range(len(rows))
        return [
            self._single_at(position, row, key)
            for position, row, key in zip(positions, rows, keys.tolist(), strict=True)
        ]

    def _single_at(self, position: int, row: _Bytes, key: int) -> Any:
        try:
            return self.single(row, key)
        except TFRecordError as error:
            raise error.locate(position=position) from error.__cause__


class ExampleParser(_Parser):
    """Reads records by a mapping of specs; built once, used for every record. Pickles; safe from several threads.

    Args:
        features: Name of the output -> spec.
        max_batch_bytes: What the values of a batch, or of a sample, may need; see `parse_example`.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty or None, or a spec cannot be read from an Example.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features.specs import FixedLenFeature
        >>> parser = ExampleParser({"a": FixedLenFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("0a0c0a0a0a016112051a030a0105"))
        {'a': tensor(5)}
    """

    def __init__(self, features: Mapping[str, Feature], *, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        super().__init__(max_batch_bytes)
        if features is None or (isinstance(features, Mapping) and not features):
            raise ValueError(f"Argument `features` cannot be None or empty, got {features!r}")
        if not isinstance(features, Mapping):
            raise TypeError(f"features must be a mapping of names to specs, got {type(features).__name__}")
        self.features = dict(features)
        self._readers = [(name, make_reader(name, spec)) for name, spec in self.features.items()]
        self._row_bytes = [getattr(reader, "row_bytes", 0) for _, reader in self._readers]
        self._keyed = [getattr(reader, "keyed", False) for _, reader in self._readers]
        self.needs_keys = any(self._keyed)

    def __reduce__(self) -> tuple[Callable[..., ExampleParser], tuple[dict[str, Feature]]]:
        """Pickle the specs; the readers are built again."""
        return functools.partial(type(self), max_batch_bytes=self.max_batch_bytes), (self.features,)

    def single(self, serialized: _Bytes, key: int = 0) -> dict[str, Any]:
        """Parse one serialized Example; see `parse_single_example`.

        Args:
            serialized: The record's bytes.
            key: What specs that draw at random draw from, an unsigned number of 64 bits.
        """
        record = parse_message(serialized).features.feature
        with self.budget():
            if not self.needs_keys:
                return {name: reader.sample(record) for name, reader in self._readers}
            readers: list[Any] = [reader for _, reader in self._readers]
            values = [
                reader.sample(record, key) if keyed else reader.sample(record)
                for reader, keyed in zip(readers, self._keyed, strict=True)
            ]
        return dict(zip(self.features, values, strict=True))

    def samples(self, records: Iterable[_Bytes], keys: _Keys | None = None, num_batches: int = 1) -> list[Any]:
        """As of the base class."""
        rows, keys = _rows_and_keys(records, keys)
        found = None
        if len(rows) >= _FEW_RECORDS:
            readings: tuple[_Reading, _Reading] = (attrgetter("rows"), lambda reader: _each(reader.sample))
            found = self._native(rows, keys, (0, len(rows)), *readings, num_batches=num_batches)
        if found is None:
            return super().samples(rows, keys, num_batches)
        return [dict(zip(self.features, row, strict=True)) for row in zip(*found[0], strict=True)]

    def batches(self, records: PackedRecords, keys: _Keys | None, borders: Sequence[int]) -> list[dict[str, Any]]:
        """Several calls of :meth:`batch` at once; see there, and the base class."""
        found = self._native(*_rows_and_keys(records, keys), borders, _FROM_COLUMNS, _BATCH)
        if found is None:
            return super().batches(records, keys, borders)
        return [dict(zip(self.features, values, strict=True)) for values in found]

    def _columns(self, rows: Sequence[_Bytes], keys: _Keys) -> dict[str, Any]:
        found = self._native(rows, keys, (0, len(rows)), _FROM_COLUMNS, _BATCH)
        if found is None:
            with self.budget():
                found = [self._read([None] * len(self._readers), rows, keys, None, _BATCH)]
        return dict(zip(self.features, found[0], strict=True))

    @functools.cached_property
    def _plan(self) -> ColumnPlan:
        return ColumnPlan([reader for _, reader in self._readers])

    def _native(
        self, rows: Sequence[_Bytes], keys: _Keys, borders: Sequence[int], *readings: _Reading, num_batches: int = 1
    ) -> list[list[Any]] | None:
        """For each batch every feature's values by the compiled core; None where it cannot, or something is wrong.

        What is between two borders may need as much as ``num_batches``.
        """
        if not self._plan.is_useful:
            return None
        found = self._plan.read(rows if isinstance(rows, PackedRecords) else _pack(rows), borders)
        if found is None:
            return None
        try:
            values = []
            for columns, (begin, end) in zip(found, itertools.pairwise(borders), strict=True):
                with self.budget(num_batches):
                    values.append(self._read(columns, rows[begin:end], keys[begin:end], *readings))
            return values
        except (TFRecordError, UnicodeDecodeError):
            return None

    def _read(
        self,
        found: Sequence[Sequence[Column] | None],
        rows: Sequence[_Bytes],
        keys: _Keys,
        of_columns: _Reading | None,
        of_messages: _Reading,
    ) -> list[Any]:
        """Read every feature: from its columns, or from the records' messages where it has none."""
        records: list[Any] | None = None
        values = []
        if of_columns is not None:
            reserve(len(rows) * sum(itertools.compress(self._row_bytes, found)))
        for (_, reader), columns, keyed in zip(self._readers, found, self._keyed, strict=True):
            if columns is not None and of_columns is not None:
                read = of_columns(reader)
                values.append(read(columns, keys) if keyed else read(columns))
                continue
            if records is None:
                records = [parse_message(row).features.feature for row in rows]
            read = of_messages(reader)
            values.append(read(records, keys) if keyed else read(records))
        return values


class SequenceExampleParser(_Parser):
    """As :class:`ExampleParser`, for SequenceExamples.

    Args:
        context_features: Name of the output -> spec, for the context.
        sequence_features: Name of the output -> spec, for the feature lists.

    Raises:
        TypeError: One of them is not a mapping of str to specs.
        ValueError: Both are None or empty, or a spec cannot be read from a context or a feature list.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature
        >>> parser = SequenceExampleParser(None, {"x": FixedLenSequenceFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("120e0a0c0a017812070a051a030a0105"))
        ({}, {'x': tensor([5])})
    """

    def __init__(
        self,
        context_features: Mapping[str, Feature] | None = None,
        sequence_features: Mapping[str, Feature] | None = None,
        *,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(max_batch_bytes)
        self.features = SequenceFeatures(context_features, sequence_features)
        context, steps = self.features.context_features or {}, self.features.sequence_features or {}
        self._context = [(name, make_context_reader(name, spec)) for name, spec in context.items()]
        self._steps = [(name, make_step_reader(name, spec)) for name, spec in steps.items()]
        counters = [(name, make_step_counter(name, spec)) for name, spec in steps.items()]
        self._counters = [(name, count) for name, count in counters if count is not None]

    def __reduce__(self) -> tuple[Callable[..., SequenceExampleParser], tuple[Any, Any]]:
        """Pickle the specs; the readers are built again."""
        arguments = self.features.context_features, self.features.sequence_features
        return functools.partial(type(self), max_batch_bytes=self.max_batch_bytes), arguments

    def single(self, serialized: _Bytes, key: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parse one serialized SequenceExample; see `parse_single_sequence_example`."""
        record = parse_message(serialized, SequenceExample)
        context = record.context.feature
        with self.budget():
            return (
                {name: reader.sample(context) for name, reader in self._context},
                {name: reader.sample(record) for name, reader in self._steps},
            )

    def _columns(
        self, rows: Sequence[_Bytes], keys: _Keys
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
        records = [parse_message(row, SequenceExample) for row in rows]
        contexts = [record.context.feature for record in records]
        with self.budget():
            return (
                {name: reader.batch(contexts) for name, reader in self._context},
                {name: reader.batch(records) for name, reader in self._steps},
                {name: torch.tensor([*map(count, records)], dtype=torch.int64) for name, count in self._counters},
            )

    def scalar(self, serialized: _Bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
        """One record as a batch without the batch dimension, as TensorFlow gives it."""
        context, sequences = self.single(serialized)
        return context, sequences, {name: torch.tensor(len(sequences[name])) for name, _ in self._counters}


def make_parser(
    features: Mapping[str, Feature] | SequenceFeatures, *, max_batch_bytes: int = MAX_BATCH_BYTES
) -> ExampleParser | SequenceExampleParser:
    """The parser of the records that ``features`` speaks of.

    Raises:
        TypeError, ValueError: As the parsers' own.
    """
    if isinstance(features, SequenceFeatures):
        own = features.context_features, features.sequence_features
        return SequenceExampleParser(*own, max_batch_bytes=max_batch_bytes)
    return ExampleParser(features, max_batch_bytes=max_batch_bytes)


def _each(read: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Several records by what reads one."""
    return lambda records, *keys: [
        read(record, *key) for record, *key in zip(records, *(one.tolist() for one in keys), strict=True)
    ]


def _pack(rows: Sequence[_Bytes]) -> PackedRecords:
    parts = [row if isinstance(row, bytes) else bytes(row) for row in rows]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return PackedRecords(b"".join(parts), ends[:-1], np.diff(ends))


def _rows_and_keys(records: Any, keys: _Keys | None) -> tuple[Sequence[Any], _Keys]:
    rows = records if isinstance(records, PackedRecords) else _rows(records)
    if keys is None:
        return rows, np.zeros(len(rows), np.uint64)
    if len(keys) != len(rows):
        raise ValueError(f"expected a key for each of {len(rows)} records, got {len(keys)}")
    return rows, np.asarray(keys, np.uint64)


def _rows(serialized_list: Any) -> list[Any]:
    fixed_width = isinstance(serialized_list, np.ndarray) and serialized_list.dtype.kind == "S"  # drops trailing NULs
    if fixed_width or isinstance(serialized_list, (bytes, bytearray, memoryview, str)):
        raise TypeError("serialized must be a list of the records' bytes")
    rows = list(serialized_list)
    for position, row in enumerate(rows):
        if not isinstance(row, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"Expected serialized to be a scalar or vector: a list of bytes, got {type(row).__name__} at {position}"
            )
    return rows
