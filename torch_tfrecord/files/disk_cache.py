"""A cache of remote files on a local disk: what was read before comes without a request.

Each remote file is kept in sectors, a file for each, with a checksum at its end. Many processes
share a folder::

    torch_tfrecord.cache             the cap, the bytes in use, what was read; it is locked to write
    <data set>/<file>/<version>/<n>  sector n; the names are hashes, so that the disk tells no secret

A full cache keeps what it has: each epoch reads all data once, so what came in would push out what
is needed just as soon. Old versions of a file make room, and data sets that nobody has read for ten
minutes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import struct
import threading
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from torch_tfrecord.arguments import at_least
from torch_tfrecord.errors import outer_level
from torch_tfrecord.files.per_process import PerProcess
from torch_tfrecord.shown import printable

__all__ = [
    "CacheInfo",
    "CachedFile",
    "DiskCache",
    "Range",
    "Reading",
    "cache_info",
    "clear_cache",
]

STATE_NAME = "torch_tfrecord.cache"
LEAST_BYTES = 1 << 14

# Larger ones would fill the memory with what surrounds the records of a random batch, smaller ones
# a folder with files. With its checksum a sector has whole pages.
_SECTOR_BYTES = (1 << 18) - 4
_PAGE_BYTES = 1 << 12  # the smallest piece of a file that takes space of its own
_MAGIC = b"tfrecord cache 3"
_STATE = struct.Struct("<16sQQQQQI")  # magic, the numbers of `_State`, checksum
_NAME = re.compile("[0-9a-f]{32}")
_DEFAULT_SHARE = 10  # of the free space: one part of so many
_RESERVE_SHARE, _MOST_RESERVE_BYTES = 50, 1 << 30  # of the disk, left to those who need it more
_LOCK_SECONDS = 2.0
_LOCK_WAIT_SECONDS = 0.0005
_TOUCH_SECONDS = 30.0
_ASIDE_SECONDS = 60.0
_FULL_SECONDS = 30.0
# An epoch may take days, but reads some of its files all the time.
_IDLE_SECONDS = 600.0


class CachedFile:
    """A remote file as it is now.

    Args:
        path: Any text that tells files apart; it should hold no credentials, which change while the
            file does not.
        version: What changes with the content: an ETag, a version, a time.
        size: Bytes.

    Attributes:
        identity: Name and version on the disk; equal for equal content.
    """

    __slots__ = ("identity", "path", "size")

    def __init__(self, path: str, version: str, size: int) -> None:
        self.path, self.size = path, size
        self.identity = _hash(path), _hash(f"{size} {version}")

    def sectors(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Where each sector begins and ends that has some of these bytes."""
        for at in range(
            begin // _SECTOR_BYTES * _SECTOR_BYTES, end if begin < end else 0, _SECTOR_BYTES
        ):
            yield at, min(at + _SECTOR_BYTES, self.size)


class Range(NamedTuple):
    """Bytes of a file, from `begin` to before `end`, inside of it."""

    file: CachedFile
    begin: int
    end: int


