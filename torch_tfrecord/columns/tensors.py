"""Read and write TensorProto, the format of ``tf.io.serialize_tensor`` and ``tf.io.parse_tensor``.

A TensorProto has a dtype, a shape, and the values either as ``tensor_content`` (raw little-endian
bytes) or in the typed field of its dtype. A typed field with fewer values than the shape needs is
filled with its last value, or with zeros, so twenty bytes can expand to gigabytes: this growth is
limited.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from torch_tfrecord.batch_memory import Array, Buffer, array_dtype, reserve
from torch_tfrecord.columns.dtypes import MAX_INT64, DType, decode_text, from_bytes, nest
from torch_tfrecord.errors import LimitExceededError, ParseError
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.samples import Value
from torch_tfrecord.shown import dtype_name

__all__ = ["MAX_FILL_BYTES", "parse_tensor", "serialize_tensor"]

# Limit on values that are filled in rather than stored in the message: 64 MiB. Stored values have
# no limit.
MAX_FILL_BYTES = 1 << 26

ParsedTensor: TypeAlias = "torch.Tensor | bytes | str | list[Any]"

_Proto: TypeAlias = Any
"""A TensorProto: the class is made when the program runs, so its fields have no types."""
_MAX_RANK = 254  # TensorFlow's limit
_POINTER_BYTES = 8  # per entry of a Python list


class _Type(NamedTuple):
    """One dtype of the format: enum value, TensorFlow's name, and typed field."""

    enum: int
    name: str
    dtype: DType
    typed_field: str


_TYPES = (
    _Type(1, "float", torch.float32, "float_val"),
    _Type(2, "double", torch.float64, "double_val"),
    _Type(3, "int32", torch.int32, "int_val"),
    _Type(4, "uint8", torch.uint8, "int_val"),
    _Type(5, "int16", torch.int16, "int_val"),
    _Type(6, "int8", torch.int8, "int_val"),
    _Type(7, "string", bytes, "string_val"),
    _Type(8, "complex64", torch.complex64, "scomplex_val"),
    _Type(9, "int64", torch.int64, "int64_val"),
    _Type(10, "bool", torch.bool, "bool_val"),
    _Type(14, "bfloat16", torch.bfloat16, "half_val"),
    _Type(17, "uint16", torch.uint16, "int_val"),
    _Type(18, "complex128", torch.complex128, "dcomplex_val"),
    _Type(19, "half", torch.float16, "half_val"),
    _Type(22, "uint32", torch.uint32, "uint32_val"),
    _Type(23, "uint64", torch.uint64, "uint64_val"),
    _Type(24, "float8_e5m2", torch.float8_e5m2, "float8_val"),
    _Type(25, "float8_e4m3fn", torch.float8_e4m3fn, "float8_val"),
    _Type(26, "float8_e4m3fnuz", torch.float8_e4m3fnuz, "float8_val"),
    _Type(28, "float8_e5m2fnuz", torch.float8_e5m2fnuz, "float8_val"),
)
_BY_ENUM = {row.enum: row for row in _TYPES}
_BY_DTYPE = {row.dtype: row for row in _TYPES}
# The dtype of the repeated field, if it differs from the element: the low bits count, so values
# wrap.
_FIELD_ELEMENT = {"int_val": "i4", "half_val": "i4", "scomplex_val": "f4", "dcomplex_val": "f8"}


def serialize_tensor(tensor: object) -> bytes:
    """Serialize a tensor to the same bytes as ``tf.io.serialize_tensor``.

    Args:
        tensor: A torch tensor (any device, any strides; bool, integers, floats, complex, bfloat16,
            float8), a numpy array, or strings: bytes, str (as UTF-8), a rectangular nested list of
            these, or a numpy array of them.

    Raises:
        TypeError: TensorFlow's TensorProto cannot hold the value or dtype.
        ValueError: Nested lists of strings have different lengths.

    Example:
        >>> serialize_tensor(torch.tensor(1.5)).hex()
        '0801120022040000c03f'
    """
    if isinstance(tensor, (np.ndarray, np.generic)) and tensor.dtype.kind not in "SUTO":
        tensor = _from_numpy(tensor)
    if isinstance(tensor, torch.Tensor):
        return _serialize_numbers(tensor)
    return _serialize_strings(tensor)


