"""The FixedLenSequenceFeature spec (rows of equal shape, jagged or padded in a batch), and its
readers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_tfrecord.columns.containers import Nested, split_lists
from torch_tfrecord.columns.dtypes import (
    DType,
    cast,
    check_list_dtype,
    default_values,
    fixed_shape,
    nest,
)
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.reading import (
    Column,
    Ints,
    Reader,
    StepColumn,
    StepReader,
    Want,
    check_steps,
    labelled,
    list_want,
    reserve_for,
    reserve_for_values,
)
from torch_tfrecord.columns.stacking import pad_rows

__all__ = ["FixedLenSequenceFeature"]

_POINTER_BYTES = 8  # per entry of a Python list


@dataclass(frozen=True, repr=False)
class FixedLenSequenceFeature(Feature):
    """Any number of rows of the same shape.

    In an Example, one list holds all rows; in a feature list, each step is a row. A sample is a
    tensor [T, *shape], or a (nested) list with dtype ``bytes`` or ``str``. A batch from
    ``parse_example`` or ``parse_sequence_example`` is [B, longest T, *shape], padded at the end.

    Args:
        shape: Shape of one row; an int means one dimension, ``()`` a scalar.
        dtype: See :class:`FixedLenFeature`.
        allow_missing: Whether a record may lack the feature; it then has no rows. Must be True for
            an Example, as in TensorFlow.
        default_value: Padding value of a batch, one element; None means 0, ``b""`` or ``""``. Only
            for an Example.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: The dtype is unknown, or the default value has another type.
        ValueError: The shape is missing, or has an unknown or negative dimension; or the default
            value has more than one element or is out of range.

    Example:
        >>> FixedLenSequenceFeature((2,), torch.float32, allow_missing=True)
        FixedLenSequenceFeature((2,), torch.float32, allow_missing=True)
    """

    shape: tuple[int, ...]
    dtype: DType
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "shape", fixed_shape(self.shape))
        check_list_dtype(self.dtype)
        if self.default_value is not None:
            object.__setattr__(
                self, "default_value", default_values(self.default_value, (), self.dtype)
            )

    def reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        if not self.allow_missing:
            raise ValueError(
                "Unsupported: FixedLenSequenceFeature requires allow_missing to be True. "
                f"(Feature {name!r}, of an Example)"
            )
        return _RowReader(name, self, pads=pads)

    def step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list."""
        if self.default_value is not None:
            raise ValueError(
                f"Value feature_list.dense_defaults[{name}] must be None: a feature list is padded with 0"
            )
        return _RowSteps(name, self, pads=pads)


class _RowReader:
    """Reads a FixedLenSequenceFeature: [N, longest T, *shape] padded, or jagged; strings are N
    lists of rows.
    """

    def __init__(self, name: str, spec: FixedLenSequenceFeature, *, pads: bool) -> None:
        self._spec, self._pads = spec, pads
        self._want = list_want(name, spec.key_of(name), spec.dtype)
        self.wants = (self._want,)

    def read(self, columns: Sequence[Column]) -> torch.Tensor | Nested | list[Any]:
        """The batch's column."""
        size = math.prod(self._spec.shape)
        counts = np.diff(columns[0].offsets)
        wrong = counts % size if size else counts
        if wrong.any():
            raise self._want.error(
                f"Number of {self._want.kind.counted} values is not a multiple of stride length: got "
                f"{counts[wrong.argmax()]}, the number of elements should be divisible by {size} for rows of shape "
                f"{[*self._spec.shape]}"
            )
        return _rows(
            columns[0], columns[0].offsets // max(size, 1), self._want, self._spec, pads=self._pads
        )


class _RowSteps(StepReader):
    """Reads the steps of a FixedLenSequenceFeature like `_RowReader`, with each step as a row."""

    def __init__(self, name: str, spec: FixedLenSequenceFeature, *, pads: bool) -> None:
        size = math.prod(spec.shape)
        super().__init__(
            list_want(name, spec.key_of(name), spec.dtype, num_values=size, shape=spec.shape)
        )
        self.is_required = not spec.allow_missing
        self._spec, self._pads = spec, pads

    def read(
        self, lists: Sequence[StepColumn], context: object
    ) -> torch.Tensor | Nested | list[Any]:
        """The batch's column."""
        want, column = self.step_wants[0], lists[0]
        check_steps(want, column, is_required=self.is_required)
        return _rows(column.steps, column.borders, want, self._spec, pads=self._pads)


def _rows(
    column: Column, ends: Ints, want: Want, spec: FixedLenSequenceFeature, *, pads: bool
) -> torch.Tensor | Nested | list[Any]:
    """All values of a column as rows; ``ends`` are the row splits of the records."""
    shape = (int(ends[-1]), *spec.shape)
    if not isinstance(spec.dtype, torch.dtype):
        rows = split_lists(nest(labelled(want, column.strings, spec.dtype), shape), [ends.tolist()])
        return _pad_strings(want, rows, spec) if pads else rows
    values = labelled(want, cast, column.values, spec.dtype).reshape(shape)
    if pads:
        return _pad_numbers(want, values, ends, spec.default_value or 0)
    reserve_for_values(want, values.nbytes, ends)
    return Nested(values, (torch.from_numpy(ends),))


def _pad_numbers(want: Want, values: torch.Tensor, ends: Ints, padding: float) -> torch.Tensor:
    """Pad rows with the given row splits to [N, longest, ...]."""
    lengths, shape = np.diff(ends), values.shape[1:]
    longest = int(lengths.max(initial=0))
    num_values = len(lengths) * longest * math.prod(shape)
    reserve_for(want, num_values * values.dtype.itemsize, ends)
    if len(lengths) and lengths.min() == longest:
        return values.reshape(len(lengths), longest, *shape)
    return pad_rows(
        values, torch.from_numpy(ends), longest, torch.tensor(padding, dtype=values.dtype)
    )


def _pad_strings(want: Want, samples: list[list[Any]], spec: FixedLenSequenceFeature) -> list[Any]:
    """Pad the rows of strings in each record to the longest record."""
    lengths = [*map(len, samples)]
    longest, size = max(lengths, default=0), math.prod(spec.shape)
    reserve_for(want, len(samples) * longest * size * _POINTER_BYTES, np.cumsum([0, *lengths]))
    nothing = b"" if spec.dtype is bytes else ""
    padding = nothing if spec.default_value is None else spec.default_value
    missing = [longest - length for length in lengths]
    return [
        rows + nest([padding] * (number * size), (number, *spec.shape))
        for rows, number in zip(samples, missing, strict=True)
    ]
