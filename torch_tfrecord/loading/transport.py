"""Send batches from a worker process: columns stay where they were made, in memory that the main
process maps, too.

torch sends every tensor in its own shared-memory file, which costs some 100 microseconds each, and
1 ms for each MB that both sides use for the first time. Here a message says where in the worker's
memory (`shared_memory`) the columns are; columns elsewhere are copied there first. Without such
memory torch sends the tensors: small ones together in one file, large ones alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from torch_tfrecord.batch_memory import as_array
from torch_tfrecord.columns import RaggedTensor
from torch_tfrecord.loading.sample import Sample, is_plain
from torch_tfrecord.phases import Phase
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import Batch, Value, Values
from torch_tfrecord.shared_memory import MemoryName, WorkerMemory, attach, worker_memory
from torch_tfrecord.torch_internals import (
    jagged,
    jagged_parts,
    longest_of,
    sparse,
    sparse_parts,
    tv_classes,
)

__all__ = [
    "Node",
    "Packer",
    "View",
    "build",
    "for_transport",
    "span",
]

# If torch sends the tensors, a larger one gets its own file, whose cost is small compared to its
# bytes.
_LARGE_BYTES = 1 << 20
# Up to this size, copied tensors go through the pipe, in the message.
_SMALL_BYTES = 1 << 14
# Lists of bytes go through the pipe up to this total size.
_MANY_BYTES = 1 << 16
_ALIGNMENT = 64
_IMAGE_KINDS = "Image", "Video", "Mask"


def for_transport(batch: Batch) -> Batch:
    """In a worker, a form of the batch (a dict, tuple or list) that is sent as one message;
    elsewhere the batch itself.

    The form is a subclass of dict, tuple or list, and arrives as a plain one.
    """
    form: Callable[[Any], Any] | None = _FORMS.get(type(batch))
    if form is None or get_worker_info() is None:
        return batch
    for image in tv_classes(*_IMAGE_KINDS):  # torch fails to send those of uint16, uint32, uint64
        ForkingPickler.register(image, _reduce_image)
    return form(batch)


class _Sent:
    """A dict, tuple or list that is sent as one message; to all else it is a plain one."""

    __slots__ = ()
    kind: type[Any]

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[object]]:
        return self.kind, (self.kind(self),)


class _SentDict(_Sent, dict[Any, Any]):
    kind = dict

    def __copy__(self) -> _SentDict:
        return _SentDict(self)


class _SentTuple(_Sent, tuple[Any, ...]):
    kind = tuple


class _SentList(_Sent, list[Any]):
    kind = list


_FORMS = {form.kind: form for form in (_SentDict, _SentTuple, _SentList)}


# A part of a batch as it is sent; plain tuples, since those pickle fastest: (None, the number of a
# tensor), (False, a value as it is) or (a function, the parts for its arguments, ...).
Node: TypeAlias = tuple[Any, ...]
# A function, and its arguments in the main process.
_Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
# Where the tensors of a message are: bytes in the message itself, a tensor that torch sends, or a
# piece of the worker's memory, by its start and size.
_Memory: TypeAlias = bytearray | torch.Tensor | tuple[int, int]
# Where a tensor is: number of the message's memory, byte offset, dtype, shape, and strides if it is
# not contiguous.
View: TypeAlias = tuple[int, int, torch.dtype, tuple[int, ...], tuple[int, ...] | None]


def _reduce(batch: _Sent) -> _Reduced:
    with Phase("transport"):
        # First all tensors are found, then placed: how much must be copied is known only then.
        packer = Packer(worker_memory())
        node = packer.node(batch.kind(batch))
        return _unpack, (*packer.message(), node)


def _reduce_sample(sample: Sample) -> _Reduced:
    values = sample.copy()
    return (dict, (values,)) if get_worker_info() is None else _reduce(_SentDict(values))


def _reduce_image(image: torch.Tensor) -> _Reduced:
    return torch.Tensor.as_subclass, (image.as_subclass(torch.Tensor), type(image))


# Other pickling, and copying, see plain objects.
for _form in _FORMS.values():
    ForkingPickler.register(_form, _reduce)
ForkingPickler.register(Sample, _reduce_sample)


class Packer:
    """Collects and numbers the tensors of a batch.

    Args:
        memory: The worker's memory; None if torch sends the tensors.
    """

    def __init__(self, memory: WorkerMemory | None) -> None:
        self._memory = memory
        self._most_bytes = _LARGE_BYTES if memory is None else math.inf
        self._tensors: list[torch.Tensor] = []
        self._starts: dict[int, int] = {}  # from the start of a piece to its number in `_memories`
        self._memories: list[_Memory] = []
        self._sources: list[View | None] = []

    def node(self, part: Batch) -> Node:
        """The node from which `_unpack` builds the part."""
        if type(part) is dict:
            return (_make_dict, (False, tuple(part)), *map(self.node, part.values()))
        if type(part) is tuple:
            return (_make_tuple, *map(self.node, part))
        if type(part) is list:
            return self._list(part, set(map(type, part)))
        if isinstance(part, RaggedTensor):
            return RaggedTensor, self.node(part.flat_values), self.node(tuple(part.row_splits))
        return self._tensor(part) if isinstance(part, torch.Tensor) else (False, part)

    def _list(self, values: Values, kinds: set[type]) -> Node:
        if kinds == {bytes} and sum(map(len, values)) >= _MANY_BYTES:
            joined = torch.frombuffer(bytearray().join(values), dtype=torch.uint8)
            lengths = torch.tensor([*map(len, values)], device="cpu")
            return _make_bytes, self._place(joined), self._place(lengths)
        if any(issubclass(kind, (torch.Tensor, RaggedTensor)) for kind in kinds):
            return list, self.node(tuple(values))
        return False, values

    def _tensor(self, tensor: torch.Tensor) -> Node:
        kind = type(tensor)
        if is_plain(tensor) and (kind is torch.Tensor or kind in tv_classes(*_IMAGE_KINDS)):
            # An empty tensor has no place.
            if not 0 < tensor.nbytes < self._most_bytes:
                return False, tensor
            place = self._place(tensor.as_subclass(torch.Tensor))
            return (
                place if kind is torch.Tensor else (torch.Tensor.as_subclass, place, (False, kind))
            )
        # torch sends these itself.
        if tensor.requires_grad or tensor.device.type != "cpu":
            return False, tensor
        if tensor.layout == torch.sparse_coo:
            make = partial(sparse, shape=tuple(tensor.shape), is_coalesced=tensor.is_coalesced())
            return (make, *map(self.node, sparse_parts(tensor)))
        parts = jagged_parts(tensor) if tensor.layout == torch.jagged else None
        if parts is None:
            return False, tensor
        # here, where the offsets are: on a device it would wait for them
        return partial(jagged, longest=longest_of(parts[1])), *map(self.node, parts)

    def _place(self, tensor: torch.Tensor) -> Node:
        return self._placed(tensor, self._made_here(tensor))

    def _placed(self, tensor: torch.Tensor, source: View | None) -> Node:
        self._sources.append(source)
        self._tensors.append(tensor)
        return None, len(self._tensors) - 1

    def message(self) -> tuple[MemoryName | None, list[_Memory], list[View | None]]:
        """The memory's name, its pieces (or the tensors that torch sends), and where each tensor
        is.
        """
        copied = [number for number, source in enumerate(self._sources) if source is None]
        if copied:
            self._copy(copied)
        return None if self._memory is None else self._memory.name, self._memories, self._sources

    def _made_here(self, tensor: torch.Tensor) -> View | None:
        """Where the tensor is, if it can be sent without a copy."""
        if self._memory is None:
            return None
        shape, strides = tuple(tensor.shape), None if tensor.is_contiguous() else tensor.stride()
        found = self._memory.send(tensor.data_ptr(), span(shape, strides) * tensor.itemsize)
        if found is None:
            return None
        start, offset = found
        # Columns of a batch are often in one piece.
        number = self._starts.get(start)
        if number is None:
            number = self._starts[start] = len(self._memories)
            self._memories.append(self._memory.hold(start))
        return number, offset, tensor.dtype, shape, strides

    def _copy(self, numbers: list[int]) -> None:
        """Copy tensors into new memory, one after another."""
        sizes = [-(-self._tensors[number].nbytes // _ALIGNMENT) * _ALIGNMENT for number in numbers]
        memory = self._new(sum(sizes))
        for number, begin in zip(numbers, accumulate(sizes, initial=0), strict=False):
            tensor = self._tensors[number]
            shape, strides = tuple(tensor.shape), None
            # channels last stays so
            if not tensor.is_contiguous() and span(shape, tensor.stride()) == tensor.numel():
                strides = tensor.stride()
            array = as_array(tensor)
            # by NumPy's own arrays: torch would let go of the GIL for each
            view = np.ndarray(shape, array.dtype, memory, begin, strides and array.strides)
            view[...] = array
            self._sources[number] = len(self._memories) - 1, begin, tensor.dtype, shape, strides

    def _new(self, num_bytes: int) -> memoryview:
        if num_bytes <= _SMALL_BYTES:
            small = bytearray(num_bytes)
            self._memories.append(small)
            return memoryview(small)
        piece = None if self._memory is None else self._memory.piece(num_bytes)
        if piece is None:
            shared = torch.empty(num_bytes, dtype=torch.uint8, device="cpu").share_memory_()
            self._memories.append(shared)
            return shared.numpy().data
        memory = memoryview(piece)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        start, _ = self._memory.send(address, num_bytes)  # type: ignore[misc, union-attr]
        self._memories.append(self._memory.hold(start))  # type: ignore[union-attr]
        return memory


def _unpack(
    name: MemoryName | None, memories: list[_Memory], sources: list[View], node: Node
) -> Batch:
    with Phase("transport"):
        views = [_memory(name, memory) for memory in memories]
        return build([view_of(views[source[0]], source) for source in sources], node)


def _memory(name: MemoryName | None, memory: _Memory) -> memoryview:
    if isinstance(memory, tuple):
        return memoryview(attach(name, *memory))  # type: ignore[arg-type]
    return memoryview(memory if isinstance(memory, bytearray) else memory.numpy().data)


def build(tensors: list[torch.Tensor], node: Node) -> Batch:
    """The value that a node was made from, with these tensors."""
    make, *parts = node
    if not make:
        return parts[0] if make is False else tensors[parts[0]]
    # a call for each column would take longer than all else
    return make(
        *[
            build(tensors, part) if part[0] else tensors[part[1]] if part[0] is None else part[1]
            for part in parts
        ]
    )


def view_of(memory: memoryview, source: View) -> torch.Tensor:
    """The tensor in its memory."""
    # Not slices of one tensor: those share a version counter, so writing to one would break
    # backward for all of them.
    _, offset, dtype, shape, strides = source
    flat = torch.frombuffer(memory, dtype=dtype, count=span(shape, strides), offset=offset)
    if strides is not None:
        return flat.as_strided(shape, strides)
    return flat if len(shape) == 1 else flat.view(shape)


def span(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """The number of items from the first to the last, both included."""
    if strides is None:
        return math.prod(shape)
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _make_dict(keys: tuple[object, ...], *values: Value) -> Batch:
    return dict(zip(keys, values, strict=True))


def _make_tuple(*values: Value) -> tuple[Value, ...]:
    return values


def _make_bytes(joined: torch.Tensor, lengths: torch.Tensor) -> list[bytes]:
    return PackedRecords(
        joined.numpy(), (lengths.cumsum(0) - lengths).numpy(), lengths.numpy()
    ).tolist()
