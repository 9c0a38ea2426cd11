"""Sources of bytes: what is read by offset, be it a local file, a file of a storage, or a stream that
can only be read forward.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from torch_tfrecord.arguments import PathLike
from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.errors import CorruptRecordError

__all__ = [
    "FileSource",
    "ReadTogether",
    "RemoteInfo",
    "SequentialSource",
    "is_remote",
    "local_path",
    "truncated",
]

_FINGERPRINT_BYTES = 4096
# A record of a stream may be this long, as its length cannot be checked against the file's size.
_MAX_RECORD_BYTES = 1 << 29

ReadTogether: TypeAlias = (
    "Callable[[Sequence[tuple[FileSource, int, int, int, int]], memoryview], None]"
)
"""Reads ranges of many files at once into a writable buffer of bytes; each has its file, the number
that the caller knows the file by, first byte, end, and place in the buffer.
"""


def is_remote(path: str) -> bool:
    """Whether a path names something that fsspec reads: ``s3://...``, ``gs://...``,
    ``memory://...``.
    """
    return "://" in path and not path.startswith("file://")


def local_path(path: PathLike) -> str:
    """A path as str; ``file://`` is taken off, and ``~`` is the user's folder."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path must be str or os.PathLike[str], got {type(path).__name__}")
    return os.path.expanduser(text.removeprefix("file://"))


class FileSource:
    """Bytes read by offset: a file, or a stream of unknown size.

    Attributes:
        path: For errors.
        size: Bytes; of a file those that it had when it was opened, and None for a stream whose end
            was not reached.
        file_size: The same, of a file.
        mtime_ns: Modification time in nanoseconds; 0 where it is not known.
        etag: The version that a storage names; None where it names none, and of local files.
        max_record_bytes: The longest payload that is accepted where the size is unknown.
        chunk_bytes: Recommended size of one read.
        max_gap_bytes: Two ranges with at most so many bytes between them are read by one call.
        together: Reads ranges of many files by one call, which takes no longer than one range; None
            where each file is read by itself.
        keep_from: A reader may come back to this offset: a stream that cannot go back keeps its
            bytes.
        kept_before: So many bytes before the last offset may be wanted again, too.
        is_inflated: Whether offsets are those in a decompressed stream.
    """

    path: str
    size: int | None
    file_size: int
    mtime_ns: int
    etag: str | None = None
    max_record_bytes: int | None = None
    chunk_bytes: int
    max_gap_bytes: int = 0
    together: ReadTogether | None = None
    keep_from: int | None = None
    kept_before: int = 0
    is_inflated: bool = False

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end. A source has this or `read_into`,
        and gets the other one.
        """
        buffer = bytearray(max(min(num_bytes, self.file_size - offset), 0))
        got = self.read_into(memoryview(buffer), offset)
        return bytes(memoryview(buffer)[:got])

    def view(self, num_bytes: int, offset: int) -> memoryview:
        """As `read`, without a copy where the source has the bytes in memory."""
        return memoryview(self.read(num_bytes, offset))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, fewer only at the end of
        the file.
        """
        data = self.view(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def read_ranges(self, ranges: Ints, buffer: memoryview) -> None:
        """Fill a writable buffer with several ranges.

        Args:
            ranges: int64 [3, M]: first byte, size, and place in the buffer; ascending.
            buffer: Receives them.

        Raises:
            CorruptRecordError: The file ends inside one.
        """
        for begin, size, start in ranges.T.tolist():
            got = self.read_into(buffer[start : start + size], begin)
            if got < size:
                raise truncated(self.path, begin + size, begin + got)

    def check_end(self) -> None:
        """Raise if a stream is truncated or damaged; a file simply ends."""

    def forget(self, begin: int, end: int) -> bool:
        """Drop what a cache has of a range whose bytes are wrong; whether it had any: then read
        it again.
        """
        return False

    def ahead(self, last: int | None = None) -> FileSource:
        """The same file, to be read from front to back up to the byte `last`: for a remote one the
        next bytes are on their way before they are needed.
        """
        return self

    def stop(self) -> None:
        """End what `ahead` has begun, and wait for it: a thread would keep the file open."""

    def fingerprint(self) -> int:
        """See `fingerprint_of`."""
        return self.fingerprint_of(self.read, self.file_size)

    @staticmethod
    def fingerprint_of(read: Callable[[int, int], bytes], file_size: int) -> int:
        """CRC-32C over the first and the last 4 KiB of a file, which differs between files of equal
        size and time.
        """
        most = _FINGERPRINT_BYTES
        first = crc32c(read(most, 0))
        return int(crc32c(read(most, max(file_size - most, 0)), first))


def truncated(path: str, expected: int, got: int) -> CorruptRecordError:
    """The error of a file that ends too early."""
    return CorruptRecordError(f"truncated file: expected {expected} bytes, got {got}", path=path)


class SequentialSource(FileSource, ABC):
    """Something that can only be read forward, read by offset.

    Keeps bytes from the last requested offset on; an earlier offset starts over, if possible.
    Memory is bounded by the bytes that really exist, whatever is requested. Safe to call from
    threads.

    Attributes:
        most_bytes: About how many bytes it may keep.
    """

    def __init__(self, path: str, most_record_bytes: int = 0, begin: int = 0) -> None:
        self.path = path
        self.size = None
        self.max_record_bytes = max(_MAX_RECORD_BYTES, most_record_bytes)
        self.chunk_bytes = 1 << 19
        self._lock = threading.Lock()
        self.most_bytes = 1 << 20
        self._kept = b""
        self._begin = self._offset = begin  # offset of the first kept byte

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the readable stream."""
        return bytes(self.view(num_bytes, offset))

    def view(self, num_bytes: int, offset: int) -> memoryview:
        """See `FileSource`."""
        with self._lock:
            begin = self._advance(num_bytes, offset)
            return memoryview(self._kept)[begin : begin + num_bytes]

    def _advance(self, num_bytes: int, offset: int) -> int:
        """Read up to a range; return where it begins among the kept bytes."""
        if offset < self._offset:
            self._restart()
            self._kept, self._offset = b"", self._begin
        # The first byte that is kept when more come.
        low = offset if self.keep_from is None else min(offset, self.keep_from)
        low -= self.kept_before
        pieces, end = [self._kept], self._offset + len(self._kept)
        self._until = offset + num_bytes
        try:
            while end < self._until and (piece := self._more()):
                if end <= low:
                    pieces, self._offset = [], end
                pieces.append(piece)
                end += len(piece)
        finally:
            cut = min(max(low - self._offset, 0), len(pieces[0]))
            if len(pieces) > 1 and cut:
                self._offset += cut
                self._kept = b"".join([memoryview(pieces[0])[cut:], *pieces[1:]])
            else:
                self._kept = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return max(offset - self._offset, 0)

    @abstractmethod
    def _more(self) -> bytes:
        """The next piece of the stream, of bounded size; empty at the end."""

    @abstractmethod
    def _restart(self) -> None:
        """Go back to the beginning."""


class RemoteInfo(NamedTuple):
    """A storage's answer about a file that it has not read.

    Attributes:
        size: Bytes; None where the storage does not say.
        etag: Its version, as the storage calls it; None where it has none.
        mtime_ns: When it was last changed, nanoseconds since the epoch; 0 where that is not known.
        is_folder: Whether it is a folder.
    """

    size: int | None
    etag: str | None = None
    mtime_ns: int = 0
    is_folder: bool = False
