"""Convert list values to tensors of a dtype: the list kind of each dtype, checked casts, and copies
from bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.errors import ParseError

__all__ = [
    "BYTES_LIST",
    "FLOAT_LIST",
    "INT64_LIST",
    "DType",
    "ListKind",
    "cast",
    "decode_text",
    "dtype_name",
    "from_bytes",
    "list_kind",
    "nest",
    "torch_dtype",
    "value_range",
]

DType: TypeAlias = torch.dtype | type[bytes] | type[str]


class ListKind(NamedTuple):
    """One of the three lists of a Feature: its field name, and its names in TensorFlow's errors."""

    field: str
    tf_name: str
    counted: str

    def __reduce__(self) -> str:
        """Pickle the name of the constant: kinds are compared by identity."""
        return self.field.upper()


INT64_LIST = ListKind("int64_list", "int64", "int64")
FLOAT_LIST = ListKind("float_list", "float", "float")
BYTES_LIST = ListKind("bytes_list", "string", "bytes")

# of an empty tensor, counting sizes of 0 as 1: far below where the sizes of a batch overflow
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
    """The list that a dtype is read from; None for a dtype that no list holds (complex, quantized,
    ...).
    """
    return _LISTS.get(dtype)


def dtype_name(dtype: object) -> str:
    """The dtype's short name: "int64", "bytes", "str"."""
    return dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


def torch_dtype(dtype: DType) -> torch.dtype:
    """Narrow the type of a dtype that must be a torch dtype."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no tensor holds {dtype_name(dtype)}")
    return dtype


def value_range(dtype: torch.dtype) -> tuple[int, int] | tuple[float, float]:
    """The smallest and largest finite value of a dtype that a list can hold."""
    if dtype == torch.bool:
        return 0, 1
    info = torch.finfo(dtype) if dtype in _FLOATS else torch.iinfo(dtype)
    return info.min, info.max


def cast(
    values: npt.NDArray[np.int64] | npt.NDArray[np.float32], dtype: torch.dtype
) -> torch.Tensor:
    """Cast an int64 or float32 array to a tensor of a dtype, and check that values are in its
    range.

    For integers and floats alike, a value outside the dtype's finite range is an error (infinities
    pass if the dtype has them). Rounding to a narrower float is allowed.

    Raises:
        ParseError: A value would change by more than rounding.
    """
    if values.size and dtype not in (torch.int64, torch.float32, torch.float64):
        _check_range(values, dtype)
    tensor = torch.from_numpy(values)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _check_range(values: npt.NDArray[Any], dtype: torch.dtype) -> None:
    low, high = value_range(dtype)
    if dtype in _WITH_INFINITY:
        values = values[~np.isinf(values)]
    elif dtype == torch.uint64:
        high = (1 << 63) - 1  # no int64 is larger
    if ((values < low) | (values > high)).any():
        raise ParseError(
            f"a value is outside the range of {dtype_name(dtype)}, {low} to {high}: the cast would change it"
        )


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
        flat = (
            torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        )
        return flat.reshape(tuple(shape))
    except RuntimeError as error:
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


def nest(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Nest a flat list by a shape, row-major; the value itself for a scalar shape."""
    if len(shape) == 1:
        return list(values)
    return _nest(iter(values), tuple(shape))


def _nest(values: Iterator[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return next(values)
    return [_nest(values, shape[1:]) for _ in range(shape[0])]
