"""Batches on their way to an accelerator: made in pinned memory, copied once, a few of them ahead.

A stream copies from pinned memory on its own, while Python goes on. So the source is kept until the
event after the copy has passed, and the stream that uses a batch waits for that event.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from functools import partial
from itertools import accumulate
from math import inf
from operator import methodcaller, mul
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import at_least
from torch_tfrecord.batch_memory import BORN_IN
from torch_tfrecord.columns.containers import RaggedTensor
from torch_tfrecord.columns.stacking import WHOLE_KINDS
from torch_tfrecord.loading.sample import is_plain
from torch_tfrecord.loading.transport import Node, Packer, View, build, view_of
from torch_tfrecord.samples import Batch, Samples, Value, Values
from torch_tfrecord.torch_internals import is_in_bad_fork, next_batch, workers_of

__all__ = [
    "Accelerator",
    "DevicePrefetcher",
    "Event",
    "Pins",
    "Streams",
    "accelerator_of",
    "pinned_bytes",
]

# So that any dtype views a whole block.
_ALIGNMENT = 16
# Lists of these alone stay as they are.
_SCALARS = {bytes, str, int, float, bool, type(None)}

_Blocks: TypeAlias = list[torch.Tensor]
_T = TypeVar("_T")


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Whether it has passed."""


class Accelerator(Protocol):
    """All that is asked of a device."""

    def open(self) -> None:
        """Begin in this process; called by the thread that iterates, before all else."""

    def pinned(self, size: int) -> torch.Tensor:
        """Memory of the host from which a stream copies on its own: uint8 [size], not cleared."""

    def copy(self, hosts: Sequence[torch.Tensor]) -> tuple[_Blocks, Event | None]:
        """Begin to copy to the device, and the event that follows; None if all is done."""

    def wait(self, event: Event | None, blocks: Sequence[torch.Tensor]) -> None:
        """Let the current stream wait for the event, before it uses the blocks."""


class Streams:
    """A device of torch's, with a stream for the copies alone. Safe from several threads.

    Raises:
        ValueError: There is no such device on this machine.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pid = device, -1
        self._module: Any = torch.get_device_module(device)
        self._check_fork()
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
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
        """See `Accelerator`."""
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
        """See `Accelerator`."""
        return pinned_bytes(size) if self._stream else torch.empty(size, dtype=torch.uint8)

    def copy(self, hosts: Sequence[torch.Tensor]) -> tuple[_Blocks, Event | None]:
        """See `Accelerator`."""
        if self._stream is None:
            return [host.to(self._device) for host in hosts], None
        with self._module.stream(self._stream):
            # From the tensor that torch allocated, so that it knows of the copy, too.
            blocks = [host.to(self._device, non_blocking=True) for host in hosts]
            return blocks, self._stream.record_event()

    def wait(self, event: Event | None, blocks: Sequence[torch.Tensor]) -> None:
        """See `Accelerator`."""
        if event is None:
            return
        current = self._module.current_stream(self._device)
        current.wait_event(event)
        for block in blocks:  # whose memory is not used again before this stream is done with it
            block.record_stream(current)


accelerator_of: Callable[[torch.device], Accelerator] = Streams
"""What copies to a device."""


def pinned_bytes(size: int) -> torch.Tensor:
    """Pinned memory: uint8 [size], not cleared; used again once no copy from it is under way."""
    # also where the default device is another
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


# Where the tensors of a batch are.


class _Layout(NamedTuple):
    """A batch as views of a few blocks, which are uint8; for a device with offsets in items."""

    node: Node
    blocks: tuple[torch.Tensor, ...]
    views: Sequence[View]

    def on_host(self) -> Batch:
        """The batch, without a copy."""
        memories = [block.numpy().data for block in self.blocks]
        return build([view_of(memories[view[0]], view) for view in self.views], self.node)

    def on(self, blocks: _Blocks) -> Batch:
        """The batch as views of copies of the blocks, with one call of torch for each."""
        typed: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        tensors = []
        for number, offset, dtype, shape, strides in self.views:
            whole = typed.get((number, dtype))
            if whole is None:
                whole = typed[number, dtype] = blocks[number].view(dtype)
            tensor = whole.as_strided(shape, strides or (), offset)
            tensors.append(tensor.data)  # with its own version counter: see `view_of`
        return build(tensors, self.node)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a contiguous tensor."""
    return (*accumulate(shape[:0:-1], mul, initial=1),)[::-1][: len(shape)]


