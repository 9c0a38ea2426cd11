"""Readers of FixedLenFeature and VarLenFeature: one list, numbers or strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_tfrecord.features.specs import FixedLenFeature, VarLenFeature
from torch_tfrecord.parsing.columns import Column, jagged_column, key_of, labelled, string_rows, torch_dtype
from torch_tfrecord.parsing.wants import list_want
from torch_tfrecord.values.containers import Nested
from torch_tfrecord.values.dtypes import cast, nest

__all__ = ["FixedNumbers", "FixedStrings", "VarLenNumbers", "VarLenStrings"]

# An integer of each size, to move bits of any dtype.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FixedNumbers:
    """Reads a FixedLenFeature of numbers.

    Attributes:
        is_plain: Whether the values are the core's, in the spec's shape.
        row_bytes: What each record's values need.
    """

    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self._dtype = torch_dtype(spec.dtype)
        self._shape, count = spec.shape, math.prod(spec.shape)
        self.row_bytes = count * self._dtype.itemsize
        self._default: torch.Tensor | None = None
        if spec.default_value is not None and count:  # an empty default is none, as in TensorFlow
            self._default = torch.tensor(spec.default_value, dtype=self._dtype).reshape(spec.shape)
        options: Any = {"num_values": count, "is_required": self._default is None, "shape": spec.shape}
        self._want = list_want(name, key_of(name, spec), spec.dtype, **options)
        self.wants = (self._want,)
        self.is_plain = self._dtype in (torch.int64, torch.float32)
        self._is_column = self.is_plain and spec.shape in ((), (count,)) and spec.shape != (1,)

    def read(self, columns: Sequence[Column]) -> torch.Tensor:
        """The batch's column, [N, *shape]."""
        values, _, missing, _ = columns[0]
        if self._is_column and missing is None:
            return torch.from_numpy(values)
        if missing is not None and self._default is not None and missing.all():
            return self._default.expand(len(values), *self._shape).clone(memory_format=torch.contiguous_format)
        tensor: torch.Tensor = labelled(self._want, cast, values, self._dtype).reshape(len(values), *self._shape)
        if missing is not None and self._default is not None:
            bits = _BITS[self._dtype.itemsize]
            tensor.view(bits)[torch.from_numpy(missing != 0)] = self._default.view(bits)
        return tensor


class FixedStrings:
    """Reads a FixedLenFeature of bytes or str.

    Attributes:
        is_plain: Whether the value is the only string of a record.
        is_text: Whether that is str.
    """

    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self.is_plain, self.is_text = spec.shape == (), spec.dtype is str
        self._dtype, self._shape, self._count = spec.dtype, spec.shape, math.prod(spec.shape)
        default = spec.default_value
        self._default = None if default is None or not self._count else [default] if spec.shape == () else list(default)
        options: Any = {"num_values": self._count, "is_required": self._default is None, "shape": spec.shape}
        self._want = list_want(name, key_of(name, spec), spec.dtype, **options)
        self.wants = (self._want,)

    def read(self, columns: Sequence[Column]) -> list[Any]:
        """The batch's column: a list of N values, nested by the shape."""
        column, count, shape = columns[0], self._count, self._shape
        values: list[Any] = labelled(self._want, column.strings, self._dtype)
        if shape != ():
            values = [nest(values[row * count : (row + 1) * count], shape) for row in range(len(column.values))]
        if column.missing is not None and self._default is not None:
            for row in column.missing.nonzero()[0].tolist():
                values[row] = nest(self._default, shape)
        return values


class VarLenNumbers:
    """Reads a VarLenFeature of numbers; `is_plain` as of `FixedNumbers`."""

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self._want = list_want(name, key_of(name, spec), spec.dtype)
        self._dtype = torch_dtype(spec.dtype)
        self.is_plain = self._dtype in (torch.int64, torch.float32)
        self.wants = (self._want,)

    def read(self, columns: Sequence[Column]) -> Nested:
        """The batch's column, [N, *]."""
        return jagged_column(columns[0], self._want, self._dtype)


class VarLenStrings:
    """Reads a VarLenFeature of bytes or str; see `FixedStrings`."""

    is_plain = True

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self.is_text = spec.dtype is str
        self._want = list_want(name, key_of(name, spec), spec.dtype)
        self._dtype = spec.dtype
        self.wants = (self._want,)

    def read(self, columns: Sequence[Column]) -> list[Any]:
        """The batch's column: N lists."""
        return string_rows(columns[0], self._want, self._dtype)
