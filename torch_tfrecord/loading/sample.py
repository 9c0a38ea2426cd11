"""One sample of a block of columns: a dict that reads each value from its column on first
access.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

__all__ = ["FILLED", "UNSEEN", "Sample", "make_samples"]


UNSEEN = object()
"""Marks in a sample's dict a value that was not accessed yet; before the first access, its only key.

A plain object, which the garbage collector does not track.
"""
FILLED = -(1 << 62)
"""The row of a sample whose values were all accessed, or that is not a row of a block."""


class RowBlock(Protocol):
    """Columns whose rows are samples."""

    @property
    def lock(self) -> Any:
        """Held during the first access to a sample."""

    @property
    def template(self) -> dict[Any, object]:
        """The columns' names."""

    def value(self, name: Any, row: int) -> Any:
        """One value."""

    def row(self, row: int) -> dict[Any, Any]:
        """All values of one row."""


def _after(prepare: Callable[[Any], None], method: Callable[..., Any]) -> Any:
    """A method of ``dict`` on a sample that is prepared for it."""

    @functools.wraps(method)
    def prepare_first(self: Sample, *args: Any, **kwargs: Any) -> Any:
        prepare(self)
        return method(self, *args, **kwargs)

    return prepare_first


class Sample(dict[Any, Any]):
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
    _block: RowBlock | None
    _row: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
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
                dict.update(self, block.template)
                dict.pop(self, UNSEEN)
                self._row = ~self._row

    def _look(self, name: Any) -> Any:
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

    def __getitem__(self, name: Any) -> Any:
        if self._row >= 0:
            self._open()
        value = dict.__getitem__(self, name)
        return self._look(name) if value is UNSEEN else value

    def get(self, name: Any, default: Any = None) -> Any:
        """Like the method of ``dict``."""
        if self._row >= 0:
            self._open()
        value = dict.get(self, name, default)
        return self._look(name) if value is UNSEEN else value

    __len__ = _after(_open, dict.__len__)
    __contains__ = _after(_open, dict.__contains__)
    __iter__ = _after(_open, dict.__iter__)  # without it, C code copies a dict's memory directly
    __reversed__ = _after(_open, dict.__reversed__)
    keys = _after(_open, dict.keys)
    items = _after(_fill, dict.items)
    values = _after(_fill, dict.values)
    __or__ = _after(_fill, dict.__or__)
    __ror__ = _after(_fill, dict.__ror__)
    __repr__ = _after(_fill, dict.__repr__)

    def copy(self) -> dict[Any, Any]:
        """Copy to a plain dict."""
        return dict(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return copy.deepcopy(self.copy(), memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[type[dict[Any, Any]], tuple[dict[Any, Any]]]:
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

    # Changing.

    __setitem__ = _after(_change, dict.__setitem__)
    __delitem__ = _after(_change, dict.__delitem__)
    __ior__ = _after(_change, dict.__ior__)
    pop = _after(_change, dict.pop)
    popitem = _after(_change, dict.popitem)
    setdefault = _after(_change, dict.setdefault)
    update = _after(_change, dict.update)

    def clear(self) -> None:
        """Like the method of ``dict``."""
        self._block, self._row = None, FILLED
        super().clear()


def make_samples(block: RowBlock, rows: Iterable[int]) -> list[Sample]:
    """The samples of some rows of a block."""
    samples = []
    new, set_item = dict.__new__, dict.__setitem__
    for row in rows:
        sample = new(Sample)
        set_item(sample, UNSEEN, UNSEEN)
        sample._block, sample._row = block, row
        samples.append(sample)
    return samples
