"""One sample of a block of columns: a dict that reads each value from its column on first
access; and how untouched samples become columns again.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.batch_memory import Array, Ints, as_tensor, empty_bytes
from torch_tfrecord.columns import Nested, RaggedTensor, SparseList, rows_of
from torch_tfrecord.extensions import attached
from torch_tfrecord.samples import (
    WHOLE_KINDS,
    Columns,
    Samples,
    Value,
    is_listed,
    mark_listed,
)

__all__ = [
    "Sample",
    "SampleBlock",
    "is_plain",
    "join_samples",
    "take_apart",
    "to_html",
]

UNSEEN = object()
"""Marks in a sample's dict a value that was not accessed yet; before the first access, its only key.

A plain object, which the garbage collector does not track.
"""


def to_html(value: object) -> str:
    """A sample, a batch or a dataset as a table for a notebook; the extension for media draws it."""
    return attached("media", "to_html")(value)


class Sample(dict[Any, Value]):
    """A sample from a dataset: a dict that stays a row of a block of columns until you change it.

    Its names are filled in on the first access, and each value on the first access to that value.
    So `collate` and torch's ``default_collate`` can make a batch of untouched samples by joining
    rows of columns, without making any value. Copies, pickles and what torch's functions make of it
    are plain dicts.

    C code that reads the dict's memory directly, past the methods of this class, finds `UNSEEN`; in
    Python itself only code that asks for exactly that does (``dict.items(sample)``). Before the
    first access it is the only key: with no key at all, C code that checks a dict's size (`json`)
    would write an empty one, and filling in 40 names for each sample takes a fifth of a stream's
    time.
    """

    # The row is ~row once the names are filled in. There is no block if it was changed, or not made
    # from one.
    __slots__ = ("_block", "_row")
    _block: SampleBlock | None
    _row: int

    def __init__(self, *args: Any, **kwargs: Value) -> None:
        """Make a sample that is not a row of a block, like ``dict``."""
        super().__init__(*args, **kwargs)
        self._block, self._row = None, -1

    @property
    def is_unseen(self) -> bool:
        """Whether no value was accessed and nothing was changed."""
        return self._block is not None and self._row >= 0

    def _open(self) -> None:
        """Fill in the names."""
        block = self._block
        if block is None or self._row < 0:
            return
        with block.lock:
            if self._row >= 0:
                # Names first: another thread that does not wait must not see an empty dict.
                dict.update(self, block.template)
                dict.pop(self, UNSEEN)
                self._row = ~self._row

    def _look(self, name: object) -> Value:
        # Without a block no value is UNSEEN.
        value = self._block.values(name)[~self._row]  # type: ignore[union-attr]
        super().__setitem__(name, value)
        return value

    def _fill(self) -> None:
        """Fill in all values."""
        self._open()
        block = self._block
        if block is not None:
            for name, value in super().items():
                if value is UNSEEN:
                    super().__setitem__(name, block.values(name)[~self._row])

    def _change(self) -> None:
        """Detach the sample from its columns before a change."""
        self._fill()
        self._block = None

    # Reading.

    def __getitem__(self, name: object) -> Value:
        if self._row >= 0:
            self._open()
        value = dict.__getitem__(self, name)
        return self._look(name) if value is UNSEEN else value

    def get(self, name: object, default: Value = None) -> Value:
        """Like the method of ``dict``."""
        if self._row >= 0:
            self._open()
        value = dict.get(self, name, default)
        return self._look(name) if value is UNSEEN else value

    def copy(self) -> dict[Any, Value]:
        """Copy to a plain dict."""
        return dict(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Value]:
        return copy.deepcopy(self.copy(), memo)

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[dict[Any, Value]]]:
        return dict, (self.copy(),)

    def __eq__(self, other: object) -> bool:
        self._fill()
        if isinstance(other, Sample):
            other._fill()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        self._fill()
        if isinstance(other, Sample):
            other._fill()
        return super().__ne__(other)

    __hash__ = None  # like a dict
    _repr_html_ = to_html

    def clear(self) -> None:
        """Like the method of ``dict``."""
        self._block, self._row = None, -1
        super().clear()


def _prepare_first(prepare: Callable[[Sample], None], names: str) -> None:
    """Have methods of ``dict`` prepare the sample for them."""

    def wrap(method: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(method)
        def call(self: Sample, *args: object, **kwargs: object) -> object:
            prepare(self)
            return method(self, *args, **kwargs)

        return call

    for name in names.split():
        setattr(Sample, name, wrap(getattr(dict, name)))


# Without `__iter__`, C code copies a dict's memory directly.
_prepare_first(Sample._open, "__len__ __contains__ __iter__ __reversed__ keys")
_prepare_first(Sample._fill, "items values __or__ __ror__ __repr__")
_prepare_first(Sample._change, "__setitem__ __delitem__ __ior__ pop popitem setdefault update")


class SampleBlock:
    """The columns of several samples, by name. A sample's values are made on first access, and
    kept.

    Tensors of samples are views of their column, so an in-place change of one changes the column,
    but no batch.

    Args:
        columns: As for `ColumnBatch`; only those by name have samples.
        num_rows: Number of samples.
        again: Parses the columns once more, into new memory: then a batch may `take` rows of them.

    Attributes:
        again, num_rows: The same.
        lock: Held during the first access to a sample or column.
        template: The columns' names, with a mark for a value that was not accessed.
    """

    __slots__ = (
        "_columns",
        "_is_read",
        "_num_taken",
        "_values",
        "again",
        "lock",
        "num_rows",
        "template",
    )

    def __init__(
        self, columns: Columns, num_rows: int, again: Callable[[], Columns] | None = None
    ) -> None:
        self._columns, self.num_rows, self.again = columns, num_rows, again
        self.lock = threading.RLock()
        names = columns if isinstance(columns, dict) else ()
        self.template: dict[Any, object] = dict.fromkeys(names, UNSEEN)
        self._is_read, self._num_taken = False, 0
        self._values: dict[Any, Samples] = {}

    @property
    def columns(self) -> Columns:
        """The columns; parsed again if a batch took them."""
        return self.read(-1)

    def read(self, first: int) -> Columns:
        """The columns, to copy rows from the first of these on."""
        with self.lock:
            # Rows after those that were taken are nobody else's; the batch may have changed those.
            if self._columns is None or first < self._num_taken:
                if self._num_taken:
                    self._columns, self._num_taken = self.again(), 0  # type: ignore[misc]
                self._is_read = True
            return self._columns

    def take(self, begin: int, end: int) -> Columns | None:
        """The columns of some rows, for one batch only; None if it must copy, as another batch or
        sample may share the memory.
        """
        with self.lock:
            if self.again is None or self._is_read or begin < self._num_taken:
                return None
            found = self._columns
            # All rows are the columns themselves, whatever their kind.
            if end - begin < self.num_rows:
                found = {name: _cut(column, begin, end) for name, column in found.items()}
                if any(column is None for column in found.values()):
                    return None
            # Rows are taken in ascending order, so that one number says which ones.
            self._num_taken = end
            if end == self.num_rows:
                self._columns = None
            return found

    def samples(self, num_rows: int) -> list[Sample]:
        """New samples of the first rows."""
        samples = []
        new, set_item = dict.__new__, dict.__setitem__
        for row in range(num_rows):
            sample = new(Sample)
            set_item(sample, UNSEEN, UNSEEN)
            sample._block, sample._row = self, row
            samples.append(sample)
        return samples

    def values(self, name: object) -> Samples:
        """The values of a column."""
        values = self._values.get(name)
        if values is None:  # if two threads make the values, the first one's are kept
            values = self._values.setdefault(name, take_apart(self.columns[name], self.num_rows))
        return values


def take_apart(columns: Columns, num_rows: int) -> Samples:
    """The value of each row; for columns by name, or a tuple of columns, the samples."""
    if isinstance(columns, dict):
        return SampleBlock(columns, num_rows).samples(num_rows)
    if isinstance(columns, (list, torch.Tensor, Nested, RaggedTensor, SparseList)):
        return rows_of(columns)
    if isinstance(columns, tuple):
        return list(zip(*(take_apart(column, num_rows) for column in columns), strict=True))
    return [columns[number] for number in range(num_rows)]


def is_plain(column: object) -> bool:
    """Whether a column is a tensor whose bytes in this process's memory are its values."""
    return (
        isinstance(column, torch.Tensor)
        and column.layout == torch.strided
        and column.device.type == "cpu"
        and not (column.is_nested or column.requires_grad or column.is_conj() or column.is_neg())
    )


