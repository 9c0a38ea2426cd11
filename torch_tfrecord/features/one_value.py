"""The RawTensor, SerializedTensor and Text specs (one bytes value), and their readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.errors import ParseError
from torch_tfrecord.features.columns import NO_OFFSETS, Column, Ints, Reader, Want, labelled, read_each
from torch_tfrecord.features.feature import Feature
from torch_tfrecord.features.spec_checks import check_list_dtype, shape_with_names
from torch_tfrecord.features.steps import ReadContext, StepColumn, StepReader, check_steps, part_of, read_record
from torch_tfrecord.values.dtypes import BYTES_LIST, INT64_LIST, decode_text, dtype_name, from_bytes, list_kind
from torch_tfrecord.values.stacking import stack
from torch_tfrecord.values.tensors import parse_tensor

__all__ = ["OneValueReader", "OneValueSpec", "RawTensor", "SerializedTensor", "Shape", "Text"]

Shape: TypeAlias = tuple[Any, ...]
"""The shape of one value: ints, -1 or None."""
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_ONE: Any = {"num_values": 1, "is_required": True}


class OneValueSpec:
    """The shared base of specs of one bytes value, which can be used in an Example, a context or a feature list."""

    def reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        raise NotImplementedError

    def context_reader(self, name: str) -> Reader:
        """Build the reader for a context."""
        return self.reader(name)

    def step_reader(self, name: str, *, pads: bool = False) -> StepReader:
        """Build the reader for a feature list."""
        return _ValueSteps(self.reader(name), pads=pads)


@dataclass(frozen=True, repr=False)
class RawTensor(OneValueSpec, Feature):
    """The raw bytes of an array in one bytes value: little-endian, row-major, without a header.

    A sample is a tensor of ``shape``; a batch is stacked if all shapes are equal, else a list.

    Args:
        shape: An entry is an int, -1 (at most one, inferred from the number of bytes) or the key of another feature of
            the record that holds one integer. The number of bytes must match exactly, else ParseError.
        dtype: A torch dtype with whole bytes per element.
        key: Name of the feature in the record, if it differs from the output's name.

    Raises:
        TypeError: The dtype is unknown, or an entry of ``shape`` has another type.
        ValueError: The shape or dtype is missing, a dimension is negative, or there is more than one -1.

    Example:
        >>> RawTensor(("height", "width", 3), torch.uint8, key="image_raw")
        RawTensor(('height', 'width', 3), torch.uint8, key='image_raw')
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.shape is None:
            raise ValueError("Missing shape: pass a tuple; -1 means one unknown dimension")
        shape = shape_with_names(self.shape, "an int, -1 or the key of a feature", unknown=-1)
        if shape.count(-1) > 1:
            raise ValueError(f"shape must have at most one -1, got {shape!r}")
        object.__setattr__(self, "shape", shape)
        if not isinstance(self.dtype, torch.dtype) or (list_kind(self.dtype) is None and self.dtype not in _COMPLEX):
            check_list_dtype(self.dtype)
            raise TypeError(f"dtype must be a torch dtype with whole bytes per element, got {dtype_name(self.dtype)}")

    def reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return OneValueReader(name, self, self._read, self.shape)

    def _read(self, data: memoryview, shape: Shape) -> torch.Tensor:
        row_bytes = math.prod(size for size in shape if size != -1) * self.dtype.itemsize
        if -1 in shape and row_bytes and len(data) % row_bytes == 0:
            shape = tuple(len(data) // row_bytes if size == -1 else size for size in shape)
        elif -1 in shape or len(data) != row_bytes:
            wanted = f"{row_bytes} bytes" if -1 not in shape else f"a multiple of {row_bytes} bytes"
            raise ParseError(f"expected {wanted} for shape {[*shape]} of {dtype_name(self.dtype)}, got {len(data)}")
        return from_bytes(data, self.dtype, shape)


@dataclass(frozen=True, repr=False)
class SerializedTensor(OneValueSpec, Feature):
    """A tensor written by ``tf.io.serialize_tensor`` (a TensorProto), in one bytes value.

    A sample is the stored tensor with its shape and dtype, or a (nested) list of bytes for a string tensor. A batch is
    stacked if all shapes and dtypes are equal, else a list.

    Args:
        key: Name of the feature in the record, if it differs from the output's name.
    """

    def reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return OneValueReader(name, self, lambda data, shape: parse_tensor(data))


@dataclass(frozen=True, repr=False)
class Text(OneValueSpec, Feature):
    """One string in strict UTF-8. A sample is a str, a batch a list of str.

    Args:
        key: Name of the feature in the record, if it differs from the output's name.
    """

    def reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return _TextReader(name, self, lambda data, shape: decode_text(data))


class OneValueReader:
    """Reads a single bytes value.

    Args:
        name: Name of the output.
        spec: Its spec.
        convert: Turns the stored bytes and the record's shape into a value. The bytes are a view of a buffer that may
            be reused after the call.
        shape: The shape in the spec; names of other features are replaced with their values.
    """

    def __init__(
        self,
        name: str,
        spec: Feature,
        convert: Callable[[memoryview, Shape], object],
        shape: Sequence[int | str | None] = (),
    ) -> None:
        self._convert = convert
        self._want = Want(name, spec.key_of(name), BYTES_LIST, type(spec).__name__, **_ONE)
        self._shape = [
            Want(name, entry, INT64_LIST, "size", **_ONE) if isinstance(entry, str) else entry for entry in shape
        ]
        self.wants = (self._want, *(entry for entry in self._shape if isinstance(entry, Want)))

    def read(self, columns: Sequence[Column]) -> torch.Tensor | list[Any]:
        """The batch's column: one tensor [N, ...] if all shapes and dtypes are equal, else a list."""
        return labelled(self._want, self.from_values, columns[0].views(), self._shapes(columns))

    def from_values(self, values: Sequence[memoryview], shapes: Sequence[Shape]) -> torch.Tensor | list[Any]:
        """The column of several values with their shapes."""
        return stack(read_each(lambda found: self._convert(*found), zip(values, shapes, strict=True)))

    def _shapes(self, columns: Sequence[Column]) -> list[Shape]:
        """The shape of each record's value."""
        num_records, sizes = len(columns[0].values), iter(columns[1:])
        if len(columns) == 1:
            return [tuple(self._shape)] * num_records
        entries = [
            _sizes(entry, next(sizes)) if isinstance(entry, Want) else [entry] * num_records for entry in self._shape
        ]
        return list(zip(*entries, strict=True))


def _sizes(want: Want, column: Column) -> list[int]:
    sizes: list[int] = column.values.tolist()
    if min(sizes, default=0) < 0:
        raise want.error(f"expected a size, got {min(sizes)}")
    return sizes


class _TextReader(OneValueReader):
    """Reads a Text: a list of N str, one per record."""

    is_plain = is_text = True

    def read(self, columns: Sequence[Column]) -> list[str]:
        return labelled(self._want, columns[0].strings, str)


class _ValueSteps(StepReader):
    """Reads the steps of a spec of one bytes value. Sizes come from the step or the context.

    A sample is stacked if all steps have the same shape and dtype (images to a ``tv_tensors.Video``), else a list.

    Args:
        reader: Reads the spec from an Example.
        pads: Whether samples of equal shape are stacked, too; else the column is a list of samples.
    """

    is_required = True

    def __init__(self, reader: Reader, *, pads: bool) -> None:
        super().__init__(*reader.wants)
        self._reader, self._pads = reader, pads
        self.context_wants = self.wants[1:]

    def read(self, lists: Sequence[StepColumn], context: ReadContext) -> torch.Tensor | list[Any]:
        """The batch's column."""
        want, borders = self.step_wants[0], lists[0].borders
        check_steps(want, lists[0], is_required=True)
        pairs = enumerate(zip(self.step_wants[1:], lists[1:], strict=True))
        sizes = [_step_sizes(want, column, borders, context, place) for place, (want, column) in pairs]
        columns = [lists[0].steps._replace(offsets=NO_OFFSETS), *sizes]
        samples = read_each(lambda ends: self._sample(columns, *ends), pairwise(borders.tolist()))
        return labelled(want, stack, samples) if self._pads else samples

    def _sample(self, columns: Sequence[Column], begin: int, end: int) -> torch.Tensor | list[Any]:
        """Read one record's steps as a batch of records."""
        if begin == end:
            return []
        found: torch.Tensor | list[Any] = read_record(self._reader, [part_of(column, begin, end) for column in columns])
        return tv_tensors.Video(found) if isinstance(found, tv_tensors.Image) else found


def _step_sizes(want: Want, column: StepColumn, borders: Ints, context: ReadContext, place: int) -> Column:
    """One number per step: from the step if the record's list has one per step, else from the context.

    Raises:
        ParseError: There is not exactly one number per step.
    """
    lengths = np.diff(borders)
    record = np.repeat(np.arange(len(lengths)), lengths)
    number = np.arange(borders[-1]) - borders[record]
    is_own = number < np.diff(column.borders)[record]
    values = np.zeros(len(record), np.int64)
    values[is_own] = _one_each(want, column.steps, (column.borders[record] + number)[is_own])
    if not is_own.all():
        values[~is_own] = _one_each(want, context()[place], record[~is_own])
    return Column(values, NO_OFFSETS, None, b"")


def _one_each(want: Want, column: Column, rows: Ints) -> Ints:
    begins = column.offsets[rows]
    if (column.offsets[rows + 1] - begins != 1).any():
        raise want.error("expected one value")
    found: Ints = column.values[begins]
    return found
