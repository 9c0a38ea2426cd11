"""The decompressed stream of a gzip or zlib file, or of one of Snappy blocks.

Reading is strict where TensorFlow silently loses data: any number of gzip members and zlib streams
is read, and a truncated stream or trailing bytes are errors.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakMethod

from torch_tfrecord.compression.deflate import (
    GZIP_MAGIC,
    NO_WINDOW,
    TRAILER_BYTES,
    WINDOW_BITS,
    Engine,
    Inflater,
    fastest,
    find_start,
    lead_in,
)
from torch_tfrecord.compression.gzip_members import MembersAhead
from torch_tfrecord.compression.seek_points import PointFinder, SeekPoint
from torch_tfrecord.errors import CompressionError, needs_extra
from torch_tfrecord.files import FileSource, SequentialSource
from torch_tfrecord.native import optional_module
from torch_tfrecord.per_process import Ahead, PerProcess

__all__ = [
    "InflatedSource",
    "SnappySource",
    "first_uncompressed",
    "is_zlib_header",
]

# Compressed bytes fed to the decompressor at a time, and the maximum it may output for them in one
# call; for a thread, which waits for the GIL after each, more.
_INPUT_BYTES, _OUTPUT_BYTES = 1 << 17, 1 << 18
_THREAD_BYTES = 1 << 21, 1 << 22
_MOST_AGAIN_BYTES = 1 << 22  # from which to go on before damage
_END = 1 << 62  # where a stream is read to its end

_MAX_HONEST_EXPANSION = 100  # for a longer record than a stream may have: a bomb expands more


def is_zlib_header(first_bytes: bytes) -> bool:
    """Whether a zlib stream may begin so."""
    try:
        zlib.decompressobj().decompress(first_bytes[:2])
    except zlib.error:
        return False
    return len(first_bytes) > 1 and not first_bytes[1] & 0x20  # RFC 1950: no preset dictionary


class Gap(NamedTuple):
    """Damage that the decompression of a file went past.

    Attributes:
        begin: First byte of the file that was passed over.
        end: Where decompression went on.
        kind: "cut", "trailing bytes", or such as "gzip CRC" (all was decompressed, and some of it is
            wrong) and "gzip data".
        error: What was wrong.
    """

    begin: int
    end: int
    kind: str
    error: CompressionError


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
        gaps: Takes the damage, which the stream goes past; what comes after it may have wrong
            bytes. Without it damage ends the stream.

    Attributes:
        end: Offset that reading stops at.
        input_bytes: Compressed bytes that are read at a time.
        finder: The same.
    """

    is_inflated = True

    def __init__(
        self,
        source: FileSource,
        compression_type: str,
        start: SeekPoint | None = None,
        finder: PointFinder | None = None,
        gaps: list[Gap] | None = None,
    ) -> None:
        self._start = SeekPoint(0, 0) if start is None else start
        limit = _MAX_HONEST_EXPANSION * (source.size or 0)
        super().__init__(source.path, limit, self._start.offset)
        self._source, self._type, self.finder = source, compression_type, finder
        self._gaps = gaps
        self.end, self.input_bytes, self._output_bytes = _END, _INPUT_BYTES, _OUTPUT_BYTES
        # A member that isal cannot read is read again by zlib, which says what is wrong.
        can_read_again = source.size is not None
        of_blocks = finder and optional_module("inflate")
        self._engine = (of_blocks or fastest()) if can_read_again else zlib
        are_ahead = can_read_again and start is None and compression_type == "GZIP"
        self._members = MembersAhead(source) if are_ahead else None
        self._is_ahead = False
        self._pieces: PerProcess[Ahead[bytes]] = PerProcess(Ahead)
        self._restart()

    def stop(self) -> None:
        """See `FileSource`."""
        try:
            if not sys.is_finalizing():  # its thread would never end
                self._pieces.get().stop()
        except AttributeError:  # when Python ends, the names of modules may be gone
            pass

    def _restart(self) -> None:
        self.stop()
        self._pieces = PerProcess(Ahead, keeps_parents=True)
        self._given = 0  # bytes that were returned
        self._error: CompressionError | None = None
        self._to_drop = 0  # bytes that were returned already
        self._again = 0  # compressed bytes gone through again for members that damage hid
        self._original = self._start  # where they came from
        if self._gaps:
            self._gaps.clear()
        self._enter(self._start)

    def _enter(self, point: SeekPoint) -> None:
        """Begin at a header, or between two blocks."""
        self._member = point
        self._input = b""
        self._lead = point.bit & 7  # bits of the next byte that are before the first block
        self._consumed = point.bit >> 3  # compressed bytes taken from the source
        self._produced = point.offset  # end of what was decompressed
        self._is_full = False  # whether the decompressor may hold more of it
        self._inflater = self._new_inflater(self._engine) if point.is_block else None

    def _new_inflater(self, engine: Engine) -> Inflater:
        """A decompressor of the member, or of the rest of it."""
        window = {"zdict": self._member.window} if self._member.window else {}
        bits = -15 if self._member.is_block else WINDOW_BITS[self._type]
        return engine.decompressobj(bits, **window)

    def check_end(self) -> None:
        """Raise the CompressionError that ended the stream, if one did."""
        if self._error is not None:  # a new error each time, as callers add to it
            raise CompressionError(
                str(self._error.args[0]), path=self.path
            ) from self._error.__cause__

    def ahead(self, last: int | None = None) -> FileSource:
        """See `FileSource`: a thread decompresses the next piece while one is used."""
        self._is_ahead = self._gaps is None and self._type in WINDOW_BITS
        if self._is_ahead:
            self.input_bytes, self._output_bytes = _THREAD_BYTES
        return self

    def _more(self) -> bytes:
        if not self._is_ahead:
            return self._inflated()
        given = self._given
        if self._pieces.was_forked:  # the thread is not here: from the beginning
            self._restart()
            self._given = self._to_drop = given
        inflated = WeakMethod(self._inflated)  # a thread that ends keeps no file open
        piece = self._pieces.get().next(lambda: inflated()())  # type: ignore[misc]
        self._given += len(piece)
        return piece

    def _inflated(self) -> bytes:
        """The next piece; empty at the end, or where damage ends the stream."""
        while self._error is None and self._produced < self.end:
            if self._inflater is None and (piece := self._whole_member()):
                return piece
            if not self._input and not self._is_full:
                self._input = self._next_input()
            at_end = not self._input and not self._is_full
            if self._inflater is None:
                if at_end:
                    return b""
                self._begin_member()
                continue
            before = self._produced
            if piece := self._inflate(self._inflater):  # also at the end: zlib may hold some back
                return piece
            is_cut = at_end and self._inflater is not None and self._produced == before
            if is_cut and not hasattr(self._inflater, "copy"):
                self._read_again()  # isal may hold back the last bytes
            elif is_cut:
                self._fail(
                    "the stream is truncated: expected its end marker and checksum, got the end of the file",
                    "cut",
                )
        return b""

    def _whole_member(self) -> bytes:
        """The content of the next members, decompressed ahead; nothing where that cannot be."""
        content = b""
        while self._members is not None and not content:
            begin = self._consumed - len(self._input)
            found = self._members.take(begin)
            if found is None:
                break
            self._add_member(begin)
            content, self._consumed = found
            self._input = b""
            self._produced += len(content)
            content = self._without_known(content)
        return content

    def _add_member(self, begin: int) -> None:
        self._member = SeekPoint(8 * begin, self._produced)
        if self.finder is not None:
            self.finder.add_member(begin, self._produced)

    def _next_input(self) -> bytes:
        data = self._source.read(self.input_bytes, self._consumed)
        self._consumed += len(data)
        lead, self._lead = self._lead, 0
        return lead_in(data, lead)

    def _begin_member(self) -> None:
        while len(self._input) < 4 and (more := self._next_input()):
            self._input += more
        head, is_gzip = self._input[:4], self._type == "GZIP"
        matches = GZIP_MAGIC.startswith(head[:2]) if is_gzip else is_zlib_header(head)
        begin = self._consumed - len(self._input)
        if begin > self._start.bit >> 3 and not matches:
            self._fail(
                f"expected the end of the file or another {self._type} stream after the data, got other bytes",
                "trailing bytes",
            )
            return
        self._add_member(begin)
        # Reserved flags mean a format to come: zlib refuses it, isal reads on.
        reserved = is_gzip and len(head) == 4 and head[3] & 0xE0
        self._inflater = self._new_inflater(zlib if reserved else self._engine)

    def _inflate(self, inflater: Inflater) -> bytes:
        # An error loses what was decompressed before it: `_salvage` does that again from here.
        copy = getattr(inflater, "copy", None)
        before = None if copy is None else copy()
        most = self._output_bytes
        if self.end < _END:  # at once where it is known how much comes: nothing is joined then
            most = max(most, self._until - self._produced)
        data, wanted = self._input, min(most, self.end - self._produced)
        try:
            piece = inflater.decompress(data, wanted)
        except (zlib.error, self._engine.error) as error:
            if before is not None:
                return self._salvage(before, data, error)
            self._read_again()
            return b""
        if self.finder is not None:
            border, begin = getattr(inflater, "border", None), self._consumed - len(data)
            self.finder.see(border, data, begin, self._produced)
        self._produced += len(piece)
        self._is_full = len(piece) == wanted and not inflater.eof
        if inflater.eof:
            self._end_member(inflater)
        else:
            self._input = getattr(inflater, "unconsumed_tail", b"")
        return self._without_known(piece)

    def _read_again(self) -> None:
        """Decompress the member again, by zlib."""
        self._to_drop += self._produced - self._member.offset
        self._enter(self._member)
        self._inflater, self.input_bytes = self._new_inflater(zlib), _INPUT_BYTES  # see `_salvage`

    def _without_known(self, piece: bytes) -> bytes:
        dropped = min(self._to_drop, len(piece))
        self._to_drop -= dropped
        return piece[dropped:]

    def _end_member(self, inflater: Inflater) -> None:
        self._input, self._inflater = inflater.unused_data, None
        if self._member.is_block:  # the checksum is of more than what came from here
            self._consumed += TRAILER_BYTES[self._type] - len(self._input)
            self._input = b""

    def _salvage(self, inflater: Inflater, data: bytes, error: Exception) -> bytes:
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
        piece = b"".join(pieces)
        self._produced += len(piece)
        piece = self._without_known(piece)
        what = "CRC" if "check" in str(error) else "data"
        self._fail(f"the stream is damaged: {error}", f"{self._type.lower()} {what}", error)
        return piece

    def _fail(self, text: str, kind: str, cause: Exception | None = None) -> None:
        at = self._consumed - len(self._input)
        text = f"{self._type.lower()}: {text} (near compressed byte {at})"
        error = CompressionError(text, path=self.path)
        error.__cause__ = cause
        if self._gaps is None or self._type not in WINDOW_BITS:
            self._error = error
        else:
            end = self._pass(at)
            self._gaps.append(Gap(min(at, end), end, kind, error))

    def _pass(self, at: int) -> int:
        """Go on after damage; the byte where."""
        if not self._to_drop:
            self._original = self._member
        elif self.finder is not None:  # nothing new came from what was to be read again
            self.finder.add_start(self._original)
        self._produced += self._to_drop
        self._to_drop = 0
        begin: int | None = max(self._member.bit >> 3, at - _MOST_AGAIN_BYTES)
        self._again += at - (begin or 0)
        if self._again > _MOST_AGAIN_BYTES + 4 * at:  # members in members would take quadratic time
            begin = None
        bit, is_block = find_start(self._source, at, self._type, begin)
        point = SeekPoint(bit, self._produced, is_block, NO_WINDOW if is_block else b"")
        if self.finder is not None:
            self.finder.add_start(point)
        self._enter(point)
        return self._consumed


