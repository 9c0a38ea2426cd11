"""The batches of one rank's iteration over any number of epochs: arithmetic, nothing that moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch_tfrecord.order.epochs import Epochs
from torch_tfrecord.order.position_batch import PositionBatch
from torch_tfrecord.order.ranks import Rank
from torch_tfrecord.order.shares import RankShare, rank_size

__all__ = ["Place", "Plan"]

_CHUNK_POSITIONS = 4096  # computed at once, in whole batches; at the beginning fewer


class Place(NamedTuple):
    """Where an iteration begins or stands: its first epoch, the epoch it is in, the places taken of its order."""

    first_epoch: int
    epoch: int
    consumed: int


class Plan:
    """The batches of an iteration that begins at a place: arithmetic, nothing that moves."""

    def __init__(self, begin: Place, epochs: Epochs, rank: Rank, batch_size: int, drop_last: bool) -> None:
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
        return self._sum(self.batches_left, self.batches_an_epoch, num_epochs)

    def num_positions(self, num_epochs: int) -> int:
        """Positions in those batches."""
        first = min(self._size(self.begin.consumed), self.batches_left * self._batch_size)
        return self._sum(first, min(self._size(0), self.batches_an_epoch * self._batch_size), num_epochs)

    def _sum(self, first: int, whole: int, num_epochs: int) -> int:
        epochs_left = self.begin.first_epoch + num_epochs - self.begin.epoch
        return first + (epochs_left - 1) * whole if epochs_left > 0 else 0

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

    def place_after(self, num_batches: int) -> Place:
        """Where the iteration is after so many batches: never at the beginning of an epoch, but at the end of one."""
        begin = self.begin
        if num_batches <= self.batches_left:
            epoch, start, batches = begin.epoch, begin.consumed, num_batches
        else:
            epochs_before, batch = divmod(num_batches - self.batches_left - 1, self.batches_an_epoch)
            epoch, start, batches = begin.epoch + 1 + epochs_before, 0, batch + 1
        consumed = start + min(batches * self._batch_size, self._size(start)) * self._rank.world_size
        return Place(begin.first_epoch, epoch, consumed)
