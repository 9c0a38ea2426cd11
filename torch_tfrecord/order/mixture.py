"""Several map-style datasets mixed into one, by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from operator import index as as_integer
from typing import Any

import numpy.typing as npt
from torch.utils.data import Dataset

from torch_tfrecord.arguments import at_least, integer, true_or_false
from torch_tfrecord.order.draw_epoch import DrawEpoch
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
    check_stop,
    listed_weights,
    mixture_weights,
)
from torch_tfrecord.order.orders import Permutation
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.shown import shown_items, shown_list

__all__ = ["Mixture"]

_MAX_ORDERS = 64  # cached orders of passes over a dataset, each at most 128 KiB


class Mixture(Dataset[Any]):
    """Mix several datasets into one: at any point each has given its share by weight, to within one
    or two samples.

    This is a map-style dataset: the sample at a position is a pure function of the sizes, the
    weights and the seed, so samplers, ranks and workers treat it like any other dataset. Each
    dataset's samples come in a random order, a new one for each pass over it. In a later epoch (set
    by `set_epoch`, or by the attribute `epoch` of a batch of positions) each dataset continues
    where the epoch before stopped, so that you see all of a long one.

    Args:
        datasets: Anything with a length and `ds[i]`: a list, or a dict of names to them.
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
        shares: The part of each in the mixture, so that the sum is 1; None with `choices`.

    Raises:
        ValueError: There are no datasets, weights or choices do not fit them, or a dataset that
            must be repeated is empty.
        TypeError: You ask for the ``len`` of a mixture that never stops.

    Example:
        >>> mixture = Mixture(["abcdef", "12"], weights=[3, 1], shuffle=False)
        >>> "".join(mixture[position] for position in range(len(mixture)))
        'a1bc2def'
    """

    def __init__(
        self,
        datasets: Sequence[Any] | Mapping[str, Any],
        weights: Sequence[float | Fraction | tuple[str, float]] | Mapping[str, float] | None = None,
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
        self._sizes = [len(dataset) for dataset in self.datasets]
        self._seed = integer("seed", seed)
        self._shuffle = true_or_false("shuffle", shuffle)
        factors = self._sizes if true_or_false("balance_weights", balance_weights) else None
        listed = listed_weights(self.names, weights)
        numbers = mixture_weights(len(self.datasets), listed, choices, factors)
        self.shares = None if choices is not None else [number / sum(numbers) for number in numbers]
        self._plan: WeightedPlan | ChoicePlan
        if choices is None:
            self._plan = WeightedPlan(self._sizes, numbers, self._seed, stop)
        else:
            self._plan = ChoicePlan(self._sizes, choices, stop)
        self._length = self._plan.length
        if num_samples is not None:
            limit = at_least(0, "num_samples", num_samples)
            self._length = limit if self._length is None else min(self._length, limit)
        self._an_epoch = (
            [0] * len(self._sizes) if self._length is None else self._plan.counts(self._length)
        )
        self._orders: dict[tuple[int, int], Permutation] = {}
        self._epoch = DrawEpoch()

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError('a Mixture with stop="never" has no length; pass num_samples')
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, which decides where the mixture begins in each dataset; reaches
        running workers.
        """
        self._epoch.choose(epoch)

    def locate(self, position: int, epoch: int | None = None) -> tuple[int, int]:
        """Return the number of a sample's dataset and its position there, in `epoch` or (None) the
        epoch set before.
        """
        component, _, inner = self._find(position, epoch)
        return component, inner

    def _find(self, position: int, epoch: int | None) -> tuple[int, int, int]:
        """The number of the dataset, the number of the pass over it, and the position in it."""
        component, before = self._plan.turn(self._checked(position))
        before += self._an_epoch[component] * (self._epoch.number if epoch is None else epoch)
        passes, place = divmod(before, self._sizes[component])
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
            yield Inner(self.datasets[component], positions, places, passes, salt)

    def _checked(self, position: int) -> int:
        position = as_integer(position)
        if position < 0 and self._length is not None:
            position += self._length
        if position < 0 or (self._length is not None and position >= self._length):
            raise IndexError(f"position {position} is out of range for {self._length} samples")
        return position

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
        length = "endless" if self._length is None else f"{self._length} samples"
        if self.names is not None:
            shares = (
                [""] * len(self.names)
                if self.shares is None
                else [f"{share:.1%} of " for share in self.shares]
            )
            parts = zip(self.names, shares, self._sizes, strict=True)
            shown = shown_list([f"{name!r} {share}{size} samples" for name, share, size in parts])
            return f"Mixture({length} of {len(self.names)} datasets: {shown})"
        sizes = f"{len(self.datasets)} datasets of [{shown_list(self._sizes)}] samples"
        return f"Mixture({length} of {sizes}: {shown_items(self.datasets)})"
