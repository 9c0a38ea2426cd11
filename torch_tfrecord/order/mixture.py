"""Several datasets as one, in proportions: for random access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from operator import index as as_integer
from typing import Any

import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from torch_tfrecord.arguments import at_least, integer, true_or_false
from torch_tfrecord.order.leaves import Inner, draws_at_random, join_samples, leaf_batches, read_leaf, salted
from torch_tfrecord.order.mixing import ChoicePlan, WeightedPlan, check_stop, mixture_weights
from torch_tfrecord.order.orders import Permutation
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.shown import shown_items, shown_list

__all__ = ["Mixture"]

_UNKNOWN = -1  # epoch: as epoch 0, but for the datasets' own random draws
_MAX_ORDERS = 64  # kept at once: orders of passes over a dataset, each of at most 128 KiB


class Mixture(Dataset[Any]):
    """Several datasets as one: at every moment each has had its share by weight, to within one sample or two.

    A map-style dataset: which sample stands at a position is a pure function of the sizes, the weights and the seed, so
    that samplers, ranks and workers treat it as any other dataset. Each dataset's samples come in a random order, a new
    one for each pass over it. In a later epoch (by `set_epoch`, or the attribute `epoch` of a batch of positions) each
    dataset goes on where the epoch before stopped, so that all of a long one is seen.

    Args:
        datasets: Anything with a length and `ds[i]`.
        weights: In what proportion, numbers above 0; None for equal ones. Floats are taken as the decimals that they
            print as, and over a long run the proportions are exact.
        choices: In place of weights: number of the dataset for each sample, as for tf.data's ``choose_from_datasets``.
        shuffle: False takes each dataset in its own order. Enough where a sampler shuffles the mixture.
        seed: Decides the orders; an integer of any size.
        stop: "first_exhausted": before the first sample that a dataset has no more. "all_exhausted": when every dataset
            has been seen, those seen sooner again and again (torchdata's CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED).
            "all_exhausted_without_replacement": every sample once, the exhausted datasets are left out (tf.data's
            ``stop_on_empty_dataset=False``, torchdata's ALL_DATASETS_EXHAUSTED). "never": no length.
        num_samples: Stop after so many samples at the latest; gives "never" a length.

    Attributes:
        datasets: The datasets that are mixed.

    Raises:
        ValueError: No datasets, weights or choices that do not fit them, an empty dataset that must be repeated.
        TypeError: ``len`` of what never stops.

    Example:
        >>> mixture = Mixture(["abcdef", "12"], weights=[3, 1], shuffle=False)
        >>> "".join(mixture[position] for position in range(len(mixture)))
        'a1bc2def'
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float | Fraction] | None = None,
        *,
        choices: npt.ArrayLike | None = None,
        shuffle: bool = True,
        seed: int = 0,
        stop: str = "first_exhausted",
        num_samples: int | None = None,
    ) -> None:
        check_stop(stop)
        self.datasets = list(datasets)
        self._sizes = [len(dataset) for dataset in self.datasets]
        self._seed = integer("seed", seed)
        self._shuffle = true_or_false("shuffle", shuffle)
        numbers = mixture_weights(len(self.datasets), weights, choices)
        self._plan: WeightedPlan | ChoicePlan
        if choices is None:
            self._plan = WeightedPlan(self._sizes, numbers, self._seed, stop)
        else:
            self._plan = ChoicePlan(self._sizes, choices, stop)
        self._length = self._plan.length
        if num_samples is not None:
            limit = at_least(0, "num_samples", num_samples)
            self._length = limit if self._length is None else min(self._length, limit)
        self._an_epoch = [0] * len(self._sizes) if self._length is None else self._plan.counts(self._length)
        self._orders: dict[tuple[int, int], Permutation] = {}
        self._epoch = torch.tensor(_UNKNOWN)
        self._share_epoch()

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError('a Mixture with stop="never" has no length; give it num_samples')
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, which decides where in each dataset the mixture begins; workers follow."""
        self._epoch.fill_(at_least(0, "epoch", epoch))

    def locate(self, position: int, epoch: int | None = None) -> tuple[int, int]:
        """Number of the dataset, and position in it, of a sample (None: in the epoch that was set)."""
        component, _, inner = self._find(position, epoch)
        return component, inner

    def _find(self, position: int, epoch: int | None) -> tuple[int, int, int]:
        """Number of the dataset, number of the pass over it, position in it."""
        component, before = self._plan.turn(self._checked(position))
        before += self._an_epoch[component] * (max(int(self._epoch), 0) if epoch is None else epoch)
        passes, place = divmod(before, self._sizes[component])
        return component, passes, self._order(component, passes)[place] if self._shuffle else place

    def __getitem__(self, position: int) -> Any:
        """The sample at a position; negative ones count from the end."""
        return self.__getitems__([position])[0]  # by one way, so that both see the same pass of a dataset

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """The samples of several positions, in that order: each dataset is asked once for all of its own.

        It is told the number of the pass over it as the epoch, so that random draws (a fused crop) are new in each;
        where nobody has chosen an epoch, they are new each time.
        """
        parts = leaf_batches(self, salted(self, positions))
        return join_samples([(part, read_leaf(part.leaf, part.positions)) for part in parts], len(positions))

    @property
    def needs_salt(self) -> bool:
        """Whether the datasets' random draws go by a salt: nobody has chosen an epoch."""
        return int(self._epoch) == _UNKNOWN and draws_at_random(self)

    def inner_batches(self, part: Inner) -> Iterator[Inner]:
        """Of part of a batch, what each dataset has of it."""
        asked: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for place, position in zip(part.places, part.positions, strict=True):
            component, passes, inner = self._find(position, part.epoch)
            positions, places = asked.setdefault((component, passes), ([], []))
            positions.append(inner)
            places.append(place)
        for (component, passes), (positions, places) in asked.items():
            salt = None if part.salt is None else RandomStream(part.salt, component, passes).below(1 << 63)
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share_epoch()  # plain pickle and copies do not keep it shared

    def _share_epoch(self) -> None:
        # In shared memory: workers hold a copy of this object and must see set_epoch all the same.
        self._epoch.share_memory_()

    def __repr__(self) -> str:
        length = "endless" if self._length is None else f"{self._length} samples"
        sizes = f"{len(self.datasets)} datasets of [{shown_list(self._sizes)}] samples"
        return f"Mixture({length} of {sizes}: {shown_items(self.datasets)})"