def _hash(text: str) -> str:
    """A hash of a name: names, which may hold secrets, do not go to the disk."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class DiskCache:
    """Reads ranges of remote files, and keeps copies of what it read in a folder.

    May be pickled and forked: each process opens the folder itself when it first reads. Safe from
    threads. Whatever goes wrong on the disk costs a request and never a wrong byte: the cache warns
    once and stands aside.

    Args:
        folder: On a disk of this machine; made with the permissions 0700 where it is missing.
        max_bytes: The cap, for all users of the folder together: that of who opened it last holds.
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
        self._group = _hash(group)
        self._state = PerProcess(_ProcessState)

    def start(self, ranges: Sequence[Range]) -> Reading:
        """Begin to read ranges of any files, together, so that what is missing is fetched together."""
        folder = self._open()
        parts = [_find(folder, wanted) for wanted in ranges]
        keeps = folder is not None and self._may_write(folder)
        return Reading(parts, keeps, self._finish)

    def forget(self, ranges: Sequence[Range]) -> bool:
        """Drop what is kept of some ranges, whose bytes are not what they should be; whether any of
        it was.
        """
        folder, found = self._open(), False
        if folder is not None:
            with _StandingAside(self._stand_aside), folder.locked():
                for file, begin, end in ranges:
                    for at, _ in file.sectors(begin, end):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(folder.path_of(file, at))
                            found = True
        return found

    def _open(self) -> _Folder | None:
        """The folder; None where it cannot be used."""
        state = self._state.get()
        with state.lock:
            if state.folder is not None and state.folder.is_current():
                return state.folder
            # It was cleared by another process, or could not be opened before.
            state.folder = None
            if state.closed_until < time.monotonic():
                # Set before the attempt, so that it holds if that fails.
                state.closed_until = time.monotonic() + _ASIDE_SECONDS
                with _StandingAside(self._stand_aside):
                    state.folder = _Folder(self.folder, self._max_bytes, self._group)
                    state.closed_until = 0.0
            return state.folder

    def _may_write(self, folder: _Folder) -> bool:
        if self._state.get().aside_until > time.monotonic() or folder.full_until > time.monotonic():
            return False
        with _StandingAside(self._stand_aside):
            free_bytes, disk_bytes = folder.free_bytes()
            if free_bytes >= min(_MOST_RESERVE_BYTES, disk_bytes // _RESERVE_SHARE):
                return True
            self._warn(self.folder, f"the disk is nearly full, {free_bytes} bytes are left")
        return False

    def _finish(self, reading: Reading) -> None:
        """Keep what was fetched; say now and then how much was read, and that the data set is in
        use.
        """
        state, counts = self._state.get(), (0, 0)
        with state.lock:
            folder = state.folder
            state.hit_bytes += reading.hit_bytes
            state.fetched_bytes += sum(len(data) for _, data in reading.fetched)
            if is_due := state.touched_at + _TOUCH_SECONDS <= time.monotonic():
                state.touched_at, counts = time.monotonic(), (state.hit_bytes, state.fetched_bytes)
                state.hit_bytes = state.fetched_bytes = 0
        if folder is not None and (is_due or (reading.keeps and reading.fetched)):
            with _StandingAside(self._stand_aside), folder.locked():
                if reading.keeps:
                    folder.keep(reading.fetched)
                if is_due:
                    folder.touch(*counts)

    def _stand_aside(self, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # it was cleared meanwhile
            return
        self._state.get().aside_until = time.monotonic() + _ASIDE_SECONDS
        if not isinstance(error, BlockingIOError):  # others hold it for long
            self._warn(error.filename or self.folder, error.strerror or type(error).__name__)

    def _warn(self, path: str, reason: str) -> None:
        if not self._state.get().is_warned:
            self._state.get().is_warned = True
            text = f"{printable(path)}: {reason}: remote data is read, but no more of it is cached"
            warnings.warn(text, stacklevel=outer_level())


class _ProcessState:
    """What belongs to one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folder: _Folder | None = None
        self.closed_until = self.aside_until = 0.0
        self.touched_at = float("-inf")
        self.hit_bytes = self.fetched_bytes = 0
        self.is_warned = False


class Reading:
    """A read that was begun.

    Args:
        parts: For each range the bytes that are there, and the ranges that are not, in order.
        keeps: Whether what is fetched will be kept; then it is fetched in whole sectors, else exactly.
        finish: Called when what was missing is there.

    Attributes:
        missing: What must be fetched, joined where it touches.
        fetched: It, with its bytes.
        hit_bytes: That were there.
    """

    def __init__(
        self, parts: list[list[bytes | Range]], keeps: bool, finish: Callable[[Reading], None]
    ) -> None:
        self.keeps = keeps
        self._parts, self._finish = parts, finish
        every = [part for found in parts for part in found]
        missing = [part for part in every if isinstance(part, Range)]
        self.missing = _join([*map(_round, missing)] if keeps else missing)
        self.hit_bytes = sum(len(part) for part in every if isinstance(part, bytes))
        self.fetched: list[tuple[Range, bytes | memoryview]] = []

    def finish(self, fetched: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """The bytes of each range that is read, from those of what was missing."""
        self.fetched = [*zip(self.missing, fetched, strict=True)]
        self._finish(self)
        found = [[*map(self._bytes_of, parts)] for parts in self._parts]
        return [pieces[0] if len(pieces) == 1 else b"".join(pieces) for pieces in found]

    def _bytes_of(self, part: bytes | Range) -> bytes | memoryview:
        if isinstance(part, bytes):
            return part
        place = bisect_right(self.fetched, _order(part), key=lambda pair: _order(pair[0])) - 1
        wanted, data = self.fetched[place]
        return memoryview(data)[part.begin - wanted.begin : part.end - wanted.begin]


def _order(wanted: Range) -> tuple[str, str, int]:
    return *wanted.file.identity, wanted.begin


def _round(wanted: Range) -> Range:
    """With the sectors around it."""
    sectors = [*wanted.file.sectors(wanted.begin, wanted.end)]
    return Range(wanted.file, sectors[0][0], sectors[-1][1])


def _join(ranges: Sequence[Range]) -> list[Range]:
    """Ranges in order, joined where they overlap or touch."""
    joined: list[Range] = []
    for one in sorted(ranges, key=_order):
        last = joined[-1] if joined else None
        if last and last.file.identity == one.file.identity and one.begin <= last.end:
            joined[-1] = last._replace(end=max(last.end, one.end))
        else:
            joined.append(one)
    return joined


def _find(folder: _Folder | None, wanted: Range) -> list[bytes | Range]:
    """The bytes of a range that are there, and the ranges that are not, in order."""
    file, begin, end = wanted
    found: list[bytes | Range] = []
    for at, sector_end in file.sectors(begin, end):
        low, high = max(begin, at), min(end, sector_end)
        data = None if folder is None else folder.read(file, at, sector_end, low, high)
        last = found[-1] if found else None
        if data is not None:
            found.append(data)
        elif isinstance(last, Range):
            found[-1] = last._replace(end=high)
        else:
            found.append(Range(file, low, high))
    return found


class _State(NamedTuple):
    """What all users of a folder share.

    Attributes:
        max_bytes: The cap.
        used_bytes: That the sectors take on the disk, or more: room is counted before it is used.
        counted_at: When they were last counted anew, in seconds.
        hit_bytes: That came from the cache, over all processes.
        fetched_bytes: That were fetched.
    """

    max_bytes: int
    used_bytes: int = _PAGE_BYTES
    counted_at: int = 0
    hit_bytes: int = 0
    fetched_bytes: int = 0


class _Folder:
    """The open folder of one process; safe from threads, not for use after a fork.

    Args:
        path: Made with the permissions 0700 where it is missing.
        max_bytes: See `DiskCache`.
        group: Name of the folder in it for this data set.

    Attributes:
        full_until: No room is worth asking for before, by `time.monotonic`.

    Raises:
        OSError: It cannot be opened, is not a cache of this user's, or the file system has no
            locks.
    """

    def __init__(self, path: str, max_bytes: int | None, group: str) -> None:
        self._path, self._own = path, os.path.join(path, group)
        self.full_until = 0.0
        self._lock = threading.Lock()
        self._seen: set[tuple[str, str]] = set()  # files whose other versions were looked for
        self._checked: dict[tuple[str, str], set[int]] = {}  # sectors
        self._fd = -1
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(mode=0o700, exist_ok=True)
        name = os.path.join(path, STATE_NAME)
        self._fd = _open_own(name, os.O_CREAT)
        if os.pread(self._fd, len(_MAGIC), 0) not in (b"", _MAGIC):
            problem = "expected nothing or a cache, got another file"
            raise FileExistsError(errno.EEXIST, problem, name)
        with self.locked(checked=False):
            self._agree(max_bytes)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        try:  # noqa: SIM105
            close(self._fd)
        except OSError:
            pass

    def is_current(self) -> bool:
        """Whether the folder was not cleared since it was opened."""
        with contextlib.suppress(OSError):
            return os.fstat(self._fd).st_nlink > 0 and self.state() is not None
        return False

    @contextlib.contextmanager
    def locked(self, *, checked: bool = True) -> Iterator[None]:
        """Nobody else changes the folder meanwhile.

        Raises:
            BlockingIOError: Others held it for too long; the cache is not worth waiting for.
            FileNotFoundError: It was cleared.
        """
        until = time.monotonic() + _LOCK_SECONDS
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise BlockingIOError(errno.EAGAIN, "locked by another thread", self._path)
        try:
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                time.sleep(_LOCK_WAIT_SECONDS)
            try:
                if checked and not self.is_current():
                    raise FileNotFoundError(errno.ENOENT, "cleared", self._path)
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._lock.release()

    def state(self) -> _State | None:
        """What is shared; None where it is damaged."""
        data = os.pread(self._fd, _STATE.size, 0)
        if len(data) < _STATE.size or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        return _State(*_STATE.unpack(data)[1:-1])

    def free_bytes(self) -> tuple[int, int]:
        """What the disk has left, and what it has in all."""
        disk = os.fstatvfs(self._fd)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def path_of(self, file: CachedFile, at: int) -> str:
        """Of the sector that begins at a byte."""
        return os.path.join(self._own, *file.identity, f"{at:x}")

    def read(self, file: CachedFile, at: int, end: int, low: int, high: int) -> bytes | None:
        """The bytes from `low` to `high` of a sector; None where it is not there, or is damaged: that
        is looked for once.
        """
        checked = self._checked.setdefault(file.identity, set())
        with contextlib.suppress(OSError):
            fd = _open_own(self.path_of(file, at))
            try:
                if at not in checked:
                    data = memoryview(os.pread(fd, end - at + 5, 0))
                    if len(data) == end - at + 4 and crc32c(data[:-4]) == _number(data[-4:]):
                        checked.add(at)
                        return bytes(data[low - at : high - at])
                elif len(part := os.pread(fd, high - low, low - at)) == high - low:
                    return part
            finally:
                os.close(fd)
        if self._other_versions(file):
            self.full_until = 0.0  # they make room
        return None

    def _other_versions(self, file: CachedFile) -> list[str]:
        """The folders of other versions of a file, until it was written to."""
        if file.identity in self._seen:
            return []
        name, version = file.identity
        found = [path for path in _entries(os.path.join(self._own, name)) if path[-32:] != version]
        if not found:
            self._seen.add(file.identity)
        return found

    # Under the lock.

    def keep(self, fetched: Sequence[tuple[Range, bytes | memoryview]]) -> None:
        """Write to the disk what was fetched, as far as there is room."""
        for (file, begin, end), data in fetched:
            for at, sector_end in file.sectors(begin, end) if len(data) == end - begin else ():
                # Else it is a part of one.
                if begin <= at and sector_end <= end:
                    sector = memoryview(data)[at - begin : sector_end - begin]
                    if not self._write_sector(file, at, sector):
                        return

    def _write_sector(self, file: CachedFile, at: int, data: memoryview) -> bool:
        """Write a sector, unless there is no room: then False."""
        if self.read(file, at, at + len(data), at, at) is not None:
            return True  # by another process, meanwhile
        for path in self._other_versions(file):
            num_bytes = _disk_bytes(path)
            shutil.rmtree(path)
            # After it: whoever is killed before has counted too much, which does no harm.
            self._make_room(-num_bytes)
        if not self._make_room(-(-(len(data) + 4) // _PAGE_BYTES) * _PAGE_BYTES):
            return False
        path = self.path_of(file, at)
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = _open_own(path, os.O_CREAT | os.O_TRUNC)
        try:
            # Whoever reads it before it is whole finds it too short.
            for piece in (data, crc32c(data).to_bytes(4, "little")):
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        return True

    def touch(self, hits: int, fetched: int) -> None:
        """The data set is in use; count what was read."""
        state = self.state()
        if state is not None:
            counts = state.hit_bytes + hits, state.fetched_bytes + fetched
            self._write(state._replace(hit_bytes=counts[0], fetched_bytes=counts[1]))
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._own)

    def remove(self) -> None:
        """Delete all that is kept, and what is shared; who has it open begins anew."""
        self._remove_groups(time.time() + 1)
        os.unlink(os.path.join(self._path, STATE_NAME))

    def _remove_groups(self, idle_since: float) -> None:
        for path in _entries(self._path):
            if os.path.getmtime(path) < idle_since:
                shutil.rmtree(path)

    def usage(self) -> tuple[int, int]:
        """Number of remote files, and bytes that they take."""
        files = [path for group in _entries(self._path) for path in _entries(group)]
        return len(files), sum(map(_disk_bytes, files)) + _PAGE_BYTES

    def _agree(self, wanted: int | None) -> None:
        """Set the cap, for all who have the folder open."""
        state = self.state()
        cap = wanted or (state.max_bytes if state else self.free_bytes()[0] // _DEFAULT_SHARE)
        state = (state or _State(cap, self.usage()[1]))._replace(max_bytes=cap)
        # All of it: who lowers a cap begins anew, which is rare, and simple.
        if state.used_bytes > cap:
            self._remove_groups(time.time() + 1)
            state = state._replace(used_bytes=_PAGE_BYTES)
        self._write(state)

    def _make_room(self, num_bytes: int) -> bool:
        """Count bytes as used, if they fit below the cap once what is idle was deleted."""
        state, now = self.state(), time.time()
        if state is None:
            return False
        if (
            state.used_bytes + num_bytes > state.max_bytes
            and not 0 <= now - state.counted_at <= _IDLE_SECONDS
        ):
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._own)
            self._remove_groups(now - _IDLE_SECONDS)
            # What a killed process counted is no longer in use.
            state = state._replace(used_bytes=self.usage()[1], counted_at=int(now))
        used = max(state.used_bytes + num_bytes, 0)
        is_room = used <= state.max_bytes
        self._write(state._replace(used_bytes=used) if is_room or num_bytes < 0 else state)
        if not is_room:
            self.full_until = time.monotonic() + _FULL_SECONDS
        return is_room

    def _write(self, state: _State) -> None:
        data = _STATE.pack(_MAGIC, *(count % (1 << 64) for count in state), 0)[:-4]
        os.pwrite(self._fd, data + crc32c(data).to_bytes(4, "little"), 0)


def _number(data: memoryview) -> int:
    return int.from_bytes(data, "little")


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


def _entries(folder: str) -> list[str]:
    """What a folder has of ours: folders whose names are hashes."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [entry.path for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    return []


def _disk_bytes(folder: str) -> int:
    """What all files of a folder take on the disk."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total


class _StandingAside:
    """An OSError inside of ``with`` is handed on; a class, so that only frames of ours are above
    the warning's.
    """

    def __init__(self, handle: Callable[[OSError], None]) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, OSError):
            return False
        self._handle(error)
        return True


class CacheInfo(NamedTuple):
    """What a folder holds.

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


def cache_info(folder: str | os.PathLike[str]) -> CacheInfo | None:
    """What a folder holds; None where it holds no cache.

    Raises:
        OSError: It cannot be read.
    """
    found = _open_folder(folder)
    state = None if found is None else found.state()
    if found is None or state is None:
        return None
    return CacheInfo(state.max_bytes, *found.usage(), state.hit_bytes, state.fetched_bytes)


def clear_cache(folder: str | os.PathLike[str]) -> None:
    """Remove all that a folder holds, also while others use it: they begin anew.

    Raises:
        OSError: It cannot be done.
    """
    found = _open_folder(folder)
    if found is not None:
        with found.locked(checked=False):
            found.remove()


def _open_folder(folder: str | os.PathLike[str]) -> _Folder | None:
    path = os.path.expanduser(folder)
    return _Folder(path, None, "") if os.path.exists(os.path.join(path, STATE_NAME)) else None
