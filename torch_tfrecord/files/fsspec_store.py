"""A file system of fsspec's: for every scheme that it knows."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.obstore_store import REQUEST_SECONDS, nanoseconds
from torch_tfrecord.files.store import PASSING_STATUSES, RemoteInfo, StoreError, part_bytes

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FsspecStore", "fsspec_filesystem"]

# File systems that threads may use at once, beside those that are written for many requests.
_SAFE_FROM_THREADS = frozenset({"memory", "hf", "local", "file"})
# Where a folder is a part of names, and making one may make a bucket.
_OBJECT_STORES = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oss", "obs", "cos", "oci"}
)
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "last_commit", "created")
_PASSING = (ConnectionError, TimeoutError, EOFError)


def fsspec_filesystem(path: str, access: Access) -> tuple[AbstractFileSystem, str]:
    """The fsspec file system of a path, and the path as that file system calls it."""
    import fsspec.core  # takes 50 ms, and most paths are local

    return fsspec.core.url_to_fs(path, **access.storage_options)  # type: ignore[no-any-return]


class FsspecStore:
    """See `Store`.

    Args:
        filesystem: Of this process.
        access: For errors.
    """

    checks_etag = False

    def __init__(self, filesystem: AbstractFileSystem, access: Access) -> None:
        self._filesystem, self._access = filesystem, access
        protocol = filesystem.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._has_folders = not names & _OBJECT_STORES
        is_safe = filesystem.async_impl or bool(names & _SAFE_FROM_THREADS)
        self._turn = None if is_safe else threading.Lock()

    def path_of(self, name: str) -> str:
        """The whole path of a name, with its scheme."""
        return str(self._filesystem.unstrip_protocol(name))

    def info(self, name: str) -> RemoteInfo:
        """What the storage says of a file or folder."""
        return _info(self._ask("info", name))

    def read_range(
        self, name: str, begin: int, end: int, etag: str | None = None
    ) -> bytes | memoryview:
        """The bytes of a range of a file; nobody tells whether it has changed."""
        return bytes(self._ask("cat_file", name, start=begin, end=end))

    def listing(self, prefix: str, recursive: bool = False) -> list[tuple[str, RemoteInfo]]:
        """What lies in a folder, or all files below it."""
        self._filesystem.invalidate_cache()
        if recursive:
            found: Mapping[str, Any] = self._ask("find", prefix, detail=True)
            return [(name, _info(entry)) for name, entry in found.items()]
        return [(entry["name"], _info(entry)) for entry in self._ask("ls", prefix, detail=True)]

    def upload(self, name: str, file: IO[bytes], size: int) -> RemoteInfo:
        """Write all of a local file; also where folders are no mere part of names."""
        with self._translated():
            if self._has_folders:
                self._filesystem.makedirs(name.rpartition("/")[0], exist_ok=True)
            target = self._filesystem.open(
                name, "wb", autocommit=False, block_size=part_bytes(size)
            )
            try:
                shutil.copyfileobj(file, target, part_bytes(size))
                target.close()
                target.commit()
            except BaseException:
                target.closed = True  # or it would finish when it is dropped
                with suppress(Exception):
                    target.discard()
                raise
            self._filesystem.invalidate_cache()
        return self.info(name)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._ask("rm_file", name)

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        with self._translated():
            if self._turn is not None:
                with self._turn:
                    return getattr(self._filesystem, method)(*args, **kwargs)
            if self._filesystem.async_impl and not self._filesystem.asynchronous:
                return self._awaited(getattr(self._filesystem, f"_{method}"), *args, **kwargs)
            return getattr(self._filesystem, method)(*args, **kwargs)

    def _awaited(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from fsspec.asyn import sync  # no request may stand still for ever

        return sync(self._filesystem.loop, call, *args, timeout=REQUEST_SECONDS, **kwargs)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (
            FileNotFoundError,
            PermissionError,
            IsADirectoryError,
            NotADirectoryError,
            StoreError,
        ):
            raise
        except Exception as error:
            raise _failure(error, self._access) from None


def _failure(error: Exception, access: Access) -> StoreError:
    status = (
        getattr(error, "status", None)
        or getattr(error, "code", None)
        or getattr(error, "status_code", None)
    )
    status = (
        int(status)
        if isinstance(status, int) or (isinstance(status, str) and status.isdecimal())
        else None
    )
    headers = getattr(error, "headers", None)
    after = headers.get("Retry-After") if isinstance(headers, Mapping) else None
    is_client = type(error).__module__.partition(".")[0] in (
        "aiohttp",
        "botocore",
        "requests",
        "httpx",
        "urllib3",
    )
    return StoreError(
        f"status {status}"
        if status
        else access.without_secrets(f"{type(error).__name__}: {error}")[:300],
        status=status,
        is_passing=status in PASSING_STATUSES
        if status
        else isinstance(error, (*_PASSING, OSError)) or is_client,
        retry_after=float(after) if after and after.replace(".", "", 1).isdecimal() else None,
    )


def _info(entry: Mapping[str, Any]) -> RemoteInfo:
    size = entry.get("size")
    etag = next(
        (str(value) for name, value in entry.items() if name.lower() == "etag" and value), None
    )
    time = next((time for name in _TIMES if (time := _nanoseconds(entry.get(name)))), 0)
    return RemoteInfo(
        None if size is None else int(size), etag, time, entry.get("type") == "directory"
    )


def _nanoseconds(time: object) -> int:
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.replace("Z", "+00:00"))
        except ValueError:
            return 0
    if isinstance(time, datetime):
        return nanoseconds(time if time.tzinfo else time.replace(tzinfo=timezone.utc))
    return int(time * 1_000_000) * 1000 if isinstance(time, (int, float)) and time > 0 else 0
