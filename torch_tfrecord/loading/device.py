"""Batches on their way to an accelerator: copied from pinned memory, a few of them ahead.

A stream copies from pinned memory on its own, while Python goes on. So the source is kept until the
event after the copy has passed, and the stream that uses a batch waits for that event.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import torch

from torch_tfrecord.arguments import at_least
from torch_tfrecord.loading.pinned import Blocks, Cut, Pins, pinned_bytes
from torch_tfrecord.samples import Batch
from torch_tfrecord.torch_internals import is_in_bad_fork, next_batch, workers_of

__all__ = [
    "DevicePrefetcher",
    "Event",
]


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether it has passed."""


class Streams:
    """A device of torch's, with a stream for the copies alone. Safe from several threads.

    Raises:
        ValueError: There is no such device on this machine.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pid = device, -1
        self._module: Any = torch.get_device_module(device)
        self._check_fork()
        found = torch.accelerator.current_accelerator(check_available=True)
        number = torch.accelerator.device_count()
        if found is None or found.type != device.type or (device.index or 0) >= number:
            there = "no accelerator" if found is None else f"{number} of type {found.type!r}"
            raise ValueError(
                f"device {str(device)!r} is not there: torch {torch.__version__} finds {there} on this machine; "
                "expected one of these, or 'cpu'"
            )

    def _check_fork(self) -> None:
        if is_in_bad_fork(self._module):
            raise RuntimeError(
                f"device {str(self._device)!r} cannot be used in a forked process, since its parent had begun to use "
                "it: start processes by torch.multiprocessing.get_context('spawn'), and make the loader there"
            )

    def open(self) -> None:
        """Begin in this process; called by the thread that iterates, before all else."""
        if self._pid == os.getpid():
            return
        self._check_fork()
        # With its index: other threads have another current device. And begun, so that they do not
        # begin with another one when they pin memory.
        self._device = torch.empty(0, device=self._device).device
        # mps has none, and shares the host's memory
        self._stream = (
            self._module.Stream(self._device) if hasattr(self._module, "Stream") else None
        )
        self._pid = os.getpid()

    def pinned(self, size: int) -> torch.Tensor:
        """Memory of the host from which a stream copies on its own: uint8 [size], not cleared."""
        return (
            pinned_bytes(size)
            if self._stream
            else torch.empty(size, dtype=torch.uint8, device="cpu")
        )

    def copy(self, hosts: Sequence[torch.Tensor]) -> tuple[Blocks, Event | None]:
        """Begin to copy to the device, and the event that follows; None if all is done."""
        blocks = Blocks()

        def copy() -> None:
            # From the tensor that torch allocated, so that it knows of the copy, too.
            for host in hosts:
                blocks.append(host.to(self._device, non_blocking=bool(self._stream)))

        return blocks, self.run(copy)

    def run(self, function: Callable[[], None]) -> Event | None:
        """Call it with the stream of the copies as the current one; the event that follows."""
        if self._stream is None:
            function()
            return None
        with self._module.stream(self._stream):
            function()
            event: Event = self._stream.record_event()
            return event

    def is_idle(self) -> bool:
        """Whether the current stream has nothing to do."""
        return self._stream is None or self._module.current_stream(self._device).query()

    def wait(
        self, event: Event | None, blocks: Sequence[torch.Tensor], before: object = None
    ) -> object:
        """Let the current stream wait for the event, before it uses the blocks, unless it is the
        stream that this returned before for the same event; returns it.
        """
        if event is None:
            return None
        current = self._module.current_stream(self._device)
        if current != before:  # each of these calls lets go of the GIL
            current.wait_event(event)
            for block in blocks:  # whose memory is not used again before this stream is done
                block.record_stream(current)
        return current


accelerator_of: Callable[[torch.device], Streams] = Streams
"""Makes what copies to a device."""


# Ahead of the training.


# Batches, copies of their blocks that may be under way, and the event after them; or an error.
_Coming: TypeAlias = "tuple[Cut, Blocks, Event | None] | Exception"
# A device that waits longer for a batch is hungry.
_HUNGRY_SECONDS = 0.001


class DevicePrefetcher(Iterable[Batch]):
    """Batches of any loader on a device, copied while you train on the ones before.

    Each batch is copied from pinned memory by a stream of its own, and the stream in which you ask
    for it waits for the copy, not Python. Tensors in dicts, lists and tuples, jagged, ragged and
    sparse ones, and objects with a method ``to`` move; bytes, str and numbers stay. A loader of ours
    makes its batches in pinned memory; those of others are copied there by a thread.

    Everything else is the loader's: ``len``, ``set_epoch``, ``state_dict``, ... The state of a loader from
    `make_dataloader` counts the batches that you have received. (``make_dataloader(...,
    device=device)`` is the same in one object.)

    Args:
        loader: Gives batches: `RecordLoader`, a DataLoader, or anything that can be iterated.
        device: Where batches go: "cuda", "cuda:1", ... With "cpu" they are passed on as they are.
        depth: Batches that are on the device, or on their way, besides the one that you have.

    Raises:
        RuntimeError: In a process that was forked after its parent had begun to use the device.
        ValueError: The device is not there, or `depth` is smaller than 1.

    Example:
        >>> for batch in DevicePrefetcher([{"x": torch.ones(2)}], "cpu"):
        ...     print(batch["x"].device)
        cpu
    """

    def __init__(
        self, loader: Iterable[Batch], device: torch.device | str | int, depth: int = 2
    ) -> None:
        self.loader, self.device = loader, torch.device(device)
        self.depth = at_least(1, "depth", depth)
        self._lock, self._held = Lock(), deque[tuple[Event, Sequence[torch.Tensor]]]()
        self.accelerator: Streams | None = None
        self.pins: Pins | None = None
        if self.device.type != "cpu":
            self.accelerator = accelerator_of(self.device)
            self.pins = Pins(self.accelerator.pinned, self.device)

    def __iter__(self) -> Iterator[Batch]:
        iterate = getattr(self.loader, "_iterate", None)
        found: Iterator[Batch] = self.ahead(iter(self.loader)) if iterate is None else iterate(self)
        return found

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches on the device; they may be in pinned memory, as `pins` returns them."""
        return batches if self.accelerator is None else _Ahead(batches, self, self.accelerator)

    def begin(self, batch: Batch | Cut) -> list[_Coming]:
        """Begin to copy a batch, which waits for nothing if it is in pinned memory, and make what is
        left to the device.
        """
        cut = batch if isinstance(batch, Cut) else self.pins.cut([batch])  # type: ignore[union-attr]
        blocks, event = self._copy(cut)
        if cut.left:
            try:
                event = self._make(cut, blocks)
            except Exception as error:
                self.pins.share.ended(error)  # type: ignore[union-attr]
                found = cut.again()  # type: ignore[misc]
                return [problem or (made, *self._copy(made)) for made, problem in found]
        return [(cut, blocks, event)]

    def _copy(self, cut: Cut) -> tuple[Blocks, Event | None]:
        with self._lock:
            blocks, event = self.accelerator.copy(cut.blocks)  # type: ignore[union-attr]
            # Not by the iterator: it may be dropped before the copies are done.
            while self._held and self._held[0][0].query():
                self._held.popleft()
            if event is not None:
                self._held.append((event, cut.blocks))
        return blocks, event

    def _make(self, cut: Cut, blocks: Blocks) -> Event | None:
        def make() -> None:
            for work, (number, place) in cut.left:
                work.on(blocks[number][place])

        begin = perf_counter()
        event = self.accelerator.run(make)  # type: ignore[union-attr]
        share = self.pins.share  # type: ignore[union-attr]
        share.took("device", sum(len(work) for work, _ in cut.left), perf_counter() - begin)
        share.ended(None)
        return event


