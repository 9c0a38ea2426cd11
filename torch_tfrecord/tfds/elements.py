"""Decode one value of a TFDS feature from a list of the record to a tensor, str or bytes.

An element knows which kind of list holds it, how many list values it takes, and how to decode them.
`leaves` handles the nesting around it (sequences, ragged rows). Source: the ``decode_example`` of
each class of ``tensorflow_datasets.core.features``, 4.9.10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

import torch_tfrecord.tfds.features as f
from torch_tfrecord.batch_memory import OBJECT_BYTES, TENSOR_BYTES, reserve
from torch_tfrecord.columns import (
    DType,
    cast,
    decode_text,
    from_bytes,
    inflate,
    nest,
    stack,
)
from torch_tfrecord.errors import ParseError, read_each
from torch_tfrecord.media import decode_image, decode_sound, read_wav
from torch_tfrecord.tfds.features import Shape, fits

__all__ = [
    "BytesElement",
    "Element",
    "EncodedTensor",
    "NumberElement",
    "PictureElement",
    "StringElement",
    "TextElement",
    "decoded_sound",
]

_Numbers: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32]"
_Pixels: TypeAlias = "npt.NDArray[Any]"


class Element:
    """How one value is decoded.

    Attributes:
        stored: Dtype of the list that has it.
        count: List values per element; None if the shape has an unknown size, inferred from the
            list.
        what: Name of the kind of value, for errors.
        is_joint: Whether the elements of several lists can be decoded in one call, as they are
            independent.
        dtype: Dtype of the tensors; None if the values are not tensors.
        shape: Shape of one element.
        is_text, is_encoded: Whether each value is UTF-8, or other bytes that `decode` reads.
        plain_mode: The mode of `decode_image` that gives the value, a `tv_tensors.Image`; None if
            that takes more, or the value is no image.
    """

    stored: DType
    count: int | None
    what: str
    is_joint = True
    dtype: torch.dtype | None = None
    shape: Shape = ()
    is_text = is_encoded = False
    plain_mode: str | None = None

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
        if self.count is None and not len(values):
            return self.none()
        if not self.count:
            found = "string" if self.dtype is None else "number"
            raise ParseError(
                f"expected a shape list next to elements of unknown shape, got one list of {found}s"
                if self.count is None
                else f"expected elements of at least one {found}: the record does not say how many there are"
            )
        if len(values) % self.count:
            raise ParseError(
                f"expected a multiple of {self.count} values for shape {self.shape}, got {len(values)}"
            )
        return self.each(values, len(values) // self.count) if len(values) else self.none()

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
        # Bools are stored as integers.
        self.stored = torch.float32 if dtype.is_floating_point else torch.int64
        self.count = _num_values(shape)
        self.what = str(dtype).removeprefix("torch.")

    def each(self, values: _Numbers, num_lists: int) -> torch.Tensor:
        """A tensor [num_lists, *shape]."""
        # The list holds int64 of the same bits, as protobuf has no list of uint64.
        is_unsigned = self.dtype == torch.uint64
        tensor = (
            torch.from_numpy(values).view(self.dtype) if is_unsigned else cast(values, self.dtype)
        )
        return tensor.reshape(num_lists, *known_shape(self.shape, len(values) // num_lists))


class StringElement(Element):
    """Byte strings of a shape, returned as bytes or nested lists of bytes.

    Args:
        shape: Shape of one element; at most one None.
    """

    stored = bytes
    what = "bytes"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.count = _num_values(shape)

    def each(self, values: Sequence[bytes], num_lists: int) -> list[object]:
        """A list of elements, each nested according to the shape."""
        nested: list[object] = nest(
            values, (num_lists, *known_shape(self.shape, len(values) // num_lists))
        )
        return nested


class BytesElement(Element):
    """One byte string per element, decoded by a function.

    Args:
        decode: Turns bytes into the value; None returns the bytes.
        what: Name of the kind of value, for errors.
    """

    stored = bytes
    count = 1
    is_joint = False
    is_encoded = True

    def __init__(
        self, decode: Callable[[bytes], object] | None = None, what: str = "bytes"
    ) -> None:
        self._decode = decode
        self.what = what

    def decode(self, data: bytes) -> object:
        """Decode one value."""
        return data if self._decode is None else self._decode(data)

    def each(self, values: Sequence[bytes], num_lists: int) -> list[object]:
        """Decode the values without stacking them."""
        # The lists are of equal length, so that one that holds more shows here.
        if len(values) != num_lists:
            raise ParseError(f"expected 1 value, got {len(values) // num_lists}")
        # An error of the memory budget then names the record.
        return read_each(self.decode, values)

    def many(self, values: Sequence[bytes]) -> object:
        """Decode all values of a list."""
        # A list of empty strings takes next to nothing in the record.
        reserve(len(values) * (OBJECT_BYTES if self.dtype is None else TENSOR_BYTES))
        return self.join([self.decode(value) for value in values])

    def join(self, items: list[object]) -> object:
        """Stack decoded elements if they have the same shape."""
        return stack(items) if items else self.none()


class TextElement(BytesElement):
    """UTF-8 text, decoded to str."""

    is_joint = is_text = True
    is_encoded = False

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

    def decode(self, data: bytes, shape: Shape | None = None) -> torch.Tensor:
        """Decode a tensor, with the shape in the record or at most one unknown size."""
        shape = self.shape if shape is None else shape
        if not fits(shape, self.shape):
            raise ParseError(f"expected a shape like {self.shape}, got {shape}")
        count = _num_values(shape)
        # zlib is inflated up to this size only, since a few bytes may stand for gigabytes.
        fixed = None if count is None else count * self.dtype.itemsize
        raw = inflate(data, "zlib", fixed) if self._is_zlib else data
        if len(raw) % self.dtype.itemsize or (fixed is not None and len(raw) != fixed):
            wanted = (
                f"{fixed} bytes"
                if fixed is not None
                else f"a multiple of {self.dtype.itemsize} bytes"
            )
            raise ParseError(f"expected {wanted} for shape {shape}, got {len(raw)}")
        # `inflate` reserves what it makes.
        if not self._is_zlib:
            reserve(len(raw))
        return from_bytes(raw, self.dtype, known_shape(shape, len(raw) // self.dtype.itemsize))


def _num_values(shape: Shape) -> int | None:
    """Number of values in an element; None if a size is unknown."""
    return None if None in shape else math.prod(size or 0 for size in shape)


def known_shape(shape: Shape, num_values: int) -> tuple[int, ...]:
    """Fill in the unknown size of a shape from the number of values.

    Raises:
        ParseError: The number of values does not fit the shape.
    """
    unknown = shape.count(None)
    fixed = math.prod(size for size in shape if size is not None)
    if unknown > 1:
        raise ParseError(f"expected the sizes of shape {shape} in the record, got none")
    # An unknown size beside a size of 0 may be any: 0 is taken, as in NumPy.
    found = num_values // fixed if fixed else 0
    if num_values != fixed * (found if unknown else 1):
        raise ParseError(
            f"expected {'a multiple of ' if unknown else ''}{fixed} values for {shape}, got {num_values}"
        )
    return tuple(found if size is None else size for size in shape)


_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Number of channels -> mode of `decode_image`, for uint8 images."""


