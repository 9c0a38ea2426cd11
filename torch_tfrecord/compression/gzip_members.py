"""Members of gzip files (RFC 1952) whose headers say how long they are: they are decompressed at
once, by threads, and a reader can go from one to the next without decompressing any.

The sizes are in the header's extra field: bgzip's (BC), pgzip's (IG) and ours (TR), which also
has a checksum, and the lengths of the records.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.compression.deflate import GZIP_MAGIC, MOST_EXPANSION, fastest
from torch_tfrecord.files import FileSource
from torch_tfrecord.per_process import PerProcess, each_at_once, num_processors

__all__ = ["MemberPacker", "MembersAhead", "member_lengths"]

_EXTRA, _RESERVED = 4, 0xE0  # flags
_HEAD_BYTES = 12  # with the length of the extra field
_PEEK_BYTES = 1 << 12
_OVERHEAD_BYTES = 16  # a record's
_MOST_BYTES = 1 << 24  # a member that is decompressed at once
_MOST_KEPT = 1 << 26  # a member that is written with its size
_LENGTHS_SHARE = 0.0075  # a member's, that the lengths of its records may take
_LEAST_LENGTHS, _MOST_LENGTHS = 1 << 6, 65_000  # bytes that they may take in any case, and at most
_MOST_AHEAD = 16


class _Sizes(NamedTuple):
    """Facts in a member's header.

    Attributes:
        num_bytes: Bytes of the member.
        lengths: int64: payload lengths of its records; None where it says none.
    """

    num_bytes: int
    lengths: npt.NDArray[np.int64] | None = None


def _read_sizes(source: FileSource, begin: int) -> _Sizes | None:
    """The facts in the header of the member at a byte; None where it has no size."""
    head = source.read(_PEEK_BYTES, begin)
    if (
        len(head) < _HEAD_BYTES
        or head[:3] != GZIP_MAGIC
        or head[3] & (_EXTRA | _RESERVED) != _EXTRA
    ):
        return None
    end = _HEAD_BYTES + int.from_bytes(head[10:12], "little")
    if end > len(head):
        head = source.read(end, begin)
    found, at = None, _HEAD_BYTES
    while at + 4 <= end:
        name, size = head[at : at + 2], int.from_bytes(head[at + 2 : at + 4], "little")
        field, at = head[at + 4 : at + 4 + size], at + 4 + size
        if name == b"BC" and size == 2:
            found = _Sizes(int.from_bytes(field, "little") + 1)
        elif name == b"IG" and size in (4, 8):
            found = _Sizes(int.from_bytes(field, "little"))
        elif name == b"TR":
            return _unpacked(field)
    return found


def _packed(num_bytes: int, lengths: bytes) -> bytes:
    sizes = num_bytes.to_bytes(4, "little") + lengths
    return struct.pack("<2sHI", b"TR", 4 + len(sizes), crc32c(sizes)) + sizes


def _unpacked(field: bytes) -> _Sizes | None:
    """The facts in a field that `_packed` made, without its length; None where it is damaged."""
    num_bytes, lengths = int.from_bytes(field[4:8], "little"), field[8:]
    if int.from_bytes(field[:4], "little") != crc32c(field[4:]):
        return None
    if not 0 < len(lengths) <= _most_lengths(num_bytes):
        return _Sizes(num_bytes)
    try:
        planes = np.frombuffer(zlib.decompress(lengths), np.uint8)
    except zlib.error:
        return None
    if len(planes) % 4:
        return None
    found = np.ascontiguousarray(planes.reshape(4, -1).T).view("<u4")[:, 0].astype(np.int64)
    return _Sizes(num_bytes, found)


def _most_lengths(num_bytes: int) -> int:
    """Bytes that the lengths of the records may take in a member."""
    return min(max(int(_LENGTHS_SHARE * num_bytes), _LEAST_LENGTHS), _MOST_LENGTHS)


def member_lengths(source: FileSource, size: int) -> list[tuple[int, npt.NDArray[np.int64]]] | None:
    """The first byte of each member of a file, and the payload lengths of its records.

    Args:
        source: The file.
        size: Its bytes.

    Returns:
        None where a member's header does not say them.
    """
    found, at = [], 0
    while at < size:
        sizes = _read_sizes(source, at)
        if sizes is None or sizes.lengths is None or sizes.num_bytes < _HEAD_BYTES:
            return None
        found.append((at, sizes.lengths))
        at += sizes.num_bytes
        num_bytes = int(sizes.lengths.sum()) + _OVERHEAD_BYTES * len(sizes.lengths)
        is_possible = num_bytes <= MOST_EXPANSION * sizes.num_bytes
        # A member ends with the number of its bytes, modulo 2^32.
        end = (num_bytes & 0xFFFFFFFF).to_bytes(4, "little")
        if not is_possible or source.read(4, at - 4) != end:
            return None
    return found if at == size else None


class MemberPacker:
    """Compresses one member, in the way of zlib's objects. It is kept until it ends, so that its
    header can say its size; not where more than 64 MiB would be kept, or what there is of it is
    asked for.

    Args:
        level: 0 to 9, or -1.
        says_size: See below.

    Attributes:
        says_size: Whether the header says its size; it need not where a file has no other.
        lengths: Lengths of its records, to which the writer appends.
    """

    def __init__(self, level: int, says_size: bool = False) -> None:
        self.says_size = says_size
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9)
        self._held: bytearray | None = bytearray()
        self._crc = self._size = 0
        self.lengths: list[int] = []

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take content; what there is to write."""
        self._crc, self._size = zlib.crc32(data, self._crc), self._size + len(data)
        packed = self._packer.compress(data)
        return self._written(packed, len(self._held or b"") > _MOST_KEPT, b"")

    def flush(self, mode: int = zlib.Z_FINISH) -> bytes:
        """End the member; with another mode only what there is of it."""
        packed, extra = self._packer.flush(mode), b""
        if mode == zlib.Z_FINISH:
            packed += struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)
            if self.says_size:
                extra = self._extra(len(self._held or b"") + len(packed))
        return self._written(packed, True, extra)

    def _written(self, packed: bytes, is_asked: bool, extra: bytes) -> bytes:
        if self._held is None:
            return packed
        self._held += packed
        if not is_asked:
            return b""
        content, self._held = bytes(self._held), None
        # No flags or an extra field, no time, nothing of the level, Unix.
        return GZIP_MAGIC + bytes((len(extra) and _EXTRA, 0, 0, 0, 0, 0, 3)) + extra + content

    def _extra(self, num_bytes: int) -> bytes:
        """The extra field of a member of so many bytes after its header, with its length."""
        lengths = np.array(self.lengths, np.int64)
        planes = b""
        if not lengths.size or lengths.max() < 1 << 32:
            # All low bytes, then all high ones: they compress better.
            planes = zlib.compress(lengths.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes())
        planes = planes if len(planes) <= _most_lengths(num_bytes) else b""
        size = len(_packed(0, planes))
        return size.to_bytes(2, "little") + _packed(_HEAD_BYTES + size + num_bytes, planes)


