"""Files of Snappy blocks, as TensorFlow writes them: their decompressed stream, and how to recognise
them.

Four bytes of length, big-endian, then a block in Snappy's raw format: what the writer had
collected, 256 KiB or less, or one long payload. This is not Snappy's framing format, which begins
with `sNaPpY`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_tfrecord.compression.inflated import InflatedSource
from torch_tfrecord.errors import CompressionError, needs_extra

__all__ = ["SnappySource", "first_uncompressed"]

_LENGTH_BYTES = 4
_MOST_EXPANSION = 22  # three bytes are a copy of at most 64


class SnappySource(InflatedSource):
    """The decompressed stream of a file of Snappy blocks, in the same way."""

    def _more(self) -> bytes:
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
        offset: Of the block in the file.
        size: Bytes of the file; None if unknown.
        limit: The most that the block may hold when decompressed.

    Returns:
        Its content, and the offset of the next block; nothing at the end of the file.

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
    with needs_extra("reading files compressed with Snappy", "snappy"):
        from cramjam import DecompressionError, snappy
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