class PictureElement(BytesElement):
    """An image: uint8, uint16, or float32 stored in the four bytes of RGBA pixels.

    Args:
        feature: Gives shape and dtype; a `LabeledImage` has class numbers as pixels.
        as_numpy_layout: Return plain tensors [H, W, C] instead of `tv_tensors.Image` or `Mask` [C,
            H, W].
        is_video: Join several images to a `tv_tensors.Video`.
    """

    def __init__(
        self, feature: f.Image | f.LabeledImage, as_numpy_layout: bool, is_video: bool = False
    ) -> None:
        super().__init__(what="Image")
        self.shape, self.dtype = feature.shape, getattr(torch, feature.dtype)
        self._is_numpy_layout = as_numpy_layout
        self._mode = _MODES.get(self.shape[-1] or 0) if self.dtype == torch.uint8 else None
        self._one = tv_tensors.Mask if isinstance(feature, f.LabeledImage) else tv_tensors.Image
        self._many = tv_tensors.Video if is_video else self._one
        self.plain_mode = self._mode if self._many is tv_tensors.Image else None

    def decode(self, data: bytes) -> torch.Tensor:
        """Decode one image."""
        pixels = self._pixels(data)
        channels, height, width = pixels.shape
        stored = (height, width, channels)
        if not fits(stored, self.shape):
            raise ParseError(
                f"expected an image of (height, width, channels) {self.shape}, got {stored}"
            )
        return pixels.permute(1, 2, 0).contiguous() if self._is_numpy_layout else self._one(pixels)

    def _pixels(self, data: bytes) -> torch.Tensor:
        channels = self.shape[-1]
        if self.dtype == torch.float32:
            # TFDS stores depth as PNG: the four bytes of a float32 are the channels of a pixel.
            rgba = decode_image(data, "RGBA").permute(1, 2, 0).contiguous()
            return rgba.view(torch.float32).permute(2, 0, 1)
        if self._mode is not None:
            return decode_image(data, self._mode)
        # Other depths and numbers of channels follow the rules of `tf.io.decode_image`.
        pixels = decode_image(data, "unchanged").numpy()
        if self.dtype == torch.uint16:
            # as libpng expands 8 bits to 16
            pixels = pixels if pixels.dtype == np.uint16 else pixels.astype(np.uint16) * 257
        else:
            # libpng drops the lower byte.
            pixels = pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)
        return torch.from_numpy(_with_channels(pixels, channels))

    def join(self, items: list[Any]) -> object:
        """Stack images of equal size; return an empty tensor if there are none."""
        # Stacking tv_tensors calls `__torch_function__` for each of them.
        stacked = super().join([item.as_subclass(torch.Tensor) for item in items])
        if not isinstance(stacked, torch.Tensor):
            return items
        return stacked if self._is_numpy_layout else self._many(stacked)

    def none(self) -> torch.Tensor:
        """Return an empty tensor in the layout of the images."""
        pixels: torch.Tensor = super().none()
        return pixels if self._is_numpy_layout else pixels.permute(0, 3, 1, 2)