def parse_tensor(
    serialized: Buffer,
    dtype: DType | None = None,
    *,
    max_bytes: int | None = MAX_FILL_BYTES,
) -> ParsedTensor:
    """Parse a serialized TensorProto, like ``tf.io.parse_tensor``.

    Args:
        serialized: The bytes of the message.
        dtype: The expected dtype: a torch dtype, ``bytes`` for strings, or ``str`` for UTF-8
            strings. None accepts the stored one (strings as bytes).
        max_bytes: Limit in bytes on filled-in values that the message does not store; None for no
            limit.

    Returns:
        A tensor that owns its writable memory; for strings, bytes (scalar) or a nested list of
        bytes.

    Raises:
        LimitExceededError: The message expands to more than ``max_bytes`` of filled-in values.
        ParseError: The bytes are not a TensorProto, its dtype is not ``dtype`` or is unknown to
            torch, its shape is impossible, or its content does not have the size of its shape.
        TypeError: ``serialized`` is not bytes-like, or ``dtype`` is not a supported dtype.

    Example:
        >>> parse_tensor(serialize_tensor(torch.arange(3)), torch.int64)
        tensor([0, 1, 2])
    """
    if dtype is not None and _BY_DTYPE.get(bytes if dtype is str else dtype) is None:
        raise TypeError(
            f"dtype must be one of {', '.join(map(dtype_name, _BY_DTYPE))} or str, got {dtype!r}"
        )
    proto = parse_message(serialized, "TensorProto", "`serialized` as TensorProto")
    row = _row_of(proto.dtype)
    if dtype is not None and row.dtype != (bytes if dtype is str else dtype):
        asked = _BY_DTYPE[bytes if dtype is str else dtype]
        raise ParseError(
            f"Type mismatch between parsed tensor ({row.name}) and dtype ({asked.name})"
        )
    shape = _shape_of(proto)
    if isinstance(row.dtype, torch.dtype):
        return _numbers(proto, row, row.dtype, shape, max_bytes)
    strings: list[Value] = _strings(proto, shape, max_bytes)
    return nest([decode_text(value) for value in strings] if dtype is str else strings, shape)


def _row_of(enum: int) -> _Type:
    if enum in _BY_ENUM:
        return _BY_ENUM[enum]
    what = (
        "no dtype (0)"
        if enum == 0
        else f"a reference type ({enum})"
        if 100 < enum < 200
        else f"dtype {enum}"
    )
    raise ParseError(f"Cannot parse tensor from proto: expected a dtype that torch has, got {what}")


def _shape_of(proto: _Proto) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if len(shape) > _MAX_RANK:
        raise ParseError(
            f"Cannot parse tensor from proto: expected at most {_MAX_RANK} dimensions, got {len(shape)}"
        )
    if any(size < 0 for size in shape):
        raise ParseError(
            f"Cannot parse tensor from proto: shape {list(shape)} has a negative dimension"
        )
    return shape


def _numbers(
    proto: _Proto,
    row: _Type,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    max_bytes: int | None,
) -> torch.Tensor:
    count = math.prod(shape)
    wanted_bytes = count * dtype.itemsize
    if wanted_bytes > MAX_INT64:
        raise ParseError(
            f"Cannot parse tensor from proto: shape {list(shape)} has more bytes than an int64 counts"
        )
    content = proto.tensor_content
    # Content goes before the typed field, as in TensorFlow.
    if not content or not count:
        content = _filled(_typed_values(proto, row, dtype), count, max_bytes).tobytes()
    elif len(content) != wanted_bytes:
        raise ParseError(
            f"Cannot parse tensor from proto: expected {wanted_bytes} bytes of content for shape {list(shape)} "
            f"of {row.name}, got {len(content)}"
        )
    else:
        reserve(wanted_bytes)
    try:
        return from_bytes(content, dtype, shape)
    except ParseError as error:
        raise ParseError(f"Cannot parse tensor from proto: {error}") from error


