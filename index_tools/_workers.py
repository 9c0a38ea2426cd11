"""Processes that do the same to many things: a task for each of many files, with a progress bar,
and whatever else pickles.

Processes come from a fork server: a fork of this process would copy its threads' locks, and a
spawned worker would import torch again. They ignore interrupts, which the terminal sends to all
processes, and end at once when the parent gives up or dies: what they have not completed has no
name.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files.storage import FileSource, is_remote, open_file
from torch_tfrecord.processors import num_processors
from torch_tfrecord.progress import ProgressBar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized

__all__ = [
    "Advance",
    "Outcome",
    "exit_code",
    "work_in_processes",
    "work_on_files",
]

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_FileTask: TypeAlias = "Callable[[FileSource], _T]"
Advance: TypeAlias = Callable[[int], object]
"""Tells the progress bar how much more is done."""

# Starting processes takes a few seconds; one process reads this much in less.
_MIN_PARALLEL_BYTES = 1 << 30
_POLL_SECONDS = 0.1


def work_in_processes(
    task: Callable[[_Item, Advance], _T],
    items: Sequence[_Item],
    num_jobs: int,
    bar: ProgressBar,
    *,
    module: str,
    advice: str,
) -> list[_T]:
    """Call `task` with each item, in other processes.

    Args:
        task: Called as ``task(item, advance)``; pickled once for each process, as it may be large.
        items: What to work on.
        num_jobs: Number of processes.
        bar: What `advance` updates.
        module: Imported once, before the processes are forked.
        advice: What to try if one of them dies.

    Returns:
        The results, in the order of `items`.

    Raises:
        ChildProcessError: A process died.
        Exception: The first error of the task.
    """
    context = multiprocessing.get_context("forkserver")
    # so that the workers share what it imports
    context.set_forkserver_preload([module])
    progress, first = context.Value("q", 0), bar.n
    # The processes wait at a pipe for the end of this one, or until it gives up.
    waiting, alive = context.Pipe(duplex=False)
    with _ignore_interrupts():  # the fork server, and so every worker, inherits this
        multiprocessing.forkserver.ensure_running()
    pool = ProcessPoolExecutor(num_jobs, context, _start_worker, (task, progress, waiting))
    try:
        futures = [pool.submit(_work_on_item, item) for item in items]
        unfinished = set(futures)
        while unfinished:
            done, unfinished = wait(unfinished, _POLL_SECONDS, FIRST_EXCEPTION)
            # without its lock, with which a process may have died
            bar.update(first + progress.get_obj().value - bar.n)
            for future in done:
                future.result()
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"a worker process died, perhaps because memory ran out; {advice}"
        ) from error
    except BaseException:
        # ends the workers, for which shutting the pool down would wait
        alive.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        alive.close()
        waiting.close()


@contextlib.contextmanager
def _ignore_interrupts() -> Iterator[None]:
    # only the main thread may set handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


_work: list[tuple[Callable[..., Any], Advance]] = []  # of this worker process: one


def _work_on_item(item: object) -> Any:
    task, advance = _work[-1]
    return task(item, advance)


def _start_worker(
    task: Callable[..., object], progress: Synchronized[int], waiting: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the fork server was there before
    threading.Thread(target=_end_with, args=(waiting,), daemon=True).start()

    def advance(step: int) -> None:
        with progress.get_lock():
            progress.value += step

    _work.append((task, advance))


def _end_with(waiting: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        waiting.recv_bytes()
    # not sys.exit, which would only end this thread
    os._exit(1)


# Files.


@dataclass(frozen=True)
class Outcome(Generic[_T]):
    """The result for one file: the task's value, or the error that ended it."""

    path: str
    value: _T | None = None
    error: Exception | None = None


def exit_code(errors: Sequence[Exception | None]) -> int:
    """1 if data is bad (also for unreadable sectors), else 2 if a file could not be used, else
    0.
    """
    bad = [
        isinstance(error, TFRecordError) or getattr(error, "errno", None) == errno.EIO
        for error in errors
        if error is not None
    ]
    return 1 if any(bad) else 2 * bool(bad)


def work_on_files(
    task: _FileTask[_T], paths: Sequence[str], *, num_jobs: int | None = None, description: str
) -> list[Outcome[_T]]:
    """Call `task` with every opened file; an error affects only its own file.

    Args:
        task: Called in this process or in a worker, so it must pickle.
        paths: The files.
        num_jobs: Number of processes; None uses one per processor if the files are large enough to
            gain from it.
        description: Label of the progress bar.

    Returns:
        One outcome per file, in the order of `paths`.

    Raises:
        OSError: A worker process died.
    """
    sizes = 0
    for path in paths:
        with contextlib.suppress(OSError):  # the task reports what is wrong
            sizes += 0 if is_remote(path) else os.stat(path).st_size
    if num_jobs is None:
        num_jobs = num_processors() if sizes >= _MIN_PARALLEL_BYTES else 1
    # a process works on whole files
    num_jobs = min(num_jobs, len(paths))
    work = functools.partial(_work_on_file, task)
    with ProgressBar(total=sizes or None, desc=description, unit="B", unit_scale=True) as bar:
        if num_jobs <= 1:
            return [work(path, bar.update) for path in paths]
        return work_in_processes(work, paths, num_jobs, bar, module=__name__, advice="try --jobs 1")


class _TrackedFile(FileSource):
    """A file that reports how far it has been read."""

    def __init__(self, file: FileSource, advance: Advance) -> None:
        self._file, self._advance, self._reached = file, advance, 0
        self._lock = threading.Lock()  # large records are read by two threads
        for name in ("path", "size", "file_size", "mtime_ns", "chunk_bytes", "max_record_bytes"):
            setattr(self, name, getattr(file, name))

    def read(self, num_bytes: int, offset: int) -> bytes:
        data = self._file.read(num_bytes, offset)
        self.report(offset + len(data))
        return data

    def report(self, reached: int) -> None:
        with self._lock:
            # a file may be read twice, and its parts in any order
            if reached > self._reached:
                self._advance(reached - self._reached)
                self._reached = reached


def _work_on_file(task: _FileTask[_T], path: str, advance: Advance) -> Outcome[_T]:
    try:
        file = _TrackedFile(open_file(path), advance)
        try:
            return Outcome(path, task(file))
        finally:
            file.report(file.file_size)  # also counts what the task did not need to read
    except (OSError, TFRecordError, ValueError) as error:
        return Outcome(path, error=error)
