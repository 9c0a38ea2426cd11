"""The order of batches for one rank, over any number of epochs without a pause between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from itertools import count
from typing import Any, NamedTuple

import numpy.typing as npt
from torch.utils.data import Sampler

from torch_tfrecord.arguments import at_least, integer, true_or_false
from torch_tfrecord.order.epochs import STATE_VERSION, Epochs, check_state
from torch_tfrecord.order.position_batch import PositionBatch
from torch_tfrecord.order.ranks import Rank, check_rank, resolve_rank
from torch_tfrecord.order.samplers import BLOCK_BYTES, WINDOW_BLOCKS
from torch_tfrecord.order.shares import RankShare, rank_size

__all__ = ["BatchIteration", "RecordBatchSampler"]

_CHUNK_POSITIONS = 4096  # computed at once, in whole batches; at the beginning fewer


class RecordBatchSampler(Sampler[list[int]]):
    """Batches of positions for one rank: a `RecordSampler` that batches, and goes on from epoch to epoch.

    An iteration is `num_epochs` epochs; the next one goes on with the epochs after them. Each epoch ends with its own,
    perhaps short, batch. Every rank gets as many batches, of the same sizes.

    Each batch is a list of positions that knows its epoch (attribute `epoch`), by which random draws of features go.

    The state is as `RecordSampler`'s and may be loaded with another world size, batch size and worker count: the epoch,
    how many places of its order all ranks have taken, and the first epoch of the iteration. Since workers read ahead,
    say how many batches were received, or use `make_dataloader`, whose loader counts them.

    Args:
        dataset: What the positions are of: anything with a length.
        batch_size: Positions in a batch, of one rank.
        num_epochs: Epochs in one iteration; 0 gives no batch, None endlessly many (an iteration begins then one epoch
            after the one before began).
        drop_last: Leave out what would make the ranks' numbers differ, and an epoch's last batch if it is not full.
        shuffle, seed, rank, world_size, weights, block_bytes, window_blocks: As for `RecordSampler`.

    Raises:
        ValueError: Arguments out of range; "blocks" with what is no `TFRecordDataset`.

    Example:
        >>> list(RecordBatchSampler(range(5), 2, num_epochs=2))
        [[2, 3], [0, 1], [4], [0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        shuffle: bool | str = True,
        seed: int = 0,
        num_epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        weights: npt.ArrayLike | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        check_rank(rank, world_size)
        if integer("batch_size", batch_size) < 1:
            raise ValueError(f"batch_size: Batch size must be greater than zero, got {batch_size}")
        self._epochs = Epochs(
            dataset,
            shuffle=shuffle,
            seed=seed,
            weights=weights,
            block_bytes=block_bytes,
            window_blocks=window_blocks,
        )
        self._batch_size = int(batch_size)
        self._num_epochs = None if num_epochs is None else at_least(0, "num_epochs", num_epochs)
        self._rank, self._world_size = rank, world_size
        self._drop_last = true_or_false("drop_last", drop_last)
        self._next = _Place(0, 0, 0)
        self._running: BatchIteration | None = None

    def __len__(self) -> int:
        """Batches of the next iteration: after `load_state_dict` what is left of the one that was interrupted.

        Raises:
            TypeError: The iteration never ends.
        """
        if self._num_epochs is None:
            raise TypeError("a sampler with num_epochs=None has no length: it never ends")
        return self._plan(self._next).num_batches(self._num_epochs)

    def __iter__(self) -> BatchIteration:
        return BatchIteration(self, self._next)

    @property
    def epoch(self) -> int:
        """The epoch with which the next iteration begins, or in which it goes on after `load_state_dict`."""
        return self._next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, with which the next iteration begins.

        For the epoch that a loaded state was in, nothing changes: the next iteration gives what is left of it.
        """
        if at_least(0, "epoch", epoch) != self._next.epoch:
            self._next, self._running = _Place(int(epoch), int(epoch), 0), None

    def state_dict(self, num_received: int | None = None) -> dict[str, Any]:
        """Where the iteration that began last is: a few numbers and strings, as JSON knows them.

        Args:
            num_received: Batches of that iteration that this rank's training has received; None counts those that the
                sampler has handed out, and moves on to the next iteration where this one has ended.

        Raises:
            ValueError: More received than handed out.
        """
        running = self._running
        if running is None and num_received:
            raise ValueError(f"num_received must be 0 before an iteration has begun, got {num_received}")
        if running is None or (running.has_ended and num_received is None):
            return self._state(self._next)
        return running.state_dict(num_received)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was: the next iteration gives what was left of the interrupted one.

        Raises:
            ValueError: A state of another version or another order; names both values.
        """
        self._next, self._running = self._loaded(state_dict), None

    def _loaded(self, state: Mapping[str, Any]) -> _Place:
        limits = {"first_epoch": None, "epoch": None, "consumed": self._epochs.num_records}
        check_state(state, self._identity(), limits)
        if state["first_epoch"] > state["epoch"]:
            raise ValueError(f"first_epoch={state['first_epoch']} is after epoch={state['epoch']} in the state")
        return _Place(state["first_epoch"], state["epoch"], state["consumed"])

    def _state(self, place: _Place) -> dict[str, Any]:
        consumed = min(place.consumed, self._epochs.num_records)
        numbers = {"first_epoch": place.first_epoch, "epoch": place.epoch, "consumed": consumed}
        return {"version": STATE_VERSION, **numbers, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        return {**self._epochs.identity(), "drop_last": self._drop_last}

    def _plan(self, place: _Place) -> _Plan:
        rank = resolve_rank(self._rank, self._world_size)
        return _Plan(place, self._epochs, rank, self._batch_size, self._drop_last)


class _Place(NamedTuple):
    """Where an iteration begins or stands: its first epoch, the epoch it is in, the places taken of its order."""

    first_epoch: int
    epoch: int
    consumed: int


class _Plan:
    """The batches of an iteration that begins at a place: arithmetic, nothing that moves."""

    def __init__(self, begin: _Place, epochs: Epochs, rank: Rank, batch_size: int, drop_last: bool) -> None:
        self.begin = begin
        self._epochs, self._rank, self._batch_size, self._drop_last = epochs, rank, batch_size, drop_last
        self.batches_left = self._num_batches(begin.consumed)
        self.batches_an_epoch = self._num_batches(0)

    def _size(self, start: int) -> int:
        left = self._epochs.num_records - start
        return rank_size(left, self._rank.world_size, drop_last=self._drop_last)

    def _num_batches(self, start: int) -> int:
        size = self._size(start)
        return size // self._batch_size if self._drop_last else -(-size // self._batch_size)

    def num_batches(self, num_epochs: int) -> int:
        """Batches up to the iteration's end; 0 where the state is beyond it."""
        epochs_left = self.begin.first_epoch + num_epochs - self.begin.epoch
        return self.batches_left + (epochs_left - 1) * self.batches_an_epoch if epochs_left > 0 else 0

    def epoch_batches(self, epoch: int) -> Iterator[PositionBatch]:
        """The batches of one epoch, or what is left of the one in which the iteration begins."""
        first = epoch == self.begin.epoch
        start = self.begin.consumed if first else 0
        share = RankShare(self._epochs.order(epoch), *self._rank, start=start, drop_last=self._drop_last)
        num_batches = self.batches_left if first else self.batches_an_epoch
        size, begin, at_once = self._batch_size, 0, 1
        while begin < num_batches:
            end = min(begin + at_once, num_batches)
            positions = share.numbers(begin * size, end * size)
            for row in range(0, (end - begin) * size, size):
                yield PositionBatch(positions[row : row + size], epoch)
            begin, at_once = end, max(min(2 * at_once, _CHUNK_POSITIONS // size), 1)

    def place_after(self, num_batches: int) -> _Place:
        """Where the iteration is after so many batches: never at the beginning of an epoch, but at the end of one."""
        begin = self.begin
        if num_batches <= self.batches_left:
            epoch, start, batches = begin.epoch, begin.consumed, num_batches
        else:
            epochs_before, batch = divmod(num_batches - self.batches_left - 1, self.batches_an_epoch)
            epoch, start, batches = begin.epoch + 1 + epochs_before, 0, batch + 1
        consumed = start + min(batches * self._batch_size, self._size(start)) * self._rank.world_size
        return _Place(begin.first_epoch, epoch, consumed)


class BatchIteration(Iterator[PositionBatch]):
    """One iteration of a sampler. It begins with its first batch: loaders make iterators that they throw away."""

    def __init__(self, sampler: RecordBatchSampler, begin: _Place) -> None:
        self._sampler = sampler
        self._go_to(begin)

    def _go_to(self, begin: _Place) -> None:
        self._begin_at = begin
        self._num_yielded = 0
        self.has_ended = False
        self._plan: _Plan | None = None
        self._batches: Iterator[PositionBatch] = iter(())

    def __len__(self) -> int:
        """Batches of the whole iteration; TypeError where it never ends."""
        if self._sampler._num_epochs is None:
            raise TypeError("a sampler with num_epochs=None has no length: it never ends")
        plan = self._plan or self._sampler._plan(self._begin_at)
        return plan.num_batches(self._sampler._num_epochs)

    def __next__(self) -> PositionBatch:
        if self._plan is None:
            self._begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.has_ended = True
            raise
        self._num_yielded += 1
        return batch

    def _begin(self) -> None:
        sampler, begin = self._sampler, self._begin_at
        self._plan = sampler._plan(begin)
        num_epochs = sampler._num_epochs
        epochs: Iterator[int] = count(begin.epoch)
        if num_epochs is not None:
            epochs = iter(range(begin.epoch, begin.first_epoch + num_epochs))
        if not self._plan.batches_an_epoch:
            epochs = iter(range(begin.epoch, begin.epoch + 1))  # else it would look for a batch for ever
        self._batches = self._all_batches(self._plan, epochs)
        sampler._running = self
        sampler._next = _next_iteration(begin, num_epochs)

    @staticmethod
    def _all_batches(plan: _Plan, epochs: Iterator[int]) -> Iterator[PositionBatch]:
        for epoch in epochs:
            yield from plan.epoch_batches(epoch)

    def state_dict(self, num_received: int | None = None) -> dict[str, Any]:
        """Where this iteration is."""
        received = self._num_yielded if num_received is None else at_least(0, "num_received", num_received)
        if received > self._num_yielded:
            raise ValueError(f"num_received={received}, but only {self._num_yielded} batches were handed out")
        if self._plan is None:
            return self._sampler._state(self._begin_at)
        return self._sampler._state(self._plan.place_after(received))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another iteration was, as StatefulDataLoader asks for."""
        sampler = self._sampler
        begin = sampler._loaded(state_dict)
        self._go_to(begin)
        # The state is this iteration's: the next one begins after it, also where this one is thrown away at its end.
        sampler._next, sampler._running = _next_iteration(begin, sampler._num_epochs), self


def _next_iteration(begin: _Place, num_epochs: int | None) -> _Place:
    epoch = begin.first_epoch + (1 if num_epochs is None else num_epochs)
    return _Place(epoch, epoch, 0)
