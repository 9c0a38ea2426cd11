"""Several datasets mixed into one, by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from fractions import Fraction
from functools import lru_cache
from operator import index as as_integer
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset

from torch_tfrecord.arguments import HintsOfDataset, at_least, integer, one_of, true_or_false
from torch_tfrecord.mixing.draws import (
    STOPS,
    ChoicePlan,
    WeightedPlan,
    listed_weights,
    mixture_weights,
)
from torch_tfrecord.order import DrawEpoch, Leaves, Part, Permutation
from torch_tfrecord.random_stream import RandomStream
from torch_tfrecord.shown import shown_item, shown_list, shown_value

__all__ = ["Mixture"]

_Datasets: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
_Weights: TypeAlias = "Sequence[float | Fraction | tuple[str, float]] | Mapping[str, float] | None"
# The orders of passes over a dataset, each at most 128 KiB.
_pass_order = lru_cache(64)(Permutation)


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


class Mixture(HintsOfDataset, Dataset[Any]):
    """Mix several datasets into one: at any point each has given its share by weight, to within one
    or two samples.

    It is a map-style dataset: the sample at a position is a pure function of the sizes, the weights
    and the seed, so samplers, ranks and workers treat it like any other dataset, and
    ``locate(position)`` gives the dataset and the position there. Each dataset's samples come
    in a random order, a new one for each pass over it. In a later epoch (set by `set_epoch`, or by
    the attribute `epoch` of a batch of positions) each dataset continues where the epoch before
    stopped, so that you see all of a long one. `set_weights` changes the weights from a position
    on.

    Args:
        datasets: A list, or a dict of names to them: anything with a length and `ds[i]`.
        weights: Proportions, numbers above 0; None for equal ones. A float counts as the decimal
            that it prints as, and over a long run the proportions are exact. For datasets by name
            also a dict, or pairs such as Octo's and OpenVLA's ``[("bridge_dataset", 1.0), ...]``,
            where the first weight of a name counts.
        balance_weights: Multiply each weight by the dataset's length, as Octo and OpenVLA do.
        choices: Instead of weights: the number of the dataset for each sample, as for tf.data's
            ``choose_from_datasets``.
        shuffle: False reads each dataset in its own order, which is enough if a sampler shuffles
            the mixture.
        seed: Decides the orders; an integer of any size.
        stop: When the mixture ends. "first_exhausted": when a dataset has no sample left for its
            turn. "all_exhausted": when every dataset has been read once; shorter ones are repeated
            (torchdata's CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED). "all_exhausted_without_replacement":
            after every sample once; exhausted datasets are skipped (tf.data's
            ``stop_on_empty_dataset=False``, torchdata's ALL_DATASETS_EXHAUSTED). "never": it does
            not end and has no length.
        num_samples: Stop after this many samples at the latest; gives "never" a length.

    Attributes:
        datasets: The datasets that are mixed.
        names: Their names, if they have any.
        shares: The part of each in the mixture, so that the sum is 1, after the last change of the
            weights; None with `choices`.

    Raises:
        ValueError: There are no datasets, weights or choices do not fit them, or a dataset that
            must be repeated is empty.
        TypeError: A dataset is a path, or has no length and positions (a stream), or you ask for the ``len`` of a
            mixture that never stops.

    Example:
        >>> mixture = Mixture([[*"abcdef"], [*"12"]], weights=[3, 1], shuffle=False)
        >>> "".join(mixture[position] for position in range(len(mixture)))
        'a1bc2def'
    """

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
        one_of("stop", stop, *STOPS)
        self.names = list(datasets) if isinstance(datasets, Mapping) else None
        self.datasets = list(datasets.values() if isinstance(datasets, Mapping) else datasets)
        self._seed, self._stop = integer("seed", seed), stop
        self._shuffle = true_or_false("shuffle", shuffle)
        self._sizes = [*map(_size, self.datasets)]
        balanced = true_or_false("balance_weights", balance_weights)
        self._balance = self._sizes if balanced else None
        self._weights = self._whole(weights, choices)
        total = sum(self._weights)
        self.shares = None if choices is not None else [weight / total for weight in self._weights]
        self._limit = None if num_samples is None else at_least(0, "num_samples", num_samples)
        self._planned: list[_Epochs] = []
        self._plan_from(
            0,
            WeightedPlan(self._sizes, self._weights, self._seed, self._stop)
            if choices is None
            else ChoicePlan(self._sizes, choices, self._stop),
        )
        self._changes: list[list[Any]] = []  # epoch, position and whole weights of each
        self._epoch = DrawEpoch()

    def _whole(self, weights: _Weights, choices: npt.ArrayLike | None = None) -> list[int]:
        return mixture_weights(
            len(self.datasets), listed_weights(self.names, weights), choices, self._balance
        )

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
        again if the length has changed.

        Args:
            weights: As for the constructor, by number or by name; `balance_weights` counts here,
                too.
            from_position: From 0 to the length of the epoch that `set_epoch` chose (else 0); None
                for the whole epoch.

        Raises:
            ValueError: The weights do not fit, the position is outside the epoch, or the mixture is
                one of `choices`.
            TypeError: The position is not an integer.

        Example:
            >>> mixture = Mixture([[*"abcdefgh"], [*"12345678"]], shuffle=False)
            >>> "".join(mixture)
            'a1b23cd45ef67g8h'
            >>> mixture.set_weights([3, 1], from_position=6)
            >>> "".join(mixture)
            'a1b23cd4efgh'
            >>> mixture.shares
            [0.75, 0.25]
        """
        position = at_least(0, "from_position", 0 if from_position is None else from_position)
        self._change_weights([self._epoch.number, position, self._whole(weights)])

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
        # what was planned last is for all epochs after its first
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
        """The changes by `set_weights`, as JSON values: [epoch, position, whole weights] in order."""
        return deepcopy(self._changes)

    def _set_weight_changes(self, changes: list[list[Any]]) -> None:
        """Change the weights of the constructor by these, and no others; ValueError, and nothing is
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
        size = self._sizes[component]
        passes, place = divmod(before + now.given(component, epoch), size)
        if self._shuffle:
            place = _pass_order(size, self._seed, component, passes)[place]
        return component, passes, place

    def __getitem__(self, position: int) -> Any:
        """Return the sample at a position; negative ones count from the end."""
        return self.__getitems__([position])[0]  # so that both ways see the same pass of a dataset

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the samples at several positions, in that order; each dataset is asked once for
        all of its own.

        A dataset gets the number of the pass over it as the epoch, so random draws (a fused crop)
        are new in each pass; if no epoch was chosen, they are new each time.
        """
        return Leaves(self).read(positions)

    @property
    def _needs_salt(self) -> bool:
        """Whether the datasets' random draws need a salt, since no epoch was chosen."""
        return not self._epoch.is_known and Leaves(self).draw_at_random

    def _inner_batches(self, part: Part) -> Iterator[Part]:
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
            yield Part(self.datasets[component], positions, places, passes, salt, part.seed)

    def __repr__(self) -> str:
        num_samples = self._at(self._epoch.number).length
        length = "endless" if num_samples is None else f"{num_samples} samples"
        if self.names is not None:
            shares = [f"{share:.1%} of " for share in self.shares or ()] or [""] * len(self.names)
            parts = zip(self.names, shares, self._sizes, strict=True)
            shown = shown_list([f"{name!r} {share}{size} samples" for name, share, size in parts])
            return f"Mixture({length} of {len(self.names)} datasets: {shown})"
        sizes = f"{len(self.datasets)} datasets of [{shown_list(self._sizes)}] samples"
        return f"Mixture({length} of {sizes}: {shown_list(self.datasets, shown_item)})"


def _size(dataset: Any) -> int:
    has_positions = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if isinstance(dataset, (IterableDataset, str, bytes)) or not (
        has_positions and hasattr(dataset, "__len__")
    ):
        raise TypeError(
            f"datasets: expected datasets with a length and ds[i], got {type(dataset).__name__}: read its files "
            "with TFRecordDataset, or put its samples into a list"
        )
    return len(dataset)
