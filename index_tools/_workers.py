"""Processes that do the same to many things: a task for each of many files, with a progress bar,
and whatever else pickles.

Processes come from a fork server: a fork of this process would copy its threads' locks, and a
spawned worker would import torch again. They ignore interrupts, which the terminal sends to all
processes, and end at once when the parent gives up or dies: what they have not completed has no
name.
"""

from __future__ import annotations

import errno
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from torch_tfrecord import TFRecordError
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.files import FileSource, is_remote, open_file
from torch_tfrecord.per_process import num_processors
from torch_tfrecord.progress import ProgressBar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = [
    "Advance",
    "Outcome",
    "exit_code",
    "open_executor",
    "work",
    "work_on_files",
]

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_FileTask: TypeAlias = "Callable[[FileSource], _T]"
Advance: TypeAlias = Callable[[int], object]
"""Moves the progress bar by how much more is done."""

# Starting processes takes a few seconds; one process reads this much in less.
_MIN_PARALLEL_BYTES = 1 << 30
# An executor gets so much at once: its own work is some milliseconds to a second of ours.
_GROUP_BYTES, _GROUP_FILES = 1 << 28, 256


def work(
    task: Callable[[_Item, Advance], _T],
    items: Sequence[tuple[_Item, int]],
    bar: ProgressBar,
    *,
    num_jobs: int,
    executor: Executor | None = None,
    module: str,
    advice: str,
) -> Iterator[_T]:
    """Call `task` with each item: in other processes, by an executor, or here.

    Args:
        task: Called as ``task(item, advance)``.
        items: Each item, and by how much the bar moves when it is done elsewhere.
        bar: Moved by `advance` where the work is done here.
        num_jobs: Number of processes; below 2 the work is done in this one.
        executor: Does the work in place of processes.
        module: Imported once, before the processes are forked.
        advice: What to try if one of them dies.

    Yields:
        The results, in the order of `items`.

    Raises:
        ChildProcessError: A process died, or the executor failed.
        Exception: The first error of the task.
    """
    if executor is None and num_jobs < 2:
        for item, _ in items:
            yield task(item, bar.update)
        return
    with _processes(num_jobs, module) if executor is None else nullcontext(executor) as workers:
        futures = {workers.submit(task, item, _no_advance): size for item, size in items}
        try:
            for future in as_completed(futures):
                future.result()
                bar.update(futures[future])
        except BrokenProcessPool as error:
            raise ChildProcessError(
                f"a worker process died, perhaps because memory ran out; {advice}"
            ) from error
        except Exception as error:
            if executor is None:
                raise
            # errors of the task itself are outcomes
            raise ChildProcessError(f"the executor could not do its work: {error}") from error
        finally:
            for future in futures:
                future.cancel()
        yield from (future.result() for future in futures)


def _no_advance(step: int) -> None:
    """An item of another process counts when it is done."""


@contextmanager
def _processes(num_jobs: int, module: str) -> Iterator[Executor]:
    context = multiprocessing.get_context("forkserver")
    # so that the workers share what it imports
    context.set_forkserver_preload([module])
    # The processes wait at a pipe for the end of this one, or until it gives up.
    waiting, alive = context.Pipe(duplex=False)
    with _ignore_interrupts():  # the fork server, and so every worker, inherits this
        multiprocessing.forkserver.ensure_running()
    pool = ProcessPoolExecutor(num_jobs, context, _start_worker, (waiting,))
    try:
        yield pool
    except BaseException:
        # ends the workers, for which shutting the pool down would wait
        alive.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        alive.close()
        waiting.close()


@contextmanager
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


def _start_worker(waiting: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the fork server was there before
    threading.Thread(target=_end_with, args=(waiting,), daemon=True).start()


def _end_with(waiting: Connection) -> None:
    with suppress(EOFError, OSError):
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
    task: _FileTask[_T],
    paths: Sequence[str],
    *,
    num_jobs: int | None = None,
    executor: Executor | None = None,
    description: str,
) -> list[Outcome[_T]]:
    """Call `task` with every opened file; an error affects only its own file.

    Args:
        task: Called in this process or in a worker, so it must pickle.
        paths: The files.
        num_jobs: Number of processes; None uses one per processor if the files are large enough to
            gain from it.
        executor: Does the work in place of processes, many small files at a time; the files must
            have the same paths there.
        description: Label of the progress bar.

    Returns:
        One outcome per file, in the order of `paths`.

    Raises:
        OSError: A worker process died.
    """
    sizes = [*map(_local_size, paths)]
    if num_jobs is None:
        num_jobs = num_processors() if sum(sizes) >= _MIN_PARALLEL_BYTES else 1
    # a process works on whole files
    num_jobs = min(num_jobs, len(paths))
    total, most = sum(sizes), _GROUP_BYTES
    if executor is None:
        # small enough that the last ones end at about the same time
        most = min(_GROUP_BYTES, total // (4 * max(num_jobs, 1)) + 1)
    with ProgressBar(total=total or None, desc=description, unit="B", unit_scale=True) as bar:
        found = work(
            functools.partial(_work_on_group, task),
            _groups(paths, sizes, most),
            bar,
            num_jobs=num_jobs,
            executor=executor,
            module=__name__,
            advice="try --jobs 1",
        )
        return [outcome for group in found for outcome in group]


def _local_size(path: str) -> int:
    with suppress(OSError):  # the task reports what is wrong
        return 0 if is_remote(path) else os.stat(path).st_size
    return 0


def _groups(
    paths: Sequence[str], sizes: Sequence[int], most_bytes: int
) -> list[tuple[list[str], int]]:
    """The files, in order, and their bytes: some small ones together; one of unknown size, which is
    remote, alone.
    """
    least = most_bytes // _GROUP_FILES
    ends = accumulate(max(size or most_bytes, least) for size in sizes)
    rows = zip(((end - 1) // most_bytes for end in ends), paths, sizes, strict=True)
    groups = ([*group] for _, group in groupby(rows, itemgetter(0)))
    return [([path for _, path, _ in group], sum(row[2] for row in group)) for group in groups]


def _work_on_group(
    task: _FileTask[_T], paths: Sequence[str], advance: Advance
) -> list[Outcome[_T]]:
    return [_work_on_file(task, path, advance) for path in paths]


@contextmanager
def open_executor(name: str) -> Iterator[Executor | None]:
    """The executor of an option `--executor`; None for processes of this machine.

    Raises:
        ImportError: The package for it is missing.
        OSError: Nobody answers at the address.
    """
    if name == "processes":
        yield None
        return
    with needs_extra("--executor dask=ADDRESS", "dask"):
        distributed = import_module("distributed")
    with distributed.Client(name.removeprefix("dask=")) as client:
        yield client.get_executor(pure=False)


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
