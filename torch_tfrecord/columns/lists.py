"""The specs of one list of numbers or strings, and their readers: FixedLenFeature (as many values in
each record), VarLenFeature (any number) and FixedLenSequenceFeature (rows of equal shape).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import knows_keywords
from torch_tfrecord.batch_memory import Array, Ints, as_array, as_tensor, pad_rows, splits_of
from torch_tfrecord.columns.containers import Nested, split_lists
from torch_tfrecord.columns.dtypes import (
    DType,
    cast_array,
    check_list_dtype,
    default_values,
    fixed_shape,
    nest,
)
from torch_tfrecord.columns.feature import Feature, Layout
from torch_tfrecord.columns.reading import (
    Column,
    Reader,
    StepColumn,
    StepReader,
    Want,
    check_steps,
    labelled,
    read_record,
    read_records,
    reserve_for,
    reserve_for_values,
)
from torch_tfrecord.samples import Value

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "ListSteps",
    "VarLenFeature",
    "VarLenReader",
]

# The dtypes of the lists themselves: the core's values need no cast.
_STORED = (torch.int64, torch.float32)
_POINTER_BYTES = 8  # per entry of a Python list


@knows_keywords
@dataclass(frozen=True, repr=False)
class FixedLenFeature(Feature):
    """A feature with the same number of values in every record.

    A sample is a tensor of ``shape`` (``[B, *shape]`` in a batch); with dtype ``bytes`` or ``str``,
    a single value for shape ``()``, else a (nested) list.

    Args:
        shape: Sizes of all dimensions; an int means one dimension, ``()`` a scalar.
        dtype: A torch dtype, ``bytes`` or ``str``. bool and integers are read from an int64_list,
            floats from a float_list, bytes and str (strict UTF-8) from a bytes_list. A value
            outside the dtype's range raises ParseError.
        default_value: Used if the record lacks the feature; has as many values as ``shape`` (stored
            flat). Without it, a record that lacks the feature raises ParseError. A list that is
            present but empty always raises it.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: The dtype is unknown, or the default value has another type.
        ValueError: The shape is missing, or has an unknown or negative dimension; or the default
            value has the wrong number of values or is out of range.

    Example:
        >>> FixedLenFeature((), torch.int64, -1)
        FixedLenFeature((), torch.int64, default_value=-1)
    """

    shape: tuple[int, ...]
    dtype: DType
    default_value: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        _check_fields(self, fixed_shape(self.shape))

    def _layout(self) -> Layout:
        return self.dtype, self.shape

    def _reader(self, name: str, *, pads: bool = False, in_context: bool = False) -> Reader:
        """Build the reader for Examples."""
        return _FixedReader(name, self, in_context=in_context)

    def _context_reader(self, name: str) -> Reader:
        """Build the reader for a context; a feature whose kind is not set is an error, even with a
        default.
        """
        return self._reader(name, in_context=True)


def _check_fields(
    spec: FixedLenFeature | FixedLenSequenceFeature, default_shape: tuple[int, ...]
) -> None:
    """Check the shape, the dtype, and a default of another shape."""
    object.__setattr__(spec, "shape", fixed_shape(spec.shape))
    check_list_dtype(spec.dtype)
    default = spec.default_value
    if default is not None:
        default = default_values(default, default_shape, spec.dtype)
        object.__setattr__(spec, "default_value", default)


class _FixedReader:
    """Reads a FixedLenFeature: numbers as [N, *shape], strings as a list of N values, nested by the
    shape.

    Attributes:
        is_plain: Whether it returns the core's values unchanged, in the spec's shape.
        is_text: Whether strings are returned as str.
    """

    def __init__(self, name: str, spec: FixedLenFeature, *, in_context: bool) -> None:
        self._shape, self._count, self._dtype = spec.shape, math.prod(spec.shape), spec.dtype
        # an empty default counts as no default, as in TensorFlow
        self._default: Any = spec.default_value if self._count else None
        self._in_context = in_context
        self._want = Want(
            name,
            spec._key_of(name),
            spec.dtype,
            num_values=self._count,
            # in a context `_check` says it, with TensorFlow's texts
            is_required=self._default is None and not in_context,
            shape=spec.shape,
        )
        self.wants = (self._want,)
        self.is_text = spec.dtype is str
        self.is_plain = spec.dtype in _STORED
        # The column's array is the batch's tensor as it is: no cast, no reshape. The core gives
        # single values as [N], so the shape (1,) takes a reshape.
        self._is_column = self.is_plain and len(self._shape) < 2 and self._shape != (1,)
        if not isinstance(spec.dtype, torch.dtype):
            self.is_plain = spec.shape == ()
        elif self._default is not None:
            # Bit for bit: a NaN or a float8 keeps its bits.
            default = torch.tensor(self._default, dtype=spec.dtype, device="cpu").reshape(-1)
            self._default = default.view(torch.uint8).numpy().view(f"V{default.nbytes}")

    def read(self, columns: Sequence[Column]) -> torch.Tensor | list[Value]:
        """The batch's column."""
        values, _, missing, _ = columns[0]
        if missing is not None:
            self._check(missing)
        elif self._is_column:
            # The common case, and worth a shortcut: a batch may have forty such columns.
            return torch.from_numpy(values)
        if not isinstance(self._dtype, torch.dtype):
            return self._strings(columns[0], self._dtype)
        if not self.is_plain:
            reserve_for(self._want, values.size * self._dtype.itemsize)
        array = labelled(self._want, cast_array, values, self._dtype)
        if missing is not None and self._default is not None:
            np.putmask(array.view(self._default.dtype).reshape(-1), missing != 0, self._default)
        return as_tensor(array, self._dtype, (len(values), *self._shape))

    def _check(self, missing: npt.NDArray[np.uint8]) -> None:
        """Raise if a record may not lack the feature; stricter in a context."""
        # Odd, but TensorFlow's: in an Example such a feature gets the default.
        if self._in_context and (missing == 2).any():
            raise self._want.error(
                "Unexpected number of elements: the feature is there without a value"
            )
        if self._in_context and self._default is None:
            raise self._want.lacking()

    def _strings(self, column: Column, dtype: DType) -> list[Value]:
        shape = len(column.values), *self._shape
        values: list[Value] = nest(labelled(self._want, column.strings, dtype), shape)
        if column.missing is not None and self._default is not None:
            default = self._default if self._shape else [self._default]
            for row in column.missing.nonzero()[0].tolist():
                values[row] = nest(default, self._shape)
        return values


