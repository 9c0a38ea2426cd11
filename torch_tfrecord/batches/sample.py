"""One sample of a block of columns: a dict that reads its values from the columns when somebody looks at them."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterable, KeysView, ValuesView
from typing import Any, Protocol

__all__ = ["FILLED", "UNSEEN", "Sample", "make_samples"]


UNSEEN = object()
"""Stands in a sample's memory for a value that nobody has looked at, and before the first look for all.

A plain object: the garbage collector does not look at those.
"""
FILLED = -(1 << 62)
"""The row of a sample all of whose values were looked at, or which has none."""


class RowBlock(Protocol):
    """Columns of which samples are rows."""

    @property
    def lock(self) -> Any:
        """Held where a sample is looked at for the first time."""

    @property
    def template(self) -> dict[Any, object]:
        """The columns' names."""

    def value(self, name: Any, row: int) -> Any:
        """One value."""

    def row(self, row: int) -> dict[Any, Any]:
        """All values of one row."""


class Sample(dict[Any, Any]):
    """A sample as the datasets give it: a dict, which is the row of a block of columns until somebody changes it.

    It holds its names from the first look at it on, and a value from the first look at that. So whoever makes a batch
    of samples that nobody has looked at joins rows of columns, and makes none of their values: `collate`, and torch's
    ``default_collate`` too. Copies, pickles and what functions of torch make of it are plain dicts.

    C code that reads a dict's memory, past the methods of its class, finds `UNSEEN`; of Python's own only what asks for
    exactly that does (``dict.items(sample)``). Before the first look that is the only key: C code that asks a dict for
    its size (`json`) would write an empty one, and 40 names for each sample take a fifth of a stream's time.
    """

    # The row is ~row once the names are there. No block: changed, or made by somebody else.
    __slots__ = ("_block", "_row")
    _block: RowBlock | None
    _row: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As a dict's own: this one is no row of a block."""
        super().__init__(*args, **kwargs)
        self._block, self._row = None, FILLED

    @property
    def is_unseen(self) -> bool:
        """Whether nobody has looked at a value, or changed anything."""
        return self._block is not None and self._row >= 0

    def _open(self) -> None:
        """Hold the names."""
        block = self._block
        if block is None or self._row < 0:
            return
        with block.lock:
            if self._row >= 0:
                dict.update(self, block.template)
                dict.pop(self, UNSEEN)
                self._row = ~self._row

    def _look(self, name: Any) -> Any:
        # Without a block there is nothing UNSEEN.
        value = self._block.value(name, ~self._row)  # type: ignore[union-attr]
        super().__setitem__(name, value)
        return value

    def _fill(self) -> None:
        """Look at everything."""
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
        """From here on the columns do not count."""
        self._fill()
        self._block = None

    # Reading.

    def __getitem__(self, name: Any) -> Any:
        if self._row >= 0:
            self._open()
        value = dict.__getitem__(self, name)
        return self._look(name) if value is UNSEEN else value

    def get(self, name: Any, default: Any = None) -> Any:
        """As of a dict."""
        if self._row >= 0:
            self._open()
        value = dict.get(self, name, default)
        return self._look(name) if value is UNSEEN else value

    def __len__(self) -> int:
        self._open()
        return super().__len__()

    def __contains__(self, name: object) -> bool:
        self._open()
        return super().__contains__(name)

    def __iter__(self) -> Any:
        # C code copies the memory of a dict whose class does not say this anew.
        self._open()
        return super().__iter__()

    def __reversed__(self) -> Any:
        self._open()
        return super().__reversed__()

    def keys(self) -> KeysView[Any]:  # type: ignore[override]
        """As of a dict."""
        self._open()
        return super().keys()

    def items(self) -> ItemsView[Any, Any]:  # type: ignore[override]
        """As of a dict."""
        self._fill()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """As of a dict."""
        self._fill()
        return super().values()

    def copy(self) -> dict[Any, Any]:
        """A plain dict."""
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

    __hash__ = None  # as of a dict

    def __or__(self, other: Any) -> Any:
        self._fill()
        return super().__or__(other)

    def __ror__(self, other: Any) -> Any:
        self._fill()
        return super().__ror__(other)

    def __repr__(self) -> str:
        self._fill()
        return super().__repr__()

    # Changing.

    def __setitem__(self, name: Any, value: Any) -> None:
        self._change()
        super().__setitem__(name, value)

    def __delitem__(self, name: Any) -> None:
        self._change()
        super().__delitem__(name)

    def __ior__(self, other: Any) -> Any:
        self._change()
        return super().__ior__(other)

    def clear(self) -> None:
        """As of a dict."""
        self._block, self._row = None, FILLED
        super().clear()

    def pop(self, *args: Any) -> Any:
        """As of a dict."""
        self._change()
        return super().pop(*args)

    def popitem(self) -> tuple[Any, Any]:
        """As of a dict."""
        self._change()
        return super().popitem()

    def setdefault(self, name: Any, default: Any = None) -> Any:
        """As of a dict."""
        self._change()
        return super().setdefault(name, default)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of a dict."""
        self._change()
        super().update(*args, **kwargs)


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
