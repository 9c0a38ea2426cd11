"""Check the shape, dtype and default value of a feature spec; error texts follow TensorFlow's."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_tfrecord.columns.dtypes import DType, dtype_name, list_kind, value_range

__all__ = [
    "check_dimension",
    "check_key",
    "check_list_dtype",
    "default_values",
    "fixed_shape",
    "shape_with_names",
]

_MAX_INT64 = (1 << 63) - 1


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
    _check_count(sizes)
    return tuple(sizes)


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
    _check_count([abs(size) for size in sizes if isinstance(size, int)])
    return sizes


def _dimensions(shape: object) -> tuple[Any, ...]:
    """Convert a shape to a tuple of ints, names and None; a single int or name is one dimension."""
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        shape = (shape,)
    return tuple(
        size if size is None or isinstance(size, str) else check_dimension(size) for size in shape
    )


def check_dimension(size: Any) -> int:
    """Check that an argument is an int, or an integer type of another library."""
    if isinstance(size, bool):
        raise TypeError("a dimension must be an int, got bool")
    try:
        return operator.index(size)
    except TypeError as error:
        raise TypeError(f"a dimension must be an int, got {type(size).__name__}") from error


def _check_count(sizes: Sequence[int]) -> None:
    if math.prod(size for size in sizes if size) > _MAX_INT64:
        raise ValueError(f"shape {tuple(sizes)!r} has more elements than an int64 counts")


def default_values(value: object, shape: tuple[int, ...], dtype: DType) -> Any:
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
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _default_scalar(value: object, dtype: DType) -> Any:
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
