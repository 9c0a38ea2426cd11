"""The plan for reading records: what the readers want, and where the compiled core puts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from torch_tfrecord.batch_memory import empty_bytes
from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind
from torch_tfrecord.columns.message_columns import columns_of
from torch_tfrecord.columns.reading import NO_OFFSETS, Column, Want, reserve_for
from torch_tfrecord.errors import ParseError
from torch_tfrecord.native import native_module
from torch_tfrecord.protobuf.messages import Example, parse_message
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["ColumnPlan", "PlanPart", "Slot", "Wanting", "plain_form_of", "ways"]

# Field numbers in a Feature message.
_FIELDS: dict[ListKind, int] = {BYTES_LIST: 1, FLOAT_LIST: 2, INT64_LIST: 3}
# Dense columns may be this much larger than the bytes they are read from, plus 64 MiB: an int64 of
# one byte becomes eight, and records may lack a feature with a default. Beyond that, check first
# that the records fit.
_MAX_GROWTH = 16
_FREE_BYTES = 1 << 26


class Slot:
    """A column of a plan.

    Attributes:
        want: What it holds.
        key: Identifies the column; equal wants share one.
        dtype: Dtype of its array.
        tail: Shape of one record's values, if their number is known.
        row_bytes: Bytes of one record's values.
    """

    def __init__(self, want: Want) -> None:
        self.want, count = want, want.num_values
        self.key = want.key, want.kind, count
        self.dtype: Any = np.dtype(np.float32 if want.kind is FLOAT_LIST else np.int64)
        self.tail = (() if count in (1, None) else (count,)) + (
            (2,) if want.kind is BYTES_LIST else ()
        )
        self.row_bytes = 0 if count is None else math.prod(self.tail) * self.dtype.itemsize
        self.of_core = (
            want.key.encode(),
            _FIELDS[want.kind],
            -1 if count is None else count,
            want.is_required,
        )
        # Sorted by value size, so that each is aligned in the block, and equal shapes are
        # contiguous.
        self.order = want.kind is FLOAT_LIST, *self.of_core[1:3], want.shape, want.what

    def from_memory(self, memory: Any) -> Any:
        """The values that the core found, for any number of values."""
        array = (
            np.frombuffer(memory, self.dtype)
            if memoryview(memory).nbytes
            else np.zeros(0, self.dtype)
        )
        return array.reshape(-1, *self.tail)


class Wanting(Protocol):
    """An object that wants something from records, such as a `Reader`."""

    @property
    def wants(self) -> tuple[Want, ...]:
        """What it wants."""


class ColumnPlan:
    """What several readers want, with each key once. Immutable, so threads may share it.

    If readers want the same key in different ways (another kind of list, another number of values),
    each way takes another pass over the records.

    Args:
        readers: The readers, in the order of the outputs.

    Attributes:
        parts: One per pass over the records.
        places: For each reader, the numbers of its columns among those of all parts.
    """

    def __init__(self, readers: Sequence[Wanting]) -> None:
        self.parts = [
            PlanPart(way) for way in ways(want for reader in readers for want in reader.wants)
        ]
        place = {
            slot.key: number
            for number, slot in enumerate(slot for part in self.parts for slot in part.slots)
        }
        self.places = [[place[Slot(want).key] for want in reader.wants] for reader in readers]
        seen: set[int] = set()
        self._picks = []
        for places in self.places:
            self._picks.append(_picker(places, is_shared=not seen.isdisjoint(places)))
            seen.update(places)

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[Sequence[Column]]]:
        """Read records.

        Args:
            records: The concatenated records of one or more batches.
            borders: The start of each batch, beginning with 0, and the end of the last one.

        Returns:
            For each batch, the columns that each reader wants.

        Raises:
            ParseError: A record is malformed or does not fit; not always the first such record.
        """
        found = self.parts[0].read(records, borders)
        for part in self.parts[1:]:
            found = [
                [*columns, *more]
                for columns, more in zip(found, part.read(records, borders), strict=True)
            ]
        return [[pick(columns) for pick in self._picks] for columns in found]


class PlanPart:
    """A part of a plan with distinct keys, read by one call of the core or the Python fallback."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = sorted(slots, key=lambda slot: slot.order)
        self._wants = [slot.want for slot in self.slots]
        native = native_module("columns")
        self.core: Any = (
            None if native is None else native.Plan([slot.of_core for slot in self.slots])
        )
        self.any_places = [
            number for number, slot in enumerate(self.slots) if slot.want.num_values is None
        ]
        self._dense_places = [
            number for number in range(len(self.slots)) if number not in self.any_places
        ]
        self.begins = [0, *accumulate(slot.row_bytes for slot in self.slots)]
        self._groups = _groups([slot for slot in self.slots if slot.want.num_values is not None])

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[Column]]:
        """The columns of the wants for each batch; see `ColumnPlan.read`."""
        if self.begins[-1] * len(records) > _MAX_GROWTH * records.buffer.nbytes + _FREE_BYTES:
            self._check_growth(records)
        if self.core is None:
            messages = [parse_message(record).features.feature for record in records]
            return [
                columns_of(self._wants, messages[begin:end]) for begin, end in pairwise(borders)
            ]
        starts, lengths = (
            np.ascontiguousarray(records.starts),
            np.ascontiguousarray(records.lengths),
        )
        num_records = len(records)
        buffer: Any = records.buffer
        block = empty_bytes(self.begins[-1] * num_records)
        offsets = np.empty((len(self.any_places), num_records + 1), np.int64)
        missing = np.zeros((len(self.slots), num_records), np.uint8)
        found = self.core.parse(
            buffer,
            starts,
            lengths,
            block,
            offsets,
            missing,
            lambda row: plain_form_of(records[row]),
        )
        if found is None:
            raise ParseError("expected records that fit the features")
        memories, lacks, extras = found
        lacking = (
            [] if lacks is None else [place for place, is_lacking in enumerate(lacks) if is_lacking]
        )
        buffer = b"".join([buffer, *extras]) if extras else buffer
        dense = self._dense(block, num_records)
        pairs = zip(self.any_places, memories, strict=True)
        values = [self.slots[place].from_memory(memory) for place, memory in pairs]
        batches = []
        # A small batch may have forty columns, so the work per column matters.
        for begin, end in pairwise(borders):
            columns: list[Any] = [None] * len(self.slots)
            for place, array in dense:
                columns[place] = Column(array[begin:end], NO_OFFSETS, None, buffer)
            for place, array, ends in zip(self.any_places, values, offsets, strict=True):
                first, last = ends[begin], ends[end]
                columns[place] = Column(
                    array[first:last], ends[begin : end + 1] - first, None, buffer
                )
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

    def row_column(
        self, found: tuple[Any, Sequence[Any], bytes | None], place: int, record: Any
    ) -> Column:
        """One column of a single record, copied from the result of the core's `parse_one`: several
        may read it.
        """
        slot, (block, memories, lacking) = self.slots[place], found
        missing = (
            None
            if lacking is None or not lacking[place]
            else np.frombuffer(lacking, np.uint8, 1, place)
        )
        if slot.want.num_values is None:
            values = slot.from_memory(memories[self.any_places.index(place)]).copy()
            return Column(values, np.array([0, len(values)]), missing, record)
        if not slot.row_bytes:
            return Column(np.zeros((1, *slot.tail), slot.dtype), NO_OFFSETS, missing, record)
        values = np.frombuffer(
            block, slot.dtype, slot.row_bytes // slot.dtype.itemsize, self.begins[place]
        )
        return Column(values.reshape(1, *slot.tail).copy(), NO_OFFSETS, missing, record)

    def _dense(self, block: Any, num_records: int) -> list[tuple[int, Any]]:
        """The numbers and arrays of the dense columns; the block of columns with equal shape is
        split in one call.
        """
        parts: list[Any] = []
        begin = 0
        for number, slot in self._groups:
            end = begin + number * num_records * slot.row_bytes
            parts.extend(block[begin:end].view(slot.dtype).reshape(number, num_records, *slot.tail))
            begin = end
        return list(zip(self._dense_places, parts, strict=True))


