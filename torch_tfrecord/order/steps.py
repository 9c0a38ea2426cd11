"""The steps of every epoch, and where in them a training is: which jobs took which, and what is
left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sized
from copy import copy
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from torch_tfrecord.arguments import Shuffle, at_least, integer, true_or_false
from torch_tfrecord.batch_memory import Array, Ints
from torch_tfrecord.order.leaves import Leaves
from torch_tfrecord.order.orders import (
    BLOCK_BYTES,
    BlockShuffle,
    Permutation,
    WeightedDraws,
    block_starts,
    cumulated,
)

__all__ = [
    "WINDOW_BLOCKS",
    "Job",
    "Place",
    "Plan",
    "RecordOrder",
    "StepOrder",
    "digest",
]


# Computed at once, in whole batches: at the beginning, and later.
_FIRST_POSITIONS, _CHUNK_POSITIONS = 64, 4096


class Job(NamedTuple):
    """Steps of an epoch that one job took, one after another.

    Attributes:
        start: Places of the epoch's order that were taken before.
        world_size: Ranks of the job.
        batch_size: Samples in a batch, per rank; 0 for batches by length.
        num_steps: How many steps it took.
    """

    start: int
    world_size: int
    batch_size: int
    num_steps: int


class Place(NamedTuple):
    """A place in an iteration.

    Attributes:
        first_epoch: The iteration's first epoch.
        epoch: The epoch it is in.
        consumed: Places that were taken of that epoch's order.
        jobs: The steps that took them.
    """

    first_epoch: int
    epoch: int
    consumed: int
    jobs: tuple[Job, ...] = ()

    @property
    def step(self) -> int:
        """Steps taken of the epoch."""
        return sum(job.num_steps for job in self.jobs)

    def before_last_job(self) -> Place:
        """Where the last of the jobs began."""
        *others, last = self.jobs
        return self._replace(consumed=last.start, jobs=tuple(others))

    @classmethod
    def at(cls, epoch: int) -> Place:
        """The beginning of an epoch."""
        return cls(epoch, epoch, 0)


class Steps(Protocol):
    """The batches of the rest of an epoch; each can be computed by itself."""

    def __len__(self) -> int: ...

    def batches(self, rank: int, begin: int, end: int) -> list[list[int]]:
        """The positions of a rank in the steps number `begin` to `end` - 1."""

    def consumed(self, step: int) -> int:
        """Places of the epoch's order that all ranks have taken after so many steps."""


class StepOrder(Protocol):
    """The steps of every epoch, whether of records, buckets or packs."""

    batch_size: int
    is_sized: bool  # whether full batches have so many records
    num_records: int
    drop_last: bool

    def steps(self, place: Place, world_size: int, /) -> Steps:
        """The steps of the rest of an epoch."""

    def in_order(self) -> StepOrder:
        """The same, unshuffled in every epoch."""

    def check(self, place: Place) -> None:
        """ValueError if a place of a state cannot be one of this order."""

    def identity(self) -> dict[str, Any]:
        """All that decides the order, as JSON values."""


