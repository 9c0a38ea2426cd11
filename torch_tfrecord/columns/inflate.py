"""Decompress values that were compressed on their own, within a bound."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import ParseError

__all__ = ["Compression", "deflate", "inflate"]

Compression: TypeAlias = Literal["zlib", "gzip", "zstd"]
_WINDOW_BITS = {"zlib": 15, "gzip": 31}
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20


def _decompressor(compression: Compression) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes the object that decompresses a stream, and its error."""
    if compression != "zstd":
        return lambda: zlib.decompressobj(_WINDOW_BITS[compression]), zlib.error
    zstd = _zstd()
    return zstd.ZstdDecompressor, zstd.ZstdError


def _zstd() -> Any:
    try:
        zstd = import_module(
            "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        )
    except ImportError as error:
        text = "values compressed with zstd need the package backports.zstd: pip install 'torch-tfrecord[zstd]'"
        raise ImportError(text) from error
    return zstd


def deflate(data: bytes, compression: Compression) -> bytes:
    """Compress a value as `inflate` reads it; equal bytes give equal ones."""
    if compression == "zstd":
        packed: bytes = _zstd().compress(data)
        return packed
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
        part = view[place : place + _INPUT_BYTES]
        try:
            pieces.append(
                inflater.decompress(
                    part, _OUTPUT_BYTES if num_bytes is None else num_bytes - total + 1
                )
            )
        except errors as error:
            raise ParseError(
                f"expected a {compression} stream, got other bytes or a damaged one"
            ) from error
        if not part and not pieces[-1] and not inflater.eof:
            raise ParseError(
                f"expected a whole {compression} stream, got a truncated one of {len(view)} bytes"
            )
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
