"""One value of a TFDS feature: from what a list of the record holds to a tensor, str or bytes.

An element knows which list holds it, how many of the list's values it takes, and how to make elements of values. What
lies around it (sequences, ragged rows) is `leaves`'s. Source: the ``decode_example`` of each class of
``tensorflow_datasets.core.features``, 4.9.10.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import LimitExceededError, ParseError
from torch_tfrecord.features.columns import read_each
from torch_tfrecord.records.compression import MAX_INFLATED_RECORD_BYTES
from torch_tfrecord.tfds.feature_base import Shape, fits
from torch_tfrecord.values.dtypes import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    ListKind,
    cast,
    decode_text,
    from_bytes,
    nest,
)

__all__ = ["BytesElement", "Element", "EncodedTensor", "NumberElement", "StringElement", "TextElement"]


class Element:
    """One value.

    Attributes:
        kind: The list that holds it.
        count: Values of the list for one element; None where a size is not known and the list tells it.
        what: What it is, for errors.
        is_joint: Whether the elements of several lists may be made as those of one: they do not depend on each other.
        dtype: Of its tensors; None where it is none.
        shape: Of one element.
    """

    kind: ListKind
    count: int | None
    what: str
    is_joint = True
    dtype: torch.dtype | None = None
    shape: Shape = ()

    def each(self, values: Any, num_lists: int) -> Any:
        """The one element of each of some lists of equal length, whose values lie one behind the other.

        Returns:
            A tensor [num_lists, ...], or a list.
        """
        raise NotImplementedError

    def many(self, values: Any) -> Any:
        """All elements of a list: a tensor [n, ...] where they are alike, else a list."""
        raise NotImplementedError

    def none(self) -> Any:
        """No elements: a tensor [0, ...], or a list."""
        return [] if self.dtype is None else torch.empty(0, *(size or 0 for size in self.shape), dtype=self.dtype)


class NumberElement(Element):
    """Numbers in a list of their own: ints and bools in an int64_list, floats in a float_list.

    Args:
        dtype: Of the tensor. uint64 is bit-cast from int64, as TFDS writes it.
        shape: Of one element; at most one None.
    """

    dtype: torch.dtype

    def __init__(self, dtype: torch.dtype, shape: Shape) -> None:
        self.dtype, self.shape = dtype, shape
        self.kind = FLOAT_LIST if dtype.is_floating_point else INT64_LIST
        self.count = _num_values(shape)
        self.what = str(dtype).removeprefix("torch.")

    def each(self, values: npt.NDArray[Any], num_lists: int) -> torch.Tensor:
        """A tensor [num_lists, *shape]."""
        return self._cast(values).reshape(num_lists, *known_shape(self.shape, len(values) // num_lists))

    def many(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """A tensor [n, *shape]."""
        if self.count is None:
            raise ParseError("expected the sizes of elements of unknown shape beside them, got one list of numbers")
        if not self.count:
            raise ParseError("expected elements of at least one number: the record does not tell how many there are")
        if len(values) % self.count:
            raise ParseError(f"expected a multiple of {self.count} values for shape {self.shape}, got {len(values)}")
        return self._cast(values).reshape(-1, *known_shape(self.shape, self.count))

    def _cast(self, values: npt.NDArray[Any]) -> torch.Tensor:
        if self.dtype == torch.uint64:
            return torch.from_numpy(values).view(torch.uint64)
        return cast(values, self.dtype)


class StringElement(Element):
    """Bytes of any content, of a shape; as bytes, or nested lists of bytes.

    Args:
        shape: Of one element; at most one None.
    """

    kind = BYTES_LIST
    what = "bytes"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.count = _num_values(shape)

    def each(self, values: Sequence[bytes], num_lists: int) -> list[Any]:
        """A list of elements, nested as the shape says."""
        nested: list[Any] = nest(values, (num_lists, *known_shape(self.shape, len(values) // num_lists)))
        return nested

    def many(self, values: Sequence[bytes]) -> list[Any]:
        """A list of elements."""
        if not self.count or len(values) % self.count:
            raise ParseError(f"expected a multiple of {self.count} values for shape {self.shape}, got {len(values)}")
        return self.each(values, len(values) // self.count) if len(values) else []


class BytesElement(Element):
    """One bytes value for each element, decoded by a function; the bytes themselves where there is none.

    Args:
        decode: From bytes to the value.
        what: For errors.
    """

    kind = BYTES_LIST
    count = 1
    is_joint = False

    def __init__(self, decode: Callable[[bytes], Any] | None = None, what: str = "bytes") -> None:
        self._decode = decode
        self.what = what

    def decode(self, data: bytes) -> Any:
        """One value."""
        return data if self._decode is None else self._decode(data)

    def each(self, values: Sequence[bytes], num_lists: int) -> list[Any]:
        """The values, which are not stacked."""
        if len(values) != num_lists:
            raise ParseError(f"expected 1 value, got {len(values) // num_lists}")
        return read_each(self.decode, values)

    def many(self, values: Sequence[bytes]) -> Any:
        """All of them."""
        return self.join([self.decode(value) for value in values])

    def join(self, items: list[Any]) -> Any:
        """Make one thing of decoded elements."""
        return _stack_alike(items) if items else self.none()


class TextElement(BytesElement):
    """A str."""

    is_joint = True

    def __init__(self) -> None:
        super().__init__(decode_text, "Text")


class EncodedTensor(BytesElement):
    """A tensor as its bytes, or these in a zlib stream.

    Args:
        dtype: Of the tensor.
        shape: None for unknown sizes; with two or more the record holds the shape beside the bytes.
        is_zlib: Whether the bytes are compressed.
    """

    dtype: torch.dtype

    def __init__(self, dtype: torch.dtype, shape: Shape, is_zlib: bool) -> None:
        super().__init__(what=f"{str(dtype).removeprefix('torch.')}, {'zlib' if is_zlib else 'bytes'}")
        self.dtype, self.shape, self._is_zlib = dtype, shape, is_zlib

    def decode(self, data: bytes) -> torch.Tensor:
        """The tensor, whose shape is known but for one size."""
        return self.decode_shaped(data, self.shape)

    def decode_shaped(self, data: bytes, shape: Shape) -> torch.Tensor:
        """The tensor of a shape that the record tells."""
        if not fits(shape, self.shape):
            raise ParseError(f"expected a shape like {self.shape}, got {shape}")
        count = _num_values(shape)
        fixed = None if count is None else count * self.dtype.itemsize
        if self._is_zlib and fixed is not None:
            reserve(fixed)
        raw = _inflate(data, fixed) if self._is_zlib else data
        if len(raw) % self.dtype.itemsize or (fixed is not None and len(raw) != fixed):
            wanted = f"{fixed} bytes" if fixed is not None else f"a multiple of {self.dtype.itemsize} bytes"
            raise ParseError(f"expected {wanted} for shape {shape}, got {len(raw)}")
        if not self._is_zlib or fixed is None:
            reserve(len(raw))
        return from_bytes(raw, self.dtype, known_shape(shape, len(raw) // self.dtype.itemsize))


def _num_values(shape: Shape) -> int | None:
    """How many values an element has; None where a size is not known."""
    return None if None in shape else math.prod(size for size in shape if size is not None)


def known_shape(shape: Shape, num_values: int) -> tuple[int, ...]:
    """The shape with its one unknown size found from the number of values.

    Raises:
        ParseError: They do not fit.
    """
    unknown = shape.count(None)
    fixed = math.prod(size for size in shape if size is not None)
    if unknown > 1:
        raise ParseError(f"expected the sizes of shape {shape} in the record, got none")
    fits = num_values % fixed == 0 if unknown and fixed else num_values == fixed or (unknown and not num_values)
    if not fits:
        raise ParseError(f"expected {'a multiple of ' if unknown else ''}{fixed} values for {shape}, got {num_values}")
    return tuple((num_values // fixed if fixed else 0) if size is None else size for size in shape)


def _stack_alike(items: list[Any]) -> Any:
    """Stack tensors of one shape; everything else stays a list."""
    first = items[0] if items else None
    if not isinstance(first, torch.Tensor) or any(
        not isinstance(item, torch.Tensor) or item.shape != first.shape or item.dtype != first.dtype for item in items
    ):
        return items
    reserve(len(items) * first.nbytes)
    return torch.stack(items)


def _inflate(data: bytes, num_bytes: int | None) -> bytes:
    limit = MAX_INFLATED_RECORD_BYTES if num_bytes is None else num_bytes
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise ParseError("expected a zlib stream, got bytes that are none") from error
    if num_bytes is None and len(raw) > limit:
        raise LimitExceededError(f"a zlib stream of more than {limit} bytes")
    if len(raw) > limit or not inflater.eof or inflater.unused_data:
        raise ParseError(f"expected a whole zlib stream{'' if num_bytes is None else f' of {num_bytes} bytes'}")
    return raw
