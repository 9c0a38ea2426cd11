"""Batches in pinned memory: made there, or copied in one piece, and cut into tensors by few calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from functools import lru_cache, partial
from itertools import chain
from math import inf, prod
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, TypeAlias

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
# In C: a batch has many columns.
_KIND = attrgetter("dtype", "shape")
# Lists of these alone stay as they are.
_SCALARS = {bytes, str, int, float, bool, type(None)}

Blocks: TypeAlias = list[torch.Tensor]
"""Memory in which the tensors of batches are: uint8 each."""


def pinned_bytes(size: int) -> torch.Tensor:
    """Pinned memory: uint8 [size], not cleared; used again once no copy from it is under way."""
    # also where the default device is another
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


# Shape and strides.
_Form: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
# Rows of one dtype and shape, or items, from the start of a block on: the block's number, their
# dtype and form, and how many of them each tensor has.
_Piece: TypeAlias = tuple[int, torch.dtype, _Form, list[int]]
# A tensor's number among all that are cut, and its form, if it has another one there.
_Place: TypeAlias = tuple[int, _Form | None]

_Again: TypeAlias = "Callable[[], list[tuple[Any, Exception | None]]]"


class Cut(NamedTuple):
    """Batches as pieces of pinned blocks: few calls of torch cut them into tensors, since each lets
    go of the GIL.
    """

    node: Node
    pieces: list[_Piece]
    places: list[_Place]
    views: Sequence[View]
    blocks: Blocks
    # As they were made: a tensor that is dropped asks for the GIL twice, and who trains has it.
    batches: list[Batch]
    # The same batches one by one, without the device's help, or the error of each.
    again: _Again | None = None
    # The places that the device fills itself: a block's number, and the bytes in it.
    left: Sequence[tuple[DeviceWork, tuple[int, slice]]] = ()

    def place_of(self, array: Array) -> tuple[int, slice] | None:
        """The block and the bytes of an array that is a whole column of a batch; None for others."""
        place = array.nbytes, array.ctypes.data
        for number, offset, dtype, shape, _ in self.views:
            size = prod(shape) * dtype.itemsize
            if (size, self.blocks[number].data_ptr() + offset) == place:
                return number, slice(offset, offset + size)
        return None

    def on(self, blocks: Blocks) -> list[Batch]:
        """The batches as views of these blocks, or of their copies: torch then knows to which
        pinned memory they belong.
        """
        cut: list[torch.Tensor] = []
        for number, dtype, form, sizes in self.pieces:
            items = blocks[number].view(dtype).as_strided(*form)
            # Each has a version counter of its own, as in `view_of`; those of `split` share one.
            cut += torch.unsafe_split_with_sizes(items, sizes)
        tensors = [
            cut[number] if own is None else cut[number].as_strided(*own)
            for number, own in self.places
        ]
        return build(tensors, self.node)


@lru_cache(maxsize=64)
def _pieces_of(views: tuple[View, ...]) -> tuple[list[_Piece], list[_Place], tuple[View, ...]]:
    """How blocks are cut into the tensors that are there."""
    places: list[_Place] = [(0, None)] * len(views)
    pieces: list[tuple[int, torch.dtype, tuple[int, ...], list[int]]] = []
    by_place = []
    for number, (block, offset, dtype, shape, strides) in enumerate(views):
        # As rows of its shape, if it begins with one, else as items.
        is_odd = strides or offset % (prod(shape[1:]) * dtype.itemsize)
        by_place.append((block, str(dtype), () if is_odd else shape[1:], offset, number))
    end = num_cut = 0
    for block, _, row, offset, number in sorted(by_place):
        *_, dtype, shape, strides = views[number]
        begin = offset // dtype.itemsize // prod(row)
        size = span(shape, strides) // prod(row)
        if not pieces or pieces[-1][:3] != (block, dtype, row) or begin < end:
            pieces.append((block, dtype, row, []))
            end = 0
        gap = [begin - end] * (begin > end)
        pieces[-1][3].extend([*gap, size])
        form = None if shape == (size, *row) and not strides else _form(shape, strides)
        places[number] = num_cut + len(gap), form
        end, num_cut = begin + size, num_cut + len(gap) + 1
    return (
        [(block, dtype, _form((sum(cut), *row)), cut) for block, dtype, row, cut in pieces],
        places,
        views,
    )


def _form(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> _Form:
    return shape, strides or tuple(prod(shape[axis:]) for axis in range(1, len(shape) + 1))


def _key_of(batches: list[Batch], born: Sequence[torch.Tensor]) -> object:
    """The key by which the way to cut these is looked up; None unless they are dicts of contiguous tensors in
    one block.
    """
    if len(born) != 1 or {*map(type, batches)} != {dict}:
        return None
    tensors = [*chain.from_iterable(map(dict.values, batches))]
    if {*map(type, tensors)} == {torch.Tensor}:
        with suppress(RuntimeError):  # a sparse one has no address
            start = born[0].data_ptr()
            offsets = [address - start for address in map(torch.Tensor.data_ptr, tensors)]
            is_here = 0 <= min(offsets) <= max(offsets) < born[0].nbytes
            if is_here and all(map(torch.Tensor.is_contiguous, tensors)):
                return born[0].nbytes, *map(tuple, batches), *offsets, *map(_KIND, tensors)
    return None


class _Born:
    """Pinned memory for a few batches of about the same size, in few blocks."""

    def __init__(self, pins: Pins, num_batches: int) -> None:
        self._pins, self._num_batches = pins, num_batches
        self.blocks: Blocks = []
        # The rest of each, and the size of the first column in it.
        self._free: list[tuple[npt.NDArray[np.uint8], int]] = []

    def __call__(self, size: int) -> npt.NDArray[np.uint8]:
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        # Small columns do not take what the larger ones of later batches need.
        fits = [
            number
            for number, (free, first) in enumerate(self._free)
            if len(free) >= taken > first // 4
        ]
        if not fits:
            fits = [len(self.blocks)]
            self.blocks.append(self._pins.block(taken * self._num_batches))
            self._free.append((self.blocks[-1].numpy(), taken))
        free, first = self._free[fits[0]]
        self._free[fits[0]] = free[taken:], first
        return free[:size]


class _PinnedPacker(Packer):
    """Finds the tensors of batches in blocks, and copies all others into a new one."""

    def __init__(self, pins: Pins, born: Sequence[torch.Tensor]) -> None:
        super().__init__(None)
        self._pins, self._most_bytes = pins, inf
        self._born = [(block.data_ptr(), block) for block in born]

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
        address = tensor.data_ptr()
        for start, block in self._born:
            offset = address - start
            if 0 <= offset < block.nbytes and not offset % tensor.itemsize:
                memory = self._starts.setdefault(start, len(self._memories))
                if memory == len(self._memories):
                    self._memories.append(block)
                strides = None if tensor.is_contiguous() else tensor.stride()
                return memory, offset, tensor.dtype, tuple(tensor.shape), strides
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
        self.block, self.device = allocate, device
        self._known: dict[object, tuple[Node, list[_Piece], list[_Place], tuple[View, ...]]] = {}
        self.share = DeviceShare()
        self.method = "pin_memory" if device is None else "to"
        self.whole = methodcaller(self.method, *[] if device is None else [device])

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
        key = _key_of(batches, born)
        how, blocks = self._known.get(key), [*born]
        if how is None:
            packer = _PinnedPacker(self, born)
            node = packer.node(batches)
            _, blocks, views = packer.message()  # type: ignore[assignment]  # all are in blocks here
            how = node, *_pieces_of((*views,))
            if key and blocks[-1] is born[0]:  # no copies follow it
                if len(self._known) == 64:
                    self._known.clear()
                self._known[key] = how
        return Cut(*how, blocks, batches, again)

    def collate(self, collate_fn: Callable[[Samples], Batch], samples: Samples) -> Batch:
        """A batch as a `collate_fn` makes it, in pinned memory."""
        cut = self.cut([collate_fn(samples)])
        return cut.on(cut.blocks)[0]
