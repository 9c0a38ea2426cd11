"""Ranges of remote files, many at once, what storages say of many files at once, and files written
to them: each appears whole, or not at all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import IO, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.disk_cache import CachedFile, DiskCache, Range, Reading
from torch_tfrecord.files.engine import Job, Transfer
from torch_tfrecord.files.store import RemoteInfo, Store, StoreError
from torch_tfrecord.files.stores import fsspec_store_of
from torch_tfrecord.progress import ProgressBar

__all__ = [
    "FileRange",
    "RemotePart",
    "Started",
    "Upload",
    "begin_range",
    "fetch",
    "fetch_directly",
    "forget",
    "infos",
    "infos_if_there",
    "listing",
    "read_into",
    "remove",
    "start",
    "start_directly",
    "start_info",
    "upload",
]

_LARGEST_PIECE = 8 << 20
# takes as long as the answer's first byte, at the speed of one connection of a storage
_SMALLEST_PIECE = 1 << 20
_UPLOADS_AT_ONCE = 4  # files, each in several parts at once
_SHOWN_AFTER = 1.0  # seconds: that something is listed
_FEWEST_REQUESTS = 16  # that a read is split into, unless its pieces would be smaller


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


def _read_directly(
    ranges: Sequence[FileRange], starts: Sequence[int], buffer: memoryview, access: Access
) -> None:
    """Read ranges of any files at once, each to its place in a writable buffer of bytes.

    Raises:
        RemoteError, OSError, CorruptRecordError: As of `Attempts.ask`, for the first range that
            fails.
    """
    target, jobs = np.frombuffer(buffer, np.uint8), []
    for number, (file, begin, end) in _pieces(ranges):
        start = starts[number] + begin - ranges[number].begin
        jobs.append(_job(file, begin, end, partial(_read_to, target[start : start + end - begin])))
    Transfer(jobs, access).answers()


def fetch_directly(ranges: Sequence[FileRange], access: Access) -> list[bytes | memoryview]:
    """The bytes of ranges of any files, read at once; raises as `_read_directly`."""
    pieces = _pieces(ranges)
    found: list[list[bytes | memoryview]] = [[] for _ in ranges]
    for (number, _), data in zip(
        pieces, start_directly([piece for _, piece in pieces], access).answers(), strict=True
    ):
        found[number].append(data)
    return [parts[0] if len(parts) == 1 else b"".join(parts) for parts in found]


def start_directly(ranges: Sequence[FileRange], access: Access) -> Transfer:
    """Begin to read ranges, each by one request."""
    return Transfer([_job(*item) for item in ranges], access)


def _begin_directly(wanted: FileRange, access: Access) -> Transfer:
    """Begin to read a range; its answers are its pieces, one behind the other."""
    return start_directly([piece for _, piece in _pieces([wanted], _LARGEST_PIECE)], access)


def infos(paths: Sequence[str], access: Access) -> list[RemoteInfo]:
    """What storages say of files, asked all at once.

    Raises:
        FileNotFoundError, PermissionError, RemoteError: For the first that cannot be told.
    """
    return Transfer([Job(path, "its size", 0, _info) for path in paths], access).answers()


def infos_if_there(paths: Sequence[str], access: Access) -> list[RemoteInfo | None]:
    """As `infos`; None for a file that is not there."""
    return Transfer([Job(path, "its size", 0, _info_if_there) for path in paths], access).answers()


def start_info(path: str, access: Access) -> Transfer:
    """Begin to ask what a storage says of a file."""
    return Transfer([Job(path, "its size", 0, _info)], access)


def listing(
    folder: str, access: Access, *, recursive: bool = False
) -> list[tuple[str, RemoteInfo]]:
    """What lies in a folder, or all files below it: whole paths, whose names come a thousand by a
    request.
    """

    def call(store: Store, name: str) -> list[tuple[str, RemoteInfo]]:
        if folder.startswith("http"):  # whose lists of links fsspec knows to read
            store, name = fsspec_store_of(folder, access)
        return [(store.path_of(entry), info) for entry, info in store.listing(name, recursive)]

    transfer = Transfer([Job(folder, "its listing", 0, call)], access)
    if not transfer.wait(_SHOWN_AFTER):
        with ProgressBar(desc="listing", bar_format="{desc}: {elapsed}") as bar:
            while not transfer.wait(_SHOWN_AFTER):
                bar.refresh()
    (found,) = transfer.answers()
    return found  # type: ignore[no-any-return]


def _info(store: Store, name: str) -> RemoteInfo:
    return store.info(name)


def _info_if_there(store: Store, name: str) -> RemoteInfo | None:
    try:
        return store.info(name)
    except FileNotFoundError:
        return None


def _job(file: RemotePart, begin: int, end: int, read: Callable[..., Any] | None = None) -> Job:
    return Job(
        file.path, f"bytes {begin} to {end}", end - begin, partial(read or _read, file, begin, end)
    )


def _read_to(
    target: npt.NDArray[np.uint8], file: RemotePart, begin: int, end: int, store: Store, name: str
) -> None:
    # Here, as each arrives: one thread that copies all of a batch would wait for the GIL after
    # each.
    target[:] = np.frombuffer(_read(file, begin, end, store, name), np.uint8)


def _read(file: RemotePart, begin: int, end: int, store: Store, name: str) -> bytes | memoryview:
    data = store.read_range(name, begin, end, file.etag)
    if len(data) != end - begin:
        raise StoreError(f"expected {end - begin} bytes, got {len(data)}")
    return data


def _pieces(ranges: Sequence[FileRange], size: int | None = None) -> list[tuple[int, FileRange]]:
    """Number of the range, and the piece of it, of each request; without a size so that there are
    several.
    """
    if size is None:
        total = sum(end - begin for _, begin, end in ranges)
        size = max(_SMALLEST_PIECE, min(_LARGEST_PIECE, total // _FEWEST_REQUESTS))
    pieces = []
    for number, (file, begin, end) in enumerate(ranges):
        if end - begin <= size + size // 2:  # no rest that is hardly worth a request
            pieces.append((number, FileRange(file, begin, end)))
            continue
        count = -((begin - end) // size)
        borders = [begin + (end - begin) * i // count for i in range(count + 1)]
        pieces += [(number, FileRange(file, *pair)) for pair in pairwise(borders)]
    return pieces


# Parts of a query that sign a request, and change while the file does not.
_SIGNED = ("x-amz-", "x-goog-")
_SIGNATURES = {
    "awsaccesskeyid",
    "expires",
    "googleaccessid",
    "key-pair-id",
    "policy",
    "signature",
    "token",
}
_SIGNATURES |= {
    "se",
    "sig",
    "ske",
    "skoid",
    "sks",
    "skt",
    "sktid",
    "skv",
    "sp",
    "spr",
    "sr",
    "st",
    "sv",
}  # of Azure


class Started:
    """A read that was begun.

    Args:
        transfer: Fetches what is missing; None where nothing is.
        reading: Knows what is not; None where there is no cache.
    """

    def __init__(self, transfer: Transfer | None, reading: Reading | None) -> None:
        self._transfer, self._reading = transfer, reading

    def answers(self) -> list[bytes | memoryview]:
        """The bytes of each range, when they are there."""
        fetched: list[bytes | memoryview] = (
            [] if self._transfer is None else self._transfer.answers()
        )
        return fetched if self._reading is None else self._reading.finish(fetched)


def start(ranges: Sequence[FileRange], access: Access) -> Started:
    """As `start_directly`; what the cache has is not asked for."""
    if access.cache is None or not all(map(_is_known, ranges)):
        return Started(start_directly(ranges, access), None)
    reading, missing = _begun(ranges, access, access.cache)
    return Started(start_directly(missing, access) if missing else None, reading)


def begin_range(wanted: FileRange, access: Access) -> Started:
    """A range by its pieces; what the cache has is not asked for."""
    if access.cache is None or not _is_known(wanted):
        return Started(_begin_directly(wanted, access), None)
    return start([wanted], access)


def fetch(ranges: Sequence[FileRange], access: Access) -> list[bytes | memoryview]:
    """As `fetch_directly`; what the cache has is not asked for."""
    if access.cache is None or not all(map(_is_known, ranges)):
        return fetch_directly(ranges, access)
    reading, missing = _begun(ranges, access, access.cache)
    return reading.finish(fetch_directly(missing, access) if missing else ())


def read_into(
    ranges: Sequence[FileRange], starts: Sequence[int], buffer: memoryview, access: Access
) -> None:
    """Read ranges of any files at once, each to its place in a writable buffer of bytes; what the
    cache has is not asked for."""
    if access.cache is None:
        _read_directly(ranges, starts, buffer, access)
        return
    for start, data in zip(starts, fetch(ranges, access), strict=True):
        buffer[start : start + len(data)] = data


def forget(ranges: Sequence[FileRange], access: Access) -> bool:
    """Drop what the cache has of ranges whose bytes are not what they should be; whether it had any
    of them.
    """
    known = [*filter(_is_known, ranges)]
    return access.cache is not None and access.cache.forget(_wanted(known, access))


def _begun(
    ranges: Sequence[FileRange], access: Access, cache: DiskCache
) -> tuple[Reading, list[FileRange]]:
    """A read through the cache, and what it lacks."""
    wanted = _wanted(ranges, access)
    parts = {one.file.identity: asked.file for one, asked in zip(wanted, ranges, strict=True)}
    reading = cache.start(wanted)
    return reading, [
        FileRange(parts[one.file.identity], one.begin, one.end) for one in reading.missing
    ]


def _wanted(ranges: Sequence[FileRange], access: Access) -> list[Range]:
    return [Range(_cached_file(one.file, access.endpoint), one.begin, one.end) for one in ranges]


def _is_known(wanted: FileRange) -> bool:
    """Whether a changed file would be told from what it was: what cannot be told is not kept."""
    return wanted.file.etag is not None or wanted.file.mtime_ns != 0


@lru_cache(1 << 13)
def _cached_file(part: RemotePart, endpoint: str) -> CachedFile:
    version = f"etag {part.etag}" if part.etag is not None else f"time {part.mtime_ns}"
    return CachedFile(f"{endpoint} {without_signature(part.path)}", version, part.size)


def without_signature(path: str) -> str:
    """A path without user, password and what signs it."""
    parts = urlsplit(path)
    query = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if not _signs(name)
    ]
    place = parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https") else parts.netloc
    return urlunsplit((parts.scheme, place, parts.path, urlencode(query), parts.fragment))


def _signs(name: str) -> bool:
    return name.lower().startswith(_SIGNED) or name.lower() in _SIGNATURES


class Upload(NamedTuple):
    """One file to write.

    Attributes:
        path: Where to, with its scheme.
        file: A binary file of this machine; all of it is written.
        size: Its bytes.
    """

    path: str
    file: IO[bytes]
    size: int


def upload(uploads: Sequence[Upload], access: Access) -> list[RemoteInfo]:
    """Write files, a few of them at once; what the storage says of each then.

    Raises:
        OSError, RemoteError: One could not be written, and is as it was before; others may have
            been written.
    """
    found: list[RemoteInfo] = []
    for first in range(0, len(uploads), _UPLOADS_AT_ONCE):
        group = _Uploads()
        try:
            jobs = [group.job(item) for item in uploads[first : first + _UPLOADS_AT_ONCE]]
            found += Transfer(jobs, access).answers()
        finally:
            group.end()
    return found


class _Uploads:
    """Uploads at once. After the error of one the others end before anybody looks what is there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_running, self._is_ended = 0, False

    def job(self, item: Upload) -> Job:
        """The request of one of them."""

        def call(store: Store, name: str) -> RemoteInfo:
            with self._changed:
                if self._is_ended:
                    raise StoreError("another one failed", is_passing=False)
                self._num_running += 1
            try:
                item.file.seek(0)  # a second attempt begins anew
                return store.upload(name, item.file, item.size)
            finally:
                with self._changed:
                    self._num_running -= 1
                    self._changed.notify_all()

        return Job(item.path, f"its {item.size} bytes", 0, call)

    def end(self) -> None:
        """Wait for those that run; none begins any more."""
        with self._changed:
            self._is_ended = True
            self._changed.wait_for(lambda: not self._num_running)


def remove(paths: Sequence[str], access: Access) -> None:
    """Remove files; no error where there is none."""

    def call(store: Store, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            store.remove(name)

    Transfer([Job(path, "its removal", 0, call) for path in paths], access).answers()
