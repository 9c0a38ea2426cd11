"""A DataLoader that reads ahead with threads instead of worker processes."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter, thread_time
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch.autograd import profiler
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from torch_tfrecord.arguments import at_least, integer
from torch_tfrecord.images.leading_crops import helped_by
from torch_tfrecord.loading.collate import collate
from torch_tfrecord.loading.nested_dataset import NestedDataset, loads_ahead
from torch_tfrecord.loading.pace import Pace
from torch_tfrecord.loading.padding import PaddedCollate
from torch_tfrecord.loading.sample_maker import check_left
from torch_tfrecord.native import has_native
from torch_tfrecord.order.leaves import draw_salt, leaves, salted, stores
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.processors import num_processors
from torch_tfrecord.samples import LEFT_OUT

__all__ = ["LoadsAhead", "ReadAheadLoader", "usual_num_threads"]


# With more threads than this they wait for the GIL, except with large images.
_MOST_THREADS = 8


def usual_num_threads(dataset: object = None) -> int:
    """The default number of threads that read ahead: one per processor that this process may use,
    up to 8.

    Without the compiled core it is one: parsing in Python holds the GIL, and several threads would
    only take turns. For remote files it is 8: the threads mostly wait.
    """
    if any(store.is_remote for store in stores(dataset)):
        return _MOST_THREADS
    return min(num_processors(), _MOST_THREADS) if has_native() else 1


# What was loaded, or else the error.
_Outcome: TypeAlias = "tuple[Any, Exception | None]"


class LoadsAhead(Protocol):
    """A map-style dataset of ours: threads may load its samples, but may not run its transform."""

    @property
    def _has_user_transform(self) -> bool:
        """Whether there is a transform, which must run in the thread that iterates."""

    def _load_samples(self, positions: Sequence[int]) -> Sequence[Any]:
        """The samples at several positions, without the transform."""

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Sequence[Any]]:
        """`_load_samples` of several batches at once; if it raises, they are loaded one by one."""

    def _transform_samples(self, samples: Sequence[Any]) -> Sequence[Any]:
        """Apply the transform to each."""


class ReadAheadLoader(DataLoader[Any]):
    """A DataLoader whose threads read, check, parse and decode batches ahead.

    Without workers (`num_workers=0`), threads do the work that the compiled core and the decoders
    do without the GIL, and batches reach you without a copy. Your transform and a custom
    `collate_fn` run in the thread that iterates, one batch after another, since they may draw from
    the global random state. With workers, or with `num_threads=0`, this is torch's DataLoader.

    Args:
        dataset: A `TFRecordDataset` or `tfds.RLDSDataset`, or a `Subset`, `ConcatDataset` or
            `Mixture` of these.
        num_threads: Threads that read ahead. Each prepares one batch, and one more is ready (with
            batches that take less than 4 ms, up to 4 instead of one). None for one per processor
            that this process may use, up to 8, or 8 for remote files; of these, half are tried, and
            half of those, where they wait for each other (batches of many Python objects hold the
            GIL), and kept if that is as fast. Compressed files are read by one thread.
        **dataloader_kwargs: For `DataLoader`: batch_size, shuffle, sampler, ...; `collate_fn`
            defaults to `collate`.

    Raises:
        TypeError: Threads were to read any other dataset.

    Example:
        >>> ds = tfds.RLDSDataset("bridge/0.1.0", "train", action_horizon=4)  # doctest: +SKIP
        >>> for batch in ReadAheadLoader(ds, batch_size=64, shuffle=True):  # doctest: +SKIP
        ...     ...
    """

    def __init__(
        self, dataset: Any, *, num_threads: int | None = None, **dataloader_kwargs: Any
    ) -> None:
        dataloader_kwargs.setdefault("collate_fn", collate)
        # torch does not check its type
        integer("num_workers", dataloader_kwargs.get("num_workers", 0))
        dataset = dataset if loads_ahead(dataset) else NestedDataset(dataset)
        super().__init__(dataset, **dataloader_kwargs)
        read = dataset.dataset if isinstance(dataset, NestedDataset) else dataset
        self.num_threads = (
            usual_num_threads(read)
            if num_threads is None
            else at_least(0, "num_threads", num_threads)
        )
        if self.num_threads and not self.num_workers:
            _check_leaves(leaves(read))
            if any(store.first_compressed for store in stores(read)):
                self.num_threads = 1  # several would read out of order, which means to decompress from the beginning
            for store in stores(read) if isinstance(self.sampler, RandomSampler) else []:
                store.warn()  # here, since in a thread no line of the user's code is on the stack
        # Threads that wait for a remote file do not wait for each other.
        is_fixed = num_threads is not None or any(store.is_remote for store in stores(read))
        self._pace = Pace(self.num_threads, is_fixed=is_fixed)

    def __repr__(self) -> str:
        size = (
            self.batch_size
            if self.batch_size is not None
            else getattr(self.batch_sampler, "batch_size", None)
        )
        threads = 0 if self.num_workers else self.num_threads
        return (
            f"{type(self).__name__}({self.dataset!r}, batch_size={size}, num_workers={self.num_workers}, "
            f"num_threads={threads})"
        )

    def __iter__(self) -> Any:
        return (
            super().__iter__()
            if self.num_workers or not self.num_threads
            else _ReadAheadIterator(self)
        )


def _check_leaves(innermost: list[Any]) -> None:
    for leaf in innermost:
        if not loads_ahead(leaf):
            raise TypeError(
                "ReadAheadLoader reads TFRecordDataset and RLDSDataset, and Subset, ConcatDataset and Mixture of them, "
                f"got {type(leaf).__name__}: use DataLoader, or num_threads=0"
            )


class _Task(NamedTuple):
    """Batches that one thread loads one after another."""

    positions: Sequence[Sequence[int]]
    loading: Future[_Loaded]


class _Loaded(NamedTuple):
    """The result of a task: for each batch what was loaded or its error; the seconds it took, and
    those it computed.
    """

    batches: list[_Outcome]
    seconds: float
    cpu_seconds: float


class _ReadAheadIterator(_SingleProcessDataLoaderIter):
    """One iteration. Threads start with the first batch and end with the iteration, or when it is
    dropped.

    A thread that delivers a batch wakes the thread that iterates, which costs as much as loading a
    hundred rows of numbers. So batches that load quickly are loaded and delivered several at once.
    """

    _dataset: Any  # LoadsAhead

    def __init__(self, loader: ReadAheadLoader) -> None:
        super().__init__(loader)  # type: ignore[no-untyped-call, unused-ignore] # has none before torch 2.9
        # The collate_fn may run ahead only if it is ours and no user's transform comes before it.
        is_ours = self._collate_fn is collate or isinstance(self._collate_fn, PaddedCollate)
        self._ahead = (
            self._collate_fn if is_ours and not self._dataset._has_user_transform else None
        )
        self._tasks: deque[_Task] = deque()  # in order
        self._loaded: deque[_Outcome] = deque()  # of tasks that have ended, in order
        # A transform's images are decoded by all threads.
        self._pace = (
            loader._pace if self._ahead is not None else Pace(loader.num_threads, is_fixed=True)
        )
        self._salts: RandomStream | None = None
        self._num_threads = 0
        self._pool = ThreadPoolExecutor(1)  # until the first batch; has no thread
        self._is_ended = self._is_interrupted = False
        self._pid = -1

    def __next__(self) -> Any:
        if getattr(profiler, "_is_profiler_enabled", True):
            return super().__next__()  # torch's, which records the step for the profiler
        self._num_yielded += 1
        return self._next_data()

    def _next_data(self) -> Any:
        if self._is_interrupted:
            raise RuntimeError(
                "this iteration was interrupted: begin a new one, if needed from the loader's state"
            )
        try:
            return self._next_batch()
        except Exception:
            raise
        # Ctrl-C, perhaps while a thread was starting, which would then never end
        except BaseException:
            self._is_interrupted = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise

    def _next_batch(self) -> Any:
        if self._pid != os.getpid():
            self._start()
            # those of before a fork
            self._tasks = deque(self._submit(task.positions) for task in self._tasks)
        elif self._num_threads != self._pace.num_threads:
            self._pool.shutdown(wait=False)
            self._start()
        while not self._is_ended and len(self._tasks) <= self._num_threads:
            self._begin_task()
        if not self._loaded:
            self._wait()
        loaded, error = self._loaded.popleft()
        if error is not None:
            raise error
        if self._ahead is None:
            samples: Any = check_left(self._transformed(loaded), self._dataset)
            loaded = self._collate_fn(samples) if len(samples) else LEFT_OUT
        batch = loaded
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _transformed(self, loaded: Any) -> Any:
        with helped_by(self._pool):
            return self._dataset._transform_samples(loaded)

    def _start(self) -> None:
        """Start the threads, or others: after a fork, or as many as the pace has learned to be
        best.
        """
        self._num_threads = self._pace.num_threads
        self._pool = ThreadPoolExecutor(self._num_threads, "tfrecord-read-ahead")
        self._pid = os.getpid()
        # Once the iterator is dropped, no further batch is started.
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False

    def _begin_task(self) -> None:
        size = self._pace.num_batches
        positions: list[Sequence[int]] = []
        try:
            while len(positions) < size and not self._is_ended:
                # Not islice: Lightning's batch sampler for predictions starts over with each
                # iter().
                batch = next(self._sampler_iter, None)
                if batch is None:
                    self._is_ended = True
                else:
                    positions.append(self._salted(batch))
        finally:  # also the batches before an error of the sampler itself
            if positions:
                self._tasks.append(self._submit(positions))

    def _salted(self, positions: Sequence[int]) -> Sequence[int]:
        # Here, since threads would draw in an order that depends on timing.
        return salted(self._dataset, positions, self._draw_salt)

    def _draw_salt(self) -> int:
        # One draw from torch's generator per iteration: how far ahead batches are started depends
        # on timing.
        if self._salts is None:
            self._salts = RandomStream(draw_salt())
        return self._salts.below(1 << 63)

    def _submit(self, positions: Sequence[Sequence[int]]) -> _Task:
        # Without a reference to this iterator, so that it can be dropped.
        return _Task(positions, self._pool.submit(_load, self._dataset, positions, self._ahead))

    def _wait(self) -> None:
        """Wait for the task that is next."""
        if not self._tasks:
            self._pool.shutdown(wait=False)
            raise StopIteration
        batches, seconds, cpu_seconds = self._tasks.popleft().loading.result()
        self._loaded.extend(batches)
        self._pace.learn(len(batches), seconds, cpu_seconds, perf_counter())


def _load(
    dataset: LoadsAhead, batches: Sequence[Sequence[int]], collate_fn: Callable[[Any], Any] | None
) -> _Loaded:
    begin, cpu_begin = perf_counter(), thread_time()
    loaded = _load_together(dataset, batches, collate_fn) if len(batches) > 1 else None
    if loaded is None:
        loaded = [_load_one(dataset, positions, collate_fn) for positions in batches]
    return _Loaded(loaded, perf_counter() - begin, thread_time() - cpu_begin)


def _load_together(
    dataset: LoadsAhead, batches: Sequence[Sequence[int]], collate_fn: Callable[[Any], Any] | None
) -> list[_Outcome] | None:
    """None if one of the batches fails: loading each alone finds out which."""
    try:
        return [
            (_finish(dataset, samples, collate_fn), None)
            for samples in dataset._load_batches(batches)
        ]
    except Exception:
        return None


def _load_one(
    dataset: LoadsAhead, positions: Sequence[int], collate_fn: Callable[[Any], Any] | None
) -> _Outcome:
    try:
        return _finish(dataset, dataset._load_samples(positions), collate_fn), None
    except Exception as error:
        return None, error


def _finish(
    dataset: LoadsAhead, samples: Sequence[Any], collate_fn: Callable[[Any], Any] | None
) -> Any:
    if collate_fn is None:
        return samples
    samples = check_left(dataset._transform_samples(samples), dataset)
    return collate_fn(samples) if len(samples) else LEFT_OUT
