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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import TypeAlias

from crc32c import crc32c

from torch_tfrecord.arguments import PathLike, at_least
from torch_tfrecord.errors import warn
from torch_tfrecord.native import native_module
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.remote.store import FileRange, RemotePart
from torch_tfrecord.shown import printable, without_signature

__all__ = ["DiskCache", "Finish", "Places", "cache_info"]

STATE_NAME = "torch_tfrecord.cache"
LEAST_BYTES = 1 << 14

# Larger ones would fill the memory with what surrounds the records of a random batch, smaller ones
# a folder with files. With its checksum a sector has whole pages.
_SECTOR_BYTES = (1 << 18) - 4
_PAGE_BYTES = 1 << 12  # the smallest piece of a file that takes space of its own
_MAGIC = b"tfrecord cache 5"
_STATE = struct.Struct("<16s4q")  # magic, numbers of `CacheInfo`
_DEFAULT_SHARE = 10  # one part in so many of the free space
_RESERVE_SHARE, _MOST_RESERVE_BYTES = 50, 1 << 30  # part left on the disk for all else
_LOCK_SECONDS = 2.0
_LOCK_WAIT_SECONDS = 0.0005
_LOOK_SECONDS = 30.0  # until a process says again that it uses a data set, and asks for room
# An epoch may take days, but reads some of its files all the time.
_IDLE_SECONDS = 600.0

_Bytes: TypeAlias = "bytes | memoryview"
_Sector: TypeAlias = "tuple[RemotePart, int]"  # the file, and the sector's first byte
_Piece: TypeAlias = "tuple[int, int, int]"  # first byte in the sector, size, place in the buffer
Finish: TypeAlias = "Callable[[Sequence[_Bytes]], list[_Bytes]]"
Places: TypeAlias = "tuple[Sequence[int], memoryview]"
"""Where the bytes of each range begin in a buffer, and the buffer."""


@dataclass
class CacheInfo:
    """Numbers that all users of a folder share.

    Attributes:
        max_bytes: The cap.
        disk_bytes: On the disk; below 0 there while it is being changed: who is killed leaves it so.
        hit_bytes: That came from the cache, over all processes, up to half a minute ago.
        fetched_bytes: That were fetched.
        num_files: Remote files of which something is there; counted by `cache_info` alone.
    """

    max_bytes: int = 0
    disk_bytes: int = -1
    hit_bytes: int = 0
    fetched_bytes: int = 0
    num_files: int = 0

    @property
    def stored(self) -> bytes:
        """All that the folder has of them."""
        return _STATE.pack(_MAGIC, *astuple(self)[:4])

    def remove(self, paths: Iterable[str]) -> None:
        """Delete sectors, or folders of them, as far as they are there."""
        for path in filter(os.path.exists, paths):
            self.disk_bytes -= _disk_bytes(path)
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)


