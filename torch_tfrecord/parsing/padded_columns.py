"""Readers of FixedLenSequenceFeature: rows of one shape, jagged or padded in a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature
from torch_tfrecord.parsing.columns import Column, key_of, labelled, reserve_for, reserve_for_values, torch_dtype
from torch_tfrecord.parsing.wants import Want, list_want
from torch_tfrecord.values.containers import Nested
from torch_tfrecord.values.dtypes import cast, nest
from torch_tfrecord.values.padded import pad_rows

__all__ = ["RowNumbers", "RowStrings", "pad_numbers", "pad_strings"]

_POINTER_BYTES = 8  # of one entry in a Python list


class _Rows:
    """What both readers share: the Want, and how many rows each record has.

    Args:
        name: Name of the output.
        spec: The spec.
        pads: Whether batches are padded to the longest record's rows, as TensorFlow does; else they are jagged.

    Raises:
        ValueError: The spec does not allow a record to lack the feature.
    """

    def __init__(self, name: str, spec: FixedLenSequenceFeature, *, pads: bool) -> None:
        if not spec.allow_missing:
            raise ValueError(
                "Unsupported: FixedLenSequenceFeature requires allow_missing to be True. "
                f"(Feature {name!r}, of an Example)"
            )
        self._spec, self._pads = spec, pads
        self._want = list_want(name, key_of(name, spec), spec.dtype)
        self.wants = (self._want,)

    def _row_ends(self, column: Column) -> npt.NDArray[np.int64]:
        """Where each record's rows begin and end among those of all."""
        size = math.prod(self._spec.shape)
        counts = np.diff(column.offsets)
        wrong = counts % size if size else counts
        if wrong.any():
            raise self._want.error(
                f"Number of {self._want.kind.counted} values is not a multiple of stride length: got "
                f"{counts[wrong.argmax()]}, the number of elements should be divisible by {size} for rows of shape "
                f"{[*self._spec.shape]}"
            )
        return column.offsets // max(size, 1)


class RowNumbers(_Rows):
    """Reads a FixedLenSequenceFeature of numbers."""

    def read(self, columns: Sequence[Column]) -> torch.Tensor | Nested:
        """The batch's column: [N, longest T, *shape], or [N, *, *shape]."""
        ends, dtype = self._row_ends(columns[0]), torch_dtype(self._spec.dtype)
        values: torch.Tensor = labelled(self._want, cast, columns[0].values, dtype)
        values = values.reshape(int(ends[-1]), *self._spec.shape)
        if self._pads:
            return pad_numbers(self._want, values, ends, self._spec.default_value or 0)
        reserve_for_values(self._want, values.nbytes, ends)
        return Nested(values, (torch.from_numpy(ends),))


class RowStrings(_Rows):
    """Reads a FixedLenSequenceFeature of bytes or str."""

    def read(self, columns: Sequence[Column]) -> list[Any]:
        """The batch's column: a list of N lists of rows."""
        lengths = np.diff(self._row_ends(columns[0])).tolist()
        values, shape = labelled(self._want, columns[0].strings, self._spec.dtype), self._spec.shape
        bounds = zip(columns[0].bounds(), lengths, strict=True)
        rows = [nest(values[begin:end], (length, *shape)) for (begin, end), length in bounds]
        return pad_strings(self._want, rows, self._spec) if self._pads else rows


def pad_numbers(want: Want, values: torch.Tensor, ends: npt.NDArray[np.int64], padding: float) -> torch.Tensor:
    """Rows of values, where each record's begin and end, padded to [N, longest, ...].

    Raises:
        LimitExceededError: As `reserve`.
    """
    lengths, shape = np.diff(ends), values.shape[1:]
    longest = int(lengths.max(initial=0))
    num_values = len(lengths) * longest * math.prod(shape)
    reserve_for(want, num_values * values.dtype.itemsize, ends)
    if len(lengths) and lengths.min() == longest:
        return values.reshape(len(lengths), longest, *shape)
    return pad_rows(values, torch.from_numpy(ends), longest, torch.tensor(padding, dtype=values.dtype))


def pad_strings(want: Want, samples: list[list[Any]], spec: FixedLenSequenceFeature) -> list[Any]:
    """Rows of strings, a list for each record, padded to the longest one's number.

    Raises:
        LimitExceededError: As `reserve`.
    """
    lengths = [*map(len, samples)]
    longest, size = max(lengths, default=0), math.prod(spec.shape)
    reserve_for(want, len(samples) * longest * size * _POINTER_BYTES, np.cumsum([0, *lengths]))
    nothing: Any = b"" if spec.dtype is bytes else ""
    padding = nothing if spec.default_value is None else spec.default_value
    return [rows + _rows_of_one(padding, longest - len(rows), spec.shape) for rows in samples]


def _rows_of_one(value: Any, num_rows: int, shape: tuple[int, ...]) -> list[Any]:
    nested: list[Any] = nest([value] * (num_rows * math.prod(shape)), (num_rows, *shape))
    return nested