class Plan:
    """The batches of an iteration that begins at a place: pure arithmetic, without state.

    Attributes:
        begin: The place.
        batches_left: Batches of the epoch in which it begins.
        batches_an_epoch: Batches of each later one.

    Args:
        begin, order: The place, and the steps of all epochs.
        world_size: Ranks that share a step.
        rank: Whose batches; None for those of all ranks, step by step.
    """

    def __init__(
        self, begin: Place, order: StepOrder, world_size: int, rank: int | None = None
    ) -> None:
        self.begin, self._order, self._world_size = begin, order, world_size
        self._ranks = range(world_size) if rank is None else [rank]
        # Jobs of the epoch before this one, and the first of its steps that is left.
        self._jobs, self._steps, self._first = begin.jobs, order.steps(begin, world_size), 0
        if begin.jobs and begin.jobs[-1][1:3] == (world_size, order.batch_size):
            # The same job goes on, if nobody changed the state.
            before, last = begin.before_last_job(), begin.jobs[-1]
            steps = order.steps(before, world_size)
            if min(steps.consumed(last.num_steps), order.num_records) == begin.consumed:
                self._jobs, self._steps, self._first = before.jobs, steps, last.num_steps
        self.batches_left = max(len(self._steps) - self._first, 0) * len(self._ranks)
        # A later epoch, and its steps.
        self._whole = begin.epoch + 1, order.steps(Place.at(begin.epoch + 1), world_size)
        self.batches_an_epoch = len(self._whole[1]) * len(self._ranks)

    def check_endless(self) -> None:
        """ValueError if an epoch has no batch, so that an iteration without end would end at once."""
        order = self._order
        if order.num_records and not self.batches_an_epoch:
            size = order.batch_size * self._world_size or "a batch of"
            raise ValueError(
                f"num_epochs=None with drop_last=True: expected at least {size} samples, got {order.num_records}, "
                "which never fill a batch"
            )

    def _steps_of(self, epoch: int) -> Steps:
        if epoch == self.begin.epoch:
            return self._steps
        if epoch != self._whole[0]:
            self._whole = epoch, self._order.steps(Place.at(epoch), self._world_size)
        return self._whole[1]

    def num_batches(self, num_epochs: int) -> int:
        """Batches up to the iteration's end; 0 if the place is beyond it."""
        return self._sum(self.batches_left, self.batches_an_epoch, num_epochs)

    def num_positions(self, num_epochs: int) -> int:
        """Positions in the batches of a rank; where ranks have unequal numbers, the largest."""
        first, whole = (
            -(-(steps.consumed(len(steps)) - steps.consumed(begin)) // self._world_size)
            for steps, begin in ((self._steps, self._first), (self._whole[1], 0))
        )
        return self._sum(max(first, 0), whole, num_epochs)

    def _sum(self, first: int, whole: int, num_epochs: int) -> int:
        epochs_left = self.begin.first_epoch + num_epochs - self.begin.epoch
        return first + (epochs_left - 1) * whole if epochs_left > 0 else 0

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The batches of an epoch, or of the rest of the epoch in which the iteration begins."""
        steps = self._steps_of(epoch)
        num_batches = max(len(steps) * self._world_size, 1)
        size = self._order.batch_size or max(-(-self._order.num_records // num_batches), 1)
        at_once = max(_FIRST_POSITIONS // size, 1)  # few at first
        begin = self._first if epoch == self.begin.epoch else 0
        while begin < len(steps):
            end = min(begin + at_once, len(steps))
            every = [steps.batches(rank, begin, end) for rank in self._ranks]
            yield from chain.from_iterable(zip(*every, strict=True))
            begin, at_once = end, max(min(2 * at_once, _CHUNK_POSITIONS // size), 1)

    def place_after(self, num_batches: int) -> Place:
        """The place after `num_batches` batches: at the end of an epoch, never at the beginning of
        the next one.
        """
        begin, each = self.begin, len(self._ranks)
        if num_batches <= self.batches_left:
            step = min(self._first + -(-num_batches // each), len(self._steps))
            return self._place(begin.epoch, step)
        epochs_before, batch = divmod(num_batches - self.batches_left - 1, self.batches_an_epoch)
        return self._place(begin.epoch + 1 + epochs_before, batch // each + 1)

    def place_at(self, step: int) -> Place:
        """The place after so many steps of the epoch in which the iteration begins.

        Raises:
            IndexError: They are fewer than were taken before, or more than the epoch has.
        """
        before = self.begin.step - self._first
        if not before <= step <= before + len(self._steps):
            raise IndexError(
                f"step {step} is out of range: expected {before} to {before + len(self._steps)}"
            )
        return self._place(self.begin.epoch, step - before)

    def _place(self, epoch: int, step: int) -> Place:
        steps, jobs = self._steps_of(epoch), self._jobs if epoch == self.begin.epoch else ()
        if step:
            start = steps.consumed(0)
            jobs = (*jobs, Job(start, self._world_size, self._order.batch_size, step))
        return Place(self.begin.first_epoch, epoch, steps.consumed(step), jobs)

    def records_of(self, step: int) -> list[int]:
        """The positions of a step of the epoch in which the iteration begins, on all ranks of the
        job that took it or will take it, rank by rank.

        Raises:
            IndexError: The epoch has fewer steps.
        """
        epoch, before = self.begin.epoch, 0
        for number, job in enumerate(self._place(epoch, len(self._steps)).jobs):
            if before <= step < before + job.num_steps:
                order, at = copy(self._order), step - before
                order.batch_size = job.batch_size
                place = Place(epoch, epoch, job.start, self._jobs[:number])
                steps = order.steps(place, job.world_size)
                ranks = range(job.world_size)
                return [
                    position for rank in ranks for position in steps.batches(rank, at, at + 1)[0]
                ]
            before += job.num_steps
        raise IndexError(f"step {step} is out of range: epoch {epoch} has {before} steps")


# Each is for as many records.

_Same = TypeVar("_Same", bound="RecordOrder")
_Order = WeightedDraws | BlockShuffle | Permutation

WINDOW_BLOCKS = 64  # 256 MiB, which fit into the page cache until the window is read

_MOST_INFLATED_WINDOW = 1 << 26  # decompressed bytes that are mixed


class RecordOrder:
    """Steps of as many records each, in the order of each epoch: a pure function of `identity` and
    the number of the epoch.

    Args:
        dataset: Anything with a length; for "blocks" a `TFRecordDataset`, or `Subset` or
            `ConcatDataset` of it. A subclass may have packs of records in their place.
        batch_size: Places in a batch, per rank; 0 for single ones, many in a list.
        drop_last: Drop what the ranks cannot share evenly, and a last batch that is not full.
        shuffle: True, False or "blocks".
        seed: An integer of any size.
        weights: One for each record, or None; draws with replacement.
        block_bytes, window_blocks: For "blocks"; see `BlockShuffle`.
    """

    is_sized = True

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        drop_last: bool = False,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        weights: npt.ArrayLike | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        if shuffle not in (True, False, "blocks") or not isinstance(shuffle, (bool, str)):
            raise ValueError(f'shuffle must be True, False or "blocks", got {shuffle!r}')
        if isinstance(dataset, Sampler):
            raise TypeError(
                f"dataset must be a dataset, got a sampler, {type(dataset).__name__}; if Lightning passed it, set "
                "Trainer(use_distributed_sampler=False), since this sampler already splits records over the ranks"
            )
        self.batch_size, self.drop_last = batch_size, true_or_false("drop_last", drop_last)
        self.num_records, self._seed = len(dataset), integer("seed", seed)
        at_least(1, "window_blocks", window_blocks)
        at_least(1, "block_bytes", block_bytes)
        self._identity: dict[str, Any] = {
            "num_records": self.num_records,
            "seed": self._seed,
            "shuffle": shuffle,
        }
        # Makes the order of an epoch; None for that of the files.
        self._make: Callable[[int, int], _Order] | None = None
        if weights is not None:
            if shuffle is not True:
                raise ValueError(f"with weights, shuffle must be True, got {shuffle!r}")
            sums = cumulated(weights)
            if len(sums) != self.num_records:
                raise ValueError(
                    f"weights must have one number for each of {self.num_records} records, got {len(sums)}"
                )
            self._identity["weights"] = digest(sums)
            self._make = partial(WeightedDraws, sums)
        elif shuffle == "blocks":
            starts, window_blocks, by_file = find_blocks(dataset, block_bytes, window_blocks)
            self._identity |= {"blocks": digest(starts), "window_blocks": window_blocks}
            self._identity |= {} if by_file is None else {"by_file": digest(by_file)}
            self._make = partial(
                BlockShuffle,
                starts,
                self.num_records,
                window_blocks=window_blocks,
                by_file=by_file,
            )
        elif shuffle:
            self._make = partial(Permutation, self.num_records)
        self._last: tuple[int, _Order | None] = (-1, None)  # the latest, and its epoch

    def at(self, places: Ints, epoch: int) -> Ints:
        """The positions at some places of an epoch's order."""
        if self._make is None:
            return places
        number, order = self._last
        if order is None or number != epoch:
            order = self._make(self._seed, epoch)
            self._last = epoch, order
        return order.positions(places)

    def steps(self, place: Place, world_size: int) -> RecordSteps:
        """See `StepOrder`."""
        return RecordSteps(self, place.epoch, world_size, place.consumed)

    def in_order(self: _Same) -> _Same:
        """See `StepOrder`."""
        other = copy(self)
        other._make = None
        other._identity = {"num_records": self.num_records, "seed": self._seed, "shuffle": False}
        return other

    def check(self, place: Place) -> None:
        """See `StepOrder`; any number of places may have been taken."""

    def positions(self, batches: list[list[int]], _epoch: int) -> list[list[int]]:
        """The positions of batches, from their parts of the order: a subclass may have others there."""
        return batches

    def identity(self) -> dict[str, Any]:
        """See `StepOrder`."""
        return self._identity


class RecordSteps:
    """The places of an epoch in steps, the same number for each rank; see `Steps`.

    The ranks take one place each in turn, from `start` on: rank r of w has the places start + r,
    start + r + w, start + r + 2w, ... If they cannot be divided evenly, the order is extended with
    its beginning (place N is place 0 again) until every rank has the same number, as torch's
    DistributedSampler does; or with `drop_last` the last (N - start) modulo w places are dropped.
    So after k positions on each rank the places up to start + k * w are taken, whatever w is, and
    steps of any other world size can begin there.

    Args:
        order: The order of N places.
        epoch: From 0.
        world_size: Ranks that share a step.
        start: Places taken before, 0 <= start <= N.

    Example:
        >>> order = RecordOrder(range(5), 3, shuffle=False)
        >>> [RecordSteps(order, 0, 2, 0).batches(rank, 0, 1) for rank in (0, 1)]
        [[[0, 2, 4]], [[1, 3, 0]]]
        >>> [RecordSteps(order, 0, 3, 2).batches(rank, 0, 1) for rank in (0, 1, 2)]
        [[[2]], [[3]], [[4]]]
    """

    def __init__(self, order: RecordOrder, epoch: int, world_size: int, start: int) -> None:
        self._order, self._epoch, self._world_size, self._start = order, epoch, world_size, start
        self._batch_size, left = order.batch_size or 1, order.num_records - start
        self._size = left // world_size if order.drop_last else -(-left // world_size)

    def __len__(self) -> int:
        whole, rest = divmod(self._size, self._batch_size)
        return whole + (rest > 0 and not self._order.drop_last)

    def batches(self, rank: int, begin: int, end: int) -> list[list[int]]:
        """See `Steps`."""
        order, size = self._order, self._batch_size
        numbers = np.arange(begin * size, min(end * size, self._size), dtype=np.int64)
        places = (self._start + rank + numbers * self._world_size) % max(order.num_records, 1)
        found: list[int] = order.at(places, self._epoch).tolist()
        if not order.batch_size:
            return [found]
        batches = [found[first : first + size] for first in range(0, len(found), size)]
        return order.positions(batches, self._epoch)

    def consumed(self, step: int) -> int:
        """See `Steps`."""
        return self._start + min(step * self._batch_size, self._size) * self._world_size


def find_blocks(
    dataset: Any, block_bytes: int, window_blocks: int
) -> tuple[Ints, int, Ints | None]:
    """The blocks of a dataset of TFRecord files or of nested datasets.

    Returns:
        The first place of each block, with the samples in the order of the files; how many blocks
        are mixed; and the position at each of those places, None if it is the place.
    """
    compressed = [store for store in Leaves(dataset).stores if store.first_compressed]
    if compressed:  # a window and the next one are kept decompressed
        window_blocks = min(window_blocks, max(_MOST_INFLATED_WINDOW // block_bytes, 1))
    for store in compressed:
        store.has_warned = True
    if hasattr(dataset, "_block_starts"):
        return np.asarray(dataset._block_starts(block_bytes), np.int64), window_blocks, None
    places = Leaves(dataset).places()
    if places is None:
        raise ValueError(
            'shuffle="blocks" needs to know where each record is: expected a TFRecordDataset, '
            f"got {type(dataset).__name__} (or a Subset or ConcatDataset of TFRecordDatasets only)"
        )
    files, offsets = np.asarray(places).T
    by_file = np.lexsort((offsets, files))
    starts = block_starts(files[by_file], offsets[by_file], block_bytes)
    return starts, window_blocks, by_file


def digest(content: Array | str) -> str:
    """A short digest of an array's or a text's contents, the same on every machine."""
    if isinstance(content, str):
        data = content.encode("utf-8", "surrogateescape")
    else:
        data = content.astype(content.dtype.newbyteorder("<"), copy=False).tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
