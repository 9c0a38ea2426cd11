"""Read one record into the values of a sample with one call of the compiled core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.columns.column_plan import ColumnPlan, Slot
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.reading import Reader, read_columns
from torch_tfrecord.columns.stacking import mark_ragged, rows_of
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.native import native_module

__all__ = ["RowPlan"]

_Found: TypeAlias = "tuple[Any, list[Any], bytes | None]"  # of the core's `parse_one`


class RowPlan:
    """Reads the row of a batch of one.

    Numbers that need no cast are stored in blocks of equal shape, which torch splits in one call:
    that costs less than creating each tensor. Single strings are sliced from the record, and lists
    of any length built from what the core found. Other features, and those missing from the record,
    are read like the columns of a batch.

    Args:
        readers: The readers, in the order of the outputs.
        budget: Creates the memory budget of a sample.
    """

    def __init__(
        self, readers: Sequence[Reader], budget: Callable[[], AbstractContextManager[None]]
    ) -> None:
        plan = ColumnPlan(readers)
        self._readers, self._budget, self._places = readers, budget, plan.places
        self._part = plan.parts[0]
        self._is_useful = self._part.core is not None and len(plan.parts) == 1
        if not self._is_useful:
            return
        native: Any = native_module("columns")
        self._string_at, self._strings_in = native.string_at, native.strings_in
        users = [place for places in plan.places for place in places]
        slots = self._part.slots
        own = {
            places[0]: number
            for number, (reader, places) in enumerate(zip(readers, plan.places, strict=True))
            if getattr(reader, "is_plain", False) and users.count(places[0]) == 1
        }
        plain = {place: number for place, number in own.items() if slots[place].want.num_values}
        numbers = [place for place in sorted(plain) if slots[place].want.kind is not BYTES_LIST]
        self._plain, self._blocks = plain, [*map(self._block, _runs(slots, numbers))]
        # First among the slots, and so in the values.
        strings = sorted(plain.keys() - {*numbers})
        self._strings = [
            (self._part.begins[place], getattr(readers[plain[place]], "is_text", False))
            for place in strings
        ]
        lists = [
            (place, number) for place, number in own.items() if slots[place].want.num_values is None
        ]
        self._lists = [
            (self._part.any_places.index(place), *self._list(readers[number], slots[place]))
            for place, number in lists
        ]
        quick = [*(plain[place] for place in sorted(plain)), *(number for _, number in lists)]
        self._others = [number for number in range(len(readers)) if number not in quick]
        found = [*quick, *self._others]
        order = sorted(range(len(found)), key=found.__getitem__)
        self._in_order: Callable[[list[Any]], Any] = (
            list if order == sorted(order) else itemgetter(*order)
        )

    def read(self, record: Any, key: int) -> Sequence[Any] | None:
        """The values of a record, in the order of the readers.

        Args:
            record: The record's bytes.
            key: See ``ExampleParser.single``.

        Returns:
            None without a core, or if the record is not plain or does not fit: the caller then
            falls back to protobuf messages, which find the values or raise the error.
        """
        if not self._is_useful or not isinstance(record, (bytes, bytearray, memoryview)):
            return None
        if type(record) is not bytes:
            record = bytes(record)  # a view may have other item sizes, or change meanwhile
        found: _Found | None = self._part.core.parse_one(record)
        if found is None:
            return None
        at = self._string_at
        try:
            values: list[Any] = [
                at(record, found[0], begin, is_text) for begin, is_text in self._strings
            ]
            lists = [
                self._strings_in(record, found[1][place], is_text)
                if dtype is None
                else _numbers(found[1][place], dtype)
                for place, dtype, is_text in self._lists
            ]
        except UnicodeDecodeError:
            return None
        for begin, count, dtype, shape in self._blocks:
            block = torch.frombuffer(found[0], dtype=dtype, count=count, offset=begin)
            values += (block if len(shape) == 1 else block.view(shape)).unbind()
        values += lists
        if not self._others and found[2] is None:
            ordered: Sequence[Any] = self._in_order(values)
            return ordered
        try:
            with self._budget():
                values += [self._value(number, found, record, key) for number in self._others]
                return self._completed(self._in_order(values), found, record, key)
        except TFRecordError:
            return None

    def _completed(
        self, values: Sequence[Any], found: _Found, record: Any, key: int
    ) -> Sequence[Any]:
        """Fill in the defaults of plain features that the record lacks."""
        if found[2] is None:
            return values
        completed = list(values)
        for place, number in self._plain.items():
            if found[2][place]:
                completed[number] = self._value(number, found, record, key)
        return completed

    def _value(self, number: int, found: _Found, record: Any, key: int) -> Any:
        columns = [self._part.row_column(found, place, record) for place in self._places[number]]
        return rows_of(read_columns(self._readers[number], columns, key))[0]

    def _block(self, places: Sequence[int]) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
        """First byte, number of values, dtype and shape of a run of slots."""
        first, begins = self._part.slots[places[0]], self._part.begins
        count = (begins[places[-1] + 1] - begins[places[0]]) // first.dtype.itemsize
        return begins[places[0]], count, _dtype(first), (len(places), *first.want.shape)

    def _list(self, reader: Any, slot: Slot) -> tuple[torch.dtype | None, bool]:
        """The dtype of a list of any length (None for strings), and whether strings are str."""
        return None if slot.want.kind is BYTES_LIST else _dtype(slot), getattr(
            reader, "is_text", False
        )


def _dtype(slot: Slot) -> torch.dtype:
    return torch.float32 if slot.dtype == np.float32 else torch.int64


def _numbers(memory: Any, dtype: torch.dtype) -> torch.Tensor:
    has_values = memoryview(memory).nbytes > 0
    return mark_ragged(
        torch.frombuffer(memory, dtype=dtype) if has_values else torch.empty(0, dtype=dtype)
    )


def _runs(slots: Sequence[Any], places: Sequence[int]) -> list[list[int]]:
    """Split ascending places into runs of equal shape and dtype."""
    numbered = enumerate(places)
    runs = groupby(numbered, key=lambda item: (item[1] - item[0], slots[item[1]].order[:4]))
    return [[place for _, place in run] for _, run in runs]
