"""A file of a storage, read by range requests, many of them at once."""

from __future__ import annotations

import errno
import os

from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.files.file_source import FINGERPRINT_BYTES, FileSource
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.files.transfers import (
    FileRange,
    RemotePart,
    fetch,
    fetch_directly,
    forget,
    infos,
)
from torch_tfrecord.shown import without_secrets

__all__ = ["RemoteFile"]


class RemoteFile(FileSource):
    """A file of a storage, as it was when it was opened: what changes afterwards is an error, if
    there are ETags.

    Args:
        path: With its scheme.
        access: How it is reached.
        info: What the storage says of it, where that is known already.

    Attributes:
        num_forgotten: How often the cache dropped something damaged: what was read before may be
            wrong.

    Raises:
        OSError: it cannot be opened; always with the path.
        RemoteError: the storage does not answer as it should.
    """

    chunk_bytes = 8 << 20  # a request costs tens of milliseconds
    max_gap_bytes = 1 << 18

    def __init__(
        self, path: str, access: Access = DEFAULT_ACCESS, info: RemoteInfo | None = None
    ) -> None:
        self.path, self.access = path, access
        if info is None:
            (info,) = infos([path], access)
        if info.is_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), without_secrets(path))
        if info.size is None:
            text = "expected a file whose size the storage tells, got none"
            raise OSError(errno.ESPIPE, text, without_secrets(path))
        self.size = self.file_size = info.size
        self.mtime_ns, self.etag = info.mtime_ns, info.etag
        self.part = RemotePart(path, info.size, info.etag, info.mtime_ns)
        self.num_forgotten = 0
        if access.cache is not None:
            self.max_gap_bytes = 0  # what lies between two pieces may be there already

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end of the file."""
        end = min(offset + num_bytes, self.file_size)
        if end <= offset:
            return b""
        (data,) = fetch([FileRange(self.part, offset, end)], self.access)
        return bytes(data)

    def forget(self, begin: int, end: int) -> bool:
        """Drop what the cache holds of a range whose records are damaged; see `FileSource`."""
        found = forget([FileRange(self.part, max(begin, 0), min(end, self.file_size))], self.access)
        self.num_forgotten += found
        return found

    def fingerprint(self) -> int:
        """See `file_source.fingerprint`; both parts are read at once."""
        size, most = self.file_size, FINGERPRINT_BYTES
        ranges = [
            FileRange(self.part, 0, min(most, size)),
            FileRange(self.part, max(size - most, 0), size),
        ]
        # Not out of the cache: it tells changes that a storage's time may hide.
        first, last = fetch_directly(ranges, self.access) if size else (b"", b"")
        return int(crc32c(last, crc32c(first)))
