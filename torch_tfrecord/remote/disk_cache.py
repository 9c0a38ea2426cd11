"""A cache of remote files on a local disk: what was read before comes without a request.

Each remote file is kept in sectors, a file for each, with a checksum at its end. Many processes
share a folder::

    torch_tfrecord.cache             the cap, the bytes in use, what was read; it is locked to write
    <data set>/<file>/<version>/<n>  sector n; the names are hashes, so that no secret is on the disk

A full cache keeps what it has: each epoch reads all data once, so what came in would push out what
is needed just as soon. Old versions of a file make room, and data sets that nobody has read for ten
minutes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import struct
import threading
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from torch_tfrecord.arguments import at_least
from torch_tfrecord.errors import outer_level
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.remote.store import FileRange, RemotePart
from torch_tfrecord.shown import printable, without_signature

__all__ = ["CacheInfo", "DiskCache", "Finish", "cache_info"]

STATE_NAME = "torch_tfrecord.cache"
LEAST_BYTES = 1 << 14

# Larger ones would fill the memory with what surrounds the records of a random batch, smaller ones
# a folder with files. With its checksum a sector has whole pages.
_SECTOR_BYTES = (1 << 18) - 4
_PAGE_BYTES = 1 << 12  # the smallest piece of a file that takes space of its own
_MAGIC = b"tfrecord cache 4"
_STATE = struct.Struct("<16s4qI")  # magic, the numbers of `_State`, checksum
_OURS = "[0-9a-f]" * 32  # the name of a folder
_DEFAULT_SHARE = 10  # of the free space: one part of so many
_RESERVE_SHARE, _MOST_RESERVE_BYTES = 50, 1 << 30  # of the disk, left to those who need it more
_LOCK_SECONDS = 2.0
_LOCK_WAIT_SECONDS = 0.0005
_TOUCH_SECONDS = 30.0
_ASIDE_SECONDS = 60.0
# An epoch may take days, but reads some of its files all the time.
_IDLE_SECONDS = 600.0

_Bytes: TypeAlias = "bytes | memoryview"
_Part: TypeAlias = "bytes | FileRange"
Finish: TypeAlias = "Callable[[Sequence[_Bytes]], list[_Bytes]]"


@dataclass
class _State:
    """Numbers that all users of a folder share.

    Attributes:
        max_bytes: The cap.
        used_bytes: On the disk; below 0 there while it is being changed: who is killed leaves it so.
        hit_bytes: That came from the cache, over all processes.
        fetched_bytes: That were fetched.
    """

    max_bytes: int = 0
    used_bytes: int = -1
    hit_bytes: int = 0
    fetched_bytes: int = 0

    def save(self, fd: int, used_bytes: int) -> None:
        data = _STATE.pack(_MAGIC, self.max_bytes, used_bytes, *astuple(self)[2:], 0)[:-4]
        os.pwrite(fd, data + _checksum(data), 0)

    def remove(self, paths: Sequence[str]) -> None:
        """Delete sectors, or folders of them."""
        for path in paths:
            self.used_bytes -= _disk_bytes(path)
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)


class _OfProcess:
    """State of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_open = self.is_warned = False
        self.aside_until = self.touched_at = 0.0
        self.room = 0  # bytes that may be kept, as it was at the latest change
        self.hit_bytes = self.fetched_bytes = 0
        self.checked: dict[tuple[str, str], set[int]] = {}  # sectors, by the file's identity