class _Ahead(Iterator[Batch]):
    """One iteration. Your thread takes the batches from the loader, so that a transform runs in it
    and errors come in their order. Batches that a thread made together are copied together.
    """

    def __init__(
        self, batches: Iterator[Batch], prefetcher: DevicePrefetcher, accelerator: Streams
    ) -> None:
        self._batches, self._prefetcher, self._accelerator = batches, prefetcher, accelerator
        self._share = prefetcher.pins.share  # type: ignore[union-attr]
        self._workers = workers_of(batches)  # who are looked at where a batch is lost
        # Each waits for its batches; those that are there need no Future, which costs a lock.
        self._coming: deque[Callable[[], list[_Coming]]] = deque()
        self._arrived: deque[_Coming] = deque()
        self._here: deque[Batch] = deque()  # on the device once the event has passed
        self._blocks: Blocks = []
        self._event: Event | None = None
        self._waits: object = None  # the stream that waits for it already
        self._num_ahead = self._num_given = 0
        self._is_ended = False
        self._pool = ThreadPoolExecutor(1, "tfrecord-pin")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False

    def __next__(self) -> Batch:
        self._accelerator.open()
        begin = perf_counter()
        # One more each time: the first batch does not wait for those after it.
        most = min(self._num_given, self._prefetcher.depth)
        while not self._is_ended and self._num_ahead <= most:
            self._take()
        if not self._here:
            self._arrive()
        self._num_ahead -= 1
        self._num_given += 1
        is_hungry = perf_counter() - begin > _HUNGRY_SECONDS and self._accelerator.is_idle()
        self._share.waited(is_hungry)
        # For each batch: you may ask for it in another stream.
        self._waits = self._accelerator.wait(self._event, self._blocks, self._waits)
        batch = self._here.popleft()
        if not self._here:
            self._blocks = []
        return batch

    def _arrive(self) -> None:
        if not self._arrived:
            if not self._coming:
                raise StopIteration
            # If this is interrupted, nothing is lost.
            self._arrived.extend(self._coming[0]())
            self._coming.popleft()
        found = self._arrived.popleft()
        if isinstance(found, Exception):
            self._num_ahead -= 1
            raise found
        cut, self._blocks, self._event = found
        self._waits = None
        self._here.extend(cut.on(self._blocks))

    def _take(self) -> None:
        self._num_ahead += 1
        try:
            batch = next_batch(self._batches)
            if isinstance(batch, Cut):
                self._num_ahead += len(batch.batches) - 1
            if isinstance(batch, Cut) and not batch.left:
                coming = self._prefetcher.begin(batch).copy
            else:
                coming = self._pool.submit(self._prefetcher.begin, batch).result
        except StopIteration:
            self._is_ended = True
            self._num_ahead -= 1
            return
        except Exception as error:  # which comes after the batches before it
            coming = [error].copy  # type: ignore[assignment]
        self._coming.append(coming)
