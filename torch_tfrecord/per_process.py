"""State, threads, caches and processors of one process, and compiled modules that do not survive a
fork: a child gets a second copy of such a module, with variables of its own.

A fork copies locks, but not the threads that hold them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import IO, Any, Generic, TypeVar

__all__ = [
    "Ahead",
    "PerProcess",
    "ProcessCache",
    "compiled_copy",
    "each_at_once",
    "module_of_process",
    "num_allowed",
    "num_processors",
]

_MOST_AHEAD = 2
_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # a container's: microseconds in each so many, or "max"


def num_processors() -> int:
    """The processors that the system lets this process use, where it says so (Linux), else all of the
    machine; in a container no more than its limit of processor time.
    """
    found = num_allowed()
    with suppress(OSError, ValueError):
        time, period = map(int, _LIMIT.read_text().split())
        found = min(found, -(-time // period))
    return found


def num_allowed(process: int = 0) -> int:
    """Those that a process, or this one, is bound to, where the system says so (Linux), else all."""
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(process))
    return os.cpu_count() or 1


_State = TypeVar("_State")
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", bound=Hashable)
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class PerProcess(Generic[_State]):
    """State of one process: made when it is first needed, and again after a fork and in a pickled
    copy. Safe from threads, which all get the same.

    A fork copies locks that another thread may hold, and connections without their threads.

    Args:
        make: Makes it.
        keeps_parents: Never drop what a parent process has made, as its end would wait for threads
            that are not here.

    Example:
        >>> numbers = PerProcess(list)
        >>> numbers.get().append(1)
        >>> numbers.get()
        [1]
    """

    def __init__(self, make: Callable[[], _State], *, keeps_parents: bool = False) -> None:
        self._make, self._keeps_parents = make, keeps_parents
        self._made: dict[int, _State] = {}  # by the process's number

    def get(self) -> _State:
        """That of this process."""
        pid = os.getpid()
        found = self._made.get(pid)
        if found is None:
            # In one step: if two threads make it at once, both get the first.
            found = self._made.setdefault(pid, self._make())
            if not self._keeps_parents:
                for other in {*self._made} - {pid}:
                    self._made.pop(other, None)
        return found

    @property
    def was_forked(self) -> bool:
        """Whether a parent process had made its own; only known with `keeps_parents`."""
        return bool(self._made.keys() - {os.getpid()})

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return partial(PerProcess, keeps_parents=self._keeps_parents), (self._make,)


def each_at_once(
    function: Callable[[_Item], _Result], items: Iterable[_Item], most: int = 32
) -> Iterator[_Result]:
    """The results of a function for each item, in their order; up to `most` of them are under way.

    An error is raised in its turn. Where it is not gone through to its end, what has not begun does
    not begin, and nobody waits for the rest, as a pool's threads would be waited for at the end of
    Python.

    Example:
        >>> list(each_at_once(str, [1, 2, 3]))
        ['1', '2', '3']
    """
    begun = (in_thread(function, item) for item in items)
    waiting = deque(islice(begun, most))
    while waiting:
        yield waiting.popleft().result()
        waiting.extend(islice(begun, 1))


def in_thread(function: Callable[[_Item], _Result], item: _Item) -> Future[_Result]:
    """Call a function in a thread of its own, for which nobody waits at the end of the program; then,
    when threads cannot be started, here.
    """
    future: Future[_Result] = Future()
    run = partial(_call, future, partial(function, item))
    try:
        threading.Thread(target=run, name="tfrecord-file", daemon=True).start()
    except RuntimeError:
        run()
    return future


def _call(future: Future[_Result], function: Callable[[], _Result]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


class Ahead(Generic[_Result]):
    """The results of a function, which a thread calls again and again, up to two of them before they are
    wanted: the same thread, for as long as it is not faster than who wants them.

    Example:
        >>> ahead, numbers = Ahead(), iter(range(9))
        >>> [ahead.next(numbers.__next__) for _ in range(3)]
        [0, 1, 2]
        >>> ahead.stop()
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()  # taken while the function is called
        self._made: SimpleQueue[Future[_Result]] = SimpleQueue()
        self._filler = 0  # the thread that called it last
        self._is_stopped = False

    def next(self, function: Callable[[], _Result]) -> _Result:
        """The next result, or error; the function is the same each time."""
        if not self._busy.locked():
            in_thread(self._fill, function)
        return self._made.get().result()

    def stop(self) -> None:
        """Wait until the function is not called any more."""
        # The garbage collector may call this in the very thread.
        if not self._is_stopped and threading.get_ident() != self._filler:
            self._is_stopped = self._busy.acquire()

    def _fill(self, function: Callable[[], _Result]) -> None:
        # Who finds it taken leaves the rest to the thread that took it, which looks once more after that.
        while self._made.qsize() < _MOST_AHEAD and self._busy.acquire(blocking=False):
            self._filler = threading.get_ident()
            made: Future[_Result] = Future()
            _call(made, function)
            self._made.put(made)
            self._busy.release()


