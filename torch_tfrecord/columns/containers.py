"""Containers for values that torch has no tensor for (several ragged dimensions, sparse strings);
values stacked to columns, and columns split into values.

torch supports one ragged dimension (a jagged nested tensor) and sparse numbers
(``torch.sparse_coo``). Only values beyond that have a class here. Strings with ragged dimensions
are nested lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import as_array, as_tensor, reserve, splits_of
from torch_tfrecord.samples import Value, mark_ragged
from torch_tfrecord.torch_internals import (
    as_kind_of,
    as_plain_tensors,
    jagged,
    jagged_parts,
    longest_of,
    sparse,
    sparse_parts,
    tv_classes,
)

__all__ = [
    "Nested",
    "RaggedTensor",
    "SparseList",
    "as_plain",
    "make_sparse",
    "rows_of",
    "split_lists",
    "stack",
    "stack_samples",
]

Numbers: TypeAlias = "torch.Tensor | npt.NDArray[Any]"


@dataclass(frozen=True, eq=False)
class RaggedTensor:
    """Numbers with two or more ragged dimensions; with one, you get torch's own jagged nested
    tensor.

    The layout is that of ``tf.RaggedTensor``. Works with DataLoader workers and ``pin_memory``.

    Args:
        flat_values: [N, *inner], any dtype: all innermost rows, concatenated.
        row_splits: One int64 tensor [rows + 1] per ragged dimension, outermost first: row i of a
            dimension spans ``row_splits[i]`` (included) to ``row_splits[i + 1]`` (excluded) of the
            next dimension, or of ``flat_values`` for the last. Each starts with 0, never decreases,
            and ends with the number of rows of the next.

    Raises:
        TypeError: An argument is not a tensor, or row splits are not int64.
        ValueError: There are no row splits, or they are not 1-D tensors of at least one entry.

    Example:
        >>> ragged = RaggedTensor(torch.tensor([1, 2, 3]), (torch.tensor([0, 2, 2]), torch.tensor([0, 1, 3])))
        >>> ragged.to_list()
        [[[1], [2, 3]], []]
        >>> ragged.shape
        (2, None, None)
    """

    flat_values: torch.Tensor
    row_splits: tuple[torch.Tensor, ...]

    def __post_init__(self) -> None:
        """Check the types, but not the content, as that would synchronize with the device."""
        object.__setattr__(self, "row_splits", tuple(self.row_splits))
        for tensor in (self.flat_values, *self.row_splits):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"flat_values and row_splits must be tensors, got {type(tensor).__name__}"
                )
        if not self.row_splits or any(
            splits.dim() != 1 or not len(splits) for splits in self.row_splits
        ):
            raise ValueError("row_splits must be one or more 1-D tensors of at least one entry")
        if any(splits.dtype != torch.int64 for splits in self.row_splits):
            raise TypeError(
                f"row_splits must be int64, got {[splits.dtype for splits in self.row_splits]}"
            )

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes of all dimensions, None for ragged ones."""
        return (len(self), *[None] * len(self.row_splits), *self.flat_values.shape[1:])

    def __len__(self) -> int:
        """Number of outermost rows."""
        return len(self.row_splits[0]) - 1

    def __getitem__(self, row: int) -> Any:
        """One outermost row, without copying: a jagged nested tensor, or a RaggedTensor with one
        dimension less.
        """
        # A range knows negative numbers, and its IndexError is what ends a loop over the rows.
        first = range(len(self))[row]
        low, high = (int(end) for end in self.row_splits[0][first : first + 2])
        inner = []
        for splits in self.row_splits[1:]:
            # Each level says which rows of the next one belong to this row.
            part = splits[low : high + 1]
            low, high = int(part[0]), int(part[-1])
            inner.append(part - low)
        return wrap_nested(Nested(self.flat_values[low:high], self.flat_values.dtype, tuple(inner)))

    def to_list(self) -> list[Any]:
        """All values as nested lists of Python numbers."""
        return split_lists(
            self.flat_values.tolist(), [splits.tolist() for splits in self.row_splits]
        )

    def to(self, *args: Any, **kwargs: Any) -> RaggedTensor:
        """Like ``torch.Tensor.to``; the row splits move to the same device and stay int64."""
        values = self.flat_values.to(*args, **kwargs)
        # Only the device: the arguments may name a dtype, which is for the values.
        return RaggedTensor(values, tuple(splits.to(values.device) for splits in self.row_splits))

    def pin_memory(self) -> RaggedTensor:
        """Like ``torch.Tensor.pin_memory``; DataLoader calls it."""
        return RaggedTensor(
            self.flat_values.pin_memory(), tuple(splits.pin_memory() for splits in self.row_splits)
        )

    def __eq__(self, other: object) -> bool:
        """Whether rows, values and dtype are equal; NaN is not equal to itself, as usual."""
        if not isinstance(other, RaggedTensor):
            return NotImplemented
        mine, theirs = (self.flat_values, *self.row_splits), (other.flat_values, *other.row_splits)
        return len(mine) == len(theirs) and all(
            one.dtype == two.dtype and torch.equal(one, two)
            for one, two in zip(mine, theirs, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class SparseList:
    """Sparse bytes or str, like ``torch.sparse_coo`` for numbers.

    Args:
        indices: int64 [ndim, nnz], as in ``torch.sparse_coo_tensor``.
        values: nnz bytes or str.
        shape: The ndim sizes.

    Example:
        >>> SparseList(torch.tensor([[2]]), [b"x"], (5,))
        SparseList(indices=tensor([[2]]), values=[b'x'], shape=(5,))
    """

    indices: torch.Tensor
    values: list[Any]
    shape: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        """Whether indices, values and shape are equal, in the same order."""
        if not isinstance(other, SparseList):
            return NotImplemented
        same = (self.values, self.shape) == (other.values, other.shape)
        return same and torch.equal(self.indices, other.indices)

    __hash__ = None  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> SparseList:
        """Move the indices, like ``torch.Tensor.to``."""
        return SparseList(self.indices.to(*args, **kwargs), self.values, self.shape)

    def pin_memory(self) -> SparseList:
        """Pin the indices; DataLoader calls it."""
        return SparseList(self.indices.pin_memory(), self.values, self.shape)


class Nested(NamedTuple):
    """Values [N, *inner] and any number of row splits, outermost first; without row splits, a dense
    tensor.

    What readers make is of arrays for as long as it can: a thread that drops a tensor asks for the
    GIL.
    """

    values: Numbers
    dtype: torch.dtype
    row_splits: tuple[Numbers, ...] = ()

    @classmethod
    def of(cls, value: Any) -> Nested:
        """A ragged, jagged or dense value by its values and row splits."""
        if isinstance(value, cls):
            return value
        if isinstance(value, RaggedTensor):
            return cls(value.flat_values, value.flat_values.dtype, value.row_splits)
        if value.is_nested:
            return cls(value.values(), value.dtype, (value.offsets(),))
        return cls(value, value.dtype)

    @classmethod
    def rows_of(cls, column: object) -> Nested | None:
        """A column whose rows can be copied as bytes: dense, or with one ragged dimension and
        without gaps; None for any other.
        """
        if isinstance(column, Nested):
            return column if len(column.row_splits) == 1 else None
        if not isinstance(column, torch.Tensor):
            return None
        # torch refuses those whose bytes are not their values: to ask first would let go of the GIL.
        with suppress(RuntimeError, TypeError), as_plain_tensors():
            if column.layout != torch.jagged:
                return cls(as_array(column), column.dtype)
            parts = None if column.requires_grad else jagged_parts(column)
            if parts is not None:
                values, ends = map(as_array, parts)
                if ends[0] == 0 and ends[-1] == len(values):
                    return cls(values, column.dtype, (ends,))
        return None

    @property
    def num_rows(self) -> int:
        """Number of outermost rows."""
        return len(self.row_splits[0]) - 1 if self.row_splits else len(self.values)

    def tensors(self) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """The values and row splits as tensors of the same memory."""
        return _tensor(self.values, self.dtype), tuple(map(_tensor, self.row_splits))

    def arrays(self) -> tuple[npt.NDArray[Any], tuple[npt.NDArray[np.int64], ...]]:
        """The values and row splits as arrays of the same memory: see `as_array`."""
        return _array(self.values), tuple(map(_array, self.row_splits))


def _tensor(numbers: Numbers, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return numbers if isinstance(numbers, torch.Tensor) else as_tensor(numbers, dtype)


def _array(numbers: Numbers) -> npt.NDArray[Any]:
    return as_array(numbers) if isinstance(numbers, torch.Tensor) else numbers


def _join_nested(parts: Sequence[Nested]) -> Nested:
    """Join parts of one depth and inner shape as outermost rows."""
    # The parts become the outermost dimension.
    outer = splits_of([part.num_rows for part in parts])
    values, row_splits = zip(*[part.tensors() for part in parts], strict=True)
    levels = [_join_splits(level) for level in zip(*row_splits, strict=True)]
    return Nested(torch.cat(values), parts[0].dtype, (outer, *levels))


def _join_splits(parts: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    # Written in place: there may be many empty rows, and diff, cat and cumsum would hold them four
    # times.
    joined = np.zeros(1 + sum(len(splits) - 1 for splits in parts), np.int64)
    row = 1
    for splits in parts:
        end = row + len(splits) - 1
        np.add(splits[1:].numpy(force=True), joined[row - 1], out=joined[row:end])
        row = end
    return joined


def wrap_nested(nested: Nested) -> torch.Tensor | RaggedTensor:
    """Wrap in the simplest type that holds it: a tensor, a jagged nested tensor, or a
    RaggedTensor.
    """
    values, row_splits = nested.tensors()
    if not row_splits:
        return values
    if len(row_splits) > 1:
        return RaggedTensor(values, row_splits)
    # by the array, where there is one: even `Tensor.numpy` lets go of the GIL
    return jagged(values, row_splits[0], longest_of(nested.row_splits[0]))


def split_lists(values: list[Any], row_splits: Sequence[Sequence[int]]) -> list[Any]:
    """Nest a flat list by row splits, outermost first."""
    # From the inside out, as the lists of one level are the values of the one around it.
    for splits in reversed(row_splits):
        values = [values[low:high] for low, high in pairwise(splits)]
    return values


def make_sparse(
    indices: torch.Tensor, values: torch.Tensor | list[Any], shape: tuple[int, ...]
) -> torch.Tensor | SparseList:
    """Build a ``torch.sparse_coo`` tensor, or a SparseList if values are a list, without checking
    or sorting.
    """
    if isinstance(values, list):
        return SparseList(indices, values, shape)
    # torch trusts the flag: said of unsorted places, coalesce() would leave them so.
    return sparse(indices, values, shape, is_coalesced=_is_ascending(indices))


def stack(values: list[Value]) -> torch.Tensor | list[Value]:
    """Stack tensors of equal shape and dtype; return anything else as a list.

    Raises:
        LimitExceededError: See `reserve`.
    """
    kinds = {
        (item.shape, item.dtype) if isinstance(item, torch.Tensor) else None for item in values
    }
    if len(kinds) != 1 or None in kinds:
        return values
    first = values[0]
    if len(values) > 1:
        reserve(len(values) * first.nbytes)
    # A single tensor gets its dimension as a view, without a copy.
    stacked = torch.stack(values) if len(values) > 1 else first.as_subclass(torch.Tensor)[None]
    return as_kind_of(stacked, first)


def as_plain(batch: Value) -> Value:
    """A batch as users see it: its columns are plain tensors, as torch's own collate gives, since
    torch.compile does not take tv_tensors; ragged ones are in the simplest type that holds them.
    """
    if type(batch) is torch.Tensor:  # the usual case
        return batch
    if isinstance(batch, Nested):
        return as_plain(wrap_nested(batch))
    if isinstance(batch, dict):
        return {name: as_plain(column) for name, column in batch.items()}
    if type(batch) is tuple:
        return tuple(map(as_plain, batch))
    return batch.as_subclass(torch.Tensor) if isinstance(batch, tv_classes("TVTensor")) else batch


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
    if isinstance(column, tv_classes("TVTensor")):
        # Operations on a tv_tensor give plain tensors, so each row is wrapped again.
        return [as_kind_of(row, column) for row in column.as_subclass(torch.Tensor).unbind()]
    return column.unbind()


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
        make_sparse(indices[1:, begin:end], values[begin:end], shape[1:])
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def _is_ascending(indices: torch.Tensor) -> bool:
    """Whether indices [ndim, nnz] are sorted without duplicates, which torch calls coalesced."""
    is_less = torch.zeros(max(indices.shape[1] - 1, 0), dtype=torch.bool, device=indices.device)
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
    return wrap_nested(_join_nested(parts))


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
    rows = torch.repeat_interleave(
        torch.tensor([part.shape[1] for part in places], device=places[0].device)
    )
    indices = torch.cat([rows[None], torch.cat(places, dim=1)])
    is_list = isinstance(samples[0], SparseList)
    joined = list(chain.from_iterable(values)) if is_list else torch.cat(values)
    return make_sparse(indices, joined, (len(samples), *shapes.pop()))