def _typed_values(proto: _Proto, row: _Type, dtype: torch.dtype) -> Array:
    """The values of the typed field, as elements of the dtype, or as integers of its bits."""
    stored = getattr(proto, row.typed_field)
    # float8 values are in one bytes field, all others in a repeated one.
    if row.typed_field == "float8_val":
        return np.frombuffer(stored, dtype=np.uint8)
    element = np.dtype("u2") if row.typed_field == "half_val" else array_dtype(dtype)
    values = np.array(stored[:], dtype=_FIELD_ELEMENT.get(row.typed_field, element))
    if dtype.is_complex:
        # Real and imaginary parts in turn; an odd last one has no partner.
        return values[: values.size // 2 * 2].view(element)
    return values.astype(element)


def _filled(values: Array, count: int, max_bytes: int | None) -> Array:
    """Cut to ``count`` values, or fill up with the last value (zero if there is none)."""
    missing = count - values.size
    _check_growth(missing * values.itemsize, max_bytes)
    reserve(count * values.itemsize)
    if missing <= 0:
        return values[:count]
    return np.concatenate(
        [values, np.full(missing, values[-1] if values.size else 0, dtype=values.dtype)]
    )


def _check_growth(num_bytes: int, max_bytes: int | None) -> None:
    if max_bytes is not None and num_bytes > max_bytes:
        raise LimitExceededError(
            f"the tensor would grow to {num_bytes} bytes that the message does not hold; the limit is {max_bytes} "
            "(max_bytes of parse_tensor)"
        )


def _strings(proto: _Proto, shape: tuple[int, ...], max_bytes: int | None) -> list[bytes]:
    count = math.prod(shape)
    content = proto.tensor_content
    values = _split_strings(content, count) if content and count else list(proto.string_val[:count])
    # Count the entries of all nested lists, as [N, 1, 1, ...] creates many lists of few values.
    # Below a dimension of 0 there are no lists.
    sizes = shape[: shape.index(0) + 1] if 0 in shape else shape
    entries = sum(math.prod(sizes[:rank]) for rank in range(1, len(sizes) + 1))
    _check_growth((entries - len(values)) * _POINTER_BYTES, max_bytes)
    reserve(entries * _POINTER_BYTES)
    return values + [values[-1] if values else b""] * (count - len(values))


def _split_strings(content: bytes, count: int) -> list[bytes]:
    """Read the content of a string tensor: all lengths as varints, then all strings."""
    # The length of a string takes a byte at least: checked before a list of so many is made.
    if count > len(content):
        raise ParseError(
            f"Cannot parse tensor from proto: expected {count} strings, got {len(content)} bytes"
        )
    lengths, start = [], 0
    for _ in range(count):
        length, start = _read_varint(content, start)
        lengths.append(length)
    if start + sum(lengths) != len(content):
        raise ParseError(
            f"Cannot parse tensor from proto: expected {sum(lengths)} bytes of strings, got {len(content) - start}"
        )
    ends = np.cumsum([start, *lengths]).tolist()
    return [content[begin:end] for begin, end in itertools.pairwise(ends)]


def _read_varint(content: bytes, start: int) -> tuple[int, int]:
    value = 0
    # A varint of 64 bits has at most 10 bytes.
    for number, byte in enumerate(content[start : start + 10]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, start + number + 1
    raise ParseError(
        "Cannot parse tensor from proto: expected the length of a string, got a truncated or overlong one"
    )


def _from_numpy(array: Array | np.generic) -> torch.Tensor:
    try:
        # torch takes neither another byte order nor negative strides.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        raise TypeError(f"a TensorProto cannot hold numpy dtype {array.dtype}") from error


def _serialize_numbers(tensor: torch.Tensor) -> bytes:
    row = _BY_DTYPE.get(tensor.dtype)
    if row is None or tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(
            f"a TensorProto cannot hold a tensor of dtype {tensor.dtype} and layout {tensor.layout}"
        )
    proto = _empty_proto(row, tensor.shape)
    if tensor.numel():
        # Lazily conjugated or negated views have other bytes than their values.
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        proto.tensor_content = flat.view(torch.uint8).numpy().tobytes()
    return proto.SerializeToString(deterministic=True)


def _serialize_strings(value: object) -> bytes:
    # As objects: NumPy takes nested lists apart as far as all have one length.
    array = np.array(value, dtype=object)
    proto = _empty_proto(_BY_DTYPE[bytes], array.shape)
    for leaf in array.reshape(-1).tolist():
        if isinstance(leaf, (list, tuple)):
            raise ValueError("nested lists of different lengths (ragged) do not form a tensor")
        if not isinstance(leaf, (bytes, str)):
            raise TypeError(
                f"expected a torch tensor, a numpy array, or bytes or str in lists, got {type(leaf).__name__}"
            )
        proto.string_val.append(leaf.encode() if isinstance(leaf, str) else leaf)
    return proto.SerializeToString(deterministic=True)


def _empty_proto(row: _Type, shape: Sequence[int]) -> _Proto:
    proto = parse_message(b"", "TensorProto")
    proto.dtype = row.enum
    # Set even if it is empty, as TensorFlow writes the shape of a scalar.
    proto.tensor_shape.SetInParent()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    return proto
