"""Streams that can only be read forward, read by offset: what a compressed file holds, and pipes.

Reading is strict where TensorFlow silently loses data: any number of gzip members and zlib streams
is read, and a truncated stream or trailing bytes are errors.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, BinaryIO, Protocol

from torch_tfrecord.errors import CompressionError
from torch_tfrecord.files.seek_points import FOLLOWING_BYTES, PointFinder, SeekPoint, lead_in
from torch_tfrecord.files.storage import ByteSource
from torch_tfrecord.native import optional_module

__all__ = [
    "GZIP_MAGIC",
    "MAX_INFLATED_RECORD_BYTES",
    "SNAPPY_PREFIX_BYTES",
    "WINDOW_BITS",
    "InflatedSource",
    "PipeSource",
    "SequentialSource",
    "SnappySource",
    "first_uncompressed",
    "is_zlib_header",
]

GZIP_MAGIC = b"\x1f\x8b\x08"
WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}
# Compressed bytes fed to the decompressor at a time, and the maximum it may output for them in one
# call.
_INPUT_BYTES = 1 << 17
_OUTPUT_BYTES = 1 << 18

# A record of a compressed stream may be this long, or this many times the compressed file, as its
# length cannot be checked against the file's size. Real data above the first limit does not expand
# beyond the second; a bomb does.
MAX_INFLATED_RECORD_BYTES = 1 << 29
_MAX_HONEST_EXPANSION = 100


def is_zlib_header(first_bytes: bytes) -> bool:
    """Whether a zlib stream may begin so."""
    # RFC 1950: method 8, a window of at most 2^15, the two bytes a multiple of 31, no preset
    # dictionary.
    if len(first_bytes) < 2:
        return False
    method, flags = first_bytes[0], first_bytes[1]
    return (
        method & 0x0F == 8
        and method >> 4 <= 7
        and (method * 256 + flags) % 31 == 0
        and not flags & 0x20
    )


class SequentialSource(ABC):
    """A `ByteSource` over something that can only be read forward.

    Keeps bytes from the last requested offset on; an earlier offset starts over, if possible.
    Memory is bounded by the bytes that really exist, whatever is requested. Safe to call from
    threads.

    Attributes:
        keep_from: Bytes from this offset on are also kept; set by callers that look ahead, or read
            at random.
        most_bytes: About how many it may keep.
    """

    def __init__(self, path: str, max_record_bytes: int, begin: int = 0) -> None:
        self.path = path
        self.size: int | None = None
        self.max_record_bytes: int | None = max_record_bytes
        self.chunk_bytes = 1 << 19
        self._lock = threading.Lock()
        self.keep_from: int | None = None
        self.most_bytes = 1 << 20
        self._kept = bytearray()
        self._begin = self._offset = begin  # offset of the first kept byte

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the readable stream."""
        with self._lock:
            begin = self._advance(num_bytes, offset)
            with memoryview(self._kept) as kept:
                return bytes(kept[begin : begin + num_bytes])

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, as of `read`."""
        with self._lock:
            begin = self._advance(len(buffer), offset)
            with memoryview(self._kept) as kept:
                got = min(len(buffer), max(len(kept) - begin, 0))
                buffer[:got] = kept[begin : begin + got]
                return got

    def _advance(self, num_bytes: int, offset: int) -> int:
        """Read up to a range; return where it begins among the kept bytes."""
        if offset < self._offset:
            self._restart()
            self._kept, self._offset = bytearray(), self._begin
        while self._offset + len(self._kept) < offset + num_bytes and (piece := self._more()):
            self._kept += piece
            self._drop(offset)
        self._drop(offset)
        return max(offset - self._offset, 0)

    def _drop(self, offset: int) -> None:
        """Drop bytes before an offset, unless they are to be kept."""
        if self.keep_from is not None:
            offset = min(offset, self.keep_from)
        excess = min(offset - self._offset, len(self._kept))
        if excess > 0:
            del self._kept[:excess]  # cheap: only moves the start of the bytearray
            self._offset += excess

    def check_end(self) -> None:  # noqa: B027 - nothing to check for a stream without an end marker
        """Raise if the stream is truncated or damaged."""

    @abstractmethod
    def _more(self) -> bytes:
        """The next piece of the stream, of bounded size; empty at the end."""

    @abstractmethod
    def _restart(self) -> None:
        """Go back to the beginning."""


class _Inflater(Protocol):
    """What zlib, isal and our core call a decompression object."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


