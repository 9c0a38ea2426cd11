"""Readers of what is in a single bytes value: text, images, arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torchvision import tv_tensors

from torch_tfrecord.columns import key_of, labelled, stack
from torch_tfrecord.dtypes import BYTES_LIST, INT64_LIST, decode_text, dtype_name, from_bytes
from torch_tfrecord.errors import ParseError
from torch_tfrecord.features import Feature, Image, RawTensor
from torch_tfrecord.images import decode_image
from torch_tfrecord.lookup import Lookup
from torch_tfrecord.tensors import parse_tensor

__all__ = ["ImageReader", "OneValue", "RawTensorReader", "SerializedTensorReader", "TextReader"]


class OneValue:
    """Reads a single bytes value; subclasses turn it into what the spec says."""

    def __init__(self, name: str, spec: Feature, shape: Sequence[Any] = ()) -> None:
        self._lookup = Lookup(name, key_of(name, spec), BYTES_LIST, type(spec).__name__)
        self._shape = [Lookup(name, entry, INT64_LIST, "size") if isinstance(entry, str) else entry for entry in shape]

    def sample(self, record: Any) -> Any:
        """The value of one record."""
        data = self._lookup.one(record)
        shape = tuple(_size(entry, record) if isinstance(entry, Lookup) else entry for entry in self._shape)
        return labelled(self._lookup, self._convert, data, shape)

    def batch(self, records: Sequence[Any]) -> Any:
        """The column of several records."""
        return stack([self.sample(record) for record in records])

    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class TextReader(OneValue):
    """Reads a Text."""

    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> str:
        return decode_text(data)


class SerializedTensorReader(OneValue):
    """Reads a SerializedTensor."""

    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> Any:
        return parse_tensor(data)


class ImageReader(OneValue):
    """Reads an Image."""

    def __init__(self, name: str, spec: Image) -> None:
        super().__init__(name, spec, spec.shape or ())
        self._mode, self._apply_orientation = spec.mode, spec.apply_orientation

    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> Any:
        pixels = decode_image(data, self._mode, apply_orientation=self._apply_orientation)
        channels, height, width = pixels.shape
        stored = (height, width, channels)
        if any(expected not in (None, size) for expected, size in zip(shape, stored, strict=False)):
            raise ParseError(f"expected an image of (height, width, channels) {shape}, got {stored}")
        return tv_tensors.Image(pixels)


class RawTensorReader(OneValue):
    """Reads a RawTensor."""

    def __init__(self, name: str, spec: RawTensor) -> None:
        super().__init__(name, spec, spec.shape)
        self._dtype = spec.dtype

    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> torch.Tensor:
        row_bytes = math.prod(size for size in shape if size != -1) * self._dtype.itemsize
        if -1 in shape and row_bytes and len(data) % row_bytes == 0:
            shape = tuple(len(data) // row_bytes if size == -1 else size for size in shape)
        elif -1 in shape or len(data) != row_bytes:
            wanted = f"{row_bytes} bytes" if -1 not in shape else f"a multiple of {row_bytes} bytes"
            raise ParseError(f"expected {wanted} for shape {[*shape]} of {dtype_name(self._dtype)}, got {len(data)}")
        return from_bytes(data, self._dtype, shape)


def _size(lookup: Lookup, record: Any) -> int:
    size = int(lookup.one(record))
    if size < 0:
        raise lookup.error(f"expected a size, got {size}")
    return size
