"""The SparseFeature spec (values and their indices), and its reader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.columns.containers import SparseList, is_ascending, make_sparse
from torch_tfrecord.columns.dtypes import DType, check_key, check_list_dtype, fixed_shape
from torch_tfrecord.columns.feature import Feature, Layout
from torch_tfrecord.columns.reading import Column, Reader, Want, labelled
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.samples import Value

__all__ = ["SparseFeature"]

_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True, repr=False)
class SparseFeature(Feature):
    """The values of a sparse array and their indices.

    A sample is a ``torch.sparse_coo`` tensor of ``size``, a batch [B, *size]; with dtype ``bytes``
    or ``str``, a :class:`SparseList`. A record that lacks all the keys has no values.

    Args:
        index_key: Key of the int64_list of indices, or a list of keys, one per dimension of
            ``size``.
        value_key: Key of the values; as many as indices, else ParseError.
        dtype: See :class:`FixedLenFeature`.
        size: Size of the array, or a list of sizes.
        already_sorted: Keep the values in the stored order; by default they are sorted by index.
        key: Not supported; use index_key and value_key.
        validate: Raise ParseError for duplicate indices. False keeps both, as in TensorFlow, and
            torch adds them up when you make the tensor dense. An index out of range always raises
            ParseError, as torch would otherwise access memory out of bounds.

    Raises:
        TypeError: The dtype is unknown, or keys or sizes have another type.
        ValueError: The numbers of keys and sizes differ, a size is negative, or ``key`` is given.

    Example:
        >>> SparseFeature(["row", "column"], "value", torch.float32, [100, 3])
        SparseFeature(('row', 'column'), 'value', torch.float32, (100, 3))
    """

    _may_lack = True

    index_key: tuple[str, ...]
    value_key: str
    dtype: DType
    size: tuple[int, ...]
    already_sorted: bool = False
    validate: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.key is not None:
            raise ValueError("key is not supported by SparseFeature: use index_key and value_key")
        keys = (self.index_key,) if isinstance(self.index_key, str) else tuple(self.index_key)
        for name, key in (*(("index_key", key) for key in keys), ("value_key", self.value_key)):
            check_key(name, key)
        check_list_dtype(self.dtype)
        size = fixed_shape(self.size)
        if len(size) != len(keys) or not keys:
            raise ValueError(
                f"index_key and size have to have equal lengths, at least 1, got {len(keys)} keys and {len(size)} sizes"
            )
        object.__setattr__(self, "index_key", keys)
        object.__setattr__(self, "size", size)

    def _layout(self) -> dict[str, Layout]:
        place = (len(self.size),) if len(self.size) > 1 else ()
        return {
            "indices": (torch.int64, (None, *place)),
            "values": (self.dtype, (None,)),
        }

    def _reader(self, name: str, *, pads: bool = False) -> Reader:
        """Build the reader for Examples."""
        return _SparseReader(name, self)


class _SparseReader:
    """Reads a SparseFeature: [N, *size], with the record's number as first index."""

    def __init__(self, name: str, spec: SparseFeature) -> None:
        self._spec = spec
        self._values = Want(name, spec.value_key, spec.dtype)
        self._indices = [Want(name, key, torch.int64, "index") for key in spec.index_key]
        self.wants = (self._values, *self._indices)

    def read(self, columns: Sequence[Column]) -> torch.Tensor | SparseList:
        """The batch's column."""
        ends = columns[0].offsets
        shape = (len(ends) - 1, *self._spec.size)
        # torch counts the elements of a sparse tensor in an int64, too.
        if math.prod(shape) > _MAX_INT64:
            raise LimitExceededError(
                f"{self._values.label}: shape {[*shape]} has more elements than an int64 counts"
            )
        for want, column, size in zip(self._indices, columns[1:], self._spec.size, strict=True):
            self._check(want, column, size, np.diff(ends))
        # The number of the record is the first index of each of its values.
        rows = np.repeat(np.arange(shape[0]), np.diff(ends))
        indices = np.stack([rows, *(column.values for column in columns[1:])])
        # lexsort sorts by the last key first.
        ascending = np.lexsort(indices[::-1])
        self._check_unique(indices[:, ascending])
        order = np.arange(len(rows)) if self._spec.already_sorted else ascending
        place = torch.from_numpy(np.take(indices, order, axis=1))
        # torch trusts the flag: said of unsorted places, coalesce() would leave them so.
        return make_sparse(
            place, self._in_order(columns[0], order), shape, is_coalesced=is_ascending(place)
        )

    def _check(self, want: Want, column: Column, size: int, counts: Ints) -> None:
        found = np.diff(column.offsets)
        if (found != counts).any():
            row = int((found != counts).argmax())
            raise want.error(
                f"Dimensions {found[row]} and {counts[row]} are not compatible: expected an index for each of the "
                f"{counts[row]} values of key {self._values.key!r}, got {found[row]}"
            )
        # Always checked, as torch reads and writes out of bounds otherwise.
        outside = column.values[(column.values < 0) | (column.values >= size)]
        if len(outside):
            raise want.error(f"expected indices from 0 to {size - 1}, got {outside[0]}")

    def _check_unique(self, ordered: Ints) -> None:
        # They are sorted, so duplicates are neighbours.
        repeated = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0).sum()
        if repeated and self._spec.validate:
            raise self._values.error(f"expected distinct indices, got {repeated} duplicates")

    def _in_order(self, column: Column, order: Ints) -> torch.Tensor | list[Value]:
        dtype = self._spec.dtype
        if isinstance(dtype, torch.dtype):
            return labelled(self._values, Column.cast, column.values[order], dtype)
        values = labelled(self._values, column.strings, dtype)
        return [values[place] for place in order]