def ways(wants: Iterable[Want]) -> list[Iterable[Slot]]:
    """Group the distinct wants, so that no key is twice in a group."""
    ways: list[dict[str, Slot]] = [{}]
    for slot in map(Slot, wants):
        name = slot.want.key
        way = next((way for way in ways if way.get(name, slot).key == slot.key), None)
        if way is None:
            ways.append(way := {})
        if name not in way or slot.want.is_required:
            way[name] = slot
    return [way.values() for way in ways]


def _picker(
    places: Sequence[int], *, is_shared: bool
) -> Callable[[Sequence[Column]], Sequence[Column]]:
    """Build the function that selects a reader's columns; copies columns that become the tensors of
    another reader.
    """
    take = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
    return (lambda columns: [*map(_copied, take(columns))]) if is_shared else take


def _copied(column: Column) -> Column:
    return column._replace(values=column.values.copy(), offsets=column.offsets.copy())


def _groups(slots: Iterable[Slot]) -> list[tuple[int, Slot]]:
    """Runs of slots with equal kind and count: the length of each run, and one slot of it."""
    groups = [list(group) for _, group in groupby(slots, key=lambda slot: slot.order[:3])]
    return [(len(group), group[0]) for group in groups]


def plain_form_of(record: Any, message_class: Any = Example) -> bytes:
    """Re-encode a record in the canonical form that the core reads.

    Raises:
        ParseError: The record is not such a message.
    """
    message = parse_message(record, message_class)
    message.DiscardUnknownFields()
    form: bytes = message.SerializeToString(deterministic=True)
    return form
