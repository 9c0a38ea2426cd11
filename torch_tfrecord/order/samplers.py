"""The order of records, or of batches of them, for one rank: samplers for DataLoader, which resume."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from copy import copy

import numpy.typing as npt
from torch.utils.data import Sampler, SequentialSampler

from torch_tfrecord.arguments import Shuffle, at_least, knows_keywords
from torch_tfrecord.order.iteration import EpochSampler, Iteration
from torch_tfrecord.order.leaves import PositionBatch
from torch_tfrecord.order.orders import BLOCK_BYTES
from torch_tfrecord.order.ranks import (
    Prepared,
    RankSampler,
    give_forgotten_states,
    is_automatic,
)
from torch_tfrecord.order.steps import WINDOW_BLOCKS, Place, Plan, RecordOrder

__all__ = [
    "RecordBatchSampler",
    "RecordSampler",
]


@knows_keywords
class RecordSampler(EpochSampler[int], RankSampler):  # type: ignore[override]
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
        seed: An integer of any size, which also decides random draws of features (a fused crop). Its
            order never changes between releases or machines.
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

    _continues, _unit, _keys = False, "samples", ("epoch", "consumed")

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
        order = RecordOrder(
            dataset,
            0,
            drop_last,
            shuffle=shuffle,
            seed=seed,
            weights=weights,
            block_bytes=block_bytes,
            window_blocks=window_blocks,
        )
        super().__init__(dataset, order, 1, rank, world_size)
        # Only for a dataset that itself draws at random: a `Mixture` would take the epoch to begin
        # elsewhere in its datasets, but only those with crops.
        self._tells_epoch = bool(getattr(dataset, "_draws_at_random", False))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, of the next iteration; until you call it again, every iteration
        has the same order.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch. An iterator that has not yielded a position yet counts as the next iteration,
        too: trainers make it before they call this.
        """
        give_forgotten_states()
        if at_least(0, "epoch", epoch) != self.epoch:
            if self._loaded_epoch is not None:
                Prepared.check_epoch(self.epoch, epoch)
            self.begin_at(Place.at(int(epoch)), is_loaded=False)

    def _units(self, plan: Plan, epoch: int, prepared: Prepared | None) -> Iterator[int]:
        for batch in plan.batches(epoch):
            yield from self._told(batch, epoch)


class RecordBatchSampler(EpochSampler[PositionBatch], Sampler[list[int]]):
    """Batch sampler for one rank: a `RecordSampler` that makes batches and continues from epoch to
    epoch.

    An iteration has `num_epochs` epochs, and the next iteration continues with the epochs after
    them. Each epoch ends with its own batch, which may be short. Every rank gets the same number of
    batches, of the same sizes.

    Each batch is a list of positions with an attribute `epoch`, which random draws of features
    depend on.

    The state is like `RecordSampler`'s, and you can load it with another world size, batch size and
    worker count: the epoch, how many places of its order all ranks have taken, and the first epoch
    of the iteration. Since workers prefetch, pass `state_dict` how many batches you received, or
    use `make_dataloader`, whose loader counts them.

    Args:
        dataset: The dataset to sample from.
        order: Its steps: a `RecordOrder`, or those of buckets or packs.
        num_epochs: Epochs in one iteration. 0 gives no batch; with None the iteration never ends,
            and the next one begins one epoch later than it began.
        rank, world_size: As for `RecordSampler`.

    Attributes:
        sampler: This rank's positions one by one, as a DistributedSampler: trainers call its
            `set_epoch`, which counts iterations.

    Example:
        >>> list(RecordBatchSampler(range(5), RecordOrder(range(5), 2), num_epochs=2))
        [[2, 3], [0, 1], [4], [0, 1], [2, 3], [4]]
    """

    _continues, _unit, _keys = True, "batches", ("first_epoch", "epoch", "consumed", "jobs")

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

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, in which the next iteration begins.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch.
        """
        if Prepared.loader() is not None:
            return  # Accelerate calls the set_epoch of our `sampler`, too
        if at_least(0, "epoch", epoch) != self._coming.epoch:
            self.begin_at(Place.at(int(epoch)), is_loaded=False)

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
            Prepared.check_epoch(self.epoch, number)
        give_forgotten_states()
        epochs = at_least(0, "epoch", number) * self._epochs_an_iteration
        loaded, self._loaded_epoch = self._loaded_epoch, None
        if loaded is not None and Prepared.loader() is None:
            self._count_from = max(loaded - epochs, 0)
        epoch = self._count_from + epochs
        # workers may already be reading the loaded one
        if epoch not in (loaded, self._coming.first_epoch):
            self.begin_at(Place.at(epoch), is_loaded=False)

    def _for_sampler(self, sampler: object, drop_last: bool | None) -> RecordBatchSampler:
        """The sampler for Lightning to use instead of its own: this one, which splits over the
        ranks itself.

        With `overfit_batches` Lightning passes a SequentialSampler, for the same batches in every
        epoch. `drop_last` is None except for predictions, which need all records.
        """
        in_order = isinstance(sampler, SequentialSampler) and drop_last is None
        if not in_order and drop_last in (None, self.drop_last):
            return self
        other = copy(self)
        other._restart()
        other._order = self._order.in_order() if in_order else copy(self._order)
        if not in_order:
            other.drop_last = other._order.drop_last = bool(drop_last)
        return other

    def _units(self, plan: Plan, epoch: int, prepared: Prepared | None) -> Iterator[PositionBatch]:
        for batch in plan.batches(epoch):
            # Accelerate fills up the last batches with single positions.
            told = batch if prepared is None else self._told(batch, epoch)
            yield PositionBatch(told, epoch, seed=self._seed)

    # Steering.

    def _latest(self) -> Place:
        """The place after the batches that were received of the running iteration, or where the
        next one begins.
        """
        running = self._running
        if running is None or running.is_over:
            return self._next
        return running.place_after(running.num_received)

    def records_of(self, step: int, epoch: int | None) -> PositionBatch:
        """The positions of a step of an epoch, None for the running one, on all ranks."""
        place = self._latest()
        if epoch is not None and at_least(0, "epoch", epoch) != place.epoch:
            place = Place.at(epoch)
        found = self._plan(place).records_of(at_least(0, "step", step))
        return PositionBatch(found, place.epoch)

    def skip_to(self, step: int) -> None:
        """Begin the next iteration at a step of the running epoch."""
        place = self._latest()
        if at_least(0, "step", step) < place.step:
            place = place._replace(consumed=0, jobs=())
        self.begin_at(self._plan(place).place_at(step))


# Lightning puts a sampler of its own into a DataLoader. It then makes the batch sampler again, from
# arguments that it saves under these names, with its own sampler among them.
for _name, _value in {
    "args": (),
    "arg_names": (),
    "default_kwargs": {},
    "kwargs": property(
        lambda self: {"sampler": None, "drop_last": None, "explicit_cls": self._for_sampler}
    ),
}.items():
    setattr(RecordBatchSampler, f"__pl_saved_{_name}", _value)


class _BatchedPositions(RankSampler):
    """The positions of a batch sampler one by one, to be the `sampler` of the loader.

    Args:
        batches: The batch sampler.
    """

    def __init__(self, batches: RecordBatchSampler) -> None:
        self.batches, self.given_ranks = batches, batches.given_ranks

    def __len__(self) -> int:
        batches = self.batches
        return batches._plan(batches._next).num_positions(batches._finite_epochs())

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
