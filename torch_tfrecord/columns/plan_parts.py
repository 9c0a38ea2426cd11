"""The parts of a plan for reading records: which columns one pass fills, and one batch's work on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import numpy as np

from torch_tfrecord.batch_memory import Array, empty_bytes
from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind
from torch_tfrecord.columns.message_columns import columns_of
from torch_tfrecord.columns.reading import NO_OFFSETS, Buffer, Column, Want, reserve_for
from torch_tfrecord.errors import ParseError
from torch_tfrecord.native import native_module
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import PackedRecords

__all__ = ["Found", "Memory", "PartWork", "PlanPart", "Slot", "plain_form_of", "ways"]

# Field numbers in a Feature message.
_FIELDS: dict[ListKind, int] = {BYTES_LIST: 1, FLOAT_LIST: 2, INT64_LIST: 3}
# Dense columns may be this much larger than the bytes they are read from, plus 64 MiB: an int64 of
# one byte becomes eight, and records may lack a feature with a default. Beyond that, check first
# that the records fit.
_MAX_GROWTH = 16
# A placeholder: every place of a batch's list gets its own column before a reader sees it.
_NOTHING = Column(NO_OFFSETS, NO_OFFSETS, None, b"")
_FREE_BYTES = 1 << 26
Memory: TypeAlias = Any
"""Memory of the core, by Python's buffer protocol, which has no type before 3.12."""
Found: TypeAlias = "tuple[Memory, list[Memory], bytes | None]"
"""What the core's `parse_one` returns: the block, each list of any length, which keys are lacking."""


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
        # Without the output's name and dtype: outputs that cast one list differently share its
        # column.
        self.key = want.key, want.kind, count
        # Strings are pairs of int64, where each lies, so that floats alone have another dtype.
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if want.kind is FLOAT_LIST else np.int64)
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

    def from_memory(self, memory: Memory) -> Array:
        """The values that the core found, for any number of values."""
        array = (
            np.frombuffer(memory, self.dtype)
            if memoryview(memory).nbytes
            else np.zeros(0, self.dtype)
        )
        return array.reshape(-1, *self.tail)


