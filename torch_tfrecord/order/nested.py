"""Nested datasets: which samples of the innermost ones (the leaves) make up a batch of
positions.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, Subset

from torch_tfrecord.order.orders import BLOCK_BYTES
from torch_tfrecord.order.position_batch import PositionBatch, epoch_of, seed_of
from torch_tfrecord.random_stream import draw_salt
from torch_tfrecord.samples import SampleList, place_of

__all__ = ["Leaves", "Part", "Store", "defines_last"]

_Integers = npt.NDArray[np.int64]
_Key = tuple[int, int | None, int | None]

_READS = ("__getitem__", "__getitems__")
_POSITIONS_AT_ONCE = 1 << 16  # looked up together when iterating over all of them


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
        if defines_last(self.dataset, "__getitems__"):
            found: Sequence[Any] = self.dataset.__getitems__(self.positions)
            return found
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
        if self._inside is None:
            return hasattr(self._dataset, "_record_places")
        return not _is_mixture(self._dataset) and all(each.have_places for each in self._each)

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

    def lengths(self, name: str | None) -> npt.NDArray[Any]:
        """The length of each record, in bytes or (a name) by a column of the index: [N].

        Raises:
            IndexMismatchError: The index has no such column.
            TypeError: The dataset does not know them.
        """
        dataset = self._dataset
        if self._inside is None and hasattr(dataset, "_record_lengths"):
            return dataset._record_lengths(name)  # type: ignore[no-any-return]
        if self._inside is None:
            raise TypeError(
                "expected a TFRecordDataset, or a Subset or ConcatDataset of these, to know the lengths of records, "
                f"got {type(dataset).__name__}: pass lengths=, one integer for each"
            )
        found = np.ma.concatenate([each.lengths(name) for each in self._each])
        return found[np.asarray(dataset.indices)] if isinstance(dataset, Subset) else found  # type: ignore[no-any-return]

    def places(self) -> tuple[_Integers, _Integers] | None:
        """Where the samples are; None unless known for all of them and the same in each epoch.

        Returns:
            For each sample the number of its file, and its record's offset in the file; int64 [N]
            each. A dataset and its slices share the numbers of files.
        """
        if not self.have_places:
            return None
        firsts: dict[int, int] = {}
        num_files, size = 0, len(self._dataset)
        for leaf in self:
            firsts.setdefault(id(leaf._record_files), num_files)
            num_files += len(leaf.files)
        files, offsets = np.empty(size, np.int64), np.empty(size, np.int64)
        for begin in range(0, size, _POSITIONS_AT_ONCE):
            for leaf, positions, inside, *_ in self.parts(range(begin, size)[:_POSITIONS_AT_ONCE]):
                places = np.array(inside, np.int64) + begin
                files[places], offsets[places] = leaf._record_places(positions)
                files[places] += firsts[id(leaf._record_files)]
        return files, offsets


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
    reads = _first_class(type(dataset), _READS)
    if reads is Subset:
        positions = [dataset.indices[number] for number in part.positions]
        return iter([part._replace(dataset=dataset.dataset, positions=positions)])
    if reads is ConcatDataset:
        return _of_concatenated(part)
    return dataset._inner_batches(part) if _is_mixture(dataset) else None


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
    reads = _first_class(type(dataset), _READS)
    if reads is Subset:
        return [dataset.dataset]
    if reads is ConcatDataset:
        return dataset.datasets  # type: ignore[no-any-return]
    return dataset.datasets if _is_mixture(dataset) else None


def _is_mixture(dataset: object) -> bool:
    return hasattr(dataset, "_inner_batches") and defines_last(dataset, "_inner_batches")


def _first_class(kind: type, names: Sequence[str]) -> type | None:
    """The first class, of this one and its bases, that defines one of these names."""
    return next((each for each in kind.__mro__ if any(name in vars(each) for name in names)), None)


def defines_last(dataset: object, name: str) -> bool:
    """Whether no subclass overrides how samples are read without this method, which would then
    bypass the override.
    """
    found = _first_class(type(dataset), [name, *_READS])
    return found is not None and name in vars(found)
