"""One small reader for every spec: from a record to a sample's value, from several records to a batch's column.

A record is the map of key to Feature message. A new spec is a class in ``features``, a reader here, a row in
``_READERS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.dtypes import (
    BYTES_LIST,
    INT64_LIST,
    DType,
    cast,
    decode_text,
    dtype_name,
    from_bytes,
    list_kind,
    nest,
)
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.example import join_arrays, to_array
from torch_tfrecord.features import (
    Feature,
    FixedLenFeature,
    Image,
    RawTensor,
    SerializedTensor,
    Text,
    VarLenFeature,
    mark_ragged,
)
from torch_tfrecord.images import decode_image
from torch_tfrecord.lookup import Lookup
from torch_tfrecord.tensors import parse_tensor

__all__ = ["Reader", "make_reader"]


class Reader(Protocol):
    """Reads one feature."""

    def sample(self, record: Any) -> Any:
        """The value of one record."""

    def batch(self, records: Sequence[Any]) -> Any:
        """The column of several records."""


# Dtypes that need no cast, and so have a short way for a single scalar.
_PLAIN: dict[Any, Any] = {torch.int64: np.int64, torch.float32: np.float32}


class _FixedNumbers:
    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self._lookup = _list_lookup(name, spec)
        self._dtype = _torch_dtype(spec.dtype)
        self._shape = spec.shape
        self._count = math.prod(spec.shape)
        self._plain_scalar = _PLAIN.get(self._dtype) if spec.shape == () else None
        self._default: torch.Tensor | None = None
        if spec.default_value is not None and self._count:  # an empty default is none, as in TensorFlow
            self._default = torch.tensor(spec.default_value, dtype=self._dtype).reshape(spec.shape)

    def sample(self, record: Any) -> torch.Tensor:
        found = self._lookup.find(record)
        if found is None:
            return self._default_of(record).clone()
        self._check_count(values := found.value)
        if self._plain_scalar and (value := values[0]) == value:  # a NaN's bits pass through to_array only
            return torch.from_numpy(np.array(value, self._plain_scalar))
        return self._cast(to_array(found).reshape(self._shape))

    def batch(self, records: Sequence[Any]) -> torch.Tensor:
        found = [self._lookup.find(record) for record in records]
        present = [item for item in found if item is not None]
        tensor = self._cast(self._column(present).reshape(len(present), *self._shape))
        if len(present) == len(found):
            return tensor
        rows = iter(tensor.unbind())
        pairs = zip(found, records, strict=True)
        return torch.stack([self._default_of(record) if item is None else next(rows) for item, record in pairs])

    def _column(self, found: Sequence[Any]) -> Any:
        values = [item.value for item in found]
        for item in values:
            self._check_count(item)
        if self._count == 1 and self._lookup.kind is INT64_LIST:
            return np.array([item[0] for item in values], dtype=np.int64)
        return _join(found, self._dtype)

    def _check_count(self, values: Any) -> None:
        if len(values) != self._count:
            raise self._lookup.wrong_count(len(values), self._count, self._shape)

    def _default_of(self, record: Any) -> torch.Tensor:
        if self._default is None:
            raise self._lookup.missing(record)
        return self._default

    def _cast(self, values: Any) -> torch.Tensor:
        tensor: torch.Tensor = _labelled(self._lookup, cast, values, self._dtype)
        return tensor


class _FixedStrings:
    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self._lookup = _list_lookup(name, spec)
        self._spec = spec
        self._count = math.prod(spec.shape)
        default = spec.default_value
        self._default = None if default is None or not self._count else [default] if spec.shape == () else list(default)

    def sample(self, record: Any) -> Any:
        return nest(self._values(record), self._spec.shape)

    def batch(self, records: Sequence[Any]) -> list[Any]:
        return [self.sample(record) for record in records]

    def _values(self, record: Any) -> list[Any]:
        found = self._lookup.find(record)
        if found is None:
            if self._default is None:
                raise self._lookup.missing(record)
            return self._default
        if len(found.value) != self._count:
            raise self._lookup.wrong_count(len(found.value), self._count, self._spec.shape)
        return _strings(self._lookup, found, self._spec.dtype)


class _VarLenNumbers:
    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self._lookup = _list_lookup(name, spec)
        self._dtype = _torch_dtype(spec.dtype)

    def sample(self, record: Any) -> torch.Tensor:
        found = self._lookup.find(record)
        values = _join([] if found is None else [found], self._dtype)
        return mark_ragged(_labelled(self._lookup, cast, values, self._dtype))

    def batch(self, records: Sequence[Any]) -> torch.Tensor:
        found = [self._lookup.find(record) for record in records]
        lengths = [0 if item is None else len(item.value) for item in found]
        values = _join([item for item in found if item is not None], self._dtype)
        offsets = torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int64))
        return torch.nested.nested_tensor_from_jagged(_labelled(self._lookup, cast, values, self._dtype), offsets)


class _VarLenStrings:
    def __init__(self, name: str, spec: VarLenFeature) -> None:
        self._lookup = _list_lookup(name, spec)
        self._dtype = spec.dtype

    def sample(self, record: Any) -> list[Any]:
        found = self._lookup.find(record)
        return [] if found is None else _strings(self._lookup, found, self._dtype)

    def batch(self, records: Sequence[Any]) -> list[Any]:
        return [self.sample(record) for record in records]


class _OneValue:
    """Reads a single bytes value; subclasses turn it into what the spec says."""

    def __init__(self, name: str, spec: Feature, shape: Sequence[Any] = ()) -> None:
        self._lookup = Lookup(name, _key(name, spec), BYTES_LIST, type(spec).__name__)
        self._shape = [Lookup(name, entry, INT64_LIST, "size") if isinstance(entry, str) else entry for entry in shape]

    def sample(self, record: Any) -> Any:
        data = self._lookup.one(record)
        shape = tuple(_size(entry, record) if isinstance(entry, Lookup) else entry for entry in self._shape)
        return _labelled(self._lookup, self._convert, data, shape)

    def batch(self, records: Sequence[Any]) -> Any:
        return _stack([self.sample(record) for record in records])

    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class _TextReader(_OneValue):
    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> str:
        return decode_text(data)


class _SerializedTensorReader(_OneValue):
    def _convert(self, data: bytes, shape: tuple[Any, ...]) -> Any:
        return parse_tensor(data)


class _ImageReader(_OneValue):
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


class _RawTensorReader(_OneValue):
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


def _fixed_len(name: str, spec: FixedLenFeature) -> Reader:
    return _FixedNumbers(name, spec) if isinstance(spec.dtype, torch.dtype) else _FixedStrings(name, spec)


def _var_len(name: str, spec: VarLenFeature) -> Reader:
    return _VarLenNumbers(name, spec) if isinstance(spec.dtype, torch.dtype) else _VarLenStrings(name, spec)


_READERS: dict[type[Feature], Callable[[str, Any], Reader]] = {
    FixedLenFeature: _fixed_len,
    Image: _ImageReader,
    RawTensor: _RawTensorReader,
    SerializedTensor: _SerializedTensorReader,
    Text: _TextReader,
    VarLenFeature: _var_len,
}


def make_reader(name: str, spec: Feature) -> Reader:
    """Build the reader of one output.

    Raises:
        TypeError: The name is not str, or the spec is none of the known ones.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name in features must be str, got {type(name).__name__}")
    build = next((_READERS[kind] for kind in type(spec).__mro__ if kind in _READERS), None)
    if build is None:
        allowed = ", ".join(sorted(kind.__name__ for kind in _READERS))
        raise TypeError(f"Unsupported {type(spec).__name__} for feature {name!r}: expected one of {allowed}")
    return build(name, spec)