class PlanPart:
    """A part of a plan with distinct keys, read in one pass over the records."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = sorted(slots, key=lambda slot: slot.order)
        self.wants = [slot.want for slot in self.slots]
        native = native_module("columns")
        self.core: Any = (
            None if native is None else native.Plan([slot.of_core for slot in self.slots])
        )
        self.parse_job: Any = getattr(native, "ParseJob", None)
        self.jobs: Any = native_module("jobs")
        self.any_places = [
            number for number, slot in enumerate(self.slots) if slot.want.num_values is None
        ]
        self._dense_places = [
            number for number in range(len(self.slots)) if number not in self.any_places
        ]
        self.begins = [0, *accumulate(slot.row_bytes for slot in self.slots)]
        self._groups = _groups([slot for slot in self.slots if slot.want.num_values is not None])

    def check_growth(self, records: PackedRecords) -> None:
        """Check that records fit, if they are so short that they could make gigabytes of defaults."""
        if self.begins[-1] * len(records) <= _MAX_GROWTH * records.memory.nbytes + _FREE_BYTES:
            return
        for record in records:
            # One record at a time, so that no more than one message is in memory.
            self.explain(record)
        for slot in self.slots:
            reserve_for(slot.want, slot.row_bytes * len(records))

    def explain(self, record: Buffer) -> None:
        """Read one record by its message, whose error says all that is wrong.

        Raises:
            ParseError: It does not fit.
        """
        columns_of(self.wants, [parse_message(record).features.feature])

    def row_column(self, found: Found, place: int, record: Buffer) -> Column:
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
            # Copied: the same memory may be the tensor of another reader.
            values = slot.from_memory(memories[self.any_places.index(place)]).copy()
            return Column(values, np.array([0, len(values)]), missing, record)
        if not slot.row_bytes:
            return Column(np.zeros((1, *slot.tail), slot.dtype), NO_OFFSETS, missing, record)
        values = np.frombuffer(
            block, slot.dtype, slot.row_bytes // slot.dtype.itemsize, self.begins[place]
        )
        return Column(values.reshape(1, *slot.tail).copy(), NO_OFFSETS, missing, record)

    def dense(self, block: Array, num_records: int) -> Iterable[tuple[int, Array]]:
        """The numbers and arrays of the dense columns; those of equal shape are split in one call."""
        parts: list[Array] = []
        begin = 0
        for number, slot in self._groups:
            shape = number, num_records, *slot.tail
            parts.extend(np.ndarray(shape, slot.dtype, block, begin))
            begin += number * num_records * slot.row_bytes
        return zip(self._dense_places, parts, strict=True)


class PartWork:
    """A batch's columns of a plan's part, and the job that fills those of a known number of values.

    Args:
        part: The part.
        records: The records of this and perhaps other batches.
        begin, end: Which of them.

    Attributes:
        columns: For each slot; complete once this is finished.
        job: None without the compiled core, and once this is finished.
    """

    def __init__(self, part: PlanPart, records: PackedRecords, begin: int, end: int) -> None:
        self._part, self._records, self._begin = part, records, begin
        self.job: Any = None
        # Without the compiled core, messages give the same columns, only more slowly.
        if part.core is None:
            messages = [parse_message(record).features.feature for record in records[begin:end]]
            self.columns = columns_of(part.wants, messages)
            return
        num_records = end - begin
        # A block for each batch, so that it can be copied to a device in one piece.
        block = empty_bytes(part.begins[-1] * num_records)
        self._offsets = np.empty((len(part.any_places), num_records + 1), np.int64)
        # np.zeros lets go of the GIL for so many
        zeros = bytearray(len(part.slots) * num_records)
        self._missing = np.frombuffer(zeros, np.uint8).reshape(len(part.slots), num_records)
        # The core fills dense columns in place; lists of any length grow in memory of its own. It
        # walks records without strides, and they may be columns of a wider array, as those of a
        # SequenceExample's contexts are.
        self.job = part.parse_job(
            part.core,
            records.memory,
            np.ascontiguousarray(records.starts[begin:end]),
            np.ascontiguousarray(records.lengths[begin:end]),
            block,
            self._offsets,
            self._missing,
        )
        self.columns = [_NOTHING] * len(part.slots)
        for place, array in part.dense(block, num_records):
            self.columns[place] = Column(array, NO_OFFSETS, None, records.memory)

    def finish(self) -> list[Column]:
        """The columns, completed with the records that the job left.

        Raises:
            ParseError: A record does not fit.
        """
        (job, self.job), part, columns = (self.job, None), self._part, self.columns
        if job is None:
            return columns
        found = job.finish(lambda row: plain_form_of(self._records[self._begin + row]))
        if found is None:
            # The core says neither which record nor why: the caller reads them again one by one for
            # that.
            raise ParseError("expected records that fit the features")
        memories, lacks, extras = found
        buffer: Buffer = self._records.memory
        for place, memory, ends in zip(part.any_places, memories, self._offsets, strict=True):
            columns[place] = Column(part.slots[place].from_memory(memory), ends, None, buffer)
        for place in () if lacks is None else itertools.compress(range(len(columns)), lacks):
            columns[place] = columns[place]._replace(missing=self._missing[place])
        if extras:
            # Records in an unusual form were encoded anew; their strings stand behind the others.
            buffer = b"".join([buffer, *extras])
            columns[:] = [column._replace(buffer=buffer) for column in columns]
        return columns


def ways(wants: Iterable[Want]) -> list[Iterable[Slot]]:
    """Group the distinct wants, so that no key is twice in a group."""
    ways: list[dict[str, Slot]] = [{}]
    for slot in map(Slot, wants):
        name = slot.want.key
        # Equal wants share a slot; another kind or count of the same key needs another pass.
        way = next((way for way in ways if way.get(name, slot).key == slot.key), None)
        if way is None:
            ways.append(way := {})
        # Of equal wants the required one stays, so that a missing key is found by the core.
        if name not in way or slot.want.is_required:
            way[name] = slot
    return [way.values() for way in ways]


def _groups(slots: Iterable[Slot]) -> list[tuple[int, Slot]]:
    """Runs of slots with equal kind and count: the length of each run, and one slot of it."""
    groups = [list(group) for _, group in groupby(slots, key=lambda slot: slot.order[:3])]
    return [(len(group), group[0]) for group in groups]


def plain_form_of(record: Buffer, kind: str = "Example") -> bytes:
    """Re-encode a record in the canonical form that the core reads.

    Raises:
        ParseError: The record is not such a message.
    """
    message = parse_message(record, kind)
    # Else they would be written again, and the core refuses fields that it does not know.
    message.DiscardUnknownFields()
    form: bytes = message.SerializeToString(deterministic=True)
    return form
