"""The FixedLenFeature and VarLenFeature specs (one list of numbers or strings), and their
readers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.columns.containers import Nested, split_lists
from torch_tfrecord.columns.dtypes import (
    DType,
    cast,
    check_list_dtype,
    default_values,
    fixed_shape,
    nest,
    torch_dtype,
)
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.reading import (
    Column,
    Reader,
    StepColumn,
    StepReader,
    Want,
    labelled,
    list_want,
    reserve_for_values,
)

__all__ = ["FixedLenFeature", "VarLenFeature", "VarLenSteps"]

# An integer dtype of each size, to copy the bits of any dtype.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
        object.__setattr__(self, "shape", fixed_shape(self.shape))
        check_list_dtype(self.dtype)
        if self.default_value is not None:
            object.__setattr__(
                self, "default_value", default_values(self.default_value, self.shape, self.dtype)
            )

    def reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return (
            _FixedNumbers(name, self)
            if isinstance(self.dtype, torch.dtype)
            else _FixedStrings(name, self)
        )

    def context_reader(self, name: str) -> Reader:
        """Build the reader for a context; a feature whose kind is not set is an error, even with a
        default.
        """
        kind = _FixedNumbers if isinstance(self.dtype, torch.dtype) else _FixedStrings
        return kind(name, self, in_context=True)


class _FixedLenReader:
    """The shared base of the FixedLenFeature readers: what they want, and the default."""

    def __init__(self, name: str, spec: FixedLenFeature, *, in_context: bool = False) -> None:
        self._shape, self._count = spec.shape, math.prod(spec.shape)
        # an empty default counts as no default, as in TensorFlow
        self._default: Any = spec.default_value if self._count else None
        self._in_context, is_required = in_context, self._default is None
        wanted: Any = {
            "num_values": self._count,
            "is_required": is_required and not in_context,
            "shape": spec.shape,
        }
        self._want = list_want(name, spec.key_of(name), spec.dtype, **wanted)
        self.wants = (self._want,)

    def _check(self, missing: npt.NDArray[np.uint8]) -> None:
        """Raise if a record may not lack the feature; stricter in a context."""
        if self._in_context and (missing == 2).any():
            raise self._want.error(
                "Unexpected number of elements: the feature is there without a value"
            )
        if self._in_context and self._default is None:
            raise self._want.lacking()


class _FixedNumbers(_FixedLenReader):
    """Reads a FixedLenFeature of numbers: [N, *shape].

    Attributes:
        is_plain: Whether it returns the core's values unchanged, in the spec's shape.
        row_bytes: Memory for the values of one record.
    """

    def __init__(self, name: str, spec: FixedLenFeature, *, in_context: bool = False) -> None:
        super().__init__(name, spec, in_context=in_context)
        self._dtype = torch_dtype(spec.dtype)
        if self._default is not None:
            self._default = torch.tensor(self._default, dtype=self._dtype).reshape(spec.shape)
        self.row_bytes = self._count * self._dtype.itemsize
        self.is_plain = self._dtype in (torch.int64, torch.float32)
        self._is_column = (
            self.is_plain and spec.shape in ((), (self._count,)) and spec.shape != (1,)
        )

    def read(self, columns: Sequence[Column]) -> torch.Tensor:
        """The batch's column."""
        values, _, missing, _ = columns[0]
        if missing is None:
            if self._is_column:
                return torch.from_numpy(values)
        else:
            self._check(missing)
            if self._default is not None and missing.all():
                default: torch.Tensor = self._default.expand(len(values), *self._shape)
                return default.clone(memory_format=torch.contiguous_format)
        tensor = labelled(self._want, cast, values, self._dtype).reshape(len(values), *self._shape)
        if missing is not None and self._default is not None:
            bits = _BITS[self._dtype.itemsize]
            tensor.view(bits)[torch.from_numpy(missing != 0)] = self._default.view(bits)
        return tensor


class _FixedStrings(_FixedLenReader):
    """Reads a FixedLenFeature of bytes or str: a list of N values, nested by the shape.

    Attributes:
        is_plain: Whether a record has a single string.
        is_text: Whether it is returned as str.
    """

    def __init__(self, name: str, spec: FixedLenFeature, *, in_context: bool = False) -> None:
        super().__init__(name, spec, in_context=in_context)
        self._dtype = spec.dtype
        self.is_plain, self.is_text = spec.shape == (), spec.dtype is str

    def read(self, columns: Sequence[Column]) -> list[Any]:
        """The batch's column."""
        column, count, shape = columns[0], self._count, self._shape
        if column.missing is not None:
            self._check(column.missing)
        values: list[Any] = labelled(self._want, column.strings, self._dtype)
        if shape != ():
            values = [
                nest(values[row * count : (row + 1) * count], shape)
                for row in range(len(column.values))
            ]
        if column.missing is not None and self._default is not None:
            default = [self._default] if shape == () else self._default
            for row in column.missing.nonzero()[0].tolist():
                values[row] = nest(default, shape)
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

    dtype: DType

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_list_dtype(self.dtype)

    def reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        is_numbers = isinstance(self.dtype, torch.dtype)
        return (_VarLenNumbers if is_numbers else _VarLenStrings)(name, self)

    def context_reader(self, name: str) -> Reader:
        """Build the reader for a context."""
        return self.reader(name)

    def step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list."""
        return VarLenSteps(list_want(name, self.key_of(name), self.dtype), self.dtype)


class _VarLenReader:
    """The shared base of the VarLenFeature readers."""

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self._want, self._dtype = list_want(name, spec.key_of(name), spec.dtype), spec.dtype
        self.wants = (self._want,)


class _VarLenNumbers(_VarLenReader):
    """Reads a VarLenFeature of numbers: [N, *]; for `is_plain` see `_FixedNumbers`."""

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        super().__init__(name, spec)
        self.is_plain = self._dtype in (torch.int64, torch.float32)

    def read(self, columns: Sequence[Column]) -> Nested:
        """The batch's column."""
        column, want = columns[0], self._want
        values = labelled(want, cast, column.values, self._dtype)
        reserve_for_values(want, values.nbytes, column.offsets)
        return Nested(values, (torch.from_numpy(column.offsets),))


class _VarLenStrings(_VarLenReader):
    """Reads a VarLenFeature of bytes or str: a list of N lists; for the attributes see
    `_FixedStrings`.
    """

    is_plain = True

    def __init__(self, name: str, spec: VarLenFeature) -> None:
        super().__init__(name, spec)
        self.is_text = spec.dtype is str

    def read(self, columns: Sequence[Column]) -> list[list[Any]]:
        """The batch's column."""
        rows: list[list[Any]] = labelled(self._want, columns[0].strings, self._dtype, True)
        return rows


class VarLenSteps(StepReader):
    """Reads the steps of a VarLenFeature, or a RaggedFeature without partitions: [N, *, *], or N
    lists of lists.
    """

    def __init__(self, want: Want, dtype: DType) -> None:
        super().__init__(want)
        self._dtype = dtype

    def read(self, lists: Sequence[StepColumn], context: object) -> Nested | list[Any]:
        """The batch's column."""
        want, (steps, borders, _) = self.wants[0], lists[0]
        if not isinstance(self._dtype, torch.dtype):
            strings = labelled(want, steps.strings, self._dtype)
            return split_lists(strings, [borders.tolist(), steps.offsets.tolist()])
        values = labelled(want, cast, steps.values, self._dtype)
        reserve_for_values(want, values.nbytes + 8 * len(steps.offsets), borders)
        return Nested(values, (torch.from_numpy(borders), torch.from_numpy(steps.offsets)))
