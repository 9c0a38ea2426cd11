"""The states of a stream's consumers: found in checkpoints, checked against each other, joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch_tfrecord.order.epochs import check_number, check_state

__all__ = ["StreamStates", "find_states"]

_MARKS = {"consumer", "num_consumers", "slots"}
_LISTS = ("pieces", "slots", "waiting")
_NUMBERS = ("epoch", "consumer", "num_consumers", "next_piece", "slot", "turn", "draws")
_MOST_CONSUMERS = (1 << 31) - 1
_DEEPEST = 50  # in a StatefulDataLoader's state they are nested in four dicts
_MOST_NAMED = 10


def find_states(holder: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
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
        check_number("_steps_since_snapshot", steps)
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
        holder: One state, several, or nested dicts and lists that hold them.
        identity: What decides the stream's order.

    Raises:
        ValueError: There is no state, or one has another version, stream or epoch than the others;
            the message gives both values.
    """

    def __init__(self, holder: Any, identity: Mapping[str, Any]) -> None:
        self._states: dict[int, Mapping[str, Any]] = {}
        for state in find_states(holder):
            limits = {**dict.fromkeys(_NUMBERS), "num_consumers": _MOST_CONSUMERS}
            # what the lists hold is checked where the pieces are known
            check_state(state, identity, limits, _LISTS)
            self._add(state)
        if not self._states:
            raise ValueError(
                "expected the state of a TFRecordIterableDataset, or dicts or lists of them, got none"
            )

    def _add(self, state: Mapping[str, Any]) -> None:
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

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._states.values())

    def _any(self) -> Mapping[str, Any]:
        return next(iter(self._states.values()))

    def of(self, consumer: int, num_consumers: int) -> Mapping[str, Any] | None:
        """The state of this consumer; None if there were more or fewer consumers."""
        return self._states.get(consumer) if self._any()["num_consumers"] == num_consumers else None

    def all(self, consumer: int, num_consumers: int) -> Sequence[Mapping[str, Any]]:
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
