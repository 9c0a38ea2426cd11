"""The order of records for one rank, as a sampler for DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy.typing as npt

from torch_tfrecord.arguments import Shuffle, at_least, true_or_false
from torch_tfrecord.order.epochs import STATE_VERSION, Epochs, check_state
from torch_tfrecord.order.position_batch import EpochPosition
from torch_tfrecord.order.prepared import Prepared, check_loaded_epoch, check_num_received, other_epoch, prepared_loader
from torch_tfrecord.order.ranks import Rank, RankSampler, check_rank
from torch_tfrecord.order.shares import RankShare, rank_size

__all__ = ["BLOCK_BYTES", "WINDOW_BLOCKS", "RecordSampler"]

BLOCK_BYTES = 4 << 20  # a disk's arm has moved in a fraction of the time in which it reads these
WINDOW_BLOCKS = 64  # 256 MiB, which the page cache holds while the window lasts

_FIRST_POSITIONS = 64  # computed at once at the beginning; then twice as many, up to
_CHUNK_POSITIONS = 4096


class RecordSampler(RankSampler):
    """The positions of one rank, in an order that is a pure function of (seed, epoch), for any number of workers.

    The order of an epoch is one sequence of all N positions. All ranks take it together, one position each in turn:
    rank r of w has the places r, r + w, r + 2w, ... Every rank gets as many: where N is not a multiple of w, the order
    goes on with its beginning until it is (as torch's DistributedSampler does, also for N < w), or with `drop_last` its
    last N modulo w places are left out.

    It is a DistributedSampler to whoever asks, such as Lightning, which would else split the positions once more.

    **Resuming.** The state is the epoch and how many places of its order all ranks together have taken: after k samples
    on each rank, k * w. Loaded with any other world size, worker count or batch size, the places from there to N are
    split over the ranks of now by the same rule, so that nothing is lost and nothing is repeated but what evens out
    the ranks' numbers. With the same world size the samples that follow are those of the uninterrupted run. Save the
    state of one rank, load it in all.

    What counts is what the training has received. `state_dict()` counts what the sampler has handed out, which is the
    same in torchdata's StatefulDataLoader (it keeps the state of each batch with the batch) and in a DataLoader without
    workers. The workers of a plain DataLoader read ahead: say what was received, or use `make_dataloader`::

        for number, batch in enumerate(loader, 1):
            train(batch)
            state = sampler.state_dict(num_received=min(number * batch_size, samples_this_iteration))

    where ``samples_this_iteration = len(sampler)``, taken before the loop.

    Args:
        dataset: What the positions are of: anything with a length.
        shuffle: True, every order is as likely as any other; False, the order of the files; "blocks", which needs a
            `TFRecordDataset`: blocks of `block_bytes` neighbouring bytes in random order, mixed within windows of
            `window_blocks` blocks, for storage that reads best in sequence.
        seed: An integer of any size. The order for it never changes between releases or machines.
        rank, world_size: Both or none; None means torch.distributed's where it is initialised, else torchrun's
            environment, else 0 of 1; looked up when an iteration begins.
        drop_last: Leave out places where the ranks' numbers would differ, instead of repeating.
        weights: One number of at least 0 for each record: an epoch is N draws with replacement, in which a record's
            chance is in proportion to its weight; see `balanced_weights`.
        block_bytes, window_blocks: For ``shuffle="blocks"``.

    Raises:
        ValueError: Arguments out of range; "blocks" with other data than `TFRecordDataset`, or `Subset` or
            `ConcatDataset` of it.

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
        # Only to what draws itself: a `Mixture` would begin elsewhere in its datasets, with crops and not without.
        self._tells_epoch = bool(getattr(dataset, "draws_at_random", False))
        self._epoch = 0
        self._start = 0  # places taken before the next iteration; used by one iteration
        self._is_loaded = False  # by `load_state_dict`, and not used yet
        self._running: _Positions | None = None

    def __len__(self) -> int:
        """Samples that the next iteration gives this rank: after `load_state_dict` what is left of the epoch."""
        left = self._epochs.num_records - self._start
        return rank_size(left, self._here().world_size, drop_last=self._drop_last)

    def __iter__(self) -> Iterator[int]:
        return _Positions(self)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch of the next iteration, or of the one that goes on."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, of the next iteration; until called again, every iteration has the same order.

        For the epoch that a loaded state was in, nothing changes: the next iteration gives what is left of it. An
        iteration that has not yet handed out a position is the next one, too: trainers make it before they call this.
        """
        if at_least(0, "epoch", epoch) != self._epoch:
            if self._is_loaded:
                check_loaded_epoch(self._epoch, epoch)
            if self._running is not None:
                self._running.follow()
            self._epoch, self._start, self._running, self._is_loaded = int(epoch), 0, None, False

    def state_dict(self, num_received: int | None = None) -> dict[str, Any]:
        """Where the iteration that began last is: a few numbers and strings, as JSON knows them.

        Args:
            num_received: Samples of that iteration that this rank's training has received; None counts those that the
                sampler has handed out.

        Raises:
            ValueError: More received than handed out; nothing said of what was received from a loader that Accelerate
                prepared.
        """
        if self._running is not None:
            check_num_received(self._running.prepared, num_received, "samples")
            return self._running.state_dict(num_received)
        if num_received:
            raise ValueError(f"num_received must be 0 before an iteration has begun, got {num_received}")
        return self._state(self._epoch, self._start)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was: the next iteration gives what was left of its epoch, those after it all.

        Raises:
            ValueError: A state of another version or another order (number of records, seed, shuffle, weights, ...);
                names both values.
        """
        self._check(state_dict)
        self._epoch, self._start, self._running = state_dict["epoch"], state_dict["consumed"], None
        self._is_loaded = True

    def _state(self, epoch: int, consumed: int) -> dict[str, Any]:
        consumed = min(consumed, self._epochs.num_records)  # the last round may have gone on with the beginning
        return {"version": STATE_VERSION, "epoch": epoch, "consumed": consumed, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        return {**self._epochs.identity(), "drop_last": self._drop_last}

    def _check(self, state: Mapping[str, Any]) -> None:
        check_state(state, self._identity(), {"epoch": None, "consumed": self._epochs.num_records})


class _Positions(Iterator[int]):
    """One iteration of a sampler. It begins with its first position: loaders make iterators that they throw away."""

    def __init__(self, sampler: RecordSampler) -> None:
        self._sampler = sampler
        self._go_to(None)

    def _go_to(self, place: tuple[int, int] | None) -> None:
        self._place = place  # epoch and start; None until it begins: the sampler's place of then
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
        sampler._start, sampler._is_loaded = 0, False  # used once

    def follow(self) -> None:
        """Begin where the sampler says, not where a state was loaded; once begun, nothing changes."""
        if self._share is None:
            self._place = None

    def _next_chunk(self) -> None:
        if self._share is None or self._num_yielded == len(self._share):
            raise StopIteration
        size = min(max(self._num_yielded, _FIRST_POSITIONS), _CHUNK_POSITIONS)
        self._chunk = self._share.numbers(self._num_yielded, self._num_yielded + size)
        self._place_in_chunk = 0

    def state_dict(self, num_received: int | None = None) -> dict[str, Any]:
        """Where this iteration is."""
        received = self._num_yielded if num_received is None else at_least(0, "num_received", num_received)
        if self.prepared is not None and num_received is not None:
            received = min(received * self.prepared.num_processes, self._num_yielded)  # the rest was filled up
        if received > self._num_yielded:
            raise ValueError(f"num_received={received}, but only {self._num_yielded} samples were handed out")
        epoch, start = self._place or (self._sampler._epoch, self._sampler._start)
        return self._sampler._state(epoch, start + received * self._rank.world_size)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another iteration was, as StatefulDataLoader asks for."""
        sampler = self._sampler
        sampler._check(state_dict)
        self._go_to((state_dict["epoch"], state_dict["consumed"]))
        # The state is this iteration's: the next one gives a whole epoch, also where this one stands at its end.
        sampler._epoch, sampler._start, sampler._running = state_dict["epoch"], 0, self