class DiskCache:
    """Reads ranges of remote files, and keeps copies of what it read in a folder.

    May be pickled and forked. Safe from threads. Whatever goes wrong on the disk costs a request
    and never a wrong byte: the cache warns once and is not used for a while.

    Args:
        folder: On a disk of this machine; made with the permissions 0700 where it is missing.
        max_bytes: The cap, for all users of the folder together: the last that was given counts.
            None for the cap that the folder has, or for a tenth of the disk's free space.
        group: Names what is used together, such as a data set: it is in use as long as one of its
            files is.

    Raises:
        ValueError: `max_bytes` is below 16 KiB.
    """

    def __init__(
        self, folder: str | os.PathLike[str], max_bytes: int | None = None, *, group: str = ""
    ) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self._max_bytes = (
            None if max_bytes is None else at_least(LEAST_BYTES, "cache_bytes", max_bytes)
        )
        self._own = f"{self.folder}/{_hash(group)}"
        self._of_process = PerProcess(_OfProcess)

    def start(self, ranges: Sequence[FileRange]) -> tuple[list[FileRange], Finish]:
        """Begin to read ranges of any files, together.

        Returns:
            The ranges that must be fetched, in whole sectors where there is room for them, and a
            function from its bytes to those of each range.
        """
        mine = self._of_process.get()
        if not mine.is_open and mine.aside_until < time.monotonic():
            self._change()
        found = [self._find(mine, wanted) for wanted in ranges]
        parts = [part for each in found for part in each]
        lacking = [part for part in parts if isinstance(part, FileRange)]
        keeps = mine.is_open and mine.aside_until < time.monotonic()
        if keeps and lacking and mine.room < _SECTOR_BYTES:
            self._change(wanted=_SECTOR_BYTES)
            keeps = mine.room >= _SECTOR_BYTES
        missing = _join(lacking, mine.room if keeps else 0)

        def bytes_of(part: _Part, fetched: Sequence[_Bytes]) -> _Bytes:
            if isinstance(part, bytes):
                return part
            place = bisect_right(missing, _order(part), key=_order) - 1
            begin = part.begin - missing[place].begin
            return memoryview(fetched[place])[begin : begin + part.end - part.begin]

        def finish(fetched: Sequence[_Bytes]) -> list[_Bytes]:
            with mine.lock:
                mine.hit_bytes += sum(len(part) for part in parts if isinstance(part, bytes))
                mine.fetched_bytes += sum(map(len, fetched))
            is_due = mine.is_open and mine.touched_at + _TOUCH_SECONDS <= time.monotonic()
            if is_due or (keeps and missing):
                self._change(kept=[*zip(missing, fetched, strict=True)] if keeps else ())
            pieces = [[bytes_of(part, fetched) for part in each] for each in found]
            return [each[0] if len(each) == 1 else b"".join(each) for each in pieces]

        return missing, finish

    def forget(self, ranges: Sequence[FileRange]) -> bool:
        """Drop what is kept of some ranges, whose bytes are not what they should be; whether any of
        it was.
        """
        paths = [
            self._path_of(file, at)
            for file, begin, end in ranges
            for at in range(begin - begin % _SECTOR_BYTES, end, _SECTOR_BYTES)
        ]
        found = [*filter(os.path.exists, paths)]
        self._change(removed=found)
        return bool(found)

    def _path_of(self, file: RemotePart, at: int) -> str:
        """The path of the sector that begins at a byte."""
        name, version = _identity(file)
        return f"{self._own}/{name}/{version}/{at:x}"

    def _find(self, mine: _OfProcess, wanted: FileRange) -> list[_Part]:
        """The bytes of a range that are there, and the ranges that are not, in order."""
        file, begin, end = wanted
        name, version = identity = _identity(file)
        if mine.is_open and identity not in mine.checked:
            mine.checked[identity] = set()
            others = {*_folders(f"{self._own}/{name}")} - {f"{self._own}/{name}/{version}"}
            if others:
                mine.aside_until = 0.0  # they make room
                self._change(removed=[*others])
        found, checked = list[_Part](), mine.checked.get(identity)
        while begin < end:
            high = min(end, begin - begin % _SECTOR_BYTES + _SECTOR_BYTES)
            data = None if checked is None else self._read(checked, file, begin, high)
            last = found[-1] if found else None
            if data is not None:
                found.append(data)
            elif isinstance(last, FileRange):
                found[-1] = last._replace(end=high)
            else:
                found.append(FileRange(file, begin, high))
            begin = high
        return found

    def _read(self, checked: set[int], file: RemotePart, low: int, high: int) -> bytes | None:
        """Bytes of one sector; None where it is not there, or is damaged: that is looked for once."""
        at = low - low % _SECTOR_BYTES
        with contextlib.suppress(OSError):
            fd = _open_own(self._path_of(file, at))
            try:
                if at in checked:
                    part = os.pread(fd, high - low, low - at)
                    return part if len(part) == high - low else None
                data = os.pread(fd, _SECTOR_BYTES + 5, 0)
            finally:
                os.close(fd)
            # A shorter one was not written to its end.
            if len(data) == min(_SECTOR_BYTES, file.size - at) + 4 and _is_good(data):
                checked.add(at)
                return data[low - at : high - at]
        return None

    def _change(
        self,
        removed: Sequence[str] = (),
        kept: Sequence[tuple[FileRange, _Bytes]] = (),
        wanted: int = 0,
    ) -> None:
        """Open the folder, remove and keep sectors, make room, count what was read, and say that the
        data set is in use; where that fails, warn, and do without the cache for a while.
        """
        mine = self._of_process.get()
        try:
            with _locked(self.folder, self._max_bytes, is_new=not mine.is_open) as state:
                mine.is_open, mine.touched_at = True, time.monotonic()
                # All of it: a cap is rarely lowered, and this is simple.
                if (used := state.used_bytes) > state.max_bytes:
                    state.remove(_folders(self.folder))
                with mine.lock:
                    state.hit_bytes += mine.hit_bytes
                    state.fetched_bytes += mine.fetched_bytes
                    mine.hit_bytes = mine.fetched_bytes = 0
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self._own)
                state.remove(removed)
                disk = shutil.disk_usage(self.folder)
                if kept and disk.free < min(_MOST_RESERVE_BYTES, disk.total // _RESERVE_SHARE):
                    text = f"the disk is nearly full, {disk.free} bytes are left"
                    raise OSError(errno.ENOSPC, text, self.folder)
                is_full = not all(self._write(state, *each) for each in self._sectors(kept))
                mine.room = self._room(state, wanted)
                if is_full or mine.room < wanted:
                    mine.aside_until = time.monotonic() + _ASIDE_SECONDS
            if used > state.max_bytes:
                warnings.warn(
                    f"{printable(self.folder)}: emptied, as it had {used} bytes and cache_bytes is {state.max_bytes}; "
                    "the last given is that of all who share the folder: give them the same, or folders of their own",
                    stacklevel=outer_level(),
                )
        except FileNotFoundError:  # it was cleared meanwhile
            pass
        except OSError as error:
            mine.aside_until = time.monotonic() + _ASIDE_SECONDS
            # Others may keep the lock for long.
            if not mine.is_warned and not isinstance(error, BlockingIOError):
                mine.is_warned = True
                text = f"{printable(error.filename or self.folder)}: {error.strerror}"
                text += ": remote data is read, but no more of it is cached"
                warnings.warn(text, stacklevel=outer_level())

    def _sectors(
        self, kept: Sequence[tuple[FileRange, _Bytes]]
    ) -> Iterator[tuple[str, memoryview]]:
        """The whole sectors of some ranges, and where to write them."""
        for (file, begin, end), data in kept:
            for at in range(begin + -begin % _SECTOR_BYTES, end, _SECTOR_BYTES):
                sector = memoryview(data)[at - begin :][: min(_SECTOR_BYTES, file.size - at)]
                if at + len(sector) in (at + _SECTOR_BYTES, file.size):
                    yield self._path_of(file, at), sector

    def _room(self, state: _State, wanted: int) -> int:
        """The bytes that may be kept, once all was deleted that is idle where these are too few."""
        if state.used_bytes + wanted > state.max_bytes:
            since, others = time.time() - _IDLE_SECONDS, {*_folders(self.folder)} - {self._own}
            state.remove([group for group in others if os.path.getmtime(group) < since])
        return state.max_bytes - state.used_bytes

    def _write(self, state: _State, path: str, data: memoryview) -> bool:
        """Write a sector, unless there is no room."""
        if os.path.exists(path):  # damaged, or another process has written it meanwhile
            state.remove([path])
        num_bytes = _pages(len(data) + 4)
        if self._room(state, num_bytes) < num_bytes:
            return False
        state.used_bytes += num_bytes
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = _open_own(path, os.O_CREAT | os.O_EXCL)
        try:
            if os.writev(fd, (data, _checksum(data))) < len(data) + 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        finally:
            os.close(fd)
        return True


def _hash(text: str) -> str:
    """A hash of a name: names, which may hold secrets, do not go to the disk."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(1 << 13)
def _identity(file: RemotePart) -> tuple[str, str]:
    """Name and version of a file on the disk; the version is another one for other content."""
    version = f"etag {file.etag}" if file.etag is not None else f"time {file.mtime_ns}"
    return _hash(without_signature(file.path)), _hash(f"{file.size} {version}")


def _order(wanted: FileRange) -> tuple[str, str, int]:
    return *_identity(wanted.file), wanted.begin


def _join(ranges: Sequence[FileRange], room: int) -> list[FileRange]:
    """Ranges in order, in whole sectors as far as there is room, joined where they overlap or
    touch.
    """
    joined: list[FileRange] = []
    for file, begin, end in sorted(ranges, key=_order):
        last = joined[-1] if joined and _identity(joined[-1].file) == _identity(file) else None
        low, high = begin - begin % _SECTOR_BYTES, min(end + -end % _SECTOR_BYTES, file.size)
        room -= max(high - max(low, last.end if last else 0), 0)
        if room >= 0:
            begin, end = low, high
        if last and begin <= last.end:
            joined[-1] = last._replace(end=max(last.end, end))
        else:
            joined.append(FileRange(file, begin, end))
    return joined


@contextlib.contextmanager
def _locked(path: str, max_bytes: int | None = None, *, is_new: bool = False) -> Iterator[_State]:
    """Nobody else changes the folder meanwhile; who is new to it may set its cap.

    Raises:
        BlockingIOError: Others held it for too long; the cache is not worth waiting for.
        OSError: It cannot be opened, is not a cache of this user's, or the file system has no
            locks.
    """
    os.makedirs(path, 0o700, exist_ok=True)
    name = f"{path}/{STATE_NAME}"
    fd = _lock(name)
    try:
        data = os.pread(fd, _STATE.size, 0)
        if data[: len(_MAGIC)] not in (b"", _MAGIC):
            problem = "expected nothing or a cache, got another file"
            raise FileExistsError(errno.EEXIST, problem, name)
        is_good = len(data) == _STATE.size and _is_good(data)
        state = _State(*_STATE.unpack(data)[1:-1]) if is_good else _State()
        if not is_good or (is_new and max_bytes):
            state.max_bytes = max_bytes or shutil.disk_usage(path).free // _DEFAULT_SHARE
        if state.used_bytes < 0:
            state.used_bytes = _PAGE_BYTES + sum(map(_disk_bytes, _folders(path)))
        state.save(fd, -1)
        try:
            yield state
        finally:
            state.save(fd, state.used_bytes)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        os.close(fd)


def _lock(path: str) -> int:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        fd = _open_own(path, os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # else it was cleared meanwhile
                return fd
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                os.close(fd)
                raise
        os.close(fd)
        time.sleep(_LOCK_WAIT_SECONDS)


def _checksum(data: bytes | memoryview) -> bytes:
    return crc32c(data).to_bytes(4, "little")


def _is_good(data: bytes) -> bool:
    """Whether the checksum at its end is that of the rest."""
    return _checksum(memoryview(data)[:-4]) == data[-4:]


def _pages(num_bytes: int) -> int:
    """The space that a file of so many bytes takes on the disk."""
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _disk_bytes(path: str) -> int:
    """The space that a file takes on the disk, or all files of a folder."""
    found = path, *glob.glob(f"{glob.escape(path)}/**", recursive=True)
    return sum(_pages(os.path.getsize(file)) for file in found if os.path.isfile(file))


def _folders(path: str) -> list[str]:
    """Our folders in a folder."""
    return glob.glob(f"{glob.escape(path)}/{_OURS}")


def _open_own(path: str, flags: int = 0) -> int:
    """Open a file of this user's: what another one can write is nothing to believe."""
    # No link is followed, and no FIFO is waited for, that somebody put there.
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    status = os.fstat(fd)
    problem = None
    if status.st_uid != os.geteuid():
        problem = "expected a file of this user's, got somebody else's"
    elif status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
        problem = "expected a cache, got another file, or one with a second name"
    if problem is not None:
        os.close(fd)
        raise FileExistsError(errno.EEXIST, problem, path)
    return fd


class CacheInfo(NamedTuple):
    """The content of a cache.

    Attributes:
        max_bytes: The folder's cap.
        num_files: Remote files of which something is there.
        disk_bytes: That they take on the disk.
        hit_bytes: That came from the cache, over all processes, up to half a minute ago.
        fetched_bytes: That were fetched.
    """

    max_bytes: int
    num_files: int
    disk_bytes: int
    hit_bytes: int
    fetched_bytes: int


def cache_info(folder: str | os.PathLike[str], *, clears: bool = False) -> CacheInfo | None:
    """The content of a folder's cache; None where there is none.

    Args:
        folder: The folder.
        clears: Whether all is removed afterwards, also while others use it: they start again.

    Raises:
        OSError: It cannot be done.
    """
    path = os.path.expanduser(folder)
    if not os.path.exists(f"{path}/{STATE_NAME}"):
        return None
    with _locked(path) as state:
        num_files = sum(len(_folders(group)) for group in _folders(path))
        max_bytes, disk_bytes, *counts = astuple(state)
        if clears:
            state.remove(_folders(path))
            os.unlink(f"{path}/{STATE_NAME}")
    return CacheInfo(max_bytes, num_files, disk_bytes, *counts)
