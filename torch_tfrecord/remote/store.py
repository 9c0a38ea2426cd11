"""Files of a storage, what it can be asked, whichever client asks it, and how it fails."""

from __future__ import annotations

from typing import IO, NamedTuple, Protocol

from torch_tfrecord.files import RemoteInfo

__all__ = [
    "PASSING_STATUSES",
    "FileRange",
    "RemotePart",
    "Store",
    "StoreError",
    "part_bytes",
]

PASSING_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which asking again can help."""


class RemotePart(NamedTuple):
    """A remote file as it was when it was opened.

    Attributes:
        path: With its scheme.
        size: Bytes.
        etag: Its version; None where the storage says none.
        mtime_ns: When it was last changed; 0 where that is not known.
    """

    path: str
    size: int
    etag: str | None = None
    mtime_ns: int = 0


class FileRange(NamedTuple):
    """Bytes of a file, from `begin` to before `end`, inside of it."""

    file: RemotePart
    begin: int
    end: int


class StoreError(Exception):
    """A request failed; internal: `transfers` asks again, or says it as one of the public errors.

    Args:
        reason: What the client says, short.
        status: The HTTP status, where there was one.
        is_passing: Whether asking again can help.
        retry_after: Seconds that the storage asks to wait.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        is_passing: bool = True,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status
        self.is_passing, self.retry_after = is_passing, retry_after


class Store(Protocol):
    """One bucket, host or file system, asked by one client. Safe from threads, good for the process
    that made it.

    All methods raise FileNotFoundError, PermissionError and `StoreError`; none asks again.

    Attributes:
        checks_etag: Whether `read_range` notices that a file has changed.
    """

    checks_etag: bool

    def path_of(self, name: str) -> str:
        """The whole path of a name, with its scheme."""

    def info(self, name: str) -> RemoteInfo:
        """The storage's answer about a file or folder."""

    def read_range(
        self, name: str, begin: int, end: int, etag: str | None = None
    ) -> bytes | memoryview:
        """The bytes from `begin` to before `end`, which must be within the file; fewer where the
        answer was cut.

        Raises:
            CorruptRecordError: the file is another one, by its ETag; not every storage knows.
        """

    def listing(self, prefix: str, recursive: bool = False) -> list[tuple[str, RemoteInfo]]:
        """The content of a folder, names as `info` takes them: files and folders, or all files below
        it.
        """

    def upload(self, name: str, file: IO[bytes], size: int) -> RemoteInfo:
        """Write all of a local file, in parts where it is large; it appears whole, and nothing
        stays after an error.
        """

    def remove(self, name: str) -> None:
        """Remove a file."""


_PART_BYTES = 8 << 20
_MOST_PARTS = 9000  # S3 takes 10,000


def part_bytes(size: int) -> int:
    """Into parts of how many bytes a file is cut that is written."""
    return max(_PART_BYTES, -(-size // _MOST_PARTS))
