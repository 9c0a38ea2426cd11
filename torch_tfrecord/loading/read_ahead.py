"""A DataLoader that reads ahead with threads instead of worker processes."""

from __future__ import annotations

import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader, RandomSampler

from torch_tfrecord.arguments import at_least, integer
from torch_tfrecord.columns.one_value import Text
from torch_tfrecord.columns.whole_values import Json, Proto
from torch_tfrecord.errors import outer_level
from torch_tfrecord.images.leading_crops import helped_by
from torch_tfrecord.loading.collate import collate
from torch_tfrecord.loading.nested_dataset import (
    NestedDataset,
    StagedDataset,
    check_left,
    loads_ahead,
)
from torch_tfrecord.loading.padding import PaddedCollate
from torch_tfrecord.native import has_native
from torch_tfrecord.order.leaves import draw_salt, leaves, salted, stores
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.processors import num_processors
from torch_tfrecord.samples import LEFT_OUT
from torch_tfrecord.torch_internals import is_profiling, pin

__all__ = ["ReadAheadLoader", "usual_num_threads"]


# With more threads than this they wait for the GIL, except with large images.
_MOST_THREADS = 8
# Samples of more bytes than this are worth a second thread even if they are Python objects.
_SMALL_SAMPLE = 1 << 12
# A task loads as many batches as have about so many bytes in the files, up to that number.
_TASK_BYTES = 1 << 20
_MOST_BATCHES = 4


def usual_num_threads(dataset: object = None) -> int:
    """The default number of threads that read ahead: one per processor that this process may use,
    up to 8.

    Batches of numbers and of images are made without the GIL, so that threads share the work. It is
    one where they would only take turns: small samples that are mostly Python objects (bytes, str),
    compressed files, and anything without the compiled core. For remote files it is 8: the threads
    mostly wait.
    """
    files = stores(dataset)
    if any(store.first_compressed for store in files) or not has_native():
        return 1
    if any(store.is_remote for store in files):
        return _MOST_THREADS
    if dataset is not None and all(map(_holds_lock, leaves(dataset))):
        return 1
    return min(num_processors(), _MOST_THREADS)


def _holds_lock(leaf: Any) -> bool:
    """Whether samples are small, and most of their values Python objects."""
    features = getattr(leaf, "features", None)
    if not 0 < _sample_bytes(leaf) <= _SMALL_SAMPLE:
        return False
    specs = list(features.values()) if isinstance(features, Mapping) else [features]
    objects = [spec for spec in specs if spec is None or _makes_objects(spec)]
    return 2 * len(objects) > len(specs)


def _makes_objects(spec: Any) -> bool:
    return isinstance(spec, (Text, Proto, Json)) or getattr(spec, "dtype", None) in (bytes, str)


def _sample_bytes(dataset: object) -> float:
    """About how many bytes of the files a sample has; 0 if that is unknown."""
    found = [(leaf, store) for leaf in leaves(dataset) for store in stores(leaf)]
    num_samples = sum(max(len(leaf), store.extent[1]) for leaf, store in found)
    return sum(store.extent[2] for _, store in found) / max(num_samples, 1)


# What was loaded, or else the error.
_Outcome: TypeAlias = "tuple[Any, Exception | None]"


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
            batches of less than 1 MiB in the files, up to 4 instead of one). None: see
            `usual_num_threads`. Compressed files are read by one thread.
        **dataloader_kwargs: For `DataLoader`: batch_size, shuffle, sampler, ...; `collate_fn`
            defaults to `collate`.

    Raises:
        TypeError: Threads were to read any other dataset.
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
            # several would read out of order, which means to decompress from the beginning
            if any(store.first_compressed for store in stores(read)):
                self.num_threads = 1
            for store in stores(read) if isinstance(self.sampler, RandomSampler) else []:
                store.warn()  # here, since in a thread no line of the user's code is on the stack
        each = 0 if self.num_workers else _sample_bytes(read)
        self._samples_at_once = _TASK_BYTES / each if each else 0

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
    loading: Future[list[_Outcome]]


