"""Many requests at once: threads of this process that take them in turn, as many as the storage is
quicker with.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from torch_tfrecord.errors import CorruptRecordError, RemoteError
from torch_tfrecord.files.access import Access
from torch_tfrecord.files.store import Store, StoreError
from torch_tfrecord.files.stores import store_of
from torch_tfrecord.processors import num_processors
from torch_tfrecord.shown import without_secrets

__all__ = ["MOST_ATTEMPTS", "AdaptiveLimit", "Attempts", "Job", "Transfer", "each_at_once"]

# what a request counts beside its bytes: of small ones more are served, not more bytes
_REQUEST_BYTES = 1 << 16
_GAIN = 1.05  # that a larger number must bring
_UP, _DOWN = 1.5, 0.67
_FIRST, _LEAST = 128, 4  # requests
_LEAST_SECONDS = 0.1  # that a number is measured for, twice where it brings nothing: other processes are busy, too
_CALM_SECONDS = 1.0  # between two refusals that count
_REST_WINDOWS = 20  # before the next trials


class AdaptiveLimit:
    """Tries more requests at once while they bring more bytes a second, and fewer where they bring
    as much.

    No fixed number is right: one connection of a storage far away gives little, and a hundred to a
    disk next door are slower than one. Halves when the storage refuses. Not safe from threads:
    whoever calls holds a lock.

    Args:
        most: The most requests.

    Attributes:
        number: Requests that may be in flight now.
    """

    def __init__(self, most: int = 256) -> None:
        self.number, self._most = _FIRST, most
        self._begin: float | None = None
        self._count = self._bytes = 0
        self._best_rate, self._best_number = 0.0, _FIRST
        self._rates: list[float] = []  # of this number
        self._factor = _UP  # of this trial
        self._rests = 2  # windows until the next trial: connections are made in the first ones
        self._refused_at = -_CALM_SECONDS

    def finished(self, num_bytes: int, is_busy: bool) -> None:
        """Note a request that came back.

        Args:
            num_bytes: Of it.
            is_busy: Whether others wait for their turn: else the number is not what limits.
        """
        if not is_busy:
            self._begin = None
            return
        now = monotonic()
        if self._begin is None:
            self._begin, self._count, self._bytes = now, 0, 0
            return
        self._count += 1
        self._bytes += num_bytes
        seconds = now - self._begin
        if seconds >= _LEAST_SECONDS and self._count >= 2 * self.number:
            self._learn((self._bytes + _REQUEST_BYTES * self._count) / seconds)
            self._begin = None

    def _learn(self, rate: float) -> None:
        if self._rests:
            self._rests -= 1
            if not self._rests:
                self._try(_DOWN if self._best_rate and self._factor > 1 else _UP)
                self._best_rate = rate
            return
        self._rates.append(rate)
        if max(self._rates) > self._best_rate * (_GAIN if self._factor > 1 else 1.0):
            self._best_rate, self._best_number = max(self._rates), self.number
            self._try(self._factor)
        elif len(self._rates) > 1:  # it brings nothing
            self._set(self._best_number)
            self._rests = _REST_WINDOWS

    def _try(self, factor: float) -> None:
        self._factor = factor
        self._set(self._best_number * factor)
        if self.number == self._best_number:  # at an end
            self._rests = _REST_WINDOWS

    def refused(self) -> None:
        """The storage asks for fewer requests."""
        now = monotonic()
        if now - self._refused_at >= _CALM_SECONDS:
            self._refused_at, self._rests = now, _REST_WINDOWS
            self._set(self.number / 2)
            self._best_number = self.number
        self._begin = None

    def _set(self, number: float) -> None:
        self.number = max(_LEAST, min(self._most, int(number)))
        self._rates = []


_Answer = TypeVar("_Answer")

MOST_ATTEMPTS = 6
_FIRST_WAIT = 0.1  # seconds, then twice as long each time, each a random part of it at least a half
_LONGEST_WAIT = 10.0
_MOST_RETRY_AFTER = 60.0
_REFUSALS = (429, 503)
_FORBIDDEN = (401, 403)
_OTHER_FILE = (412, 416)


class Attempts:
    """Asks a storage, and again after errors that pass.

    Args:
        wait: Called with seconds; whether nobody wants the answer any more.
        on_refusal: Called where the storage asks for fewer requests.
    """

    def __init__(self, wait: Callable[[float], bool], on_refusal: Callable[[], None]) -> None:
        self._wait, self._on_refusal = wait, on_refusal
        self._random = random.SystemRandom()  # the user's random state is not ours

    def ask(
        self, path: str, access: Access, what: str, call: Callable[[Store, str], _Answer]
    ) -> _Answer | None:
        """What `call` gives for the store of a path and the name there; None where nobody wants it
        any more.

        Args:
            path: With its scheme.
            access: How it is reached.
            what: Which part of it, for errors: "bytes 0 to 100".
            call: Asks once.

        Raises:
            FileNotFoundError, PermissionError: As the storage says.
            CorruptRecordError: The file is another one than before.
            RemoteError: No good answer, after all attempts where that could help; names path, part,
                status, attempts.
        """
        store, name = store_of(path, access)
        path = without_secrets(path)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            try:
                return call(store, name)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                kinds = {IsADirectoryError: errno.EISDIR, NotADirectoryError: errno.ENOTDIR}
                code = kinds.get(type(error), errno.ENOENT)
                raise OSError(code, os.strerror(code), path) from None
            except PermissionError:
                raise _forbidden(what, path) from None
            except StoreError as error:
                if not error.is_passing or attempt == MOST_ATTEMPTS:
                    raise _final(error, path, what, attempt) from None
                if error.status in _REFUSALS:
                    self._on_refusal()
                if self._wait(self._seconds(error, attempt)):
                    return None
        return None

    def _seconds(self, error: StoreError, attempt: int) -> float:
        seconds: float = min(
            _FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT
        ) * self._random.uniform(0.5, 1.0)
        return max(seconds, min(error.retry_after or 0.0, _MOST_RETRY_AFTER))


def _forbidden(what: str, path: str) -> PermissionError:
    return PermissionError(errno.EACCES, f"the storage forbids it ({what})", path)


def _final(error: StoreError, path: str, what: str, attempts: int) -> Exception:
    if error.status in _FORBIDDEN:
        return PermissionError(
            errno.EACCES, f"the storage forbids it ({what}, {error.reason})", path
        )
    if error.status in _OTHER_FILE:
        text = f"expected the file that was opened, got another one in its place ({what}, {error.reason})"
        return CorruptRecordError(text, path=path)
    times = f"{attempts} attempt{'s' if attempts > 1 else ''}"
    return RemoteError(f"{what}: {error.reason} ({times})", path=path).answered(
        error.status, attempts
    )


_MOST_BYTES = 1 << 28  # in flight
_MOST_REQUESTS, _REQUESTS_A_PROCESSOR = 256, 64
_READY_BYTES = 1 << 25  # that came are handed out before the others are there
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
    """Several requests, and what has come of them. Dropped or cancelled, it begins none of them any
    more.
    """

    def __init__(self, jobs: Sequence[Job], access: Access) -> None:
        self._jobs, self._access = jobs, access
        self._begin()

    def _begin(self) -> None:
        self._state, self._pid = _State(self._jobs, self._access), os.getpid()
        _engine().add(self._state)

    def arrived(self) -> Iterator[tuple[int, Any]]:
        """The number of each job and its answer, as they come, in any order; once.

        Raises:
            The error of the job that failed first.
        """
        if self._pid != os.getpid():  # what was under way is so in the process that forked
            self._begin()
        state = self._state
        try:
            while state.num_left:
                with state.changed:
                    state.changed.wait_for(state.is_worth_a_look)
                    ready, state.ready, state.ready_bytes = state.ready, [], 0
                    if state.error is not None:
                        raise state.error
                    state.num_left -= len(ready)
                yield from ready
        finally:
            self.cancel()

    def answers(self) -> list[Any]:
        """All answers, in the order of the jobs."""
        found: list[Any] = [None] * len(self._jobs)
        for number, answer in self.arrived():
            found[number] = answer
        return found

    def wait(self, seconds: float) -> bool:
        """Whether all answers, or an error, are there, within so many seconds."""
        state = self._state
        with state.changed:
            return state.changed.wait_for(
                lambda: not state.num_open or state.error is not None, seconds
            )

    @property
    def is_good(self) -> bool:
        """Whether all answers are there."""
        return not self._state.num_open and self._state.error is None

    def cancel(self) -> None:
        """Nobody wants the rest."""
        state = self._state
        if state.num_left:
            with state.changed:
                state.is_cancelled = True
                state.changed.notify_all()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # when Python ends, anything may be gone
            self._state.is_cancelled = True  # without the lock, which this thread may hold


class _State:
    """What a transfer and the threads share."""

    def __init__(self, jobs: Sequence[Job], access: Access) -> None:
        self.jobs, self.access = jobs, access
        self.changed = threading.Condition(threading.Lock())
        self.ready: list[tuple[int, Any]] = []
        self.ready_bytes = 0
        self.num_left = self.num_open = len(jobs)
        self.error: BaseException | None = None
        self.is_cancelled = False

    def is_worth_a_look(self) -> bool:
        return not self.num_open or self.error is not None or self.ready_bytes >= _READY_BYTES

    def wait(self, seconds: float) -> bool:
        """Whether it was cancelled meanwhile."""
        with self.changed:
            return self.changed.wait_for(lambda: self.is_cancelled, seconds)

    def put(self, number: int, answer: Any) -> None:
        with self.changed:
            self.ready.append((number, answer))
            self.ready_bytes += self.jobs[number].num_bytes
            self.num_open -= 1
            if self.is_worth_a_look():
                self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = self.error or error
            self.is_cancelled = True
            self.changed.notify_all()


class _Engine:
    """The threads of a process."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[_State, int]] = deque()
        self._limit = AdaptiveLimit(most=_most_requests())
        self._num_running = self._num_waiting = self._num_bytes = 0
        self._is_ended = False

    def add(self, state: _State) -> None:
        with self._changed:
            self._tasks.extend((state, number) for number in range(len(state.jobs)))
            self._wake()

    def _wake(self) -> None:
        """As many threads as may run begin to; the lock is held."""
        wanted = min(len(self._tasks), self._limit.number - self._num_running)
        if wanted > 0 and self._num_waiting:
            self._changed.notify(wanted)
        for _ in range(wanted - self._num_waiting):
            self._num_waiting += 1  # it takes a task first
            threading.Thread(target=self._run, name="tfrecord-remote", daemon=True).start()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            state, number = task
            job = state.jobs[number]
            try:
                answer = Attempts(state.wait, self._refused).ask(
                    job.path, state.access, job.what, job.call
                )
                state.put(number, answer)
                del answer
            except BaseException as error:
                state.fail(error)
            with self._changed:
                self._num_running -= 1
                self._num_bytes -= job.num_bytes
                before = self._limit.number
                self._limit.finished(job.num_bytes, bool(self._tasks))
                if self._limit.number > before:
                    self._wake()
                self._num_waiting += 1
                if self._is_ended:
                    self._changed.notify_all()
            del task, state, job

    def _next(self) -> tuple[_State, int] | None:
        """The next task, in its turn; None where there was none for a while."""
        with self._changed:
            is_late = False
            while not self._may_run():
                if is_late or self._is_ended:
                    self._num_waiting -= 1
                    return None
                is_late = not self._changed.wait(_IDLE_SECONDS)
            state, number = self._tasks.popleft()
            self._num_waiting -= 1
            self._num_running += 1
            self._num_bytes += state.jobs[number].num_bytes
            return state, number

    def _may_run(self) -> bool:
        """Whether the next task that somebody wants may begin; the lock is held."""
        while self._tasks and self._tasks[0][0].is_cancelled:
            self._tasks.popleft()
        if not self._tasks or self._num_running >= self._limit.number:
            return False
        state, number = self._tasks[0]
        return (
            not self._num_running or self._num_bytes + state.jobs[number].num_bytes <= _MOST_BYTES
        )

    def _refused(self) -> None:
        with self._changed:
            self._limit.refused()

    def end(self) -> None:
        """Begin nothing more, and give what is in flight a moment."""
        with self._changed:
            self._is_ended = True
            self._tasks.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._num_running, _EXIT_SECONDS)


