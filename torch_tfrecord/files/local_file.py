"""Local files, read by pread: few are open for any number of sources and threads, closed when others
need one, and reopened.

They are never memory-mapped: a file that is cut while mapped kills the process with SIGBUS, which
Python cannot catch. Reads name their offset, so there is no file position to share between threads
or after a fork.

A limit of 32 open files must be enough for thousands of shards, so a reader keeps a descriptor only
while it reads. Its other state (offsets, a decompressor) is kept, as every read names its offset.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import NO_INTS, Ints, scratch_bytes
from torch_tfrecord.errors import CorruptRecordError, name_path, os_error
from torch_tfrecord.files.storage import FileSource, ReadTogether, truncated
from torch_tfrecord.native import native_module
from torch_tfrecord.per_process import PerProcess

if TYPE_CHECKING:
    from torch_tfrecord.native.jobs import Job

__all__ = ["Descriptor", "LocalFile", "open_path", "read_pieces"]

_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

_Opened = TypeVar("_Opened")
_Path = TypeVar("_Path", bound="str | os.PathLike[str]")
_Rest = ParamSpec("_Rest")

_SourceOf: TypeAlias = "Callable[[int], FileSource]"
"""Opens the file of a number, or finds it open."""

_FEWEST_OPEN = 4  # without a look at the limit
_MOST_OPEN = 256
# One range is at most this long, plus one piece.
_WINDOW_BYTES = 1 << 24
# Above this, a length in an index may be wrong, and must not allocate memory before the file sizes
# are known.
_MOST_BYTES = 1 << 30
_WAIT_SECONDS = 0.001
_MOST_WAITS = 2000  # then open one more: the others may be held by exceptions that somebody keeps
_MAX_READ_BYTES = 0x7FFF_F000  # Linux transfers at most this much in one call
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
_HEADER_BYTES, _FOOTER_BYTES = 12, 4  # around a payload


class Owner(Protocol):
    """An object that keeps a descriptor between reads, but can do without."""

    _held: Descriptor | None


class Descriptor:
    """A place among the open files, closed with its last reference: a reader keeps one until the
    read has ended.

    Attributes:
        number: The file descriptor; -1 before `open`.
        holds: Keeps a file open in place of the number, where another package opens it.
    """

    __slots__ = ("__weakref__", "_pool", "holds", "number")

    def __init__(self, pool: _Pool) -> None:
        self.number = -1
        self.holds: Any = None
        self._pool = pool
        pool.alive.add(id(self))

    @staticmethod
    def reserve(owner: Owner) -> Descriptor:
        """One that is not open yet; waits where readers hold all of them.

        Args:
            owner: Keeps it as `_held`, which may later become None.
        """
        pool, waits = _POOL.get(), 0
        while (held := pool.reserve(owner, is_over=waits == _MOST_WAITS)) is None:
            time.sleep(_WAIT_SECONDS)
            waits += 1
        return held

    def open(self, path: str) -> Descriptor:
        """Open a file for reading, without blocking on a FIFO.

        Raises:
            OSError: See `open_path`.
        """
        self.number = open_path(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return self

    # No finalizer of the package uses a global: when Python ends, they are None.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:
            try:  # noqa: SIM105
                close(self.number)
            except OSError:
                pass
        # without the lock, as the garbage collector may call this anywhere
        self._pool.alive.discard(id(self))


class _Pool:
    """The descriptors of one process."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self._lock = threading.Lock()
        # The one that was opened first is closed first.
        self._owners: deque[tuple[weakref.ref[Owner], weakref.ref[Descriptor]]] = deque()

    def reserve(self, owner: Owner, *, is_over: bool = False) -> Descriptor | None:
        """A descriptor that is not open yet; None if readers hold all of them, unless it may be one
        more.
        """
        with self._lock:
            num_open = len(self.alive)
            # The limit is asked for only above the fewest.
            is_full = num_open >= _FEWEST_OPEN and num_open >= _most_open()
            if is_full and not is_over and not self._close_one():
                return None
            if len(self._owners) > 4 * _MOST_OPEN:  # most of them are closed
                self._owners = deque(pair for pair in self._owners if pair[1]() is not None)
            held = Descriptor(self)
            self._owners.append((weakref.ref(owner), weakref.ref(held)))
            return held

    def _close_one(self) -> bool:
        """Take a descriptor from its owner; False if all are being read from."""
        for _ in range(len(self._owners)):
            pair = self._owners.popleft()
            owner, held = pair[0](), pair[1]()
            if held is None:
                continue
            if owner is not None and owner._held is held:
                before = len(self.alive)
                owner._held = held = None
                if len(self.alive) < before:
                    return True
            self._owners.append(pair)  # being opened, or read
        return False

    def close_all(self) -> None:
        """Take the descriptors from all owners."""
        with self._lock:
            while self._close_one():
                pass