class _ReadAheadIterator(Iterator[Any]):
    """One iteration. Threads start with the first batch and end with the iteration, or when it is
    dropped.

    A thread that delivers a batch wakes the thread that iterates, which costs as much as loading a
    hundred rows of numbers. So small batches are loaded and delivered several at once.
    """

    def __init__(self, loader: ReadAheadLoader) -> None:
        self._loader = loader
        self._dataset = cast("StagedDataset", loader.dataset)
        self._order = iter(self._batches)
        # As torch's iterator does: what the generator draws later must not depend on threads.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        self._pins = loader.pin_memory and _can_pin()
        # The collate_fn may run ahead only if it is ours and no user's transform comes before it.
        collate_fn = loader.collate_fn
        is_ours = collate_fn is collate or isinstance(collate_fn, PaddedCollate)
        self._ahead = collate_fn if is_ours and not self._dataset._has_user_transform else None
        self._tasks: deque[_Task] = deque()  # in order
        self._loaded: deque[_Outcome] = deque()  # of tasks that have ended, in order
        self._salts: RandomStream | None = None
        self._pool = ThreadPoolExecutor(1)  # until the first batch; has no thread
        self._is_ended = self._is_interrupted = False
        self._pid = -1

    @property
    def _batches(self) -> Any:
        """The batches of positions."""
        loader = self._loader
        return loader.sampler if loader.batch_sampler is None else loader.batch_sampler

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        if not is_profiling():
            return self._next_data()
        with record_function(f"enumerate(DataLoader)#{type(self).__name__}.__next__"):
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
        while not self._is_ended and len(self._tasks) <= self._loader.num_threads:
            self._begin_task()
        if not self._loaded:
            self._wait()
        loaded, error = self._loaded.popleft()
        if error is not None:
            raise error
        if self._ahead is None:
            samples: Any = check_left(self._transformed(loaded), self._dataset)
            loaded = self._loader.collate_fn(samples) if len(samples) else LEFT_OUT
        return pin(loaded) if self._pins else loaded

    def _transformed(self, loaded: Any) -> Any:
        with helped_by(self._pool):
            return self._dataset._transform_samples(loaded)

    def _start(self) -> None:
        """Start the threads, also those of a process that was forked meanwhile."""
        self._pool = ThreadPoolExecutor(self._loader.num_threads, "tfrecord-read-ahead")
        self._pid = os.getpid()
        # Once the iterator is dropped, no further batch is started.
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False

    def _begin_task(self) -> None:
        positions: list[Sequence[int]] = []
        # the first batch alone: the training waits for it
        num_samples, most = 0, self._loader._samples_at_once if self._tasks else 0
        try:
            while not self._is_ended and (
                not positions
                or (len(positions) < _MOST_BATCHES and num_samples + len(positions[0]) <= most)
            ):
                # Not islice: Lightning's batch sampler for predictions starts over with each
                # iter().
                batch = next(self._order, None)
                if batch is None:
                    self._is_ended = True
                else:
                    positions.append(self._salted(batch))
                    num_samples += len(batch)
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
        self._loaded.extend(self._tasks.popleft().loading.result())


def _can_pin() -> bool:
    """Whether memory can be pinned, as torch decides it; else a warning, as torch's."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is not None and device.type != "mps":
        return True
    why = "no accelerator is found" if device is None else "not supported on MPS now"
    warnings.warn(
        f"'pin_memory' argument is set as true but {why}, device pinned memory won't be used.",
        stacklevel=outer_level(),
    )
    return False


def _load(
    dataset: StagedDataset,
    batches: Sequence[Sequence[int]],
    collate_fn: Callable[[Any], Any] | None,
) -> list[_Outcome]:
    """The batches of a task. Where one fails, each is loaded alone, to find out which."""
    if len(batches) > 1:
        with suppress(Exception):
            found = dataset._load_batches(batches)
            return [(_finish(dataset, samples, collate_fn), None) for samples in found]
    return [_load_one(dataset, positions, collate_fn) for positions in batches]


def _load_one(
    dataset: StagedDataset, positions: Sequence[int], collate_fn: Callable[[Any], Any] | None
) -> _Outcome:
    try:
        return _finish(dataset, dataset._load_samples(positions), collate_fn), None
    except Exception as error:
        return None, error


def _finish(
    dataset: StagedDataset, samples: Sequence[Any], collate_fn: Callable[[Any], Any] | None
) -> Any:
    if collate_fn is None:
        return samples
    samples = check_left(dataset._transform_samples(samples), dataset)
    return collate_fn(samples) if len(samples) else LEFT_OUT
