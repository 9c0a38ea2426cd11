"""The DataLoader that `make_dataloader` returns: it knows which batches the training has received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch_tfrecord.loading.map_dataset import TFRecordDataset
from torch_tfrecord.loading.read_ahead import ReadAheadLoader
from torch_tfrecord.order.batch_sampler import BatchIteration, RecordBatchSampler
from torch_tfrecord.order.rank_sampler import BatchedPositions

__all__ = ["RecordLoader"]


class RecordLoader(ReadAheadLoader):
    """A DataLoader over a `TFRecordDataset` whose state counts the batches that were received from it.

    Whatever threads or workers have read ahead is not counted. The state is `RecordBatchSampler`'s: it may be loaded
    with another number of workers and threads, another world size and batch size.

    Args:
        dataset: The dataset.
        batch_sampler: The order.
        num_threads: See `ReadAheadLoader`.
        **dataloader_kwargs: For `DataLoader`.
    """

    def __init__(
        self, dataset: TFRecordDataset, *, batch_sampler: RecordBatchSampler, num_threads: int, **dataloader_kwargs: Any
    ) -> None:
        self._progress: _Progress | None = None  # of the iteration that began last
        # Lightning's own batch sampler around ours, where it predicts, has all that ours has.
        self._order: RecordBatchSampler = batch_sampler.sampler.batches  # type: ignore[assignment]
        super().__init__(dataset, batch_sampler=batch_sampler, num_threads=num_threads, **dataloader_kwargs)
        sampler = BatchedPositions(self._order)
        sampler.choose = self._set_iteration
        object.__setattr__(self, "sampler", sampler)  # DataLoader knows none, and refuses to be told later

    def __iter__(self) -> Any:
        if self._progress is not None and self._progress.is_waiting:
            self._progress.batches.put_back()
        return _ReceivedBatches(self)

    def begin(self) -> tuple[Any, _Progress]:
        """DataLoader's iterator for the next iteration, and what counts it."""
        iterator = super().__iter__()
        batches = self._order.last_iteration
        batches.begin()  # so that `len` is that of the next one, whether or not workers have begun it
        progress = self._progress = _Progress(batches)
        return iterator, progress

    @property
    def epoch(self) -> int:
        """The epoch with which the next iteration begins, or in which it goes on after `load_state_dict`."""
        progress = self._progress
        return progress.batches.epoch if progress is not None and progress.is_waiting else self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, with which the next iteration begins; else it is the one after the last.

        For the epoch that a loaded state was in, nothing changes: the next iteration gives what is left of it. An
        iterator of which no batch was taken is the next iteration, too. (``loader.sampler.set_epoch``, which trainers
        call, counts iterations instead: the same where `num_epochs` is 1.)
        """
        self._choose(self._order.set_epoch, epoch)

    def _set_iteration(self, number: int) -> None:
        self._choose(self._order.set_iteration, number)

    def _choose(self, choose: Callable[[int], None], number: int) -> None:
        progress = self._progress
        waiting = progress if progress is not None and progress.is_waiting else None
        if waiting is not None:
            waiting.batches.put_back()
        before = self._order.next_place
        choose(number)
        if self._order.next_place != before:
            self._progress = None
            if waiting is not None:
                waiting.is_replaced = True
        elif waiting is not None:
            waiting.batches.begin()

    def state_dict(self) -> dict[str, Any]:
        """Where the training is, by the batches received: a few numbers and strings, as JSON knows them.

        The same on every rank after the same number of batches: save that of one, load it in all.

        Raises:
            ValueError: Batches come out of order (`in_order=False`), so that no number says which were received.
        """
        if self.num_workers and not getattr(self, "in_order", True):
            raise ValueError("state_dict needs batches in order, got a loader with in_order=False")
        progress = self._progress
        if progress is None or progress.has_ended:
            return self._order.state_dict()
        return progress.batches.state_dict(progress.num_received)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was: the next iteration gives what was left of the interrupted one.

        Raises:
            ValueError: A state of another version or another order; names both values.
        """
        self._order.load_state_dict(state_dict)
        if self._progress is not None and self._progress.is_waiting:
            self._progress.is_replaced = True
        self._progress = None


class _Progress:
    """How many of an iteration's batches were received. Apart from the iterator, which is dropped when it is left."""

    def __init__(self, batches: BatchIteration) -> None:
        self.batches = batches
        self.num_received = 0
        self.has_ended = False
        self.is_replaced = False  # before its first batch, by an iteration that begins elsewhere

    @property
    def is_waiting(self) -> bool:
        """Whether nothing was received of it."""
        return not self.num_received and not self.has_ended


class _ReceivedBatches(Iterator[Any]):
    """DataLoader's iterator, counted; all else is the iterator's.

    Trainers make it, and say only then which epoch begins: before its first batch it may begin once more.
    """

    def __init__(self, loader: RecordLoader) -> None:
        self._loader = loader
        self._iterator, self._progress = loader.begin()

    def __next__(self) -> Any:
        if self._progress.is_replaced:
            self._iterator = None  # its workers end before those of the new one begin
            self._iterator, self._progress = self._loader.begin()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._progress.has_ended = True
            raise
        self._progress.num_received += 1
        return batch

    def __len__(self) -> int:
        return len(self._progress.batches)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not there yet
            raise AttributeError(name)
        return getattr(self._iterator, name)
