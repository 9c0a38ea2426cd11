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
import torch
from torch.utils.data import ConcatDataset, Subset

from torch_tfrecord.order.position_batch import PositionBatch, epoch_of, seed_of
from torch_tfrecord.samples import SampleList, place_of

__all__ = [
    "Inner",
    "LeafBatch",
    "Store",
    "defines_last",
    "draw_salt",
    "draws_at_random",
    "has_mixture",
    "has_places",
    "join_samples",
    "leaf_batches",
    "leaves",
    "needs_salt",
    "read_leaf",
    "record_lengths",
    "record_places",
    "salted",
    "stores",
]

_Integers = npt.NDArray[np.int64]
_Key = tuple[int, int | None, int | None]

_READS = ("__getitem__", "__getitems__")
_POSITIONS_AT_ONCE = 1 << 16  # looked up together when iterating over all of them


class Inner(NamedTuple):
    """The part of a batch from one nested dataset: positions in that dataset, and places in the
    batch.
    """

    dataset: Any
    positions: list[int]
    places: Sequence[int]
    epoch: int | None
    salt: int | None = None
    seed: int = 0


class LeafBatch(NamedTuple):
    """The part of a batch from one innermost dataset: positions (a `PositionBatch` if it has an
    epoch) and places.
    """

    leaf: Any
    positions: list[int]
    places: list[int]


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


def leaf_batches(dataset: object, positions: Sequence[int]) -> list[LeafBatch]:
    """Split a batch by innermost dataset; each appears once per epoch.

    Looks into torch's `Subset` (so `random_split`) and `ConcatDataset` and our `Mixture`, except
    for subclasses that override how they read.

    Example:
        >>> both = ConcatDataset([Subset("abc", [2, 0]), "xyz"])
        >>> leaf_batches(both, [1, 3, 0])
        [LeafBatch(leaf='abc', positions=[0, 2], places=[0, 2]), LeafBatch(leaf='xyz',
        positions=[1], places=[1])]
    """
    found: dict[_Key, LeafBatch] = {}
    salt = getattr(positions, "salt", None)
    epoch = epoch_of(positions) if salt is None else None  # a salt replaces the epoch
    places = range(len(positions))
    _collect(Inner(dataset, list(positions), places, epoch, salt, seed_of(positions)), found)
    for batch in found.values():
        # the leaf appeared several times
        if any(before > after for before, after in pairwise(batch.places)):
            pairs = sorted(zip(batch.places, batch.positions, strict=True), key=itemgetter(0))
            batch.places[:], batch.positions[:] = map(list, zip(*pairs, strict=True))
    return list(found.values())


def _collect(part: Inner, found: dict[_Key, LeafBatch]) -> None:
    if part.epoch is None and part.salt is not None and not needs_salt(part.dataset):
        part = part._replace(salt=None)  # this dataset has a chosen epoch and needs no salt
    inner = _inner(part)
    if inner is None:
        key = id(part.dataset), part.epoch, part.salt
        if key not in found:
            is_known = part.epoch is not None or part.salt is not None
            positions = PositionBatch((), part.epoch or 0, part.salt, part.seed)
            found[key] = LeafBatch(part.dataset, positions if is_known else [], [])
        found[key].positions.extend(part.positions)
        found[key].places.extend(part.places)
    for each in inner or ():
        _collect(each, found)


def _inner(part: Inner) -> Iterator[Inner] | None:
    """The next level of a batch; None if the dataset is an innermost one."""
    dataset = part.dataset
    reads = _first_class(type(dataset), _READS)
    if reads is Subset:
        indices = dataset.indices
        return iter(
            [
                part._replace(
                    dataset=dataset.dataset,
                    positions=[indices[number] for number in part.positions],
                )
            ]
        )
    if reads is ConcatDataset:
        return _of_concatenated(part)
    return dataset._inner_batches(part) if _is_mixture(dataset) else None


def _of_concatenated(part: Inner) -> Iterator[Inner]:
    ends = part.dataset.cumulative_sizes
    found: dict[int, Inner] = {}
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


def leaves(dataset: object) -> list[Any]:
    """The innermost datasets, each once."""
    inside = _inside(dataset)
    if inside is None:
        return [dataset]
    return list({id(leaf): leaf for each in inside for leaf in leaves(each)}.values())


def _inside(dataset: Any) -> Sequence[Any] | None:
    reads = _first_class(type(dataset), _READS)
    if reads is Subset:
        return [dataset.dataset]
    if reads is ConcatDataset:
        return dataset.datasets  # type: ignore[no-any-return]
    return dataset.datasets if _is_mixture(dataset) else None