@functools.cache
def _fastest() -> ModuleType:
    """The package isal, which has zlib's functions at twice its speed, or zlib."""
    try:
        return importlib.import_module("isal.isal_zlib")
    except ImportError:
        return zlib


class InflatedSource(SequentialSource):
    """The decompressed stream of a gzip or zlib file.

    Offsets are positions in the decompressed stream. Reading backwards decompresses again from the
    beginning. Damage does not raise at once: everything before it can be read, then `check_end`
    raises.

    Args:
        source: The compressed bytes.
        compression_type: "GZIP" or "ZLIB".
        start: Where it begins; None for the file's first byte.
        finder: Is shown the places where decompression may begin.

    Attributes:
        end: Offset that reading stops at.
    """

    def __init__(
        self,
        source: ByteSource,
        compression_type: str,
        start: SeekPoint | None = None,
        finder: PointFinder | None = None,
    ) -> None:
        self._start = SeekPoint(0, 0) if start is None else start
        expansion = _MAX_HONEST_EXPANSION * (source.size or 0)
        limit = max(MAX_INFLATED_RECORD_BYTES, expansion)
        super().__init__(source.path, limit, self._start.offset)
        self._source, self._type, self._finder = source, compression_type, finder
        self.end = 1 << 62
        # What isal cannot read is read again by zlib, which says what is wrong.
        can_read_again = source.size is not None and finder is None
        self._engine = _fastest() if can_read_again else zlib
        self._restart()

    def _restart(self) -> None:
        self._inflater: _Inflater | None = None  # None between two members
        self._input = b""
        self._lead = 0  # bits of the next byte that are before the first block
        self._consumed = self._start.bit >> 3  # compressed bytes taken from the source
        self._produced = self._start.offset  # end of what was decompressed
        self._error: CompressionError | None = None
        self._members = 0
        self._member = self._consumed, self._produced  # where it begins, compressed and not
        self._to_drop = 0  # bytes that were returned already
        if self._start.member_end >= 0:
            self._enter_member(self._engine)

    def _enter_member(self, engine: ModuleType) -> None:
        """Begin where `_member` says: at a header, or in the midst of a member at the start."""
        self._consumed, self._produced = self._member
        self._input, self._inflater = b"", None
        if (
            self._member == (self._start.bit >> 3, self._start.offset)
            and self._start.member_end >= 0
        ):
            self._lead, self._members = self._start.bit & 7, 1
            window = {"zdict": self._start.window} if self._start.window else {}
            self._inflater = engine.decompressobj(-15, **window)
        else:
            self._inflater = engine.decompressobj(WINDOW_BITS[self._type])

    def check_end(self) -> None:
        """Raise the CompressionError that ended the stream, if one did."""
        if self._error is not None:  # a new error each time, as callers add to it
            raise CompressionError(
                str(self._error.args[0]), path=self.path
            ) from self._error.__cause__

    def _more(self) -> bytes:
        while self._error is None and self._produced < self.end:
            if not self._input:
                self._input = self._next_input()
            at_end = not self._input
            if self._inflater is None and not at_end:
                self._inflater = self._next_member()
            if self._inflater is None:
                return b""
            before = self._produced
            if piece := self._inflate(self._inflater):  # also at the end: zlib may hold some back
                return piece
            if at_end and self._inflater is not None and self._produced == before:
                self._fail(
                    "the stream is truncated: expected its end marker and checksum, got the end of the file"
                )
        return b""

    def _next_input(self) -> bytes:
        data = self._source.read(_INPUT_BYTES, self._consumed)
        self._consumed += len(data)
        lead, self._lead = self._lead, 0
        return lead_in(data, lead)

    def _next_member(self) -> _Inflater | None:
        magic = GZIP_MAGIC[:2] if self._type == "GZIP" else b""
        matches = (
            self._input[:2] == magic[: len(self._input)] if magic else is_zlib_header(self._peek(2))
        )
        if self._members and not matches:
            self._fail(
                f"expected the end of the file or another {self._type} stream after the data, got other bytes"
            )
            return None
        self._members += 1
        bits, begin = WINDOW_BITS[self._type], self._consumed - len(self._input)
        self._member = begin, self._produced
        if self._finder is not None:
            self._finder.add_member(begin, self._produced)
            core = optional_module("deflate")
            if core is not None:
                inflater: _Inflater = core.BlockInflater(bits, self._finder.left(self._produced))
                return inflater
        # Reserved flags mean a format to come: zlib refuses it, isal reads on.
        reserved = self._type == "GZIP" and any(flags & 0xE0 for flags in self._peek(4)[3:])
        found: _Inflater = (zlib if reserved else self._engine).decompressobj(bits)
        return found

    def _peek(self, num_bytes: int) -> bytes:
        if len(self._input) < num_bytes:
            more = self._source.read(num_bytes - len(self._input), self._consumed)
            self._consumed += len(more)
            self._input += more
        return self._input[:num_bytes]

    def _inflate(self, inflater: _Inflater) -> bytes:
        # An error loses what was decompressed before it: `_salvage` does that again from here.
        copy = getattr(inflater, "copy", None)
        before = None if copy is None else copy()
        data = self._input
        try:
            piece = inflater.decompress(data, min(_OUTPUT_BYTES, self.end - self._produced))
        except (zlib.error, self._engine.error) as error:
            if before is not None:
                if self._finder is not None:
                    before.left = 1 << 62  # looks for no more borders
                return self._salvage(before, data, error)
            self._to_drop += self._produced - self._member[1]
            self._enter_member(zlib)
            return b""
        self._produced += len(piece)
        if inflater.eof:
            self._end_member(inflater)
        else:
            self._input = inflater.unconsumed_tail
            if self._finder is not None and getattr(inflater, "is_at_border", False):
                self._show_border(inflater, data, self._finder)
        dropped = min(self._to_drop, len(piece))
        self._to_drop -= dropped
        return piece[dropped:]

    def _end_member(self, inflater: _Inflater) -> None:
        self._input, self._inflater = inflater.unused_data, None
        # Raw data have neither the checksum behind them nor whole bytes.
        if self._members == 1 and self._start.member_end >= 0:
            self._input, self._consumed = b"", self._start.member_end
        if self._finder is not None:
            self._finder.end_member(self._consumed - len(self._input))

    def _show_border(self, inflater: Any, data: bytes, finder: PointFinder) -> None:
        bits, at = inflater.unused_bits, len(data) - len(self._input)
        if at:
            following = self._peek(FOLLOWING_BYTES)
            bit = 8 * (self._consumed - len(self._input)) - bits
            finder.add_block(
                bit,
                self._produced,
                inflater.window(),
                (data[at - 1 : at] if bits else b"") + following,
            )
        inflater.left = finder.left(self._produced)

    def _salvage(self, inflater: _Inflater, data: bytes, error: Exception) -> bytes:
        """Recover the data before the damage: zlib drops it in the failing call, so feed it byte by
        byte.
        """
        pieces = []
        position = 0
        try:
            for position in range(len(data)):
                pieces.append(inflater.decompress(data[position : position + 1]))
        except zlib.error:
            self._input = data[position:]
        self._fail(f"the stream is damaged: {error}", error)
        dropped, piece = self._to_drop, b"".join(pieces)
        self._produced += len(piece)
        return piece[dropped:]

    def _fail(self, text: str, cause: Exception | None = None) -> None:
        at = self._consumed - len(self._input)
        kind = self._type.lower()
        self._error = CompressionError(
            f"{kind}: {text} (near compressed byte {at})", path=self.path
        )
        self._error.__cause__ = cause


