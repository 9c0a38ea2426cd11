"""The order of records, or of batches of them, for one rank: samplers for DataLoader, which resume."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import chain, count
from typing import ClassVar, Generic, Literal, TypeVar, cast

import numpy.typing as npt
from torch.utils.data import Sampler, SequentialSampler

from torch_tfrecord.arguments import Shuffle, at_least, integer, true_or_false
from torch_tfrecord.order.buckets import Buckets, LengthOptions, TooLong, checked_lengths
from torch_tfrecord.order.epochs import STATE_VERSION, Epochs, check_number, check_state
from torch_tfrecord.order.leaves import draws_at_random
from torch_tfrecord.order.position_batch import EpochPosition, PositionBatch
from torch_tfrecord.order.ranks import Rank, RankSampler, check_rank, resolve_rank
from torch_tfrecord.order.shares import (
    Job,
    Place,
    Plan,
    RecordOrder,
    RecordSteps,
    Skip,
    StepOrder,
)
from torch_tfrecord.order.trainers import (
    Prepared,
    check_loaded_epoch,
    check_num_received,
    is_automatic,
    keeps_its_order,
    other_epoch,
    prepared_loader,
)
from torch_tfrecord.shown import shown_value

__all__ = [
    "BLOCK_BYTES",
    "WINDOW_BLOCKS",
    "Iteration",
    "LengthBatchSampler",
    "RecordBatchSampler",
    "RecordSampler",
]

BLOCK_BYTES = 4 << 20  # a hard disk seeks in a fraction of the time that it takes to read these
WINDOW_BLOCKS = 64  # 256 MiB, which the page cache can hold until the window is read

_Unit_co = TypeVar("_Unit_co", bound="int | PositionBatch", covariant=True)


class _EpochSampler(Generic[_Unit_co]):
    """What both samplers do: they yield units, positions or batches of these, iteration by
    iteration, and resume from a place.

    Args:
        order: The steps of each epoch.
        num_epochs: Epochs in an iteration; None if it never ends.
        rank, world_size, drop_last: As given by the user.
        tells_epoch: The dataset draws at random: each position must know its epoch where a batch
            does not.
    """

    # What the next iteration begins with once one has begun: the epochs after it, or the same.
    _continues: ClassVar[bool]
    _unit: ClassVar[Literal["samples", "batches"]]
    # The numbers of a `Place` that a state holds, and its lists.
    _numbers: ClassVar[tuple[str, ...]]
    _lists: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        order: StepOrder,
        num_epochs: int | None,
        rank: int | None,
        world_size: int | None,
        drop_last: bool,
        tells_epoch: bool,
    ) -> None:
        check_rank(rank, world_size)
        self._order, self._num_epochs = order, num_epochs
        self._rank, self._world_size = rank, world_size
        self.drop_last = true_or_false("drop_last", drop_last)
        self._tells_epoch = tells_epoch
        self._restart()

    def _restart(self) -> None:
        self._next = Place(0, 0, 0)
        self._running: Iteration[_Unit_co] | None = None
        # First epoch of a loaded iteration, until it begins or a trainer gives its number.
        self._loaded_epoch: int | None = None
        self._count_from = 0  # first epoch of the trainer's iteration 0

    def __len__(self) -> int:
        """Return this rank's number of samples, or batches, in the next iteration: after
        `load_state_dict`, in the rest of the interrupted one.

        Raises:
            TypeError: The iteration never ends.
        """
        return self._plan(self._next).num_batches(self._finite_epochs())

    def __iter__(self) -> Iteration[_Unit_co]:
        return Iteration(self)

    def _finite_epochs(self) -> int:
        if self._num_epochs is None:
            raise TypeError("a sampler with num_epochs=None has no length: it never ends")
        return self._num_epochs

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins, or resumes after `load_state_dict`."""
        return self._coming.epoch

    @property
    def _epochs_an_iteration(self) -> int:
        return 1 if self._num_epochs is None else self._num_epochs

    @property
    def _coming(self) -> Place:
        """The place where the next iteration begins; an existing one counts as next if nothing was
        received of it.
        """
        running = self._running
        return running.place if running is not None and running.is_waiting else self._next

    def _place_after(self, place: Place) -> Place:
        """Where the iteration after one that began at a place begins."""
        epoch = place.first_epoch + self._epochs_an_iteration * self._continues
        return Place(epoch, epoch, 0)

    def _begin_with(self, epoch: int) -> None:
        self._replace_waiting()
        self._next, self._running, self._loaded_epoch = Place(epoch, epoch, 0), None, None

    def _replace_waiting(self) -> None:
        if self._running is not None and self._running.is_waiting:
            self._running.replace()

    def state_dict(self, num_received: int | None = None) -> dict[str, object]:
        """Return the state of the latest iteration: a few JSON numbers and strings.

        Args:
            num_received: Samples (of a batch sampler: batches) of that iteration that your training
                loop has received on this rank. None counts those that the sampler has yielded.

        Raises:
            ValueError: `num_received` is more than the sampler has yielded, or is None with a
                loader that Accelerate prepared.
        """
        running = self._running
        if running is not None:
            check_num_received(running.prepared, num_received, self._unit)
        if running is None and num_received:
            raise ValueError(
                f"num_received must be 0 before an iteration has begun, got {num_received}"
            )
        is_next = self._continues and running is not None and running.has_ended
        if running is None or (is_next and num_received is None):
            return self._state(self._next)
        return running.state_dict(num_received)

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Resume from a state: the next iteration yields the rest of the interrupted one.

        Raises:
            ValueError: The state has another version or order (number of records, seed, shuffle,
                weights, ...); the message gives both values.
        """
        self.begin_at(self.checked_place(state_dict))

    def begin_at(self, place: Place) -> None:
        """Begin the next iteration at a place."""
        self._replace_waiting()
        self._next, self._running, self._loaded_epoch = place, None, place.first_epoch

    def checked_place(self, state: Mapping[str, object]) -> Place:
        """The place of a state; see `load_state_dict`, which begins there."""
        limits = Place(None, None, self._order.num_records)._asdict()  # type: ignore[arg-type]
        numbers = {name: limits[name] for name in self._numbers}
        check_state(state, self._identity(), numbers, self._lists)
        epoch, consumed = (int(str(state[name])) for name in ("epoch", "consumed"))
        first = int(str(state.get("first_epoch", epoch)))
        if first > epoch:
            raise ValueError(f"first_epoch={first} is after epoch={epoch} in the state")
        jobs = [Job(*job) for job in _checked_list("jobs", state, 4)]
        skips = [Skip(*skip) for skip in _checked_list("skips", state, 4)]
        place = Place(first, epoch, consumed, tuple(jobs), tuple(skips))
        self._order.check(place)
        return place

    def _state(self, place: Place) -> dict[str, object]:
        # The last round may have repeated the beginning.
        numbers = place._replace(consumed=min(place.consumed, self._order.num_records))._asdict()
        found = {name: numbers[name] for name in self._numbers}
        found |= {name: [*map(list, numbers[name])] for name in self._lists}
        return {"version": STATE_VERSION, **found, **self._identity()}

    def _identity(self) -> dict[str, object]:
        return {**self._order.identity(), "drop_last": self.drop_last}

    def _check_prepared(self, prepared: Prepared) -> None:
        """ValueError if Accelerate would lose records after a short batch between two epochs."""
        if prepared.num_processes == 1 or self._num_epochs == 1 or self.drop_last:
            return
        if self._order.is_sized and self._order.num_records % self._order.batch_size:
            raise ValueError(
                f"num_epochs={self._num_epochs}: Accelerate takes a batch that is not full to be the last, and loses "
                "records; expected num_epochs=1 or drop_last=True in a loader that it prepared"
            )

    def _place_for(self, prepared: Prepared, place: Place) -> Place:
        """The place where an iteration through Accelerate begins; if Accelerate counts epochs, at
        its epoch.
        """
        self._check_prepared(prepared)
        if prepared.epoch is None:
            return place
        first = self._count_from + prepared.epoch * self._epochs_an_iteration
        if place.first_epoch == first:
            return place
        if self._loaded_epoch == place.first_epoch:
            raise other_epoch(
                place.first_epoch // max(self._epochs_an_iteration, 1), prepared.epoch
            )
        return Place(first, first, 0)

    def _plan(self, place: Place) -> Plan:
        rank, prepared = resolve_rank(self._rank, self._world_size), prepared_loader()
        if prepared is None or self._order.is_sized:
            return Plan(place, self._order, rank)
        # Accelerate deals out the batches: those of a step must follow each other.
        rank = Rank(0, prepared.num_processes * rank.world_size)
        return Plan(place, self._order, rank, of_all_ranks=True)

    def _units(self, plan: Plan, epoch: int, prepared: Prepared | None) -> Iterator[_Unit_co]:
        """What an epoch of an iteration yields."""
        raise NotImplementedError


class Iteration(Iterator[_Unit_co]):
    """One iteration of a sampler. It begins with its first unit, since loaders make iterators that
    they never use.
    """

    def __init__(self, sampler: _EpochSampler[_Unit_co]) -> None:
        self._sampler = sampler
        self._go_to(None)

    def _go_to(self, begin: Place | None) -> None:
        self._begin_at = begin  # None until it begins: then the sampler's place at that time
        self._num_yielded = 0
        self.has_ended = False  # everything was yielded
        self.num_received: int | None = None  # set by a loader that counts
        self.is_over = False  # everything was received
        self.is_replaced = False  # by one that begins elsewhere, before anything was received
        self._plan: Plan | None = None
        self.prepared: Prepared | None = None  # Accelerate's loader, which splits the batches
        self._units: Iterator[_Unit_co] = iter(())

    @property
    def place(self) -> Place:
        """The place where it begins."""
        return self._begin_at or self._sampler._next

    @property
    def is_waiting(self) -> bool:
        """Whether it may still begin elsewhere: nothing was received, or, if nobody counts that,
        yielded.
        """
        return (
            self._plan is None
            if self.num_received is None
            else not self.num_received and not self.is_over
        )

    def __len__(self) -> int:
        """Units of the whole iteration; TypeError if it never ends."""
        num_epochs = self._sampler._finite_epochs()
        return (self._plan or self._sampler._plan(self.place)).num_batches(num_epochs)

    def __next__(self) -> _Unit_co:
        if self._plan is None:
            self.begin()
        for unit in self._units:
            self._num_yielded += 1
            return unit
        self.has_ended = True
        raise StopIteration

    def begin(self) -> None:
        """Begin this iteration: the sampler's next one is then the one after it."""
        sampler = self._sampler
        if self._plan is None:
            self.prepared, place = prepared_loader(), self.place
            self._begin_at = (
                place if self.prepared is None else sampler._place_for(self.prepared, place)
            )
            self._plan = sampler._plan(self._begin_at)
            self._units = self._each_unit(self._plan)
        sampler._running, sampler._next = self, sampler._place_after(self.place)
        if not sampler._continues:
            sampler._loaded_epoch = None  # the loaded state is used only once

    def put_back(self) -> None:
        """Make this iteration the sampler's next one again, since no batch of it was received."""
        self._sampler._running, self._sampler._next = None, self.place

    def replace(self) -> None:
        """Begin at the sampler's new place: this iteration, or if it has yielded batches, its
        replacement.
        """
        self._begin_at, self.is_replaced = None, self._plan is not None

    def _each_unit(self, plan: Plan) -> Iterator[_Unit_co]:
        begin, num_epochs = plan.begin, self._sampler._num_epochs
        epochs: Iterator[int] = count(begin.epoch)
        if num_epochs is not None:
            epochs = iter(range(begin.epoch, begin.first_epoch + num_epochs))
        if not plan.batches_an_epoch:
            # else it would look for a batch forever
            epochs = iter(range(begin.epoch, begin.epoch + 1))
        for epoch in epochs:
            yield from self._sampler._units(plan, epoch, self.prepared)

    def state_dict(self, num_received: int | None = None) -> dict[str, object]:
        """The state of this iteration."""
        return self._sampler._state(self.place_after(num_received))

    def place_after(self, num_received: int | None) -> Place:
        """The place after so many units, or (None) after those that were yielded."""
        received = (
            self._num_yielded if num_received is None else at_least(0, "num_received", num_received)
        )
        if self.prepared is not None and num_received is not None:
            is_part = self.prepared.splits_batches and self._sampler._unit == "batches"
            each = 1 if is_part else self.prepared.num_processes
            received = min(received * each, self._num_yielded)  # Accelerate filled up the rest
        if received > self._num_yielded:
            raise ValueError(
                f"num_received={received}, but the sampler has yielded only {self._num_yielded} {self._sampler._unit}"
            )
        return self.place if self._plan is None else self._plan.place_after(received)

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Resume from another iteration's state; StatefulDataLoader calls this."""
        sampler = self._sampler
        self._go_to(sampler.checked_place(state_dict))
        # Only this iteration resumes: the next one begins after it, even if this one is at its end
        # and never used.
        sampler._loaded_epoch = self.place.first_epoch if sampler._continues else None
        sampler._next, sampler._running = sampler._place_after(self.place), self