def stores(dataset: object) -> list[Store]:
    """The files of the innermost datasets; a dataset and its slices count once."""
    found = [leaf._record_files for leaf in leaves(dataset) if hasattr(leaf, "_record_files")]
    return list({id(store): store for store in found}.values())


def has_places(dataset: object) -> bool:
    """Whether each sample is a record of a file, the same in each epoch."""
    inside = _inside(dataset)
    if inside is None:
        return hasattr(dataset, "_record_places")
    return not _is_mixture(dataset) and all(map(has_places, inside))


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


def read_leaf(leaf: Any, positions: Sequence[int]) -> Sequence[Any]:
    """The samples of an innermost dataset, read together if it supports that."""
    if defines_last(leaf, "__getitems__"):
        found: Sequence[Any] = leaf.__getitems__(positions)
        return found
    return [leaf[position] for position in positions]


def join_samples(parts: Sequence[tuple[LeafBatch, Sequence[Any]]], num_samples: int) -> SampleList:
    """The samples of a batch, joined from its parts."""
    samples: list[Any] = [None] * num_samples
    # for each sample its part and its number in that part
    origins: list[Any] = [None] * num_samples
    for batch, found in parts:
        for number, (place, sample) in enumerate(zip(batch.places, found, strict=True)):
            samples[place], origins[place] = sample, (found, number)
    known = any(hasattr(found, "places") for _, found in parts)
    return SampleList(
        samples,
        (lambda number: place_of(*origins[number]) or "of another dataset") if known else None,
    )


# Random draws.


def draw_salt() -> int:
    """A 63-bit number from torch's default generator: the only place that uses global random
    state.
    """
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def draws_at_random(dataset: object) -> bool:
    """Whether samples depend on the epoch: a feature of an innermost dataset has a random crop."""
    return any(getattr(leaf, "_draws_at_random", False) for leaf in leaves(dataset))


def salted(
    dataset: object, positions: Sequence[int], draw: Callable[[], int] = draw_salt
) -> Sequence[int]:
    """The positions with a salt, if the dataset draws at random and the epoch is unknown.

    Called in the thread that iterates, so that torch's seed decides all draws.

    Args:
        dataset: The dataset of the positions.
        positions: The positions of one batch.
        draw: Returns the salt.
    """
    if epoch_of(positions) is not None or not needs_salt(dataset):
        return positions
    return PositionBatch(positions, salt=draw())


def needs_salt(dataset: object) -> bool:
    """Whether a batch of unknown epoch needs a salt for its random draws."""
    inside = _inside(dataset)
    if inside is None or _is_mixture(dataset):
        return bool(getattr(dataset, "_needs_salt", False))
    return any(map(needs_salt, inside))


def has_mixture(dataset: object) -> bool:
    """Whether a position has another record in each epoch."""
    return _is_mixture(dataset) or any(map(has_mixture, _inside(dataset) or ()))


def record_lengths(dataset: Any, name: str | None) -> npt.NDArray[Any]:
    """The length of each record of a dataset, in bytes or (a name) by a column of the index: [N].

    Raises:
        IndexMismatchError: The index has no such column.
        TypeError: The dataset does not know them.
    """
    inside = _inside(dataset)
    if inside is None and hasattr(dataset, "_record_lengths"):
        return dataset._record_lengths(name)  # type: ignore[no-any-return]
    if inside is None:
        raise TypeError(
            "expected a TFRecordDataset, or a Subset or ConcatDataset of these, to know the lengths of records, "
            f"got {type(dataset).__name__}: pass lengths=, one integer for each"
        )
    found = np.ma.concatenate([record_lengths(each, name) for each in inside])
    return found[np.asarray(dataset.indices)] if isinstance(dataset, Subset) else found  # type: ignore[no-any-return]


def record_places(dataset: Any) -> tuple[_Integers, _Integers] | None:
    """Where the samples of a dataset are; None unless known for all of them and the same in each
    epoch.

    Returns:
        For each sample the number of its file, and its record's offset in the file; int64 [N] each.
        A dataset and its slices share the numbers of files.
    """
    if not has_places(dataset):
        return None
    firsts: dict[int, int] = {}
    num_files = 0
    for leaf in leaves(dataset):
        firsts.setdefault(id(leaf._record_files), num_files)
        num_files += len(leaf.files)
    files, offsets = np.empty(len(dataset), np.int64), np.empty(len(dataset), np.int64)
    for begin in range(0, len(dataset), _POSITIONS_AT_ONCE):
        for leaf, positions, inside in leaf_batches(
            dataset, range(begin, len(dataset))[:_POSITIONS_AT_ONCE]
        ):
            places = np.array(inside, np.int64) + begin
            files[places], offsets[places] = leaf._record_places(positions)
            files[places] += firsts[id(leaf._record_files)]
    return files, offsets
