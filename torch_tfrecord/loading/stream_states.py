"""The states of the consumers of a stream: found in checkpoints, held against each other, joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch_tfrecord.order.epochs import check_state

__all__ = ["StreamStates", "find_states"]

_MARKS = {"consumer", "num_consumers", "slots"}
_LISTS = ("pieces", "slots", "waiting")
_NUMBERS = ("epoch", "consumer", "num_consumers", "next_piece", "slot", "turn", "draws")


def find_states(holder: Any) -> Iterator[Mapping[str, Any]]:
    """All states of stream consumers in a nest of dicts and lists, such as the state of a StatefulDataLoader.

    Raises:
        ValueError: The state of a loader that steps ahead of its snapshots.
    """
    if isinstance(holder, Mapping):
        if set(holder) >= _MARKS:
            yield holder
            return
        if holder.get("_steps_since_snapshot"):
            raise ValueError(
                f"the StatefulDataLoader's state is {holder['_steps_since_snapshot']} steps behind what it gave; "
                "snapshot_every_n_steps must be 1 for another number of workers or ranks"
            )
        holder = list(holder.values())
    if isinstance(holder, (list, tuple)):
        for item in holder:
            yield from find_states(item)


class StreamStates:
    """The states of some or all consumers (workers times ranks) of one epoch of a stream.

    Args:
        holder: One state, several, or whatever holds them.
        identity: What decides the stream's order.

    Raises:
        ValueError: No state, or one of another version, stream or epoch than the others; names both values.
    """

    def __init__(self, holder: Any, identity: Mapping[str, Any]) -> None:
        self._states: dict[int, Mapping[str, Any]] = {}
        for state in find_states(holder):
            lists = {key: state[key] for key in _LISTS if key in state}
            check_state(state, {**identity, **lists}, dict.fromkeys(_NUMBERS))
            self._add(state)
        if not self._states:
            raise ValueError("expected the state of a TFRecordIterableDataset, or what holds some, found none")

    def _add(self, state: Mapping[str, Any]) -> None:
        if not state["consumer"] < state["num_consumers"]:
            raise ValueError(f"the state is of consumer {state['consumer']} of {state['num_consumers']}")
        for other in self._states.values():
            for key in ("epoch", "num_consumers"):
                if state[key] != other[key]:
                    raise ValueError(f"the states are not of one moment: {key} is {other[key]} and {state[key]}")
        if self._states.setdefault(state["consumer"], state) != state:
            raise ValueError(f"two different states of consumer {state['consumer']} of {state['num_consumers']}")

    @property
    def epoch(self) -> int:
        """The epoch that they are of."""
        return self._any()["epoch"]  # type: ignore[no-any-return]

    def _any(self) -> Mapping[str, Any]:
        return next(iter(self._states.values()))

    def of(self, consumer: int, num_consumers: int) -> Mapping[str, Any] | None:
        """The state of this consumer; None where there were more or fewer of them."""
        return self._states.get(consumer) if self._any()["num_consumers"] == num_consumers else None

    def all(self, consumer: int, num_consumers: int) -> Sequence[Mapping[str, Any]]:
        """The states of all consumers.

        Raises:
            ValueError: Some are missing; names them, and for whom they are needed.
        """
        before = self._any()["num_consumers"]
        missing = [number for number in range(before) if number not in self._states]
        if missing:
            raise ValueError(
                f"consumer {consumer} of {num_consumers} (workers times ranks) cannot go on from the states of "
                f"consumers {sorted(self._states)} of {before}: give load_state_dict those of all {before}, "
                f"{missing} are missing"
            )
        return [self._states[number] for number in range(before)]
