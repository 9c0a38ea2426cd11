"""Decompress values that were compressed on their own, within a bound."""

from __future__ import annotations

import zlib
from typing import Literal, TypeAlias

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.errors import ParseError

__all__ = ["Compression", "deflate", "inflate"]

Compression: TypeAlias = Literal["zlib", "gzip"]
_WINDOW_BITS = {"zlib": 15, "gzip": 31}
_INPUT_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20


def deflate(data: bytes, compression: Compression) -> bytes:
    """Compress a value as `inflate` reads it; equal bytes give equal ones."""
    deflater = zlib.compressobj(wbits=_WINDOW_BITS[compression])
    return deflater.compress(data) + deflater.flush()


def inflate(data: bytes | memoryview, compression: Compression, num_bytes: int | None = None) -> bytes:
    """Decompress a whole zlib stream (RFC 1950), or all members of a gzip file (RFC 1952).

    Stricter than ``tf.io.decode_compressed``, which returns what it has of a truncated stream.

    Args:
        data: The compressed bytes.
        compression: "zlib" or "gzip".
        num_bytes: The most bytes that it may have; None for what is left of the batch's memory.

    Raises:
        LimitExceededError: See `reserve`; before the bytes are there, or at most 1 MiB of them too many.
        ParseError: The stream is damaged, truncated or larger, or something follows it.
    """
    if num_bytes is not None:
        reserve(num_bytes)
    view, pieces, total, place = memoryview(data), list[bytes](), 0, 0
    inflater = zlib.decompressobj(_WINDOW_BITS[compression])
    while not inflater.eof or (compression == "gzip" and place < len(view)):
        inflater = zlib.decompressobj(_WINDOW_BITS[compression]) if inflater.eof else inflater
        part = view[place : place + _INPUT_BYTES]
        try:
            pieces.append(inflater.decompress(part, _OUTPUT_BYTES if num_bytes is None else num_bytes - total + 1))
        except zlib.error as error:
            raise ParseError(f"expected a {compression} stream, got other bytes or a damaged one") from error
        if not part and not pieces[-1] and not inflater.eof:
            raise ParseError(f"expected a whole {compression} stream, got a truncated one of {len(view)} bytes")
        place += len(part) - len(inflater.unconsumed_tail) - len(inflater.unused_data)
        total += len(pieces[-1])
        if num_bytes is None:
            reserve(len(pieces[-1]))
        elif total > num_bytes:
            raise ParseError(f"expected a {compression} stream of {num_bytes} bytes, got a longer one")
    if place < len(view):
        raise ParseError(f"expected the end of the {compression} stream, got {len(view) - place} bytes after it")
    return b"".join(pieces)
