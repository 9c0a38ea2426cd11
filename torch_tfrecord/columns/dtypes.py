"""Convert list values to tensors of a dtype: the list kind of each dtype, the error for another one,
checked casts, and copies from bytes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from torch_tfrecord.batch_memory import Array, array_dtype, as_tensor, empty_bytes
from torch_tfrecord.errors import ParseError
from torch_tfrecord.native import optional_module
from torch_tfrecord.samples import DType, Value
from torch_tfrecord.shown import dtype_name

__all__ = [
    "BYTES_LIST",
    "FLOAT_LIST",
    "INT64_LIST",
    "MAX_INT64",
    "DType",
    "ListKind",
    "Values",
    "cast_array",
    "check_dimension",
    "check_key",
    "check_list_dtype",
    "decode_text",
    "default_values",
    "fixed_shape",
    "from_bytes",
    "list_kind",
    "nest",
    "shape_with_names",
]

Values: TypeAlias = dict[str, Value]
"""A sample or a batch: the name of each output and its value or column."""


class ListKind(NamedTuple):
    """One of the three lists of a Feature: its field name, the dtype of its values, its names in
    TensorFlow's errors, and what reads it.
    """

    field: str
    dtype: DType
    tf_name: str
    counted: str
    read_by: str

    def __reduce__(self) -> str:
        """Pickle the name of the constant: kinds are compared by identity."""
        return self.field.upper()


INT64_LIST = ListKind(
    "int64_list", torch.int64, "int64", "int64", "int64: read torch.int64, then convert"
)
FLOAT_LIST = ListKind(
    "float_list", torch.float32, "float", "float", "float32: read torch.float32, then convert"
)
BYTES_LIST = ListKind(
    "bytes_list",
    bytes,
    "string",
    "bytes",
    "bytes: Image() reads a picture, RawTensor(shape, dtype) an array, FixedLenFeature((), bytes) the bytes, Text() "
    "a text",
)

MAX_INT64 = (1 << 63) - 1
_NO_PLACES = np.empty(0, np.uint16)
# an empty tensor's, counting sizes of 0 as 1: far below where the sizes of a batch overflow
_MAX_ELEMENTS = 1 << 40

_INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
# The other kinds of float8 have no infinity, so there it is out of range like a large number.
_WITH_INFINITY = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2)
_FLOATS = (*_WITH_INFINITY, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)

_LISTS: dict[object, ListKind] = {
    torch.bool: INT64_LIST,
    **dict.fromkeys(_INTEGERS, INT64_LIST),
    **dict.fromkeys(_FLOATS, FLOAT_LIST),
    bytes: BYTES_LIST,
    str: BYTES_LIST,
}


def list_kind(dtype: object) -> ListKind | None:
    """The list that a dtype is read from; None for a dtype that no list takes (complex, quantized,
    ...).
    """
    return _LISTS.get(dtype)


def value_range(dtype: torch.dtype) -> tuple[int, int] | tuple[float, float]:
    """The smallest and largest finite value of a dtype that a list can hold."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.finfo(dtype) if dtype in _FLOATS else torch.iinfo(dtype)
    return info.min, info.max


