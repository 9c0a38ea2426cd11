"""Specs applied to messages: one record to a sample, several records to a batch of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torch_tfrecord.columns import make_reader
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.example import parse_message
from torch_tfrecord.features import Feature

__all__ = ["ExampleParser", "parse_example", "parse_single_example"]


class ExampleParser:
    """Reads records by a mapping of specs; built once, used for every record. Pickles; safe from several threads.

    Args:
        features: Name of the output -> spec.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty or None.

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

    def single(self, serialized: bytes | bytearray | memoryview) -> dict[str, Any]:
        """Parse one serialized Example; see :func:`parse_single_example`."""
        record = parse_message(serialized).features.feature
        return {name: reader.sample(record) for name, reader in self._readers}

    def batch(self, serialized_list: Iterable[bytes | bytearray | memoryview]) -> dict[str, Any]:
        """Parse several serialized Examples into columns; see :func:`parse_example`."""
        rows = _rows(serialized_list)
        try:
            records = [parse_message(row).features.feature for row in rows]
            return {name: reader.batch(records) for name, reader in self._readers}
        except TFRecordError:
            self._raise_first_error(rows)
            raise

    def _raise_first_error(self, rows: Sequence[bytes | bytearray | memoryview]) -> None:
        # Columns are read one after another, so the error at hand may not be that of the lowest position.
        for position, row in enumerate(rows):
            try:
                self.single(row)
            except TFRecordError as error:
                raise error.locate(position=position) from error.__cause__


def parse_single_example(serialized: bytes | bytearray | memoryview, features: Mapping[str, Feature]) -> dict[str, Any]:
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
    serialized_list: Iterable[bytes | bytearray | memoryview] | bytes | bytearray | memoryview,
    features: Mapping[str, Feature],
) -> dict[str, Any]:
    """Parse several serialized tf.train.Examples into a batch, as ``tf.io.parse_example`` does.

    Args:
        serialized_list: The records' bytes. One record's bytes alone parse as by :func:`parse_single_example`.
        features: Name of the output -> spec.

    Returns:
        Name -> column of B values: fixed numbers are one tensor [B, ...]; numbers of varying length a jagged nested
        tensor; images and arrays one stacked tensor where all shapes are equal, else a list; bytes and str a list.

    Raises:
        TFRecordError: As :func:`parse_single_example`; ``position`` is the lowest one that fails.
        TypeError: As :func:`parse_single_example`, or ``serialized_list`` is no list of bytes.
        ValueError: ``features`` is empty or None.
    """
    parser = ExampleParser(features)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.single(serialized_list)
    return parser.batch(serialized_list)


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
