"""Batches in pinned memory: made there, or copied in one piece, and cut into tensors by few calls."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from copy import copy
from functools import lru_cache, partial
from math import inf, prod
from operator import methodcaller
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import BORN_IN, ON_DEVICE, Array, DeviceWork
from torch_tfrecord.columns import RaggedTensor
from torch_tfrecord.errors import warn_once
from torch_tfrecord.loading.sample import is_plain
from torch_tfrecord.loading.transport import Node, Packer, View, build, span
from torch_tfrecord.phases import count
from torch_tfrecord.samples import WHOLE_KINDS, Batch, Samples, Value, Values
from torch_tfrecord.torch_internals import as_kind_of, tv_classes

__all__ = ["Blocks", "Cut", "Pins", "pinned_bytes"]

# So that any dtype views a whole block.
_ALIGNMENT = 16
# After so many batches that a device could not make, one after another, it is left alone.
_MOST_FAILED = 2
# Lists of these alone stay as they are.
_SCALARS = {bytes, str, int, float, bool, type(None)}

Blocks: TypeAlias = list[torch.Tensor]
"""Memory in which the tensors of batches are: uint8 each."""


def pinned_bytes(size: int) -> torch.Tensor:
    """Pinned memory: uint8 [size], not cleared; used again once no copy from it is under way."""
    # also where the default device is another
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


class _Piece(NamedTuple):
    """Items of one dtype, from the start of a block to its end, that are cut into tensors."""

    block: int
    dtype: torch.dtype
    sizes: list[int]
    # Shape and strides of all of them, if they are rows of one shape.
    rows: list[tuple[int, ...]]


_Again: TypeAlias = "Callable[[], list[tuple[Any, Exception | None]]]"

# A tensor's number among all that are cut, and its shape and strides, if it has others there.
_Place: TypeAlias = tuple[int, "tuple[int, ...] | None", "tuple[int, ...] | None"]


class Cut(NamedTuple):
    """Batches as pieces of pinned blocks: few calls of torch cut them into tensors, since each lets
    go of the GIL.
    """

    node: Node
    blocks: Blocks
    pieces: list[_Piece]
    places: list[_Place]
    # As they were made: a tensor that is dropped asks for the GIL twice, and who trains has it.
    batches: list[Batch]
    views: Sequence[View]
    # What the device makes itself, and where: a block's number, and the bytes in it.
    left: Sequence[tuple[DeviceWork, tuple[int, slice]]] = ()
    # The same batches one by one, without the device's help, or the error of each.
    again: _Again | None = None

    def place_of(self, array: Array) -> tuple[int, slice] | None:
        """The block and the bytes of an array that is a whole column of a batch; None for others."""
        address = array.ctypes.data
        for number, offset, dtype, shape, _ in self.views:
            size = prod(shape) * dtype.itemsize
            if size == array.nbytes and self.blocks[number].data_ptr() + offset == address:
                return number, slice(offset, offset + size)
        return None

    def on(self, blocks: Blocks) -> list[Batch]:
        """The batches as views of these blocks, or of their copies: torch then knows to which
        pinned memory they belong.
        """
        cut: list[torch.Tensor] = []
        for number, dtype, sizes, rows in self.pieces:
            items = blocks[number].view(dtype)
            if rows:
                items = items.as_strided(rows[0], rows[1])
            # Each has a version counter of its own, as in `view_of`; those of `split` share one.
            cut += torch.unsafe_split_with_sizes(items, sizes)
        tensors = [
            cut[number]
            if shape is None
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
    places: list[_Place] = [(0, None, None)] * len(views)
    pieces: list[_Piece] = []
    runs: list[list[tuple[int, int, int]]] = []
    by_place = sorted(enumerate(views), key=lambda item: (item[1][0], str(item[1][2]), item[1][1]))
    for number, (block, offset, dtype, shape, strides) in by_place:
        begin = offset // dtype.itemsize
        if not pieces or pieces[-1][:2] != (block, dtype) or begin < runs[-1][-1][2]:
            pieces.append(_Piece(block, dtype, [], []))
            runs.append([])
        size = prod(shape) if strides is None else span(shape, strides)
        runs[-1].append((number, begin, begin + size))
    num_cut = 0
    for (block, dtype, cut, rows), run in zip(pieces, runs, strict=True):
        end = 0
        for number, begin, stop in run:
            cut += [begin - end] * (begin > end)
            *_, shape, strides = views[number]
            is_flat = len(shape) == 1 and strides is None
            places[number] = num_cut + len(cut), None if is_flat else shape, strides
            cut.append(stop - begin)
            end = stop
        found = (views[number] for number, _, _ in run)
        row, *others = {() if strides else shape[1:] for *_, shape, strides in found}
        if row and not others and all(size % prod(row) == 0 for size in cut):
            cut[:] = [size // prod(row) for size in cut]
            rows += (sum(cut), *row), tuple(prod(row[axis:]) for axis in range(len(row) + 1))
            for number, _, _ in run:
                places[number] = places[number][0], None, None
        elif end < sizes[block] // dtype.itemsize:
            cut.append(sizes[block] // dtype.itemsize - end)
        num_cut += len(cut)
    return pieces, places


class _Born:
    """Pinned memory for a few batches of about the same size, in few blocks."""

    def __init__(self, pins: Pins, num_batches: int) -> None:
        self._pins, self._num_batches = pins, num_batches
        self.blocks: Blocks = []
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
        if kind is torch.Tensor:
            return self._tensor(part)
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
        if type(tensor) is torch.Tensor and tensor.layout == torch.strided:
            found = self._made_here(tensor)
            if found:
                return self._placed(tensor, found)  # ours: there is nothing to ask
        if isinstance(tensor, tv_classes("TVTensor")) and is_plain(tensor) and tensor.numel():
            plain = tensor.as_subclass(torch.Tensor)
            return partial(as_kind_of, other=tensor), self._place(plain)
        node = super()._tensor(tensor)
        return (self._pins.whole, node) if node[0] is False else node

    def _made_here(self, tensor: torch.Tensor) -> View | None:
        address, itemsize = tensor.data_ptr(), tensor.itemsize
        number = bisect(self._starts_at, address) - 1
        if number < 0:
            return None
        start, block = self._born[number]
        offset = address - start
        if offset >= block.nbytes or offset % itemsize:
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


class DeviceShare:
    """The share of rows that a device makes: as many as its rate earns beside the host's, where it
    waits for batches, and none once it has failed again and again.

    Attributes:
        num_threads: Threads that make batches.
    """

    num_threads = 1

    def __init__(self) -> None:
        # Seconds a row by the device, and by one thread.
        self._seconds = {"device": 0.0, "host": 0.0}
        self._need, self._num_failed = 1.0, 0

    def of(self, count: int, decode_on: str) -> int:
        """How many of so many rows."""
        if self._num_failed > _MOST_FAILED:
            return 0
        device, host = self._seconds.values()
        if decode_on == "device" or not device:
            return count
        # What feeds the device, and the training, take the time of two.
        num_threads = max(self.num_threads - 2, 0)
        return round(count * self._need * host / (host + num_threads * device or 1))

    def took(self, place: str, count: int, seconds: float) -> None:
        """Rows were made by the "device" or a thread of the "host"."""
        if count:
            before, each = self._seconds[place], seconds / count
            self._seconds[place] = before + (each - before) / 8 if before else each

    def waited(self, is_idle: bool) -> None:
        """A batch was asked for, and the device had nothing to do, or else it had."""
        self._need = min(self._need + 1 / 4, 1) if is_idle else self._need * (1 - 1 / 256)

    def ended(self, error: Exception | None) -> None:
        """The device has made its rows, or cannot."""
        self._num_failed = 0 if error is None else self._num_failed + 1
        if error is not None:
            text = str(error).partition("\n")[0] or type(error).__name__
            rest = "all others, too" if self._num_failed > _MOST_FAILED else "this batch"
            warn_once(f"decode_on: the device fails ({text}); the CPU decodes {rest}")


class _Left:
    """The `DeviceRows` of a few batches."""

    def __init__(self, share: DeviceShare, is_none: bool) -> None:
        self._share, self._is_none, self.works = share, is_none, list[DeviceWork]()

    def share(self, count: int, decode_on: str) -> int:
        return 0 if self._is_none else self._share.of(count, decode_on)

    def leave(self, work: DeviceWork | None, num_made: int, seconds: float) -> None:
        self._share.took("host", num_made, seconds)
        if work is not None:
            count("on_device", len(work))
            self.works.append(work)


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
        self.share = DeviceShare()
        self.method = "pin_memory" if device is None else "to"
        self.whole = methodcaller(self.method, *[] if device is None else [device])

    def block(self, num_bytes: int) -> torch.Tensor:
        """Memory of at least that many bytes."""
        return self._allocate(-(-num_bytes // _ALIGNMENT) * _ALIGNMENT)

    def make(
        self, function: Callable[[], list[Batch]], num_batches: int, again: _Again | None = None
    ) -> Cut:
        """The batches that a function makes, with large columns at once in pinned memory.

        Args:
            function: Makes at most `num_batches` batches.
            num_batches: How many are expected.
            again: As in `Cut`; None leaves nothing to a device.
        """
        context, born = copy_context(), _Born(self, num_batches)
        context.run(BORN_IN.set, born)
        left = None if self.device is None else _Left(self.share, is_none=again is None)
        context.run(ON_DEVICE.set, left)
        cut = self.cut(context.run(function), born.blocks, again)
        if left is None or not left.works:
            return cut
        placed = [(work, cut.place_of(work.out)) for work in left.works]
        found = [(work, place) for work, place in placed if place is not None]
        if len(found) < len(placed):
            self.share.ended(ValueError("rows of its batches are copied, as by a mixture"))
            return self.make(function, num_batches)
        return cut._replace(left=found)

    def cut(
        self,
        batches: list[Batch],
        born: Sequence[torch.Tensor] = (),
        again: _Again | None = None,
    ) -> Cut:
        """Batches in pinned memory; what is in `born` already is not copied."""
        packer = _PinnedPacker(self, born)
        node = packer.node(batches)
        _, found, views = packer.message()
        blocks = cast("Blocks", found)
        sizes = tuple(block.nbytes for block in blocks)
        places = cast("list[View]", views)  # all are in blocks here
        return Cut(node, blocks, *_pieces_of(sizes, (*places,)), batches, places, again=again)

    def collate(self, collate_fn: Callable[[Samples], Batch], samples: Samples) -> Batch:
        """A batch as a `collate_fn` makes it, in pinned memory."""
        cut = self.cut([collate_fn(samples)])
        return cut.on(cut.blocks)[0]
