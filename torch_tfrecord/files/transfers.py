"""Ranges of remote files, many at once, and what storages say of many files at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.engine import Job, Transfer
from torch_tfrecord.files.store import RemoteInfo, Store, StoreError
from torch_tfrecord.files.stores import fsspec_store_of
from torch_tfrecord.progress import ProgressBar

__all__ = [
    "FileRange",
    "RemotePart",
    "begin_range",
    "fetch",
    "infos",
    "infos_if_there",
    "listing",
    "read_into",
    "start",
    "start_info",
]

_LARGEST_PIECE = 8 << 20
# takes as long as the answer's first byte, at the speed of one connection of a storage
_SMALLEST_PIECE = 1 << 20
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


def read_into(
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


def fetch(ranges: Sequence[FileRange], access: Access) -> list[bytes | memoryview]:
    """The bytes of ranges of any files, read at once; raises as `read_into`."""
    pieces = _pieces(ranges)
    found: list[list[bytes | memoryview]] = [[] for _ in ranges]
    for (number, _), data in zip(
        pieces, start([piece for _, piece in pieces], access).answers(), strict=True
    ):
        found[number].append(data)
    return [parts[0] if len(parts) == 1 else b"".join(parts) for parts in found]


def start(ranges: Sequence[FileRange], access: Access) -> Transfer:
    """Begin to read ranges, each by one request."""
    return Transfer([_job(*item) for item in ranges], access)


def begin_range(wanted: FileRange, access: Access) -> Transfer:
    """Begin to read a range; its answers are its pieces, one behind the other."""
    return start([piece for _, piece in _pieces([wanted], _LARGEST_PIECE)], access)


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
