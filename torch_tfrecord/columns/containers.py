"""Containers for values that torch has no tensor for: several ragged dimensions, and sparse
strings.

torch supports one ragged dimension (a jagged nested tensor) and sparse numbers
(``torch.sparse_coo``). Only values beyond that have a class here. Strings with ragged dimensions
are nested lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.batch_memory import as_array, as_tensor, splits_of
from torch_tfrecord.torch_internals import (
    as_plain_tensors,
    jagged,
    jagged_parts,
    longest_of,
    sparse,
)

__all__ = [
    "Nested",
    "Numbers",
    "RaggedTensor",
    "SparseList",
    "join_nested",
    "make_sparse",
    "nest_rows",
    "split_lists",
    "wrap_nested",
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


def join_nested(parts: Sequence[Nested], template: Nested) -> Nested:
    """Join parts as outermost rows; all have the depth and inner shape of ``template``, which has
    no rows.
    """
    # The parts become the outermost dimension.
    outer = splits_of([part.num_rows for part in parts])
    if not parts:
        return template._replace(row_splits=(outer, *template.row_splits))
    values, row_splits = zip(*[part.tensors() for part in parts], strict=True)
    levels = [_join_splits(level) for level in zip(*row_splits, strict=True)]
    return Nested(torch.cat(values), template.dtype, (outer, *levels))


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


def nest_rows(
    values: npt.NDArray[Any] | list[Any], dtype: Any, row_splits: Sequence[npt.NDArray[np.int64]]
) -> Nested | list[Any]:
    """Numbers as a `Nested`, strings as nested lists; row splits outermost first."""
    if isinstance(values, list):
        return split_lists(values, [splits.tolist() for splits in row_splits])
    return Nested(values, dtype, tuple(row_splits))


def make_sparse(
    indices: torch.Tensor,
    values: torch.Tensor | list[Any],
    shape: tuple[int, ...],
    *,
    is_coalesced: bool,
) -> torch.Tensor | SparseList:
    """Build a ``torch.sparse_coo`` tensor, or a SparseList if values are a list, without checking
    or sorting.
    """
    if isinstance(values, list):
        return SparseList(indices, values, shape)
    return sparse(indices, values, shape, is_coalesced=is_coalesced)