class MembersAhead:
    """Decompresses the next members of a file in threads, while others are used.

    Args:
        source: The compressed file, which is read by offsets in any order.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        # Where the next member begins; a forked process has no threads that are at work.
        self._next: PerProcess[dict[int, Iterator[tuple[bytes | None, int]]]] = PerProcess(dict)

    def take(self, begin: int) -> tuple[bytes, int] | None:
        """The content of the member at a byte, and where the next one begins; None where its header
        does not say how long it is, or it is large or damaged.
        """
        ahead = self._next.get()
        most = min(2 * num_processors(), _MOST_AHEAD)
        members = ahead.pop(begin, None) or each_at_once(_inflate, self._members(begin), most)
        ahead.clear()
        content, end = next(members, (None, begin))
        if content is None:
            return None
        ahead[end] = members
        return content, end

    def _members(self, at: int) -> Iterator[tuple[bytes, int]]:
        """The members from a byte on, and where each ends."""
        while (sizes := _read_sizes(self._source, at)) is not None:
            data = self._source.read(min(sizes.num_bytes, _MOST_BYTES + 1), at)
            if not _HEAD_BYTES < sizes.num_bytes == len(data) <= _MOST_BYTES:
                return
            at += len(data)
            yield data, at


def _inflate(place: tuple[bytes, int]) -> tuple[bytes | None, int]:
    """The content of a whole member, None where it is none, is followed by more, or has too much;
    and where it ends.
    """
    member, end = place
    engine, size = fastest(), int.from_bytes(member[-4:], "little")
    # Not in one step, which does not say where the member ends: its size may be wrong.
    inflater = engine.decompressobj(31)
    try:
        content: bytes = inflater.decompress(member, min(size, _MOST_BYTES) + 1)
    except engine.error:
        return None, end
    is_whole = inflater.eof and not inflater.unused_data and len(content) <= _MOST_BYTES
    return content if is_whole else None, end