def _torch_dtype(dtype: DType) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no tensor holds {dtype_name(dtype)}")
    return dtype


def _key(name: str, spec: Feature) -> str:
    return name if spec.key is None else spec.key


def _list_lookup(name: str, spec: FixedLenFeature | VarLenFeature) -> Lookup:
    kind = list_kind(spec.dtype)
    if kind is None:
        raise TypeError(f"no list holds {dtype_name(spec.dtype)}")
    return Lookup(name, _key(name, spec), kind, dtype_name(spec.dtype))


def _size(lookup: Lookup, record: Any) -> int:
    size = int(lookup.one(record))
    if size < 0:
        raise lookup.error(f"expected a size, got {size}")
    return size


def _labelled(lookup: Lookup, convert: Callable[..., Any], *args: Any) -> Any:
    try:
        return convert(*args)
    except TFRecordError as error:
        raise lookup.labelled(error) from error.__cause__


def _strings(lookup: Lookup, found: Any, dtype: Any) -> list[Any]:
    if dtype is bytes:
        return list(found.value)
    return [_labelled(lookup, decode_text, value) for value in found.value]


def _join(found: Sequence[Any], dtype: torch.dtype) -> Any:
    """Join the values of several lists into one array, int64 or float32."""
    if not found:
        return np.zeros(0, np.int64 if list_kind(dtype) is INT64_LIST else np.float32)
    return join_arrays(found)


def _stack(samples: list[Any]) -> Any:
    """Stack tensors of one shape and dtype; everything else stays a list."""
    first = samples[0] if samples else None
    if not isinstance(first, torch.Tensor):
        return samples
    if any(item.shape != first.shape or item.dtype != first.dtype for item in samples):
        return samples
    stacked = torch.stack(samples)
    return tv_tensors.Image(stacked) if isinstance(first, tv_tensors.Image) else stacked
