"""Datasets inside datasets: which samples of the innermost ones a batch of positions is made of."""

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

from torch_tfrecord.order.position_batch import PositionBatch, epoch_of
from torch_tfrecord.samples import SampleList, place_of

__all__ = [
    "Inner",
    "LeafBatch",
    "Store",
    "defines_last",
    "draw_salt",
    "draws_at_random",
    "has_places",
    "join_samples",
    "leaf_batches",
    "leaves",
    "needs_salt",
    "read_leaf",
    "record_places",
    "salted",
    "stores",
]

_Integers = npt.NDArray[np.int64]
_Key = tuple[int, int | None, int | None]

_READS = ("__getitem__", "__getitems__")
_POSITIONS_AT_ONCE = 1 << 16  # looked up together where all are gone through


class Inner(NamedTuple):
    """Part of a batch, of one of the datasets inside another: its positions there, and its places in the batch."""

    dataset: Any
    positions: list[int]
    places: Sequence[int]
    epoch: int | None
    salt: int | None = None


class LeafBatch(NamedTuple):
    """Part of a batch, of one innermost dataset: positions (a `PositionBatch` where the epoch is known), and places."""

    leaf: Any
    positions: list[int]
    places: list[int]


class Store(Protocol):
    """The files of a dataset of records, and of its slices: see `RecordFiles`."""

    extent: tuple[int, int, int]
    first_compressed: str | None
    has_warned: bool
    is_remote: bool

    def warn(self) -> None:
        """Say, once, that random access is slow, where a file is compressed."""

    def read_by_blocks(self, block_bytes: int | None) -> None:
        """Fetch remote files by whole blocks from now on, since all of a block is read soon; None: no longer."""


def leaf_batches(dataset: object, positions: Sequence[int]) -> list[LeafBatch]:
    """A batch, taken apart by innermost dataset; each is there once for each epoch.

    torch's `Subset` (so `random_split`) and `ConcatDataset` and our `Mixture` are looked into, but for classes of
    users that read in a way of their own.

    Example:
        >>> both = ConcatDataset([Subset("abc", [2, 0]), "xyz"])
        >>> leaf_batches(both, [1, 3, 0])
        [LeafBatch(leaf='abc', positions=[0, 2], places=[0, 2]), LeafBatch(leaf='xyz', positions=[1], places=[1])]
    """
    found: dict[_Key, LeafBatch] = {}
    salt = getattr(positions, "salt", None)
    epoch = epoch_of(positions) if salt is None else None  # one is in place of the other
    _collect(Inner(dataset, list(positions), range(len(positions)), epoch, salt), found)
    for batch in found.values():
        if any(before > after for before, after in pairwise(batch.places)):  # the leaf was met several times
            pairs = sorted(zip(batch.places, batch.positions, strict=True), key=itemgetter(0))
            batch.places[:], batch.positions[:] = map(list, zip(*pairs, strict=True))
    return list(found.values())


def _collect(part: Inner, found: dict[_Key, LeafBatch]) -> None:
    if part.epoch is None and part.salt is not None and not needs_salt(part.dataset):
        part = part._replace(salt=None)  # the salt is for others: here an epoch was chosen
    inner = _inner(part)
    if inner is None:
        key = id(part.dataset), part.epoch, part.salt
        if key not in found:
            is_known = part.epoch is not None or part.salt is not None
            positions = PositionBatch(epoch=part.epoch or 0, salt=part.salt) if is_known else []
            found[key] = LeafBatch(part.dataset, positions, [])
        found[key].positions.extend(part.positions)
        found[key].places.extend(part.places)
    for each in inner or ():
        _collect(each, found)


def _inner(part: Inner) -> Iterator[Inner] | None:
    """The next level of a batch; None where the dataset is an innermost one."""
    dataset = part.dataset
    reads = _first_class(type(dataset), _READS)
    if reads is Subset:
        indices = dataset.indices
        return iter([part._replace(dataset=dataset.dataset, positions=[indices[number] for number in part.positions])])
    if reads is ConcatDataset:
        return _of_concatenated(part)
    return dataset.inner_batches(part) if _is_mixture(dataset) else None


