"""The positions of a batch with what decides its draws, and which samples of the innermost of nested
datasets (the leaves) they are.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, SupportsIndex, cast, overload

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from torch_tfrecord.arguments import at_least
from torch_tfrecord.batch_memory import Array, Ints, Keys
from torch_tfrecord.order.orders import BLOCK_BYTES
from torch_tfrecord.random_stream import draw_salt, record_keys, salted_keys
from torch_tfrecord.samples import SampleList, place_of

__all__ = ["DrawEpoch", "EpochPosition", "Leaves", "Part", "PositionBatch", "Store"]

_Key = tuple[int, int | None, int | None]

_READS = ("__getitem__", "__getitems__")


class PositionBatch(list[int]):
    """A batch sampler's list of positions, with their epoch; pickles, so that workers get the
    epoch, too.

    Random draws of a dataset (a fused crop) are a function of the epoch, and one loader can
    prefetch batches of several epochs. If the epoch is unknown, as in a plain DataLoader, they are
    a function of a salt, a new one for each batch.

    Args:
        positions: From 0 to the number of records - 1.
        epoch: From 0.
        salt: From 0; decides the draws instead of the epoch.
        seed: With the epoch decides the draws; an integer of any size.

    Example:
        >>> batch = PositionBatch([4, 2], epoch=1)
        >>> batch, batch.epoch
        ([4, 2], 1)
        >>> (batch[1:] + [5]).epoch  # Accelerate slices and extends batches
        1
    """

    def __init__(
        self,
        positions: Iterable[int] = (),
        epoch: int = 0,
        salt: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(positions)
        self.epoch, self.salt, self.seed = epoch, salt, seed

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> PositionBatch: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | PositionBatch:
        """A position, or some of them with the same epoch, salt and seed."""
        if isinstance(index, slice):
            return PositionBatch(super().__getitem__(index), self.epoch, self.salt, self.seed)
        return super().__getitem__(index)

    def __add__(self, others: list[int]) -> PositionBatch:  # type: ignore[override]
        """These and more positions, with the epoch, salt and seed of these."""
        return PositionBatch(super().__add__(others), self.epoch, self.salt, self.seed)


class EpochPosition(int):
    """A position with its epoch and seed, yielded by a sampler whose positions a DataLoader batches.

    Example:
        >>> position = EpochPosition(4, 1)
        >>> position, position.epoch
        (4, 1)
    """

    epoch: int
    seed: int

    def __new__(cls, position: int, epoch: int, seed: int = 0) -> EpochPosition:
        """Make a position with its epoch."""
        self = super().__new__(cls, position)
        self.epoch, self.seed = epoch, seed
        return self

    def __reduce__(self) -> Any:
        return EpochPosition, (int(self), self.epoch, self.seed)


def epoch_of(positions: Any) -> int | None:
    """The epoch of a batch of positions, or of the first of them; None if it is unknown."""
    return _known("epoch", positions)


def seed_of(positions: Any) -> int:
    """The seed of a batch of positions, or of the first of them; 0 if it is unknown."""
    return _known("seed", positions) or 0


def _known(name: str, positions: Any) -> int | None:
    found: int | None = getattr(positions, name, None)
    return getattr(positions[0], name, None) if found is None and len(positions) else found


_UNKNOWN = -1


class DrawEpoch:
    """The epoch that a dataset's `set_epoch` chooses.

    It is in shared memory, so that persistent workers, which have a copy of the dataset, see the
    choice.
    """

    def __init__(self) -> None:
        self._number = torch.tensor(_UNKNOWN, device="cpu")
        self._share()

    @property
    def is_known(self) -> bool:
        """Whether an epoch was chosen."""
        return int(self._shared) != _UNKNOWN

    @property
    def number(self) -> int:
        """The epoch; 0 if none was chosen."""
        return max(int(self._shared), 0)

    def choose(self, epoch: int) -> None:
        """Choose the epoch, from 0."""
        self._number.fill_(at_least(0, "epoch", epoch))

    def keys(self, positions: Sequence[int], records: Ints, *seeds: int) -> Keys:
        """Keys for the random draws of a batch: by its own epoch or salt if it has one.

        Args:
            positions: The batch, which must be `salted`.
            records: int64 [N]: what the keys are of, such as numbers of records.
            seeds: What else decides the draws of an epoch.
        """
        salt, epoch = getattr(positions, "salt", None), epoch_of(positions)
        epoch = int(self._shared) if epoch is None else epoch
        if salt is not None or epoch == _UNKNOWN:
            return salted_keys(len(records), salt or 0)
        seed = seed_of(positions)
        return record_keys(records, epoch, *seeds, *([seed] if seed else []))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._share()  # plain pickling and copying lose the sharing

    def _share(self) -> None:
        self._number.share_memory_()
        # Read for each position of a mixture: a tensor would let go of the GIL each time.
        self._shared = self._number.numpy()


# Nested datasets.


class Part(NamedTuple):
    """The part of a batch from one of the datasets in a dataset: positions there, and places in the
    batch. The positions in a leaf are a `PositionBatch` if it has an epoch or a salt.
    """

    dataset: Any
    positions: list[int]
    places: Sequence[int]
    epoch: int | None
    salt: int | None = None
    seed: int = 0

    def read(self) -> Sequence[Any]:
        """The samples of a leaf, read together if it supports that."""
        if Leaves.defines_last(type(self.dataset), "__getitems__"):
            return self.dataset.__getitems__(self.positions)
        return [self.dataset[position] for position in self.positions]

    @staticmethod
    def join(parts: Sequence[tuple[Part, Sequence[Any]]], num_samples: int) -> SampleList:
        """The samples of a batch, joined from those of its parts."""
        samples: list[Any] = [None] * num_samples
        # for each sample its part and its number in that part
        origins: list[Any] = [None] * num_samples
        for part, found in parts:
            for number, (place, sample) in enumerate(zip(part.places, found, strict=True)):
                samples[place], origins[place] = sample, (found, number)
        known = any(hasattr(found, "places") for _, found in parts)
        return SampleList(
            samples,
            (lambda number: place_of(*origins[number]) or "of another dataset") if known else None,
        )


class Store(Protocol):
    """The files of a dataset of records, and of its slices: see `RecordFiles`."""

    extent: tuple[int, int, int]
    first_compressed: str | None
    slow_file: str | None
    has_warned: bool
    is_remote: bool

    def warn(self) -> None:
        """Warn once that random access is slow, if there is a `slow_file`."""

    def read_by_blocks(self, block_bytes: int | None) -> None:
        """Fetch remote files by whole blocks from now on, since all of a block is read soon; None:
        no longer.
        """


def _first_class(kind: type, names: Sequence[str]) -> type | None:
    """The first class, of this one and its bases, that defines one of these names."""
    return next((each for each in kind.__mro__ if any(name in vars(each) for name in names)), None)


def _defines_last(kind: type, name: str) -> bool:
    """Whether no subclass overrides how samples are read without this method, which would then
    bypass the override.
    """
    found = _first_class(kind, (name, *_READS))
    return found is not None and name in vars(found)


class Leaves:
    """The innermost datasets of a dataset, each once: looks into torch's `Subset` (so
    `random_split`) and `ConcatDataset` and our `Mixture`, except for subclasses that override how
    they read.

    Args:
        dataset: Any map-style dataset.

    Example:
        >>> both = Leaves(ConcatDataset([Subset("abc", [2, 0]), "xyz"]))
        >>> [*both]
        ['abc', 'xyz']
        >>> [part[:3] for part in both.parts([1, 3, 0])]
        [('abc', [0, 2], [0, 2]), ('xyz', [1], [1])]
    """

    def __init__(self, dataset: object) -> None:
        self._dataset: Any = dataset
        self._inside = _inside(dataset)

    defines_last = staticmethod(cast("Callable[[type, str], bool]", cache(_defines_last)))

    @property
    def _each(self) -> Iterator[Leaves]:
        return map(Leaves, self._inside or ())

    def __iter__(self) -> Iterator[Any]:
        if self._inside is None:
            return iter([self._dataset])
        found = {id(leaf): leaf for each in self._each for leaf in each}
        return iter(found.values())

    @property
    def stores(self) -> list[Store]:
        """Their files; a dataset and its slices count once."""
        found = [leaf._record_files for leaf in self if hasattr(leaf, "_record_files")]
        return list({id(store): store for store in found}.values())

    def read_by_blocks(self, is_on: bool) -> None:
        """Whether to fetch remote files by the blocks of `shuffle="blocks"` from now on."""
        for store in self.stores:
            store.read_by_blocks(BLOCK_BYTES if is_on else None)

    @property
    def have_places(self) -> bool:
        """Whether each sample is a record of a file, the same in each epoch."""
        return not self.are_mixed and all(hasattr(leaf, "_record_places") for leaf in self)

    @property
    def are_mixed(self) -> bool:
        """Whether a position has another record in each epoch."""
        return _is_mixture(self._dataset) or any(each.are_mixed for each in self._each)

    @property
    def draw_at_random(self) -> bool:
        """Whether samples depend on the epoch: a feature of a leaf has a random crop."""
        return any(getattr(leaf, "_draws_at_random", False) for leaf in self)

    @property
    def need_salt(self) -> bool:
        """Whether a batch of unknown epoch needs a salt for its random draws."""
        if self._inside is None or _is_mixture(self._dataset):
            return bool(getattr(self._dataset, "_needs_salt", False))
        return any(each.need_salt for each in self._each)

    def salted(
        self, positions: Sequence[int], draw: Callable[[], int] = draw_salt
    ) -> Sequence[int]:
        """The positions with a salt, if the dataset draws at random and the epoch is unknown.

        Called in the thread that iterates, so that torch's seed decides all draws.

        Args:
            positions: The positions of one batch.
            draw: Returns the salt.
        """
        if epoch_of(positions) is not None or not self.need_salt:
            return positions
        return PositionBatch(positions, salt=draw())

    def parts(self, positions: Sequence[int]) -> list[Part]:
        """Split a batch by leaf; each appears once per epoch."""
        found: dict[_Key, Part] = {}
        salt = getattr(positions, "salt", None)
        epoch = epoch_of(positions) if salt is None else None  # a salt replaces the epoch
        places = range(len(positions))
        _collect(
            Part(self._dataset, list(positions), places, epoch, salt, seed_of(positions)), found
        )
        for part in found.values():
            # the leaf appeared several times
            if any(before > after for before, after in pairwise(part.places)):
                pairs = sorted(zip(part.places, part.positions, strict=True), key=itemgetter(0))
                part.places[:], part.positions[:] = map(list, zip(*pairs, strict=True))  # type: ignore[index]
        return list(found.values())

    def read(self, positions: Sequence[int]) -> SampleList:
        """The samples of a batch."""
        parts = [(part, part.read()) for part in self.parts(self.salted(positions))]
        return Part.join(parts, len(positions))

    def lengths(self, name: str | None) -> Array:
        """The length of each record, in bytes or (a name) by a column of the index: [N].

        Raises:
            IndexMismatchError: The index has no such column.
            TypeError: The dataset does not know them.
        """

        def read(leaf: Any) -> Array:
            if not hasattr(leaf, "_record_lengths"):
                raise TypeError(
                    "expected a TFRecordDataset, or a Subset or ConcatDataset of these, to know the lengths of "
                    f"records, got {type(leaf).__name__}: pass lengths=, one integer for each"
                )
            return leaf._record_lengths(name)

        return self._joined(read)

    def places(self) -> Array | None:
        """Where the samples are; None unless known for all of them and the same in each epoch.

        Returns:
            For each sample a number of its file, and its record's offset in the file: int64 [N, 2].
            A dataset and its slices share the numbers of files.
        """
        if not self.have_places:
            return None
        numbers = {id(store): number << 32 for number, store in enumerate(self.stores)}

        def read(leaf: Any) -> Array:
            files, offsets = leaf._record_places(range(len(leaf)))
            return np.stack((files + numbers[id(leaf._record_files)], offsets), axis=1)

        return self._joined(read)

    def _joined(self, read: Callable[[Any], Array]) -> Array:
        """One row for each sample, read from its leaf, in the order of the samples here."""
        dataset = self._dataset
        if self._inside is None:
            return read(dataset)
        found: Array = np.ma.concatenate([each._joined(read) for each in self._each])
        is_part = isinstance(dataset, Subset)
        return found[np.asarray(dataset.indices, np.int64)] if is_part else found


def _collect(part: Part, found: dict[_Key, Part]) -> None:
    if part.epoch is None and part.salt is not None and not Leaves(part.dataset).need_salt:
        part = part._replace(salt=None)  # this dataset has a chosen epoch and needs no salt
    inner = _inner(part)
    if inner is None:
        key = id(part.dataset), part.epoch, part.salt
        if key not in found:
            is_known = part.epoch is not None or part.salt is not None
            positions = PositionBatch((), part.epoch or 0, part.salt, part.seed)
            found[key] = part._replace(positions=positions if is_known else [], places=[])
        found[key].positions.extend(part.positions)
        found[key].places.extend(part.places)  # type: ignore[attr-defined]
    for each in inner or ():
        _collect(each, found)


def _inner(part: Part) -> Iterator[Part] | None:
    """The next level of a batch; None if the dataset is a leaf."""
    dataset = part.dataset
    if _inside(dataset) is None:
        return None
    if isinstance(dataset, Subset):
        positions = [dataset.indices[number] for number in part.positions]
        return iter([part._replace(dataset=dataset.dataset, positions=positions)])
    return (
        _of_concatenated(part)
        if isinstance(dataset, ConcatDataset)
        else dataset._inner_batches(part)
    )


def _of_concatenated(part: Part) -> Iterator[Part]:
    ends = part.dataset.cumulative_sizes
    found: dict[int, Part] = {}
    for place, position in zip(part.places, part.positions, strict=True):
        absolute = position + ends[-1] if position < 0 else position
        if not 0 <= absolute < ends[-1]:
            raise IndexError(f"position {position} is out of range for {ends[-1]} samples")
        number = bisect.bisect_right(ends, absolute)
        inner = found.setdefault(
            number, part._replace(dataset=part.dataset.datasets[number], positions=[], places=[])
        )
        inner.positions.append(absolute - (ends[number - 1] if number else 0))
        inner.places.append(place)  # type: ignore[attr-defined]
    return iter(found.values())


def _inside(dataset: Any) -> Sequence[Any] | None:
    """The datasets of a dataset; None if it is a leaf."""
    kind = type(dataset)
    if isinstance(dataset, Subset) and _first_class(kind, _READS) is Subset:
        return [dataset.dataset]
    is_joined = isinstance(dataset, ConcatDataset) and _first_class(kind, _READS) is ConcatDataset
    return dataset.datasets if is_joined or _is_mixture(dataset) else None


def _is_mixture(dataset: object) -> bool:
    return Leaves.defines_last(type(dataset), "_inner_batches")
