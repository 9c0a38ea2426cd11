"""The RawTensor spec: the bytes of arrays, in one or several byte strings."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import at_least, one_of, true_or_false
from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.columns.dtypes import check_list_dtype, from_bytes, list_kind
from torch_tfrecord.columns.feature import Feature, Layout
from torch_tfrecord.columns.one_value import OneValueReader, OneValueSpec, Shape
from torch_tfrecord.columns.reading import Column
from torch_tfrecord.errors import ParseError, needs_extra
from torch_tfrecord.samples import Value
from torch_tfrecord.shown import dtype_name

__all__ = ["Compression", "RawTensor", "deflate", "inflate"]

Compression: TypeAlias = Literal["zlib", "gzip", "zstd"]
# zlib's own codes for its largest window; 16 more stand for gzip.
_WINDOW_BITS = {"zlib": 15, "gzip": 31}
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20


def _decompressor(compression: Compression) -> tuple[Callable[[], Any], type[Exception]]:
    """The maker of the object that decompresses a stream, and its error."""
    if compression != "zstd":
        return lambda: zlib.decompressobj(_WINDOW_BITS[compression]), zlib.error
    zstd = _zstd()
    return zstd.ZstdDecompressor, zstd.ZstdError


def _zstd() -> Any:
    with needs_extra("compression by zstd", "zstd", "backports.zstd"):
        return import_module(
            "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        )


def deflate(data: bytes, compression: Compression) -> bytes:
    """Compress a value as `inflate` reads it; equal bytes give equal ones."""
    if compression == "zstd":
        return _zstd().compress(data)
    # No time stamp in gzip's header, so that equal bytes give equal ones.
    deflater = zlib.compressobj(wbits=_WINDOW_BITS[compression])
    return deflater.compress(data) + deflater.flush()


def inflate(
    data: bytes | memoryview, compression: Compression, num_bytes: int | None = None
) -> bytes:
    """Decompress a whole zlib stream (RFC 1950), or all members of a gzip file (RFC 1952) or frames
    of zstd (RFC 8878).

    Stricter than ``tf.io.decode_compressed``, which returns what it has of a truncated stream.

    Args:
        data: The compressed bytes.
        compression: "zlib", "gzip" or "zstd".
        num_bytes: The most bytes that it may have; None for what is left of the batch's memory.

    Raises:
        ImportError: The package for zstd is missing.
        LimitExceededError: See `reserve`; before the bytes are there, or at most 1 MiB of them too
            many.
        ParseError: The stream is damaged, truncated or larger, or something follows it.
    """
    if num_bytes is not None:
        reserve(num_bytes)
    view, pieces, total, place = memoryview(data), list[bytes](), 0, 0
    make, errors = _decompressor(compression)
    inflater = make()
    while not inflater.eof or (compression != "zlib" and place < len(view)):
        inflater = make() if inflater.eof else inflater
        # In pieces, so that memory is checked before a small stream has grown large.
        part = view[place : place + _INPUT_BYTES]
        try:
            # One byte more than expected is enough to see that the stream is longer.
            pieces.append(
                inflater.decompress(
                    part, _OUTPUT_BYTES if num_bytes is None else num_bytes - total + 1
                )
            )
        except errors as error:
            raise ParseError(
                f"expected a {compression} stream, got other bytes or a damaged one"
            ) from error
        # Nothing went in and nothing came out, so the end will never come.
        if not part and not pieces[-1] and not inflater.eof:
            raise ParseError(
                f"expected a whole {compression} stream, got a truncated one of {len(view)} bytes"
            )
        # zlib hands back the input that it has not used yet, zstd's object keeps it.
        place += (
            len(part) - len(getattr(inflater, "unconsumed_tail", b"")) - len(inflater.unused_data)
        )
        total += len(pieces[-1])
        if num_bytes is None:
            reserve(len(pieces[-1]))
        elif total > num_bytes:
            raise ParseError(
                f"expected a {compression} stream of {num_bytes} bytes, got a longer one"
            )
    if place < len(view):
        raise ParseError(
            f"expected the end of the {compression} stream, got {len(view) - place} bytes after it"
        )
    return b"".join(pieces)


_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_MOST_DIMENSIONS = 64  # for a shape in a record; torch's own limit


@dataclass(frozen=True, repr=False)
class RawTensor(OneValueSpec, Feature):
    """The raw bytes of an array, row-major and without a header, as ``tf.io.decode_raw`` reads
    them.

    A sample is a tensor of ``shape``; a batch is stacked if all shapes are equal, else a list. The
    bytes are in one string; or in several of equal length, whose number is the first size of
    ``shape``: each is a row.

    Args:
        shape: An entry is an int, -1 (at most one, inferred from the number of bytes) or the key of
            another feature of the record that has one integer. A str in place of the tuple is the
            key of a feature that has all sizes. The number of bytes must match exactly, else
            ParseError.
        dtype: A torch dtype with whole bytes per element.
        key: Name of the feature in the record, if it differs from the output's name.
        little_endian: Whether the first byte of an element is its lowest; False for big-endian.
        compression: "zlib", "gzip" or "zstd", if each string is compressed
            (``tf.io.decode_compressed``). It must have as many bytes as the shape says; with a -1
            or ``fixed_length``, at most what is left of ``max_batch_bytes``. Before Python 3.14
            zstd needs the extra ``zstd``, else reading raises ImportError.
        fixed_length: Bytes that each string is cut to, or filled up to with zeros, after it is
            decompressed; a multiple of the dtype's size. Strings may then have different lengths.
        default_value: The bytes of one string for records that lack the feature, as a record stores
            them (with ``compression``, compressed); ``shape`` must not name keys. None if such a
            record raises ParseError.

    Raises:
        TypeError: The dtype is unknown, or an argument or an entry of ``shape`` has another type.
        ValueError: The shape or dtype is missing, a dimension is negative, there is more than one
            -1, ``compression`` or ``fixed_length`` has another value, or ``default_value`` does not
            fit the shape.

    Example:
        >>> RawTensor(("height", "width", 3), torch.uint8, key="image_raw")
        RawTensor(('height', 'width', 3), torch.uint8, key='image_raw')
        >>> RawTensor("image/shape", torch.float32, little_endian=False, compression="zlib")
        RawTensor('image/shape', torch.float32, little_endian=False, compression='zlib')
    """

    _takes_several = True
    _undecoded = Feature._undecoded

    shape: str | tuple[int | str, ...]
    dtype: torch.dtype
    _: KW_ONLY
    little_endian: bool = True
    compression: Compression | None = None
    fixed_length: int | None = None
    default_value: bytes | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.shape is None:
            raise ValueError("Missing shape: pass a tuple; -1 means one unknown dimension")
        if not isinstance(self.shape, str):
            shape = self._checked_shape("an int, -1 or the key of a feature", unknown=-1)
            if shape.count(-1) > 1:
                raise ValueError(f"shape must have at most one -1, got {shape!r}")
        # No list takes complex numbers, but bytes can.
        if not isinstance(self.dtype, torch.dtype) or (
            list_kind(self.dtype) is None and self.dtype not in _COMPLEX
        ):
            check_list_dtype(self.dtype)
            raise TypeError(
                f"dtype must be a torch dtype with whole bytes per element, got {dtype_name(self.dtype)}"
            )
        true_or_false("little_endian", self.little_endian)
        one_of("compression", self.compression, None, "zlib", "gzip", "zstd")
        if (
            self.fixed_length is not None
            and at_least(1, "fixed_length", self.fixed_length) % self.dtype.itemsize
        ):
            name, size = dtype_name(self.dtype), self.dtype.itemsize
            raise ValueError(
                f"fixed_length must be a multiple of the {size} bytes of {name}, got {self.fixed_length}"
            )
        super().__post_init__()

    def _layout(self) -> Layout | dict[str, Any]:
        if isinstance(self.shape, str):
            return {"shape": (torch.int64, (None,)), "values": (self.dtype, (None,))}
        sizes = (size if isinstance(size, int) and size >= 0 else None for size in self.shape)
        return self.dtype, tuple(sizes)

    def _reader(self, name: str, *, pads: bool = False) -> OneValueReader:
        """Build the reader for Examples."""
        return _RawReader(name, self)

    def _stored(self, value: object) -> object:
        """A tensor, an array or nested lists of numbers as bytes; bytes, or a list of them, are
        stored already.
        """
        if isinstance(value, bytes) or (
            isinstance(value, (list, tuple)) and all(isinstance(v, bytes) for v in value)
        ):
            return value
        try:
            tensor = torch.as_tensor(value, device="cpu")
        except RuntimeError as error:  # from an object, None in a list, an integer beyond int64
            raise TypeError(
                f"expected a tensor, an array, nested lists of numbers, or bytes, got {type(value).__name__}: {error}"
            ) from error
        if isinstance(value, (list, tuple)):  # whose numbers have no dtype
            narrow = tensor.to(self.dtype)
            tensor = narrow if torch.equal(narrow.to(tensor.dtype), tensor) else tensor
        # Another number of sizes is found below.
        sizes = [
            size
            for size, wanted in zip(tensor.shape, self.shape, strict=False)
            if wanted not in (-1, size)
        ]
        if tensor.dtype != self.dtype or sizes or tensor.dim() != len(self.shape):
            raise ValueError(
                f"expected {[*self.shape]} of {dtype_name(self.dtype)}, got {[*tensor.shape]} of "
                f"{dtype_name(tensor.dtype)}"
            )
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        data = data if self.little_endian else _turned(data, self.dtype)
        return data if self.compression is None else deflate(data, self.compression)

    def _value(self, stored: Sequence[memoryview], shape: Shape, key: int) -> torch.Tensor:
        """One record's tensor."""
        shape, row = _rows(len(stored), shape)
        row_bytes = math.prod(size for size in row if size != -1) * self.dtype.itemsize
        exact = None if -1 in row else row_bytes
        reserve(len(stored) * (self.fixed_length or 0))  # many empty strings may be filled up
        parts = [self._inflated(part, exact) for part in stored]
        # Without strings there is still a length, for the shape's sake.
        length = len(parts[0]) if parts else self.fixed_length or exact or 0
        other = next((number for number, part in enumerate(parts) if len(part) != length), None)
        if other is not None:
            raise ParseError(
                f"expected strings of one length, got {length} bytes in string 0, {len(parts[other])} in string {other}"
            )
        if exact is None and row_bytes and length % row_bytes == 0:
            shape = tuple(length // row_bytes if size == -1 else size for size in shape)
        elif length != exact:
            wanted = f"a multiple of {row_bytes} bytes" if exact is None else f"{row_bytes} bytes"
            each = "" if len(parts) == 1 else f" in each of {len(parts)} strings"
            raise ParseError(
                f"expected {wanted}{each} for shape {[*shape]} of {dtype_name(self.dtype)}, got {length}"
            )
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return from_bytes(
            data if self.little_endian else _turned(data, self.dtype), self.dtype, shape
        )

    def _inflated(self, data: memoryview, exact: int | None) -> bytes | memoryview:
        """The bytes of a string: decompressed, and cut or filled up."""
        found: bytes | memoryview = data
        if self.compression is not None:
            # A string that is cut or filled up may have any length before.
            found = inflate(data, self.compression, exact if self.fixed_length is None else None)
        if self.fixed_length is None or len(found) == self.fixed_length:
            return found
        return bytes(found[: self.fixed_length]).ljust(self.fixed_length, b"\0")


class _RawReader(OneValueReader):
    """Reads a RawTensor. Arrays of one known size, each in one plain string, are joined at once."""

    def __init__(self, name: str, spec: RawTensor) -> None:
        super().__init__(name, spec)
        sizes = [size for size in spec.shape if isinstance(size, int) and size >= 0]
        is_plain = spec.compression is None and spec.fixed_length is None and spec.little_endian
        # 0 stands for arrays that are read one by one.
        self._num_bytes, self._sizes, self._dtype = 0, sizes, spec.dtype
        if is_plain and len(sizes) == len(spec.shape):
            self._num_bytes = math.prod(sizes) * spec.dtype.itemsize

    def read(self, columns: Sequence[Column], keys: Sequence[int] | None = None) -> Value:
        values, offsets = columns[0].values, columns[0].offsets
        if self._num_bytes and len(values) == len(offsets) - 1 > 0:
            is_one_each = (offsets[1:] > offsets[:-1]).all()
            if is_one_each and (values[:, 1] == self._num_bytes).all():
                return self._labelled(self._joined, columns[0].views())
        return super().read(columns)

    def _joined(self, views: Sequence[memoryview]) -> torch.Tensor:
        # A single array is no larger than its record.
        if len(views) > 1:
            reserve(len(views) * self._num_bytes)
        data = views[0] if len(views) == 1 else b"".join(views)
        return from_bytes(data, self._dtype, (len(views), *self._sizes))


def _rows(number: int, shape: Shape) -> tuple[Shape, Shape]:
    """The shape of all strings, and of each."""
    if len(shape) > _MOST_DIMENSIONS:
        raise ParseError(f"expected a shape of at most {_MOST_DIMENSIONS} sizes, got {len(shape)}")
    if number == 1:
        return shape, shape
    if not shape or shape[0] not in (-1, number):
        several = "" if not shape else " or several" if shape[0] == -1 else f" or {shape[0]}"
        raise ParseError(f"expected 1 string{several} for shape {[*shape]}, got {number}")
    return (number, *shape[1:]), shape[1:]


def _turned(data: bytes | memoryview, dtype: torch.dtype) -> bytes:
    """The bytes with the order of each number's bytes reversed; a complex element is two
    numbers.
    """
    size = dtype.itemsize // (2 if dtype.is_complex else 1)
    return np.frombuffer(data, f"u{size}").byteswap().tobytes()
