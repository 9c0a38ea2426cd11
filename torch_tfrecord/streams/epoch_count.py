"""The epoch of each iteration of a stream, counted across the processes that iterate together."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

__all__ = ["EpochCount"]

# Processes with loaders; iterators of loaders in each, and iterations of each of those. More than
# there are at a time: about 100 bytes each.
_MOST_OWNERS, _MOST_RUNS, _MOST_EPOCHS = 256, 32, 4


class EpochCount:
    """The epochs of a stream's iterations: 0, 1, 2, ..., or counted on from the epoch you chose.

    A DataLoader copies its dataset into each worker, and does not let the copies know that they begin
    the same iteration. They must agree on its epoch, since files are split over workers in the
    epoch's order. So the first worker of an iteration takes the next epoch, and the others find it
    in an unnamed file, which forked and spawned workers share. Workers recognise each other by the
    seed that their loader drew, and by their numbers among its processes.

    Each process that iterates, or has loaders, counts by itself: training processes that share a
    dataset do not count each other's iterations. A pickle or a copy counts by itself, from the
    current state on.

    Args:
        epoch: The first one.
        file: The file of another one, as it arrives in a process that was started with it.

    Example:
        >>> epochs = EpochCount()
        >>> epochs.begin(), epochs.begin()
        (0, 1)
        >>> epochs.choose(7)
        >>> epochs.begin(), epochs.next()
        (7, 8)
    """

    def __init__(self, epoch: int = 0, file: Any = None) -> None:
        self._file = _nameless_file() if file is None else file.detach()
        weakref.finalize(self, os.close, self._file).atexit = False
        if file is None:
            os.pwrite(self._file, _encoded({_owner(): {"next": epoch, "runs": {}}}), 0)
        self._chosen: int | None = None  # in a worker, for that worker only
        self._worker = 0  # the process that the next two are of
        self._run, self._iteration = "", -1

    def next(self) -> int:
        """The epoch of an iteration that would begin now."""
        with self._own() as own:
            return own["next"] if self._chosen is None else self._chosen

    def choose(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; later ones count on from it."""
        # each worker chooses for itself, before or after another one has begun
        if get_worker_info() is not None:
            self._chosen = epoch
            return
        with self._own() as own:
            own["next"] = epoch

    def begin(self) -> int:
        """Begin an iteration; all workers of a DataLoader begin the same one.

        Returns:
            Its epoch.
        """
        chosen, self._chosen = self._chosen, None
        return self._count(chosen, 1)

    def correct(self, epoch: int) -> None:
        """Correct the epoch of this process's latest iteration; the next one follows it."""
        self._count(epoch, 0)

    def _count(self, chosen: int | None, step: int) -> int:
        """The epoch of an iteration: the one another worker has set, else the chosen one, else the
        next one.
        """
        with self._own() as own:
            epochs = {} if get_worker_info() is None else self._epochs(own["runs"])
            self._iteration += step
            epoch = epochs.get(place := str(self._iteration))
            if epoch is None or chosen not in (None, epoch):
                epochs[place] = epoch = own["next"] if chosen is None else chosen
                own["next"] = epoch + 1
                _keep_last(_MOST_EPOCHS, epochs)
            return epoch

    def _epochs(self, runs: dict[str, Any]) -> dict[str, int]:
        """The epochs, by iteration, of the loader's iterator that this worker serves: of several
        where workers persist.
        """
        if self._worker != os.getpid():
            self._worker, self._run, self._iteration = os.getpid(), _join(runs), -1
        run = runs[self._run] = runs.pop(self._run, None) or _new_run()
        _keep_last(_MOST_RUNS, runs)  # those most recently used
        return run["epochs"]  # type: ignore[no-any-return]

    @contextmanager
    def _own(self) -> Iterator[dict[str, Any]]:
        """All that this process shares with its workers, or they with it; only one at a time reads and
        changes it.
        """
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # the system releases it if a process dies
        try:
            before = os.pread(self._file, os.fstat(self._file).st_size, 0)
            owners = json.loads(before)
            # A training process that was started after the dataset was made continues from the
            # dataset's count.
            origin = next(iter(owners))
            yield owners.setdefault(_owner(), {"next": owners[origin]["next"], "runs": {}})
            _keep_last(_MOST_OWNERS, owners, origin)
            # One padded write, so that it is never truncated.
            os.pwrite(self._file, _encoded(owners).ljust(len(before)), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            return EpochCount, (self.next(),)
        return EpochCount, (0, reduction.DupFd(self._file))  # into a process that this one starts


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torch_tfrecord-epochs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _encoded(owners: dict[str, Any]) -> bytes:
    return json.dumps(owners, separators=(",", ":")).encode()


def _keep_last(most: int, entries: dict[str, Any], kept: str = "") -> None:
    for key in [key for key in entries if key != kept][:-most]:
        del entries[key]


def _owner() -> str:
    """The process that iterates, or whose DataLoader does."""
    parent = None if get_worker_info() is None else multiprocessing.parent_process()
    return str(os.getpid() if parent is None else parent.pid)


def _new_run() -> dict[str, Any]:
    return {"joined": [], "epochs": {}}


def _join(runs: dict[str, Any]) -> str:
    """The key of the run of this worker, which begins its first iteration: the loader's seed, and
    the number among the process's children of its first worker.
    """
    worker: Any = get_worker_info()
    seed = f"{worker.seed - worker.id} "
    # Two runs may have the same seed (torch.manual_seed); then the workers' numbers keep them
    # apart. Those alone are not enough: another thread may start processes in between.
    own = f"{seed}{_process_number() - worker.id}"
    run = own if own in runs else next((key for key in reversed(runs) if key.startswith(seed)), own)
    if worker.id in runs.get(run, _new_run())["joined"]:
        run = own
    runs.setdefault(run, _new_run())["joined"].append(worker.id)
    return run


def _process_number() -> int:
    """Number of this process among its parent's children."""
    numbers = re.findall(r"\d+", multiprocessing.current_process().name)
    return int(numbers[-1]) if numbers else 0