def _most_requests() -> int:
    """So many threads wait for storages without being in each other's way (measured on two
    processors).
    """
    return min(
        _MOST_REQUESTS, max(_REQUESTS_A_PROCESSOR * num_processors(), AdaptiveLimit().number)
    )


# by number of the process: threads do not come along through a fork
_engines: dict[int, _Engine] = {}


def _engine() -> _Engine:
    found = _engines.get(os.getpid())
    if found is None:
        found = _engines.setdefault(os.getpid(), _Engine())
        if len(_engines) == 1:
            atexit.register(_end)  # forked ones have it from their parent
    return found


def _end() -> None:
    engine = _engines.get(os.getpid())
    if engine is not None:
        engine.end()


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each_at_once(
    function: Callable[[_Item], _Result], items: Iterable[_Item], most: int = 32
) -> Iterator[_Result]:
    """What the function gives for each item, in their order; up to `most` of them are under way.

    An error is raised in its turn. Where it is not gone through to its end, what has not begun does
    not begin, and nobody waits for the rest, as a pool's threads would be waited for at the end of
    Python.

    Example:
        >>> list(each_at_once(str, [1, 2, 3]))
        ['1', '2', '3']
    """
    begun = (_begin(function, item) for item in items)
    waiting = deque(islice(begun, most))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(islice(begun, 1))


def _begin(function: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(function(item))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tfrecord-remote-file", daemon=True).start()
    return future
