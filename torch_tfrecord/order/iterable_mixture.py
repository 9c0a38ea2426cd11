"""Several streams mixed into one, by weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from torch_tfrecord.arguments import at_least, integer
from torch_tfrecord.order.epoch_count import EpochCount
from torch_tfrecord.order.epochs import STATE_VERSION, check_number, check_state, digest
from torch_tfrecord.order.mixing import (
    WeightedTurns,
    check_stop,
    checked_choices,
    listed_weights,
    mixture_weights,
)
from torch_tfrecord.order.ranks import consumer, resolve_rank
from torch_tfrecord.shown import shown_items, shown_list, shown_value

__all__ = ["IterableMixture"]

_COMPONENT = {"passes", "num_given", "exhausted", "state"}


class IterableMixture(IterableDataset[Any]):
    """Mix several streams into one: at any point each has given its share by weight, to within one
    or two samples.

    This is `Mixture` for iterable datasets. The order is a pure function of the streams, the
    weights and the seed. Each DataLoader worker mixes its own part of each dataset
    (`TFRecordIterableDataset` splits itself over workers), and stops when that part ends. Each
    iteration is the next epoch, from 0, as for `TFRecordIterableDataset`.

    The state holds the place in the mixture and, for each dataset, its own state if it has one (its
    iterator's or its own `state_dict`), else how many samples to skip. It is the state of one
    worker: torchdata's StatefulDataLoader keeps one per worker.

    Args:
        datasets: Iterables: a list, or a dict of names to them. If one has a method
            ``iter_epoch(epoch)``, it is called at each repetition, for the order of another epoch.
        weights, choices, seed, stop: As for `Mixture`. A stream counts as exhausted once it is
            asked for a sample that it does not have.

    Raises:
        ValueError: There are no datasets, or weights or choices do not fit them; during iteration:
            a dataset that must be repeated gave no sample.

    Example:
        >>> "".join(IterableMixture(["abcdef", "12"], weights=[3, 1]))
        'a1bc2def'
    """

    def __init__(
        self,
        datasets: Sequence[Iterable[Any]] | Mapping[str, Iterable[Any]],
        weights: Sequence[float | Fraction | tuple[str, float]] | Mapping[str, float] | None = None,
        *,
        choices: npt.ArrayLike | None = None,
        seed: int = 0,
        stop: str = "first_exhausted",
    ) -> None:
        super().__init__()
        check_stop(stop)
        names = list(datasets) if isinstance(datasets, Mapping) else None
        self._datasets = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
        self._seed = integer("seed", seed)
        self._stop = stop
        self._weights = mixture_weights(
            len(self._datasets), listed_weights(names, weights), choices
        )
        self._choices = (
            None if choices is None else checked_choices(choices, len(self._datasets)).tolist()
        )
        self._epochs = EpochCount()
        self._loaded: Mapping[str, Any] | None = None
        self._running: _MixedStream | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, of the next iteration; later ones count on from it, in
        persistent workers, too.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch.
        """
        self._epochs.choose(at_least(0, "epoch", epoch))
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None

    def __iter__(self) -> Iterator[Any]:
        # A worker counts the epoch here: it cannot know whether a sample will be taken from it, and
        # must stay in step with the other workers.
        has_begun = get_worker_info() is not None
        stream = _MixedStream(self, self._epochs.begin() if has_begun else self._epochs.next())
        stream.count_by(self._epochs, has_begun)
        if self._loaded is not None and self._loaded["epoch"] == stream.epoch:
            stream.load_state_dict(self._loaded)
        return stream

    def iter_epoch(self, epoch: int) -> Iterator[Any]:
        """Iterate over one epoch from its beginning, whichever epoch is next; does not change which
        one is next.
        """
        return _MixedStream(self, at_least(0, "epoch", epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the latest iteration."""
        if self._running is not None:
            return self._running.state_dict()
        return (
            dict(self._loaded)
            if self._loaded is not None
            else _MixedStream(self, self._epochs.next()).state_dict()
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state in the next iteration; the ones after it are whole epochs.

        Raises:
            ValueError: The state has another version, seed, weights, choices or stop (the message
                gives both values); or a field is not valid (the message names it). During
                iteration: the state is of another worker or rank, or of another number of them.
        """
        self._check_state(state_dict)
        self._loaded, self._running = state_dict, None
        self._epochs.choose(state_dict["epoch"])

    def _check_state(self, state: Mapping[str, Any]) -> None:
        most_turns = None if self._choices is None else len(self._choices)
        numbers = {"epoch": None, "phase": len(self._datasets), "turn": most_turns}
        check_state(state, self._identity(), numbers, ("components", "consumer", "left"))
        components, here = state["components"], state["consumer"]
        if not isinstance(components, list) or len(components) != len(self._datasets):
            raise ValueError(
                f"components: expected the states of {len(self._datasets)} datasets, got {shown_value(components)}"
            )
        for number, (dataset, component) in enumerate(zip(self._datasets, components, strict=True)):
            _check_component(f"components[{number}]", dataset, component)
        if not isinstance(here, list) or len(here) != 2:
            raise ValueError(
                f"consumer must be [number, how many there are] in the state, got {shown_value(here)}"
            )
        check_number("consumer[1]", here[1], 1 << 31)
        check_number("consumer[0]", here[0], here[1] - 1)
        self._check_turns(state)

    def _check_turns(self, state: Mapping[str, Any]) -> None:
        """Check how many samples each dataset gave against the turns it had."""
        left, components = state["left"], state["components"]
        having = list(range(len(components)))
        if self._stop == "all_exhausted_without_replacement":
            having = [number for number in having if not components[number]["exhausted"]]
        if (
            not isinstance(left, list)
            or any(type(number) is not int for number in left)
            or left not in (having, [])
        ):
            raise ValueError(
                f"left must be {shown_value(having)} or [] in the state, got {shown_value(left)}"
            )
        if left and state["phase"] != len(components) - len(left):
            raise ValueError(
                f"phase must be {len(components) - len(left)} in the state, got {state['phase']}"
            )
        most = (
            self._turns_of_each(state["turn"])
            if left and not state["phase"]
            else [None] * len(components)
        )
        for number, (component, turns) in enumerate(zip(components, most, strict=True)):
            given, passes = component["num_given"], component["passes"]
            if passes and (
                self._stop not in ("never", "all_exhausted") or not component["exhausted"]
            ):
                raise ValueError(
                    f"components[{number}]['passes'] must be 0 in the state, got {passes}"
                )
            # each pass has given at least one sample
            if turns is not None and given + passes > turns:
                raise ValueError(
                    f"components[{number}]: expected at most {turns} samples by turn {state['turn']} in the state, "
                    f"got num_given={given}, passes={passes}"
                )

    def _turns_of_each(self, num_turns: int) -> list[int]:
        if self._choices is None:
            return WeightedTurns(self._weights, self._seed, 0).counts(num_turns)
        counts: list[int] = np.bincount(
            self._choices[:num_turns], minlength=len(self._datasets)
        ).tolist()
        return counts

    def _identity(self) -> dict[str, Any]:
        choices = None if self._choices is None else digest(np.array(self._choices, np.int64))
        return {
            "weights": self._weights,
            "choices": choices,
            "seed": self._seed,
            "stop": self._stop,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    def __repr__(self) -> str:
        weights = shown_list(self._weights)
        return f"IterableMixture({len(self._datasets)} datasets, weights=[{weights}]: {shown_items(self._datasets)})"


class _Component:
    """One dataset of a mixture, repeated as often as needed."""

    def __init__(self, number: int, dataset: Any, epoch: int) -> None:
        self._number = number
        self._dataset = dataset
        self._epoch = epoch
        self._iterator: Iterator[Any] | None = None
        self._passes = 0
        self._num_given = 0  # in this pass
        self.exhausted = False

    def next(self) -> Any:
        """The next sample; StopIteration at the end of the dataset."""
        if self._iterator is None:
            self._iterator = self._open()
        sample = next(self._iterator)
        self._num_given += 1
        return sample

    def again(self) -> Any:
        """The first sample of the next pass."""
        if not self._num_given:
            raise ValueError(
                f"dataset {self._number} is empty: it gave no sample, so it cannot be repeated"
            )
        self._iterator, self._passes, self._num_given = None, self._passes + 1, 0
        try:
            return self.next()
        except StopIteration:
            raise ValueError(
                f"dataset {self._number} gave no sample when it was repeated"
            ) from None

    def _open(self) -> Iterator[Any]:
        if hasattr(self._dataset, "iter_epoch"):
            iterator: Iterator[Any] = self._dataset.iter_epoch(self._epoch + self._passes)
            return iterator
        return iter(self._dataset)

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        holder: Any = self._iterator if _is_stateful(self._iterator) else self._dataset
        inner = holder.state_dict() if self._num_given and _is_stateful(holder) else None
        return {
            "passes": self._passes,
            "num_given": self._num_given,
            "exhausted": self.exhausted,
            "state": inner,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: from the dataset's own state if there is one, else by skipping
        samples.
        """
        self._passes, self._num_given, self.exhausted = (
            state["passes"],
            state["num_given"],
            state["exhausted"],
        )
        if not self._num_given:
            return
        iterator = self._open()
        if state["state"] is None:
            for number in range(self._num_given):
                if next(iterator, self) is self:
                    raise ValueError(
                        f"dataset {self._number} has only {number} samples, but the state has taken {self._num_given}"
                    )
        elif _is_stateful(iterator):
            iterator.load_state_dict(state["state"])  # type: ignore[attr-defined]
        elif _is_stateful(self._dataset):
            self._dataset.load_state_dict(state["state"])
            iterator = self._open()
        else:
            raise ValueError(
                f"the state holds a state of dataset {self._number}, which has no load_state_dict"
            )
        self._iterator = iterator


def _check_component(name: str, dataset: object, state: object) -> None:
    if not isinstance(state, Mapping) or set(state) != _COMPONENT:
        raise ValueError(
            f"{name}: expected a dict with the keys {sorted(_COMPONENT)}, got {shown_value(state)}"
        )
    check_number(f"{name}['passes']", state["passes"])
    check_number(f"{name}['num_given']", state["num_given"])
    if not isinstance(state["exhausted"], bool):
        raise ValueError(
            f"{name}['exhausted'] must be True or False in the state, got {shown_value(state['exhausted'])}"
        )
    inner = state["state"]
    check = getattr(dataset, "_check_state", None)  # of our streams
    if inner is None or check is None:
        return
    try:
        check(inner)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}['state']: {error}") from error


def _is_stateful(holder: object) -> bool:
    return hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict")


class _MixedStream(Iterator[Any]):
    """One iteration of a mixture."""

    def __init__(self, mixture: IterableMixture, epoch: int) -> None:
        self._mixture = mixture
        self._epochs: EpochCount | None = None
        self._has_begun = False
        self._begin(epoch)

    def count_by(self, epochs: EpochCount, has_begun: bool) -> None:
        """Count this iteration when it begins, unless it has begun already."""
        self._epochs, self._has_begun = epochs, has_begun

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._components = [
            _Component(n, ds, epoch) for n, ds in enumerate(self._mixture._datasets)
        ]
        self._left = list(range(len(self._components)))  # those that still have turns
        self._phase, self._turn = 0, 0
        self._turns = self._make_turns()

    def _make_turns(self) -> WeightedTurns | None:
        weights = [self._mixture._weights[component] for component in self._left]
        return WeightedTurns(weights, self._mixture._seed, self._phase) if weights else None

    def __next__(self) -> Any:
        mixture = self._mixture
        if not self._has_begun:
            self._count()
        mixture._running, mixture._loaded = self, None
        while self._left:
            component = self._take_turn()
            if component is None:
                break
            try:
                return component.next()
            except StopIteration:
                component.exhausted = True
            if mixture._stop == "never":
                return component.again()
            if mixture._stop == "all_exhausted" and not all(
                other.exhausted for other in self._components
            ):
                return component.again()
            self._left = self._left_without(component)
            self._phase, self._turn = (
                self._phase + 1,
                self._turn if mixture._choices is not None else 0,
            )
            self._turns = self._make_turns()
        self._left = []
        raise StopIteration

    def _count(self) -> None:
        self._has_begun = True
        epoch = self.epoch if self._epochs is None else self._epochs.begin()
        # since this one was made, an epoch was chosen or another iteration took this one
        if epoch != self.epoch:
            self._begin(epoch)

    def _take_turn(self) -> _Component | None:
        choices: list[int] | None = self._mixture._choices
        while choices is not None and self._turn < len(choices):
            self._turn += 1
            if choices[self._turn - 1] in self._left:
                return self._components[choices[self._turn - 1]]
        if choices is not None or self._turns is None:
            return None
        self._turn += 1
        return self._components[self._left[self._turns.turn(self._turn - 1).component]]

    def _left_without(self, component: _Component) -> list[int]:
        if self._mixture._stop != "all_exhausted_without_replacement":
            return []
        return [number for number in self._left if self._components[number] is not component]

    def state_dict(self) -> dict[str, Any]:
        """The state of this iteration."""
        return {
            "version": STATE_VERSION,
            **self._mixture._identity(),
            "epoch": self.epoch,
            "phase": self._phase,
            "turn": self._turn,
            "left": self._left,
            "components": [component.state_dict() for component in self._components],
            "consumer": list(consumer(resolve_rank(None, None))),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from another iteration's state; StatefulDataLoader calls this."""
        self._mixture._check_state(state_dict)
        here = list(consumer(resolve_rank(None, None)))
        if state_dict["consumer"] != here:
            raise ValueError(
                f"the state is of consumer {state_dict['consumer'][0]} of {state_dict['consumer'][1]} (workers times "
                f"ranks), this is consumer {here[0]} of {here[1]}: resume with as many workers and ranks as before"
            )
        self._begin(state_dict["epoch"])
        self._left, self._phase, self._turn = (
            list(state_dict["left"]),
            state_dict["phase"],
            state_dict["turn"],
        )
        self._turns = self._make_turns()
        for component, state in zip(self._components, state_dict["components"], strict=True):
            component.load_state_dict(state)
        if self._epochs is not None:
            self._epochs.correct(self.epoch)
        self._has_begun = True
        self._mixture._running, self._mixture._loaded = self, None
