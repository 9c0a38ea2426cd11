"""Decode one value of a TFDS feature from a list of the record to a tensor, str or bytes.

An element knows which kind of list holds it, how many list values it takes, and how to decode them.
`leaves` handles the nesting around it (sequences, ragged rows). Source: the ``decode_example`` of
each class of ``tensorflow_datasets.core.features``, 4.9.10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, reserve
from torch_tfrecord.columns.dtypes import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    ListKind,
    cast,
    decode_text,
    from_bytes,
    nest,
)
from torch_tfrecord.columns.inflate import inflate
from torch_tfrecord.columns.reading import read_each
from torch_tfrecord.columns.stacking import stack
from torch_tfrecord.errors import ParseError
from torch_tfrecord.tfds.feature_base import Shape, fits

__all__ = [
    "BytesElement",
    "Element",
    "EncodedTensor",
    "NumberElement",
    "StringElement",
    "TextElement",
]


class Element:
    """How one value is decoded.

    Attributes:
        kind: Kind of list that holds it.
        count: List values per element; None if the shape has an unknown size, inferred from the
            list.
        what: Name of the kind of value, for errors.
        is_joint: Whether the elements of several lists can be decoded in one call, as they are
            independent.
        dtype: Dtype of the tensors; None if the values are not tensors.
        shape: Shape of one element.
    """

    kind: ListKind
    count: int | None
    what: str
    is_joint = True
    dtype: torch.dtype | None = None
    shape: Shape = ()

    def each(self, values: Any, num_lists: int) -> Any:
        """Decode one element from each of `num_lists` lists of equal length, given their
        concatenated values.

        Returns:
            A tensor [num_lists, ...], or a list.
        """
        raise NotImplementedError

    def many(self, values: Any) -> Any:
        """Decode all elements of a list: a tensor [n, ...] if they have the same shape, else a
        list.
        """
        raise NotImplementedError

    def none(self) -> Any:
        """Return zero elements: a tensor [0, ...], or an empty list."""
        return (
            []
            if self.dtype is None
            else torch.empty(0, *(size or 0 for size in self.shape), dtype=self.dtype)
        )


class NumberElement(Element):
    """Numbers stored as a list: ints and bools in an int64_list, floats in a float_list.

    Args:
        dtype: Dtype of the tensor. uint64 is bit-cast from int64, as TFDS writes it.
        shape: Shape of one element; at most one None.
    """

    dtype: torch.dtype

    def __init__(self, dtype: torch.dtype, shape: Shape) -> None:
        self.dtype, self.shape = dtype, shape
        self.kind = FLOAT_LIST if dtype.is_floating_point else INT64_LIST
        self.count = _num_values(shape)
        self.what = str(dtype).removeprefix("torch.")

    def each(self, values: npt.NDArray[Any], num_lists: int) -> torch.Tensor:
        """A tensor [num_lists, *shape]."""
        return self._cast(values).reshape(
            num_lists, *known_shape(self.shape, len(values) // num_lists)
        )

    def many(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """A tensor [n, *shape]."""
        if self.count is None:
            raise ParseError(
                "expected a shape list next to elements of unknown shape, got one list of numbers"
            )
        if not self.count:
            raise ParseError(
                "expected elements of at least one number: the record does not say how many there are"
            )
        if len(values) % self.count:
            raise ParseError(
                f"expected a multiple of {self.count} values for shape {self.shape}, got {len(values)}"
            )
        return self._cast(values).reshape(-1, *known_shape(self.shape, self.count))

    def _cast(self, values: npt.NDArray[Any]) -> torch.Tensor:
        if self.dtype == torch.uint64:
            return torch.from_numpy(values).view(torch.uint64)
        return cast(values, self.dtype)


class StringElement(Element):
    """Byte strings of a shape, returned as bytes or nested lists of bytes.

    Args:
        shape: Shape of one element; at most one None.
    """

    kind = BYTES_LIST
    what = "bytes"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.count = _num_values(shape)

    def each(self, values: Sequence[bytes], num_lists: int) -> list[Any]:
        """A list of elements, each nested according to the shape."""
        nested: list[Any] = nest(
            values, (num_lists, *known_shape(self.shape, len(values) // num_lists))
        )
        return nested

    def many(self, values: Sequence[bytes]) -> list[Any]:
        """A list of elements."""
        if not self.count or len(values) % self.count:
            raise ParseError(
                f"expected a multiple of {self.count} values for shape {self.shape}, got {len(values)}"
            )
        return self.each(values, len(values) // self.count) if len(values) else []


class BytesElement(Element):
    """One byte string per element, decoded by a function.

    Args:
        decode: Turns bytes into the value; None returns the bytes.
        what: Name of the kind of value, for errors.
    """

    kind = BYTES_LIST
    count = 1
    is_joint = False

    def __init__(self, decode: Callable[[bytes], Any] | None = None, what: str = "bytes") -> None:
        self._decode = decode
        self.what = what

    def decode(self, data: bytes) -> Any:
        """Decode one value."""
        return data if self._decode is None else self._decode(data)

    def each(self, values: Sequence[bytes], num_lists: int) -> list[Any]:
        """Decode the values without stacking them."""
        if len(values) != num_lists:
            raise ParseError(f"expected 1 value, got {len(values) // num_lists}")
        return read_each(self.decode, values)

    def many(self, values: Sequence[bytes]) -> Any:
        """Decode all values of a list."""
        reserve(len(values) * (OBJECT_BYTES if self.dtype is None else TENSOR_BYTES))
        return self.join([self.decode(value) for value in values])

    def join(self, items: list[Any]) -> Any:
        """Stack decoded elements if they have the same shape."""
        return stack(items) if items else self.none()


class TextElement(BytesElement):
    """UTF-8 text, decoded to str."""

    is_joint = True

    def __init__(self) -> None:
        super().__init__(decode_text, "Text")


class EncodedTensor(BytesElement):
    """A tensor stored as its raw bytes, optionally zlib-compressed.

    Args:
        dtype: Dtype of the tensor.
        shape: None for unknown sizes; with two or more, the record also holds the shape.
        is_zlib: Whether the bytes are compressed.
    """

    dtype: torch.dtype

    def __init__(self, dtype: torch.dtype, shape: Shape, is_zlib: bool) -> None:
        super().__init__(
            what=f"{str(dtype).removeprefix('torch.')}, {'zlib' if is_zlib else 'bytes'}"
        )
        self.dtype, self.shape, self._is_zlib = dtype, shape, is_zlib

    def decode(self, data: bytes) -> torch.Tensor:
        """Decode a tensor with at most one unknown size."""
        return self.decode_shaped(data, self.shape)

    def decode_shaped(self, data: bytes, shape: Shape) -> torch.Tensor:
        """Decode a tensor with the shape given in the record."""
        if not fits(shape, self.shape):
            raise ParseError(f"expected a shape like {self.shape}, got {shape}")
        count = _num_values(shape)
        fixed = None if count is None else count * self.dtype.itemsize
        raw = inflate(data, "zlib", fixed) if self._is_zlib else data
        if len(raw) % self.dtype.itemsize or (fixed is not None and len(raw) != fixed):
            wanted = (
                f"{fixed} bytes"
                if fixed is not None
                else f"a multiple of {self.dtype.itemsize} bytes"
            )
            raise ParseError(f"expected {wanted} for shape {shape}, got {len(raw)}")
        if not self._is_zlib:
            reserve(len(raw))
        return from_bytes(raw, self.dtype, known_shape(shape, len(raw) // self.dtype.itemsize))


def _num_values(shape: Shape) -> int | None:
    """Number of values in an element; None if a size is unknown."""
    return None if None in shape else math.prod(size for size in shape if size is not None)


def known_shape(shape: Shape, num_values: int) -> tuple[int, ...]:
    """Fill in the unknown size of a shape from the number of values.

    Raises:
        ParseError: The number of values does not fit the shape.
    """
    unknown = shape.count(None)
    fixed = math.prod(size for size in shape if size is not None)
    if unknown > 1:
        raise ParseError(f"expected the sizes of shape {shape} in the record, got none")
    fits = (
        num_values % fixed == 0
        if unknown and fixed
        else num_values == fixed or (unknown and not num_values)
    )
    if not fits:
        raise ParseError(
            f"expected {'a multiple of ' if unknown else ''}{fixed} values for {shape}, got {num_values}"
        )
    return tuple((num_values // fixed if fixed else 0) if size is None else size for size in shape)