def cast_array(values: Array, dtype: torch.dtype) -> Array:
    """Cast an int64 or float32 array to a tensor's dtype, and check that values are in its range.

    For integers and floats alike, a value outside the dtype's finite range is an error (infinities
    pass if the dtype has them). Rounding to a narrower float is allowed.

    Raises:
        ParseError: A value would change by more than rounding.
    """
    kind = array_dtype(dtype)
    if values.dtype == kind:  # the lists' own dtypes
        return values
    out: Array = empty_bytes(values.size * kind.itemsize).view(kind).reshape(values.shape)
    low, high = value_range(dtype)
    if dtype == torch.uint64:
        high = MAX_INT64
    native, is_bfloat16 = optional_module("memory"), dtype == torch.bfloat16
    flat, places = values.reshape(-1), out.reshape(-1).view(f"u{kind.itemsize}")
    if native is None:
        fits = _are_within(values, low, high)
    elif dtype.is_floating_point:
        fits = native.narrow_floats(flat, places if is_bfloat16 else _NO_PLACES, high)
    else:
        fits = native.narrow(flat, places, low, high)
    # An infinity stays one in these dtypes: only finite values can be out of their range.
    if not fits and dtype in _WITH_INFINITY:
        fits = _are_within(values[~np.isinf(values)], low, high)
    if not fits:
        raise ParseError(
            f"a value is outside the range of {dtype_name(dtype)}, {low} to {high}: the cast would change it"
        )
    if kind.kind == "f":
        out[...] = values
    elif native is None or (dtype.is_floating_point and not is_bfloat16):
        # NumPy does not round to bfloat16 or float8.
        as_tensor(out, dtype).copy_(torch.from_numpy(values))
    return out


def _are_within(values: Array, low: float, high: float) -> bool:
    # A NaN is neither below nor above, and so passes.
    least, most = (find.reduce(values, None, initial=0).item() for find in (np.fmin, np.fmax))
    return low <= least and most <= high


