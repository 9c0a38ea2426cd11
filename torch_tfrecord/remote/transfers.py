"""Ranges of remote files, and answers of storages about files, many at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files import Access, RemoteInfo
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.remote.disk_cache import DiskCache, Finish
from torch_tfrecord.remote.requests import Job, Transfer
from torch_tfrecord.remote.store import FileRange, RemotePart, Store, StoreError
from torch_tfrecord.remote.stores import fsspec_store_of, store_of

__all__ = [
    "Started",
    "begin_range",
    "fetch",
    "first_bytes",
    "forget",
    "infos",
    "infos_if_there",
    "listing",
    "read_into",
    "remove",
    "start_info",
]

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

_LARGEST_PIECE = 8 << 20
# takes as long as the answer's first byte, at the speed of one connection of a storage
_SMALLEST_PIECE = 1 << 20
_SHOWN_AFTER = 1.0  # seconds: that something is listed
_FEWEST_REQUESTS = 16  # that a read is split into, unless its pieces would be smaller


def infos(paths: Sequence[str], access: Access) -> list[RemoteInfo]:
    """Answers of storages about files, asked all at once.

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
    """The content of a folder, or all files below it: whole paths, whose names come a thousand by a
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


def _job(file: RemotePart, begin: int, end: int, target: _Bytes | None = None) -> Job:
    """The request of a piece; with a target its bytes go there, and nothing is answered."""

    def call(store: Store, name: str) -> bytes | memoryview | None:
        data = store.read_range(name, begin, end, file.etag)
        if len(data) != end - begin:
            raise StoreError(f"expected {end - begin} bytes, got {len(data)}")
        if target is None:
            return data
        # Here, as each arrives: one thread that copies all of a batch would wait for the GIL after
        # each.
        target[:] = np.frombuffer(data, np.uint8)
        return None

    return Job(file.path, f"bytes {begin} to {end}", end - begin, call)


def _pieces(ranges: Sequence[FileRange], size: int | None = None) -> list[tuple[int, FileRange]]:
    """Cut ranges into pieces of about a size: each with the number of its range. Without a size
    they are so small that there are several requests.
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


class Started:
    """A read of ranges of any files, that was begun, all at once; what the cache has is not asked
    for.

    Args:
        ranges: What is read.
        access: How it is reached.
        piece_bytes: Of each request; None for as few as are quick.
    """

    def __init__(
        self, ranges: Sequence[FileRange], access: Access, piece_bytes: int | None = None
    ) -> None:
        self._finish: Finish = list
        if isinstance(access.cache, DiskCache) and all(map(_is_known, ranges)):
            ranges, self._finish = access.cache.start(ranges)
        pieces = _pieces(ranges, piece_bytes)
        self._numbers, self._num_ranges = [number for number, _ in pieces], len(ranges)
        self._transfer = Transfer([_job(*piece) for _, piece in pieces], access) if pieces else None

    @property
    def has_failed(self) -> bool:
        """Whether it could not be read."""
        return self._transfer is not None and self._transfer.has_failed

    def answers(self) -> list[bytes | memoryview]:
        """The bytes of each range, when they are there.

        Raises:
            RemoteError, OSError, CorruptRecordError: For the range that fails first; see `requests`.
        """
        parts: list[list[bytes | memoryview]] = [[] for _ in range(self._num_ranges)]
        if self._transfer is not None:
            for number, data in zip(self._numbers, self._transfer.answers(), strict=True):
                parts[number].append(data)
        return self._finish([each[0] if len(each) == 1 else b"".join(each) for each in parts])


def begin_range(wanted: FileRange, access: Access) -> Started:
    """Begin to read a range ahead of its use, in few requests: nobody waits for it yet."""
    return Started([wanted], access, _LARGEST_PIECE)


def fetch(ranges: Sequence[FileRange], access: Access) -> list[bytes | memoryview]:
    """The bytes of ranges of any files, read at once; what the cache has is not asked for."""
    return Started(ranges, access).answers()


def first_bytes(path: str, num_bytes: int, access: Access) -> bytes:
    """The first bytes of a file, by one request, which is not asked again.

    Raises:
        Exception: As the storage's client raises it.
    """
    store, name = store_of(path, access)
    return bytes(store.read_range(name, 0, num_bytes))


def read_into(
    ranges: Sequence[FileRange], starts: Sequence[int], buffer: memoryview, access: Access
) -> None:
    """As `fetch`, each range to its place in a writable buffer of bytes."""
    if access.cache is not None:
        for start, data in zip(starts, fetch(ranges, access), strict=True):
            buffer[start : start + len(data)] = data
        return
    target, jobs = np.frombuffer(buffer, np.uint8), []
    for number, (file, begin, end) in _pieces(ranges):
        at = starts[number] + begin - ranges[number].begin
        jobs.append(_job(file, begin, end, target[at : at + end - begin]))
    Transfer(jobs, access).answers()


def forget(ranges: Sequence[FileRange], access: Access) -> bool:
    """Drop what the cache has of ranges whose bytes are not what they should be; whether it had any
    of them.
    """
    # A file without a version was never kept.
    known = [*filter(_is_known, ranges)]
    return isinstance(access.cache, DiskCache) and access.cache.forget(known)


def _is_known(wanted: FileRange) -> bool:
    """Whether a changed file would be told from what it was: what cannot be told is not kept."""
    return wanted.file.etag is not None or wanted.file.mtime_ns != 0


def remove(paths: Sequence[str], access: Access) -> None:
    """Remove files; no error where there is none."""

    def call(store: Store, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            store.remove(name)

    Transfer([Job(path, "its removal", 0, call) for path in paths], access).answers()
