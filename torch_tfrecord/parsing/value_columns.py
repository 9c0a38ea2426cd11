"""Readers of what is in a single bytes value: text, arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_tfrecord.errors import ParseError
from torch_tfrecord.features.specs import Feature, RawTensor
from torch_tfrecord.parsing.columns import Column, Want, key_of, labelled, read_each, rows_of, stack
from torch_tfrecord.parsing.lookup import Lookup
from torch_tfrecord.values.dtypes import BYTES_LIST, INT64_LIST, decode_text, dtype_name, from_bytes
from torch_tfrecord.values.tensors import parse_tensor

__all__ = ["OneValue", "RawTensorReader", "SerializedTensorReader", "TextReader"]


class OneValue:
    """Reads a single bytes value; subclasses turn it into what the spec says.

    A subclass with ``keyed = True`` takes the records' random keys: ``sample(record, key)``, ``batch(records, keys)``,
    ``from_columns(columns, keys)``, ``rows(columns, keys)``, ``from_values(values, shapes, keys)``.
    """

    keyed = False

    def __init__(self, name: str, spec: Feature, shape: Sequence[Any] = ()) -> None:
        self._lookup = Lookup(name, key_of(name, spec), BYTES_LIST, type(spec).__name__)
        self._shape = [Lookup(name, entry, INT64_LIST, "size") if isinstance(entry, str) else entry for entry in shape]
        sizes = [Want(entry.key, INT64_LIST, 1, True) for entry in self._shape if isinstance(entry, Lookup)]
        self.wants: tuple[Want, ...] | None = (Want(self._lookup.key, BYTES_LIST, 1, True), *sizes)

    def sample(self, record: Any) -> Any:
        """The value of one record."""
        return labelled(self._lookup, self._convert, *self._find(record))

    def batch(self, records: Sequence[Any]) -> Any:
        """The column of several records."""
        return labelled(self._lookup, stack, read_each(self.sample, records))

    def from_columns(self, columns: Sequence[Column], *keys: Any) -> Any:
        """The column of several records, from the compiled core."""
        return self.from_values(columns[0].views(), self._shapes(columns), *keys)

    def rows(self, columns: Sequence[Column], *keys: Any) -> list[Any]:
        """The values of several records, from the compiled core."""
        return rows_of(self.from_columns(columns, *keys))

    def from_values(self, values: Sequence[memoryview], shapes: Sequence[tuple[Any, ...]]) -> Any:
        """The column of several records: a list, or one tensor [B, ...].

        Args:
            values: The encoded values, parts of a buffer that may be used again after the call.
            shapes: The spec's shape for each, with names of other features replaced by their values.
        """
        return stack([self._convert(value, shape) for value, shape in zip(values, shapes, strict=True)])

    def _find(self, record: Any) -> tuple[bytes, tuple[Any, ...]]:
        """One record's encoded value, and its shape."""
        data = self._lookup.one(record)
        return data, tuple(_size(entry, record) if isinstance(entry, Lookup) else entry for entry in self._shape)

    def _shapes(self, columns: Sequence[Column]) -> list[tuple[Any, ...]]:
        """The shape of each record's value."""
        num_records = len(columns[0].values)
        if len(columns) == 1:
            return [tuple(self._shape)] * num_records
        if min(int(column.values.min(initial=0)) for column in columns[1:]) < 0:
            raise ParseError("expected sizes of at least 0")
        sizes = iter(columns[1:])
        entries = [
            next(sizes).values.tolist() if isinstance(entry, Lookup) else [entry] * num_records for entry in self._shape
        ]
        return list(zip(*entries, strict=True))

    def _convert(self, data: bytes | memoryview, shape: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class TextReader(OneValue):
    """Reads a Text."""

    def from_columns(self, columns: Sequence[Column], *keys: Any) -> list[str]:
        """The column of several records, from the compiled core."""
        return columns[0].strings(str)

    def _convert(self, data: bytes | memoryview, shape: tuple[Any, ...]) -> str:
        return decode_text(data)


class SerializedTensorReader(OneValue):
    """Reads a SerializedTensor."""

    def _convert(self, data: bytes | memoryview, shape: tuple[Any, ...]) -> Any:
        return parse_tensor(data)


class RawTensorReader(OneValue):
    """Reads a RawTensor."""

    def __init__(self, name: str, spec: RawTensor) -> None:
        super().__init__(name, spec, spec.shape)
        self._dtype = spec.dtype

    def _convert(self, data: bytes | memoryview, shape: tuple[Any, ...]) -> torch.Tensor:
        row_bytes = math.prod(size for size in shape if size != -1) * self._dtype.itemsize
        if -1 in shape and row_bytes and len(data) % row_bytes == 0:
            shape = tuple(len(data) // row_bytes if size == -1 else size for size in shape)
        elif -1 in shape or len(data) != row_bytes:
            wanted = f"{row_bytes} bytes" if -1 not in shape else f"a multiple of {row_bytes} bytes"
            raise ParseError(f"expected {wanted} for shape {[*shape]} of {dtype_name(self._dtype)}, got {len(data)}")
        return from_bytes(data, self._dtype, shape)


def _size(lookup: Lookup, record: Any) -> int:
    size = int(lookup.one(record))
    if size < 0:
        raise lookup.error(f"expected a size, got {size}")
    return size
