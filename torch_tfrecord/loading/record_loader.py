"""The DataLoader that `make_dataloader` returns: it knows which batches the training has received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch_tfrecord.loading.read_ahead import ReadAheadLoader
from torch_tfrecord.order.batch_sampler import BatchIteration, RecordBatchSampler

__all__ = ["RecordLoader"]


class RecordLoader(ReadAheadLoader):
    """A DataLoader over a map-style dataset whose state counts the batches that were received from it.

    Whatever threads or workers have read ahead is not counted. The state is `RecordBatchSampler`'s: it may be loaded
    with another number of workers and threads, another world size and batch size.

    Args:
        dataset: The dataset.
        batch_sampler: The order.
        num_threads: See `ReadAheadLoader`.
        **dataloader_kwargs: For `DataLoader`.
    """

    def __init__(
        self, dataset: Any, *, batch_sampler: RecordBatchSampler, num_threads: int, **dataloader_kwargs: Any
    ) -> None:
        self._progress: _Progress | None = None  # of the iteration that began last
        super().__init__(dataset, batch_sampler=batch_sampler, num_threads=num_threads, **dataloader_kwargs)

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        # torch's iterators keep the batch sampler's iteration under this name.
        progress = self._progress = _Progress(iterator._sampler_iter)
        return _ReceivedBatches(iterator, progress)

    @property
    def _order(self) -> RecordBatchSampler:
        return cast(RecordBatchSampler, self.batch_sampler)

    @property
    def epoch(self) -> int:
        """The epoch with which the next iteration begins, or in which it goes on after `load_state_dict`."""
        return self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, with which the next iteration begins; else it is the one after the last.

        For the epoch that a loaded state was in, nothing changes: the next iteration gives what is left of it.
        """
        before = self._order.epoch
        self._order.set_epoch(epoch)
        if self._order.epoch != before:
            self._progress = None

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
        self._progress = None


class _Progress:
    """How many of an iteration's batches were received. Apart from the iterator, which is dropped when it is left."""

    def __init__(self, batches: BatchIteration) -> None:
        self.batches = batches
        self.num_received = 0
        self.has_ended = False


class _ReceivedBatches(Iterator[Any]):
    """DataLoader's iterator, counted; all else is the iterator's."""

    def __init__(self, iterator: Any, progress: _Progress) -> None:
        self._iterator = iterator
        self._progress = progress

    def __next__(self) -> Any:
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
