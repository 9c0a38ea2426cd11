"""The order of every epoch of a dataset, and its steps of as many records each."""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from copy import copy
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from torch_tfrecord.arguments import Shuffle, at_least, integer
from torch_tfrecord.order.nested import Leaves
from torch_tfrecord.order.orders import (
    BLOCK_BYTES,
    BlockShuffle,
    Order,
    Permutation,
    Renumbered,
    Sequential,
    WeightedDraws,
    block_starts,
    cumulated,
)
from torch_tfrecord.order.plan import Place
from torch_tfrecord.order.ranks import Rank

__all__ = ["WINDOW_BLOCKS", "RecordOrder", "RecordSteps", "digest"]

_Order = TypeVar("_Order", bound="RecordOrder")

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
        self._last: tuple[int, Order] | None = None
        self._identity = self._make_identity()  # only once, since it reads every block or weight

    def order(self, epoch: int) -> Order:
        """The order of one epoch; the latest one is cached."""
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self._make_order(epoch))
        return self._last[1]

    def _make_order(self, epoch: int) -> Order:
        if self._sums is not None:
            return WeightedDraws(self._sums, self._seed, epoch)
        if self._blocks is not None:
            return self._blocks.order(self.num_records, self._seed, epoch)
        return (
            Permutation(self.num_records, self._seed, epoch)
            if self._shuffle
            else Sequential(self.num_records)
        )

    def steps(self, place: Place, rank: Rank) -> RecordSteps:
        """See `StepOrder`."""
        return RecordSteps(self, place.epoch, rank, place.consumed)

    def in_order(self: _Order) -> _Order:
        """See `StepOrder`."""
        other = copy(self)
        other._shuffle, other._sums, other._blocks, other._last = False, None, None, None
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
            identity |= self._blocks.identity()
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
        found: list[int] = (
            order.order(self._epoch).positions(places % max(order.num_records, 1)).tolist()
        )
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


class Blocks(NamedTuple):
    """Blocks of neighbouring records.

    Attributes:
        starts: int64: first place of each block, with the samples in the order of the files.
        window_blocks: Blocks that are mixed.
        by_file: int64 [N]: the position at each of those places; None if position and place are the
            same.
    """

    starts: npt.NDArray[np.int64]
    window_blocks: int
    by_file: npt.NDArray[np.int64] | None = None

    def order(self, num_records: int, *seeds: int) -> Order:
        """The order of an epoch."""
        order = BlockShuffle(self.starts, num_records, *seeds, window_blocks=self.window_blocks)
        return order if self.by_file is None else Renumbered(order, self.by_file)

    def identity(self) -> dict[str, Any]:
        """All that decides the order, besides the seed and the number of records."""
        found = {"blocks": digest(self.starts), "window_blocks": self.window_blocks}
        return found | ({} if self.by_file is None else {"by_file": digest(self.by_file)})


def find_blocks(dataset: Any, block_bytes: int, window_blocks: int) -> Blocks:
    """The blocks of a dataset of TFRecord files or of nested datasets, as its method `block_starts`
    returns them.
    """
    compressed = [store for store in Leaves(dataset).stores if store.first_compressed]
    if compressed:  # a window and the next one are kept decompressed
        window_blocks = min(window_blocks, max(_MOST_INFLATED_WINDOW // block_bytes, 1))
    for store in compressed:
        store.has_warned = True
    if hasattr(dataset, "_block_starts"):
        return Blocks(np.asarray(dataset._block_starts(block_bytes), np.int64), window_blocks)
    places = Leaves(dataset).places()
    if places is None:
        raise ValueError(
            'shuffle="blocks" needs to know where each record is: expected a TFRecordDataset, '
            f"got {type(dataset).__name__} (or a Subset or ConcatDataset of TFRecordDatasets only)"
        )
    files, offsets = places
    by_file = np.lexsort((offsets, files))
    starts = block_starts(files[by_file], offsets[by_file], block_bytes)
    return Blocks(starts, window_blocks, by_file)


def digest(array: npt.NDArray[Any]) -> str:
    """A short digest of an array's contents, the same on every machine."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.blake2b(little.tobytes(), digest_size=8).hexdigest()
