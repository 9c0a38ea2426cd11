"""What local and remote files have in common: ranges are read by offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch_tfrecord.files.checksum import crc32c

__all__ = ["FINGERPRINT_BYTES", "ByteSource", "FileSource", "fingerprint"]

FINGERPRINT_BYTES = 4096


class ByteSource(Protocol):
    """A stream of bytes read by offset."""

    path: str
    size: int | None  # bytes of the stream; None if unknown until its end
    max_record_bytes: int | None  # the longest payload accepted if the size is unknown
    chunk_bytes: int  # recommended size of one read

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the readable stream."""

    def check_end(self) -> None:
        """Raise if the compressed stream is truncated or damaged."""


class FileSource:
    """What local and remote files have in common; see `ByteSource`.

    Attributes:
        size: Bytes of the file when it was opened. Later growth is not seen.
        mtime_ns: Modification time in nanoseconds; 0 where the storage tells none.
        etag: The version that a storage says; None where it says none, and of local files.
    """

    path: str
    size: int | None
    file_size: int
    mtime_ns: int
    etag: str | None = None
    max_record_bytes: int | None = None
    chunk_bytes: int
    max_gap_bytes: int  # between two pieces that are still read by one call

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the file."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, fewer only at the end of
        the file.
        """
        data = self.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def check_end(self) -> None:
        """A file simply ends."""

    def forget(self, begin: int, end: int) -> bool:
        """Drop what a cache holds of a range whose bytes are wrong; whether it held any: then read
        it again.
        """
        return False

    def fingerprint(self) -> int:
        """See the function `fingerprint`."""
        return fingerprint(self.read, self.file_size)


def fingerprint(read: Callable[[int, int], bytes], file_size: int) -> int:
    """CRC-32C over the first and the last 4 KiB of a file: tells files of equal size and time
    apart.
    """
    first = read(FINGERPRINT_BYTES, 0)
    return int(
        crc32c(read(FINGERPRINT_BYTES, max(file_size - FINGERPRINT_BYTES, 0)), crc32c(first))
    )
