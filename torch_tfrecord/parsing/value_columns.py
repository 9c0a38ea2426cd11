"""Readers of what is in a single bytes value: text, arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_tfrecord.errors import ParseError
from torch_tfrecord.features.specs import Feature, RawTensor
from torch_tfrecord.parsing.columns import Column, key_of, labelled, read_each, stack
from torch_tfrecord.parsing.wants import Want
from torch_tfrecord.values.dtypes import BYTES_LIST, INT64_LIST, dtype_name, from_bytes
from torch_tfrecord.values.tensors import parse_tensor

__all__ = ["OneValue", "RawTensorReader", "SerializedTensorReader", "TextReader"]

_ONE: Any = {"num_values": 1, "is_required": True}


class OneValue:
    """Reads a single bytes value; subclasses turn it into what the spec says."""

    def __init__(self, name: str, spec: Feature, shape: Sequence[Any] = ()) -> None:
        self._want = Want(name, key_of(name, spec), BYTES_LIST, type(spec).__name__, **_ONE)
        self._shape = [
            Want(name, entry, INT64_LIST, "size", **_ONE) if isinstance(entry, str) else entry for entry in shape
        ]
        self.wants = (self._want, *(entry for entry in self._shape if isinstance(entry, Want)))

    def read(self, columns: Sequence[Column]) -> Any:
        """The batch's column: one tensor [N, ...] where all are alike, else a list."""
        return labelled(self._want, self.from_values, columns[0].views(), self._shapes(columns))

    def from_values(self, values: Sequence[memoryview], shapes: Sequence[tuple[Any, ...]]) -> Any:
        """The column of several values.

        Args:
            values: The encoded values, parts of a buffer that may be used again after the call.
            shapes: The spec's shape for each, with names of other features replaced by their values.
        """
        return stack(read_each(lambda found: self._convert(*found), list(zip(values, shapes, strict=True))))

    def _shapes(self, columns: Sequence[Column]) -> list[tuple[Any, ...]]:
        """The shape of each record's value."""
        num_records = len(columns[0].values)
        if len(columns) == 1:
            return [tuple(self._shape)] * num_records
        sizes = iter(columns[1:])
        entries = [
            _sizes(entry, next(sizes)) if isinstance(entry, Want) else [entry] * num_records for entry in self._shape
        ]
        return list(zip(*entries, strict=True))

    def _convert(self, data: memoryview, shape: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class TextReader(OneValue):
    """Reads a Text; see `FixedStrings`."""

    is_plain = is_text = True

    def read(self, columns: Sequence[Column]) -> list[str]:
        """The batch's column: a list of N str."""
        found: list[str] = labelled(self._want, columns[0].strings, str)
        return found


class SerializedTensorReader(OneValue):
    """Reads a SerializedTensor."""

    def _convert(self, data: memoryview, shape: tuple[Any, ...]) -> Any:
        return parse_tensor(data)


class RawTensorReader(OneValue):
    """Reads a RawTensor."""

    def __init__(self, name: str, spec: RawTensor) -> None:
        super().__init__(name, spec, spec.shape)
        self._dtype = spec.dtype

    def _convert(self, data: memoryview, shape: tuple[Any, ...]) -> torch.Tensor:
        row_bytes = math.prod(size for size in shape if size != -1) * self._dtype.itemsize
        if -1 in shape and row_bytes and len(data) % row_bytes == 0:
            shape = tuple(len(data) // row_bytes if size == -1 else size for size in shape)
        elif -1 in shape or len(data) != row_bytes:
            wanted = f"{row_bytes} bytes" if -1 not in shape else f"a multiple of {row_bytes} bytes"
            raise ParseError(f"expected {wanted} for shape {[*shape]} of {dtype_name(self._dtype)}, got {len(data)}")
        return from_bytes(data, self._dtype, shape)


def _sizes(want: Want, column: Column) -> list[int]:
    sizes: list[int] = column.values.tolist()
    if min(sizes, default=0) < 0:
        raise want.error(f"expected a size, got {min(sizes)}")
    return sizes
