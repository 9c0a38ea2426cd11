"""Ranges of remote files through the cache on the disk, where there is one: what it lacks is
fetched, all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.disk_cache import CachedFile, DiskCache, Range, Reading
from torch_tfrecord.files.engine import Transfer
from torch_tfrecord.files.transfers import FileRange, RemotePart
from torch_tfrecord.files.transfers import begin_range as begin_all_of
from torch_tfrecord.files.transfers import fetch as fetch_all
from torch_tfrecord.files.transfers import read_into as read_all_into
from torch_tfrecord.files.transfers import start as start_all

__all__ = ["Started", "begin_range", "fetch", "forget", "read_into", "start"]

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
    """As `transfers.start`; what the cache has is not asked for."""
    if access.cache is None or not all(map(_is_known, ranges)):
        return Started(start_all(ranges, access), None)
    reading, missing = _begun(ranges, access, access.cache)
    return Started(start_all(missing, access) if missing else None, reading)


def begin_range(wanted: FileRange, access: Access) -> Started:
    """As `transfers.begin_range`; what the cache has is not asked for."""
    if access.cache is None or not _is_known(wanted):
        return Started(begin_all_of(wanted, access), None)
    return start([wanted], access)


def fetch(ranges: Sequence[FileRange], access: Access) -> list[bytes | memoryview]:
    """As `transfers.fetch`; what the cache has is not asked for."""
    if access.cache is None or not all(map(_is_known, ranges)):
        return fetch_all(ranges, access)
    reading, missing = _begun(ranges, access, access.cache)
    return reading.finish(fetch_all(missing, access) if missing else ())


def read_into(
    ranges: Sequence[FileRange], starts: Sequence[int], buffer: memoryview, access: Access
) -> None:
    """As `transfers.read_into`; what the cache has is not asked for."""
    if access.cache is None:
        read_all_into(ranges, starts, buffer, access)
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
