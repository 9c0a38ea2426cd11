"""The order of records for one rank, as a sampler for DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy.typing as npt

from torch_tfrecord.arguments import Shuffle, at_least, true_or_false
from torch_tfrecord.order.epochs import STATE_VERSION, Epochs, check_state
from torch_tfrecord.order.position_batch import EpochPosition
from torch_tfrecord.order.prepared import (
    Prepared,
    check_loaded_epoch,
    check_num_received,
    other_epoch,
    prepared_loader,
)
from torch_tfrecord.order.ranks import Rank, RankSampler, check_rank
from torch_tfrecord.order.shares import RankShare, rank_size

__all__ = ["BLOCK_BYTES", "WINDOW_BLOCKS", "RecordSampler"]

BLOCK_BYTES = 4 << 20  # a hard disk seeks in a fraction of the time that it takes to read these
WINDOW_BLOCKS = 64  # 256 MiB, which the page cache can hold until the window is read

_FIRST_POSITIONS = 64  # computed at once at the beginning; then twice as many each time, up to
_CHUNK_POSITIONS = 4096


class RecordSampler(RankSampler):
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
        check_rank(rank, world_size)
        self._epochs = Epochs(
            dataset,
            shuffle=shuffle,
            seed=seed,
            weights=weights,
            block_bytes=block_bytes,
            window_blocks=window_blocks,
        )
        self._rank, self._world_size = rank, world_size
        self._drop_last = true_or_false("drop_last", drop_last)
        # Only for a dataset that itself draws at random: a `Mixture` would take the epoch to begin
        # elsewhere in its datasets, but only those with crops.
        self._tells_epoch = bool(getattr(dataset, "_draws_at_random", False))
        self._epoch = 0
        self._start = 0  # places taken before the next iteration; for one iteration only
        self._is_loaded = False  # whether a state was loaded and not yet used
        self._running: _Positions | None = None

    def __len__(self) -> int:
        """Return this rank's number of samples in the next iteration: after `load_state_dict`, in
        the epoch's rest.
        """
        left = self._epochs.num_records - self._start
        return rank_size(left, self._here().world_size, drop_last=self._drop_last)

    def __iter__(self) -> Iterator[int]:
        return _Positions(self)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch of the next iteration."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, of the next iteration; until you call it again, every iteration
        has the same order.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
            that epoch. An
        iterator that has not yielded a position yet counts as the next iteration, too: trainers
        make it before they call this.
        """
        if at_least(0, "epoch", epoch) != self._epoch:
            if self._is_loaded:
                check_loaded_epoch(self._epoch, epoch)
            if self._running is not None:
                self._running.follow()
            self._epoch, self._start, self._running, self._is_loaded = int(epoch), 0, None, False

    def state_dict(self, num_received: int | None = None) -> dict[str, Any]:
        """Return the state of the latest iteration: a few JSON numbers and strings.

        Args:
            num_received: Samples of that iteration that your training loop has received on this
                rank. None counts those that the sampler has yielded.

        Raises:
            ValueError: `num_received` is more than the sampler has yielded, or is None with a
                loader that Accelerate prepared.
        """
        if self._running is not None:
            check_num_received(self._running.prepared, num_received, "samples")
            return self._running.state_dict(num_received)
        if num_received:
            raise ValueError(
                f"num_received must be 0 before an iteration has begun, got {num_received}"
            )
        return self._state(self._epoch, self._start)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of its epoch, later ones whole
        epochs.

        Raises:
            ValueError: The state has another version or order (number of records, seed, shuffle,
                weights, ...); the message gives both values.
        """
        self._check(state_dict)
        self._epoch, self._start, self._running = state_dict["epoch"], state_dict["consumed"], None
        self._is_loaded = True

    def _state(self, epoch: int, consumed: int) -> dict[str, Any]:
        # the last round may have repeated the beginning
        consumed = min(consumed, self._epochs.num_records)
        return {"version": STATE_VERSION, "epoch": epoch, "consumed": consumed, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        return {**self._epochs.identity(), "drop_last": self._drop_last}

    def _check(self, state: Mapping[str, Any]) -> None:
        check_state(state, self._identity(), {"epoch": None, "consumed": self._epochs.num_records})


class _Positions(Iterator[int]):
    """One iteration of a sampler. It begins with its first position, since loaders make iterators
    they never use.
    """

    def __init__(self, sampler: RecordSampler) -> None:
        self._sampler = sampler
        self._go_to(None)

    def _go_to(self, place: tuple[int, int] | None) -> None:
        self._place = (
            place  # epoch and start; None until it begins: then the sampler's place at that time
        )
        self._epoch = self._sampler._epoch if place is None else place[0]
        self._num_yielded = 0
        self._share: RankShare | None = None
        self._rank = Rank(0, 1)
        self.prepared: Prepared | None = None
        self._chunk: list[int] = []
        self._place_in_chunk = 0

    def __next__(self) -> int:
        if self._share is None:
            self._begin()
        if self._place_in_chunk == len(self._chunk):
            self._next_chunk()
        position = self._chunk[self._place_in_chunk]
        self._place_in_chunk += 1
        self._num_yielded += 1
        return EpochPosition(position, self._epoch) if self._sampler._tells_epoch else position

    def _begin(self) -> None:
        sampler = self._sampler
        self.prepared = prepared_loader()
        self._place = self._place or (sampler._epoch, sampler._start)
        if self.prepared is not None and self.prepared.epoch not in (None, self._place[0]):
            if sampler._is_loaded:
                raise other_epoch(sampler._epoch, self.prepared.epoch)
            self._place = (self.prepared.epoch, 0)
        self._epoch, start = self._place
        self._rank, order = sampler._here(), sampler._epochs.order(self._epoch)
        self._share = RankShare(order, *self._rank, start=start, drop_last=sampler._drop_last)
        sampler._running = self
        sampler._start, sampler._is_loaded = 0, False  # the loaded state is used only once

    def follow(self) -> None:
        """Begin at the sampler's place, not at that of a loaded state; does nothing once it has
        begun.
        """
        if self._share is None:
            self._place = None

    def _next_chunk(self) -> None:
        if self._share is None or self._num_yielded == len(self._share):
            raise StopIteration
        size = min(max(self._num_yielded, _FIRST_POSITIONS), _CHUNK_POSITIONS)
        self._chunk = self._share.numbers(self._num_yielded, self._num_yielded + size)
        self._place_in_chunk = 0

    def state_dict(self, num_received: int | None = None) -> dict[str, Any]:
        """The state of this iteration."""
        received = (
            self._num_yielded if num_received is None else at_least(0, "num_received", num_received)
        )
        if self.prepared is not None and num_received is not None:
            # Accelerate filled up the rest
            received = min(received * self.prepared.num_processes, self._num_yielded)
        if received > self._num_yielded:
            raise ValueError(
                f"num_received={received}, but the sampler has yielded only {self._num_yielded} samples"
            )
        epoch, start = self._place or (self._sampler._epoch, self._sampler._start)
        return self._sampler._state(epoch, start + received * self._rank.world_size)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from another iteration's state; StatefulDataLoader calls this."""
        sampler = self._sampler
        sampler._check(state_dict)
        self._go_to((state_dict["epoch"], state_dict["consumed"]))
        # Only this iteration resumes: the next one yields a whole epoch, even if this one is at its
        # end.
        sampler._epoch, sampler._start, sampler._running = state_dict["epoch"], 0, self
