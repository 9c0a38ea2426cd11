"""The steps of every epoch, and where in them a training is: which jobs took which, and what is
left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sized
from copy import copy
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from torch_tfrecord.arguments import Shuffle, at_least, integer
from torch_tfrecord.order.leaves import Leaves
from torch_tfrecord.order.orders import (
    BLOCK_BYTES,
    BlockShuffle,
    Permutation,
    WeightedDraws,
    block_starts,
    cumulated,
)
from torch_tfrecord.order.ranks import Rank

__all__ = [
    "WINDOW_BLOCKS",
    "Job",
    "Place",
    "Plan",
    "RecordOrder",
    "RecordSteps",
    "StepOrder",
    "Steps",
    "digest",
]

_Integers = npt.NDArray[np.int64]

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
    """One rank's batches of the rest of an epoch; each can be computed by itself."""

    rank: Rank

    def __len__(self) -> int: ...

    def batches(self, begin: int, end: int) -> list[list[int]]:
        """The positions of the steps number `begin` to `end` - 1."""

    def num_positions(self, begin: int, end: int) -> int:
        """How many positions those are."""

    def consumed(self, step: int) -> int:
        """Places of the epoch's order that all ranks have taken after so many steps."""


class StepOrder(Protocol):
    """The steps of every epoch, whether of records, buckets or packs."""

    batch_size: int
    is_sized: bool  # whether full batches have so many records
    num_records: int
    drop_last: bool

    def steps(self, place: Place, rank: Rank, /) -> Steps:
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
        world_size: Ranks that share a step.
        batches_left: Batches of the epoch in which it begins.
        batches_an_epoch: Batches of each later one.

    Args:
        begin, order: The place, and the steps of all epochs.
        rank: Whose batches.
        of_all_ranks: The batches of all ranks, step by step.
    """

    def __init__(
        self, begin: Place, order: StepOrder, rank: Rank, *, of_all_ranks: bool = False
    ) -> None:
        self.begin, self._order, self._rank = begin, order, rank
        self.world_size = rank.world_size
        self._batches_a_step = rank.world_size if of_all_ranks else 1
        self._jobs, self._steps, self._first = self._go_on()
        self._before = begin.step - self._first  # steps of the epoch before the first of these
        self.batches_left = max(len(self._steps) - self._first, 0) * self._batches_a_step
        self._whole = order.steps(Place.at(begin.epoch + 1), rank)  # or, later, of a later epoch
        self._whole_epoch = begin.epoch + 1
        self.batches_an_epoch = len(self._whole) * self._batches_a_step

    def _go_on(self) -> tuple[tuple[Job, ...], Steps, int]:
        """The steps after those of some jobs, and the first of them that is left."""
        begin, order, rank = self.begin, self._order, self._rank
        if begin.jobs and begin.jobs[-1][1:3] == (rank.world_size, order.batch_size):
            # The same job goes on, if nobody changed the state.
            before, last = begin.before_last_job(), begin.jobs[-1]
            steps = order.steps(before, rank)
            if min(steps.consumed(last.num_steps), order.num_records) == begin.consumed:
                return before.jobs, steps, last.num_steps
        return begin.jobs, order.steps(begin, rank), 0

    def _steps_of(self, epoch: int) -> Steps:
        if epoch == self.begin.epoch:
            return self._steps
        if epoch != self._whole_epoch:
            self._whole = self._order.steps(Place.at(epoch), self._rank)
            self._whole_epoch = epoch
        return self._whole

    def num_batches(self, num_epochs: int) -> int:
        """Batches up to the iteration's end; 0 if the place is beyond it."""
        return self._sum(self.batches_left, self.batches_an_epoch, num_epochs)

    def num_positions(self, num_epochs: int) -> int:
        """Positions in those batches."""
        first = self._steps.num_positions(self._first, max(len(self._steps), self._first))
        return self._sum(first, self._whole.num_positions(0, len(self._whole)), num_epochs)

    def _sum(self, first: int, whole: int, num_epochs: int) -> int:
        epochs_left = self.begin.first_epoch + num_epochs - self.begin.epoch
        return first + (epochs_left - 1) * whole if epochs_left > 0 else 0

    def batches(self, epoch: int) -> Iterator[list[int]]:
        """The batches of an epoch, or of the rest of the epoch in which the iteration begins."""
        for steps, begin, end in self.parts(epoch):
            if self._batches_a_step > 1:
                every = [one.batches(begin, end) for one in _of_each_rank(steps)]
                yield from chain.from_iterable(zip(*every, strict=True))
            else:
                yield from steps.batches(begin, end)

    def parts(self, epoch: int) -> Iterator[tuple[Steps, int, int]]:
        """Those steps, from a first to before a last one, that are computed at once: few at first."""
        steps = self._steps_of(epoch)
        num_batches = max(len(steps) * self.world_size, 1)
        size = self._order.batch_size or self._order.num_records // num_batches + 1
        at_once = max(_FIRST_POSITIONS // size, 1)
        begin = self._first if epoch == self.begin.epoch else 0
        while begin < len(steps):
            end = min(begin + at_once, len(steps))
            yield steps, begin, end
            begin, at_once = end, max(min(2 * at_once, _CHUNK_POSITIONS // size), 1)

    def place_after(self, num_batches: int) -> Place:
        """The place after `num_batches` batches: at the end of an epoch, never at the beginning of
        the next one.
        """
        begin, each = self.begin, self._batches_a_step
        if num_batches <= self.batches_left:
            step = min(self._first + -(-num_batches // each), len(self._steps))
            return self._place(begin.epoch, self._steps, step, self._jobs)
        epochs_before, batch = divmod(num_batches - self.batches_left - 1, self.batches_an_epoch)
        epoch = begin.epoch + 1 + epochs_before
        return self._place(epoch, self._steps_of(epoch), batch // each + 1, ())

    def place_at(self, step: int) -> Place:
        """The place after so many steps of the epoch in which the iteration begins.

        Raises:
            IndexError: They are fewer than were taken before, or more than the epoch has.
        """
        number = step - self._before
        if not 0 <= number <= len(self._steps):
            raise IndexError(
                f"step {step} is out of range: expected {self._before} to {self._before + len(self._steps)}"
            )
        return self._place(self.begin.epoch, self._steps, number, self._jobs)

    def _place(self, epoch: int, steps: Steps, step: int, jobs: tuple[Job, ...]) -> Place:
        start = steps.consumed(0)
        job = Job(start, self._rank.world_size, self._order.batch_size, step)
        jobs = (*jobs, job) if step else jobs
        return Place(self.begin.first_epoch, epoch, steps.consumed(step), jobs)

    def records_of(self, step: int) -> list[int]:
        """The positions of a step of the epoch in which the iteration begins, on all ranks of the
        job that took it or will take it, rank by rank.

        Raises:
            IndexError: The epoch has fewer steps.
        """
        epoch, before = self.begin.epoch, 0
        here = (self._rank.world_size, self._order.batch_size, len(self._steps))
        jobs = (*self._jobs, Job(self._steps.consumed(0), *here))
        for number, (start, world_size, batch_size, num_steps) in enumerate(jobs):
            if before <= step < before + num_steps:
                order, at = copy(self._order), step - before
                order.batch_size = batch_size
                steps = order.steps(Place(epoch, epoch, start, jobs[:number]), Rank(0, world_size))
                batches = [one.batches(at, at + 1)[0] for one in _of_each_rank(steps)]
                return [*chain.from_iterable(batches)]
            before += num_steps
        raise IndexError(f"step {step} is out of range: epoch {epoch} has {before} steps")


def _of_each_rank(steps: Steps) -> list[Steps]:
    """The same steps for each rank."""
    steps.consumed(0)  # what they share is computed once
    every = [copy(steps) for _ in range(steps.rank.world_size)]
    for number, one in enumerate(every):
        one.rank = one.rank._replace(rank=number)
    return every


# Each is for as many records.

_Same = TypeVar("_Same", bound="RecordOrder")
_Order = WeightedDraws | BlockShuffle | Permutation | None  # that of the files

WINDOW_BLOCKS = 64  # 256 MiB, which fit into the page cache until the window is read

_MOST_INFLATED_WINDOW = 1 << 26  # decompressed bytes that are mixed


class RecordOrder:
    """Steps of as many records each, in the order of each epoch: a pure function of `identity` and
    the number of the epoch.

    Args:
        dataset: Anything with a length; for "blocks" a `TFRecordDataset`, or `Subset` or
            `ConcatDataset` of it. A subclass may have packs of records in their place.
        batch_size: Places in a batch, per rank.
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
        drop_last: bool,
        *,
        shuffle: Shuffle,
        seed: int,
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
        self.batch_size, self.drop_last = batch_size, drop_last
        self.num_records = len(dataset)
        self._shuffle = shuffle
        self._seed = integer("seed", seed)
        self._sums = None if weights is None else self._checked(weights)
        at_least(1, "window_blocks", window_blocks)
        at_least(1, "block_bytes", block_bytes)
        self._blocks = (
            find_blocks(dataset, block_bytes, window_blocks) if shuffle == "blocks" else None
        )
        self._last: tuple[int, _Order] = (-1, None)  # the latest, and its epoch
        self._identity = self._make_identity()  # only once, since it reads every block or weight

    def at(self, places: _Integers, epoch: int) -> _Integers:
        """The positions at some places of an epoch's order."""
        if self._last[0] != epoch:
            self._last = (epoch, self._make_order(epoch))
        order = self._last[1]
        return places if order is None else order.positions(places)

    def _make_order(self, epoch: int) -> _Order:
        seeds = self._seed, epoch
        if self._sums is not None:
            return WeightedDraws(self._sums, *seeds)
        if self._blocks is not None:
            starts, window_blocks, by_file = self._blocks
            return BlockShuffle(
                starts, self.num_records, *seeds, window_blocks=window_blocks, by_file=by_file
            )
        return Permutation(self.num_records, *seeds) if self._shuffle else None

    def steps(self, place: Place, rank: Rank) -> RecordSteps:
        """See `StepOrder`."""
        return RecordSteps(self, place.epoch, rank, place.consumed)

    def in_order(self: _Same) -> _Same:
        """See `StepOrder`."""
        other = copy(self)
        other._shuffle, other._sums, other._blocks, other._last = False, None, None, (-1, None)
        other._identity = other._make_identity()
        return other

    def check(self, place: Place) -> None:
        """See `StepOrder`; any number of places may have been taken."""

    def positions(self, places: list[int], epoch: int) -> list[int]:
        """The positions of a batch of a subclass, from its part of the order."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """See `StepOrder`."""
        return self._identity

    def _make_identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {
            "num_records": self.num_records,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }
        if self._blocks is not None:
            starts, window_blocks, by_file = self._blocks
            identity |= {"blocks": digest(starts), "window_blocks": window_blocks}
            identity |= {} if by_file is None else {"by_file": digest(by_file)}
        if self._sums is not None:
            identity["weights"] = digest(self._sums)
        return identity

    def _checked(self, weights: npt.ArrayLike) -> npt.NDArray[np.float64]:
        if self._shuffle is not True:
            raise ValueError(f"with weights, shuffle must be True, got {self._shuffle!r}")
        sums = cumulated(weights)
        if len(sums) != self.num_records:
            raise ValueError(
                f"weights must have one number for each of {self.num_records} records, got {len(sums)}"
            )
        return sums


class RecordSteps:
    """One rank's places of an epoch in steps, the same number for each rank; see `Steps`.

    The ranks take one place each in turn, from `start` on: rank r of w has the places start + r,
    start + r + w, start + r + 2w, ... If they cannot be divided evenly, the order is extended with
    its beginning (place N is place 0 again) until every rank has the same number, as torch's
    DistributedSampler does; or with `drop_last` the last (N - start) modulo w places are dropped.
    So after k positions on each rank the places up to start + k * w are taken, whatever w is, and
    steps of any other world size can begin there.

    Args:
        order: The order of N places.
        epoch: From 0.
        rank: Whose places.
        start: Places taken before, 0 <= start <= N.

    Example:
        >>> order = RecordOrder(range(5), 1, False, shuffle=False, seed=0)
        >>> [RecordSteps(order, 0, Rank(rank, 2), 0).places(0, 3) for rank in (0, 1)]
        [[0, 2, 4], [1, 3, 0]]
        >>> [RecordSteps(order, 0, Rank(rank, 3), 2).places(0, 1) for rank in (0, 1, 2)]
        [[2], [3], [4]]
    """

    def __init__(self, order: RecordOrder, epoch: int, rank: Rank, start: int) -> None:
        self._order, self._epoch, self.rank, self._start = order, epoch, rank, start
        left = order.num_records - start
        self._size = left // rank.world_size if order.drop_last else -(-left // rank.world_size)

    def __len__(self) -> int:
        size, batch_size = self._size, self._order.batch_size
        return size // batch_size if self._order.drop_last else -(-size // batch_size)

    def places(self, begin: int, end: int) -> list[int]:
        """This rank's part of the order in some steps."""
        order, size = self._order, self._order.batch_size
        numbers = np.arange(begin * size, min(end * size, self._size), dtype=np.int64)
        places = self._start + self.rank.rank + numbers * self.rank.world_size
        found: list[int] = order.at(places % max(order.num_records, 1), self._epoch).tolist()
        return found

    def batches(self, begin: int, end: int) -> list[list[int]]:
        """See `Steps`."""
        order, size, places = self._order, self._order.batch_size, self.places(begin, end)
        found = [places[first : first + size] for first in range(0, len(places), size)]
        return found if order.is_sized else [order.positions(each, self._epoch) for each in found]

    def num_positions(self, begin: int, end: int) -> int:
        """See `Steps`."""
        size = self._order.batch_size
        return min(end * size, self._size) - min(begin * size, self._size)

    def consumed(self, step: int) -> int:
        """See `Steps`."""
        taken = min(step * self._order.batch_size, self._size) * self.rank.world_size
        return self._start + taken


def find_blocks(
    dataset: Any, block_bytes: int, window_blocks: int
) -> tuple[_Integers, int, _Integers | None]:
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
    files, offsets = places
    by_file = np.lexsort((offsets, files))
    starts = block_starts(files[by_file], offsets[by_file], block_bytes)
    return starts, window_blocks, by_file


def digest(array: npt.NDArray[Any]) -> str:
    """A short digest of an array's contents, the same on every machine."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.blake2b(little.tobytes(), digest_size=8).hexdigest()
