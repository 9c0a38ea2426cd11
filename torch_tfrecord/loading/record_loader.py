"""The DataLoader that `make_dataloader` returns: it knows which batches the training has received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from torch_tfrecord.loading.read_ahead import ReadAheadLoader
from torch_tfrecord.order.batch_sampler import BatchIteration, RecordBatchSampler

__all__ = ["RecordLoader"]

_WAIT_SECONDS = 5.0  # until the system tells of a worker's end, which its connection told


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
        # Lightning's own batch sampler around ours, where it predicts, has our attributes.
        self._order: RecordBatchSampler = batch_sampler.sampler.batches
        super().__init__(dataset, batch_sampler=batch_sampler, num_threads=num_threads, **dataloader_kwargs)
        # DataLoader has a SequentialSampler here, which it does not use, and refuses another one later.
        object.__setattr__(self, "sampler", self._order.sampler)
        # It says False beside any batch sampler; Accelerate counts the samples of the last batch by it.
        object.__setattr__(self, "drop_last", self._order.drop_last)

    def __iter__(self) -> Any:
        running = self._order._running
        if running is not None and running.is_waiting:
            running.put_back()
        return _ReceivedBatches(self)

    def _begin(self) -> tuple[Any, BatchIteration]:
        """DataLoader's iterator for the next iteration, and the order that it gives."""
        iterator = super().__iter__()
        batches = self._order._last_iteration
        batches.begin()  # whether or not workers have: `len` is that of the next one from here on
        batches.num_received = 0
        return iterator, batches

    @property
    def epoch(self) -> int:
        """The epoch with which the next iteration begins, or in which it goes on after `load_state_dict`."""
        return self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, with which the next iteration begins; else it is the one after the last.

        For the epoch that a loaded state was in, nothing changes: the next iteration gives what is left of it. An
        iterator of which no batch was taken is the next iteration, too. (``loader.sampler.set_epoch``, which trainers
        call, counts iterations instead: the same where `num_epochs` is 1.)
        """
        self._order.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the training is, by the batches received: a few numbers and strings, as JSON knows them.

        The same on every rank after the same number of batches: save that of one, load it in all.

        Raises:
            ValueError: Batches come out of order (`in_order=False`), so that no number says which were received; or
                they were received from the loader that ``accelerator.prepare`` made of this one: give
                ``loader.batch_sampler.state_dict`` their number.
        """
        if self.num_workers and not getattr(self, "in_order", True):
            raise ValueError("state_dict needs batches in order, got a loader with in_order=False")
        running = self._order._running
        return self._order.state_dict(None if running is None or running.is_over else running.num_received)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was: the next iteration gives what was left of the interrupted one.

        Raises:
            ValueError: A state of another version or another order; names both values.
        """
        self._order.load_state_dict(state_dict)


class _ReceivedBatches(Iterator[Any]):
    """DataLoader's iterator, counted; all else is the iterator's.

    Trainers make it, and say only then which epoch begins: before its first batch it may begin once more.
    """

    def __init__(self, loader: RecordLoader) -> None:
        self._loader = loader
        self._iterator, self._batches = loader._begin()

    def __next__(self) -> Any:
        if self._batches.is_replaced:
            self._iterator = None  # its workers end before those of the new one begin
            self._iterator, self._batches = self._loader._begin()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._batches.is_over = True
            raise
        except (ConnectionError, EOFError) as error:
            lost = _ended_workers(getattr(self._iterator, "_workers", ()))
            if not lost:
                raise
            raise RuntimeError(f"a batch was lost: {', '.join(lost)}") from error
        self._batches.num_received = (self._batches.num_received or 0) + 1
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not there yet
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _ended_workers(workers: Sequence[Any]) -> list[str]:
    """The workers that have ended, and why: torch does not look where one is killed while it sends a batch."""
    ended = wait([worker.sentinel for worker in workers], _WAIT_SECONDS)
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(_WAIT_SECONDS)  # it is gone: only its exit code may not be there yet
    return [
        f"DataLoader worker (pid {worker.pid}) "
        + (f"was killed by signal {-worker.exitcode}" if worker.exitcode < 0 else f"ended with {worker.exitcode}")
        for worker in workers
        if worker.exitcode
    ]
