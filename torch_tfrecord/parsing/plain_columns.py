"""Readers of FixedLenFeature and VarLenFeature: one list, numbers or strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_tfrecord.features.specs import FixedLenFeature, VarLenFeature, mark_ragged
from torch_tfrecord.parsing.columns import (
    Column,
    Want,
    jagged_column,
    jagged_rows,
    join,
    key_of,
    labelled,
    list_lookup,
    reserve_for,
    string_rows,
    strings,
    torch_dtype,
)
from torch_tfrecord.protobuf.example import to_array
from torch_tfrecord.values.containers import jagged_tensor
from torch_tfrecord.values.dtypes import INT64_LIST, cast, nest

__all__ = ["FixedNumbers", "FixedStrings", "VarLenNumbers", "VarLenStrings"]

# Dtypes that need no cast, and so have a short way for a single scalar.
_PLAIN: dict[Any, Any] = {torch.int64: np.int64, torch.float32: np.float32}
# An integer of each size, to move bits of any dtype.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FixedNumbers:
    """Reads a FixedLenFeature of numbers."""

    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self._lookup = list_lookup(name, key_of(name, spec), spec.dtype)
        self._dtype = torch_dtype(spec.dtype)
        self._shape = spec.shape
        self._is_flat = len(spec.shape) == 1
        self._count = math.prod(spec.shape)
        self._plain_scalar = _PLAIN.get(self._dtype) if spec.shape == () else None
        self.row_bytes = self._count * self._dtype.itemsize
        self._default: torch.Tensor | None = None
        if spec.default_value is not None and self._count:  # an empty default is none, as in TensorFlow
            self._default = torch.tensor(spec.default_value, dtype=self._dtype).reshape(spec.shape)
        self.wants = (Want(self._lookup.key, self._lookup.kind, self._count, self._default is None),)
        # The core's column as it is.
        self._is_column = self._dtype in _PLAIN and spec.shape in ((), (self._count,)) and spec.shape != (1,)

    def sample(self, record: Any) -> torch.Tensor:
        """The value of one record."""
        found = self._lookup.find(record)
        if found is None:
            return self._default_of(record).clone()
        self._check_count(values := found.value)
        if self._plain_scalar and (value := values[0]) == value:  # a NaN's bits pass through to_array only
            return torch.from_numpy(np.array(value, self._plain_scalar))
        tensor = self._cast(to_array(found))
        return tensor if self._is_flat else tensor.reshape(self._shape)

    def batch(self, records: Sequence[Any]) -> torch.Tensor:
        """The column of several records."""
        found = [self._lookup.find(record) for record in records]
        present = [item for item in found if item is not None]
        column = self._column(present)
        reserve_for(self._lookup, len(records) * self.row_bytes)
        tensor = self._cast(column).reshape(len(present), *self._shape)
        if len(present) == len(found):
            return tensor
        rows = iter(tensor.unbind())
        pairs = zip(found, records, strict=True)
        return torch.stack([self._default_of(record) if item is None else next(rows) for item, record in pairs])

    def from_columns(self, columns: Sequence[Column]) -> torch.Tensor:
        """The column of several records, from the compiled core."""
        values, _, missing, _ = columns[0]
        if self._is_column and missing is None:
            return torch.from_numpy(values)
        tensor = cast(values, self._dtype).reshape(len(values), *self._shape)
        if missing is not None and self._default is not None:
            bits = _BITS[self._dtype.itemsize]
            tensor.view(bits)[torch.from_numpy(missing)] = self._default.view(bits)
        return tensor

    def rows(self, columns: Sequence[Column]) -> list[torch.Tensor]:
        """The values of several records, from the compiled core."""
        return list(self.from_columns(columns).unbind())

    def _column(self, found: Sequence[Any]) -> Any:
        values = [item.value for item in found]
        for item in values:
            self._check_count(item)
        if self._count == 1 and self._lookup.kind is INT64_LIST:
            return np.array([item[0] for item in values], dtype=np.int64)
        return join(found, self._dtype)

    def _check_count(self, values: Any) -> None:
        if len(values) != self._count:
            raise self._lookup.wrong_count(len(values), self._count, self._shape)

    def _default_of(self, record: Any) -> torch.Tensor:
        if self._default is None:
            raise self._lookup.missing(record)
        return self._default

    def _cast(self, values: Any) -> torch.Tensor:
        tensor: torch.Tensor = labelled(self._lookup, cast, values, self._dtype)
        return tensor


class FixedStrings:
    """Reads a FixedLenFeature of bytes or str."""

    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self._lookup = list_lookup(name, key_of(name, spec), spec.dtype)
        self._spec = spec
        self._count = math.prod(spec.shape)
        default = spec.default_value
        self._default = None if default is None or not self._count else [default] if spec.shape == () else list(default)
        self.wants = (Want(self._lookup.key, self._lookup.kind, self._count, self._default is None),)

    def sample(self, record: Any) -> Any:
        """The value of one record."""
        return nest(self._values(record), self._spec.shape)

    def batch(self, records: Sequence[Any]) -> list[Any]:
        """The column of several records."""
        return [self.sample(record) for record in records]

    def from_columns(self, columns: Sequence[Column]) -> list[Any]:
        """The column of several records, from the compiled core."""
        column, count, shape = columns[0], self._count, self._spec.shape
        values = column.strings(self._spec.dtype)
        if shape != ():
            values = [nest(values[row * count : (row + 1) * count], shape) for row in range(len(column.values))]
        if column.missing is not None and self._default is not None:
            for row in column.missing.nonzero()[0].tolist():
                values[row] = nest(self._default, shape)
        return values

    def rows(self, columns: Sequence[Column]) -> list[Any]:
        """The values of several records, from the compiled core."""
        return self.from_columns(columns)

    def _values(self, record: Any) -> list[Any]:
        found = self._lookup.find(record)
        if found is None:
            if self._default is None:
                raise self._lookup.missing(record)
            return self._default
        if len(found.value) != self._count:
            raise self._lookup.wrong_count(len(found.value), self._count, self._spec.shape)
        return strings(self._lookup, found, self._spec.dtype)


class VarLenNumbers:
    """Reads a VarLenFeature of numbers."""

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self._lookup = list_lookup(name, key_of(name, spec), spec.dtype)
        self._dtype = torch_dtype(spec.dtype)
        self.wants = (Want(self._lookup.key, self._lookup.kind, None, False),)

    def sample(self, record: Any) -> torch.Tensor:
        """The value of one record."""
        found = self._lookup.find(record)
        values = join([] if found is None else [found], self._dtype)
        return mark_ragged(labelled(self._lookup, cast, values, self._dtype))

    def batch(self, records: Sequence[Any]) -> torch.Tensor:
        """The column of several records."""
        found = [self._lookup.find(record) for record in records]
        lengths = [0 if item is None else len(item.value) for item in found]
        values = join([item for item in found if item is not None], self._dtype)
        offsets = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64))
        reserve_for(self._lookup, len(values) * self._dtype.itemsize, lengths)
        return jagged_tensor(labelled(self._lookup, cast, values, self._dtype), offsets)

    def from_columns(self, columns: Sequence[Column]) -> torch.Tensor:
        """The column of several records, from the compiled core."""
        return jagged_column(columns[0], self._dtype)

    def rows(self, columns: Sequence[Column]) -> list[torch.Tensor]:
        """The values of several records, from the compiled core."""
        return jagged_rows(columns[0], self._dtype)


class VarLenStrings:
    """Reads a VarLenFeature of bytes or str."""

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self._lookup = list_lookup(name, key_of(name, spec), spec.dtype)
        self._dtype = spec.dtype
        self.wants = (Want(self._lookup.key, self._lookup.kind, None, False),)

    def sample(self, record: Any) -> list[Any]:
        """The value of one record."""
        found = self._lookup.find(record)
        return [] if found is None else strings(self._lookup, found, self._dtype)

    def batch(self, records: Sequence[Any]) -> list[Any]:
        """The column of several records."""
        return [self.sample(record) for record in records]

    def from_columns(self, columns: Sequence[Column]) -> list[Any]:
        """The column of several records, from the compiled core."""
        return string_rows(columns[0], self._dtype)

    def rows(self, columns: Sequence[Column]) -> list[Any]:
        """The values of several records, from the compiled core."""
        return self.from_columns(columns)
