"""The iterations of a stream: their epochs, counted across the processes that iterate together, and
the states from which they go on.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any, TypeAlias

from torch.utils.data import get_worker_info

from torch_tfrecord.order import StateForm, digest
from torch_tfrecord.shown import shown_value

__all__ = ["ORIGIN", "EpochCount", "State", "StreamStates", "signed"]

State: TypeAlias = Mapping[str, Any]
"""Where one consumer is, and in which stream: JSON values by name."""

_MOST_RUNS = 32  # iterations of one process that may be beginning at the same time
_MOST_OWNERS = 200  # processes that share a dataset


class EpochCount:
    """The epochs of a stream's iterations: 0, 1, 2, ..., or counted on from the epoch you chose.

    A DataLoader copies its dataset into each worker, and does not let the copies know that they begin
    the same iteration. They must agree on its epoch, since files are split over workers in the
    epoch's order. So the first worker of an iteration takes the next epoch, and the others find it
    in an unnamed file, which forked and spawned workers share. Workers recognise each other by the
    seed that their loader drew, and by the numbers of their processes; each of them is in an iteration once.

    Each process that iterates, or has loaders, counts by itself: training processes that share a
    dataset do not count each other's iterations. A pickle or a copy counts by itself, from the
    current state on.

    Args:
        epoch, number: Those of the first iteration.
        file: The file of another one, as it arrives in a process that was started with it.

    Example:
        >>> epochs = EpochCount()
        >>> epochs.begin(), epochs.begin()
        ((0, 0), (1, 1))
        >>> epochs.choose(7)
        >>> epochs.begin(), epochs.next()
        ((2, 7), (3, 8))
    """

    def __init__(self, epoch: int = 0, number: int = 0, file: Any = None) -> None:
        self._file = _nameless_file() if file is None else file.detach()
        weakref.finalize(self, os.close, self._file).atexit = False
        if file is None:
            own = {"next": epoch, "number": number, "runs": []}
            os.pwrite(self._file, json.dumps({_owner(): own}).encode(), 0)
        self._chosen: int | None = None  # in a worker, for that worker only

    def next(self) -> tuple[int, int]:
        """Number and epoch of an iteration that would begin now."""
        with self._own() as own:
            return own["number"], own["next"] if self._chosen is None else self._chosen

    def choose(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; later ones count on from it."""
        # each worker chooses for itself, before or after another one has begun
        if get_worker_info() is not None:
            self._chosen = epoch
            return
        with self._own() as own:
            own["next"] = epoch

    def begin(self) -> tuple[int, int]:
        """Begin an iteration; all workers of a DataLoader begin the same one.

        Returns:
            Its number, from 0, and its epoch.
        """
        worker: Any = get_worker_info()
        member = 0 if worker is None else worker.id
        seed, place = None if worker is None else worker.seed - member, _process_number() - member
        epoch, self._chosen = self._chosen, None
        with self._own() as own:
            # The earliest that lacks this worker: another one may be an iteration ahead. Two loaders
            # may draw one seed (torch.manual_seed); then the numbers of their processes differ, which
            # alone are not enough: another thread may start processes in between.
            runs = [
                run for run in own["runs"] if run["seed"] == seed and member not in run["members"]
            ]
            run = next((run for run in runs if run["place"] == place), runs[0] if runs else None)
            if run is None:
                epoch = own["next"] if epoch is None else epoch
                run = {"seed": seed, "place": place, "number": own["number"], "members": []}
                own["runs"] = [*own["runs"][1 - _MOST_RUNS :], run]
                own["number"] += 1
            if epoch is not None:
                run["epoch"], own["next"] = epoch, epoch + 1
            run["members"].append(member)
            return run["number"], run["epoch"]

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
            first, *others = owners
            yield owners.setdefault(_owner(), {**owners[first], "runs": []})
            for owner in others[:-_MOST_OWNERS]:
                del owners[owner]
            # One padded write, so that it is never truncated.
            os.pwrite(self._file, json.dumps(owners).encode().ljust(len(before)), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __reduce__(self) -> Any:
        if get_spawning_popen() is None:
            return EpochCount, self.next()[::-1]
        return EpochCount, (
            0,
            0,
            reduction.DupFd(self._file),
        )  # into a process that this one starts


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("torch_tfrecord-epochs")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _process_number() -> int:
    """Number of this process among its parent's children."""
    numbers = re.findall(r"\d+", multiprocessing.current_process().name)
    return int(numbers[-1]) if numbers else 0


def _owner() -> str:
    """The process that iterates, or whose DataLoader does."""
    parent = None if get_worker_info() is None else multiprocessing.parent_process()
    return str(os.getpid() if parent is None else parent.pid)


# States.

ORIGIN = ("epoch", "consumer", "num_consumers", "pieces")
"""The keys that a stream and its state share: whose part of an epoch it is."""

_MARKS = {"consumer", "num_consumers", "slots"}
_DEEPEST = 50  # in a StatefulDataLoader's state they are nested in four dicts
_MOST_NAMED = 10


def signed(state: State) -> dict[str, Any]:
    """A state with the checksum that says whether it has changed since."""
    return {**state, "checksum": _checksum(state)}


def _checksum(state: State) -> str:
    values = {key: value for key, value in state.items() if key != "checksum"}
    try:
        return digest(json.dumps(values, sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        return f"none: {type(error).__name__}"


class StreamStates:
    """The states of some or all consumers (workers times ranks) of one epoch of a stream.

    Args:
        holder: One state, several, or nested dicts and lists of them, such as the state of a
            StatefulDataLoader.
        identity: What decides the stream's order.
        number: Number of the iteration that goes on from them; None in a worker, which loads its own.

    Attributes:
        epoch: Their epoch.

    Raises:
        ValueError: There is no state; one has another version, stream or epoch than the others (the
            message gives both values) or was changed; the loader's state was taken between two
            snapshots; or dicts and lists are nested too deeply.
    """

    def __init__(self, holder: object, identity: State, number: int | None) -> None:
        self.number = number
        self._states: dict[int, State] = {}
        place = {"next_piece", "slots", "slot", "turn", "draws", "waiting", "ahead"}
        keys = {"checksum", *ORIGIN, *place}
        first: State | None = None
        for state in _find(holder):
            StateForm.check(state, identity, keys)
            if state["checksum"] != (made := _checksum(state)):
                raise ValueError(
                    "the state is not as state_dict returned it: expected the checksum "
                    f"{shown_value(state['checksum'])}, got {made!r}"
                )
            first = first or state
            for key in ("epoch", "num_consumers"):
                if state[key] != first[key]:
                    raise ValueError(
                        f"the states are not of the same moment: {key} is {first[key]} and {state[key]}"
                    )
            other = self._states.setdefault(state["consumer"], state)
            if other["checksum"] != state["checksum"]:
                raise ValueError(
                    f"two different states of consumer {state['consumer']} of {state['num_consumers']}"
                )
        if first is None:
            raise ValueError(
                "expected the state of a TFRecordIterableDataset, or dicts or lists of them, got none"
            )
        self.epoch: int = first["epoch"]
        self._num_consumers: int = first["num_consumers"]

    def of(self, consumer: int, num_consumers: int) -> State | None:
        """The state of this consumer; None if there were more or fewer consumers."""
        return self._states.get(consumer) if self._num_consumers == num_consumers else None

    def all(self, consumer: int, num_consumers: int) -> Sequence[State]:
        """The states of all consumers.

        Raises:
            ValueError: Some are missing; the message names them, and the consumer that needs them.
        """
        before = range(self._num_consumers)
        missing = [number for number in before if number not in self._states]
        if missing:
            raise ValueError(
                f"consumer {consumer} of {num_consumers} (workers times ranks) cannot resume from the states of "
                f"consumers {_some(sorted(self._states))} of {len(before)}: pass load_state_dict those of all "
                f"{len(before)}, {_some(missing)} are missing"
            )
        return [self._states[number] for number in before]


def _find(holder: object, depth: int = 0) -> Iterator[State]:
    """All states of stream consumers in nested dicts and lists."""
    if depth > _DEEPEST:
        raise ValueError(
            f"expected the states of consumers within {_DEEPEST} nested dicts and lists, got more"
        )
    if isinstance(holder, Mapping):
        if set(holder) >= _MARKS:
            yield holder
            return
        steps = holder.get("_steps_since_snapshot", 0)
        StateForm.check_number("_steps_since_snapshot", steps)
        if steps:
            raise ValueError(
                f"the StatefulDataLoader's state is {steps} steps behind what it yielded; to resume with another "
                "number of workers or ranks, snapshot_every_n_steps must be 1"
            )
        holder = list(holder.values())
    if isinstance(holder, (list, tuple)):
        for item in holder:
            yield from _find(item, depth + 1)


def _some(numbers: list[int]) -> str:
    return (
        str(numbers) if len(numbers) <= _MOST_NAMED else f"{str(numbers[:_MOST_NAMED])[:-1]}, ...]"
    )
