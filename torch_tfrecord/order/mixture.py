"""Several datasets mixed into one, by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from fractions import Fraction
from operator import index as as_integer
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torch_tfrecord.arguments import at_least, integer, true_or_false
from torch_tfrecord.order.epoch_count import EpochCount
from torch_tfrecord.order.epochs import STATE_VERSION, check_number, check_state, digest
from torch_tfrecord.order.leaves import (
    Inner,
    draws_at_random,
    join_samples,
    leaf_batches,
    read_leaf,
    salted,
)
from torch_tfrecord.order.mixing import (
    ChoicePlan,
    WeightedPlan,
    WeightedTurns,
    check_stop,
    checked_choices,
    listed_weights,
    mixture_weights,
)
from torch_tfrecord.order.orders import Permutation
from torch_tfrecord.order.position_batch import DrawEpoch
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.order.ranks import consumer, resolve_rank
from torch_tfrecord.shown import shown_items, shown_list, shown_value

__all__ = ["Mixture"]

_Datasets: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
_Weights: TypeAlias = "Sequence[float | Fraction | tuple[str, float]] | Mapping[str, float] | None"
_MAX_ORDERS = 64  # cached orders of passes over a dataset, each at most 128 KiB


class Mixture(Dataset[Any]):
    """Mix several datasets into one: at any point each has given its share by weight, to within one
    or two samples.

    Of map-style datasets it is a map-style one: the sample at a position is a pure function of the
    sizes, the weights and the seed, so samplers, ranks and workers treat it like any other dataset,
    and ``locate(position)`` tells the dataset and the position there. Each dataset's samples come
    in a random order, a new one for each pass over it. In a later epoch (set by `set_epoch`, or by
    the attribute `epoch` of a batch of positions) each dataset continues where the epoch before
    stopped, so that you see all of a long one. `set_weights` changes the weights from a position
    on.

    With a stream among the datasets it is a stream, an `IterableDataset`: each DataLoader worker
    mixes its own part of each dataset (`TFRecordIterableDataset` splits itself over workers), and
    stops when that part ends. Each iteration is the next epoch, from 0. ``state_dict()`` and
    ``load_state_dict(state)`` hold the place in the mixture and, for each dataset, its own state if
    it has one, else how many samples to skip. It is the state of one worker: torchdata's
    StatefulDataLoader keeps one per worker.

    Args:
        datasets: A list, or a dict of names to them: anything with a length and `ds[i]`, or
            iterables. If one of these has a method ``iter_epoch(epoch)``, it is called at each
            repetition, for the order of another epoch.
        weights: Proportions, numbers above 0; None for equal ones. A float counts as the decimal
            that it prints as, and over a long run the proportions are exact. For datasets by name
            also a dict, or pairs such as Octo's and OpenVLA's ``[("bridge_dataset", 1.0), ...]``,
            where the first weight of a name counts.
        balance_weights: Multiply each weight by the dataset's length, as Octo and OpenVLA do; not
            for streams.
        choices: Instead of weights: the number of the dataset for each sample, as for tf.data's
            ``choose_from_datasets``.
        shuffle: False reads each dataset in its own order, which is enough if a sampler shuffles
            the mixture. Streams decide for themselves.
        seed: Decides the orders; an integer of any size.
        stop: When the mixture ends. "first_exhausted": when a dataset has no sample left for its
            turn. "all_exhausted": when every dataset has been read once; shorter ones are repeated
            (torchdata's CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED). "all_exhausted_without_replacement":
            after every sample once; exhausted datasets are skipped (tf.data's
            ``stop_on_empty_dataset=False``, torchdata's ALL_DATASETS_EXHAUSTED). "never": it does
            not end and has no length. A stream counts as exhausted once it is asked for a sample
            that it does not have.
        num_samples: Stop after this many samples at the latest; gives "never" a length; not for
            streams.

    Attributes:
        datasets: The datasets that are mixed.
        names: Their names, if they have any.
        shares: The part of each in the mixture, so that the sum is 1, after the last change of the
            weights; None with `choices`.

    Raises:
        ValueError: There are no datasets, weights or choices do not fit them, or a dataset that
            must be repeated is empty.
        TypeError: You ask for the ``len`` of a mixture that never stops, or give `balance_weights`
            or `num_samples` for streams.

    Example:
        >>> mixture = Mixture(["abcdef", "12"], weights=[3, 1], shuffle=False)
        >>> "".join(mixture[position] for position in range(len(mixture)))
        'a1bc2def'
        >>> "".join(Mixture([iter("abcdef"), iter("12")], weights=[3, 1]))
        'a1bc2def'
    """

    def __new__(cls, datasets: _Datasets = (), *_: object, **__: object) -> Mixture:
        """Choose the kind that fits the datasets."""
        if cls is not Mixture:
            return super().__new__(cls)
        every = datasets.values() if isinstance(datasets, Mapping) else datasets
        return super().__new__(_StreamMixture if any(map(_is_stream, every)) else _MapMixture)

    def __init__(
        self,
        datasets: _Datasets,
        weights: _Weights = None,
        *,
        balance_weights: bool = False,
        choices: npt.ArrayLike | None = None,
        shuffle: bool = True,
        seed: int = 0,
        stop: str = "first_exhausted",
        num_samples: int | None = None,
    ) -> None:
        check_stop(stop)
        self.names = list(datasets) if isinstance(datasets, Mapping) else None
        self.datasets = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
        self._seed, self._stop = integer("seed", seed), stop
        self._shuffle = true_or_false("shuffle", shuffle)
        balanced = true_or_false("balance_weights", balance_weights)
        self._balance = self._factors() if balanced else None
        self._weights = self._whole(weights, choices)
        total = sum(self._weights)
        self.shares = None if choices is not None else [weight / total for weight in self._weights]
        self._set_up(choices, num_samples)

    def _whole(self, weights: _Weights, choices: npt.ArrayLike | None = None) -> list[int]:
        return mixture_weights(
            len(self.datasets), listed_weights(self.names, weights), choices, self._balance
        )

    def _factors(self) -> list[int]:
        """What `balance_weights` multiplies each weight by."""
        raise NotImplementedError

    def _set_up(self, choices: npt.ArrayLike | None, num_samples: int | None) -> None:
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0: where the mixture begins in each dataset; of streams the epoch
        of the next iteration. Reaches running workers.
        """
        raise NotImplementedError

    def set_weights(self, weights: _Weights, from_position: int | None = None) -> None:
        """Change the weights from a position of the chosen epoch on: a curriculum, or a run that is
        steered in the middle.

        The samples before that position stay what they were. From there on each dataset has its
        share by the new weights, to within one or two samples, and goes on in its pass: no sample
        comes twice, none is lost. Later epochs have the new weights from their beginning; earlier
        ones keep theirs. You can call this several times: changes at or after the place of a new
        one are dropped. The order stays a pure function of the sizes, the seed and all weights with
        their positions, so make the same calls on every rank.

        Where the epoch ends follows `stop`, so that ``len(mixture)``, which is that of the chosen
        epoch, may change; ``num_samples`` with ``stop="never"`` keeps it. A position at the end of
        the epoch leaves it as it is.

        Running workers of a DataLoader keep their copy of the mixture, and samplers the length that
        it had: call this between iterations, without ``persistent_workers``, and make samplers
        anew if the length has changed.

        Args:
            weights: As for the constructor, by number or by name; `balance_weights` counts here,
                too.
            from_position: From 0 to the length of the epoch that `set_epoch` chose (else 0); None
                for the whole epoch.

        Raises:
            ValueError: The weights do not fit, the position is outside the epoch, or the mixture is
                one of `choices`.
            TypeError: The position is not an integer, or the mixture is one of streams.

        Example:
            >>> mixture = Mixture(["abcdefgh", "12345678"], shuffle=False)
            >>> "".join(mixture)
            'a1b23cd45ef67g8h'
            >>> mixture.set_weights([3, 1], from_position=6)
            >>> "".join(mixture)
            'a1b23cd4efgh'
            >>> mixture.shares
            [0.75, 0.25]
        """
        if not isinstance(self, _MapMixture):
            raise TypeError("set_weights is for datasets with a length, got a stream")
        position = at_least(0, "from_position", 0 if from_position is None else from_position)
        self._change_weights([self._epoch.number, position, self._whole(weights)])


def _is_stream(dataset: object) -> bool:
    has_positions = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    return isinstance(dataset, IterableDataset) or not has_positions


class _Epochs(NamedTuple):
    """Epochs of one plan, from the first one on, and the samples that each dataset gave before them
    and gives in each of them.
    """

    first: int
    plan: WeightedPlan | ChoicePlan
    length: int | None
    before: list[int]
    an_epoch: list[int]

    def given(self, component: int, epoch: int) -> int:
        """How many samples a dataset gave before an epoch."""
        return self.before[component] + self.an_epoch[component] * (epoch - self.first)


class _MapMixture(Mixture):
    """A mixture of map-style datasets."""

    def _factors(self) -> list[int]:
        return [len(dataset) for dataset in self.datasets]

    def _set_up(self, choices: npt.ArrayLike | None, num_samples: int | None) -> None:
        self._sizes = [len(dataset) for dataset in self.datasets]
        self._limit = None if num_samples is None else at_least(0, "num_samples", num_samples)
        self._planned: list[_Epochs] = []
        self._plan_from(
            0,
            WeightedPlan(self._sizes, self._weights, self._seed, self._stop)
            if choices is None
            else ChoicePlan(self._sizes, choices, self._stop),
        )
        self._changes: list[list[Any]] = []  # epoch, position and whole weights of each
        self._orders: dict[tuple[int, int], Permutation] = {}
        self._epoch = DrawEpoch()

    def _plan_from(self, first: int, plan: WeightedPlan | ChoicePlan) -> None:
        """Mix by a plan from an epoch on."""
        before = [
            self._at(first).given(number, first) if first else 0
            for number in range(len(self._sizes))
        ]
        length, limit = plan.length, self._limit
        if length is None or (limit is not None and limit < length):
            length = limit
        epochs = _Epochs(first, plan, length, before, plan.counts(length or 0))
        self._planned = [*self._planned, epochs]

    def _at(self, epoch: int) -> _Epochs:
        # what was planned last holds for all epochs after its first
        return next((e for e in reversed(self._planned) if e.first <= epoch), self._planned[0])

    def __len__(self) -> int:
        length = self._at(self._epoch.number).length
        if length is None:
            raise TypeError('a Mixture with stop="never" has no length; pass num_samples')
        return length

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, which decides where the mixture begins in each dataset; reaches
        running workers.
        """
        self._epoch.choose(epoch)

    def _change_weights(self, change: list[Any]) -> None:
        epoch, position, weights = change
        _, plan, length, *_ = self._at(epoch)
        if not isinstance(plan, WeightedPlan):
            raise ValueError("a Mixture with choices has no weights to change")
        if length is not None and position > length:
            raise ValueError(
                f"from_position must be at most {length}, the length of epoch {epoch}, got {position}"
            )
        # An epoch that was read to its end does not grow.
        if 0 < position != length:
            self._plan_from(epoch, plan.changed(position, weights))
        self._plan_from(epoch + (position > 0), plan.changed(0, weights))
        self._changes = [*(each for each in self._changes if each[:2] < change[:2]), change]
        total = sum(weights)
        self.shares = [weight / total for weight in weights]

    def _arguments(self) -> dict[str, Any] | None:
        """The constructor's arguments besides the datasets, as JSON values; None with choices."""
        arguments = {
            "weights": self._weights,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "stop": self._stop,
            "num_samples": self._limit,
        }
        return None if self.shares is None else arguments

    def _weight_changes(self) -> list[list[Any]]:
        """What `set_weights` changed, as JSON values: [epoch, position, whole weights] in order."""
        return deepcopy(self._changes)

    def _set_weight_changes(self, changes: list[list[Any]]) -> None:
        """Change the weights of the constructor as told, and no others; ValueError, and nothing is
        changed, if that does not fit.
        """
        if changes == self._changes:
            return
        changed = copy(self)
        changed._change_weights([0, 0, self._weights])
        changed._changes = []
        try:
            for *place, weights in changes:
                change = [at_least(0, "epoch and position", number) for number in place]
                changed._change_weights([*change, mixture_weights(len(self._sizes), weights, None)])
            if changed._changes != changes:
                raise ValueError("expected whole weights, in the order of epochs and positions")
        except (TypeError, ValueError) as error:
            raise ValueError(f"changes of weights {shown_value(changes)}: {error}") from error
        self.__dict__.update(changed.__dict__)

    def locate(self, position: int, epoch: int | None = None) -> tuple[int, int]:
        """Return the number of a sample's dataset and its position there, in `epoch` or (None) the
        epoch set before.
        """
        component, _, inner = self._find(position, epoch)
        return component, inner

    def _find(self, position: int, epoch: int | None) -> tuple[int, int, int]:
        """The number of the dataset, the number of the pass over it, and the position in it."""
        epoch = self._epoch.number if epoch is None else epoch
        now = self._at(epoch)
        position, length = as_integer(position), now.length
        if position < 0 and length is not None:
            position += length
        if position < 0 or (length is not None and position >= length):
            raise IndexError(f"position {position} is out of range for {length} samples")
        component, before = now.plan.turn(position)
        passes, place = divmod(before + now.given(component, epoch), self._sizes[component])
        return component, passes, self._order(component, passes)[place] if self._shuffle else place

    def __getitem__(self, position: int) -> Any:
        """Return the sample at a position; negative ones count from the end."""
        return self.__getitems__([position])[0]  # so that both ways see the same pass of a dataset

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the samples at several positions, in that order; each dataset is asked once for
        all of its own.

        A dataset gets the number of the pass over it as the epoch, so random draws (a fused crop)
        are new in each pass; if no epoch was chosen, they are new each time.
        """
        parts = leaf_batches(self, salted(self, positions))
        return join_samples(
            [(part, read_leaf(part.leaf, part.positions)) for part in parts], len(positions)
        )

    @property
    def _needs_salt(self) -> bool:
        """Whether the datasets' random draws need a salt, since no epoch was chosen."""
        return not self._epoch.is_known and draws_at_random(self)

    def _inner_batches(self, part: Inner) -> Iterator[Inner]:
        """Split part of a batch by dataset."""
        asked: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for place, position in zip(part.places, part.positions, strict=True):
            component, passes, inner = self._find(position, part.epoch)
            positions, places = asked.setdefault((component, passes), ([], []))
            positions.append(inner)
            places.append(place)
        for (component, passes), (positions, places) in asked.items():
            salt = (
                None
                if part.salt is None
                else RandomStream(part.salt, component, passes).below(1 << 63)
            )
            yield Inner(self.datasets[component], positions, places, passes, salt, part.seed)

    def _order(self, component: int, passes: int) -> Permutation:
        order = self._orders.get((component, passes))
        if order is None:
            if len(self._orders) >= _MAX_ORDERS:
                self._orders.pop(next(iter(self._orders)))
            order = Permutation(self._sizes[component], self._seed, component, passes)
            self._orders[component, passes] = order
        return order

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_orders": {}}

    def __repr__(self) -> str:
        num_samples = self._at(self._epoch.number).length
        length = "endless" if num_samples is None else f"{num_samples} samples"
        if self.names is not None:
            shares = [f"{share:.1%} of " for share in self.shares or ()] or [""] * len(self.names)
            parts = zip(self.names, shares, self._sizes, strict=True)
            shown = shown_list([f"{name!r} {share}{size} samples" for name, share, size in parts])
            return f"Mixture({length} of {len(self.names)} datasets: {shown})"
        sizes = f"{len(self.datasets)} datasets of [{shown_list(self._sizes)}] samples"
        return f"Mixture({length} of {sizes}: {shown_items(self.datasets)})"


_COMPONENT = {"passes", "num_given", "exhausted", "state"}


class _StreamMixture(Mixture, IterableDataset[Any]):
    """A mixture of streams."""

    def _factors(self) -> list[int]:
        raise TypeError("balance_weights needs datasets with a length, got a stream")

    def _set_up(self, choices: npt.ArrayLike | None, num_samples: int | None) -> None:
        if num_samples is not None:
            raise TypeError("num_samples is for datasets with a length, got a stream")
        self._choices = (
            None if choices is None else checked_choices(choices, len(self.datasets)).tolist()
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
        numbers = {"epoch": None, "phase": len(self.datasets), "turn": most_turns}
        check_state(state, self._identity(), numbers, ("components", "consumer", "left"))
        components, here = state["components"], state["consumer"]
        if not isinstance(components, list) or len(components) != len(self.datasets):
            raise ValueError(
                f"components: expected the states of {len(self.datasets)} datasets, got {shown_value(components)}"
            )
        for number, (dataset, component) in enumerate(zip(self.datasets, components, strict=True)):
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
            self._choices[:num_turns], minlength=len(self.datasets)
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
        return f"Mixture({len(self.datasets)} streams, weights=[{weights}]: {shown_items(self.datasets)})"


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

    def __init__(self, mixture: _StreamMixture, epoch: int) -> None:
        self._mixture = mixture
        self._epochs: EpochCount | None = None
        self._has_begun = False
        self._begin(epoch)

    def count_by(self, epochs: EpochCount, has_begun: bool) -> None:
        """Count this iteration when it begins, unless it has begun already."""
        self._epochs, self._has_begun = epochs, has_begun

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        self._components = [_Component(n, ds, epoch) for n, ds in enumerate(self._mixture.datasets)]
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
