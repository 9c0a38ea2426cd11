"""Convert one Python value to a Feature message: choose the kind of list, and check that nothing is
lost.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["HELD", "ListValues", "fill_feature", "int64_error", "list_values", "varint"]

_ALLOWED = "a bool, int, float, str, bytes, a list or tuple of one of these, a numpy array or a torch tensor"

HELD = {"int64_list": "integers", "float_list": "floats", "bytes_list": "bytes or str"}
"""What each list holds, as errors say it."""


class ListValues(NamedTuple):
    """What a Feature message holds for a value: ``kind`` names the list, ``values`` is flat, or the
    bytes of float32.

    Floats are written to the message as raw field bytes: one bit-exact copy, while extend() would
    make Python floats.
    """

    kind: str
    values: Any
    shape: tuple[int, ...]


def fill_feature(feature: Any, value: Any, where: str) -> str:
    """Write a value into a Feature message, and return the kind of its list; ``where`` begins every
    error text.

    Raises:
        TypeError: No list holds the type of the value, or the value mixes several kinds.
        ValueError: A value does not fit its list.
    """
    try:
        encodable = list_values(value)
        target = getattr(feature, encodable.kind)
        if not encodable.values:
            target.SetInParent()
        elif encodable.kind == "float_list":
            target.MergeFromString(b"\n" + varint(len(encodable.values)) + encodable.values)
        else:
            _extend(target.value, encodable.values)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return encodable.kind


def _extend(repeated: Any, values: list[Any]) -> None:
    try:
        repeated.extend(values)
    except ValueError as error:
        raise int64_error(values) from error


def int64_error(values: list[int]) -> ValueError:
    """The error for integers of which one is outside int64."""
    large = next(value for value in values if not -(2**63) <= value < 2**63)
    return ValueError(
        f"integer outside int64: an int64_list holds -2**63 to 2**63 - 1, got {large}"
    )


def varint(number: int) -> bytes:
    """A number in seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def list_values(value: Any) -> ListValues:
    """Convert a value to what a Feature message holds; raises as `fill_feature` does."""
    if isinstance(value, ListValues):
        return value
    kind = _kind_of(type(value))
    if kind is not None:
        return ListValues(kind, _LEAVES[kind]([value]), ())
    if isinstance(value, (list, tuple, range)):
        return _sort_out_list(value)
    array = _as_array(value)
    if array is None:
        hint = "; leave out the key if there is no value" if value is None else ""
        raise TypeError(f"expected {_ALLOWED}, got {type(value).__name__}{hint}")
    return _sort_out_array(array)


def _find_kind(cls: type) -> str | None:
    """The name of the list that holds scalars of this type; None for any other type."""
    if issubclass(cls, (bool, int, np.bool_, np.integer)) and not issubclass(cls, np.timedelta64):
        return "int64_list"
    if issubclass(cls, (float, np.floating)):
        return "float_list"
    if issubclass(cls, (bytes, str, bytearray, memoryview)):
        return "bytes_list"
    return None


# The annotation is for mypy, which does not treat a class as hashable.
_kind_of: Callable[[type], str | None] = functools.lru_cache(maxsize=256)(_find_kind)


def _int_leaves(values: Any) -> list[int]:
    return list(map(int, values))


def _float_leaves(values: Any) -> bytes:
    try:
        return struct.pack(f"<{len(values)}f", *values)
    except OverflowError as error:
        raise ValueError("a finite float is outside float32, which a float_list holds") from error


def _bytes_leaves(values: Any) -> list[bytes]:
    try:
        return [value.encode() if isinstance(value, str) else bytes(value) for value in values]
    except UnicodeEncodeError as error:
        raise ValueError("text that is not valid Unicode has no UTF-8 form") from error


_LEAVES: dict[str, Any] = {
    "int64_list": _int_leaves,
    "float_list": _float_leaves,
    "bytes_list": _bytes_leaves,
}


def _sort_out_list(values: Any) -> ListValues:
    if not len(values):
        raise ValueError(
            "an empty list has no type: use an empty typed array, such as numpy.zeros(0, numpy.int64); its dtype, "
            "numpy.int64, numpy.float32 or numpy.bytes_, selects the kind of list; or write by features, whose spec "
            "says it"
        )
    kinds = {_kind_of(cls) for cls in set(map(type, values))}
    if kinds == {None}:
        return _join([list_values(value) for value in values])
    if kinds == {"int64_list", "float_list"} and bool not in map(type, values):
        kinds = {"float_list"}  # as in [0, 0.5, 1] from JSON
    if len(kinds) > 1:
        names = ", ".join(sorted({cls.__name__ for cls in map(type, values)}))
        raise TypeError(
            f"mixed types in one list: {names}; a list holds integers, floats or bytes only"
        )
    kind = str(kinds.pop())
    return ListValues(kind, _LEAVES[kind](values), (len(values),))


def _join(parts: list[ListValues]) -> ListValues:
    """Flatten the rows of a nested list."""
    kinds, shapes = {part.kind for part in parts}, {part.shape for part in parts}
    if len(kinds) > 1:
        raise TypeError(f"mixed types in one list: it holds {' and '.join(sorted(kinds))}")
    if len(shapes) > 1:
        raise ValueError(
            "nested lists of different lengths (ragged) do not fit one feature: store the lengths as well"
        )
    rows = [part.values for part in parts]
    values = (
        b"".join(rows)
        if parts[0].kind == "float_list"
        else list(itertools.chain.from_iterable(rows))
    )
    return ListValues(parts[0].kind, values, (len(parts), *parts[0].shape))


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Convert an array of any library to a NumPy array; None if the value is not an array."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError("a masked array has masked values: fill them first")
    if isinstance(value, np.ndarray):
        return value
    # a torch tensor, without importing torch
    if callable(getattr(value, "detach", None)) and hasattr(value, "dtype"):
        if str(value.dtype).startswith(("torch.bfloat16", "torch.float8")):
            value = value.float()  # exact; NumPy has no such dtype
        return np.asarray(value.numpy(force=True))
    return np.asarray(value) if hasattr(value, "__array__") else None


def _sort_out_array(array: np.ndarray[Any, Any]) -> ListValues:
    kind = array.dtype.kind
    if kind == "b":
        return ListValues("int64_list", array.astype(np.int64).ravel().tolist(), array.shape)
    if kind in "iu":
        return ListValues("int64_list", array.ravel().tolist(), array.shape)
    # the latter come from ml_dtypes, with kind "V"
    if kind == "f" or array.dtype.name.startswith(("bfloat16", "float8")):
        return ListValues("float_list", _float_array_leaves(array), array.shape)
    if kind in "SUT" and not array.size:
        return ListValues("bytes_list", [], array.shape)
    if kind in "SUTO":
        return _sort_out_list(array.ravel().tolist())._replace(shape=array.shape)
    raise TypeError(f"expected {_ALLOWED}, got an array of dtype {array.dtype}")


def _float_array_leaves(array: np.ndarray[Any, Any]) -> bytes:
    with np.errstate(over="ignore"):
        single = array.astype("<f4")
    if array.dtype.itemsize > 4 and (np.isinf(single) & np.isfinite(array)).any():
        raise ValueError("a finite float is outside float32, which a float_list holds")
    return single.tobytes()
