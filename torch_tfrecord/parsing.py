"""Specs applied to messages: one record to a sample, several records to a batch of columns.

Batches of Examples are read by the compiled core where there is one, the records are plain and nothing is wrong with
them; all else goes through protobuf's messages, with the same values, and it is there that errors get their words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.column_plan import ColumnPlan
from torch_tfrecord.columns import Column
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.example import parse_message
from torch_tfrecord.features import Feature
from torch_tfrecord.messages import SequenceExample
from torch_tfrecord.packed_records import PackedRecords
from torch_tfrecord.spec_readers import make_context_reader, make_reader, make_step_counter, make_step_reader
from torch_tfrecord.structured_features import SequenceFeatures

__all__ = [
    "ExampleParser",
    "SequenceExampleParser",
    "make_parser",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
]

# Fewer records than this are read faster one by one than taken out of columns.
_FEW_RECORDS = 4

_Bytes: TypeAlias = bytes | bytearray | memoryview
_Keys: TypeAlias = "npt.NDArray[np.uint64]"
# The method of a reader by which it is read.
_Reading: TypeAlias = Callable[[Any], Callable[..., Any]]


class _Parser:
    """What both parsers share: a batch reports the lowest position that fails."""

    needs_keys = False
    """Whether a spec draws at random, so that the records' keys make a difference."""

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
            self._singles(rows, keys)  # columns are read one by one: this error may not be the lowest record's
            raise

    def samples(self, records: Iterable[_Bytes], keys: _Keys | None = None) -> list[Any]:
        """Parse several records into a list of what :meth:`single` gives of each; arguments as of :meth:`batch`.

        Tensors of different samples may be parts of one memory.
        """
        return self._singles(*_rows_and_keys(records, keys))

    def _columns(self, rows: Sequence[_Bytes], keys: _Keys) -> Any:
        raise NotImplementedError

    def _singles(self, rows: Sequence[_Bytes], keys: _Keys) -> list[Any]:
        samples = []
        for position, (row, key) in enumerate(zip(rows, keys.tolist(), strict=True)):
            try:
                samples.append(self.single(row, key))
            except TFRecordError as error:
                raise error.locate(position=position) from error.__cause__
        return samples