class ProcessCache(Generic[_Value]):
    """Caches values by number, or another key; the least recently used are dropped first.

    Nothing is shared after a fork, and a pickled copy is empty. Two threads may load the same value
    at once; both then get the one that was stored first.

    Args:
        max_size: The most to keep; the latest value is always kept.
        size_of: Returns the size of a value; None counts 1 for each, so that `max_size` is a number
            of values.

    Example:
        >>> cache = ProcessCache(2)
        >>> [cache.find(number, str) for number in (1, 2, 3)]
        ['1', '2', '3']
        >>> 1 in cache, 3 in cache
        (False, True)
    """

    def __init__(self, max_size: int, size_of: Callable[[_Value], int] | None = None) -> None:
        self._max_size = max_size
        self._size_of = size_of
        self._kept = PerProcess(_Kept)

    def find(self, number: _Number, load: Callable[[_Number], _Value]) -> _Value:
        """The value of a number; `load` is called if it is not in the cache."""
        kept = self._kept.get()
        with kept.lock:
            if number in kept.values:
                kept.values.move_to_end(number)
                return kept.values[number][0]
        value = load(number)
        size = 1 if self._size_of is None else self._size_of(value)
        with kept.lock:
            if number not in kept.values:
                while kept.values and kept.size + size > self._max_size:
                    kept.size -= kept.values.popitem(last=False)[1][1]
                kept.values[number] = value, size
                kept.size += size
            return kept.values[number][0]

    def drop(self, number: Hashable) -> None:
        """Forget the value of a number."""
        kept = self._kept.get()
        with kept.lock:
            kept.size -= kept.values.pop(number, (None, 0))[1]

    def __contains__(self, number: object) -> bool:
        return number in self._kept.get().values


class _Kept:
    """The values of one process, each with its size."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.size = 0


# By name, a lock, and the module, once it was loaded.
_loaded: dict[str, PerProcess[tuple[threading.Lock, list[Any]]]] = {}


def module_of_process(name: str, first: Callable[[], Any], in_fork: Callable[[], Any]) -> Any:
    """This process's copy of a compiled module; loaded once, unless that raises.

    Args:
        name: Name of the module.
        first: Loads it where no other process can have used it.
        in_fork: Loads it, or what takes its place, in a child that was forked from a process that
            may have used it.
    """
    processes = _loaded.setdefault(
        name, PerProcess(lambda: (threading.Lock(), []), keeps_parents=True)
    )
    lock, modules = processes.get()
    with lock:
        if not modules:
            # A child of a process that has it imported cannot know whether it was used
            # there.
            was_forked = multiprocessing.parent_process() is not None and name in sys.modules
            modules.append(in_fork() if was_forked or processes.was_forked else first())
        return modules[0]


def compiled_copy(name: str) -> ModuleType:
    """Load a compiled module once more, from a copy of its file: what is loaded from the same file
    is the same.

    `sys.modules` is not changed.

    Raises:
        ImportError: There is no such module, or it cannot be loaded twice.
    """
    original = importlib.util.find_spec(name)
    if original is None or original.origin is None:
        raise ImportError(f"no file of {name}")
    content = Path(original.origin).read_bytes()
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create(name), "wb") as file:  # noqa: PTH123 - it has no path
            # new in each process
            return _load_from(name, file, content, f"/proc/{os.getpid()}/fd/{file.fileno()}")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        return _load_from(name, file, content, file.name)


def _load_from(name: str, file: IO[bytes], content: bytes, path: str) -> ModuleType:
    file.write(content)
    file.flush()
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"no module at {path}")
    before = {key: sys.modules[key] for key in (name,) if key in sys.modules}
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    finally:  # some modules register themselves
        sys.modules.pop(name, None)
        sys.modules.update(before)
    return module
