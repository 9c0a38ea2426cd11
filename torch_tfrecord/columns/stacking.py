"""Stack samples to batches, and split batches into samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from torch_tfrecord.batch_memory import reserve
from torch_tfrecord.columns.containers import (
    Nested,
    RaggedTensor,
    SparseList,
    join_nested,
    make_sparse,
    wrap_nested,
)
from torch_tfrecord.samples import Value, mark_ragged
from torch_tfrecord.torch_internals import as_kind_of, sparse_parts

__all__ = [
    "as_plain",
    "is_ascending",
    "rows_of",
    "stack",
    "stack_samples",
]

_Bits: TypeAlias = "npt.NDArray[np.uint8]"


def stack(values: list[Value]) -> torch.Tensor | list[Value]:
    """Stack tensors of equal shape and dtype; return anything else as a list.

    Raises:
        LimitExceededError: See `reserve`.
    """
    first = values[0] if values else None
    if not isinstance(first, torch.Tensor) or any(
        not isinstance(item, torch.Tensor) for item in values
    ):
        return values
    if any(item.shape != first.shape or item.dtype != first.dtype for item in values):
        return values
    if len(values) > 1:
        reserve(len(values) * first.nbytes)
    # A single tensor gets its dimension as a view, without a copy.
    stacked = torch.stack(values) if len(values) > 1 else first.as_subclass(torch.Tensor)[None]
    return as_kind_of(stacked, first)


def as_plain(batch: Value) -> Value:
    """A batch as users see it: its columns are plain tensors, as torch's own collate gives, since
    torch.compile does not take tv_tensors; ragged ones are in the simplest type that holds them.
    """
    if isinstance(batch, Nested):
        return as_plain(wrap_nested(batch))
    if isinstance(batch, dict):
        return {name: as_plain(column) for name, column in batch.items()}
    if type(batch) is tuple:
        return tuple(map(as_plain, batch))
    return batch.as_subclass(torch.Tensor) if isinstance(batch, tv_tensors.TVTensor) else batch


def rows_of(column: Value) -> Sequence[Value]:
    """Split a reader's column into the values of each sample, without copying: views of its
    tensors.
    """
    if isinstance(column, list):
        return column
    if isinstance(column, dict):
        return [
            dict(zip(column, row, strict=True))
            for row in zip(*map(rows_of, column.values()), strict=True)
        ]
    if _is_sparse(column):
        return _sparse_rows(*_sparse_parts(column), tuple(column.shape))
    if isinstance(column, (Nested, RaggedTensor)) or column.is_nested:
        return _nested_rows(Nested.of(column))
    if isinstance(column, tv_tensors.TVTensor):
        # Operations on a tv_tensor give plain tensors, so each row is wrapped again.
        return [
            tv_tensors.wrap(row, like=column) for row in column.as_subclass(torch.Tensor).unbind()
        ]
    tensors: Sequence[torch.Tensor] = column.unbind()
    return tensors


def _nested_rows(column: Nested) -> list[Value]:
    values, (ends, *inner) = column.tensors()
    # Each sample comes this way, so without the work of splitting.
    if len(ends) == 2:  # a batch of one
        row = wrap_nested(column._replace(row_splits=column.row_splits[1:]))
        return [row if inner else mark_ragged(values)]
    if inner:
        ragged = RaggedTensor(values, (ends, *inner))
        return [ragged[number] for number in range(len(ragged))]
    return [*map(mark_ragged, torch.split(values, ends.diff().tolist()))]


def _sparse_rows(
    indices: torch.Tensor, values: torch.Tensor | list[Value], shape: tuple[int, ...]
) -> list[Value]:
    """Split sparse values into one sample per first index; first indices must ascend."""
    # First indices ascend, so a sample is a range of the values.
    ends = torch.bincount(indices[0], minlength=shape[0]).cumsum(0).tolist()
    return [
        make_sparse(
            part := indices[1:, begin:end],
            values[begin:end],
            shape[1:],
            is_coalesced=is_ascending(part),
        )
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def is_ascending(indices: torch.Tensor) -> bool:
    """Whether indices [ndim, nnz] are sorted without duplicates, which torch calls coalesced."""
    is_less = torch.zeros(max(indices.shape[1] - 1, 0), dtype=torch.bool)
    # From the last dimension on: an earlier one decides, and only its ties ask the later ones.
    for axis in reversed(indices):
        is_less = (axis[:-1] < axis[1:]) | ((axis[:-1] == axis[1:]) & is_less)
    return bool(is_less.all())


def stack_samples(samples: Sequence[Value]) -> Value:
    """Batch samples that ``torch.stack`` does not support: RaggedTensor, SparseList, jagged,
    sparse.

    Args:
        samples: At least one; all of the same kind. Dense tensors [n, *inner] of any n become a
            jagged nested tensor.

    Returns:
        For jagged samples and RaggedTensors, a RaggedTensor with one more dimension; for sparse
        samples, a sparse batch with the sample's number as first index.

    Raises:
        ValueError: Samples have different depths or sizes.
    """
    if _is_sparse(samples[0]):
        return _stack_sparse(samples)
    parts = [Nested.of(sample) for sample in samples]
    depths = {(len(part.row_splits), part.values.shape[1:]) for part in parts}
    if len(depths) > 1:
        raise ValueError(
            f"expected samples with the same number of ragged dimensions, got {sorted(depths)}"
        )
    return wrap_nested(join_nested(parts, parts[0]))


def _is_sparse(value: object) -> bool:
    return isinstance(value, SparseList) or getattr(value, "layout", None) is torch.sparse_coo


def _sparse_parts(value: torch.Tensor | SparseList) -> tuple[torch.Tensor, Value]:
    """The indices, and a tensor or list of values."""
    return (value.indices, value.values) if isinstance(value, SparseList) else sparse_parts(value)


def _stack_sparse(samples: Sequence[Value]) -> torch.Tensor | SparseList:
    shapes = {tuple(sample.shape) for sample in samples}
    if len(shapes) > 1:
        raise ValueError(f"expected sparse samples of equal size, got {sorted(shapes)}")
    places, values = zip(*map(_sparse_parts, samples), strict=True)
    # The sample's number becomes the first index of each of its values.
    rows = torch.repeat_interleave(torch.tensor([part.shape[1] for part in places]))
    indices = torch.cat([rows[None], torch.cat(places, dim=1)])
    is_list = isinstance(samples[0], SparseList)
    joined = list(chain.from_iterable(values)) if is_list else torch.cat(values)
    # The sample's number comes first, so what is sorted in each sample is sorted in the batch.
    is_coalesced = not is_list and all(sample.is_coalesced() for sample in samples)
    return make_sparse(indices, joined, (len(samples), *shapes.pop()), is_coalesced=is_coalesced)
