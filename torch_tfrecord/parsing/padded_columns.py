"""Readers of FixedLenSequenceFeature: rows of one shape, padded in a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from torch_tfrecord.errors import ParseError
from torch_tfrecord.features.specs import mark_ragged
from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature
from torch_tfrecord.parsing.columns import (
    Column,
    Want,
    join,
    key_of,
    labelled,
    list_lookup,
    reserve_for,
    strings,
    torch_dtype,
)
from torch_tfrecord.parsing.lookup import Lookup
from torch_tfrecord.values.containers import offsets_of
from torch_tfrecord.values.dtypes import cast, nest
from torch_tfrecord.values.padded import pad_rows

__all__ = ["PaddedNumbers", "PaddedStrings", "RowFinder", "row_lists"]

_POINTER_BYTES = 8  # of one entry in a Python list


class RowFinder(Protocol):
    """Finds the rows in a record: in one list of an Example, or in the steps of a feature list (``step_columns``)."""

    lookup: Lookup
    wants: tuple[Want, ...] | None

    def find(self, record: Any) -> tuple[list[Any], int]:
        """The list messages that hold the values, and the number of rows."""


class RowLists:
    """Finds the rows in one list, of an Example."""

    def __init__(self, name: str, spec: FixedLenSequenceFeature) -> None:
        self.lookup = list_lookup(name, key_of(name, spec), spec.dtype)
        self.wants: tuple[Want, ...] | None = (Want(self.lookup.key, self.lookup.kind, None, False),)
        self._shape = spec.shape
        self._row_size = math.prod(spec.shape)

    def find(self, record: Any) -> tuple[list[Any], int]:
        """The list messages that hold the values, and the number of rows."""
        found = self.lookup.find(record)
        if found is None or not found.value:
            return [], 0
        count, size = len(found.value), self._row_size
        if not size or count % size:
            raise self.lookup.error(
                f"Number of {self.lookup.kind.counted} values is not a multiple of stride length: got {count}, "
                f"the number of elements should be divisible by {size} for rows of shape {[*self._shape]}"
            )
        return [found], count // size


def row_lists(name: str, spec: FixedLenSequenceFeature) -> RowLists:
    """The finder for an Example.

    Raises:
        ValueError: The spec does not allow a record to lack the feature.
    """
    if not spec.allow_missing:
        raise ValueError(
            f"Unsupported: FixedLenSequenceFeature requires allow_missing to be True. (Feature {name!r}, of an Example)"
        )
    return RowLists(name, spec)


def _num_rows(column: Column, row_size: int) -> list[int]:
    """How many rows each record has."""
    counts = np.diff(column.offsets)
    if (counts % row_size if row_size else counts).any():
        raise ParseError("a number of values is not a multiple of the row's size")
    lengths: list[int] = (counts // max(row_size, 1)).tolist()
    return lengths


class PaddedNumbers:
    """Reads a FixedLenSequenceFeature of numbers."""

    def __init__(self, lists: RowFinder, spec: FixedLenSequenceFeature) -> None:
        self._lists = lists
        self.wants = lists.wants
        self._dtype = torch_dtype(spec.dtype)
        self._shape = spec.shape
        self._padding = torch.tensor(0 if spec.default_value is None else spec.default_value, dtype=self._dtype)

    def sample(self, record: Any) -> torch.Tensor:
        """The rows of one record, [T, *shape]."""
        found, rows = self._lists.find(record)
        return mark_ragged(self._rows(found, rows))

    def batch(self, records: Sequence[Any]) -> torch.Tensor:
        """The rows of several records, [B, longest T, *shape]."""
        found = [self._lists.find(record) for record in records]
        lengths = [rows for _, rows in found]
        return self._pad(self._rows([item for items, _ in found for item in items], sum(lengths)), lengths)

    def from_columns(self, columns: Sequence[Column]) -> torch.Tensor:
        """The column of several records, from the compiled core."""
        return self._pad(*self._values(columns[0]))

    def rows(self, columns: Sequence[Column]) -> list[torch.Tensor]:
        """The values of several records, from the compiled core."""
        values, lengths = self._values(columns[0])
        return [mark_ragged(part) for part in torch.split(values, lengths)] if lengths else []

    def _values(self, column: Column) -> tuple[torch.Tensor, list[int]]:
        lengths = _num_rows(column, math.prod(self._shape))
        return cast(column.values, self._dtype).reshape(sum(lengths), *self._shape), lengths

    def _pad(self, values: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        longest = max(lengths, default=0)
        num_values = len(lengths) * longest * math.prod(self._shape)
        reserve_for(self._lists.lookup, num_values * self._dtype.itemsize, lengths)
        if lengths and min(lengths) == longest:
            return values.reshape(len(lengths), longest, *self._shape)
        return pad_rows(values, offsets_of(lengths), longest, self._padding)

    def _rows(self, found: Sequence[Any], rows: int) -> torch.Tensor:
        values: torch.Tensor = labelled(self._lists.lookup, cast, join(found, self._dtype), self._dtype)
        return values.reshape(rows, *self._shape)


class PaddedStrings:
    """Reads a FixedLenSequenceFeature of bytes or str."""

    def __init__(self, lists: RowFinder, spec: FixedLenSequenceFeature) -> None:
        self._lists = lists
        self.wants = lists.wants
        self._spec = spec
        nothing: bytes | str = b"" if spec.dtype is bytes else ""
        self._padding = nothing if spec.default_value is None else spec.default_value

    def sample(self, record: Any) -> list[Any]:
        """The rows of one record, a list of T."""
        found, rows = self._lists.find(record)
        values = [value for item in found for value in strings(self._lists.lookup, item, self._spec.dtype)]
        nested: list[Any] = nest(values, (rows, *self._spec.shape))
        return nested

    def batch(self, records: Sequence[Any]) -> list[Any]:
        """The rows of several records, lists of the longest T."""
        return self._pad([self.sample(record) for record in records])

    def from_columns(self, columns: Sequence[Column]) -> list[Any]:
        """The column of several records, from the compiled core."""
        return self._pad(self.rows(columns))

    def rows(self, columns: Sequence[Column]) -> list[list[Any]]:
        """The values of several records, from the compiled core."""
        values = columns[0].strings(self._spec.dtype)
        lengths = _num_rows(columns[0], math.prod(self._spec.shape))
        bounds = zip(columns[0].bounds(), lengths, strict=True)
        return [nest(values[begin:end], (rows, *self._spec.shape)) for (begin, end), rows in bounds]

    def _pad(self, samples: list[list[Any]]) -> list[Any]:
        lengths = [*map(len, samples)]
        longest = max(lengths, default=0)
        num_values = len(samples) * longest * math.prod(self._spec.shape)
        reserve_for(self._lists.lookup, num_values * _POINTER_BYTES, lengths)
        return [rows + self._padding_rows(longest - len(rows)) for rows in samples]

    def _padding_rows(self, rows: int) -> list[Any]:
        values = [self._padding] * (rows * math.prod(self._spec.shape))
        nested: list[Any] = nest(values, (rows, *self._spec.shape))
        return nested
