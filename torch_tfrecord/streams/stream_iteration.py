"""One iteration of a stream by one consumer, and the state that it leaves for the next one."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import get_worker_info

from torch_tfrecord.order import StateForm
from torch_tfrecord.samples import Batch
from torch_tfrecord.shown import shown_value
from torch_tfrecord.streams.epoch_count import EpochCount
from torch_tfrecord.streams.record_stream import RecordStream
from torch_tfrecord.streams.stream_pieces import Piece, deal_out

__all__ = [
    "LastIteration",
    "LoadedStates",
    "State",
    "StreamIteration",
    "StreamStates",
    "check_states",
]

_MOST_WORKERS = 1024

State: TypeAlias = Mapping[str, Any]
"""Where one consumer is, and of which stream: JSON values by name."""


class _Source(Protocol):
    """The stream that is iterated over."""

    def _identity(self) -> State:
        """All that decides the order."""

    def _pieces(self, epoch: int) -> list[Piece]:
        """Everything to read, in the order of an epoch."""

    def _stream(self, pieces: Sequence[Piece], epoch: int, number: int) -> RecordStream:
        """A consumer's records."""

    def _items(self, stream: RecordStream, epoch: int) -> Iterator[Batch]:
        """Samples or batches of them."""

    def _note_begin(self) -> None:
        """Called before the first of them."""


class StreamIteration(Iterator[Batch]):
    """One iteration. It begins with its first sample, since loaders make iterators that they never
    use.

    Args:
        source: What is iterated over.
        consumer: Number of this consumer, and how many there are.
        epoch: From 0.
    """

    def __init__(self, source: _Source, consumer: tuple[int, int], epoch: int) -> None:
        self._source = source
        self._consumer, self._num_consumers = consumer
        self._items: Iterator[Batch] | None = None
        self._epochs: EpochCount | None = None
        self._has_begun = False
        self._begin(epoch, None)
        self.last: LastIteration | None = None  # gets the state when this iterator is dropped

    def count_by(self, epochs: EpochCount, has_begun: bool) -> None:
        """Count this iteration when it begins, unless it has begun already."""
        self._epochs, self._has_begun = epochs, has_begun

    def _begin(self, epoch: int, pieces: list[Piece] | None) -> None:
        self.epoch = epoch
        self._goes_on = False
        self._dealt_anew = pieces is not None
        if pieces is None:
            pieces = deal_out(self._source._pieces(epoch), self._consumer, self._num_consumers)
        self._plan = pieces
        self._stream = self._source._stream(pieces, epoch, self._consumer)

    def __next__(self) -> Batch:
        if self._items is None:
            self._count()
            self._items = self._source._items(self._stream, self.epoch)
        return next(self._items)

    def _count(self) -> None:
        if self._epochs is None:
            return
        if self._goes_on:
            self._epochs.correct(self.epoch)
        elif not self._has_begun:
            epoch = self._epochs.begin()
            # since this one was made, an epoch was chosen or another iteration took this one
            if epoch != self.epoch:
                self._begin(epoch, None)
        self._has_begun = True
        self._source._note_begin()

    def state_dict(self) -> dict[str, Any]:
        """Where this iteration is."""
        return {
            "version": StateForm.VERSION,
            **self._source._identity(),
            "epoch": self.epoch,
            "consumer": self._consumer,
            "num_consumers": self._num_consumers,
            # The pieces follow from the epoch, unless they are the rest that other consumers left.
            "pieces": [piece.as_json() for piece in self._plan] if self._dealt_anew else None,
            **self._stream.place(),
        }

    def load_state_dict(self, state_dict: object) -> None:
        """Resume from another iteration's state; StatefulDataLoader calls this."""
        states = StreamStates(state_dict, self._source._identity())
        check_states(self._source, states)
        self.go_on(states)
        # Only this iteration resumes: the next one yields a whole epoch, even if this one is at its
        # end.
        self._count()

    def go_on(self, states: StreamStates) -> None:
        """Resume from this consumer's state, or from this consumer's part of what all consumers
        left.
        """
        self._items = None
        # With as many consumers as before, each goes on where it was.
        own = states.of(self._consumer, self._num_consumers)
        if own is not None:
            self._begin_as(own)
            self._stream.go_to(own)
            self._goes_on = True
            return
        # With others, all that is left is dealt out again, equally on each.
        left: list[Piece] = []
        for state in states.all(self._consumer, self._num_consumers):
            other = StreamIteration(
                self._source, (state["consumer"], state["num_consumers"]), states.epoch
            )
            other._begin_as(state)
            left += other._stream.left(state)
        self._begin(states.epoch, deal_out(left, self._consumer, self._num_consumers))
        self._goes_on = True

    def _begin_as(self, state: State) -> None:
        num_files, pieces = state["num_files"], state["pieces"]
        if not (pieces is None or isinstance(pieces, list)):
            raise ValueError(
                f"pieces must be a list or None in the state, got {shown_value(pieces)}"
            )
        self._begin(
            state["epoch"],
            None if pieces is None else [Piece.from_json(piece, num_files) for piece in pieces],
        )
        self._stream.check(state, num_files)

    def __del__(self) -> None:
        # Not set if __init__ failed.
        last = getattr(self, "last", None)
        if last is not None:
            try:  # noqa: SIM105
                last.keep(self.state_dict())
            except Exception:  # at interpreter exit, anything may be gone
                pass


