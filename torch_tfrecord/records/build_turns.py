"""One process at a time builds what is kept beside a data file; the others wait for it, or build
another one meanwhile.

A lock of the kernel's says who builds: it goes with its process, however that ends. Where the file
system has no locks, or nothing can be written, each process builds for itself; what is kept appears
whole or not at all in any case.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from torch_tfrecord.errors import outer_level
from torch_tfrecord.files.descriptors import opened
from torch_tfrecord.files.temporaries import hidden_name, is_at
from torch_tfrecord.shown import printable

__all__ = ["Waiting", "build_alone", "in_own_order"]

_ATTEMPTS = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # seconds
_SILENT_SECONDS = 5.0
_MOST_SECONDS = 600.0  # a process may be stopped, or a child of a killed one may hold its lock


@contextlib.contextmanager
def build_alone(
    places: Iterable[str], folder: Callable[[str], contextlib.AbstractContextManager[None]]
) -> Iterator[bool]:
    """Whether this process may build what is kept at the first of these places: False while another
    one builds it.

    Args:
        places: Where it may be kept; the first one that can be written has the lock.
        folder: Makes the folder of a place; OSError where it cannot.
    """
    with contextlib.ExitStack() as held:
        yield next(
            (turn for place in places if (turn := _turn(place, folder, held)) is not None), True
        )


def _turn(
    place: str,
    folder: Callable[[str], contextlib.AbstractContextManager[None]],
    held: contextlib.ExitStack,
) -> bool | None:
    """Whether this process has the lock of a place until `held` is closed; None where there can be
    none.
    """
    lock = Path(place).parent / hidden_name(os.path.basename(place), "lock")
    with contextlib.ExitStack() as own:
        try:
            own.enter_context(folder(place))
            descriptor = _locked(lock)
        except OSError:
            return None
        if descriptor is None:
            return False
        own.callback(_unlock, descriptor, lock)
        held.enter_context(own.pop_all())
        return True


def _locked(path: Path) -> int | None:
    """The descriptor of a lock; None where another process has it.

    Raises:
        OSError: there can be none.
    """
    flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_ATTEMPTS):
        descriptor = opened(os.open, path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        os.close(descriptor)  # its owner removed it meanwhile
    return None


def _unlock(descriptor: int, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
    os.close(descriptor)


class Waiting:
    """Waits for another process that builds, with a warning after some seconds, and not for ever.

    Args:
        path: The data file.
        kind: What is built.
    """

    def __init__(self, path: str, kind: str) -> None:
        self._path, self._kind = path, kind
        self._begin = time.monotonic()
        self._pause = _FIRST_PAUSE
        self._has_warned = False

    @property
    def is_over(self) -> bool:
        """Whether it has taken too long."""
        return time.monotonic() - self._begin > _MOST_SECONDS

    def pause(self) -> None:
        """Let some time pass."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if not self._has_warned and time.monotonic() - self._begin > _SILENT_SECONDS:
            self._has_warned = True
            text = (
                f"{printable(self._path)}: another process builds its {self._kind}; waiting for it"
            )
            warnings.warn(text, stacklevel=outer_level())


def in_own_order(paths: Sequence[str]) -> Iterator[str]:
    """First this rank's share of files, then those of the ranks behind it: ranks that build
    together rarely meet.
    """
    rank, world_size = _rank()
    for number in range(world_size):
        yield from paths[(rank + number) % world_size :: world_size]


def _rank() -> tuple[int, int]:
    """Of torch.distributed where it is initialised, else of torchrun's environment, else 0 of 1."""
    distributed = sys.modules.get("torch.distributed")  # not imported here: that takes seconds
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size):
        return int(rank), int(world_size)
    return 0, 1