class _OfProcess:
    """State of one process."""

    def __init__(self) -> None:
        self.is_open = self.is_warned = False
        self.look_at = 0.0  # when to look at the folder again
        self.room = 0  # bytes that may be kept, as it was at the latest look
        self.hit_bytes = self.fetched_bytes = 0
        self.checked: dict[RemotePart, set[int]] = {}  # sectors whose checksum fits
        self.coming = set[_Sector]()  # those that are being fetched


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

    def __init__(self, folder: PathLike, max_bytes: int | None = None, *, group: str = "") -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self._max_bytes = (
            None if max_bytes is None else at_least(LEAST_BYTES, "cache_bytes", max_bytes)
        )
        self._own = f"{self.folder}/{_hash(group)}"
        self._of_process = PerProcess(_OfProcess)

    def start(
        self, ranges: Sequence[FileRange], places: Places | None = None
    ) -> tuple[list[FileRange], Finish]:
        """Begin to read ranges of any files to their places, or to new memory, together.

        Returns:
            The ranges that must be fetched, in whole sectors where there is room for them, and a
            function from its bytes to those of each range.
        """
        mine = self._of_process.get()
        ends = [*accumulate((end - begin for _, begin, end in ranges), initial=0)]
        mine.hit_bytes += ends[-1]
        starts, target = places or (ends[:-1], memoryview(bytearray(ends[-1])))
        if mine.look_at <= time.monotonic():
            mine.coming.clear()  # some were never finished
            self._change()
        asked: dict[_Sector, list[_Piece]] = {}
        for (file, begin, end), start in zip(ranges, starts, strict=True):
            for at in _sectors(begin, end):
                low, high = max(begin - at, 0), min(end - at, _SECTOR_BYTES)
                asked.setdefault((file, at), []).append((low, high - low, start + at + low - begin))
        self._drop_old_versions({file for file, _ in asked} - mine.checked.keys())
        missing, new, room = list[FileRange](), set[_Sector](), mine.room
        for sector in sorted(asked, key=lambda sector: (sector[0].path, sector[1])):
            (file, at), pieces = sector, asked[sector]
            if self._read(sector, pieces, target):
                continue
            mine.hit_bytes -= sum(size for _, size, _ in pieces)
            size = _size(sector)
            low, high = at + min(pieces)[0], at + max(low + size for low, size, _ in pieces)
            # One that another batch fetches is not fetched whole: nobody waits for another.
            if room >= (num_bytes := _pages(size + 4)) and sector not in mine.coming:
                room -= num_bytes
                new.add(sector)
                low, high = at, at + size
            if missing and (missing[-1].file, missing[-1].end) == (file, low):
                missing[-1] = missing[-1]._replace(end=high)
            else:
                missing.append(FileRange(file, low, high))

        mine.coming |= new

        def finish(fetched: Sequence[_Bytes]) -> list[_Bytes]:
            kept: dict[_Sector, _Bytes] = {}
            for (file, begin, end), data in zip(missing, fetched, strict=True):
                mine.fetched_bytes += len(data)
                for at in _sectors(begin, end):
                    low = max(begin - at, 0)
                    part = memoryview(data)[at + low - begin : at + _SECTOR_BYTES - begin]
                    _put(target, asked[file, at], part, low)
                    if (file, at) in new:
                        kept[file, at] = part
            if kept or mine.look_at <= time.monotonic():
                self._change(kept=kept)
            mine.coming -= new
            return [
                target[start : start + end - begin]
                for (_, begin, end), start in zip(ranges, starts, strict=True)
            ]

        return missing, finish

    def forget(self, ranges: Sequence[FileRange]) -> bool:
        """Drop what is kept of some ranges, whose bytes are not what they should be; whether any of
        it was.
        """
        sectors = [(file, at) for file, begin, end in ranges for at in _sectors(begin, end)]
        found = [*filter(os.path.exists, map(self._path_of, sectors))]
        self._change(removed=found)
        return bool(found)

    def _path_of(self, sector: _Sector) -> str:
        return f"{self._own}/{_name(sector[0])}/{sector[1]:x}"

    def _drop_old_versions(self, files: Iterable[RemotePart]) -> None:
        """Let the old versions of files that this process has not read before make room."""
        mine, old = self._of_process.get(), list[str]()
        for file in files if mine.is_open else ():
            mine.checked[file] = set()
            version = f"{self._own}/{_name(file)}"
            old += {*_folders(os.path.dirname(version))} - {version}
        if old:
            self._change(removed=old)

    def _read(self, sector: _Sector, pieces: Sequence[_Piece], target: memoryview) -> bool:
        """Read pieces of a sector to their places; False where it is not there, or is damaged: that is looked
        for once.
        """
        checked, native = self._of_process.get().checked.get(sector[0]), native_module("frames")
        if checked is None:
            return False
        path = self._path_of(sector)
        if native and sector[1] in checked:
            name = os.fsencode(path)
            if all(native.read_file(name, low, target[at : at + n]) for low, n, at in pieces):
                return True
        with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
            data = memoryview(file.read())
            if len(data) == _size(sector) + 4 and _checksum(data[:-4]) == data[-4:]:
                checked.add(sector[1])
                _put(target, pieces, data)
                return True
        return False

    def _change(self, removed: Iterable[str] = (), kept: Mapping[_Sector, _Bytes] = {}) -> None:
        """Open the folder, remove and keep sectors, make room, count what was read, and say that the
        data set is in use; where that fails, warn, and keep nothing for a while.
        """
        mine, emptied = self._of_process.get(), None
        try:
            with _locked(self.folder, self._max_bytes, is_new=not mine.is_open) as state:
                mine.is_open = True
                # All of it: a cap is rarely lowered, and this is simple.
                if state.disk_bytes > state.max_bytes:
                    emptied = (
                        f"as it had {state.disk_bytes} bytes and cache_bytes is {state.max_bytes}"
                    )
                    state.remove(_folders(self.folder))
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
                if state.disk_bytes + _SECTOR_BYTES > state.max_bytes:
                    since, others = time.time() - _IDLE_SECONDS, {*_folders(self.folder)}
                    others.discard(self._own)
                    state.remove(group for group in others if os.path.getmtime(group) < since)
                for sector, data in kept.items():
                    if len(data) == _size(sector):  # else the answer was cut
                        self._write(state, self._path_of(sector), data)
                mine.room = state.max_bytes - state.disk_bytes
        except FileNotFoundError:  # it was cleared meanwhile
            pass
        except OSError as error:
            mine.room = 0
            # Others may keep the lock for long.
            if not mine.is_warned and not isinstance(error, BlockingIOError):
                mine.is_warned = True
                text = f"{printable(error.filename or self.folder)}: {error.strerror}"
                text += ": remote data is read, but no more of it is cached"
                warn(text)
        mine.look_at = time.monotonic() + _LOOK_SECONDS  # last: other threads look, too, until then
        if emptied:
            warn(
                f"{printable(self.folder)}: emptied, {emptied}; "
                "the last given is that of all who share the folder: give them the same, or folders of their own"
            )

    def _write(self, state: CacheInfo, path: str, data: _Bytes) -> None:
        """Write a sector, if there is room."""
        new = f"{path}.new"
        # damaged, written by another process meanwhile, or left by one that was killed
        state.remove([path, new])
        num_bytes = _pages(len(data) + 4)
        if state.disk_bytes + num_bytes > state.max_bytes:
            return
        state.disk_bytes += num_bytes
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(new, "wb", opener=partial(os.open, mode=0o600)) as file:
            file.write(data)
            file.write(_checksum(data))
        os.replace(new, path)