class SnappySource(InflatedSource):
    """The decompressed stream of a file of Snappy blocks, in the same way."""

    def _more(self) -> bytes:
        size, limit = self._source.size, self.max_record_bytes or 0
        piece = b""
        while self._error is None and not piece:
            begin = self._consumed
            if self._finder is not None and begin < (size or 0):
                self._finder.add_member(begin, self._produced)
            try:
                piece, self._consumed = _read_block(self._source.read, begin, size, limit)
                self._produced += len(piece)
            except CompressionError as error:
                self._fail(str(error.args[0]), error)  # whole blocks before it can be read
            if self._consumed == begin:
                break
        return piece


class PipeSource(SequentialSource):
    """A binary file object that can only be read forward, such as ``sys.stdin.buffer``."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(str(getattr(file, "name", "<stream>")), MAX_INFLATED_RECORD_BYTES)
        self._file = file

    def _more(self) -> bytes:
        data = self._file.read(self.chunk_bytes)
        if data is None:  # the end of the file is b""
            raise BlockingIOError(
                errno.EAGAIN, "expected a blocking file object, got no data yet", self.path
            )
        return data

    def _restart(self) -> None:
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), self.path)


# Snappy as TensorFlow writes it: four bytes of length, big-endian, then a block in Snappy's raw
# format: what the writer had collected, 256 KiB or less, or one long payload. This is not Snappy's
# framing format, which begins with `sNaPpY`.

SNAPPY_PREFIX_BYTES = 64
"""Of a file, from which `first_uncompressed` gets the header of its first record."""

_LENGTH_BYTES = 4
_MOST_EXPANSION = 22  # three bytes are a copy of at most 64
_PIP = "pip install 'torch-tfrecord[snappy]'"


def _read_block(
    read: Callable[[int, int], bytes], offset: int, size: int | None, limit: int
) -> tuple[bytes, int]:
    """Read and decompress one block.

    Args:
        read: Up to a number of bytes of the file from an offset, fewer only at its end.
        offset: Of the block in the file.
        size: Bytes of the file; None if unknown.
        limit: The most that the block may hold when decompressed.

    Returns:
        What it holds, and the offset of the next block; nothing at the end of the file.

    Raises:
        CompressionError: The block is truncated or damaged, or claims more than its bytes can hold.
        ImportError: The package cramjam is missing.

    Source: tensorflow/core/lib/io/snappy/snappy_outputbuffer.cc.
    """
    head = read(_LENGTH_BYTES, offset)
    if not head:
        return b"", offset
    length, begin = int.from_bytes(head, "big"), offset + _LENGTH_BYTES
    is_cut = len(head) < _LENGTH_BYTES or (size is not None and begin + length > size)
    block = b"" if is_cut else read(length, begin)
    if is_cut or len(block) < length:
        raise CompressionError(
            "the stream is truncated: expected the rest of a block, got the end of the file"
        )
    return _decompress(block, limit), begin + length


def _decompress(block: bytes, limit: int) -> bytes:
    try:
        from cramjam import DecompressionError, snappy
    except ImportError as error:
        raise ImportError(
            f"files compressed with Snappy need the package cramjam: {_PIP}"
        ) from error
    try:
        claimed = snappy.decompress_raw_len(block)
        if claimed > min(limit, _MOST_EXPANSION * len(block)):
            raise CompressionError(
                f"the stream is damaged: expected a block of at most {min(limit, _MOST_EXPANSION * len(block))} bytes, "
                f"got a length of {claimed}"
            )
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise CompressionError(
            "the stream is damaged: expected a Snappy block, got other bytes"
        ) from error


def first_uncompressed(prefix: bytes, wanted: int) -> bytes:
    """What the first block of a stream begins with; empty where its first bytes are no block.

    Args:
        prefix: The first bytes of the file.
        wanted: Number of bytes; fewer come where the prefix or the block ends.
    """
    block = prefix[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(prefix[:_LENGTH_BYTES], "big")]
    # after its length
    at = next((place + 1 for place, byte in enumerate(block[:5]) if byte < 0x80), len(block))
    out = bytearray()
    while at < len(block) and len(out) < wanted:
        literal, length, distance, at = _element(block, at)
        if literal:
            out += block[at : at + length]
            at += length
        elif not 0 < distance <= len(out):
            return b""
        else:
            for _ in range(length):
                out.append(out[-distance])
    return bytes(out[:wanted])


def _element(block: bytes, at: int) -> tuple[bool, int, int, int]:
    """An element of a raw block: whether it is a literal, its length, how far back a copy begins,
    and what follows.
    """
    tag, kind = block[at], block[at] & 3
    if kind == 0:
        extra = max((tag >> 2) - 59, 0)  # bytes of a long literal's length
        length = int.from_bytes(block[at + 1 : at + 1 + extra], "little") if extra else tag >> 2
        return True, length + 1, 0, at + 1 + extra
    if kind == 1:
        distance = (tag >> 5) << 8 | int.from_bytes(block[at + 1 : at + 2], "little")
        return False, 4 + (tag >> 2 & 7), distance, at + 2
    width = 2 if kind == 2 else 4
    return (
        False,
        1 + (tag >> 2),
        int.from_bytes(block[at + 1 : at + 1 + width], "little"),
        at + 1 + width,
    )