# Files of Snappy blocks, as TensorFlow writes them: four bytes of length, big-endian, then a block in
# Snappy's raw format: what the writer had collected, 256 KiB or less, or one long payload. This is
# not Snappy's framing format, which begins with `sNaPpY`.
_LENGTH_BYTES = 4
_MOST_SNAPPY_EXPANSION = 22  # three bytes are a copy of at most 64


class SnappySource(InflatedSource):
    """The decompressed stream of a file of Snappy blocks, in the same way."""

    def _inflated(self) -> bytes:
        size, limit = self._source.size, self.max_record_bytes or 0
        piece = b""
        while self._error is None and not piece:
            begin = self._consumed
            if self.finder is not None and begin < (size or 0):
                self.finder.add_member(begin, self._produced)
            try:
                piece, self._consumed = _read_block(self._source.read, begin, size, limit)
                self._produced += len(piece)
            except CompressionError as error:
                self._fail(
                    str(error.args[0]), "snappy data", error
                )  # whole blocks before it can be read
            if self._consumed == begin:
                break
        return piece


def _read_block(
    read: Callable[[int, int], bytes], offset: int, size: int | None, limit: int
) -> tuple[bytes, int]:
    """Read and decompress one block.

    Args:
        read: Up to a number of bytes of the file from an offset, fewer only at its end.
        offset: Offset of the block in the file.
        size: Bytes of the file; None if unknown.
        limit: Most bytes of the block when decompressed.

    Returns:
        Its content, and the offset of the next block; nothing at the end of the file.

    Raises:
        CompressionError: The block is truncated or damaged, or claims more than its bytes can expand to.
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
    with needs_extra("reading files compressed with Snappy", "snappy"):
        from cramjam import DecompressionError, snappy
    try:
        claimed = snappy.decompress_raw_len(block)
        most = min(limit, _MOST_SNAPPY_EXPANSION * len(block))
        if claimed > most:
            raise CompressionError(
                f"the stream is damaged: expected a block of at most {most} bytes, "
                f"got a length of {claimed}"
            )
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise CompressionError(
            "the stream is damaged: expected a Snappy block, got other bytes"
        ) from error


def first_uncompressed(prefix: bytes, wanted: int) -> bytes:
    """The first bytes in the first block of a stream; empty where its first bytes are no block.

    Args:
        prefix: The first bytes of the file.
        wanted: Number of bytes; fewer come where the prefix or the block ends.
    """
    block = prefix[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(prefix[:_LENGTH_BYTES], "big")]
    # after its length
    at = next((place + 1 for place, byte in enumerate(block[:5]) if byte < 0x80), len(block))
    out = bytearray()
    while at < len(block) and len(out) < wanted:
        # Elements: a literal, whose length follows where it is long, or a copy of bytes before.
        kind, rest = block[at] & 3, block[at] >> 2
        width = max(rest - 59, 0) if kind == 0 else 1 << kind - 1
        number = int.from_bytes(block[at + 1 : at + 1 + width], "little")
        at += 1 + width
        if kind == 0:
            end = at + 1 + (number if width else rest)
            out += block[at:end]
            at = end
            continue
        length, distance = (
            (4 + (rest & 7), rest >> 3 << 8 | number) if kind == 1 else (1 + rest, number)
        )
        if not 0 < distance <= len(out):
            return b""
        for _ in range(length):
            out.append(out[-distance])
    return bytes(out[:wanted])
