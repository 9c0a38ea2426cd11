"""Reader of SparseFeature: values and their indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.features.structured_specs import SparseFeature
from torch_tfrecord.parsing.columns import Column, is_ascending, labelled
from torch_tfrecord.parsing.wants import Want, list_want
from torch_tfrecord.values.containers import make_sparse
from torch_tfrecord.values.dtypes import INT64_LIST, cast

__all__ = ["SparseReader"]

_Ints: TypeAlias = "npt.NDArray[np.int64]"
_MAX_INT64 = (1 << 63) - 1


class SparseReader:
    """Reads a SparseFeature."""

    def __init__(self, name: str, spec: SparseFeature) -> None:
        self._spec = spec
        self._values = list_want(name, spec.value_key, spec.dtype)
        self._indices = [Want(name, key, INT64_LIST, "index") for key in spec.index_key]
        self.wants = (self._values, *self._indices)

    def read(self, columns: Sequence[Column]) -> Any:
        """The batch's column, [N, *size]: the record's number is the first index."""
        ends = columns[0].offsets
        shape = (len(ends) - 1, *self._spec.size)
        if math.prod(shape) > _MAX_INT64:
            raise LimitExceededError(f"{self._values.label}: shape {[*shape]} has more elements than an int64 counts")
        for want, column, size in zip(self._indices, columns[1:], self._spec.size, strict=True):
            self._check(want, column, size, np.diff(ends))
        rows = np.repeat(np.arange(shape[0]), np.diff(ends))
        indices = np.stack([rows, *(column.values for column in columns[1:])])
        ascending = np.lexsort(indices[::-1])
        self._check_unique(indices[:, ascending])
        order = np.arange(len(rows)) if self._spec.already_sorted else ascending
        place = torch.from_numpy(np.take(indices, order, axis=1))
        return make_sparse(place, self._in_order(columns[0], order), shape, is_coalesced=is_ascending(place))

    def _check(self, want: Want, column: Column, size: int, counts: _Ints) -> None:
        found = np.diff(column.offsets)
        if (found != counts).any():
            row = int((found != counts).argmax())
            raise want.error(
                f"Dimensions {found[row]} and {counts[row]} are not compatible: expected an index for each of the "
                f"{counts[row]} values of key {self._values.key!r}, got {found[row]}"
            )
        outside = column.values[(column.values < 0) | (column.values >= size)]
        if len(outside):
            raise want.error(f"expected indices from 0 to {size - 1}, got {outside[0]}")

    def _check_unique(self, ordered: _Ints) -> None:
        repeated = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0).sum()
        if repeated and self._spec.validate:
            raise self._values.error(f"expected different indices, got {repeated} that repeat another")

    def _in_order(self, column: Column, order: _Ints) -> Any:
        dtype = self._spec.dtype
        if isinstance(dtype, torch.dtype):
            return labelled(self._values, cast, column.values[order], dtype)
        values = labelled(self._values, column.strings, dtype)
        return [values[place] for place in order]
