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
from torch_tfrecord.parsing.columns import join, labelled, list_lookup, read_each, strings
from torch_tfrecord.parsing.lookup import Lookup
from torch_tfrecord.protobuf.example import to_array
from torch_tfrecord.values.containers import make_sparse, stack_samples
from torch_tfrecord.values.dtypes import INT64_LIST, cast

__all__ = ["SparseReader"]

_Ints: TypeAlias = "npt.NDArray[np.int64]"
_MAX_INT64 = (1 << 63) - 1


class SparseReader:
    """Reads a SparseFeature."""

    def __init__(self, name: str, spec: SparseFeature) -> None:
        self._spec = spec
        self._values = list_lookup(name, spec.value_key, spec.dtype)
        self._indices = [Lookup(name, key, INT64_LIST, "index") for key in spec.index_key]

    def sample(self, record: Any) -> Any:
        """The array of one record."""
        found = self._values.find(record)
        count = 0 if found is None else len(found.value)
        indices = np.stack([self._read_index(record, axis, count) for axis in range(len(self._indices))])
        ascending = np.lexsort(indices[::-1])
        self._check_unique(indices[:, ascending])
        order = np.arange(count) if self._spec.already_sorted else ascending
        is_coalesced = self._spec.validate and bool((order == ascending).all())
        values = self._read_values(found, order)
        place = torch.from_numpy(indices[:, order])
        return make_sparse(place, values, self._spec.size, is_coalesced=is_coalesced)

    def batch(self, records: Sequence[Any]) -> Any:
        """The arrays of several records, [B, *size]."""
        shape = (len(records), *self._spec.size)
        if math.prod(shape) > _MAX_INT64:
            raise LimitExceededError(f"{self._values.label}: shape {[*shape]} has more elements than an int64 counts")
        samples = read_each(self.sample, records)
        if samples:
            return labelled(self._values, stack_samples, samples)
        values = self._read_values(None, np.zeros(0, np.int64))
        return make_sparse(torch.zeros(len(shape), 0, dtype=torch.int64), values, shape, is_coalesced=True)

    def _read_index(self, record: Any, axis: int, count: int) -> _Ints:
        lookup, size = self._indices[axis], self._spec.size[axis]
        found = lookup.find(record)
        index = np.zeros(0, np.int64) if found is None else to_array(found).astype(np.int64, copy=False)
        if len(index) != count:
            raise lookup.error(
                f"Dimensions {len(index)} and {count} are not compatible: expected an index for each of the "
                f"{count} values of key {self._values.key!r}, got {len(index)}"
            )
        outside = index[(index < 0) | (index >= size)]
        if len(outside):
            raise lookup.error(f"expected indices from 0 to {size - 1}, got {outside[0]}")
        return index

    def _check_unique(self, ordered: _Ints) -> None:
        repeated = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0).sum()
        if repeated and self._spec.validate:
            raise self._values.error(f"expected different indices, got {repeated} that repeat another")

    def _read_values(self, found: Any | None, order: _Ints) -> Any:
        dtype = self._spec.dtype
        if isinstance(dtype, torch.dtype):
            values = join([] if found is None else [found], dtype)
            return labelled(self._values, cast, values[order], dtype)
        values = [] if found is None else strings(self._values, found, dtype)
        return [values[place] for place in order]
