"""View the lists of an episode as columns with one record per step, and find what determines the
number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import torch_tfrecord.tfds.features as f
from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST
from torch_tfrecord.columns.reading import Column as ReadColumn
from torch_tfrecord.columns.reading import LackingError, Want
from torch_tfrecord.columns.stacking import rows_of
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.tfds.episode_columns import Column, FeaturePlace
from torch_tfrecord.tfds.episode_reader import Frames, Values
from torch_tfrecord.tfds.leaf_table import LeafPlace, make_element
from torch_tfrecord.tfds.leaves import MAX_LENGTH, Leaf, running_sum

__all__ = ["LeafLists", "values_per_step"]

_Ints: TypeAlias = "npt.NDArray[np.int64]"


def values_per_step(leaves: Sequence[LeafPlace]) -> dict[str, int]:
    """Key of each step feature -> list values per step; 0 if the list does not determine it."""
    return {leaf.path: _per_step(leaf) for leaf in leaves}


def _per_step(leaf: LeafPlace) -> int:
    if len(leaf.lengths) > 1 or isinstance(leaf.feature, f.UnknownFeature):
        return 0
    return make_element(leaf).count or 0


class _Part(NamedTuple):
    """A list divided into records, each with rows of equal length.

    Attributes:
        values: The list.
        row_values: Values per row.
        ends: Row splits of the records; None for one row each.
    """

    values: Values
    row_values: int
    ends: _Ints | None = None

    def bounds(self, first: int, stop: int) -> _Ints:
        """Where the values of records `first` to `stop` - 1 begin and end."""
        rows = np.arange(first, stop + 1) if self.ends is None else self.ends[first : stop + 1]
        return rows * self.row_values


class LeafLists(Column):
    """A feature as its lists by key (int64 or float32 arrays, lists of bytes, or `Frames`), decoded
    when read.

    Args:
        leaf: Reads one record; for a step feature, one step without the sequence of steps around
            it.
        lists: The feature's lists.
        place: Where the feature is, for errors.
        num_steps: Number of steps to cut them into; None if they belong to a single record.

    Raises:
        ParseError: The lists do not fit the number of steps.
    """

    __slots__ = ("_leaf", "_lists", "_num_steps", "_parts", "_place")

    def __init__(
        self,
        leaf: Leaf,
        lists: Mapping[str, Values],
        place: FeaturePlace,
        num_steps: int | None = None,
    ) -> None:
        self._leaf, self._lists, self._place = leaf, lists, place
        self.num_bytes = sum(
            getattr(values, "nbytes", 64 * len(values)) for values in lists.values()
        )
        self._num_steps = 1 if num_steps is None else num_steps
        if num_steps is None:
            self._parts = {key: _Part(values, len(values)) for key, values in lists.items()}
        else:
            self._parts = _cut(leaf, lists, num_steps)

    def __len__(self) -> int:
        return self._num_steps

    def read(self, first: int, stop: int) -> list[Any]:
        """The values of steps `first` to `stop` - 1, as copies."""
        try:
            return self.values(first, stop)
        except TFRecordError as error:
            if stop == first + 1:
                raise self._place.at_step(error, first) from error.__cause__
            middle = (first + stop) // 2  # by halves, to raise the error of the first bad step
            return self.read(first, middle) + self.read(middle, stop)

    def values(self, first: int = 0, stop: int = 1) -> list[Any]:
        """`read`, with errors that do not name the step."""
        columns = [
            _column(want, self._parts.get(want.key), first, stop) for want in self._leaf.wants
        ]
        try:
            return list(rows_of(self._leaf.read(columns)))
        except LackingError as error:
            raise error.want.missing(self._lists) from None


def _cut(leaf: Leaf, lists: Mapping[str, Values], num_steps: int) -> dict[str, _Part]:
    """Cut the lists by step, under the keys that a record with only that step would have."""
    key, ends, total = leaf.key, None, num_steps
    if key in lists or f"{key}/ragged_row_lengths_0" not in lists:
        keys = (key, f"{key}/shape", f"{key}/value")
        return {each: _shares(lists[each], total) for each in keys if each in lists}
    parts: dict[str, _Part] = {}
    for level in range(len(leaf.lengths)):
        lengths = _found(Want(key, f"{key}/ragged_row_lengths_{level}", INT64_LIST, "sizes"), lists)
        if len(lengths) != total or (lengths < 0).any():
            least = f" with {lengths.min()}" if (lengths < 0).any() else ""
            raise ParseError(
                f"expected {total} row lengths of level {level}, of at least 0, got {len(lengths)}{least}"
            )
        if level:
            parts[f"{key}/ragged_row_lengths_{level - 1}"] = _Part(lengths, 1, ends)
        below = running_sum(np.minimum(lengths, MAX_LENGTH))
        ends, total = below if ends is None else below[ends], int(below[-1])
    flat = Want(key, f"{key}/ragged_flat_values", leaf.element.kind, leaf.element.what)
    if flat.key not in lists:
        raise flat.missing(lists)
    return {**parts, flat.key if parts else key: _shares(lists[flat.key], total, ends)}


def _found(want: Want, lists: Mapping[str, Values]) -> Any:
    if want.key not in lists:
        raise want.missing(lists)
    return lists[want.key]


def _shares(values: Any, total: int, ends: _Ints | None = None) -> _Part:
    """Divide a list into `total` rows of equal length; for `ends` see `_Part`."""
    if total and len(values) % total:
        raise ParseError(f"expected a multiple of {total} values, got {len(values)}")
    return _Part(values, len(values) // total if total else 0, ends)


def _column(want: Want, part: _Part | None, first: int, stop: int) -> ReadColumn:
    if part is None:
        num_records = stop - first
        values = np.zeros(
            (0, 2) if want.kind == BYTES_LIST else 0,
            np.float32 if want.kind == FLOAT_LIST else np.int64,
        )
        return ReadColumn(
            values, np.zeros(num_records + 1, np.int64), np.ones(num_records, np.uint8), b""
        )
    offsets = part.bounds(first, stop)
    begin, end = offsets[[0, -1]].tolist()
    offsets = offsets - begin
    found: Any = part.values
    if want.kind != BYTES_LIST:
        return ReadColumn(found[begin:end].copy(), offsets, None, b"")
    strings = found.read(begin, end) if isinstance(found, Frames) else found[begin:end]
    spans = np.empty((len(strings), 2), np.int64)
    spans[:, 1] = [*map(len, strings)]
    spans[:, 0] = spans[:, 1].cumsum() - spans[:, 1]
    return ReadColumn(spans, offsets, None, b"".join(strings))
