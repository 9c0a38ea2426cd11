"""Batches on their way to an accelerator: made in pinned memory, copied once, a few of them ahead.

A stream copies from pinned memory on its own, while Python goes on. So the source is kept until the
event after the copy has passed, and the stream that uses a batch waits for that event.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from functools import lru_cache, partial
from math import inf, prod
from operator import methodcaller
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.arguments import at_least
from torch_tfrecord.batch_memory import BORN_IN
from torch_tfrecord.columns import RaggedTensor
from torch_tfrecord.loading.sample import is_plain
from torch_tfrecord.loading.transport import Node, Packer, View, build, span
from torch_tfrecord.samples import WHOLE_KINDS, Batch, Samples, Value, Values
from torch_tfrecord.torch_internals import is_in_bad_fork, next_batch, workers_of

__all__ = [
    "Accelerator",
    "Cut",
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


class _Piece(NamedTuple):
    """Items of one dtype, from the start of a block to its end, that are cut into tensors."""

    block: int
    dtype: torch.dtype
    sizes: list[int]


# A tensor's number among all that are cut, its shape and strides.
_Place: TypeAlias = tuple[int, tuple[int, ...], "tuple[int, ...] | None"]


class Cut(NamedTuple):
    """Batches as pieces of pinned blocks: few calls of torch cut them into tensors, since each lets
    go of the GIL.
    """

    node: Node
    blocks: _Blocks
    pieces: list[_Piece]
    places: list[_Place]
    # As they were made: a tensor that is dropped asks for the GIL twice, and who trains has it.
    batches: list[Batch]

    def on(self, blocks: _Blocks) -> list[Batch]:
        """The batches as views of these blocks, or of their copies: torch then knows to which
        pinned memory they belong.
        """
        cut: list[torch.Tensor] = []
        for number, dtype, sizes in self.pieces:
            # Each has a version counter of its own, as in `view_of`; those of `split` share one.
            cut += torch.unsafe_split_with_sizes(blocks[number].view(dtype), sizes)
        tensors = [
            cut[number]
            if len(shape) == 1 and strides is None
            else cut[number].as_strided(shape, strides)
            if strides
            else cut[number].view(shape)
            for number, shape, strides in self.places
        ]
        return cast("list[Batch]", build(tensors, self.node))


@lru_cache(maxsize=64)
def _pieces_of(
    sizes: tuple[int, ...], views: tuple[View, ...]
) -> tuple[list[_Piece], list[_Place]]:
    """How blocks of so many bytes are cut into tensors."""
    pieces: list[_Piece] = []
    places: list[_Place] = [(0, (), None)] * len(views)
    end = num_cut = 0

    def add(size: int) -> None:
        nonlocal end, num_cut
        if size:
            pieces[-1].sizes.append(size)
            end, num_cut = end + size, num_cut + 1

    def end_piece() -> None:
        if pieces:
            add(sizes[pieces[-1].block] // pieces[-1].dtype.itemsize - end)

    by_place = sorted(enumerate(views), key=lambda item: (item[1][0], str(item[1][2]), item[1][1]))
    for number, (block, offset, dtype, shape, strides) in by_place:
        begin = offset // dtype.itemsize
        if not pieces or pieces[-1][:2] != (block, dtype) or begin < end:
            end_piece()
            pieces.append(_Piece(block, dtype, []))
            end = 0
        add(begin - end)
        places[number] = num_cut, shape, strides
        add(prod(shape) if strides is None else span(shape, strides))
    end_piece()
    return pieces, places


class _Born:
    """Pinned memory for a few batches of about the same size, in few blocks."""

    def __init__(self, pins: Pins, num_batches: int) -> None:
        self._pins, self._num_batches = pins, num_batches
        self.blocks: _Blocks = []
        self._free: list[npt.NDArray[np.uint8]] = []

    def __call__(self, size: int) -> npt.NDArray[np.uint8]:
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        fits = [number for number, free in enumerate(self._free) if len(free) >= taken]
        if not fits:
            fits = [len(self.blocks)]
            self.blocks.append(self._pins.block(taken * self._num_batches))
            self._free.append(self.blocks[-1].numpy())
        free = self._free[fits[0]]
        self._free[fits[0]] = free[taken:]
        return free[:size]


class _PinnedPacker(Packer):
    """Finds the tensors of batches in blocks, and copies all others into a new one."""

    def __init__(self, pins: Pins, born: Sequence[torch.Tensor]) -> None:
        super().__init__(None)
        self._pins, self._most_bytes = pins, inf
        self._born = sorted((block.data_ptr(), block) for block in born)
        self._starts_at = [start for start, _ in self._born]

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

    def _list(self, values: Values, kinds: set[type]) -> Node:
        if kinds <= _SCALARS:
            return False, values
        items = super().node(tuple(values))
        stays = all(node[0] is False for node in items[1:])
        return (False, values) if stays else (list, items)

    def _tensor(self, tensor: torch.Tensor) -> Node:
        if (
            type(tensor) is torch.Tensor
            and tensor.layout == torch.strided
            and self._born_in(tensor)
        ):
            return self._place(tensor)  # ours: there is nothing to ask, which lets go of the GIL
        if isinstance(tensor, tv_tensors.TVTensor) and is_plain(tensor) and tensor.numel():
            plain = tensor.as_subclass(torch.Tensor)
            return partial(tv_tensors.wrap, like=tensor), self._place(plain)
        node = super()._tensor(tensor)
        return (self._pins.whole, node) if node[0] is False else node

    def _born_in(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor] | None:
        number = bisect(self._starts_at, tensor.data_ptr()) - 1
        if number < 0:
            return None
        start, block = self._born[number]
        return self._born[number] if tensor.data_ptr() < start + block.nbytes else None

    def _made_here(self, tensor: torch.Tensor) -> View | None:
        start, block = self._born_in(tensor) or (0, None)
        offset = tensor.data_ptr() - start
        if block is None or offset % tensor.itemsize:
            return None
        memory = self._starts.setdefault(start, len(self._memories))
        if memory == len(self._memories):
            self._memories.append(block)
        strides = None if tensor.is_contiguous() else tensor.stride()
        return memory, offset, tensor.dtype, tuple(tensor.shape), strides

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
        self._allocate, self.device = allocate, device
        self.method = "pin_memory" if device is None else "to"
        self.whole = methodcaller(self.method, *[] if device is None else [device])

    def block(self, num_bytes: int) -> torch.Tensor:
        """Memory of at least that many bytes."""
        return self._allocate(-(-num_bytes // _ALIGNMENT) * _ALIGNMENT)

    def make(self, function: Callable[[], list[Batch]], num_batches: int) -> Cut:
        """What a function makes, large columns of it at once in pinned memory.

        Args:
            function: Makes at most `num_batches` batches.
            num_batches: How many are expected.
        """
        context, born = copy_context(), _Born(self, num_batches)
        context.run(BORN_IN.set, born)
        return self.cut(context.run(function), born.blocks)

    def cut(self, batches: list[Batch], born: Sequence[torch.Tensor] = ()) -> Cut:
        """Batches in pinned memory; what is in `born` already is not copied."""
        packer = _PinnedPacker(self, born)
        node = packer.node(batches)
        _, found, views = packer.message()
        blocks = cast("_Blocks", found)
        sizes = tuple(block.nbytes for block in blocks)
        return Cut(node, blocks, *_pieces_of(sizes, (*views,)), batches)

    def collate(self, collate_fn: Callable[[Samples], Batch], samples: Samples) -> Batch:
        """A batch as a `collate_fn` makes it, in pinned memory."""
        cut = self.cut([collate_fn(samples)])
        return cut.on(cut.blocks)[0]


# Ahead of the training.


# Batches, copies of their blocks that may be under way, and the event after them.
_Coming: TypeAlias = tuple[Cut, _Blocks, "Event | None"]


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

    def begin(self, batch: Batch | Cut) -> _Coming:
        """Begin to copy a batch, which waits for nothing if it is in pinned memory."""
        cut = batch if isinstance(batch, Cut) else self.pins.cut([batch])  # type: ignore[union-attr]
        with self._lock:
            blocks, event = self.accelerator.copy(cut.blocks)
            # Not by the iterator: it may be dropped before the copies are done.
            while self._held and self._held[0][0].query():
                self._held.popleft()
            if event is not None:
                self._held.append((event, cut.blocks))
        return cut, blocks, event


class _Ahead(Iterator[Batch]):
    """One iteration. Your thread takes the batches from the loader, so that a transform runs in it
    and errors come in their order. Batches that a thread made together are copied together.
    """

    def __init__(self, batches: Iterator[Batch], prefetcher: DevicePrefetcher) -> None:
        self._batches, self._prefetcher = batches, prefetcher
        self._workers = workers_of(batches)  # who are looked at where a batch is lost
        self._coming: deque[Future[_Coming]] = deque()
        self._here: deque[Batch] = deque()  # on the device once the event has passed
        self._blocks: _Blocks = []
        self._event: Event | None = None
        self._num_ahead = self._num_given = 0
        self._is_ended = False
        self._pool = ThreadPoolExecutor(1, "tfrecord-pin")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False

    def __next__(self) -> Batch:
        accelerator = self._prefetcher.accelerator
        accelerator.open()
        # One more each time: the first batch does not wait for those after it.
        most = min(self._num_given, self._prefetcher.depth)
        while not self._is_ended and self._num_ahead <= most:
            self._take()
        if not self._here:
            if not self._coming:
                raise StopIteration
            error = self._coming[0].exception()  # waits; if that is interrupted, nothing is lost
            coming = self._coming.popleft()
            self._num_ahead -= error is not None
            cut, self._blocks, self._event = coming.result()
            self._here.extend(cut.on(self._blocks))
        self._num_ahead -= 1
        self._num_given += 1
        # For each batch: you may ask for it in another stream.
        accelerator.wait(self._event, self._blocks)
        batch = self._here.popleft()
        if not self._here:
            self._blocks = []
        return batch

    def _take(self) -> None:
        coming: Future[_Coming] = Future()
        self._num_ahead += 1
        try:
            batch = next_batch(self._batches)
            if isinstance(batch, Cut):
                self._num_ahead += len(batch.batches) - 1
                coming.set_result(self._prefetcher.begin(batch))
            else:
                coming = self._pool.submit(self._prefetcher.begin, batch)
        except StopIteration:
            self._is_ended = True
            self._num_ahead -= 1
            return
        except Exception as error:  # which comes after the batches before it
            coming.set_exception(error)
        self._coming.append(coming)
