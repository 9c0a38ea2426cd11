"""What local and remote files have in common: ranges are read by offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.files.checksum import crc32c

__all__ = ["FINGERPRINT_BYTES", "FileSource", "fingerprint"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

FINGERPRINT_BYTES = 4096


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

    def read_ranges(
        self, begins: _Integers, sizes: _Integers, buffer: memoryview, starts: _Integers
    ) -> None:
        """Read several ranges, each to its place in a writable buffer.

        Args:
            begins: int64 [M]: first byte of each range in the file.
            sizes: int64 [M]: its bytes.
            buffer: Of bytes; range i goes to `buffer[starts[i] : starts[i] + sizes[i]]`.
            starts: int64 [M].

        Raises:
            CorruptRecordError: the file ends inside a range.
        """
        for begin, size, start in zip(
            begins.tolist(), sizes.tolist(), starts.tolist(), strict=True
        ):
            piece = self.read(size, begin)
            if len(piece) < size:
                text = f"truncated file: expected {begin + size} bytes, got {begin + len(piece)}"
                raise CorruptRecordError(text, path=self.path)
            buffer[start : start + size] = piece

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
