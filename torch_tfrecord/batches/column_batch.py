"""A batch that is columns already, and yet a sequence of samples for whoever wants those."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableSequence
from typing import Any

import torch
from torchvision import tv_tensors

from torch_tfrecord.features.specs import mark_ragged
from torch_tfrecord.samples import Places, SampleList, check_for_torch, is_asked_by_torch
from torch_tfrecord.values.containers import SparseList, make_sparse

__all__ = ["ColumnBatch", "ColumnTransform"]


class ColumnBatch(MutableSequence[Any]):
    """What `TFRecordDataset.__getitems__` returns: the samples of several positions, held as columns.

    `collate` takes the columns as they are. Everything else sees a list of samples, which are made at the first look:
    sample i is what the dataset gives for position i alone. Tensors of samples are views of their column. From then
    on the samples count, since a collate function may change them, sort them or take some out.

    Args:
        columns: Columns by name, or a tuple of such mappings and columns, nested as one sample is. A column is what
            several values make as a batch, or a list of the values.
        num_samples: How many samples there are.
        places: The record of each, for errors; see `SampleList`.

    Example:
        >>> batch = ColumnBatch({"x": torch.tensor([4, 5]), "name": [b"a", b"b"]}, 2)
        >>> len(batch), batch[1]
        (2, {'x': tensor(5), 'name': b'b'})
    """

    def __init__(self, columns: Any, num_samples: int, places: Places | None = None) -> None:
        self._columns = columns
        self._num_samples = num_samples
        self._places = places
        self._samples: list[Any] | None = None

    @property
    def is_columns(self) -> bool:
        """Whether nobody has looked at the samples, so that the columns still say all."""
        return self._samples is None

    @property
    def columns(self) -> Any:
        """The columns as they were made."""
        return self._columns

    def __len__(self) -> int:
        return self._num_samples if self._samples is None else len(self._samples)

    @property
    def places(self) -> Places | None:
        """The record of each sample, by its number; None where nobody knows any more."""
        return self._places if self._samples is None else getattr(self._samples, "places", None)

    def located(self, places: Places) -> ColumnBatch:
        """This batch, with the record of each sample."""
        self._places = places
        return self

    def __getitem__(self, number: Any) -> Any:
        if number == 0 and is_asked_by_torch(sys._getframe(1)) and _may_differ(self._columns):
            check_for_torch(self._all(), self.places)
        return self._all()[number]

    def __setitem__(self, number: Any, sample: Any) -> None:
        self._all()[number] = sample

    def __delitem__(self, number: Any) -> None:
        del self._all()[number]

    def __iter__(self) -> Any:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, ColumnBatch) else other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other]

    def insert(self, index: int, value: Any) -> None:
        """As of a list."""
        self._all().insert(index, value)

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """As of a list: what many collate functions do before they pad."""
        self._all().sort(key=key, reverse=reverse)

    def _all(self) -> list[Any]:
        if self._samples is None:
            self._samples = SampleList(_samples(self._columns, self._num_samples), self._places)
        return self._samples

    def map(self, function: Callable[[Any], Any]) -> ColumnBatch:
        """The batch of other columns that a function makes of these."""
        return ColumnBatch(function(self._columns), self._num_samples, self._places)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_places": None}  # in another process nobody knows the records

    def __repr__(self) -> str:
        return f"ColumnBatch({len(self)} samples)"


class ColumnTransform:
    """A transform that knows what it does to columns, so that they need not be taken apart for it."""

    def __call__(self, sample: Any) -> Any:
        """Transform one sample."""
        raise NotImplementedError

    def columns(self, columns: Any) -> Any:
        """Transform the columns of a batch: the same as transforming each sample."""
        raise NotImplementedError


def _may_differ(columns: Any) -> bool:
    """Whether samples may have values of different sizes."""
    if isinstance(columns, (dict, tuple)):
        return any(map(_may_differ, columns.values() if isinstance(columns, dict) else columns))
    return not isinstance(columns, torch.Tensor) or columns.layout != torch.strided


def _samples(columns: Any, num_samples: int) -> list[Any]:
    if isinstance(columns, dict):
        if not columns:
            return [{} for _ in range(num_samples)]
        parts = [_samples(column, num_samples) for column in columns.values()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*parts, strict=True)]
    if isinstance(columns, tuple):
        return list(zip(*(_samples(column, num_samples) for column in columns), strict=True))
    if isinstance(columns, list):
        return columns
    if isinstance(columns, SparseList):
        return _sparse_rows(columns.indices, columns.values, columns.shape, True)
    if isinstance(columns, torch.Tensor):
        return _rows(columns)
    return [columns[number] for number in range(num_samples)]


def _rows(column: Any) -> list[Any]:
    if column.layout == torch.jagged:
        return [mark_ragged(row) for row in column.values().split(column.offsets().diff().tolist())]
    if column.layout == torch.sparse_coo:
        return _sparse_rows(column._indices(), column._values(), tuple(column.shape), column.is_coalesced())
    rows = column.as_subclass(torch.Tensor).unbind()
    if isinstance(column, tv_tensors.TVTensor):
        return [tv_tensors.wrap(row, like=column) for row in rows]
    return list(rows)


def _sparse_rows(indices: torch.Tensor, values: Any, shape: tuple[int, ...], is_coalesced: bool) -> list[Any]:
    """One sparse sample for each first index; those ascend."""
    ends = torch.bincount(indices[0], minlength=shape[0]).cumsum(0).tolist()
    return [
        make_sparse(indices[1:, begin:end], values[begin:end], shape[1:], is_coalesced=is_coalesced)
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