def _with_channels(pixels: _Pixels, channels: int | None) -> _Pixels:
    """Convert the number of channels as TensorFlow does: repeat gray, drop alpha, or add an opaque
    alpha.
    """
    found = len(pixels)
    if channels is None or channels == found:
        return pixels
    color = pixels[:1] if found in (1, 2) else pixels[:3]
    # A mask or a depth has no alpha; what reads it as RGBA gets it opaque.
    opaque = np.full_like(pixels[:1], np.iinfo(pixels.dtype).max)
    # TensorFlow would convert to gray with weights of its own: no feature of TFDS asks for it.
    if channels in (1, 2) and len(color) == 3:
        raise ParseError(f"expected {channels} channels, got a colour image")
    color = np.repeat(color, 3, axis=0) if channels >= 3 and len(color) == 1 else color
    return np.concatenate([color, opaque]) if channels in (2, 4) else np.ascontiguousarray(color)


def decoded_sound(data: bytes, *, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """An audio file's samples as integers [T] or [T, channels], as stored, or of 16 bits."""
    view = memoryview(data)
    # WAV is read without a decoder, as samples lie there as they are.
    numbers = (read_wav(view) or decode_sound(view)).integers()
    channels, wanted = numbers.shape[1], shape[1] if len(shape) > 1 else 1
    if channels != wanted:
        raise ParseError(f"expected audio of {wanted} channels, got {channels}")
    tensor = torch.from_numpy(np.array(numbers))
    return (tensor if len(shape) > 1 else tensor[:, 0]).to(dtype)
