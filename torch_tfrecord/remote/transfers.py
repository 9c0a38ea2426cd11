"""Ranges of remote files, and answers of storages about files, many at once: requests made by threads
of this process, which take them in turn.
"""

from __future__ import annotations

import atexit
import errno
import functools
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from itertools import count, islice, pairwise
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from torch_tfrecord.errors import CorruptRecordError, RemoteError, os_error
from torch_tfrecord.files import Access
from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.remote.disk_cache import DiskCache, Finish, Places
from torch_tfrecord.remote.store import FileRange, Store, StoreError
from torch_tfrecord.remote.stores import store_of
from torch_tfrecord.shown import without_secrets

__all__ = [
    "LARGEST_PIECE",
    "Job",
    "Started",
    "Transfer",
    "is_known",
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


def _ask(shared: _Shared, job: Job, on_refusal: Callable[[], None]) -> object:
    """The answer to a job, asked again after errors that pass; None where nobody wants it any more.

    Raises:
        FileNotFoundError, PermissionError: As the storage says.
        CorruptRecordError: The file is another one than before.
        RemoteError: No good answer, after all attempts where that could help; names path, part,
            status, attempts.
    """
    path, what, _, call = job
    store, name = shared.store_of(path)
    for attempt in range(1, MOST_ATTEMPTS + 1):
        try:
            return None if shared.outcome.done() else call(store, name)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            code = _ERROR_NUMBERS.get(type(error), errno.ENOENT)
            raise os_error(code, path) from None
        except PermissionError:
            raise _forbidden(what, without_secrets(path)) from None
        except StoreError as error:
            if not error.is_passing or attempt == MOST_ATTEMPTS:
                raise _final(error, without_secrets(path), what, attempt) from None
            if error.status in _REFUSALS:
                on_refusal()
            seconds = min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT)
            # Else those refused together would come again together.
            seconds *= _RANDOM.uniform(0.5, 1.0)
            wait([shared.outcome], max(seconds, min(error.retry_after or 0.0, _MOST_RETRY_AFTER)))
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


class _Shared(NamedTuple):
    """State that a transfer and the threads share.

    Attributes:
        outcome: All answers, or the first error; cancelled where nobody wants them any more.
        answers: Those that are there.
        num_done: Counts them.
        store_of: `stores.store_of`, which takes as long as some answers, once for each file.
    """

    outcome: Future[list[Any]]
    answers: list[Any]
    num_done: Iterator[int]
    store_of: Callable[[str], tuple[Store, str]]


class Transfer:
    """Several requests, and what has come of them. Dropped, it begins none of them any more."""

    def __init__(self, jobs: Sequence[Job], access: Access) -> None:
        self._jobs, self._access = jobs, access
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._outcome: Future[list[Any]] = Future()
        if not self._jobs:
            self._outcome.set_result([])
        stores = functools.cache(functools.partial(store_of, access=self._access))
        shared = _Shared(self._outcome, [None] * len(self._jobs), count(1), stores)
        _ENGINE.get().add(shared, self._jobs)

    def answers(self) -> list[Any]:
        """All answers, in the order of the jobs.

        Raises:
            The error of the job that failed first.
        """
        if self._pid != os.getpid():  # what was under way is so in the process that forked
            self._begin()
        return self._outcome.result()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all answers, or an error, are there, within so many seconds."""
        return bool(wait([self._outcome], seconds).done)

    @property
    def is_good(self) -> bool:
        """Whether all answers are there."""
        return self._outcome.done() and not self._outcome.exception()

    @property
    def has_failed(self) -> bool:
        """Whether one of them did."""
        return self._outcome.done() and not self.is_good

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self._outcome.cancel()
        except Exception:  # after an __init__ that failed; and when Python ends, names may be gone
            pass


class _Engine:
    """The threads of a process."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[_Shared, Job, int]] = deque()
        self._calm_until = 0.0
        self._num_running = self._num_waiting = self._num_bytes = 0
        self._is_ended = False
        atexit.unregister(_end)  # a forked process has it from its parent
        atexit.register(_end)

    def add(self, shared: _Shared, jobs: Sequence[Job]) -> None:
        """As many threads as may run begin to."""
        with self._changed:
            self._tasks.extend((shared, job, number) for number, job in enumerate(jobs))
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
            shared, done, number = task
            with suppress(InvalidStateError):  # it has failed, or nobody wants it any more
                try:
                    shared.answers[number] = _ask(shared, done, self._refused)
                    if next(shared.num_done) == len(shared.answers):
                        shared.outcome.set_result(shared.answers)
                except BaseException as error:
                    shared.outcome.set_exception(error)
            del task, shared  # a transfer that was dropped ends although this thread waits

    def _next(self, done: Job | None) -> tuple[_Shared, Job, int] | None:
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
        while self._tasks and self._tasks[0][0].outcome.done():
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