def _hash(text: str) -> str:
    """A hash of a name: names, which may contain secrets, do not go to the disk."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(1 << 13)
def _name(file: RemotePart) -> str:
    """File and version on the disk; the version is another one for other content."""
    version = f"etag {file.etag}" if file.etag is not None else f"time {file.mtime_ns}"
    return f"{_hash(without_signature(file.path))}/{_hash(f'{file.size} {version}')}"


def _sectors(begin: int, end: int) -> range:
    """The first bytes of the sectors of a range."""
    return range(begin - begin % _SECTOR_BYTES if begin < end else end, end, _SECTOR_BYTES)


def _put(target: memoryview, pieces: Iterable[_Piece], data: memoryview, first: int = 0) -> None:
    """Copy pieces of a sector, whose bytes are there from the first on."""
    for low, size, place in pieces:
        target[place : place + size] = data[low - first :][:size]


def _size(sector: _Sector) -> int:
    return min(_SECTOR_BYTES, sector[0].size - sector[1])


@contextlib.contextmanager
def _locked(
    path: str, max_bytes: int | None = None, *, is_new: bool = False
) -> Iterator[CacheInfo]:
    """Nobody else changes the folder meanwhile; who is new to it may set its cap.

    Raises:
        BlockingIOError: Others had it for too long; the cache is not worth waiting for.
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
        is_good = len(data) == _STATE.size
        state = CacheInfo(*_STATE.unpack(data)[1:]) if is_good else CacheInfo()
        if not is_good or (is_new and max_bytes):
            state.max_bytes = max_bytes or shutil.disk_usage(path).free // _DEFAULT_SHARE
        changing = replace(state, disk_bytes=-1).stored
        if state.disk_bytes < 0:
            state.disk_bytes = _PAGE_BYTES + sum(map(_disk_bytes, _folders(path)))
        os.pwrite(fd, changing, 0)
        try:
            yield state
        finally:
            os.pwrite(fd, state.stored, 0)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it open, too
        os.close(fd)


def _lock(path: str) -> int:
    """Open a file of this user's, alone: what another one can write is nothing to believe."""
    until = time.monotonic() + _LOCK_SECONDS
    # No link is followed, and no FIFO is waited for, that somebody put there.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        fd = os.open(path, flags, 0o600)
        try:
            status, problem = os.fstat(fd), None
            if status.st_uid != os.geteuid():
                problem = "expected a file of this user's, got somebody else's"
            elif status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
                problem = "expected a cache, got another file, or one with a second name"
            if problem:
                raise FileExistsError(errno.EEXIST, problem, path)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:  # else it was cleared meanwhile
                return fd
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                os.close(fd)
                raise
        os.close(fd)
        time.sleep(_LOCK_WAIT_SECONDS)


def _checksum(data: _Bytes) -> bytes:
    return crc32c(data).to_bytes(4, "little")


def _pages(num_bytes: int) -> int:
    """The space that a file of so many bytes takes on the disk."""
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _disk_bytes(path: str) -> int:
    """The space that a file takes on the disk, or all files of a folder."""
    found = path, *glob.glob(f"{glob.escape(path)}/**", recursive=True)
    return sum(_pages(os.path.getsize(file)) for file in found if os.path.isfile(file))


def _folders(path: str) -> list[str]:
    """Our folders in a folder."""
    return glob.glob(f"{glob.escape(path)}/{'[0-9a-f]' * 32}")


def cache_info(folder: PathLike, *, clears: bool = False) -> CacheInfo | None:
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
        found = replace(state, num_files=sum(len(_folders(group)) for group in _folders(path)))
        if clears:
            state.remove(_folders(path))
            os.unlink(f"{path}/{STATE_NAME}")
    return found