class _PinnedPacker(Packer):
    """Finds the tensors of a batch in blocks, and copies all others into a new one."""

    def __init__(self, pins: Pins) -> None:
        super().__init__(None)
        self._pins, self._most_bytes = pins, inf
        self._born: _Blocks = []

    def node(self, part: Batch) -> Node:
        """See `Packer`; here parts may be of any kind."""
        kind = type(part)
        if isinstance(part, WHOLE_KINDS):
            return False, part
        if kind in (dict, tuple, list) or isinstance(part, (torch.Tensor, RaggedTensor)):
            return super().node(part)
        if isinstance(part, Mapping):
            return partial(_refill, part), *map(self.node, part.values())
        if hasattr(part, self._pins.method):
            return self._pins.whole, (False, part)
        is_named = isinstance(part, tuple) and hasattr(part, "_fields")
        return (kind, *map(self.node, part)) if is_named else (False, part)

    def message(self) -> Any:
        """See `Packer`; with the blocks of this batch alone, or nearly."""
        _, born = BORN_IN.get() or (None, [])
        born.sort(key=torch.Tensor.data_ptr)
        addresses = [*map(torch.Tensor.data_ptr, born)]
        used: Counter[int] = Counter()
        for tensor in self._tensors:
            used[bisect(addresses, tensor.data_ptr()) - 1] += tensor.nbytes
        # Less than half of a block, which several batches share, is copied on the host.
        self._born = [
            block for number, block in enumerate(born) if 2 * used[number] >= block.nbytes
        ]
        return super().message()

    def _list(self, values: Values, kinds: set[type]) -> Node:
        if kinds <= _SCALARS:
            return False, values
        items = super().node(tuple(values))
        stays = all(node[0] is False for node in items[1:])
        return (False, values) if stays else (list, items)

    def _tensor(self, tensor: torch.Tensor) -> Node:
        if isinstance(tensor, tv_tensors.TVTensor) and is_plain(tensor) and tensor.numel():
            plain = tensor.as_subclass(torch.Tensor)
            return partial(tv_tensors.wrap, like=tensor), self._place(plain)
        node = super()._tensor(tensor)
        return (self._pins.whole, node) if node[0] is False else node

    def _made_here(self, tensor: torch.Tensor) -> View | None:
        address = tensor.data_ptr()
        for block in self._born:
            offset = address - block.data_ptr()
            if 0 <= offset < block.nbytes and not offset % tensor.itemsize:
                number = self._starts.setdefault(block.data_ptr(), len(self._memories))
                if number == len(self._memories):
                    self._memories.append(block)
                strides = None if tensor.is_contiguous() else tensor.stride()
                return number, offset, tensor.dtype, tuple(tensor.shape), strides
        return None

    def _new(self, num_bytes: int) -> memoryview:
        block = self._pins.block(num_bytes)
        self._memories.append(block)
        return block.numpy().data


def _refill(like: Mapping[object, Value], *values: Value) -> Batch:
    """A mapping of the same kind with other values."""
    found: Any = copy(like)
    found.update(zip(like, values, strict=True))
    return found