def _cut(column: Columns, begin: int, end: int) -> Columns | None:
    """Some rows of a column, not copied; None if that cannot be done."""
    if isinstance(column, list):
        return column[begin:end]
    rows = Nested.rows_of(column)
    if rows is None:
        return None
    values, row_splits = rows.arrays()
    if not row_splits:
        # Not a slice of the tensor, which would share its version counter: a change of one batch in
        # place would break backward for all others.
        return as_tensor(values[begin:end], rows.dtype)
    offsets = row_splits[0][begin : end + 1]
    return Nested(values[offsets[0] : offsets[-1]], rows.dtype, (offsets - offsets[0],))


# Samples that nobody changed: a batch is joined from rows of their columns.

# In C: a batch has many samples.
_BLOCK, _ROW = attrgetter("_block"), attrgetter("_row")
# A block, some of its rows, and their places in a batch; slices if they are neighbours.
_Rows: TypeAlias = "slice | Ints"
_Pick: TypeAlias = tuple[SampleBlock, _Rows, _Rows]


def join_samples(samples: Samples) -> Columns | None:
    """The columns whose rows the samples are, for one batch only; None if one was changed or is not
    a `Sample`.

    A feature that was accessed is the list of the samples' values, since those may have been
    changed in place.
    """
    # A subclass or a plain dict may have anything in it.
    if set(map(type, samples)) != {Sample}:
        return None
    found = [*map(_BLOCK, samples)]
    # By identity: blocks do not compare, and a set would need their hash.
    blocks = [*dict(zip(map(id, found), found, strict=True)).values()]
    if None in blocks or any(
        block.template.keys() != blocks[0].template.keys() for block in blocks
    ):
        return None
    names = list(blocks[0].template)
    rows = np.fromiter(map(_ROW, samples), np.int64, len(samples))
    chosen = _neighbours(rows)
    if len(blocks) == 1 and isinstance(chosen, slice) and chosen.start >= 0:
        taken = blocks[0].take(chosen.start, chosen.stop)
        if taken is not None:
            return taken
    # A sample that was not accessed cannot have been changed.
    unseen = names
    for number in np.flatnonzero(rows < 0).tolist():
        unseen = [name for name in unseen if dict.__getitem__(samples[number], name) is UNSEEN]
    rows = np.where(rows < 0, ~rows, rows)
    places: dict[int, list[int]] = {id(block): [] for block in blocks}
    for number, block in enumerate(found if len(blocks) > 1 else ()):
        places[id(block)].append(number)
    numbers = [np.array(each or range(len(rows))) for each in places.values()]
    picks = [
        (block, _neighbours(rows[each]), _neighbours(each))
        for block, each in zip(blocks, numbers, strict=True)
    ]
    columns: Columns = {}
    for name in names:
        column = _join_column(name, picks, len(samples)) if name in unseen else None
        values = [sample[name] for sample in samples] if column is None else column
        columns[name] = [*map(_own, values)] if type(values) is list else values
    return columns


