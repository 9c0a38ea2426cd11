"""Many requests at once: threads of this process that take them in turn, as many as the storage is
quicker with.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.attempts import Attempts
from torch_tfrecord.files.limit import AdaptiveLimit
from torch_tfrecord.files.store import Store
from torch_tfrecord.processors import num_processors

__all__ = ["Job", "Transfer"]

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
