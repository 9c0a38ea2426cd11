"""Ranges of remote files, and answers of storages about files, many at once: requests made by threads
of this process, which take them in turn.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError, RemoteError
from torch_tfrecord.files import Access, RemoteInfo
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.remote.disk_cache import DiskCache, Finish
from torch_tfrecord.remote.store import FileRange, RemotePart, Store, StoreError
from torch_tfrecord.remote.stores import fsspec_store_of, store_of
from torch_tfrecord.shown import without_secrets

__all__ = [
    "MOST_ATTEMPTS",
    "Job",
    "Started",
    "Transfer",
    "begin_range",
    "fetch",
    "forget",
    "info_job",
    "listing",
    "read_into",
    "start_info",
]

# fsspec's number, too; more are in each other's way on two processors (measured).
_MOST_REQUESTS = 128
_CALM_SECONDS = 60.0  # after a refusal: half as many

MOST_ATTEMPTS = 6
_FIRST_WAIT = 0.1  # seconds, then twice as long each time, each a random part of it at least a half
_LONGEST_WAIT = 10.0
_MOST_RETRY_AFTER = 60.0
_REFUSALS = (429, 503)
_FORBIDDEN = (401, 403)
_OTHER_FILE = (412, 416)
_RANDOM = random.SystemRandom()  # the user's random state is not ours
_ERROR_NUMBERS = {IsADirectoryError: errno.EISDIR, NotADirectoryError: errno.ENOTDIR}


def _ask(state: _State, job: Job, on_refusal: Callable[[], None]) -> object:
    """The answer to a job, asked again after errors that pass; None where nobody wants it any more.

    Raises:
        FileNotFoundError, PermissionError: As the storage says.
        CorruptRecordError: The file is another one than before.
        RemoteError: No good answer, after all attempts where that could help; names path, part,
            status, attempts.
    """
    store, name = state.store_of(job.path)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        try:
            return job.call(store, name)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            code = _ERROR_NUMBERS.get(type(error), errno.ENOENT)
            raise OSError(code, os.strerror(code), without_secrets(job.path)) from None
        except PermissionError:
            raise _forbidden(job.what, without_secrets(job.path)) from None
        except StoreError as error:
            if not error.is_passing or attempt == MOST_ATTEMPTS:
                raise _final(error, without_secrets(job.path), job.what, attempt) from None
            if error.status in _REFUSALS:
                on_refusal()
            seconds = min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT)
            # Else those refused together would come again together.
            seconds *= _RANDOM.uniform(0.5, 1.0)
            if state.wait(max(seconds, min(error.retry_after or 0.0, _MOST_RETRY_AFTER))):
                return None
    return None


def _forbidden(what: str, path: str) -> PermissionError:
    return PermissionError(errno.EACCES, f"the storage forbids it ({what})", path)


def _final(error: StoreError, path: str, what: str, attempts: int) -> Exception:
    if error.status in _FORBIDDEN:
        return _forbidden(f"{what}, {error.reason}", path)
    if error.status in _OTHER_FILE:
        text = f"expected the file that was opened, got another one in its place ({what}, {error.reason})"
        return CorruptRecordError(text, path=path)
    times = f"{attempts} attempt{'s' if attempts > 1 else ''}"
    return RemoteError(f"{what}: {error.reason} ({times})", path=path).answered(
        error.status, attempts
    )


_MOST_BYTES = 1 << 28  # in flight
_IDLE_SECONDS = 10.0
_EXIT_SECONDS = 1.0  # which requests in flight have to end, before Python ends in the midst of them


class Job(NamedTuple):
    """One request.

    Attributes:
        path: Whose storage is asked.
        what: Which part of it, for errors.
        num_bytes: That will come.
        call: Asks the store, by the name there, once.
    """

    path: str
    what: str
    num_bytes: int
    call: Callable[[Store, str], Any]


class Transfer:
    """Several requests, and what has come of them. Dropped, it begins none of them any more."""

    def __init__(self, jobs: Sequence[Job], access: Access) -> None:
        self._jobs, self._access = jobs, access
        self._begin()

    def _begin(self) -> None:
        self._state, self._pid = _State(len(self._jobs), self._access), os.getpid()
        _ENGINE.get().add(self._state, self._jobs)

    def answers(self) -> list[Any]:
        """All answers, in the order of the jobs.

        Raises:
            The error of the job that failed first.
        """
        if self._pid != os.getpid():  # what was under way is so in the process that forked
            self._begin()
        self._state.wait()
        if self._state.error is not None:
            raise self._state.error
        return self._state.answers

    def end(self) -> None:
        """Wait for the requests that are under way; none begins any more."""
        self._state.end()

    def wait(self, seconds: float) -> bool:
        """Whether all answers, or an error, are there, within so many seconds."""
        return self._state.wait(seconds)

    @property
    def is_good(self) -> bool:
        """Whether all answers are there."""
        return not self._state.num_open

    @property
    def has_failed(self) -> bool:
        """Whether one of them did."""
        return self._state.error is not None

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self._state.is_ended = True  # without the lock, which this thread may hold
        except AttributeError:  # after an __init__ that failed
            pass


class _State:
    """State that a transfer and the threads share."""

    def __init__(self, num_jobs: int, access: Access) -> None:
        self.access = access
        self.answers: list[Any] = [None] * num_jobs
        self.num_open, self.num_running = num_jobs, 0
        self.error: BaseException | None = None
        self.is_ended = not num_jobs  # all answers are there, or nobody wants them any more
        self._changed = threading.Condition(threading.Lock())
        self._stores: dict[str, tuple[Store, str]] = {}  # by path

    def store_of(self, path: str) -> tuple[Store, str]:
        """`stores.store_of`, which takes as long as some answers: once for each file."""
        found = self._stores.get(path)
        if found is None:
            found = self._stores[path] = store_of(path, self.access)
        return found

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_ended, seconds)

    def begin(self) -> bool:
        """Whether a request is still wanted, which then is under way up to `put` or `fail`."""
        with self._changed:
            self.num_running += not self.is_ended
            return not self.is_ended

    def put(self, number: int, answer: Any) -> None:
        with self._changed:
            self.answers[number] = answer
            self.num_open -= 1
            self._note(is_last=not self.num_open)

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._note(is_last=True)

    def _note(self, *, is_last: bool) -> None:
        self.num_running -= 1
        self.is_ended = self.is_ended or is_last
        if self.is_ended:
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self.is_ended = True
            self._changed.wait_for(lambda: not self.num_running)


class _Engine:
    """The threads of a process."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[_State, Job, int]] = deque()
        self._calm_until = 0.0
        self._num_running = self._num_waiting = self._num_bytes = 0
        self._is_ended = False
        atexit.unregister(_end)  # a forked process has it from its parent
        atexit.register(_end)

    def add(self, state: _State, jobs: Sequence[Job]) -> None:
        """As many threads as may run begin to."""
        with self._changed:
            self._tasks.extend((state, job, number) for number, job in enumerate(jobs))
            wanted = min(len(self._tasks), self._limit - self._num_running)
            if wanted > 0 and self._num_waiting:
                self._changed.notify(wanted)
            for _ in range(wanted - self._num_waiting):
                self._num_waiting += 1  # it takes a task first
                threading.Thread(target=self._run, name="tfrecord-remote", daemon=True).start()

    @property
    def _limit(self) -> int:
        return _MOST_REQUESTS // 2 if monotonic() < self._calm_until else _MOST_REQUESTS

    def _run(self) -> None:
        done: Job | None = None
        while (task := self._next(done)) is not None:
            state, done, number = task
            try:
                if state.begin():
                    state.put(number, _ask(state, done, self._refused))
            except BaseException as error:
                state.fail(error)
            del task, state  # a transfer that was dropped ends although this thread waits

    def _next(self, done: Job | None) -> tuple[_State, Job, int] | None:
        """The next task, in its turn, after one that is done; None where there was none for a
        while.
        """
        with self._changed:  # once for both: all threads want this lock
            if done is not None:
                self._num_running -= 1
                self._num_bytes -= done.num_bytes
                self._num_waiting += 1
                if self._is_ended:
                    self._changed.notify_all()
            is_late = False
            while not self._may_run():
                if is_late or self._is_ended:
                    self._num_waiting -= 1
                    return None
                is_late = not self._changed.wait(_IDLE_SECONDS)
            task = self._tasks.popleft()
            self._num_waiting -= 1
            self._num_running += 1
            self._num_bytes += task[1].num_bytes
            return task

    def _may_run(self) -> bool:
        """Whether the next task that somebody wants may begin; the lock is held."""
        while self._tasks and self._tasks[0][0].is_ended:
            self._tasks.popleft()
        if not self._tasks or self._num_running >= self._limit:
            return False
        # alone, what is larger than all
        num_bytes = self._num_bytes + self._tasks[0][1].num_bytes
        return not self._num_running or num_bytes <= _MOST_BYTES

    def _refused(self) -> None:
        self._calm_until = monotonic() + _CALM_SECONDS

    def end(self) -> None:
        """Begin nothing more, and give what is in flight a moment."""
        with self._changed:
            self._is_ended = True
            self._tasks.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._num_running, _EXIT_SECONDS)