# A fork may have copied a lock held by another thread, and descriptors in use.
_POOL = PerProcess(_Pool)


def open_path(
    function: Callable[Concatenate[_Path, _Rest], _Opened],
    path: _Path,
    *arguments: _Rest.args,
    **options: _Rest.kwargs,
) -> _Opened:
    """Call a function that opens a path; if too many files are open, close those that nobody reads
    and retry.

    Raises:
        OSError: See the function; if the process still has too many open files, the error names the
            limit.

    Example:
        >>> open_path(os.listdir, "/dev/fd")  # doctest: +SKIP
    """
    try:
        return function(path, *arguments, **options)
    except OSError as error:
        if error.errno not in _TOO_MANY:
            raise
    # Ours are the only ones that we may close.
    _POOL.get().close_all()
    try:
        return function(path, *arguments, **options)
    except OSError as error:
        if error.errno not in _TOO_MANY:
            raise
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = (
            f"this process may open {soft_limit}: RLIMIT_NOFILE, `ulimit -n`, up to {hard_limit}"
        )
        raise OSError(error.errno, f"{os.strerror(error.errno)} ({limit})", str(path)) from error


def _most_open() -> int:
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_FEWEST_OPEN, min(_MOST_OPEN, (soft_limit if soft_limit > 0 else 1024) // 4))


class LocalFile(FileSource):
    """A regular file of this machine, closed when the last reference goes, or others need the
    descriptor: see `hold`.

    Raises:
        OSError: as `open` does, always with the path; also for what is no regular file, without
            waiting on a FIFO.
    """

    chunk_bytes = 1 << 19  # measured: larger chunks leave the processor's cache
    max_gap_bytes = 1 << 12  # copying 4 KiB costs as much as a call

    def __init__(self, path: str) -> None:
        self.path = path
        self._place = os.path.abspath(path)  # the folder may be another one when it is opened again
        self._held: Descriptor | None = None
        held = Descriptor.reserve(self).open(path)
        status = os.fstat(held.number)
        if stat.S_ISDIR(status.st_mode):
            raise os_error(errno.EISDIR, path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(
                errno.EINVAL, "expected a regular file, got a pipe, socket or device", path
            )
        self.size = self.file_size = status.st_size
        self.mtime_ns = status.st_mtime_ns
        self._identity = status.st_dev, status.st_ino
        self._held = held

    def hold(self) -> Descriptor:
        """The open file, for one read: it is not closed while its caller keeps this."""
        return self._opened(self._held or Descriptor.reserve(self))

    def hold_if_free(self) -> Descriptor | None:
        """As `hold`, for callers that hold some already, two of which could wait for each other for
        ever; None where too many are open.
        """
        held = self._held or _POOL.get().reserve(self)
        return None if held is None else self._opened(held)

    def _opened(self, held: Descriptor) -> Descriptor:
        """A descriptor of the file; opened again if others have needed the one of before."""
        if held.number < 0:
            with name_path(self.path):
                status = os.fstat(held.open(self._place).number)
            is_same = (status.st_dev, status.st_ino) == self._identity
            # Some network file systems give a file another number each time.
            facts = status.st_size, status.st_mtime_ns
            if not is_same and facts != (self.file_size, self.mtime_ns):
                raise CorruptRecordError(
                    "expected the file that was opened, got another one in its place",
                    path=self.path,
                )
            self._held = held
        return held

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a writable buffer of bytes from `offset` on; how many came, fewer only at the end of
        the file.
        """
        wanted, done = min(len(buffer), self.file_size - offset), 0
        held = self.hold() if wanted > 0 else None
        try:
            while held is not None and done < wanted:
                part = buffer[done : min(wanted, done + _MAX_READ_BYTES)]
                got = os.preadv(held.number, [part], offset + done)
                if not got:
                    break
                done += got
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            del held
        return done

    def read_record(self, offset: int, length: int, *, verify_crc: bool) -> bytes | None:
        """Payload of the record at `offset`, where there is a good one of that length; None in any
        doubt.

        A short cut: who gets None reads again, and finds what is wrong.
        """
        native = native_module("frames")
        if native is None or offset < 0 or length > self.file_size - offset:
            return None
        held = self._held or self.hold()
        return native.read_record(held.number, offset, length, verify_crc)

    @staticmethod
    def read_records(
        source_of: _SourceOf,
        files: Ints,
        offsets: Ints,
        lengths: Ints,
        *,
        verify_crc: bool,
    ) -> tuple[_Bytes, Ints, Job] | None:
        """The short cut for records of local files: a job of the compiled core that reads and
        checks them.

        Returns:
            The buffer, where each payload begins in it, and the job that reads them; None if in any
            doubt, as is the job that does not succeed: who reads again finds the error.
        """
        native = native_module("frames")
        if native is None:
            return None
        numbers = np.empty((5, len(files)), np.int64)
        ranges, places = numbers[:4], numbers[4]
        gap = LocalFile.max_gap_bytes
        around = _HEADER_BYTES, _FOOTER_BYTES
        plan = native.plan_reads(
            files, offsets, lengths, *around, gap, _WINDOW_BYTES, ranges, places
        )
        if plan is None or plan[1] > _MOST_BYTES:
            return None
        num_ranges, num_bytes, files_read = plan
        buffer = scratch_bytes(num_bytes)
        job = _job(source_of, files_read, ranges, num_ranges, buffer, places, lengths, verify_crc)
        return None if job is None else (buffer, places, job)


def _is_done(job: Job | None) -> bool:
    """Run a job; whether it succeeded."""
    return job is not None and native_module("jobs").run([job]) == 1  # type: ignore[union-attr]


def _job(
    source_of: _SourceOf,
    files: Sequence[int],
    ranges: Ints,
    num_ranges: int,
    buffer: _Bytes,
    places: Ints = NO_INTS,
    lengths: Ints = NO_INTS,
    verify_crc: bool = False,
) -> Job | None:
    """The job that reads ranges of local files by the compiled core, without the GIL, and checks
    records in them; of more files than may be held open at once, those of the last, and the others
    are read.

    Args:
        source_of, files: The files.
        ranges: int64 [4, M]: number among `files`, first byte, size and place in the buffer.
        num_ranges: How many of them, the first.
        buffer: Receives them.
        places, lengths: int64 [N], of the payloads to check in the buffer.
        verify_crc: Also check their checksums.

    Returns:
        None in any doubt.
    """
    native = native_module("frames")
    if native is None:
        return None
    begin = first = 0
    while True:
        held = _hold(source_of, files[first : first + native.MOST_SOURCES])
        if held is None:
            return None
        last = first + len(held)
        is_end = last >= len(files)
        end = num_ranges if is_end else int(np.searchsorted(ranges[0, :num_ranges], last))
        checked = places if is_end else places[:0]
        job: Job = native.ReadJob(
            held, first, ranges, begin, end, buffer, checked, lengths, verify_crc
        )
        del held
        if is_end:
            return job
        if not _is_done(job):
            return None
        del job  # before waiting for others
        begin, first = end, last


def _hold(source_of: _SourceOf, files: Sequence[int]) -> list[tuple[int, int, Descriptor]] | None:
    """Open as many of the files as allowed, at least one, as a batch may come from thousands;
    return them with sizes, and what keeps each open.

    None if one is not a local file.
    """
    sources = [source_of(file) for file in files]  # create all sources before holding a descriptor
    held: list[tuple[int, int, Descriptor]] = []
    for source in sources:
        if not isinstance(source, LocalFile):
            return None
        descriptor = source.hold_if_free() if held else source.hold()
        if descriptor is None:
            break
        held.append((descriptor.number, source.file_size, descriptor))
    return held


# The one way to the bytes of many ranges of many files: local ones by pread, those of storages all
# at once.


def _plan(files: Ints, offsets: Ints, sizes: Ints, gap: int) -> tuple[Ints, list[int], Ints]:
    """M ranges to read into one buffer, one after the other, and the places of N pieces in it.

    Returns:
        int64 [4, M]: number among the files, first byte, size and place in the buffer of each range;
        the files; int64 [N]: start of each piece in the buffer.
    """
    ranges, places = np.empty((4, len(files)), np.int64), np.empty(len(files), np.int64)
    native = native_module("frames")
    plan = native and native.plan_reads(
        files, offsets, sizes, 0, 0, gap, _WINDOW_BYTES, ranges, places
    )
    if plan:
        return np.ascontiguousarray(ranges[:, : plan[0]]), plan[2], places
    # Each piece by itself, where there is no compiled core or a number is out of range.
    order = np.lexsort((offsets, files))
    numbers, ranges[0] = np.unique(files[order], return_inverse=True)
    ranges[1], ranges[2] = offsets[order], sizes[order]
    places[order] = ranges[3] = np.cumsum(ranges[2]) - ranges[2]
    return ranges, numbers.tolist(), places


def read_pieces(
    source_of: _SourceOf,
    files: Ints,
    offsets: Ints,
    sizes: Ints,
    blocks: ReadTogether | None = None,
    most_gap: int = _MOST_BYTES,
) -> tuple[_Bytes, Ints]:
    """Read pieces of several files, those close together by one call, in any order.

    Args:
        source_of: Opens the file of a number, of known size, or finds it open.
        files: int64 [N]: file number of each piece.
        offsets: int64 [N]: its first byte.
        sizes: int64 [N]: its bytes, which are within the file.
        blocks: Reads files that are read together, in place of `FileSource.together`.
        most_gap: The most bytes between two pieces that are read by one call, if that is less than
            `FileSource.max_gap_bytes`.

    Returns:
        A buffer, and where each piece begins in it: int64 [N].

    Raises:
        CorruptRecordError: A file ends inside a piece.
        OSError, RemoteError: A file cannot be read.
    """
    first = source_of(int(files[0])) if len(files) and blocks is None else None
    ranges, numbers, places = _plan(
        files, offsets, sizes, 0 if first is None else min(first.max_gap_bytes, most_gap)
    )
    num_bytes = int(ranges[2].sum())
    if isinstance(first, LocalFile) and 0 <= num_bytes <= _MOST_BYTES:
        buffer = scratch_bytes(num_bytes)
        if _is_done(_job(source_of, numbers, ranges, ranges.shape[1], buffer)):
            return buffer, places
    edges = ranges[0].searchsorted(range(1, len(numbers)))
    groups = np.split(ranges[1:], edges, axis=1)
    by_file = [(key, source_of(key), own) for key, own in zip(numbers, groups, strict=False)]
    for _, source, group in by_file:  # before anything is allocated for them
        size = source.size or 0
        is_outside = (group < 0).any(0) | (group[1] > size - group[0])
        for begin, count in group[:2, is_outside].T.tolist():
            raise truncated(source.path, begin + count, size)
    buffer = scratch_bytes(num_bytes)
    together: dict[ReadTogether, list[tuple[FileSource, int, int, int, int]]] = {}
    for number, source, group in by_file:
        if source.together is None:
            source.read_ranges(group, buffer.data)
        else:
            wanted = together.setdefault(blocks or source.together, [])
            rows = group.T.tolist()
            wanted += [(source, number, at, at + size, start) for at, size, start in rows]
    for read, wanted in together.items():
        read(wanted, buffer.data)
    return buffer, places
