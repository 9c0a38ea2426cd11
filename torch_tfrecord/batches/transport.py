"""Batches that leave a worker process: many small tensors travel in one piece of shared memory.

A DataLoader worker sends every tensor in a segment of its own, which costs some 100 microseconds each. So a batch of 40
columns is packed into one segment when it is pickled, and unpacked to views of that on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from torchvision import tv_tensors

from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.containers import RaggedTensor, jagged_tensor, make_sparse

__all__ = ["LARGE_BYTES", "for_transport"]

# A larger tensor travels alone: a segment costs little beside its bytes.
LARGE_BYTES = 1 << 20
# Lists of bytes go through a pipe up to this size together.
_MANY_BYTES = 1 << 16
_ALIGNMENT = 64
_IMAGE_KINDS = (tv_tensors.Image, tv_tensors.Video, tv_tensors.Mask)


def for_transport(batch: Any) -> Any:
    """In a worker a form of the batch (a dict, tuple or list) that pickles in one piece; elsewhere the batch itself.

    It is a dict, tuple or list here, too, and arrives as a plain one.
    """
    form = _FORMS.get(type(batch))
    return batch if form is None or get_worker_info() is None else form(batch)


class _PackedDict(dict[Any, Any]):
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _reduce(dict(self))

    def __copy__(self) -> _PackedDict:
        return _PackedDict(self)


class _PackedTuple(tuple[Any, ...]):
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _reduce(tuple(self))


class _PackedList(list[Any]):
    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _reduce(list(self))


_FORMS: dict[type, Callable[[Any], Any]] = {dict: _PackedDict, tuple: _PackedTuple, list: _PackedList}


class _Place(NamedTuple):
    """Where a tensor lies in the buffer."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Node(NamedTuple):
    """A part of the batch that `make` builds from its unpacked parts."""

    make: Callable[..., Any]
    parts: tuple[Any, ...]


def _reduce(batch: Any) -> tuple[Any, ...]:
    packer = _Packer()
    node = packer.node(batch)
    return (_unpack, (packer.buffer(), node)) if len(packer.tensors) > 1 else (type(batch), (batch,))


class _Packer:
    """Collects the small tensors of a batch, and gives each its place in a buffer."""

    def __init__(self) -> None:
        self.tensors: list[tuple[torch.Tensor, _Place]] = []
        self._num_bytes = 0

    def node(self, part: Any) -> Any:
        """What `_unpack` builds the part from; what cannot be packed stays as it is."""
        if type(part) is dict:
            return _Node(_make_dict, (tuple(part), *map(self.node, part.values())))
        if type(part) is tuple:
            return _Node(_make_tuple, tuple(map(self.node, part)))
        if type(part) is list and part and isinstance(part[0], torch.Tensor):
            return _Node(list, (self.node(tuple(part)),))
        if type(part) is list and set(map(type, part)) == {bytes}:
            return self._bytes(part)
        if isinstance(part, RaggedTensor):
            return _Node(RaggedTensor, (self.node(part.flat_values), self.node(tuple(part.row_splits))))
        return self._tensor(part) if isinstance(part, torch.Tensor) else part

    def _bytes(self, values: list[bytes]) -> Any:
        joined = bytearray().join(values)
        if len(joined) < _MANY_BYTES:
            return values
        lengths = torch.tensor([*map(len, values)])
        return _Node(_make_bytes, (self._place(torch.frombuffer(joined, dtype=torch.uint8)), self._place(lengths)))

    def _tensor(self, tensor: Any) -> Any:
        if tensor.requires_grad or tensor.device.type != "cpu":
            return tensor
        if tensor.layout == torch.jagged:
            is_plain = tensor._lengths is None and tensor._ragged_idx == 1
            parts: tuple[Any, ...] = (self.node(tensor.values()), self.node(tensor.offsets()))
            return _Node(jagged_tensor, parts) if is_plain else tensor
        if tensor.layout == torch.sparse_coo:
            parts = (self.node(tensor._indices()), self.node(tensor._values()), tuple(tensor.shape))
            return _Node(partial(make_sparse, is_coalesced=tensor.is_coalesced()), parts)
        if tensor.layout != torch.strided or tensor.is_nested or not 0 < tensor.nbytes < LARGE_BYTES:
            return tensor
        if type(tensor) in _IMAGE_KINDS:
            return _Node(type(tensor), (self._place(tensor.as_subclass(torch.Tensor)),))
        if type(tensor) is not torch.Tensor or tensor.is_conj() or tensor.is_neg():
            return tensor
        return self._place(tensor)

    def _place(self, tensor: torch.Tensor) -> _Place:
        place = _Place(self._num_bytes, tensor.dtype, tuple(tensor.shape))
        self.tensors.append((tensor, place))
        self._num_bytes += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def buffer(self) -> torch.Tensor:
        """All tensors, uint8 in shared memory."""
        storage = torch.UntypedStorage._new_shared(self._num_bytes)  # type: ignore[no-untyped-call]
        buffer = torch.empty(0, dtype=torch.uint8).set_(storage)
        memory = buffer.numpy().data
        for tensor, place in self.tensors:
            _view(memory, place).copy_(tensor)
        return buffer


def _unpack(buffer: torch.Tensor, node: Any) -> Any:
    return _build(buffer.numpy().data, node)


def _build(memory: memoryview, node: Any) -> Any:
    if type(node) is _Place:
        return _view(memory, node)
    if type(node) is _Node:
        return node.make(*[_build(memory, part) for part in node.parts])
    return node


def _view(memory: memoryview, place: _Place) -> torch.Tensor:
    # Not slices of one tensor: those share a version counter, and writing to one would be an error in backward of all.
    start, dtype, shape = place
    flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=start)
    return flat if len(shape) == 1 else flat.view(shape)


def _make_dict(keys: tuple[Any, ...], *values: Any) -> dict[Any, Any]:
    return dict(zip(keys, values, strict=True))


def _make_tuple(*values: Any) -> tuple[Any, ...]:
    return values


def _make_bytes(joined: torch.Tensor, lengths: torch.Tensor) -> list[bytes]:
    return PackedRecords(joined.numpy(), (lengths.cumsum(0) - lengths).numpy(), lengths.numpy()).tolist()
