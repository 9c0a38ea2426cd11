"""A cache of remote files on a local disk: read through it, and what was read before comes without
a request.

Many processes share one folder. A full cache keeps what it has: each epoch reads all data once, so
that whatever came in would push out what is needed just as soon; to drop what was used least
recently would drop everything before it is needed again. Only old versions of files, and data that
nobody has read for ten minutes, give way.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch_tfrecord.arguments import at_least
from torch_tfrecord.errors import outer_level
from torch_tfrecord.files.block_file import LEAST_BYTES, BlockFile, existing
from torch_tfrecord.files.block_table import BlockTable, digest
from torch_tfrecord.files.cached_read import CachedFile, CachedRead, Fetch, Range
from torch_tfrecord.shown import printable

__all__ = ["BlockCache", "CacheInfo", "CachedFile", "Range", "Reading", "cache_info", "clear_cache"]

_TOUCH_SECONDS = 30.0
_ASIDE_SECONDS = 60.0
_MOST_RESERVE_BYTES = 1 << 30
_RESERVE_SHARE = 50  # of the disk: one part of so many is left to those who need it more


class BlockCache:
    """Reads ranges of remote files, and keeps their blocks in a folder.

    May be pickled and forked: each process opens the folder itself when it first reads. Safe from
    threads. Whatever goes wrong on the disk costs a request and never a wrong byte: the cache says
    it once and stands aside.

    Args:
        folder: On a disk of this machine; made with the permissions 0700 where it is missing.
        max_bytes: The folder's cap, for all its users together; see `BlockFile`.
        group: Names what is used together, such as a data set: its blocks are in use as long as one
            of them is.

    Raises:
        ValueError: `max_bytes` is below 16 KiB.
    """

    def __init__(
        self, folder: str | os.PathLike[str], max_bytes: int | None = None, *, group: str = ""
    ) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        self._max_bytes = (
            None if max_bytes is None else at_least(LEAST_BYTES, "cache_bytes", max_bytes)
        )
        self._group = digest(group)
        self._state = _State()

    @property
    def hit_bytes(self) -> int:
        """Bytes that came from the cache, in this process."""
        return self._state.hit_bytes

    @property
    def fetched_bytes(self) -> int:
        """Bytes that were fetched by it."""
        return self._state.fetched_bytes

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
        table = self._table()
        if table is None:
            return Reading(ranges, None, self._finished)
        read, may_write = CachedRead(table, ranges), self._may_write(table)
        if may_write:
            with self._standing_aside():
                read.claim()
        return Reading(read.missing(), read, partial(self._finished, may_write=may_write))

    def _finished(self, read: CachedRead, may_write: bool = False) -> None:
        state = self._state
        with state.lock:
            state.hit_bytes += read.hit_bytes
            state.fetched_bytes += read.fetched_bytes
            state.groups |= read.groups
        with self._standing_aside():
            if may_write:
                read.keep()
            self._touch(read.table)

    def forget(self, ranges: Sequence[Range]) -> bool:
        """Drop what is kept of some ranges, whose bytes are not what they should be; whether any of
        it was.
        """
        table = self._table()
        if table is not None:
            with self._standing_aside():
                return CachedRead(table, ranges).forget()
        return False

    def _table(self) -> BlockTable | None:
        """The open folder; None where it cannot be used."""
        state = self._state
        if state.pid != os.getpid():  # a fork may have copied a lock that another thread held
            state = self._state = _State()
        with state.lock:
            if state.table is not None and state.table.file.is_current():
                return state.table
            state.table = None
            if state.closed_until < time.monotonic():
                state.closed_until = time.monotonic() + _ASIDE_SECONDS
                with self._standing_aside():
                    state.table = BlockTable(BlockFile(self.folder, self._max_bytes), self._group)
                    state.closed_until = 0.0
            return state.table

    def _may_write(self, table: BlockTable) -> bool:
        state = self._state
        if state.aside_until > time.monotonic():
            return False
        with self._standing_aside():
            free_bytes, disk_bytes = table.file.free_bytes()
            if free_bytes >= min(_MOST_RESERVE_BYTES, disk_bytes // _RESERVE_SHARE):
                return True
            self._warn(self.folder, f"the disk is nearly full, {free_bytes} bytes are left")
        return False

    def _standing_aside(self) -> _StandingAside:
        return _StandingAside(self._stand_aside)

    def _stand_aside(self, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # it was cleared meanwhile
            return
        self._state.aside_until = time.monotonic() + _ASIDE_SECONDS
        if not isinstance(error, BlockingIOError):  # others hold it for long
            self._warn(error.filename or self.folder, error.strerror or type(error).__name__)

    def _warn(self, path: str, reason: str) -> None:
        if not self._state.is_warned:
            self._state.is_warned = True
            text = f"{printable(path)}: {reason}: remote data is read, but no more of it is cached"
            warnings.warn(text, stacklevel=outer_level())

    def _touch(self, table: BlockTable) -> None:
        """Say now and then what is in use, and how much came from the cache."""
        state = self._state
        with state.lock:
            if state.touched_at + _TOUCH_SECONDS > time.monotonic():
                return
            state.touched_at = time.monotonic()
            groups, state.groups = state.groups | {self._group}, set()
            total = state.hit_bytes, state.fetched_bytes
            counts, state.counted = (
                (total[0] - state.counted[0], total[1] - state.counted[1]),
                total,
            )
        with table.file.locked():
            table.touch(groups)
            table.count(*counts)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_state": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._state = _State()


class Reading:
    """A read that was begun.

    Args:
        missing: What must be fetched. What will be kept stands there with the sectors around it,
            all else exactly.
        read: What is there; None where there is no cache.
        finished: Keeps what was fetched.
    """

    def __init__(
        self,
        missing: Sequence[Range],
        read: CachedRead | None,
        finished: Callable[[CachedRead], None],
    ) -> None:
        self.missing = missing
        self._read, self._finished = read, finished

    def finish(self, fetched: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """The bytes of each range that is read, from those of what was missing."""
        if self._read is None:
            return list(fetched)
        self._read.take(self.missing, fetched)
        self._finished(self._read)
        return self._read.results()


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


class _State:
    """What belongs to one process, replaced as a whole."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.table: BlockTable | None = None
        self.closed_until = self.aside_until = 0.0
        self.touched_at = float("-inf")
        self.hit_bytes = self.fetched_bytes = 0
        self.counted = 0, 0
        self.groups: set[bytes] = set()
        self.is_warned = False