def _checked_list(name: str, state: Mapping[str, object], size: int) -> list[tuple[int, ...]]:
    """The items of a list in a state, each of so many numbers."""
    items = state.get(name, [])
    if not isinstance(items, list) or not all(
        isinstance(item, list) and len(item) == size for item in items
    ):
        raise ValueError(
            f"{name} must hold lists of {size} numbers in the state, got {shown_value(items)}"
        )
    for number in chain.from_iterable(items):
        check_number(name, number)
    return [tuple(item) for item in items]


class RecordSampler(_EpochSampler[int], RankSampler):  # type: ignore[override]
    """Sampler for one rank, whose order is a pure function of (seed, epoch), for any number of
    workers.

    The order of an epoch is one sequence of all N positions. The ranks take one position each in
    turn: rank r of w has the places r, r + w, r + 2w, ... Every rank gets the same number. If N is
    not a multiple of w, the order is extended with positions from its beginning (as torch's
    DistributedSampler does, also for N < w), or with `drop_last` its last N modulo w places are
    dropped.

    It is an instance of DistributedSampler, so that Lightning does not split the positions once
    more.

    **Resuming.** The state is the epoch and how many places of its order all ranks together have
    taken: after k samples on each rank, k * w. You can load it with another world size, worker
    count or batch size: the places from there to N are split over the new ranks by the same rule.
    Nothing is lost, and nothing is repeated but what evens out the ranks. With the same world size
    you get the samples of the uninterrupted run. Save one rank's state, load it on all ranks.

    The state must count what your training loop has received. `state_dict()` counts what the
    sampler has yielded. That is the same with torchdata's StatefulDataLoader (which keeps a state
    with each batch) and with a DataLoader without workers. The workers of a plain DataLoader
    prefetch: pass `num_received`, or use `make_dataloader`::

        for number, batch in enumerate(loader, 1):
            train(batch)
            state = sampler.state_dict(num_received=min(number * batch_size, samples_this_iteration))

    where ``samples_this_iteration = len(sampler)``, taken before the loop.

    Args:
        dataset: The dataset to sample from: anything with a length.
        shuffle: True for a full shuffle; False for the order of the files; "blocks", which needs a
            `TFRecordDataset`, for blocks of `block_bytes` neighbouring bytes in random order, mixed
            within windows of `window_blocks` blocks: for storage that reads best in sequence.
        seed: An integer of any size. Its order never changes between releases or machines.
        rank, world_size: Give both or neither. None takes them from torch.distributed if it is
            initialised, else from torchrun's environment variables, else 0 of 1; looked up when an
            iteration begins.
        drop_last: Drop positions instead of repeating some, so that all ranks get the same number.
        weights: One number of at least 0 for each record: an epoch is then N draws with
            replacement, with probabilities in proportion to the weights; see `balanced_weights`.
        block_bytes, window_blocks: For ``shuffle="blocks"``.

    Raises:
        ValueError: An argument is out of range, or shuffle is "blocks" and the dataset is not a
            `TFRecordDataset`, or a `Subset` or `ConcatDataset` of these.

    Example:
        >>> sampler = RecordSampler(range(5), seed=0)
        >>> list(sampler)
        [2, 3, 0, 1, 4]
        >>> sampler.set_epoch(1)
        >>> list(sampler)
        [0, 1, 2, 3, 4]
    """

    _continues, _unit, _numbers = False, "samples", ("epoch", "consumed")

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        weights: npt.ArrayLike | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        epochs = Epochs(
            dataset,
            shuffle=shuffle,
            seed=seed,
            weights=weights,
            block_bytes=block_bytes,
            window_blocks=window_blocks,
        )
        order = RecordOrder(epochs, 1, drop_last)
        # Only for a dataset that itself draws at random: a `Mixture` would take the epoch to begin
        # elsewhere in its datasets, but only those with crops.
        tells_epoch = bool(getattr(dataset, "_draws_at_random", False))
        super().__init__(order, 1, rank, world_size, drop_last, tells_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, of the next iteration; until you call it again, every iteration
        has the same order.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch. An iterator that has not yielded a position yet counts as the next iteration,
        too: trainers make it before they call this.
        """
        if at_least(0, "epoch", epoch) != self.epoch:
            if self._loaded_epoch is not None:
                check_loaded_epoch(self.epoch, epoch)
            self._begin_with(int(epoch))

    def _units(self, plan: Plan, epoch: int, prepared: Prepared | None) -> Iterator[int]:
        for steps, begin, end in plan.parts(epoch):
            positions = cast("RecordSteps", steps).places(begin, end)
            if self._tells_epoch:
                positions = [EpochPosition(position, epoch) for position in positions]
            yield from positions


@keeps_its_order
class RecordBatchSampler(_EpochSampler[PositionBatch], Sampler[list[int]]):
    """Batch sampler for one rank: a `RecordSampler` that makes batches and continues from epoch to
    epoch.

    An iteration has `num_epochs` epochs, and the next iteration continues with the epochs after
    them. Each epoch ends with its own batch, which may be short. Every rank gets the same number of
    batches, of the same sizes.

    Each batch is a list of positions with an attribute `epoch`, which random draws of features
    depend on.

    The state is like `RecordSampler`'s, and you can load it with another world size, batch size and
    worker count: the epoch, how many places of its order all ranks have taken, and the first epoch
    of the iteration. Since workers prefetch, tell `state_dict` how many batches you received, or
    use `make_dataloader`, whose loader counts them.

    Args:
        dataset: The dataset to sample from: anything with a length.
        batch_size: Positions in a batch, per rank.
        num_epochs: Epochs in one iteration. 0 gives no batch; with None the iteration never ends,
            and the next one begins one epoch later than it began.
        drop_last: Drop the positions that would give ranks different numbers, and an epoch's last
            batch if it is not full.
        shuffle, seed, rank, world_size, weights, block_bytes, window_blocks: As for
            `RecordSampler`.

    Attributes:
        batch_size, drop_last: As given.
        sampler: This rank's positions one by one, as a DistributedSampler: trainers call its
            `set_epoch`, which counts iterations.

    Raises:
        TypeError: You passed a sampler instead of the dataset.
        ValueError: An argument is out of range, or shuffle is "blocks" and the dataset is not a
            `TFRecordDataset`, or a `Subset` or `ConcatDataset` of these.

    Example:
        >>> list(RecordBatchSampler(range(5), 2, num_epochs=2))
        [[2, 3], [0, 1], [4], [0, 1], [2, 3], [4]]
    """

    _continues, _unit, _numbers = True, "batches", ("first_epoch", "epoch", "consumed")
    _lists = ("jobs", "skips")

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        num_epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        weights: npt.ArrayLike | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        if integer("batch_size", batch_size) < 1:
            raise ValueError(f"batch_size: Batch size must be greater than zero, got {batch_size}")
        epochs = Epochs(
            dataset,
            shuffle=shuffle,
            seed=seed,
            weights=weights,
            block_bytes=block_bytes,
            window_blocks=window_blocks,
        )
        order = RecordOrder(epochs, int(batch_size), drop_last)
        self._set_up(dataset, order, num_epochs, rank, world_size, drop_last)

    @classmethod
    def of_order(
        cls,
        dataset: Sized,
        order: StepOrder,
        num_epochs: int | None,
        rank: int | None,
        world_size: int | None,
        drop_last: bool,
    ) -> RecordBatchSampler:
        """Make a batch sampler of other steps: of buckets, or of packs."""
        batches = cls.__new__(cls)
        batches._set_up(dataset, order, num_epochs, rank, world_size, drop_last)
        return batches

    def _set_up(
        self,
        dataset: Sized,
        order: StepOrder,
        num_epochs: int | None,
        rank: int | None,
        world_size: int | None,
        drop_last: bool,
    ) -> None:
        num_epochs = None if num_epochs is None else at_least(0, "num_epochs", num_epochs)
        tells_epoch = draws_at_random(dataset)
        super().__init__(order, num_epochs, rank, world_size, drop_last, tells_epoch)

    @property
    def batch_size(self) -> int | None:
        """Positions in a batch, per rank; None if they are as many as fit."""
        return self._order.batch_size if self._order.is_sized else None

    def _restart(self) -> None:
        super()._restart()
        self.sampler = _BatchedPositions(self)

    def __iter__(self) -> Iteration[PositionBatch]:
        self._last_iteration = Iteration(self)
        return self._last_iteration

    def _num_positions(self) -> int:
        """Positions in the batches of the next iteration; TypeError if it never ends."""
        return self._plan(self._next).num_positions(self._finite_epochs())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, in which the next iteration begins.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch.
        """
        if prepared_loader() is not None:
            return  # Accelerate calls the set_epoch of our `sampler`, too
        if at_least(0, "epoch", epoch) != self._coming.epoch:
            self._begin_with(int(epoch))

    def _set_iteration(self, number: int) -> None:
        """Choose the next iteration, from 0, as trainers count: number k begins with epoch ``k *
        num_epochs``.

        If it is the iteration of a loaded state, nothing changes. If the first number after
        `load_state_dict` is smaller, it is taken to mean the loaded iteration, and the trainer
        counts on from there.
        """
        if self._continues and is_automatic():
            return  # Accelerate counts its iterations from 0; ours count epochs by themselves, also when resumed
        if not self._continues and self._loaded_epoch not in (None, number):
            check_loaded_epoch(self.epoch, number)
        epochs = at_least(0, "epoch", number) * self._epochs_an_iteration
        loaded, self._loaded_epoch = self._loaded_epoch, None
        if loaded is not None and prepared_loader() is None:
            self._count_from = max(loaded - epochs, 0)
        epoch = self._count_from + epochs
        # workers may already be reading the loaded one
        if epoch not in (loaded, self._coming.first_epoch):
            self._begin_with(epoch)

    def _for_sampler(self, sampler: object, drop_last: bool | None) -> RecordBatchSampler:
        """The sampler for Lightning to use instead of its own: this one, which splits over the
        ranks itself.

        With `overfit_batches` Lightning passes a SequentialSampler, for the same batches in every
        epoch. `drop_last` is None except for predictions, which need all records.
        """
        in_order = isinstance(sampler, SequentialSampler) and drop_last is None
        if not in_order and drop_last in (None, self.drop_last):
            return self
        other = copy.copy(self)
        other._restart()
        if in_order:
            other._order = self._order.in_order()
        else:
            other._order, other.drop_last = copy.copy(self._order), bool(drop_last)
            other._order.drop_last = other.drop_last
        return other

    def _units(self, plan: Plan, epoch: int, prepared: Prepared | None) -> Iterator[PositionBatch]:
        for batch in plan.batches(epoch):
            if prepared is not None and self._tells_epoch:
                # Accelerate fills up the last batches with single positions.
                batch = [EpochPosition(position, epoch) for position in batch]
            yield PositionBatch(batch, epoch)

    # Steering.

    def _latest(self, num_received: int | None) -> Place:
        """The place after the batches that were received of the running iteration, or where the
        next one begins.
        """
        running = self._running
        if running is None or running.is_over:
            return self._next
        return running.place_after(num_received)

    def records_of(self, step: int, epoch: int | None, num_received: int | None) -> PositionBatch:
        """The positions of a step of an epoch, None for the running one, on all ranks."""
        place = self._latest(num_received)
        if epoch is not None and at_least(0, "epoch", epoch) != place.epoch:
            place = Place(epoch, epoch, 0)
        found = self._plan(place).records_of(at_least(0, "step", step))
        return PositionBatch(found, place.epoch)

    def skip_to(self, step: int, num_received: int | None) -> None:
        """Begin the next iteration at a step of the running epoch."""
        place = self._latest(num_received)
        if at_least(0, "step", step) < place.step:
            place = Place(place.first_epoch, place.epoch, 0)
        self.begin_at(self._plan(place).place_at(step))

    def place_at(self, step: int | None, num_received: int | None) -> Place:
        """The place of a coming step of the running epoch, None for the next one."""
        place = self._latest(num_received)
        step = place.step if step is None else at_least(place.step, "from_step", step)
        return self._plan(place).place_at(step)

    def begin_again(self, num_received: int | None) -> None:
        """Begin the next iteration after the batches that were received."""
        self.begin_at(self._latest(num_received))

    def skip(self, steps: range, num_received: int | None) -> None:
        """Leave out steps of the running epoch, in the next iteration."""
        place = self._latest(num_received)
        if steps.step != 1 or not place.step <= steps.start < steps.stop:
            raise ValueError(
                f"expected a range of steps from {place.step} on, each after the other, got {steps}"
            )
        world_size = self._plan(place).world_size
        skip = Skip(steps.start, steps.stop, world_size, self._order.batch_size)
        self.begin_at(place._replace(skips=(*place.skips, skip)))


class LengthBatchSampler(RecordBatchSampler):
    """Batches of records of like length, for padded batches with little padding.

    The records are put into buckets by length; a batch has records of one bucket, and in each step
    the batches of all ranks are of the same bucket, so that no rank waits for another's longer
    batch. All ranks have the same number of batches. Which records share a batch, and the order of
    the batches, is drawn anew over the whole epoch for each (seed, epoch). No record is read.

    An epoch has each record once, on one rank. Where the last step of a bucket is not full it is
    shared evenly over the ranks; a bucket with fewer records than ranks repeats some.

    It resumes, and chooses epochs, as `RecordSampler` does, also with another world size: then the
    rest of the epoch's records are shared anew. ``make_dataloader(lengths=..., max_tokens=...)``
    makes a loader of these batches that counts what you received, and goes on from epoch to epoch.

    Args:
        dataset: The dataset: anything with a length. A `TFRecordDataset`, or a `Subset` or
            `ConcatDataset` of these, knows the lengths of its records.
        lengths: None for the records' bytes, which the index knows; the name of a column that the
            index keeps, a number for each record or ``len(name)``, the length of a list; or the
            lengths, integers [N] from 0.
        batch_size: Samples in a batch, per rank; with `max_tokens` the most.
        max_tokens: Most tokens in a batch, padding included: its samples times the longest of the
            bucket, rounded up to `multiple_of`.
        boundaries: Lengths where the second and each later bucket begins, ascending, as for
            tf.data's ``bucket_by_sequence_length``. None chooses up to 64 for the least padding.
        multiple_of: What you pad lengths to a multiple of: see `PaddedCollate`.
        too_long: For a record of more than `max_tokens`: "error", "alone" (the only one of its
            batch), or "drop" (`num_dropped` counts them).
        shuffle: False for the order of the files: each batch comes where its last record is.
        seed: An integer of any size. Its order never changes between releases or machines.
        rank, world_size: As for `RecordSampler`.
        drop_last: Drop each bucket's last step if it is not full.

    Attributes:
        boundaries: The boundaries, as given or chosen.
        num_dropped: Records that are too long.

    Raises:
        IndexMismatchError: The index has no such column.
        TypeError: The dataset does not know its lengths, or they are not integers.
        ValueError: An argument is out of range, or a record is too long.

    Example:
        >>> lengths = [7, 2, 8, 1, 2, 9]
        >>> list(LengthBatchSampler(range(6), lengths=lengths, max_tokens=18, boundaries=[4]))
        [[2, 0], [1, 4, 3], [5]]
    """

    _continues = False

    def __init__(
        self,
        dataset: Sized,
        *,
        lengths: str | npt.ArrayLike | None = None,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        boundaries: Sequence[int] | None = None,
        multiple_of: int = 1,
        too_long: TooLong = "error",
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        options = LengthOptions(batch_size, max_tokens, boundaries, multiple_of, too_long)
        found = checked_lengths(dataset, lengths)
        order = Buckets(
            found,
            options,
            true_or_false("shuffle", shuffle),
            integer("seed", seed),
            true_or_false("drop_last", drop_last),
        )
        self.boundaries, self.num_dropped = order.boundaries, order.num_dropped
        self._set_up(dataset, order, 1, rank, world_size, drop_last)


class _BatchedPositions(RankSampler):
    """The positions of a batch sampler one by one, to be the `sampler` of the loader.

    Args:
        batches: The batch sampler.
    """

    def __init__(self, batches: RecordBatchSampler) -> None:
        self.batches = batches

    @property
    def _rank(self) -> int | None:  # type: ignore[override]
        return self.batches._rank

    @property
    def _world_size(self) -> int | None:  # type: ignore[override]
        return self.batches._world_size

    def __len__(self) -> int:
        return self.batches._num_positions()

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches:
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        """Set the trainer's epoch, from 0, that begins: iteration number `epoch` of the batch
        sampler.

        After `load_state_dict`, the next iteration resumes from the state, whether you pass its
        number (as Lightning's Trainer does) or a smaller one, from which the trainer then counts on
        (as Fabric does). Calls that a loader of Accelerate makes by itself, always from 0, do
        nothing; your calls of that loader's `set_epoch` arrive here, too.
        """
        self.batches._set_iteration(epoch)