@dataclass(frozen=True, repr=False)
class VarLenFeature(Feature):
    """A feature with any number of values, including none; a record that lacks it has none.

    A sample is a 1-D tensor, a batch a jagged nested tensor. With dtype ``bytes`` or ``str``, a
    sample is a list and a batch a list of lists.

    Args:
        dtype: See :class:`FixedLenFeature`.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: The dtype is unknown.
        ValueError: The dtype is missing.

    Example:
        >>> VarLenFeature(torch.float32, key="scores")
        VarLenFeature(torch.float32, key='scores')
    """

    _may_lack = True

    dtype: DType

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_list_dtype(self.dtype)

    def _layout(self) -> Layout:
        return self.dtype, (None,)

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return VarLenReader(name, self)

    def _context_reader(self, name: str) -> Reader:
        """Build the reader for a context."""
        return self._reader(name)

    def _step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list."""
        return ListSteps(self._reader(name))


class VarLenReader:
    """Reads a VarLenFeature, or a RaggedFeature without partitions: [N, *], or N lists.

    For the attributes see `_FixedReader`.
    """

    def __init__(self, name: str, spec: Any) -> None:
        dtype = self._dtype = spec.dtype
        self._want = Want(name, spec._key_of(name), dtype)
        self.wants, self.is_text = (self._want,), dtype is str
        self.is_plain = dtype in _STORED or not isinstance(dtype, torch.dtype)

    def read(self, columns: Sequence[Column]) -> Nested | list[Value]:
        """The batch's column."""
        column, want = columns[0], self._want
        if not isinstance(self._dtype, torch.dtype):
            # The core builds the list of each row as it goes.
            return labelled(want, column.strings, self._dtype, True)
        values = labelled(want, cast_array, column.values, self._dtype)
        reserve_for_values(want, values.nbytes, column.offsets)
        return Nested(values, self._dtype, (column.offsets,))


class ListSteps(StepReader):
    """Reads the steps of a VarLenFeature or RaggedFeature as records of a batch: one more ragged
    dimension than those have, or nested lists.

    Args:
        reader: Reads the spec from an Example.
        validate: Whether the feature lists in a record must have one length.
    """

    def __init__(self, reader: Reader, *, validate: bool = True) -> None:
        super().__init__(*reader.wants)
        self._reader, self._validate = reader, validate

    def read(self, lists: Sequence[StepColumn], context: object) -> Nested | list[Value]:
        """The batch's column."""
        borders, columns = lists[0].borders, [lists[0].steps]
        if len(lists) > 1:
            lengths = np.stack([np.diff(column.borders) for column in lists])
            self._check_lengths(lengths, np.stack([column.missing for column in lists]))
            borders = splits_of(lengths.max(axis=0))
            columns = [_with_empty_steps(column, borders) for column in lists]
        # Errors name the step if there is a single record; a batch is read again record by record.
        found = (
            read_record(self._reader, columns)
            if len(borders) == 2
            else read_records(self._reader, columns, borders)
        )
        if isinstance(found, list):
            return split_lists(found, [borders.tolist()])
        return Nested(found.values, found.dtype, (borders, *found.row_splits))

    def _check_lengths(self, lengths: Ints, missing: npt.NDArray[np.uint8]) -> None:
        """Check that all feature lists in a record have the same length; missing ones are empty in
        every step.
        """
        wrong = ((lengths != lengths.max(axis=0)) & (missing == 0)).any(axis=0)
        if self._validate and wrong.any():
            row = wrong.argmax()
            each = zip(self.wants, lengths[:, row].tolist(), missing[:, row].tolist(), strict=True)
            found = {want.key: length for want, length, is_missing in each if not is_missing}
            raise self.wants[0].error(f"expected feature lists of equal length, got {found}")