def _of_concatenated(part: Inner) -> Iterator[Inner]:
    ends = part.dataset.cumulative_sizes
    found: dict[int, Inner] = {}
    for place, position in zip(part.places, part.positions, strict=True):
        absolute = position + ends[-1] if position < 0 else position
        if not 0 <= absolute < ends[-1]:
            raise IndexError(f"position {position} is out of range for {ends[-1]} samples")
        number = bisect.bisect_right(ends, absolute)
        inner = found.setdefault(number, Inner(part.dataset.datasets[number], [], [], part.epoch, part.salt))
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
    """The files of the innermost datasets, each dataset's and its slices' once."""
    found = [leaf.record_files for leaf in leaves(dataset) if hasattr(leaf, "record_files")]
    return list({id(store): store for store in found}.values())


def has_places(dataset: object) -> bool:
    """Whether each sample is a record of a file, the same in each epoch."""
    inside = _inside(dataset)
    if inside is None:
        return hasattr(dataset, "record_places")
    return not _is_mixture(dataset) and all(map(has_places, inside))


def _is_mixture(dataset: object) -> bool:
    return hasattr(dataset, "inner_batches") and defines_last(dataset, "inner_batches")


def _first_class(kind: type, names: Sequence[str]) -> type | None:
    """The class, of this one and those that it is made from, that says anew what one of these names does."""
    return next((each for each in kind.__mro__ if any(name in vars(each) for name in names)), None)


def defines_last(dataset: object, name: str, others: Sequence[str] = _READS) -> bool:
    """Whether no class overrides one of the other methods without this one, which would then read past it."""
    found = _first_class(type(dataset), [name, *others])
    return found is not None and name in vars(found)


def read_leaf(leaf: Any, positions: Sequence[int]) -> Sequence[Any]:
    """The samples of an innermost dataset, together where it can."""
    if defines_last(leaf, "__getitems__"):
        found: Sequence[Any] = leaf.__getitems__(positions)
        return found
    return [leaf[position] for position in positions]


def join_samples(parts: Sequence[tuple[LeafBatch, Sequence[Any]]], num_samples: int) -> SampleList:
    """The samples of a batch, from those of its parts."""
    samples: list[Any] = [None] * num_samples
    origins: list[Any] = [None] * num_samples  # of each sample the part that it was read in, its number there
    for batch, found in parts:
        for number, (place, sample) in enumerate(zip(batch.places, found, strict=True)):
            samples[place], origins[place] = sample, (found, number)
    known = any(hasattr(found, "places") for _, found in parts)
    return SampleList(samples, (lambda number: place_of(*origins[number]) or "of another dataset") if known else None)


# Random draws.


def draw_salt() -> int:
    """A number of 63 bits from torch's default generator: the only place where global random state is used."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def draws_at_random(dataset: object) -> bool:
    """Whether samples depend on the epoch: a feature of an innermost dataset has a random crop."""
    return any(getattr(leaf, "draws_at_random", False) for leaf in leaves(dataset))


def salted(dataset: object, positions: Sequence[int], draw: Callable[[], int] = draw_salt) -> Sequence[int]:
    """Positions whose random draws are decided: with a salt, where there are draws and nobody knows the epoch.

    Called in the thread that iterates, so that torch's seed decides all draws.

    Args:
        dataset: What the positions are of.
        positions: Of one batch.
        draw: Gives the salt.
    """
    if epoch_of(positions) is not None or not needs_salt(dataset):
        return positions
    return PositionBatch(positions, salt=draw())


def needs_salt(dataset: object) -> bool:
    """Whether a batch whose epoch nobody knows needs a salt for its random draws."""
    inside = _inside(dataset)
    if inside is None or _is_mixture(dataset):
        return bool(getattr(dataset, "needs_salt", False))
    return any(map(needs_salt, inside))


def record_places(dataset: Any) -> tuple[_Integers, _Integers] | None:
    """Where the samples of a dataset lie; None where that is not known of all of them, or not the same in each epoch.

    Returns:
        Number of the file, and offset of the record in it, of each sample; int64 [N] each. A dataset and its slices
        share the numbers of files.
    """
    if not has_places(dataset):
        return None
    firsts: dict[int, int] = {}
    num_files = 0
    for leaf in leaves(dataset):
        firsts.setdefault(id(leaf.record_files), num_files)
        num_files += len(leaf.files)
    files, offsets = np.empty(len(dataset), np.int64), np.empty(len(dataset), np.int64)
    for begin in range(0, len(dataset), _POSITIONS_AT_ONCE):
        for leaf, positions, inside in leaf_batches(dataset, range(begin, len(dataset))[:_POSITIONS_AT_ONCE]):
            places = np.array(inside, np.int64) + begin
            files[places], offsets[places] = leaf.record_places(positions)
            files[places] += firsts[id(leaf.record_files)]
    return files, offsets