def from_bytes(data: bytes | memoryview, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Copy little-endian, row-major bytes of exactly the right size into a tensor (not tested on
    big-endian hosts).

    Raises:
        ParseError: A bool is neither 0 nor 1, or torch does not support the shape.
    """
    if math.prod(size or 1 for size in shape) > _MAX_ELEMENTS and 0 in shape:
        raise ParseError(
            f"shape {list(shape)} is not possible for a tensor: its nonzero sizes are too large"
        )
    # strip stops at the first other byte
    if dtype == torch.bool and bytes(data).strip(b"\x00\x01"):
        raise ParseError("expected bool bytes of 0 or 1, got another value")
    try:
        # bytearray: torch warns about memory that it may not write to.
        kind = array_dtype(dtype)
        flat = np.frombuffer(bytearray(data), kind) if data else np.empty(0, kind)
        return as_tensor(flat, dtype, tuple(shape))
    except (RuntimeError, ValueError) as error:
        raise ParseError(f"shape {list(shape)} is not possible for a tensor") from error


def decode_text(data: bytes | memoryview) -> str:
    """Decode strict UTF-8.

    Raises:
        ParseError: The bytes are not UTF-8.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(
            f"expected UTF-8 text, got an invalid byte at {error.start} of {len(data)}"
        ) from None


def nest(values: Sequence[Value], shape: Sequence[int]) -> Value:
    """Nest a flat list by a shape, row-major; the value itself for a scalar shape."""
    values = list(values)  # with a tuple, slices would be tuples
    # From the inside out, as the lists of one dimension are the values of the one around it.
    for rank in range(len(shape) - 1, 0, -1):
        size, rows = shape[rank], range(math.prod(shape[:rank]))
        values = [values[row * size : (row + 1) * size] for row in rows]
    return values if shape else values[0]


def check_key(name: str, key: object) -> None:
    """Check an argument that is the key of a feature."""
    if not isinstance(key, str):
        raise TypeError(f"{name} must be str, got {type(key).__name__}")


def check_list_dtype(dtype: object) -> None:
    """Check that a list of a Feature can hold this dtype."""
    if dtype is None:
        raise ValueError("Missing type: dtype must be a torch dtype, bytes or str")
    if not isinstance(dtype, torch.dtype) and dtype not in (bytes, str):
        raise TypeError(f"dtype must be a torch dtype, bytes or str, got {dtype!r}")
    if list_kind(dtype) is None:
        raise TypeError(
            f"dtype must be bool, an integer, a float, bytes or str, got {dtype_name(dtype)}"
        )


def fixed_shape(shape: object) -> tuple[int, ...]:
    """Check a shape with known dimensions; an int means one dimension."""
    if shape is None:
        raise ValueError("Missing shape: pass a tuple, () for a scalar")
    sizes = _dimensions(shape)
    for size in sizes:
        if size is None:
            raise ValueError(
                f"a dimension of shape {sizes!r} is unknown. Consider using FixedLenSequenceFeature."
            )
        if isinstance(size, str):
            raise TypeError(f"shape must be a tuple of ints, got {sizes!r}")
        if size < 0:
            raise ValueError(f"Dimension {size} must be >= 0")
    known = tuple(size for size in sizes if isinstance(size, int))
    _check_count(known)
    return known


def shape_with_names(
    shape: object, allowed: str, *, unknown: int | None
) -> tuple[int | str | None, ...]:
    """Check a shape whose entries may name other features; ``unknown`` (None or -1) marks an
    unknown size.
    """
    sizes = _dimensions(shape)
    for size in sizes:
        if size is None and unknown is not None:
            raise ValueError(f"an entry of shape must be {allowed}, got {sizes!r}")
        if isinstance(size, int) and size < 0 and size != unknown:
            raise ValueError(f"Dimension {size} must be >= 0; an entry of shape is {allowed}")
    # An unknown size of -1 counts as 1.
    _check_count([abs(size) for size in sizes if isinstance(size, int)])
    return sizes


def _dimensions(shape: object) -> tuple[int | str | None, ...]:
    """Convert a shape to a tuple of ints, names and None; a single int or name is one dimension."""
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        shape = (shape,)
    return tuple(
        size if size is None or isinstance(size, str) else check_dimension(size) for size in shape
    )


def check_dimension(size: Any) -> int:
    """Check that an argument is an int, or an integer type of another library."""
    # To Python True is the integer 1, but hardly anybody means it as a size.
    if isinstance(size, bool):
        raise TypeError("a dimension must be an int, got bool")
    # index takes integers of NumPy and torch, but not 2.0.
    try:
        return operator.index(size)
    except TypeError as error:
        raise TypeError(f"a dimension must be an int, got {type(size).__name__}") from error


def _check_count(sizes: Sequence[int]) -> None:
    # Without the zeros, which would hide that the other sizes are too large.
    if math.prod(size for size in sizes if size) > MAX_INT64:
        raise ValueError(f"shape {tuple(sizes)!r} has more elements than an int64 counts")


def default_values(value: object, shape: tuple[int, ...], dtype: DType) -> Value:
    """Check and flatten a default value: a scalar for shape (), else a tuple of Python values in
    row-major order.
    """
    flat = tuple(_default_scalar(item, dtype) for item in _flatten(value))
    if len(flat) != math.prod(shape):
        raise ValueError(
            f"Cannot reshape a default_value with {len(flat)} elements to shape {list(shape)} "
            f"({math.prod(shape)} elements); a scalar is not broadcast"
        )
    return flat[0] if shape == () else flat


def _flatten(value: object) -> Iterable[object]:
    if not isinstance(value, (list, tuple, bytes, str)) and hasattr(value, "tolist"):
        # Arrays, tensors and numbers of any library.
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _default_scalar(value: object, dtype: DType) -> Value:
    if not isinstance(dtype, torch.dtype):
        if not isinstance(value, (bytes, str)):
            raise TypeError(f"Cannot convert default_value {value!r} to dtype {dtype_name(dtype)}")
        if dtype is str:
            return value if isinstance(value, str) else value.decode()
        return value if isinstance(value, bytes) else value.encode()
    low, high = value_range(dtype)
    wanted = (int, float) if isinstance(low, float) else int
    if not isinstance(value, wanted) or (isinstance(value, bool) and dtype != torch.bool):
        raise TypeError(f"Cannot convert default_value {value!r} to dtype {dtype_name(dtype)}")
    if math.isfinite(value) and not low <= value <= high:
        raise ValueError(
            f"default_value {value!r} is outside the range of {dtype_name(dtype)}, {low} to {high}"
        )
    return bool(value) if dtype == torch.bool else float(value) if isinstance(low, float) else value