def _neighbours(numbers: Ints) -> _Rows:
    first, end = int(numbers[0]), int(numbers[-1]) + 1
    is_slice = end - first == len(numbers) and bool((np.diff(numbers) == 1).all())
    return slice(first, end) if is_slice else numbers


def _join_column(name: object, picks: Sequence[_Pick], num_rows: int) -> Columns | None:
    """The picked rows of one feature, in new memory; None if only its values can be collated."""
    blocks, rows, places = zip(*picks, strict=True)
    firsts = [each.start if isinstance(each, slice) else int(each.min()) for each in rows]
    columns = [block.read(first)[name] for block, first in zip(blocks, firsts, strict=True)]
    if all(isinstance(column, list) for column in columns):
        objects = [np.fromiter(column, object, len(column)) for column in columns]
        return _join_arrays(objects, rows, places, num_rows).tolist()
    found = [part for part in map(Nested.rows_of, columns) if part is not None]
    kinds = {(part.dtype, part.values.shape[1:], len(part.row_splits)) for part in found}
    if len(found) < len(columns) or len(kinds) > 1:
        return None
    dtype = found[0].dtype
    # By NumPy: torch's threads take longer to sync than one to copy.
    values, splits = zip(*[part.arrays() for part in found], strict=True)
    if not splits[0]:
        return as_tensor(_join_arrays(values, rows, places, num_rows), dtype)
    offsets = [ends for (ends,) in splits]
    # First each row's length in its place, then their sums: the offsets of the joined rows.
    ends = np.zeros(num_rows + 1, np.int64)
    for each, row, place in zip(offsets, rows, places, strict=True):
        ends[1:][place] = np.diff(each)[row]
    np.cumsum(ends, out=ends)
    joined = _join_arrays(
        values,
        [*map(_value_rows, offsets, rows)],
        [_value_rows(ends, place) for place in places],
        int(ends[-1]),
    )
    return Nested(joined, dtype, (ends,))


def _join_arrays(
    arrays: Sequence[Array], rows: Sequence[_Rows], places: Sequence[_Rows], num_rows: int
) -> Array:
    shape, kind = (num_rows, *arrays[0].shape[1:]), arrays[0].dtype
    if kind.hasobject:
        joined = np.empty(shape, object)
    else:
        joined = empty_bytes(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)
    alike = [joined, *arrays]
    if joined.size and joined.dtype != object and all(each.flags.c_contiguous for each in alike):
        # Each row as one item: NumPy lets go of the GIL for more than 500, and waits for it then.
        alike = [each.reshape(-1).view(f"V{joined[0].nbytes}") for each in alike]
    for array, row, place in zip(alike[1:], rows, places, strict=True):
        alike[0][place] = array[row]
    return joined


def _value_rows(offsets: Ints, rows: _Rows) -> _Rows:
    """The values of some rows of a jagged column."""
    if isinstance(rows, slice):
        return slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    begins, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    # For each value its row's begin, plus its number within the row.
    ends = lengths.cumsum()
    return np.repeat(begins - ends + lengths, lengths) + np.arange(int(ends[-1]))


def _own(value: Value) -> Value:
    """A copy of what a batch would list as it is; other tensors are about to be stacked."""
    if isinstance(value, (bytes, str)):
        return value
    if type(value) is list:  # strings, or lists
        return [*map(_own, value)] if value and type(value[0]) is list else value[:]
    if type(value) is dict:
        return {name: _own(part) for name, part in value.items()}
    if is_listed(value):
        return mark_listed(copy.deepcopy(value))  # a copy of a tv_tensor has no marks
    return copy.deepcopy(value) if isinstance(value, WHOLE_KINDS) else value
