"""The DataLoader that `make_dataloader` returns: it knows which batches the training has
received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from torch_tfrecord.error_log import ErrorLog
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.loading.collate import collate
from torch_tfrecord.loading.read_ahead import ReadAheadLoader
from torch_tfrecord.order.leaves import leaves
from torch_tfrecord.order.position_batch import PositionBatch
from torch_tfrecord.order.ranks import resolve_rank
from torch_tfrecord.order.samplers import Iteration, RecordBatchSampler
from torch_tfrecord.samples import LEFT_OUT
from torch_tfrecord.torch_internals import show_order, workers_of

__all__ = ["RecordLoader"]

_WAIT_SECONDS = 5.0  # for the exit code of a worker whose connection has closed


class RecordLoader(ReadAheadLoader):
    """A DataLoader over a map-style dataset whose state counts the batches that you have received
    from it.

    Batches that threads or workers have prefetched are not counted. The state is
    `RecordBatchSampler`'s: you can load it with another number of workers and threads, another
    world size and batch size.

    Args:
        dataset: The dataset.
        batch_sampler: The order.
        num_threads: See `ReadAheadLoader`.
        **dataloader_kwargs: For `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_sampler: RecordBatchSampler,
        num_threads: int | None,
        **dataloader_kwargs: Any,
    ) -> None:
        # For predictions Lightning wraps our batch sampler in its own, which copies our attributes.
        self._order: RecordBatchSampler = batch_sampler.sampler.batches
        self._errors: list[ErrorLog] = [
            log for leaf in leaves(dataset) for log in getattr(leaf, "_error_logs", ())
        ]
        if any(log.skips for log in self._errors):
            for log in self._errors:
                log.is_attended = True
            if num_threads == 0 or dataloader_kwargs.get("num_workers"):
                dataloader_kwargs["collate_fn"] = partial(
                    _collate_left, dataloader_kwargs.get("collate_fn", collate)
                )
        super().__init__(
            dataset, batch_sampler=batch_sampler, num_threads=num_threads, **dataloader_kwargs
        )
        show_order(self, self._order.sampler, drop_last=self._order.drop_last)

    def __iter__(self) -> Any:
        running = self._order._running
        if running is not None and running.is_waiting:
            running.put_back()
        return _ReceivedBatches(self)

    def _begin(self) -> tuple[Any, Iteration[PositionBatch]]:
        """DataLoader's iterator for the next iteration, and its order."""
        iterator = super().__iter__()
        batches = self._order._last_iteration
        batches.begin()  # even if workers have not begun: from here on `len` is that of the next iteration
        batches.num_received = 0
        return iterator, batches

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins, or resumes after `load_state_dict`."""
        return self._order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, in which the next iteration begins; by default the one after
        the last.

        If it is the epoch of a loaded state, nothing changes: the next iteration yields the rest of
        that epoch. An iterator from which no batch was taken counts as the next iteration, too.
        (``loader.sampler.set_epoch``, which trainers call, counts iterations instead: the same if
        `num_epochs` is 1.)
        """
        self._order.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that you have received: a few JSON numbers and
        strings.

        It is the same on every rank after the same number of batches: save one rank's state, load
            it on all ranks.

        Raises:
            ValueError: Batches come out of order (`in_order=False`), so a number cannot say which
                were received; or you received them from the loader that ``accelerator.prepare``
                made of this one: pass their number to ``loader.batch_sampler.state_dict``.
        """
        if self.num_workers and not getattr(self, "in_order", True):
            raise ValueError("state_dict needs batches in order, got a loader with in_order=False")
        running = self._order._running
        return self._order.state_dict(
            None if running is None or running.is_over else running.num_received
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration yields the rest of the interrupted one.

        Raises:
            ValueError: The state has another version or order; the message gives both values.
        """
        self._order.load_state_dict(state_dict)


def _collate_left(collate_fn: Callable[[Any], Any], samples: Sequence[Any]) -> Any:
    return collate_fn(samples) if len(samples) else LEFT_OUT


class _ReceivedBatches(Iterator[Any]):
    """DataLoader's iterator with a count of the batches; everything else is passed on to it.

    Trainers choose the epoch only after they have made the iterator: until its first batch it may
    begin again.
    """

    def __init__(self, loader: RecordLoader) -> None:
        self._loader = loader
        self._iterator, self._batches = loader._begin()

    def __next__(self) -> Any:
        if self._batches.is_replaced:
            self._iterator = None  # so that its workers end before those of the new one start
            self._iterator, self._batches = self._loader._begin()
        while (batch := self._received()) is LEFT_OUT:
            if (
                resolve_rank(self._loader._order._rank, self._loader._order._world_size).world_size
                > 1
            ):
                raise TFRecordError(
                    "all records of a batch were left out, and all ranks need the same number of batches: expected a "
                    "larger batch_size, or fewer records that fail"
                )
        return batch

    def _received(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._batches.is_over = True
            for log in self._loader._errors:
                log.tell()
            raise
        except (ConnectionError, EOFError) as error:
            lost = _ended_workers(workers_of(self._iterator))
            if not lost:
                raise
            raise RuntimeError(f"a batch was lost: {', '.join(lost)}") from error
        self._batches.num_received = (self._batches.num_received or 0) + 1
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not set yet
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _ended_workers(workers: Sequence[Any]) -> list[str]:
    """The workers that have ended, and why: torch does not check for one that is killed while it
    sends a batch.
    """
    ended = wait([worker.sentinel for worker in workers], _WAIT_SECONDS) if workers else []
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(_WAIT_SECONDS)  # it has ended, but its exit code may not be available yet
    return [
        f"DataLoader worker (pid {worker.pid}) "
        + (
            f"was killed by signal {-worker.exitcode}"
            if worker.exitcode < 0
            else f"ended with {worker.exitcode}"
        )
        for worker in workers
        if worker.exitcode
    ]