_Bytes: TypeAlias = "bytes | memoryview"

LARGEST_PIECE = 8 << 20
"""A request asks for about so many bytes at most."""

# takes as long as the answer's first byte, at the speed of one connection of a storage
_SMALLEST_PIECE = 1 << 20
_FEWEST_REQUESTS = 16  # that a read is split into, unless its pieces would be smaller


def _job(wanted: FileRange, place: memoryview | None) -> Job:
    """The request of a range; with a place its bytes go there, and are not answered."""
    (path, _, etag, _), begin, end = wanted

    def call(store: Store, name: str) -> _Bytes:
        data = store.read_range(name, begin, end, etag)
        if len(data) != end - begin:
            raise StoreError(f"expected {end - begin} bytes, got {len(data)}")
        if place is None:
            return data
        place[: end - begin] = data  # here, as each arrives
        return b""

    return Job(path, f"bytes {begin} to {end}", end - begin, call)


def _pieces(ranges: Sequence[FileRange], size: int | None = None) -> list[tuple[int, FileRange]]:
    """Cut ranges into pieces of about a size: each with the number of its range. Without a size
    they are so small that there are several requests.
    """
    if size is None:
        total = sum(end - begin for _, begin, end in ranges)
        size = max(_SMALLEST_PIECE, min(LARGEST_PIECE, total // _FEWEST_REQUESTS))
    pieces = []
    for number, (file, begin, end) in enumerate(ranges):
        num_pieces = max(1, round((end - begin) / size))
        borders = [begin + (end - begin) * i // num_pieces for i in range(num_pieces + 1)]
        pieces += [(number, FileRange(file, *pair)) for pair in pairwise(borders)]
    return pieces


class Started:
    """A read of ranges of any files, that was begun, all at once; what the cache has is not asked
    for.

    Args:
        ranges: What is read.
        access: How it is reached.
        places: Where the bytes of each begin in a buffer, and the buffer.

    Attributes:
        piece_bytes: Size of each request; None for as few as are quick.
    """

    piece_bytes: int | None = None

    def __init__(
        self, ranges: Sequence[FileRange], access: Access, places: Places | None = None
    ) -> None:
        self._finish: Finish = list
        if isinstance(access.cache, DiskCache) and all(map(is_known, ranges)):
            (ranges, self._finish), places = access.cache.start(ranges, places), None
        pieces = _pieces(ranges, self.piece_bytes)
        self._counts, jobs = Counter(number for number, _ in pieces), []
        for number, piece in pieces:
            start = places[0][number] + piece.begin - ranges[number].begin if places else 0
            jobs.append(_job(piece, places and places[1][start:]))
        self._transfer = Transfer(jobs, access)

    @property
    def has_failed(self) -> bool:
        """Whether it could not be read."""
        return self._transfer.has_failed

    def answers(self) -> list[_Bytes]:
        """The bytes of each range, when they are there; nothing where they went to their places.

        Raises:
            RemoteError, OSError, CorruptRecordError: For the range that fails first; see `requests`.
        """
        found = iter(self._transfer.answers())
        parts = [[*islice(found, num_parts)] for num_parts in self._counts.values()]
        return self._finish([each[0] if len(each) == 1 else b"".join(each) for each in parts])


def is_known(wanted: FileRange) -> bool:
    """Whether a changed file would be told from what it was: what cannot be told is not kept."""
    return wanted.file.etag is not None or wanted.file.mtime_ns != 0
