"""A cache of remote files on a local disk: what was read before comes without a request.

Each remote file has a sparse copy: the same bytes at the same offsets, and holes for what nobody
read. Behind the bytes stands a table with a checksum for each sector of 4 KiB, in large files of
16. Many processes share a folder::

    torch_tfrecord.cache             the cap, the bytes in use, what was read; it is locked to write
    <data set>/<remote file>         a copy; both names are hashes, so that the disk tells no secret

A full cache keeps what it has: each epoch reads all data once, so what came in would push out what
is needed just as soon. Old versions of a file make room, and data sets that nobody has read for ten
minutes: their copies are deleted whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import struct
import threading
import time
import warnings
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from torch_tfrecord.arguments import at_least
from torch_tfrecord.errors import outer_level
from torch_tfrecord.files.per_process import PerProcess
from torch_tfrecord.shown import printable

__all__ = [
    "CacheInfo",
    "CachedFile",
    "DiskCache",
    "Fetch",
    "Range",
    "Reading",
    "cache_info",
    "clear_cache",
]

STATE_NAME = "torch_tfrecord.cache"
LEAST_BYTES = 1 << 14

_PAGE_BYTES = 1 << 12  # the smallest piece of a file that takes space of its own
_LARGE_FILE_BYTES, _SECTOR_PAGES = 4 << 20, 4  # sectors of more pages there: fewer checksums
# The file system's own table of a file with many holes takes space, too: a page for each 340.
_PAGE_COST = _PAGE_BYTES + 16
_MAGIC = b"tfrecord cache 2"
_STATE = struct.Struct("<16sQQQQI")  # magic, cap, used, hits, fetched, checksum
_HEADER = struct.Struct("<16s16sI")  # of a copy's table: magic, version and size, checksum
_TABLE_AT = 64  # first byte of the sectors' checksums, behind the header
_NAME = re.compile("[0-9a-f]{32}")
_PIECE_BYTES = 8 << 20
_MOST_OPEN = 128
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
        name: Of the copy on the disk.
        sector_bytes: The pieces that are kept whole, each with a checksum.
        identity: Equal for equal content.
    """

    __slots__ = ("identity", "name", "path", "sector_bytes", "size", "version")

    def __init__(self, path: str, version: str, size: int) -> None:
        self.path, self.size = path, size
        self.name = _hash(path).hex()
        self.version = _hash(f"{size} {version}")
        self.identity = self.name, self.version
        self.sector_bytes = _PAGE_BYTES * (_SECTOR_PAGES if size >= _LARGE_FILE_BYTES else 1)

    def sectors(self, begin: int, end: int) -> range:
        """The numbers of the sectors that bytes lie in."""
        return range(begin // self.sector_bytes, -(-end // self.sector_bytes))


class Range(NamedTuple):
    """Bytes of a file, from `begin` to before `end`, inside of it."""

    file: CachedFile
    begin: int
    end: int


Fetch: TypeAlias = Callable[[Sequence[Range]], Sequence["bytes | memoryview"]]


def _hash(text: str) -> bytes:
    """A hash of a name: names, which may hold secrets, do not go to the disk."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class DiskCache:
    """Reads ranges of remote files, and keeps copies of what it read in a folder.

    May be pickled and forked: each process opens the folder itself when it first reads. Safe from
    threads. Whatever goes wrong on the disk costs a request and never a wrong byte: the cache warns
    once and stands aside.

    Args:
        folder: On a disk of this machine; made with the permissions 0700 where it is missing.
        max_bytes: The cap, for all users of the folder together: the smallest that one of them gave
            holds; who uses the folder alone may raise it. None for the cap that the folder has, or
            for a tenth of the disk's free space.
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
        self._group = _hash(group).hex()
        self._state = PerProcess(_ProcessState)

    @property
    def hit_bytes(self) -> int:
        """Bytes that came from the cache, in this process."""
        return self._state.get().hit_bytes

    @property
    def fetched_bytes(self) -> int:
        """Bytes that were fetched by it."""
        return self._state.get().fetched_bytes

    def read(self, ranges: Sequence[Range], fetch: Fetch) -> list[bytes | memoryview]:
        """The bytes of each range, in order.

        Args:
            ranges: Of any files; together, so that what is missing is fetched together.
            fetch: Gives the bytes of ranges of the remote files: called once with all that is
                missing, or not at all.
        """
        reading = self.start(ranges)
        return reading.finish(fetch(reading.missing) if reading.missing else ())

    def start(self, ranges: Sequence[Range]) -> Reading:
        """As `read`, for whoever fetches what is missing while other things are done."""
        folder = self._open()
        keeps = folder is not None and self._may_write(folder)
        return Reading([[*_find(folder, wanted)] for wanted in ranges], keeps, self._finish)

    def forget(self, ranges: Sequence[Range]) -> bool:
        """Drop what is kept of some ranges, whose bytes are not what they should be; whether any of
        it was.
        """
        folder, found = self._open(), False
        if folder is not None:
            with _StandingAside(self._stand_aside), folder.locked():
                for file, begin, end in ranges:
                    copy = folder.copy(file)
                    found |= copy is not None and copy.drop(file.sectors(begin, end))
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
                state.touched_at = time.monotonic()
                hits, fetched = state.counted
                counts = state.hit_bytes - hits, state.fetched_bytes - fetched
                state.counted = state.hit_bytes, state.fetched_bytes
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
        self.counted = 0, 0
        self.is_warned = False


class Reading:
    """A read that was begun.

    Args:
        parts: For each range the bytes that are there, and the ranges that are not, in order.
        keeps: Whether what is fetched will be kept; it is fetched with the sectors around it then,
            else exactly.
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


def _order(wanted: Range) -> tuple[str, bytes, int]:
    return *wanted.file.identity, wanted.begin


def _round(wanted: Range) -> Range:
    """With the sectors around it."""
    file, begin, end = wanted
    sectors, size = file.sectors(begin, end), file.sector_bytes
    return Range(file, sectors.start * size, min(sectors.stop * size, file.size))


def _join(ranges: Sequence[Range]) -> list[Range]:
    """Ranges joined where they overlap, and where they touch up to what one request is good for."""
    joined: list[Range] = []
    for one in sorted(ranges, key=_order):
        last = joined[-1] if joined and joined[-1].file.identity == one.file.identity else None
        if last is not None and (
            one.begin < last.end or (one.begin == last.end and one.end - last.begin <= _PIECE_BYTES)
        ):
            joined[-1] = last._replace(end=max(last.end, one.end))
        else:
            joined.append(one)
    return joined


def _find(folder: _Folder | None, wanted: Range) -> Iterator[bytes | Range]:
    """The bytes of a range that are there, and the ranges that are not, in order."""
    file, begin, end = wanted
    if begin >= end:
        return
    copy = None if folder is None else folder.copy(file)
    if copy is None:
        yield from _split(wanted)
        return
    sectors, size = file.sectors(begin, end), file.sector_bytes
    found = zip(sectors, copy.checksums(sectors), strict=True)
    for is_held, group in groupby(found, key=lambda item: item[1] is not None):
        run = [*group]
        at = run[0][0] * size
        low, high = max(begin, at), min(end, (run[-1][0] + 1) * size)
        data = copy.read(at, [checksum for _, checksum in run]) if is_held else None
        if data is None:
            yield from _split(Range(file, low, high))
        else:
            yield data[low - at : high - at]


def _split(wanted: Range) -> Iterator[Range]:
    """Pieces of a range that one request is good for."""
    for at in range(wanted.begin // _PIECE_BYTES * _PIECE_BYTES, wanted.end, _PIECE_BYTES):
        yield Range(wanted.file, max(wanted.begin, at), min(wanted.end, at + _PIECE_BYTES))


class _State(NamedTuple):
    """What all users of a folder share.

    Attributes:
        max_bytes: The cap.
        used_bytes: That the copies take on the disk, or more: room is counted before it is used.
        hit_bytes: That came from the cache, over all processes.
        fetched_bytes: That were fetched.
    """

    max_bytes: int
    used_bytes: int = 0
    hit_bytes: int = 0
    fetched_bytes: int = 0


class _Folder:
    """The open folder of one process; safe from threads, not for use after a fork.

    Args:
        path: Made with the permissions 0700 where it is missing.
        max_bytes: See `DiskCache`.
        group: Name of the folder in it for copies of this data set.

    Attributes:
        full_until: No room is worth asking for before, by `time.monotonic`.

    Raises:
        OSError: It cannot be opened, is not a cache of this user's, or the file system has no
            locks.
    """

    def __init__(self, path: str, max_bytes: int | None, group: str) -> None:
        self._path, self._own = path, os.path.join(path, group)
        self.full_until = 0.0
        self._lock, self._copies_lock = threading.Lock(), threading.Lock()
        self._copies: OrderedDict[tuple[str, bytes], _Copy] = OrderedDict()
        self._fd = self._users = -1
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).mkdir(mode=0o700, exist_ok=True)
        name = os.path.join(path, STATE_NAME)
        self._fd = _open_own(name, os.O_CREAT)
        if os.pread(self._fd, len(_MAGIC), 0) not in (b"", _MAGIC):
            problem = "expected nothing or a cache, got another file"
            raise FileExistsError(errno.EEXIST, problem, name)
        self._users = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with self.locked(checked=False):
            self._agree(max_bytes)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in (self._fd, self._users):
            if fd >= 0:
                try:  # noqa: SIM105
                    close(fd)
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
            while not _try_lock(self._fd, fcntl.LOCK_EX):
                if time.monotonic() > until:
                    raise BlockingIOError(errno.EAGAIN, "locked by another process", self._path)
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

    def copy(self, file: CachedFile) -> _Copy | None:
        """The copy of a file in its version, if there is one."""
        with self._copies_lock:
            copy = self._copies.get(file.identity)
            if copy is None or not copy.is_current():
                self._copies.pop(file.identity, None)
                with contextlib.suppress(OSError):
                    copy = _Copy(_open_own(os.path.join(self._own, file.name)), file)
                if copy is None or not copy.is_whole():
                    if copy is not None:
                        self.full_until = 0.0  # an old version makes room
                    return None
                self._copies[file.identity] = copy
                if len(self._copies) > _MOST_OPEN:
                    self._copies.popitem(last=False)
            self._copies.move_to_end(file.identity)
            return copy

    # Under the lock.

    def keep(self, fetched: Sequence[tuple[Range, bytes | memoryview]]) -> None:
        """Write to the disk what was fetched, as far as there is room."""
        for (file, begin, end), data in fetched:
            size = file.sector_bytes
            # Whole sectors only, as a checksum is of a whole one; the last ends with the file.
            last = end // size if end < file.size else file.sectors(begin, end).stop
            sectors = range(-(-begin // size), last)
            if len(data) != end - begin or not sectors:
                continue
            copy = self.copy(file) or self._create(file)
            if copy is None or not self._make_room(copy.cost(sectors)):
                return
            first = sectors.start * size - begin
            copy.write(sectors, memoryview(data)[first:])

    def touch(self, hits: int, fetched: int) -> None:
        """The data set is in use; count what was read."""
        state = self.state()
        if state is not None:
            counts = state.hit_bytes + hits, state.fetched_bytes + fetched
            self._write(state._replace(hit_bytes=counts[0], fetched_bytes=counts[1]))
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._own)

    def remove(self) -> None:
        """Delete all copies, and what is shared; who has it open begins anew."""
        for path in self._paths():
            os.unlink(path)
        for folder in _entries(self._path):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        os.unlink(os.path.join(self._path, STATE_NAME))

    def _paths(self) -> Iterator[str]:
        """The copies, those of the data set that was not used for longest first."""
        for folder in sorted(_entries(self._path), key=os.path.getmtime):
            yield from _entries(folder)

    def usage(self) -> tuple[int, int]:
        """Number of copies, and bytes that they take."""
        sizes = [_disk_bytes(path) for path in self._paths()]
        return len(sizes), sum(sizes) + _PAGE_BYTES

    def _agree(self, wanted: int | None) -> None:
        """Agree on the cap with whoever has the folder open."""
        state = self.state()
        is_alone = _try_lock(self._users, fcntl.LOCK_EX)
        _try_lock(self._users, fcntl.LOCK_SH)
        cap = None if state is None else state.max_bytes
        if cap is None or (wanted is not None and (is_alone or wanted < cap)):
            cap = wanted or max(self.free_bytes()[0] // _DEFAULT_SHARE, LEAST_BYTES)
        used = self.usage()[1]
        # All of it: who lowers a cap begins anew, which is rare, and simple.
        if used > cap:
            for path in self._paths():
                os.unlink(path)
            used = self.usage()[1]
        self._write((state or _State(cap))._replace(max_bytes=cap, used_bytes=used))

    def _make_room(self, num_bytes: int) -> bool:
        """Count bytes as used, if they fit below the cap once what is idle was deleted."""
        state = self.state()
        if state is None:
            return False
        if state.used_bytes + num_bytes > state.max_bytes:
            idle_since = time.time() - _IDLE_SECONDS
            used = self.usage()[1]  # what a killed process counted is no longer in use
            for path in self._paths():
                folder = os.path.dirname(path)
                if used + num_bytes <= state.max_bytes:
                    break
                if folder != self._own and os.path.getmtime(folder) < idle_since:
                    used -= _disk_bytes(path)
                    os.unlink(path)
            state = state._replace(used_bytes=used)
        is_room = state.used_bytes + num_bytes <= state.max_bytes
        self._write(state._replace(used_bytes=state.used_bytes + num_bytes * is_room))
        if not is_room:
            self.full_until = time.monotonic() + _FULL_SECONDS
        return is_room

    def _create(self, file: CachedFile) -> _Copy | None:
        """A copy without sectors, in place of that of another version; None without room."""
        Path(self._own).mkdir(mode=0o700, exist_ok=True)
        path, state = os.path.join(self._own, file.name), self.state()
        if state is not None and os.path.lexists(path):
            os.unlink(path)
            self._write(state._replace(used_bytes=self.usage()[1]))
        if not self._make_room(_PAGE_COST):
            return None
        copy = _Copy(_open_own(path, os.O_CREAT | os.O_EXCL), file)
        copy.begin()
        return copy

    def _write(self, state: _State) -> None:
        data = _STATE.pack(_MAGIC, *(count % (1 << 64) for count in state), 0)[:-4]
        os.pwrite(self._fd, data + crc32c(data).to_bytes(4, "little"), 0)


class _Copy:
    """The open copy of one remote file.

    Args:
        fd: Closed with this object.
        file: What it is a copy of.
    """

    def __init__(self, fd: int, file: CachedFile) -> None:
        self._fd, self._size, self._sector_bytes = fd, file.size, file.sector_bytes
        self._table_at = -(-file.size // _PAGE_BYTES) * _PAGE_BYTES
        header = _HEADER.pack(_MAGIC, file.version, 0)[:-4]
        self._header = header + crc32c(header).to_bytes(4, "little")
        # In each check, so that no sector of an old version is taken for one of this.
        self._seed = crc32c(file.version)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        try:  # noqa: SIM105
            close(self._fd)
        except OSError:
            pass

    def is_current(self) -> bool:
        """Whether it was not deleted."""
        return os.fstat(self._fd).st_nlink > 0

    def is_whole(self) -> bool:
        """Whether it is of this version."""
        return os.pread(self._fd, len(self._header), self._table_at) == self._header

    def begin(self) -> None:
        """Write what tells the version."""
        _write_all(self._fd, self._header, self._table_at)

    def checksums(self, sectors: range) -> list[int | None]:
        """The checksum of each sector; None for one that is not there."""
        data = self._read(8 * len(sectors), self._entry_at(sectors.start))
        found = struct.unpack(f"<{2 * len(sectors)}I", data.ljust(8 * len(sectors), b"\0"))
        pairs = zip(sectors, found[::2], found[1::2], strict=True)
        return [
            checksum if check == self._check(sector, checksum) else None
            for sector, checksum, check in pairs
        ]

    def read(self, begin: int, checksums: Sequence[int | None]) -> bytes | None:
        """The bytes of sectors in a row; None where one is damaged."""
        end = min(begin + len(checksums) * self._sector_bytes, self._size)
        data = self._read(end - begin, begin)
        found = [crc32c(sector) for sector in self._each_sector(memoryview(data))]
        return data if len(data) == end - begin and found == checksums else None

    def write(self, sectors: range, data: memoryview) -> None:
        """Write sectors in a row: the bytes, then what makes them count."""
        begin = sectors.start * self._sector_bytes
        data = data[: min(sectors.stop * self._sector_bytes, self._size) - begin]
        # In this order: a process that is killed between the two has written nothing that counts.
        _write_all(self._fd, data, begin)
        table = b""
        for sector, checksum in zip(sectors, map(crc32c, self._each_sector(data)), strict=True):
            table += struct.pack("<II", checksum, self._check(sector, checksum))
        _write_all(self._fd, table, self._entry_at(sectors.start))

    def drop(self, sectors: range) -> bool:
        """Sectors are gone; whether any was there."""
        found = any(checksum is not None for checksum in self.checksums(sectors))
        if found:
            # The bytes may stay: without its checksum no sector counts.
            _write_all(self._fd, bytes(8 * len(sectors)), self._entry_at(sectors.start))
        return found

    def cost(self, sectors: range) -> int:
        """Bytes of the disk that writing sectors takes: theirs, and new pages of the table."""
        checksums = self.checksums(sectors)
        num_pages = checksums.count(None) * (self._sector_bytes // _PAGE_BYTES)
        begin, end = self._entry_at(sectors.start), self._entry_at(sectors.stop)
        for page in range(begin // _PAGE_BYTES * _PAGE_BYTES, end, _PAGE_BYTES):
            num_pages += not any(self._read(_PAGE_BYTES, page))
        return num_pages * _PAGE_COST

    def _entry_at(self, sector: int) -> int:
        return self._table_at + _TABLE_AT + 8 * sector

    def _check(self, sector: int, checksum: int) -> int:
        """Tells a checksum that was written from any other bytes, and from that of another sector
        or version.
        """
        return int(crc32c(struct.pack("<QI", sector, checksum), self._seed))

    def _each_sector(self, data: memoryview) -> Iterator[memoryview]:
        size = self._sector_bytes
        return (data[at : at + size] for at in range(0, len(data), size))

    def _read(self, num_bytes: int, offset: int) -> bytes:
        """Bytes; fewer where the file was cut, or the disk fails: what cannot be read is not
        there.
        """
        try:
            return os.pread(self._fd, num_bytes, offset)
        except OSError:
            return b""


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


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


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _entries(folder: str) -> list[str]:
    """What a folder has of ours: names that are hashes."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [entry.path for entry in os.scandir(folder) if _NAME.fullmatch(entry.name)]
    return []


def _disk_bytes(path: str) -> int:
    """What a copy takes on the disk, with what the file system needs to know its holes."""
    size = os.stat(path).st_blocks * 512
    return size + size // _PAGE_BYTES * (_PAGE_COST - _PAGE_BYTES)


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
        disk_bytes: That their copies take on the disk.
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
    """Remove all copies of a folder, also while others use it: they begin anew.

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
