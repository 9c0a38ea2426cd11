"""Specs applied to messages: one record to a sample, several records to a batch of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.example import parse_message
from torch_tfrecord.features import Feature
from torch_tfrecord.messages import SequenceExample
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

_Bytes: TypeAlias = bytes | bytearray | memoryview


class _Parser:
    """What both parsers share: a batch reports the lowest position that fails."""

    def single(self, serialized: _Bytes) -> Any:
        """Parse one record."""
        raise NotImplementedError

    def batch(self, serialized_list: Iterable[_Bytes]) -> Any:
        """Parse several records into columns."""
        rows = _rows(serialized_list)
        try:
            return self._columns(rows)
        except TFRecordError:
            self._raise_first_error(rows)
            raise

    def _columns(self, rows: Sequence[_Bytes]) -> Any:
        raise NotImplementedError

    def _raise_first_error(self, rows: Sequence[_Bytes]) -> None:
        # Columns are read one after another, so the error at hand may not be that of the lowest position.
        for position, row in enumerate(rows):
            try:
                self.single(row)
            except TFRecordError as error:
                raise error.locate(position=position) from error.__cause__


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

    def __reduce__(self) -> tuple[type[ExampleParser], tuple[dict[str, Feature]]]:
        """Pickle the specs; the readers are built again."""
        return type(self), (self.features,)

    def single(self, serialized: _Bytes) -> dict[str, Any]:
        """Parse one serialized Example; see :func:`parse_single_example`."""
        record = parse_message(serialized).features.feature
        return {name: reader.sample(record) for name, reader in self._readers}

    def _columns(self, rows: Sequence[_Bytes]) -> dict[str, Any]:
        records = [parse_message(row).features.feature for row in rows]
        return {name: reader.batch(records) for name, reader in self._readers}


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

    def single(self, serialized: _Bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parse one serialized SequenceExample; see :func:`parse_single_sequence_example`."""
        record = parse_message(serialized, SequenceExample)
        context = record.context.feature
        return (
            {name: reader.sample(context) for name, reader in self._context},
            {name: reader.sample(record) for name, reader in self._steps},
        )

    def _columns(self, rows: Sequence[_Bytes]) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
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
