"""Run one task on many files, in parallel processes, with a progress bar in bytes.

Workers come from a fork server: a fork of this process would copy its threads' locks, and a spawned
worker would import torch again. They ignore interrupts, which the terminal sends to all processes;
the parent stops them at their next read.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.files.storage import is_remote, open_file
from torch_tfrecord.processors import num_processors
from torch_tfrecord.progress import ProgressBar

if TYPE_CHECKING:
    from ctypes import c_byte
    from multiprocessing.sharedctypes import Synchronized

__all__ = ["Outcome", "exit_code", "work_on_files"]

_T = TypeVar("_T")
_FileTask: TypeAlias = "Callable[[FileSource], _T]"

# Starting processes takes a few seconds; one process reads this much in less.
_MIN_PARALLEL_BYTES = 1 << 30
_POLL_SECONDS = 0.1


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
    found = [error for error in errors if error is not None]
    if any(
        isinstance(error, TFRecordError) or getattr(error, "errno", None) == errno.EIO
        for error in found
    ):
        return 1
    return 2 if found else 0


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
    total_bytes = sum(map(_file_size, paths))
    if num_jobs is None:
        num_jobs = num_processors() if total_bytes >= _MIN_PARALLEL_BYTES else 1
    num_jobs = min(num_jobs, len(paths))
    with ProgressBar(total=total_bytes or None, desc=description, unit="B", unit_scale=True) as bar:
        if num_jobs <= 1:
            return [_work(task, path, bar.update) for path in paths]
        try:
            return _work_in_processes(task, paths, num_jobs, bar)
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process died, perhaps because memory ran out; try --jobs 1"
            ) from error


class _TrackedFile(FileSource):
    """A file that reports how far it has been read."""

    def __init__(self, file: FileSource, advance: Callable[[int], object]) -> None:
        self._file = file
        self._advance = advance
        self._reached = 0
        self._lock = threading.Lock()  # large records are read by two threads
        self.path, self.size, self.file_size = file.path, file.size, file.file_size
        self.mtime_ns, self.chunk_bytes, self.max_record_bytes = (
            file.mtime_ns,
            file.chunk_bytes,
            file.max_record_bytes,
        )

    def read(self, num_bytes: int, offset: int) -> bytes:
        data = self._file.read(num_bytes, offset)
        self.report(offset + len(data))
        return data

    def report(self, reached: int) -> None:
        with self._lock:
            step, self._reached = max(reached - self._reached, 0), max(reached, self._reached)
            self._advance(step)


def _work(task: _FileTask[_T], path: str, advance: Callable[[int], object]) -> Outcome[_T]:
    try:
        file = _TrackedFile(open_file(path), advance)
        try:
            return Outcome(path, task(file))
        finally:
            file.report(file.file_size)  # also counts what the task did not need to read
    except (OSError, TFRecordError, ValueError) as error:
        return Outcome(path, error=error)


def _work_in_processes(
    task: _FileTask[_T], paths: Sequence[str], num_jobs: int, bar: ProgressBar
) -> list[Outcome[_T]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    num_read, stop = context.Value("q", 0), context.Value("b", 0, lock=False)
    with _interrupts_ignored():  # the fork server, and so every worker, inherits this
        multiprocessing.forkserver.ensure_running()
    with ProcessPoolExecutor(num_jobs, context, _start_worker, (num_read, stop)) as pool:
        try:
            futures = [pool.submit(_work_in_worker, task, path) for path in paths]
            unfinished = set(futures)
            while unfinished:
                _, unfinished = wait(unfinished, _POLL_SECONDS)
                bar.update(num_read.value - bar.n)
            return [future.result() for future in futures]
        except BaseException:
            stop.value = 1
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    # only the main thread may set handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


_advance_worker: Callable[[int], object] = int  # of this worker process


def _start_worker(num_read: Synchronized[int], stop: c_byte) -> None:
    parent = os.getppid()

    def advance(step: int) -> None:
        if stop.value or os.getppid() != parent:
            raise KeyboardInterrupt
        with num_read.get_lock():
            num_read.value += step

    global _advance_worker
    _advance_worker = advance


def _work_in_worker(task: _FileTask[_T], path: str) -> Outcome[_T]:
    return _work(task, path, _advance_worker)


def _file_size(path: str) -> int:
    """Bytes of a file; 0 if that is unknown without opening it."""
    try:
        return 0 if is_remote(path) else os.stat(path).st_size
    except OSError:
        return 0  # the task reports what is wrong
