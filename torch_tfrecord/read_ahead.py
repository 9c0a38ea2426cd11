"""A DataLoader that reads ahead with threads, in place of worker processes."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from torch_tfrecord.collate import collate
from torch_tfrecord.native import has_native
from torch_tfrecord.padding import PaddedCollate

__all__ = ["LoadsAhead", "ReadAheadLoader", "usual_num_threads"]


# More threads than this wait for Python's lock, for all but large images.
_MOST_THREADS = 8


def usual_num_threads() -> int:
    """How many threads read ahead unless asked otherwise: one for each processor that this process may use, up to 8.

    Without the compiled core one: parsing in Python holds Python's lock, and several threads would only take turns.
    """
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _MOST_THREADS) if has_native() else 1


class LoadsAhead(Protocol):
    """A dataset whose samples may be loaded by threads, before a transform that may not: our own map-style ones."""

    @property
    def has_user_transform(self) -> bool:
        """Whether there is a transform that must run in the thread that iterates."""

    def load_samples(self, positions: Sequence[int]) -> Sequence[Any]:
        """The samples of several positions without the transform."""

    def transform_samples(self, samples: Sequence[Any]) -> Sequence[Any]:
        """The transform applied to each."""


class ReadAheadLoader(DataLoader[Any]):
    """A DataLoader whose batches are read, checked, parsed and decoded ahead, by threads.

    Of a `TFRecordDataset` or `tfds.RLDSDataset`. Without workers (`num_workers=0`) threads do what the compiled core
    and the decoders do without Python's lock; the batch is handed over without being copied. The transform and a
    collate_fn of the user's run in the thread that iterates, one batch after another, since they may draw from the
    global random state. With workers, or with `num_threads=0`, it is torch's DataLoader.

    Args:
        dataset: The dataset.
        num_threads: Threads that read ahead; each keeps one batch under way, and one more is ready. None for one for
            each processor that this process may use, up to 8.
        **dataloader_kwargs: For `DataLoader`: batch_size, shuffle, sampler, ...; `collate_fn` is `collate` unless
            given.

    Raises:
        TypeError: Another dataset, read by threads.

    Example:
        >>> ds = tfds.RLDSDataset("bridge/0.1.0", "train", action_horizon=4)  # doctest: +SKIP
        >>> for batch in ReadAheadLoader(ds, batch_size=64, shuffle=True):  # doctest: +SKIP
        ...     ...
    """

    def __init__(self, dataset: LoadsAhead, *, num_threads: int | None = None, **dataloader_kwargs: Any) -> None:
        dataloader_kwargs.setdefault("collate_fn", collate)
        super().__init__(dataset, **dataloader_kwargs)  # type: ignore[arg-type]
        self.num_threads = usual_num_threads() if num_threads is None else num_threads
        if self.num_threads and not self.num_workers and not hasattr(dataset, "load_samples"):
            raise TypeError(
                f"ReadAheadLoader reads TFRecordDataset and RLDSDataset, got {type(dataset).__name__}: use DataLoader"
            )

    def __iter__(self) -> Any:
        return super().__iter__() if self.num_workers or not self.num_threads else _ReadAheadIterator(self)


class _Batch(NamedTuple):
    """A batch under way."""

    positions: Sequence[int]
    loading: Future[Any]


class _ReadAheadIterator(_SingleProcessDataLoaderIter):
    """One iteration. Threads start with the first batch and end with the iteration, or when it is dropped."""

    _dataset: Any  # LoadsAhead

    def __init__(self, loader: ReadAheadLoader) -> None:
        super().__init__(loader)
        self._num_threads = loader.num_threads
        self._under_way: deque[_Batch] = deque()  # in order
        self._pool = ThreadPoolExecutor(1)  # until the first batch; has no thread
        self._is_ended = self._is_interrupted = False
        self._pid = -1

    def _next_data(self) -> Any:
        if self._is_interrupted:
            raise RuntimeError("this iteration was interrupted: begin a new one, from the loader's state if need be")
        try:
            return self._next_batch()
        except Exception:
            raise
        except BaseException:  # Ctrl-C, perhaps while a thread was starting: nobody would ever tell that one to end
            self._is_interrupted = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise

    def _next_batch(self) -> Any:
        if self._pid != os.getpid():
            self._start()
        while not self._is_ended and len(self._under_way) <= self._num_threads:
            self._read_next()
        if not self._under_way:
            self._pool.shutdown(wait=False)
            raise StopIteration
        batch = self._finish(self._under_way.popleft().loading.result())
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch  # type: ignore[no-untyped-call]

    def _start(self) -> None:
        """Start the threads; in a forked process, which has none of them, once more for what was under way."""
        self._pool = ThreadPoolExecutor(self._num_threads, "tfrecord-read-ahead")
        self._pid = os.getpid()
        # Of an iterator that is dropped no batch is begun any more.
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False
        self._under_way = deque(self._submit(batch.positions) for batch in self._under_way)

    def _read_next(self) -> None:
        try:
            self._under_way.append(self._submit(next(self._sampler_iter)))
        except StopIteration:
            self._is_ended = True

    def _submit(self, positions: Sequence[int]) -> _Batch:
        # Without a reference to this iterator, which could else not be dropped.
        return _Batch(positions, self._pool.submit(_load, self._dataset, positions, self._ahead()))

    def _ahead(self) -> Callable[[Any], Any] | None:
        """The collate_fn, where it may run ahead: it is ours, and no transform of the user's comes before it."""
        is_ours = self._collate_fn is collate or isinstance(self._collate_fn, PaddedCollate)
        return self._collate_fn if is_ours and not self._dataset.has_user_transform else None

    def _finish(self, loaded: Any) -> Any:
        if self._ahead() is not None:
            return loaded
        samples: Any = self._dataset.transform_samples(loaded)
        return self._collate_fn(samples)


def _load(dataset: LoadsAhead, positions: Sequence[int], collate_fn: Callable[[Any], Any] | None) -> Any:
    samples = dataset.load_samples(positions)
    return samples if collate_fn is None else collate_fn(dataset.transform_samples(samples))