class ExampleParser(_Parser):
    """Reads records by a mapping of specs; built once, used for every record. Pickles; safe from several threads.

    Args:
        features: Name of the output -> spec.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty or None, or a spec cannot be read from an Example.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features import FixedLenFeature
        >>> parser = ExampleParser({"a": FixedLenFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("0a0c0a0a0a016112051a030a0105"))
        {'a': tensor(5)}
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        if features is None or (isinstance(features, Mapping) and not features):
            raise ValueError(f"Argument `features` cannot be None or empty, got {features!r}")
        if not isinstance(features, Mapping):
            raise TypeError(f"features must be a mapping of names to specs, got {type(features).__name__}")
        self.features = dict(features)
        self._readers = [(name, make_reader(name, spec)) for name, spec in self.features.items()]
        self._keyed = [getattr(reader, "keyed", False) for _, reader in self._readers]
        self.needs_keys = any(self._keyed)

    def __reduce__(self) -> tuple[type[ExampleParser], tuple[dict[str, Feature]]]:
        """Pickle the specs; the readers are built again."""
        return type(self), (self.features,)

    def single(self, serialized: _Bytes, key: int = 0) -> dict[str, Any]:
        """Parse one serialized Example; see :func:`parse_single_example`.

        Args:
            serialized: The record's bytes.
            key: What specs that draw at random draw from, an unsigned number of 64 bits.
        """
        record = parse_message(serialized).features.feature
        if not self.needs_keys:
            return {name: reader.sample(record) for name, reader in self._readers}
        readers: list[Any] = [reader for _, reader in self._readers]
        values = [
            reader.sample(record, key) if keyed else reader.sample(record)
            for reader, keyed in zip(readers, self._keyed, strict=True)
        ]
        return dict(zip(self.features, values, strict=True))

    def samples(self, records: Iterable[_Bytes], keys: _Keys | None = None) -> list[Any]:
        """Parse several records into a list of what :meth:`single` gives of each; arguments as of :meth:`batch`.

        Tensors of different samples may be parts of one memory.
        """
        rows, keys = _rows_and_keys(records, keys)
        values = None
        if len(rows) >= _FEW_RECORDS:
            values = self._native(rows, keys, attrgetter("rows"), lambda reader: _each(reader.sample))
        if values is None:
            return self._singles(rows, keys)
        return [dict(zip(self.features, row, strict=True)) for row in zip(*values, strict=True)]

    def _columns(self, rows: Sequence[_Bytes], keys: _Keys) -> dict[str, Any]:
        values = self._native(rows, keys, attrgetter("from_columns"), attrgetter("batch"))
        if values is None:
            values = self._read([None] * len(self._readers), rows, keys, None, attrgetter("batch"))
        return dict(zip(self.features, values, strict=True))

    @functools.cached_property
    def _plan(self) -> ColumnPlan:
        return ColumnPlan([reader for _, reader in self._readers])

    def _native(self, rows: Sequence[_Bytes], keys: _Keys, *readings: _Reading) -> list[Any] | None:
        """Every feature's values by the compiled core; None where it cannot, or where something is wrong."""
        if not self._plan.is_useful:
            return None
        found = self._plan.read(rows if isinstance(rows, PackedRecords) else _pack(rows))
        if found is None:
            return None
        try:
            return self._read(found, rows, keys, *readings)
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
        >>> from torch_tfrecord.structured_features import FixedLenSequenceFeature
        >>> parser = SequenceExampleParser(None, {"x": FixedLenSequenceFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("120e0a0c0a017812070a051a030a0105"))
        ({}, {'x': tensor([5])})
    """

    def __init__(
        self,
        context_features: Mapping[str, Feature] | None = None,
        sequence_features: Mapping[str, Feature] | None = None,
    ) -> None:
        self.features = SequenceFeatures(context_features, sequence_features)
        context, steps = self.features.context_features or {}, self.features.sequence_features or {}
        self._context = [(name, make_context_reader(name, spec)) for name, spec in context.items()]
        self._steps = [(name, make_step_reader(name, spec)) for name, spec in steps.items()]
        counters = [(name, make_step_counter(name, spec)) for name, spec in steps.items()]
        self._counters = [(name, count) for name, count in counters if count is not None]

    def __reduce__(self) -> tuple[type[SequenceExampleParser], tuple[Any, Any]]:
        """Pickle the specs; the readers are built again."""
        return type(self), (self.features.context_features, self.features.sequence_features)

    def single(self, serialized: _Bytes, key: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parse one serialized SequenceExample; see :func:`parse_single_sequence_example`."""
        record = parse_message(serialized, SequenceExample)
        context = record.context.feature
        return (
            {name: reader.sample(context) for name, reader in self._context},
            {name: reader.sample(record) for name, reader in self._steps},
        )

    def _columns(
        self, rows: Sequence[_Bytes], keys: _Keys
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
        records = [parse_message(row, SequenceExample) for row in rows]
        contexts = [record.context.feature for record in records]
        return (
            {name: reader.batch(contexts) for name, reader in self._context},
            {name: reader.batch(records) for name, reader in self._steps},
            {name: torch.tensor([*map(count, records)], dtype=torch.int64) for name, count in self._counters},
        )

    def scalar(self, serialized: _Bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
        """One record as a batch without the batch dimension, as TensorFlow gives it."""
        context, sequences = self.single(serialized)
        return context, sequences, {name: torch.tensor(len(sequences[name])) for name, _ in self._counters}


def make_parser(features: Mapping[str, Feature] | SequenceFeatures) -> ExampleParser | SequenceExampleParser:
    """The parser of the records that ``features`` speaks of.

    Raises:
        TypeError, ValueError: As the parsers' own.
    """
    if isinstance(features, SequenceFeatures):
        return SequenceExampleParser(features.context_features, features.sequence_features)
    return ExampleParser(features)


def parse_single_example(serialized: _Bytes, features: Mapping[str, Feature]) -> dict[str, Any]:
    """Parse one serialized tf.train.Example by a mapping of specs, as ``tf.io.parse_single_example`` does.

    Whoever parses many records builds an :class:`ExampleParser` once.

    Args:
        serialized: The record's bytes.
        features: Name of the output -> spec.

    Returns:
        Name -> value, in the order of ``features``. The type is the spec's: a tensor, str, bytes or list.

    Raises:
        ImageDecodeError: An image that cannot be decoded.
        LimitExceededError: A serialized tensor that stands for far more bytes than it has.
        ParseError: The bytes are no Example, or do not fit the specs.
        TypeError: ``serialized`` is not bytes-like, or a spec is none.
        ValueError: ``features`` is empty or None.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features import VarLenFeature
        >>> parse_single_example(bytes.fromhex("0a0c0a0a0a016112051a030a0105"), {"a": VarLenFeature(torch.int64)})
        {'a': tensor([5])}
    """
    return ExampleParser(features).single(serialized)


def parse_example(
    serialized_list: Iterable[_Bytes] | _Bytes,
    features: Mapping[str, Feature],
) -> dict[str, Any]:
    """Parse several serialized tf.train.Examples into a batch, as ``tf.io.parse_example`` does.

    Args:
        serialized_list: The records' bytes. One record's bytes alone parse as by :func:`parse_single_example`.
        features: Name of the output -> spec.

    Returns:
        Name -> column of B values: fixed numbers are one tensor [B, ...], rows of one shape padded to the longest;
        numbers of varying length a jagged nested tensor, with more ragged dimensions a RaggedTensor; sparse ones
        ``torch.sparse_coo``; images and arrays one stacked tensor where all shapes are equal, else a list; bytes and
        str a list.

    Raises:
        TFRecordError: As :func:`parse_single_example`; ``position`` is the lowest one that fails.
        TypeError: As :func:`parse_single_example`, or ``serialized_list`` is no list of bytes.
        ValueError: ``features`` is empty or None.
    """
    parser = ExampleParser(features)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.single(serialized_list)
    batch: dict[str, Any] = parser.batch(serialized_list)
    return batch


def parse_single_sequence_example(
    serialized: _Bytes,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized tf.train.SequenceExample, as ``tf.io.parse_single_sequence_example`` does.

    Whoever parses many records builds a :class:`SequenceExampleParser` once.

    Args:
        serialized: The record's bytes.
        context_features: Name of the output -> FixedLenFeature, VarLenFeature, RaggedFeature, Image, RawTensor,
            SerializedTensor or Text.
        sequence_features: Name of the output -> FixedLenSequenceFeature, VarLenFeature, RaggedFeature, Image, RawTensor
            (an entry of its shape may name a feature list or a feature of the context), SerializedTensor or Text.

    Returns:
        ``(context, sequences)``, in the order of the specs. Of T steps a FixedLenSequenceFeature is a tensor
        [T, *shape]; a VarLenFeature a jagged nested tensor [T, *], with strings a list of T lists; images are one
        ``tv_tensors.Video`` [T, C, H, W], and arrays one tensor [T, ...], where all steps are alike, else a list; text
        is a list of str.

    Raises:
        ImageDecodeError: An image that cannot be decoded.
        LimitExceededError: A serialized tensor that stands for far more bytes than it has.
        ParseError: The bytes are no SequenceExample, or do not fit the specs.
        TypeError: ``serialized`` is not bytes-like, or a spec is none.
        ValueError: Both mappings are None or empty, or a spec that no context or feature list can have.

    Example:
        >>> import torch
        >>> from torch_tfrecord.structured_features import FixedLenSequenceFeature
        >>> record = bytes.fromhex("120e0a0c0a017812070a051a030a0105")
        >>> parse_single_sequence_example(record, None, {"x": FixedLenSequenceFeature((), torch.int64)})
        ({}, {'x': tensor([5])})
    """
    return SequenceExampleParser(context_features, sequence_features).single(serialized)


def parse_sequence_example(
    serialized_list: Iterable[_Bytes] | _Bytes,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
    """Parse several serialized tf.train.SequenceExamples into a batch, as ``tf.io.parse_sequence_example`` does.

    Args:
        serialized_list: The records' bytes. One record's bytes alone give values without the batch dimension.
        context_features: As :func:`parse_single_sequence_example`.
        sequence_features: As :func:`parse_single_sequence_example`.

    Returns:
        ``(context, sequences, lengths)``. The context is as by :func:`parse_example`. Of sequences a
        FixedLenSequenceFeature is a tensor [B, longest T, *shape], padded at the end with 0, ``b""`` or ``""``, and
        ``lengths`` has its numbers of steps, int64 [B]; a VarLenFeature is a :class:`RaggedTensor` [B, *, *]; the rest
        is stacked where all samples are alike, else a list.

    Raises:
        TFRecordError: As :func:`parse_single_sequence_example`; ``position`` is the lowest one that fails.
        TypeError: As there, or ``serialized_list`` is no list of bytes.
        ValueError: As there.
    """
    parser = SequenceExampleParser(context_features, sequence_features)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.scalar(serialized_list)
    batch: tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]] = parser.batch(serialized_list)
    return batch


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
