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

# How many loaders' iterators, processes with loaders, and epochs of an iterator are remembered:
# about 4 KiB.
_MOST_RUNS, _MOST_OWNERS, _MOST_SPANS = 32, 64, 8


class EpochCount:
    """The epochs of a stream's iterations: 0, 1, 2, ..., or counted on from the epoch you chose.

    A DataLoader copies its dataset into each worker, and does not tell the copies that they begin
    the same iteration. They must agree on its epoch, since files are split over workers in the
    epoch's order. So the first worker of an iteration takes the next epoch, and the others find it
    in an unnamed file, which forked and spawned workers share. Workers recognise each other by the
    seed that their loader drew, and by their numbers among its processes.

    Each process that iterates, or has loaders, counts by itself: training processes that share a
    dataset do not count each other's iterations. A pickle or a copy counts by itself, from the
    current state on.

    Example:
        >>> epochs = EpochCount()
        >>> epochs.begin(), epochs.begin()
        (0, 1)
        >>> epochs.choose(7)
        >>> epochs.begin(), epochs.next()
        (7, 8)
    """

    def __init__(self) -> None:
        self._attach(_nameless_file())
        os.pwrite(
            self._file, _encoded({"origin": os.getpid(), "next": {}, "runs": [], "num_runs": 0}), 0
        )

    def _attach(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file).atexit = False
        self._chosen: int | None = None  # in a worker, for that worker only
        self._run = (
            0,
            -1,
            -1,
        )  # this process, the loader's iterator that it serves, its iterations so far

    def next(self) -> int:
        """The epoch of an iteration that would begin now."""
        if self._chosen is not None:
            return self._chosen
        with self._facts() as facts:
            return _next_of(facts, _owner())

    def choose(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; later ones count on from it."""
        # each worker chooses for itself, before or after another one has begun
        if get_worker_info() is not None:
            self._chosen = epoch
            return
        with self._facts() as facts:
            _set_next(facts, _owner(), epoch)

    def begin(self) -> int:
        """Begin an iteration; all workers of a DataLoader begin the same one.

        Returns:
            Its epoch.
        """
        chosen, self._chosen = self._chosen, None
        with self._facts() as facts:
            if get_worker_info() is not None:
                return self._begin_in_worker(facts, chosen)
            epoch = _next_of(facts, _owner())
            _set_next(facts, _owner(), epoch + 1)
            return epoch

    def correct(self, epoch: int) -> None:
        """Correct the epoch of this process's latest iteration; the next one follows it."""
        with self._facts() as facts:
            if get_worker_info() is None:
                _set_next(facts, _owner(), epoch + 1)
            elif self._run[0] == os.getpid():
                _epoch_of(facts, _find_run(facts, self._run[1]), self._run[2], epoch)

    def _begin_in_worker(self, facts: dict[str, Any], chosen: int | None) -> int:
        process, number, iterations = self._run
        if process != os.getpid():
            run, iterations = _join(facts), -1
        else:
            run = _find_run(facts, number)
        self._run = (os.getpid(), run["number"], iterations + 1)
        return _epoch_of(facts, run, iterations + 1, chosen)

    @contextmanager
    def _facts(self) -> Iterator[dict[str, Any]]:
        """What the processes share; only one of them at a time reads and changes it."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # the system releases it if a process dies
        try:
            before = os.pread(self._file, os.fstat(self._file).st_size, 0)
            facts = json.loads(before)
            yield facts
            # One padded write, so that it is never truncated.
            os.pwrite(self._file, _encoded(facts).ljust(len(before)), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __reduce__(self) -> Any:
        if get_spawning_popen() is not None:  # pickled into a process that this one starts
            return _attached, (reduction.DupFd(self._file),)
        with self._facts() as facts:
            return _copied, (_encoded({**facts, "runs": []}),)


def _attached(file: Any) -> EpochCount:
    count = EpochCount.__new__(EpochCount)
    count._attach(file.detach())
    return count


def _copied(facts: bytes) -> EpochCount:
    count = EpochCount.__new__(EpochCount)
    count._attach(_nameless_file())
    os.pwrite(count._file, facts, 0)
    return count


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torch_tfrecord-epochs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _encoded(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()


# Owners: the processes that iterate, or whose DataLoaders do.


def _owner() -> int:
    parent = None if get_worker_info() is None else multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def _next_of(facts: dict[str, Any], owner: int) -> int:
    epochs = facts["next"]
    # A training process that was started after the dataset was made continues from the dataset's
    # count.
    epoch: int = epochs.get(str(owner), epochs.get(str(facts["origin"]), 0))
    return epoch


def _set_next(facts: dict[str, Any], owner: int, epoch: int) -> None:
    epochs = facts["next"]
    epochs.pop(str(owner), None)
    epochs[str(owner)] = epoch
    if len(epochs) > _MOST_OWNERS:
        del epochs[next(key for key in epochs if key != str(facts["origin"]))]


# Runs: iterators of DataLoaders, each with its workers. Persistent workers iterate several times.


def _join(facts: dict[str, Any]) -> dict[str, Any]:
    """The run of this worker, which begins its first iteration."""
    worker: Any = get_worker_info()
    owner, seed, bit = _owner(), worker.seed - worker.id, 1 << worker.id
    place = _process_number() - worker.id
    runs = [run for run in facts["runs"] if (run["owner"], run["seed"]) == (owner, seed)]
    # Two runs may have the same seed (torch.manual_seed); then the workers' numbers among the
    # process's children tell them apart. Those numbers alone are not enough: another thread may
    # start processes in between.
    found = [run for run in runs if run["place"] == place][-1:] or [
        run for run in runs[-1:] if not run["joined"] & bit
    ]
    if not found or found[0]["joined"] & bit:
        facts["num_runs"] += 1
        found = [_new_run(facts["num_runs"], owner, seed, place)]
        facts["runs"].append(found[0])
        del facts["runs"][:-_MOST_RUNS]
    found[0]["joined"] |= bit
    return found[0]  # type: ignore[no-any-return]


def _new_run(number: int, owner: int, seed: int, place: int) -> dict[str, Any]:
    # `spans`: pairs of an iteration's number and its epoch; the epochs of later iterations count on
    # from it.
    return {
        "number": number,
        "owner": owner,
        "seed": seed,
        "place": place,
        "joined": 0,
        "last": -1,
        "spans": [],
    }


def _process_number() -> int:
    """Number of this process among its parent's children."""
    numbers = re.findall(r"\d+", multiprocessing.current_process().name)
    return int(numbers[-1]) if numbers else 0


def _find_run(facts: dict[str, Any], number: int) -> dict[str, Any]:
    runs = facts["runs"]
    for place, run in enumerate(runs):
        if run["number"] == number:
            runs.append(runs.pop(place))  # the most recently used runs are kept
            return runs[-1]  # type: ignore[no-any-return]
    runs.append(_new_run(number, _owner(), -1, -1))
    del runs[:-_MOST_RUNS]
    return runs[-1]  # type: ignore[no-any-return]


def _epoch_of(
    facts: dict[str, Any], run: dict[str, Any], iteration: int, chosen: int | None
) -> int:
    """The epoch of a run's iteration: the one another worker has set, else the chosen one, else the
    next one.
    """
    spans, known = run["spans"], None
    for first, epoch in spans:
        if first <= iteration <= run["last"]:
            known = epoch + iteration - first
    if known is not None and chosen in (None, known):
        return known  # type: ignore[no-any-return]
    following = _next_of(facts, run["owner"])
    epoch = following if chosen is None else chosen
    if known is None or following == known + 1:  # unless another epoch was chosen since
        _set_next(facts, run["owner"], epoch + 1)
    run["last"] = max(run["last"], iteration)
    if known is not None or not spans or spans[-1][1] + iteration - spans[-1][0] != epoch:
        run["spans"] = [span for span in spans if span[0] < iteration][1 - _MOST_SPANS :]
        run["spans"].append([iteration, epoch])
    return epoch
