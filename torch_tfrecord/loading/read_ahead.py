"""A DataLoader that reads ahead with threads instead of worker processes."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from time import perf_counter, thread_time
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.profiler import record_function
from torch.utils.data import DataLoader, RandomSampler

from torch_tfrecord.arguments import at_least, integer
from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.errors import warn
from torch_tfrecord.loading.collating import ColumnCollate, collate
from torch_tfrecord.loading.device import DevicePrefetcher
from torch_tfrecord.loading.map_dataset import (
    StagedDataset,
    check_left,
    sample_bytes,
    usual_num_threads,
)
from torch_tfrecord.loading.pinned import Cut, Pins, pinned_bytes
from torch_tfrecord.loading.sample_maker import helped_by, transform_samples, with_label
from torch_tfrecord.native import native_module
from torch_tfrecord.order import Leaves, Part
from torch_tfrecord.phases import Counters, Phase, count, count_in
from torch_tfrecord.random_stream import RandomStream, draw_salt
from torch_tfrecord.samples import LEFT_OUT, Batch, Samples, Transform, Value, transform_one
from torch_tfrecord.torch_internals import is_profiling

__all__ = ["ReadAheadLoader"]


# Fast batches are loaded a few at a time, which the processor's caches and the memory of freed batches have room for.
_FEW_BATCHES, _FEW_BYTES = 4, 8 << 20
# Where a thread waits much, as many as take it about so long: each time that it asks for the GIL beside a training loop
# that computes in Python, it waits for 5 ms.
_TASK_SECONDS = 0.02
_MOST_BATCHES = 128
# The most bytes of a task of several batches, in the files or in memory, and of all that are loaded at once.
_TASK_BYTES = 32 << 20
_ALL_BYTES = 256 << 20


_Collate: TypeAlias = Callable[[Any], Batch]
# The batch that was loaded, for a device several, or else the error.
_Outcome: TypeAlias = "tuple[Batch | Samples | Cut, Exception | None]"


# The first batches of a task, their number, and how many the next task should have.
_Loaded: TypeAlias = tuple[list[_Outcome], int, int]


def loads_ahead(dataset: object) -> bool:
    """Whether threads may load a dataset's samples: `TFRecordDataset`, `RLDSDataset`,
    `NestedDataset` of these.

    False for a subclass of one of these that overrides how it reads.
    """
    if isinstance(dataset, NestedDataset):
        return all(map(loads_ahead, Leaves(dataset.dataset)))
    return isinstance(dataset, StagedDataset) and Leaves.defines_last(
        type(dataset), "_load_samples"
    )


class _Parts(NamedTuple):
    """The samples of the innermost datasets for a batch, before their transforms; a sequence in name
    only.
    """

    parts: list[tuple[Part, Samples]]
    num_samples: int


class NestedDataset(StagedDataset):
    """Read a dataset of datasets (`Subset`, `ConcatDataset`, `Mixture`, nested) through the
    innermost ones.

    Each of those is asked once for its part of a batch, together with the batch's epoch, which
    torch's `Subset` does not pass on. If one of them gives the whole batch, its columns stay
    columns.

    Args:
        dataset: Any map-style dataset.
        transform: Called with each sample, after the dataset's own.
    """

    def __init__(self, dataset: Any, transform: Transform | None = None) -> None:
        self.dataset = dataset
        self._transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def _sample(self, position: Any) -> Value:
        sample = self.dataset[position]
        return (
            sample if self._transform is None else transform_one(self._transform, 0, sample, None)
        )

    @property
    def _error_logs(self) -> list[ErrorLog]:
        return [log for leaf in Leaves(self.dataset) for log in getattr(leaf, "_error_logs", ())]

    def _load_samples(self, positions: Sequence[int]) -> Any:
        # Once for each innermost dataset, however its samples are mixed.
        parts: list[tuple[Part, Samples]] = [
            (
                part,
                part.dataset._load_samples(part.positions)
                if loads_ahead(part.dataset)
                else part.read(),
            )
            for part in Leaves(self.dataset).parts(positions)
        ]
        return _Parts(parts, len(positions))

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Any]:
        """`_load_samples` of several batches, with one call of each innermost dataset."""
        split = [*map(Leaves(self.dataset).parts, batches)]
        asked: dict[int, list[Part]] = {}
        for part in chain.from_iterable(split):
            asked.setdefault(id(part.dataset), []).append(part)
        loaded = {
            key: iter(parts[0].dataset._load_batches([part.positions for part in parts]))
            for key, parts in asked.items()
        }
        found: list[Any] = []
        with suppress(StopIteration):  # one has loaded the first of them only
            for parts, positions in zip(split, batches, strict=True):
                pairs = [(part, next(loaded[id(part.dataset)])) for part in parts]
                found.append(_Parts(pairs, len(positions)))
        return found

    @property
    def _has_user_transform(self) -> bool:
        return super()._has_user_transform or any(
            leaf._has_user_transform for leaf in Leaves(self.dataset)
        )

    def _transform_samples(self, loaded: Any) -> Samples:
        """Apply the transforms, the innermost dataset's and then this one's, to what
        `_load_samples` returned.
        """
        parts = [
            (
                part,
                part.dataset._transform_samples(samples) if loads_ahead(part.dataset) else samples,
            )
            for part, samples in loaded.parts
        ]
        joined = parts[0][1] if len(parts) == 1 else Part.join(parts, loaded.num_samples)
        errors = getattr(next(iter(Leaves(self.dataset))), "_errors", RAISES)
        return transform_samples(self._transform, joined, errors)

    @property
    def _needs_salt(self) -> bool:
        return Leaves(self.dataset).need_salt

    def __repr__(self) -> str:
        return f"NestedDataset({self.dataset!r})"


class ReadAheadLoader(DataLoader[Value]):
    """A DataLoader whose threads read, check, parse and decode batches ahead.

    Without workers (`num_workers=0`), threads do the work that the compiled core and the decoders
    do without the GIL, and batches reach you without a copy. Your transform and a custom
    `collate_fn` run in the thread that iterates, one batch after another, since they may draw from
    the global random state. With workers, or with `num_threads=0`, this is torch's DataLoader.

    Args:
        dataset: A `TFRecordDataset` or `tfds.RLDSDataset`, or a `Subset`, `ConcatDataset` or
            `Mixture` of these.
        num_threads: Threads that read ahead. Each prepares one batch, or up to 4 fast ones (8 in
            pinned memory), and as many more are ready. Beside a training loop that computes in
            Python these are as many as take 20 ms, but at most 128 and 32 MiB, together 256 MiB.
            How far ahead a sampler is asked for positions depends on that: let one of your own
            draw from a generator of its own. None: see `usual_num_threads`.
        device: Where batches go, by a `DevicePrefetcher`; None or "cpu" leaves them as they are.
        transform, label_key: As for `TFRecordDataset`; after the dataset's own.
        **dataloader_kwargs: For `DataLoader`: batch_size, shuffle, sampler, ...; `collate_fn`
            defaults to `collate`.

    Raises:
        TypeError: Threads were to read any other dataset.
    """

    _reads_others = False  # also datasets that threads cannot read, then without threads

    def __init__(
        self,
        dataset: Any,
        *,
        num_threads: int | None = None,
        device: torch.device | str | int | None = None,
        transform: Transform | None = None,
        label_key: str | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        dataloader_kwargs.setdefault("collate_fn", collate)
        # torch does not check its type
        integer("num_workers", dataloader_kwargs.get("num_workers", 0))
        # Also with workers: it passes a batch's epoch on, which torch's Subset does not.
        transform = with_label(transform, label_key)
        if transform is not None or not loads_ahead(dataset):
            dataset = NestedDataset(dataset, transform)
        self.device = None if device is None else torch.device(device)
        self._prefetcher = None if device is None else DevicePrefetcher((), device)
        if self._prefetcher is not None and self._prefetcher.pins:
            dataloader_kwargs["pin_memory"] = False  # torch would pin each tensor of workers alone
        super().__init__(dataset, **dataloader_kwargs)
        read = self._dataset
        if self._reads_others and not loads_ahead(dataset):
            num_threads = 0
        self.num_threads = (
            usual_num_threads(read)
            if num_threads is None
            else at_least(0, "num_threads", num_threads)
        )
        if self.num_threads and not self.num_workers:
            for leaf in Leaves(read):
                if not loads_ahead(leaf):
                    raise TypeError(
                        "ReadAheadLoader reads TFRecordDataset and RLDSDataset, and Subset, ConcatDataset and Mixture "
                        f"of them, got {type(leaf).__name__}: use DataLoader, or num_threads=0"
                    )
            for store in Leaves(read).stores if isinstance(self.sampler, RandomSampler) else []:
                store.warn()  # here, since in a thread no line of the user's code is on the stack
        self._counters = Counters(self.num_workers)
        self._sample_bytes = 0 if self.num_workers else sample_bytes(read)
        self._at_once = 1  # batches in the next task, also of the next iteration

    def __repr__(self) -> str:
        size = getattr(self if self.batch_size else self.batch_sampler, "batch_size", None)
        threads = 0 if self.num_workers else self.num_threads
        return (
            f"{type(self).__name__}({self.dataset!r}, batch_size={size}, num_workers={self.num_workers}, "
            f"num_threads={threads})"
        )

    @property
    def _dataset(self) -> Any:
        """The dataset that was passed."""
        return self.dataset.dataset if isinstance(self.dataset, NestedDataset) else self.dataset

    def __iter__(self) -> Any:
        return self._iterate(self._prefetcher)

    def _iterate(self, prefetcher: DevicePrefetcher | None) -> Any:
        """Iterate over batches on the prefetcher's device."""
        return self._received(partial(self._begin, prefetcher))

    def _received(self, begin: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        """An iterator of batches, from what begins one."""
        return begin()

    def _begin(self, prefetcher: DevicePrefetcher | None) -> Iterator[Batch]:
        if self.num_threads and not self.num_workers:
            batches: Iterator[Batch] = _ReadAheadIterator(self, prefetcher)
        else:
            begin, collate_fn = self.worker_init_fn, self.collate_fn
            # Only while torch takes them: trainers look at the user's own.
            self.worker_init_fn = partial(count_in, self._counters.table, begin)
            self.collate_fn = partial(collate_left, collate_fn)
            try:
                # Forked workers cannot make tensors on the user's default device.
                with torch.device("cpu"):
                    batches = super().__iter__()
            finally:
                self.worker_init_fn, self.collate_fn = begin, collate_fn
        return batches if prefetcher is None else prefetcher.ahead(batches)


class _Task(NamedTuple):
    """Batches that one thread loads one after another; where they are larger than usual, only the
    first of them.
    """

    positions: Sequence[Sequence[int]]
    loading: Future[_Loaded]


class _ReadAheadIterator(Iterator[Batch]):
    """One iteration. Threads start with the first batch and end with the iteration, or when it is
    dropped.

    A thread that delivers a batch wakes the thread that iterates, which costs as much as loading a
    hundred rows of numbers, and waits for the GIL. So fast batches are loaded and delivered several
    at once, at first one, then up to twice as many as in the task before.
    """

    def __init__(self, loader: ReadAheadLoader, prefetcher: DevicePrefetcher | None) -> None:
        self._loader = loader
        self._dataset: StagedDataset = loader.dataset  # type: ignore[assignment]
        # Now, as DataLoader does: a sampler may draw or warn.
        self._order = iter(self._batches)
        # As torch's iterator does: what the generator draws later must not depend on threads.
        torch.empty((), dtype=torch.int64, device="cpu").random_(generator=loader.generator)
        pins = None if prefetcher is None else prefetcher.pins
        if loader.pin_memory and pins is None and _can_pin():
            pins = Pins(pinned_bytes)
        # The collate_fn may run ahead only if it is ours and no user's transform comes before it.
        collate_fn: _Collate = loader.collate_fn
        is_ours = collate_fn is collate or isinstance(collate_fn, ColumnCollate)
        is_ahead = is_ours and not self._dataset._has_user_transform
        # A thread of the prefetcher pins what your transform made.
        self._ahead = collate_fn if is_ahead else None
        is_copied = pins is not None and pins.device is None
        self._collate_fn = partial(pins.collate, collate_fn) if is_copied else collate_fn  # type: ignore[union-attr]
        self._pins = pins if is_ahead else None
        if pins is not None:
            pins.share.num_threads = loader.num_threads
        # In memory the samples for a transform may be larger than in the files.
        most = _TASK_BYTES if self._ahead else _TASK_BYTES // 8
        self._task_bytes = min(most, _ALL_BYTES // (loader.num_threads + 1))
        self._tasks: deque[_Task] = deque()  # in order
        self._loaded: deque[_Outcome] = deque()  # results of tasks that have ended, in order
        self._salts: RandomStream | None = None
        self._pool = ThreadPoolExecutor(1)  # until the first batch; has no thread
        self._counters = loader._counters
        self._is_ended = self._is_interrupted = False
        self._pid = -1

    @property
    def _batches(self) -> Any:
        """The batches of positions."""
        loader = self._loader
        return loader.sampler if loader.batch_sampler is None else loader.batch_sampler

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Batch:
        if not is_profiling():
            return self._next_data()
        with record_function(f"enumerate(DataLoader)#{type(self).__name__}.__next__"):
            return self._next_data()

    def _next_data(self) -> Batch:
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

    def _next_batch(self) -> Batch:
        if self._pid != os.getpid():
            self._start()
            # those of before a fork
            self._tasks = deque(self._submit(task.positions) for task in self._tasks)
        # One more than there are threads, so that none waits for the training.
        while not self._is_ended and len(self._tasks) <= self._loader.num_threads:
            self._begin_task()
        ready = [len(task.positions) for task in self._tasks if task.loading.done()]
        num_ready = sum(ready, sum(map(_num_batches, self._loaded)))
        if not self._loaded:
            self._wait()
        outcome = self._loaded.popleft()
        count("queue", num_ready * _num_batches(outcome))
        loaded, error = outcome
        if error is not None:
            raise error
        if self._ahead is None:
            with helped_by(self._pool):
                return _finish(self._dataset, loaded, self._collate_fn)
        if self._pins is None:  # else nothing was hidden
            _show(loaded)
        return loaded

    def _start(self) -> None:
        """Start the threads, also those of a process that was forked meanwhile."""
        self._pool = ThreadPoolExecutor(
            self._loader.num_threads,
            "tfrecord-read-ahead",
            _begin_thread,
            (self._counters.table, torch.get_num_threads()),
        )
        self._pid = os.getpid()
        # Once the iterator is dropped, no further batch is started.
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False

    def _begin_task(self) -> None:
        positions: list[Sequence[int]] = []
        num_bytes, each = 0.0, self._loader._sample_bytes
        # the first batch alone: the training waits for it
        most = self._loader._at_once if self._tasks else 1
        try:
            while not self._is_ended and (
                not positions
                or (
                    len(positions) < most
                    and num_bytes + each * len(positions[0]) <= self._task_bytes
                )
            ):
                # Not islice: Lightning's batch sampler for predictions starts over with each
                # iter().
                batch = next(self._order, None)
                if batch is None:
                    self._is_ended = True
                else:
                    # Here, since threads would draw in an order that depends on timing.
                    positions.append(Leaves(self._dataset).salted(batch, self._draw_salt))
                    num_bytes += each * len(batch)
        finally:  # also the batches before an error of the sampler itself
            if positions:
                self._tasks.append(self._submit(positions))

    def _draw_salt(self) -> int:
        # One draw from torch's generator per iteration: how far ahead batches are started depends
        # on timing.
        if self._salts is None:
            self._salts = RandomStream(draw_salt())
        return self._salts.below(1 << 63)

    def _submit(self, positions: Sequence[Sequence[int]]) -> _Task:
        # Without a reference to this iterator, so that it can be dropped.
        loading = self._pool.submit(
            _load, self._dataset, positions, self._ahead, self._task_bytes, self._pins
        )
        return _Task(positions, loading)

    def _wait(self) -> None:
        """Wait for the task that is next."""
        if not self._tasks:
            self._pool.shutdown(wait=False)
            raise StopIteration
        task = self._tasks.popleft()
        outcomes, number, self._loader._at_once = task.loading.result()
        for loaded, error in outcomes:
            if isinstance(loaded, Cut) and self._pins.device is None:  # type: ignore[union-attr]
                self._loaded.extend((batch, None) for batch in loaded.on(loaded.blocks))
            else:
                self._loaded.append((loaded, error))
        if left := task.positions[number:]:
            self._tasks.appendleft(self._submit(left))


def _can_pin() -> bool:
    """Whether memory can be pinned, as torch decides it; else a warning, as torch's."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None and device.type != "mps":
        return True
    why = "no accelerator is found" if device is None else "not supported on MPS now"
    warn(f"'pin_memory' argument is set as true but {why}, device pinned memory won't be used.")
    return False


def _begin_thread(table: torch.Tensor, num_threads: int) -> None:
    count_in(table)
    # Else each thread of ours would start as many of torch's as there are cores.
    torch.get_num_threads()  # else torch would do so later, and take the number that was set last
    torch.set_num_threads(1)
    # So do threads that begin later: not 1 for the user's.
    with suppress(RuntimeError):  # the interpreter ends
        other = threading.Thread(target=torch.set_num_threads, args=(num_threads,))
        other.start()
        other.join()


def _load(
    dataset: StagedDataset,
    batches: Sequence[Sequence[int]],
    collate_fn: _Collate | None,
    most_bytes: int,
    pins: Pins | None = None,
) -> _Loaded:
    """The batches of a task, or the first of them. Where one fails, each is loaded alone, to find
    out which.
    """
    begin, worked = perf_counter(), thread_time()

    def load(several: Sequence[Sequence[int]]) -> list[Batch | Samples]:
        is_one = len(several) == 1
        found = [dataset._load_samples(several[0])] if is_one else dataset._load_batches(several)
        return [
            samples if collate_fn is None else _finish(dataset, samples, collate_fn)
            for samples in found
        ]

    def made(several: Sequence[Sequence[int]], *, is_last: bool = False) -> list[Any]:
        if pins is None:
            native = native_module("columns")
            if native is None or collate_fn is None:
                return load(several)
            native.hide(True)
            try:
                return load(several)
            finally:
                native.hide(False)
        again = None if is_last else partial(each, several, is_last=True)
        return [pins.make(partial(load, several), len(several), again)]

    def each(several: Sequence[Sequence[int]], *, is_last: bool = False) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        for positions in several:
            try:
                outcomes += [(batch, None) for batch in made([positions], is_last=is_last)]
            except Exception as error:
                outcomes.append((None, error))
        return outcomes

    found: list[_Outcome] = []
    if len(batches) > 1:
        with suppress(Exception):
            found = [(batch, None) for batch in made(batches)]
    found = found or each(batches)
    # With the GIL or without it, but not waiting for it.
    worked = thread_time() - worked
    most = _MOST_BATCHES
    if perf_counter() - begin < worked * 9 / 8:
        # Those that are pinned are copied together.
        most = _FEW_BATCHES if pins is None else 2 * _FEW_BATCHES
        most_bytes = min(_FEW_BYTES, most_bytes)
    number = sum(map(_num_batches, found))
    fit = _TASK_SECONDS * number // (worked or 1e-6)
    fit_bytes = most_bytes // max(_num_bytes(found[-1][0]), 1)
    return found, number, max(int(min(fit, fit_bytes, 2 * number, most)), 1)


def _show(batch: object) -> None:
    """Show the lists of a batch to the garbage collector, now that anything may be put into them."""
    if isinstance(batch, (dict, tuple)):
        for column in batch.values() if isinstance(batch, dict) else batch:
            if not isinstance(column, torch.Tensor):
                _show(column)
    elif type(batch) is list and (native := native_module("columns")) is not None:
        native.show(batch)


def _num_batches(outcome: _Outcome) -> int:
    return len(outcome[0].batches) if isinstance(outcome[0], Cut) else 1


def _num_bytes(batch: object) -> int:
    """The tensors of a batch have these."""
    if isinstance(batch, Cut):
        return sum(block.nbytes for block in batch.blocks) // len(batch.batches)
    if isinstance(batch, torch.Tensor):
        return 0 if batch.is_sparse else batch.nbytes
    if isinstance(batch, Mapping):
        batch = batch.values()
    return sum(map(_num_bytes, batch)) if isinstance(batch, (tuple, ValuesView)) else 0


def _finish(dataset: StagedDataset, samples: Samples, collate_fn: _Collate) -> Batch:
    """The batch of loaded samples."""
    return collate_left(collate_fn, check_left(dataset._transform_samples(samples), dataset))


def collate_left(collate_fn: _Collate, samples: Samples) -> Batch:
    """Collate what is left of a batch; LEFT_OUT if that is nothing."""
    count("samples", len(samples))
    count("made")
    with Phase("collate"):
        return collate_fn(samples) if len(samples) else LEFT_OUT
