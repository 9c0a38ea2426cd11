"""How long each part of a loader's work takes: named phases, which torch's profiler shows as
``torch_tfrecord::read`` and so on, and what the processes of one loader count of them.

The threads of a process add to one row without a lock, which a fork could copy while it is held:
CPython does not switch threads within such an addition.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from operator import truediv
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
    from torch.profiler import record_function

__all__ = ["PHASES", "Counters", "Phase", "count", "count_in", "spent"]

PHASES = ("read", "parse", "decode", "transform", "collate", "transport")
"""The parts of making a batch, in their order."""

_COUNTED = ("wait", "queue", *PHASES, "bytes", "on_device", "samples", "made", "batches")
_NUMBERS = {name: number for number, name in enumerate(_COUNTED)}


class _Thread(threading.local):
    """Where a thread counts, and the seconds of the phases inside the one that it is in."""

    row: npt.NDArray[np.float64] | None = None
    inner = 0.0


_THREAD = _Thread()


def count(name: str, number: float = 1) -> None:
    """Add to what this thread's loader counts, if it has one."""
    row = _THREAD.row
    if row is not None:
        row[_NUMBERS[name]] += number


class Phase:
    """Count what runs inside the ``with`` block as this phase, but for the phases inside it.

    For whole batches: it takes about a microsecond.

    Args:
        name: One of `PHASES`, or "wait", which includes the phases inside it.

    Example:
        >>> with Phase("read"):
        ...     data = b"record"
    """

    __slots__ = ("_begin", "_name", "_outer", "_shown")

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown: record_function | None = None
        # Records are read without torch, too.
        internals = sys.modules.get("torch_tfrecord.torch_internals")
        if getattr(internals, "is_profiling", bool)():
            from torch.profiler import record_function

            self._shown = record_function(f"torch_tfrecord::{name}")

    def __enter__(self) -> None:
        if self._shown is not None:
            self._shown.__enter__()
        self._outer, _THREAD.inner, self._begin = _THREAD.inner, 0.0, perf_counter()

    def __exit__(self, *error: object) -> None:
        seconds = perf_counter() - self._begin
        count(self._name, seconds if self._name == "wait" else seconds - _THREAD.inner)
        _THREAD.inner = self._outer + seconds
        if self._shown is not None:
            self._shown.__exit__(*error)


def spent(name: str, seconds: float) -> None:
    """Count seconds of the phase around this as another one's."""
    count(name, seconds)
    _THREAD.inner += seconds


class Counters:
    """The counts of one iteration of a loader.

    Args:
        num_workers: Worker processes.

    Attributes:
        table: float64 [workers + 1, what is counted]: the row of the process that iterates, and
            then those of the workers, for which it is in shared memory.
    """

    def __init__(self, num_workers: int = 0) -> None:
        import torch

        self.table = torch.zeros(num_workers + 1, len(_COUNTED), dtype=torch.float64, device="cpu")
        if num_workers:
            self.table.share_memory_()
        self._row = self.table[0].numpy()
        self.begin()

    def begin(self) -> None:
        """Begin another iteration; workers that persist may still add to the one before."""
        self._before, self._begin, self._seconds = self.table.sum(0), perf_counter(), 0.0

    def receive(self, batches: Iterator[object]) -> object:
        """The next batch; counts the wait for it, and what this thread does meanwhile."""
        from torch_tfrecord.torch_internals import next_batch

        before, _THREAD.row = _THREAD.row, self._row
        try:
            with Phase("wait"):
                batch = next_batch(batches)
            count("batches")
            return batch
        finally:
            _THREAD.row, self._seconds = before, perf_counter() - self._begin

    def stats(self) -> dict[str, float | int]:
        """See `RecordLoader.stats`."""
        *sums, samples, made, batches = (self.table.sum(0) - self._before).tolist()
        # The first two are counted when you take a batch, the others when it is made.
        numbers = [max(batches, 1)] * 2 + [max(made, 1)] * len(sums)
        found = dict(zip(_COUNTED, map(truediv, sums, numbers), strict=False))
        if len(self.table) > 1:
            del found["queue"]  # only threads are known
        if not found["on_device"]:
            del found["on_device"]
        samples = round(samples / numbers[-1] * batches)
        return {"batches": int(batches), "samples": samples, "seconds": self._seconds, **found}


def count_in(
    table: torch.Tensor, begin: Callable[[int], object] | None = None, worker: int = -1
) -> None:
    """Let this thread count in the row of the process that iterates, or all of a worker's threads
    in its row; then call the user's own ``worker_init_fn``.
    """
    _THREAD.row = table[worker + 1].numpy()
    if worker >= 0:
        _Thread.row = _THREAD.row  # a thread of multiprocessing sends the batches
    if begin is not None:
        begin(worker)