class Pins:
    """Makes batches in pinned memory, for a device or, if that is None, for you.

    Args:
        allocate: Pinned memory: uint8 [size].
        device: Where its batches go.
    """

    def __init__(
        self, allocate: Callable[[int], torch.Tensor], device: torch.device | None = None
    ) -> None:
        self._allocate, self._device = allocate, device
        self.method = "pin_memory" if device is None else "to"
        self.whole = methodcaller(self.method, *[] if device is None else [device])

    def block(self, num_bytes: int) -> torch.Tensor:
        """Memory of at least that many bytes."""
        return self._allocate(-(-num_bytes // _ALIGNMENT) * _ALIGNMENT)

    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function of which large columns are made in pinned memory."""
        context = copy_context()
        context.run(BORN_IN.set, (self.block, []))
        return context.run(function, *args)

    def collate(self, collate_fn: Callable[[Samples], Batch], samples: Samples) -> Batch:
        """A batch as a `collate_fn` makes it, in pinned memory."""
        return self(collate_fn(samples))

    def __call__(self, batch: Batch) -> Batch:
        """The batch in pinned memory, or what `DevicePrefetcher` copies."""
        packer = _PinnedPacker(self)
        node = packer.node(batch)
        _, blocks, views = packer.message()
        if self._device is None:
            return _Layout(node, (*blocks,), views).on_host()
        in_items = [
            (number, offset // dtype.itemsize, dtype, shape, strides or _strides(shape))
            for number, offset, dtype, shape, strides in views
        ]
        return _Layout(node, (*blocks,), in_items)


# Ahead of the training.


# A batch, copies of its blocks that may be under way, and the event after them.
_Coming: TypeAlias = tuple[_Layout, _Blocks, Event | None]


class DevicePrefetcher(Iterable[Batch]):
    """Batches of any loader on a device, copied while you train on the ones before.

    Each batch is copied from pinned memory by a stream of its own, and the stream in which you ask
    for it waits for the copy, not Python. Tensors in dicts, lists and tuples, jagged, ragged and
    sparse ones, and objects with a method ``to`` move; bytes, str and numbers stay. A loader of ours
    makes its batches in pinned memory; those of others are copied there by a thread.

    Everything else is the loader's: ``len``, ``set_epoch``, ``state_dict``, ... Of a loader from
    `make_dataloader` the state counts the batches that you have received. (``make_dataloader(...,
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
        self.accelerator: Any = None
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
        return batches if self.accelerator is None else _Ahead(batches, self)

    def begin(self, batch: Batch) -> _Coming:
        """Begin to copy a batch, which waits for nothing if it is in pinned memory."""
        layout = batch if isinstance(batch, _Layout) else self.pins(batch)  # type: ignore[misc]
        with self._lock:
            blocks, event = self.accelerator.copy(layout.blocks)
            # Not by the iterator: it may be dropped before the copies are done.
            while self._held and self._held[0][0].query():
                self._held.popleft()
            if event is not None:
                self._held.append((event, layout.blocks))
        return layout, blocks, event


class _Ahead(Iterator[Batch]):
    """One iteration. Your thread takes the batches from the loader, so that a transform runs in it
    and errors come in their order.
    """

    def __init__(self, batches: Iterator[Batch], prefetcher: DevicePrefetcher) -> None:
        self._batches, self._prefetcher = batches, prefetcher
        self._workers = workers_of(batches)  # who are looked at where a batch is lost
        self._coming: deque[Future[_Coming]] = deque()
        self._num_given = 0
        self._is_ended = False
        self._pool = ThreadPoolExecutor(1, "tfrecord-pin")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False

    def __next__(self) -> Batch:
        accelerator = self._prefetcher.accelerator
        accelerator.open()
        # One more each time: the first batch does not wait for those after it.
        while not self._is_ended and len(self._coming) <= min(
            self._num_given, self._prefetcher.depth
        ):
            self._take()
        if not self._coming:
            raise StopIteration
        self._coming[0].exception()  # waits, and if that is interrupted, the batch is not lost
        self._num_given += 1
        layout, blocks, event = self._coming.popleft().result()
        accelerator.wait(event, blocks)
        return layout.on(blocks)

    def _take(self) -> None:
        coming: Future[_Coming] = Future()
        try:
            batch = next_batch(self._batches)
            if isinstance(batch, _Layout):
                coming.set_result(self._prefetcher.begin(batch))
            else:
                coming = self._pool.submit(self._prefetcher.begin, batch)
        except StopIteration:
            self._is_ended = True
            return
        except Exception as error:  # which comes after the batches before it
            coming.set_exception(error)
        self._coming.append(coming)