class CacheInfo(NamedTuple):
    """What a folder holds.

    Attributes:
        max_bytes: The folder's cap.
        num_blocks: Slots in use.
        most_blocks: Slots that there are.
        held_bytes: In the blocks.
        disk_bytes: That the file takes on the disk.
        hit_bytes: That came from the cache, over all processes, up to half a minute ago.
        fetched_bytes: That were fetched.
    """

    max_bytes: int
    num_blocks: int
    most_blocks: int
    held_bytes: int
    disk_bytes: int
    hit_bytes: int
    fetched_bytes: int


def cache_info(folder: str | os.PathLike[str]) -> CacheInfo | None:
    """What a folder holds; None where it holds no cache.

    Raises:
        OSError: it cannot be read.
    """
    file = existing(os.fspath(folder))
    if file is None:
        return None
    table, layout = BlockTable(file, digest("")), file.geometry
    held = [entry.held.bit_count() for entry in table.entries()]
    hits, misses = table.counts()
    size = sum(held) * layout.sector_bytes
    return CacheInfo(
        layout.max_bytes, len(held), layout.num_slots, size, file.disk_bytes(), hits, misses
    )


def clear_cache(folder: str | os.PathLike[str]) -> None:
    """Remove all blocks of a folder, also while others use it: they begin anew.

    Raises:
        OSError: it cannot be done.
    """
    file = existing(os.fspath(folder))
    if file is not None:
        file.clear()
