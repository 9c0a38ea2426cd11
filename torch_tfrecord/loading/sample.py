"""One sample of a block of columns: a dict that reads each value from its column on first
access.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from torch_tfrecord.batch_memory import as_tensor
from torch_tfrecord.columns import Nested, RaggedTensor, SparseList, rows_of
from torch_tfrecord.extensions import attached
from torch_tfrecord.samples import Columns, Samples, Value

__all__ = [
    "FILLED",
    "UNSEEN",
    "Sample",
    "SampleBlock",
    "is_plain",
    "take_apart",
    "to_html",
]

UNSEEN = object()
"""Marks in a sample's dict a value that was not accessed yet; before the first access, its only key.

A plain object, which the garbage collector does not track.
"""
FILLED = -(1 << 62)
"""The row of a sample whose values were all accessed, or that is not a row of a block."""


def to_html(value: object) -> str:
    """A sample, a batch or a dataset as a table for a notebook; the extension for media draws it."""
    return cast("Callable[[object], str]", attached("media", "to_html"))(value)


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
        self._block, self._row = None, FILLED

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
        value = self._block.value(name, ~self._row)  # type: ignore[union-attr]
        super().__setitem__(name, value)
        return value

    def _fill(self) -> None:
        """Fill in all values."""
        block = self._block
        if block is None or self._row == FILLED:
            return
        self._open()
        with block.lock:
            row = self._row
            if row != FILLED:
                values = block.row(~row)
                for name, value in super().items():
                    if value is UNSEEN:
                        super().__setitem__(name, values[name])
                self._row = FILLED

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
        self._block, self._row = None, FILLED
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

    Attributes:
        again: Parses the columns once more, into new memory; if it is known, a batch may `take` the
            columns.
        lock: Held during the first access to a sample or column.
        template: The columns' names, with a mark for a value that was not accessed.
    """

    __slots__ = (
        "_columns",
        "_is_read",
        "_num_taken",
        "_rows",
        "_values",
        "again",
        "lock",
        "num_rows",
        "template",
    )

    def __init__(self, columns: Columns, num_rows: int) -> None:
        self._columns, self.num_rows = columns, num_rows
        self.again: Callable[[], Columns] | None = None
        self.lock = threading.RLock()
        names = columns if isinstance(columns, dict) else ()
        self.template: dict[Any, object] = dict.fromkeys(names, UNSEEN)
        self._is_read, self._num_taken = False, 0
        self._values: dict[Any, Samples] = {}
        self._rows: list[tuple[Value, ...]] | None = None

    @property
    def columns(self) -> Columns:
        """The columns; parsed again if a batch took them."""
        with self.lock:
            # The batch may have changed what it took.
            if self._num_taken:
                self._columns, self._num_taken = self.again(), 0  # type: ignore[misc]
            self._is_read = True
            return self._columns

    def read(self, first: int) -> Columns:
        """The columns, to copy rows from the first of these on."""
        with self.lock:
            # Rows after those that were taken are nobody else's.
            is_here = self._columns is not None and first >= self._num_taken
            return self._columns if is_here else self.columns

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

    def samples(self, rows: Iterable[int] | None = None) -> list[Sample]:
        """New samples of some rows, or of all."""
        samples = []
        new, set_item = dict.__new__, dict.__setitem__
        for row in range(self.num_rows) if rows is None else rows:
            sample = new(Sample)
            set_item(sample, UNSEEN, UNSEEN)
            sample._block, sample._row = self, row
            samples.append(sample)
        return samples

    def value(self, name: object, row: int) -> Value:
        """One value."""
        return self._split(name)[row]

    def _split(self, name: object) -> Samples:
        """The values of a column."""
        values = self._values.get(name)
        if values is None:  # if two threads make the values, the first one's are kept
            values = self._values.setdefault(name, take_apart(self.columns[name], self.num_rows))
        return values

    def row(self, row: int) -> Value:
        """All values of one row."""
        if self._rows is None:
            self._rows = list(zip(*map(self._split, self.template), strict=True))
        return dict(zip(self.template, self._rows[row], strict=True)) if self.template else {}


def take_apart(columns: Columns, num_rows: int) -> Samples:
    """The value of each row; for columns by name, or a tuple of columns, the samples."""
    if isinstance(columns, dict):
        return SampleBlock(columns, num_rows).samples()
    if isinstance(columns, (list, torch.Tensor, Nested, RaggedTensor, SparseList)):
        rows: Samples = rows_of(columns)
        return rows
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