def check_states(source: _Source, states: StreamStates) -> None:
    """ValueError, naming the field, for a state that no iteration over this source could have;
    opens no file.
    """
    for state in states:
        StreamIteration(
            source, (state["consumer"], state["num_consumers"]), state["epoch"]
        )._begin_as(state)


class LastIteration:
    """The state of the latest iteration, even after it was dropped; does not keep its files
    open.
    """

    def __init__(self, iteration: StreamIteration) -> None:
        self._iteration = weakref.ref(iteration)
        self._state: dict[str, Any] | None = None
        iteration.last = self

    def keep(self, state: dict[str, Any]) -> None:
        """Called with the state of the iteration when it is dropped."""
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is, or was."""
        iteration = self._iteration()
        if iteration is not None:
            return iteration.state_dict()
        if self._state is None:
            raise RuntimeError(
                "the state of the latest iteration was lost when its iterator was dropped"
            )
        return copy.deepcopy(self._state)


class LoadedStates:
    """States for the next iteration of each worker, and, in shared memory, which workers have used
    theirs.

    A loader that starts new workers for each epoch passes this object to all of them.
    """

    def __init__(self, states: StreamStates) -> None:
        self.states = states
        # Shared memory, since a worker ends with its iteration.
        self._used = torch.zeros(_MOST_WORKERS, dtype=torch.bool)
        self._used.share_memory_()

    def is_for(self, epoch: int) -> bool:
        """Whether this worker's next iteration, of this epoch, resumes from it."""
        return self.states.epoch == epoch and not self._used[_worker_number()]

    def use(self) -> None:
        """Note that this worker has resumed from it."""
        self._used[_worker_number()] = True


def _worker_number() -> int:
    worker = get_worker_info()
    return 0 if worker is None else min(worker.id, _MOST_WORKERS - 1)


# States of several consumers.

_MARKS = {"consumer", "num_consumers", "slots"}
_LISTS = ("pieces", "slots", "waiting")
_NUMBERS = ("epoch", "consumer", "num_consumers", "next_piece", "slot", "turn", "draws")
_MOST_CONSUMERS = (1 << 31) - 1
_DEEPEST = 50  # in a StatefulDataLoader's state they are nested in four dicts
_MOST_NAMED = 10


def find_states(holder: object, depth: int = 0) -> Iterator[State]:
    """All states of stream consumers in nested dicts and lists, such as the state of a
    StatefulDataLoader.

    Raises:
        ValueError: The loader's state was taken between two snapshots, or dicts and lists are
            nested too deeply.
    """
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
            yield from find_states(item, depth + 1)


class StreamStates:
    """The states of some or all consumers (workers times ranks) of one epoch of a stream.

    Args:
        holder: One state, several, or nested dicts and lists of them.
        identity: What decides the stream's order.

    Raises:
        ValueError: There is no state, or one has another version, stream or epoch than the others;
            the message gives both values.
    """

    def __init__(self, holder: object, identity: State) -> None:
        self._states: dict[int, State] = {}
        for state in find_states(holder):
            limits = {**dict.fromkeys(_NUMBERS), "num_consumers": _MOST_CONSUMERS}
            # what is in the lists is checked where the pieces are known
            StateForm(identity, limits, _LISTS).check(state)
            self._add(state)
        if not self._states:
            raise ValueError(
                "expected the state of a TFRecordIterableDataset, or dicts or lists of them, got none"
            )

    def _add(self, state: State) -> None:
        if not state["consumer"] < state["num_consumers"]:
            raise ValueError(
                f"the state is of consumer {state['consumer']} of {state['num_consumers']}"
            )
        for other in self._states.values():
            for key in ("epoch", "num_consumers"):
                if state[key] != other[key]:
                    raise ValueError(
                        f"the states are not of the same moment: {key} is {other[key]} and {state[key]}"
                    )
        if self._states.setdefault(state["consumer"], state) != state:
            raise ValueError(
                f"two different states of consumer {state['consumer']} of {state['num_consumers']}"
            )

    @property
    def epoch(self) -> int:
        """The epoch of the states."""
        return self._any()["epoch"]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[State]:
        return iter(self._states.values())

    def _any(self) -> State:
        return next(iter(self._states.values()))

    def of(self, consumer: int, num_consumers: int) -> State | None:
        """The state of this consumer; None if there were more or fewer consumers."""
        return self._states.get(consumer) if self._any()["num_consumers"] == num_consumers else None

    def all(self, consumer: int, num_consumers: int) -> Sequence[State]:
        """The states of all consumers.

        Raises:
            ValueError: Some are missing; the message names them, and the consumer that needs them.
        """
        before = self._any()["num_consumers"]
        # a state may claim any number, so do not make a list of that length
        if len(self._states) < before:
            missing = islice(
                (number for number in range(before) if number not in self._states), _MOST_NAMED + 1
            )
            raise ValueError(
                f"consumer {consumer} of {num_consumers} (workers times ranks) cannot resume from the states of "
                f"consumers {_some(sorted(self._states))} of {before}: pass load_state_dict those of all {before}, "
                f"{_some(list(missing))} are missing"
            )
        return [self._states[number] for number in range(before)]


def _some(numbers: list[int]) -> str:
    return (
        str(numbers) if len(numbers) <= _MOST_NAMED else f"{str(numbers[:_MOST_NAMED])[:-1]}, ...]"
    )
