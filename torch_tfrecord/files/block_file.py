"""The file that holds cached blocks of remote files: its layout, its cap, its lock.

::

    4 KiB                  header: magic, generation, cap, checksum; counts; when each group was used
    num_slots x slot       data: a slot holds one aligned block of a file, or those sectors of it that were asked for
    num_slots x 16         keys: which block each slot holds; zeros where it is free
    num_slots x entry      entries: file, version and group of the block; its sectors, each with a CRC-32C

The file has its full size from the beginning, so that no account is needed to stay below the cap;
what is not written is a hole, which takes no space. Everything that is read is checked, so that a
process may be killed anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

__all__ = [
    "FILE_NAME",
    "HEADER_BYTES",
    "LEAST_BYTES",
    "USERS_NAME",
    "BlockFile",
    "Geometry",
    "existing",
    "geometry_of",
]

FILE_NAME = "torch_tfrecord.blocks"
USERS_NAME = "torch_tfrecord.users"
LEAST_BYTES = 1 << 14
HEADER_BYTES = 1 << 12

_MAGIC = b"tfrecord blocks1"
_HEADER = struct.Struct("<16s8sQI")
_PAGE_BYTES = 1 << 12
_FEWEST_SLOTS = 512  # unless they were too small: the end of each file takes a slot of its own
_MOST_WAYS = 64  # measured: so wide, sets of which a block may take one of two are 0.97 full before one has no room
_LEAST_SLOT_BYTES, _MOST_SLOT_BYTES = 1 << 12, 1 << 20
_LEAST_SECTOR_BYTES = 1 << 10
_MOST_SECTORS = 64
_KEY_BYTES = 16
_ENTRY_BYTES = 52  # and 4 for each sector
_DEFAULT_SHARE = 10  # of the free space: one part of so many
_LOCK_SECONDS = 2.0
_LOCK_WAIT_SECONDS = 0.0005


class Geometry(NamedTuple):
    """Where everything lies, which follows from the cap alone.

    A block may lie in one of two sets of slots.
    """

    max_bytes: int
    slot_bytes: int
    sector_bytes: int
    num_sets: int
    ways: int

    @property
    def num_slots(self) -> int:
        """Blocks that the file has room for."""
        return self.num_sets * self.ways

    @property
    def num_sectors(self) -> int:
        """Of a slot."""
        return self.slot_bytes // self.sector_bytes

    @property
    def keys_at(self) -> int:
        """First byte of the keys."""
        return HEADER_BYTES + self.num_slots * self.slot_bytes

    @property
    def entries_at(self) -> int:
        """First byte of the entries."""
        return self.keys_at + self.num_slots * _KEY_BYTES

    @property
    def entry_bytes(self) -> int:
        """Of one entry."""
        return _ENTRY_BYTES + 4 * self.num_sectors

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return self.entries_at + self.num_slots * self.entry_bytes


def geometry_of(max_bytes: int) -> Geometry:
    """The layout below a cap: slots of 1 MiB with sectors of 16 KiB, both smaller below 512 MiB."""
    slot = min(
        max(1 << (max_bytes // _FEWEST_SLOTS).bit_length() - 1, _LEAST_SLOT_BYTES), _MOST_SLOT_BYTES
    )
    sector = max(slot // _MOST_SECTORS, _LEAST_SECTOR_BYTES)
    each = slot + _KEY_BYTES + _ENTRY_BYTES + 4 * (slot // sector)
    # The disk has pages, and the file system's own table of a file with many holes takes space,
    # too.
    num_slots = (max_bytes // _PAGE_BYTES * _PAGE_BYTES - HEADER_BYTES - max_bytes // 512) // each
    num_sets = -(-num_slots // _MOST_WAYS)
    return Geometry(max_bytes, slot, sector, num_sets, num_slots // num_sets)


class BlockFile:
    """The open file of one process; safe from threads, not for use after a fork.

    The cap is the folder's: while several have it open the smallest that one of them gave holds;
    who has it open alone may raise it. Another cap begins with an empty file.

    Args:
        folder: Made with the permissions 0700 where it is missing.
        max_bytes: The cap; None for that of the folder, or where it has none for a tenth of the
            disk's free space.

    Raises:
        OSError: it cannot be opened, is not a cache of this user's, or the file system has no
            locks.
    """

    def __init__(self, folder: str, max_bytes: int | None) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._fd = self._users = -1
        _make_folder(folder)
        self._fd = _open_own(os.path.join(folder, FILE_NAME))
        self._users = _open_own(os.path.join(folder, USERS_NAME))
        with self.locked(checked=False):
            self.geometry, self._generation = self._agree(max_bytes)

    def __del__(self) -> None:
        for fd in (self._fd, self._users):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def is_current(self) -> bool:
        """Whether the file is in its place still, with the layout of when it was opened."""
        with contextlib.suppress(OSError):
            return os.fstat(self._fd).st_nlink > 0 and _header(self._fd) == (
                self.geometry.max_bytes,
                self._generation,
            )
        return False

    @contextlib.contextmanager
    def locked(self, *, checked: bool = True) -> Iterator[None]:
        """Nobody else changes the file meanwhile.

        Raises:
            BlockingIOError: others held it for too long; the cache is not worth waiting for.
            FileNotFoundError: it is no longer the file that was opened.
        """
        until = time.monotonic() + _LOCK_SECONDS
        if not self._lock.acquire(timeout=_LOCK_SECONDS):
            raise BlockingIOError(errno.EAGAIN, "locked by another thread", self.folder)
        try:
            while not _try_lock(self._fd, fcntl.LOCK_EX):
                if time.monotonic() > until:
                    raise BlockingIOError(errno.EAGAIN, "locked by another process", self.folder)
                time.sleep(_LOCK_WAIT_SECONDS)
            try:
                if checked and not self.is_current():
                    raise FileNotFoundError(
                        errno.ENOENT, "cleared, or given another cap", self.folder
                    )
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._lock.release()

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Bytes of the file; fewer where it was cut, or the disk fails: what cannot be read is not
        there.
        """
        try:
            return os.pread(self._fd, num_bytes, offset)
        except OSError:
            return b""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, offset)
            view, offset = view[done:], offset + done

    def free_bytes(self) -> tuple[int, int]:
        """What the disk has left, and what it has in all."""
        disk = os.fstatvfs(self._fd)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def disk_bytes(self) -> int:
        """What the file takes on the disk."""
        return os.fstat(self._fd).st_blocks * 512

    def _agree(self, wanted: int | None) -> tuple[Geometry, bytes]:
        kept = _header(self._fd)
        is_alone = _try_lock(self._users, fcntl.LOCK_EX)
        _try_lock(self._users, fcntl.LOCK_SH)
        if kept is not None:
            geometry = geometry_of(kept[0])
            is_whole = os.fstat(self._fd).st_size == geometry.file_bytes
            if is_whole and (wanted in (None, kept[0]) or (wanted > kept[0] and not is_alone)):
                return geometry, kept[1]
            wanted = wanted or kept[0]
        return self._format(wanted or max(self.free_bytes()[0] // _DEFAULT_SHARE, LEAST_BYTES))

    def _format(self, max_bytes: int) -> tuple[Geometry, bytes]:
        geometry, generation = geometry_of(max_bytes), os.urandom(8)
        os.ftruncate(self._fd, 0)
        header = _HEADER.pack(_MAGIC, generation, max_bytes, 0)[:-4]
        # first: without it nobody would know the file
        self.write(header + crc32c(header).to_bytes(4, "little"), 0)
        os.ftruncate(self._fd, geometry.file_bytes)
        return geometry, generation

    def clear(self) -> None:
        """Give all space back, and remove the files; who has them open begins anew."""
        with self.locked(checked=False):
            os.ftruncate(self._fd, 0)
            for name in (FILE_NAME, USERS_NAME):
                Path(self.folder, name).unlink(missing_ok=True)


def existing(folder: str) -> BlockFile | None:
    """The file of a folder; None where there is none."""
    return BlockFile(folder, None) if os.path.exists(os.path.join(folder, FILE_NAME)) else None


def _header(fd: int) -> tuple[int, bytes] | None:
    """The cap and the generation; None where there is no good header."""
    data = os.pread(fd, _HEADER.size, 0)
    if len(data) < _HEADER.size:
        return None
    magic, generation, max_bytes, checksum = _HEADER.unpack(data)
    return (max_bytes, generation) if magic == _MAGIC and checksum == crc32c(data[:-4]) else None


def _make_folder(folder: str) -> None:
    Path(folder).parent.mkdir(parents=True, exist_ok=True)
    Path(folder).mkdir(mode=0o700, exist_ok=True)


def _open_own(path: str) -> int:
    """A file of this user's, as what another one can write is nothing to believe, which is new or
    bears our mark.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    status, problem = os.fstat(fd), ""
    if status.st_uid != os.geteuid():
        problem = "expected a file of this user's, got somebody else's"
    elif (
        status.st_nlink > 1
        or not stat.S_ISREG(status.st_mode)
        or os.pread(fd, len(_MAGIC), 0) not in (b"", _MAGIC)
    ):
        problem = (
            "expected nothing or a cache of blocks, got another file, or one with a second name"
        )
    if problem:
        os.close(fd)
        raise FileExistsError(errno.EEXIST, problem, path)
    return fd


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
