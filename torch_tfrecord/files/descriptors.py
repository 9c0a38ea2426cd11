"""A pool of few open files for any number of sources and threads: closed when others need one, and
reopened.

A limit of 32 open files must be enough for thousands of shards, so a reader keeps a descriptor only
while it reads. Its other state (offsets, a decompressor) is kept, as every read names its offset.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch_tfrecord.per_process import PerProcess

__all__ = [
    "Descriptor",
    "Owner",
    "open_descriptor",
    "open_if_free",
    "open_path",
    "reserve_descriptor",
]

_Opened = TypeVar("_Opened")
_Path = TypeVar("_Path", bound="str | os.PathLike[str]")
_Rest = ParamSpec("_Rest")

_MOST_OPEN = 256
_WAIT_SECONDS = 0.001
_MOST_WAITS = 2000  # then open one more: the others may be held by exceptions that somebody keeps
_TOO_MANY = (errno.EMFILE, errno.ENFILE)


class Owner(Protocol):
    """An object that keeps a descriptor between reads, but can do without."""

    _held: Descriptor | None


class Descriptor:
    """An open file, closed with its last reference: a reader keeps one until the read has ended.

    Attributes:
        number: The file descriptor.
        is_used: Whether it was read from since the pool last checked.
        holds: Keeps a file open in place of the number: see `reserve_descriptor`.
    """

    __slots__ = ("__weakref__", "_pool", "holds", "is_used", "number")

    def __init__(self, pool: _Pool) -> None:
        self.number = -1
        self.holds: Any = None
        self.is_used = True
        self._pool = pool
        pool.alive.add(id(self))

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
        # Clock eviction: a descriptor that was used gets another turn.
        self._owners: deque[tuple[weakref.ref[Owner], weakref.ref[Descriptor]]] = deque()

    def reserve(self, owner: Owner) -> Descriptor:
        """A descriptor that is not open yet; waits if readers hold all of them."""
        for _ in range(_MOST_WAITS):
            held = self.reserve_free(owner)
            if held is not None:
                return held
            time.sleep(_WAIT_SECONDS)
        with self._lock:
            return self._new(owner)

    def reserve_free(self, owner: Owner) -> Descriptor | None:
        """A descriptor that is not open yet; None if readers hold all of them."""
        with self._lock:
            return self._new(owner) if len(self.alive) < _most_open() or self._close_one() else None

    def _new(self, owner: Owner) -> Descriptor:
        if len(self._owners) > 4 * _MOST_OPEN:  # most of them are closed
            self._owners = deque(pair for pair in self._owners if pair[1]() is not None)
        held = Descriptor(self)
        self._owners.append((weakref.ref(owner), weakref.ref(held)))
        return held

    def _close_one(self) -> bool:
        """Take a descriptor from its owner; False if all are being read from."""
        for _ in range(2 * len(self._owners)):
            if not self._owners:
                break
            pair = self._owners.popleft()
            owner, held = pair[0](), pair[1]()
            if held is None:
                continue
            # being opened or read, or read recently
            if owner is None or owner._held is not held or held.is_used:
                held.is_used = False
                self._owners.append(pair)
                continue
            before = len(self.alive)
            owner._held = held = None
            if len(self.alive) < before:
                return True
            self._owners.append(pair)
        return False

    def close_all(self) -> None:
        """Take the descriptors from all owners."""
        with self._lock:
            while self._close_one():
                pass


# A fork may have copied a lock held by another thread, and descriptors in use.
_POOL = PerProcess(_Pool)


def open_descriptor(path: str, owner: Owner) -> Descriptor:
    """Open a file for reading, without blocking on a FIFO; if too many are open, wait for a reader
    to finish.

    Args:
        owner: Keeps it as `_held`, which may later become None.

    Raises:
        OSError: See `open`; if the process has too many open files, the error names the limit.
    """
    return _open(path, _POOL.get().reserve(owner))


def open_if_free(path: str, owner: Owner) -> Descriptor | None:
    """Like `open_descriptor`, but return None if too many are open.

    For callers that already hold some: two of them could wait for each other forever.
    """
    held = _POOL.get().reserve_free(owner)
    return None if held is None else _open(path, held)


def reserve_descriptor(owner: Owner) -> Descriptor:
    """A place among the open files for a file that another package opens: its reader goes into
    `holds`.

    Args:
        owner: See `open_descriptor`.
    """
    return _POOL.get().reserve(owner)


def _open(path: str, held: Descriptor) -> Descriptor:
    held.number = open_path(os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return held


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
    return max(4, min(_MOST_OPEN, (soft_limit if soft_limit > 0 else 1024) // 4))