_ENGINE = PerProcess(_Engine)  # threads do not come along through a fork


def _end() -> None:
    _ENGINE.get().end()


_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

_LARGEST_PIECE = 8 << 20
# takes as long as the answer's first byte, at the speed of one connection of a storage
_SMALLEST_PIECE = 1 << 20
_SHOWN_AFTER = 1.0  # seconds: that something is listed
_FEWEST_REQUESTS = 16  # that a read is split into, unless its pieces would be smaller


def start_info(path: str, access: Access) -> Transfer:
    """Begin to ask what a storage says of a file.

    Raises:
        FileNotFoundError, PermissionError, RemoteError: `answers` does, where it cannot be told.
    """
    return Transfer([info_job(path)], access)


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


def info_job(path: str, *, if_there: bool = False) -> Job:
    """The request of a storage's answer about a file; with `if_there` None where it is not there."""

    def call(store: Store, name: str) -> RemoteInfo | None:
        with contextlib.suppress(*[FileNotFoundError] * if_there):
            return store.info(name)
        return None

    return Job(path, "its size", 0, call)


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
        count = max(1, round((end - begin) / size))
        borders = [begin + (end - begin) * i // count for i in range(count + 1)]
        pieces += [(number, FileRange(file, *pair)) for pair in pairwise(borders)]
    return pieces


class Started:
    """A read of ranges of any files, that was begun, all at once; what the cache has is not asked
    for.

    Args:
        ranges: What is read.
        access: How it is reached.
        piece_bytes: Size of each request; None for as few as are quick.
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