def _with_empty_steps(column: StepColumn, borders: Ints) -> Column:
    """The steps, with empty steps appended to records that have fewer than their other lists."""
    steps, own, _ = column
    if (own == borders).all():
        return steps
    # A partition of a step that its list lacks is an empty one.
    counts = np.zeros(borders[-1], np.int64)
    # Where each stored step stands, once every record has all of its steps.
    counts[np.arange(own[-1]) + np.repeat(borders[:-1] - own[:-1], np.diff(own))] = np.diff(
        steps.offsets
    )
    return steps._replace(offsets=splits_of(counts))


@dataclass(frozen=True, repr=False)
class FixedLenSequenceFeature(Feature):
    """Any number of rows of the same shape.

    In an Example, one list has all rows; in a feature list, each step is a row. A sample is a
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

    _may_lack = True

    shape: tuple[int, ...]
    dtype: DType
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        _check_fields(self, ())

    def _layout(self) -> Layout:
        return self.dtype, (None, *self.shape)

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        if not self.allow_missing:
            raise ValueError(
                "Unsupported: FixedLenSequenceFeature requires allow_missing to be True. "
                f"(Feature {name!r}, of an Example)"
            )
        return _RowReader(name, self, pads=pads)

    def _step_reader(self, name: str, *, pads: bool = False) -> StepReader:
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
        self._want = Want(name, spec._key_of(name), spec.dtype)
        self.wants = (self._want,)

    def read(self, columns: Sequence[Column]) -> torch.Tensor | Nested | list[Value]:
        """The batch's column."""
        size = math.prod(self._spec.shape)
        # Row splits of values become row splits of rows if each list is whole rows.
        counts = np.diff(columns[0].offsets)
        # Rows of no values cannot be counted, so only an empty list can be such rows.
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
            Want(name, spec._key_of(name), spec.dtype, num_values=size, shape=spec.shape)
        )
        self.is_required = not spec.allow_missing
        self._spec, self._pads = spec, pads

    def read(
        self, lists: Sequence[StepColumn], context: object
    ) -> torch.Tensor | Nested | list[Value]:
        """The batch's column."""
        want, column = self.step_wants[0], lists[0]
        check_steps(want, column, is_required=self.is_required)
        return _rows(column.steps, column.borders, want, self._spec, pads=self._pads)


def _rows(
    column: Column, ends: Ints, want: Want, spec: FixedLenSequenceFeature, *, pads: bool
) -> torch.Tensor | Nested | list[Value]:
    """All values of a column as rows; ``ends`` are the row splits of the records."""
    shape, dtype = (int(ends[-1]), *spec.shape), spec.dtype
    if not isinstance(dtype, torch.dtype):
        strings = labelled(want, column.strings, dtype)
        rows = split_lists(nest(strings, shape), [ends.tolist()])
        return _pad_strings(want, rows, spec) if pads else rows
    values = labelled(want, cast_array, column.values, dtype)
    if pads:
        values = values.reshape(shape[0], math.prod(spec.shape))
        padding = torch.tensor(spec.default_value or 0, dtype=dtype, device="cpu")
        padded = _pad_numbers(want, values, ends, as_array(padding))
        return as_tensor(padded, dtype, (*padded.shape[:2], *spec.shape))
    reserve_for_values(want, values.nbytes, ends)
    try:
        return Nested(values.reshape(shape), dtype, (ends,))
    except ValueError:  # NumPy has no more than 32 dimensions, and no sizes beyond 2**63 bytes
        return Nested(as_tensor(values, dtype, shape), dtype, (ends,))


def _pad_numbers(want: Want, values: Array, ends: Ints, padding: Array) -> Array:
    """Pad rows [M, size] with the given row splits to [N, longest, size]."""
    lengths, size = np.diff(ends), values.shape[1]
    longest = int(lengths.max(initial=0))
    reserve_for(want, len(lengths) * longest * size * values.itemsize, ends)
    # Nothing to pad, and so nothing to copy.
    if len(lengths) and lengths.min() == longest:
        return values.reshape(len(lengths), longest, size)
    return pad_rows(values, ends, longest, padding)


def _pad_strings(
    want: Want, samples: list[list[Value]], spec: FixedLenSequenceFeature
) -> list[Value]:
    """Pad the rows of strings in each record to the longest record."""
    lengths = [*map(len, samples)]
    longest, size = max(lengths, default=0), math.prod(spec.shape)
    # Padding is one string many times over, so that each takes only a pointer.
    reserve_for(want, len(samples) * longest * size * _POINTER_BYTES, splits_of(lengths))
    nothing = b"" if spec.dtype is bytes else ""
    padding = nothing if spec.default_value is None else spec.default_value
    missing = [longest - length for length in lengths]
    return [
        # Each record gets nested padding of its own, so that no two share a list.
        rows + nest([padding] * (number * size), (number, *spec.shape))
        for rows, number in zip(samples, missing, strict=True)
    ]
