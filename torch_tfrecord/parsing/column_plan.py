"""The plan by which records are read: what the readers want, and where the compiled core puts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from torch_tfrecord.batch_memory import empty_bytes
from torch_tfrecord.errors import ParseError
from torch_tfrecord.features.columns import NO_OFFSETS, Column, Want, reserve_for
from torch_tfrecord.native import native_module
from torch_tfrecord.parsing.message_columns import columns_of
from torch_tfrecord.protobuf.example import parse_message
from torch_tfrecord.protobuf.messages import Example
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind

__all__ = ["ColumnPlan", "PlanPart", "Slot", "Wanting", "plain_form_of", "ways"]

# Field numbers in a Feature message.
_FIELDS: dict[ListKind, int] = {BYTES_LIST: 1, FLOAT_LIST: 2, INT64_LIST: 3}
# Dense columns may be that much larger than what they are read from, plus 64 MiB: an int64 of one byte becomes eight,
# and records may lack a feature that has a default. Beyond, it is first looked whether the records fit.
_MAX_GROWTH = 16
_FREE_BYTES = 1 << 26


class Slot:
    """A column of a plan.

    Attributes:
        want: What it holds.
        key: What makes it another column than others.
        dtype: Of its array.
        tail: Shape of one record's values, of a known number.
        row_bytes: Of these.
    """

    def __init__(self, want: Want) -> None:
        self.want, count = want, want.num_values
        self.key = want.key, want.kind, count
        self.dtype: Any = np.dtype(np.float32 if want.kind is FLOAT_LIST else np.int64)
        self.tail = (() if count in (1, None) else (count,)) + ((2,) if want.kind is BYTES_LIST else ())
        self.row_bytes = 0 if count is None else math.prod(self.tail) * self.dtype.itemsize
        self.of_core = want.key.encode(), _FIELDS[want.kind], -1 if count is None else count, want.is_required
        # By size of a value, so that each is aligned in the block, and those of one shape lie side by side.
        self.order = want.kind is FLOAT_LIST, *self.of_core[1:3], want.shape, want.what

    def from_memory(self, memory: Any) -> Any:
        """The values of any number that the core found."""
        array = np.frombuffer(memory, self.dtype) if memoryview(memory).nbytes else np.zeros(0, self.dtype)
        return array.reshape(-1, *self.tail)


class Wanting(Protocol):
    """Who wants something of records, as every `Reader`."""

    @property
    def wants(self) -> tuple[Want, ...]:
        """What."""


class ColumnPlan:
    """What several readers want, each key once. Never changes once built; threads may share it.

    Where readers want one key in different ways (another list, another number of values) the records are gone through
    once more for each way.

    Args:
        readers: The readers, in the order of the outputs.

    Attributes:
        parts: One for each time that the records are gone through.
        places: For each reader the numbers of its columns among those of all parts.
    """

    def __init__(self, readers: Sequence[Wanting]) -> None:
        self.parts = [PlanPart(way) for way in ways(want for reader in readers for want in reader.wants)]
        place = {slot.key: number for number, slot in enumerate(slot for part in self.parts for slot in part.slots)}
        self.places = [[place[Slot(want).key] for want in reader.wants] for reader in readers]
        seen: set[int] = set()
        self._picks = []
        for places in self.places:
            self._picks.append(_picker(places, is_shared=not seen.isdisjoint(places)))
            seen.update(places)

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[Sequence[Column]]]:
        """Read records.

        Args:
            records: The records of one or more batches, one behind the other.
            borders: Where each batch begins, from 0 on, and where the last one ends.

        Returns:
            For each batch, for every reader the columns that it wants.

        Raises:
            ParseError: Some record is malformed or does not fit what is wanted; not always the first one.
        """
        found = self.parts[0].read(records, borders)
        for part in self.parts[1:]:
            found = [[*columns, *more] for columns, more in zip(found, part.read(records, borders), strict=True)]
        return [[pick(columns) for pick in self._picks] for columns in found]


class PlanPart:
    """Of a plan the wants of different keys, which are read by one call of the core, or by its twin."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = sorted(slots, key=lambda slot: slot.order)
        self._wants = [slot.want for slot in self.slots]
        native = native_module("columns")
        self.core: Any = None if native is None else native.Plan([slot.of_core for slot in self.slots])
        self.any_places = [number for number, slot in enumerate(self.slots) if slot.want.num_values is None]
        self._dense_places = [number for number in range(len(self.slots)) if number not in self.any_places]
        self.begins = [0, *accumulate(slot.row_bytes for slot in self.slots)]
        self._groups = _groups([slot for slot in self.slots if slot.want.num_values is not None])

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[Column]]:
        """As of `ColumnPlan.read`: for each batch the columns of the wants."""
        if self.begins[-1] * len(records) > _MAX_GROWTH * records.buffer.nbytes + _FREE_BYTES:
            self._check_growth(records)
        if self.core is None:
            messages = [parse_message(record).features.feature for record in records]
            return [columns_of(self._wants, messages[begin:end]) for begin, end in pairwise(borders)]
        starts, lengths = np.ascontiguousarray(records.starts), np.ascontiguousarray(records.lengths)
        num_records = len(records)
        buffer: Any = records.buffer
        block = empty_bytes(self.begins[-1] * num_records)
        offsets = np.empty((len(self.any_places), num_records + 1), np.int64)
        missing = np.zeros((len(self.slots), num_records), np.uint8)
        found = self.core.parse(
            buffer, starts, lengths, block, offsets, missing, lambda row: plain_form_of(records[row])
        )
        if found is None:
            raise ParseError("expected records that fit the features")
        memories, lacks, extras = found
        lacking = [] if lacks is None else [place for place, is_lacking in enumerate(lacks) if is_lacking]
        buffer = b"".join([buffer, *extras]) if extras else buffer
        dense = self._dense(block, num_records)
        pairs = zip(self.any_places, memories, strict=True)
        values = [self.slots[place].from_memory(memory) for place, memory in pairs]
        batches = []
        # Forty columns of a small batch: what is done for each of them counts.
        for begin, end in pairwise(borders):
            columns: list[Any] = [None] * len(self.slots)
            for place, array in dense:
                columns[place] = Column(array[begin:end], NO_OFFSETS, None, buffer)
            for place, array, ends in zip(self.any_places, values, offsets, strict=True):
                first, last = ends[begin], ends[end]
                columns[place] = Column(array[first:last], ends[begin : end + 1] - first, None, buffer)
            for place in lacking:
                lacks = missing[place, begin:end]
                columns[place] = columns[place]._replace(missing=lacks if lacks.any() else None)
            batches.append(columns)
        return batches

    def _check_growth(self, records: PackedRecords) -> None:
        for record in records:
            columns_of(self._wants, [parse_message(record).features.feature])
        for slot in self.slots:
            reserve_for(slot.want, slot.row_bytes * len(records))

    def row_column(self, found: tuple[Any, Sequence[Any], bytes | None], place: int, record: Any) -> Column:
        """One column of a record that the core's `parse_one` read, of what it found."""
        slot, (block, memories, lacking) = self.slots[place], found
        missing = None if lacking is None or not lacking[place] else np.frombuffer(lacking, np.uint8, 1, place)
        if slot.want.num_values is None:
            values = slot.from_memory(memories[self.any_places.index(place)])
            return Column(values, np.array([0, len(values)]), missing, record)
        if not slot.row_bytes:
            return Column(np.zeros((1, *slot.tail), slot.dtype), NO_OFFSETS, missing, record)
        values = np.frombuffer(block, slot.dtype, slot.row_bytes // slot.dtype.itemsize, self.begins[place])
        return Column(values.reshape(1, *slot.tail), NO_OFFSETS, missing, record)

    def _dense(self, block: Any, num_records: int) -> list[tuple[int, Any]]:
        """The numbers and arrays of the dense columns; of those of one shape the block is taken apart at once."""
        parts: list[Any] = []
        begin = 0
        for number, slot in self._groups:
            end = begin + number * num_records * slot.row_bytes
            parts.extend(block[begin:end].view(slot.dtype).reshape(number, num_records, *slot.tail))
            begin = end
        return list(zip(self._dense_places, parts, strict=True))


def ways(wants: Iterable[Want]) -> list[Iterable[Slot]]:
    """The wants, each once, such that no key is in a list twice."""
    ways: list[dict[str, Slot]] = [{}]
    for slot in map(Slot, wants):
        name = slot.want.key
        way = next((way for way in ways if way.get(name, slot).key == slot.key), None)
        if way is None:
            ways.append(way := {})
        if name not in way or slot.want.is_required:
            way[name] = slot
    return [way.values() for way in ways]


def _picker(places: Sequence[int], *, is_shared: bool) -> Callable[[Sequence[Column]], Sequence[Column]]:
    """What takes a reader's columns out of all; copies where they are another reader's, whose tensors they become."""
    take = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
    return (lambda columns: [*map(_copied, take(columns))]) if is_shared else take


def _copied(column: Column) -> Column:
    return column._replace(values=column.values.copy(), offsets=column.offsets.copy())


def _groups(slots: Iterable[Slot]) -> list[tuple[int, Slot]]:
    """Neighbours of one kind and count: how many, and one of them."""
    groups = [list(group) for _, group in groupby(slots, key=lambda slot: slot.order[:3])]
    return [(len(group), group[0]) for group in groups]


def plain_form_of(record: Any, message_class: Any = Example) -> bytes:
    """The record as every writer makes it, which the core reads.

    Raises:
        ParseError: It is no such message.
    """
    message = parse_message(record, message_class)
    message.DiscardUnknownFields()
    form: bytes = message.SerializeToString(deterministic=True)
    return form
