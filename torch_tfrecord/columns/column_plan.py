"""The plan for reading records: what the readers want, and where the compiled core puts it.

A `ColumnPlan` reads the columns of batches, a `RowPlan` the values of one record. Where the core
cannot, or is not there, `columns_of` makes the same columns of protobuf messages, only more slowly;
it also words the errors of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.batch_memory import Array, Buffer, empty_bytes, reserve, splits_of
from torch_tfrecord.columns.containers import rows_of
from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind
from torch_tfrecord.columns.reading import (
    NO_OFFSETS,
    Column,
    Reader,
    Want,
    Work,
    read_columns,
    reserve_for,
)
from torch_tfrecord.errors import LimitExceededError, ParseError, TFRecordError
from torch_tfrecord.native import native_module
from torch_tfrecord.phases import spent
from torch_tfrecord.protobuf import join_arrays, parse_message
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import Value, mark_ragged

__all__ = [
    "ColumnPlan",
    "ColumnWork",
    "RowPlan",
    "Slots",
    "columns_of",
    "plain_form_of",
]

# Field numbers in a Feature message.
_FIELDS: dict[ListKind, int] = {BYTES_LIST: 1, FLOAT_LIST: 2, INT64_LIST: 3}
_KINDS = {kind.field: kind for kind in _FIELDS}
_Memory: TypeAlias = Any
"""Memory of the core, by Python's buffer protocol, which has no type before 3.12."""
_Found: TypeAlias = "tuple[_Memory, list[_Memory], bytes | None]"
"""What the core's `parse_one` returns: the block, each list of any length, which keys are lacking."""
_Message: TypeAlias = Any
"""A protobuf message: the classes are made when the program runs, so their fields have no types."""


class Slot:
    """A column of a plan.

    Attributes:
        want: What it has.
        key: Identifies the column; equal wants share one.
        dtype: Dtype of its array.
        tail: Shape of one record's values, if their number is known; else of one value.
        row_bytes: Bytes of one record's values.
    """

    def __init__(self, want: Want) -> None:
        self.want, count = want, want.num_values
        # Without the output's name and dtype: outputs that cast one list differently share its
        # column.
        self.key = want.key, want.kind, count
        # Strings are pairs of int64, where each is, so that floats alone have another dtype.
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

    def from_memory(self, memory: _Memory) -> Array:
        """The values that the core found, for any number of values."""
        array = (
            np.frombuffer(memory, self.dtype)
            if memoryview(memory).nbytes
            else np.zeros(0, self.dtype)
        )
        return array.reshape(-1, *self.tail)


class Slots:
    """What several readers want, with each key once.

    Args:
        wants: What each reader wants, in the order of the outputs.

    Attributes:
        slots: The columns, of which equal wants share one, in the core's order.
        native: The core; None if a key is wanted in two ways (another kind of list, another number
            of values): that is rare enough to be left to messages.
        places: For what each reader wants, the numbers of its slots, and whether an earlier reader
            has got one of them, too.
    """

    def __init__(self, wants: Sequence[Sequence[Want]]) -> None:
        slots: dict[object, Slot] = {}
        for slot in map(Slot, chain.from_iterable(wants)):
            # The required one stays, so that the core finds a missing key.
            if slot.key not in slots or slot.want.is_required:
                slots[slot.key] = slot
        self.slots = sorted(slots.values(), key=lambda slot: slot.order)
        is_clear = len({slot.want.key for slot in self.slots}) == len(slots)
        self.native: Any = native_module("columns") if is_clear else None
        numbers = {slot.key: number for number, slot in enumerate(self.slots)}
        seen: set[int] = set()
        self.places: list[tuple[list[int], bool]] = []
        for each in wants:
            own = [numbers[Slot(want).key] for want in each]
            self.places.append((own, not seen.isdisjoint(own)))
            seen.update(own)

    def pick(self, columns: Sequence[Any]) -> list[list[Any]]:
        """The columns of each reader, of those of the slots.

        A column that an earlier reader has got is copied, as that reader may have made its tensor
        of the same memory.
        """
        return [
            [columns[place].copied() if is_taken else columns[place] for place in own]
            for own, is_taken in self.places
        ]


class ColumnPlan(Slots):
    """The plan of several readers of Examples. Immutable, so threads may share it.

    Attributes:
        jobs: The compiled module.
        core: None without it, or where messages must do.
        lists: The places of the columns with any number of values.
        begins: First byte of each dense column in the block of a single record, and the block's
            end.
    """

    def __init__(self, wants: Sequence[Sequence[Want]]) -> None:
        super().__init__(wants)
        self.jobs: Any = native_module("jobs")
        self.core: Any = self.native and self.native.Plan([slot.of_core for slot in self.slots])
        self.lists = [
            place for place, slot in enumerate(self.slots) if slot.want.num_values is None
        ]
        self.begins = [0, *accumulate(slot.row_bytes for slot in self.slots)]
        dense = [slot for slot in self.slots if slot.want.num_values is not None]
        self._groups = [[*group] for _, group in groupby(dense, key=lambda slot: slot.order[:3])]

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[list[Column]]]:
        """Read records.

        Args:
            records: The concatenated records of one or more batches.
            borders: The start of each batch, beginning with 0, and the end of the last one.

        Returns:
            For each batch, the columns that each reader wants.

        Raises:
            ParseError: A record is malformed or does not fit; not always the first such record.
        """
        works = self.begin(records, borders)
        self.run(records, works)
        return [self.pick(work.finish()) for work in works]

    def explain(self, record: Buffer) -> None:
        """Read one record by its message, whose error says all that is wrong.

        Raises:
            ParseError: It does not fit.
        """
        self.from_messages([record])

    def from_messages(self, records: Iterable[Buffer]) -> list[Column]:
        """The column of each slot, without the core."""
        messages = [parse_message(record).features.feature for record in records]
        return columns_of([slot.want for slot in self.slots], messages)

    def begin(self, records: PackedRecords, borders: Sequence[int]) -> list[ColumnWork]:
        """The work to be run for each batch.

        Raises:
            LimitExceededError: The dense columns need too much memory; records may be far shorter,
                if they lack features with defaults.
        """
        try:
            reserve(self.begins[-1] * len(records))
        except LimitExceededError:
            # One by one, to label the error.
            for slot in self.slots:
                reserve_for(slot.want, slot.row_bytes * len(records))
            raise
        return [ColumnWork(self, records, *ends) for ends in pairwise(borders)]

    def run(self, records: PackedRecords, works: Iterable[ColumnWork | Work]) -> None:
        """Read the records and fill their columns: in one call without the GIL, where nothing is
        unusual.

        Args:
            records: Those of all batches.
            works: What to run for each batch, in this order.

        Raises:
            TFRecordError: A record cannot be read, or does not fit.
        """
        left = [work for work in (records, *works) if work.job is not None]
        reading = records.job
        while left:
            done = self.jobs.run([work.job for work in left])
            if done:
                records.job = None  # or what stopped would read them again
            for stopped in left[done : done + 1]:  # here, since the next may need what it leaves
                if isinstance(stopped, PackedRecords):
                    stopped.read()
                elif isinstance(stopped, ColumnWork):
                    stopped.finish()
            left = left[done + 1 :]
        if reading is not None:
            spent("read", reading.seconds)

    def dense(self, place: int, block: _Memory, num_records: int) -> Array:
        """A column with a known number of values, in the block that has them all."""
        slot = self.slots[place]
        begin, shape = num_records * self.begins[place], (num_records, *slot.tail)
        values: Array = np.ndarray(shape, slot.dtype, block, begin)
        return values

    def all_dense(self, block: Array, num_records: int) -> Iterator[Array]:
        """These columns in turn; those of equal shape are split in one call."""
        begin = 0
        for slot, *others in self._groups:
            shape = 1 + len(others), num_records, *slot.tail
            yield from np.ndarray(shape, slot.dtype, block, begin)
            begin += shape[0] * num_records * slot.row_bytes

    def of_one(self, place: int, found: _Found, record: Buffer) -> Column:
        """A column of a single record, copied from what `parse_one` found: several may read it."""
        block, lists, lacking = found
        missing = None
        if lacking is not None and lacking[place]:
            missing = np.frombuffer(lacking, np.uint8, 1, place)
        if place not in self.lists:
            return Column(self.dense(place, block, 1).copy(), NO_OFFSETS, missing, record)
        values = self.slots[place].from_memory(lists[self.lists.index(place)]).copy()
        return Column(values, np.array([0, len(values)]), missing, record)


class ColumnWork:
    """A batch's columns of a plan, and the job that fills those of a known number of values.

    Args:
        plan: The plan.
        records: The records of this and perhaps other batches.
        begin, end: Which of them.

    Attributes:
        job: None without the compiled core, and once this is finished.
    """

    def __init__(self, plan: ColumnPlan, records: PackedRecords, begin: int, end: int) -> None:
        self._plan, self._records, self._begin, self._count = plan, records, begin, end - begin
        self.job: Any = None
        self._columns: list[Column] = []
        if plan.core is None:
            self._columns = plan.from_messages(records[begin:end])
            return
        # A block for each batch, so that it can be copied to a device in one piece.
        self._block = empty_bytes(plan.begins[-1] * self._count)
        self._offsets = np.empty((len(plan.lists), self._count + 1), np.int64)
        # np.zeros lets go of the GIL for so many
        zeros = bytearray(len(plan.slots) * self._count)
        self._missing = np.frombuffer(zeros, np.uint8).reshape(len(plan.slots), self._count)
        # The core fills dense columns in place; lists of any length grow in memory of its own. It
        # walks records without strides, and they may be columns of a wider array, as those of a
        # SequenceExample's contexts are.
        self.job = plan.native.ParseJob(
            plan.core,
            records.memory,
            np.ascontiguousarray(records.starts[begin:end]),
            np.ascontiguousarray(records.lengths[begin:end]),
            self._block,
            self._offsets,
            self._missing,
        )

    def dense(self, place: int) -> Column:
        """A column with a known number of values, which the job is still to fill."""
        values = self._plan.dense(place, self._block, self._count)
        return Column(values, NO_OFFSETS, None, self._records.memory)

    def finish(self) -> list[Column]:
        """The column of each slot, with the records that the job left.

        Raises:
            ParseError: A record does not fit.
        """
        (job, self.job), plan = (self.job, None), self._plan
        if job is None:
            return self._columns
        found = job.finish(lambda row: plain_form_of(self._records[self._begin + row]))
        if found is None:
            # The core says neither which record nor why: the caller reads them again one by one for
            # that.
            raise ParseError("expected records that fit the features")
        memories, lacks, extras = found
        buffer: Buffer = self._records.memory
        if extras:
            # Records in an unusual form were encoded again; their strings follow the others.
            buffer = b"".join([buffer, *extras])
        lists = zip(memories, self._offsets, strict=True)
        dense = plan.all_dense(self._block, self._count)
        for place, slot in enumerate(plan.slots):
            missing = self._missing[place] if lacks and lacks[place] else None
            if slot.want.num_values is None:
                memory, ends = next(lists)
                column = Column(slot.from_memory(memory), ends, missing, buffer)
            else:
                column = Column(next(dense), NO_OFFSETS, missing, buffer)
            self._columns.append(column)
        return self._columns


def plain_form_of(record: Buffer, kind: str = "Example") -> bytes:
    """Encode a record again, in the canonical form that the core reads.

    Raises:
        ParseError: The record is not such a message.
    """
    message = parse_message(record, kind)
    # Else they would be written again, and the core refuses fields that it does not know.
    message.DiscardUnknownFields()
    form: bytes = message.SerializeToString(deterministic=True)
    return form


# From messages.


def columns_of(wants: Iterable[Want], records: Sequence[Mapping[str, _Message]]) -> list[Column]:
    """The columns of records, each a map of key to Feature message, for several wants.

    Raises:
        ParseError: A record does not fit a want; not always the first such record.
    """
    return [_column(want, records) for want in wants]


def _column(want: Want, records: Sequence[Mapping[str, _Message]]) -> Column:
    slot, found = Slot(want), [_list_of(want, record) for record in records]
    present = [item for item in found if item is not None]
    missing = None
    if len(present) < len(found):
        pairs = zip(found, records, strict=True)
        # 2 is a key that is there without a list: in a context that is another error than 1.
        missing = np.array(
            [item is None and (2 if want.key in record else 1) for item, record in pairs], np.uint8
        )
    values, buffer = np.zeros(0, slot.dtype), b""
    if want.kind is BYTES_LIST:
        strings = [value for item in present for value in item.value]
        splits, buffer = splits_of([*map(len, strings)]), b"".join(strings)
        values = np.stack([splits[:-1], np.diff(splits)], axis=1)
    elif present:
        values = join_arrays(present)
    if want.num_values is None:
        counts = [0 if item is None else len(item.value) for item in found]
        return Column(values, splits_of(counts), missing, buffer)
    # Records without values get zeros; the reader puts its default there.
    dense = np.zeros((len(records), *slot.tail), slot.dtype)
    dense[[item is not None for item in found]] = values.reshape(len(present), *slot.tail)
    return Column(dense, NO_OFFSETS, missing, buffer)


def _list_of(want: Want, record: Mapping[str, _Message]) -> _Message | None:
    """The list message; None if the record lacks the key, or its kind is not set."""
    feature = record.get(want.key)
    if feature is None or not feature.HasField(want.kind.field):
        # A Feature whose kind is not set counts as missing, as in TensorFlow.
        stored = None if feature is None else feature.WhichOneof("kind")
        if stored is not None:
            # Even an empty list of another kind is an error, as in TensorFlow.
            raise want.wrong_kind(_KINDS[stored])
        if want.is_required:
            raise want.missing(record)
        return None
    found = getattr(feature, want.kind.field)
    if want.num_values is not None and len(found.value) != want.num_values:
        raise want.wrong_count(len(found.value))
    return found


# One record.


class RowPlan:
    """Reads the row of a batch of one.

    Numbers that need no cast are stored in blocks of equal shape, which torch splits in one call:
    that costs less than creating each tensor. Single strings are sliced from the record, and lists
    of any length built from what the core found. Other features, and those missing from the record,
    are read like the columns of a batch.

    Args:
        plan: What the readers want.
        readers: The readers, in the order of the outputs.
        budget: Creates the memory budget of a sample.
    """

    def __init__(
        self,
        plan: ColumnPlan,
        readers: Sequence[Reader],
        budget: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._plan, self._readers, self._budget = plan, readers, budget
        if plan.core is None:
            return
        self._string_at, self._strings_in = plan.native.string_at, plan.native.strings_in
        # A column that two readers take must not be the memory of both.
        users, slots = [*chain.from_iterable(own for own, _ in plan.places)], plan.slots
        quick = {
            place: number
            for number, (reader, ((place, *_), _)) in enumerate(
                zip(readers, plan.places, strict=True)
            )
            if getattr(reader, "is_plain", False) and users.count(place) == 1
        }
        is_text = {place: getattr(readers[quick[place]], "is_text", False) for place in quick}
        lists = [place for place in quick if place in plan.lists]
        self._dense = {place: quick[place] for place in quick if slots[place].row_bytes}
        strings = [place for place in self._dense if slots[place].want.kind is BYTES_LIST]
        numbers = sorted(self._dense.keys() - strings)
        self._strings = [(plan.begins[place], is_text[place]) for place in strings]
        self._lists = [
            (
                plan.lists.index(place),
                None if slots[place].want.kind is BYTES_LIST else _dtype(slots[place]),
                is_text[place],
            )
            for place in lists
        ]
        # Place minus number stays the same for as long as places follow one another.
        runs = [
            [place for _, place in run]
            for _, run in groupby(
                enumerate(numbers),
                key=lambda item: (item[1] - item[0], slots[item[1]].order[:4]),
            )
        ]
        self._blocks = [
            (
                plan.begins[run[0]],
                (plan.begins[run[-1] + 1] - plan.begins[run[0]]) // slots[run[0]].dtype.itemsize,
                _dtype(slots[run[0]]),
                (len(run), *slots[run[0]].want.shape),
            )
            for run in runs
        ]
        found = [quick[place] for place in (*strings, *numbers, *lists)]
        self._others = [number for number in range(len(readers)) if number not in found]
        found += self._others
        order = sorted(range(len(found)), key=found.__getitem__)
        self._in_order: Callable[[list[Value]], Sequence[Value]] = (
            # itemgetter of one number gives no tuple, but a single value is always in order.
            list if order == sorted(order) else itemgetter(*order)
        )

    def read(self, record: object, key: int) -> Sequence[Value] | None:
        """The values of a record, in the order of the readers.

        Args:
            record: The record's bytes.
            key: See ``ExampleParser.single``.

        Returns:
            None without a core, or if the record is not plain or does not fit: the caller then
            falls back to protobuf messages, which find the values or raise the error.
        """
        if self._plan.core is None or not isinstance(record, (bytes, bytearray, memoryview)):
            return None
        if type(record) is not bytes:
            record = bytes(record)  # a view may have other item sizes, or change meanwhile
        found: _Found | None = self._plan.core.parse_one(record)
        if found is None:
            return None
        block, lists, lacking = found
        try:
            values: list[Value] = [
                self._string_at(record, block, begin, is_text) for begin, is_text in self._strings
            ]
            rows = [
                self._strings_in(record, lists[place], is_text)
                if dtype is None
                else _numbers(lists[place], dtype)
                for place, dtype, is_text in self._lists
            ]
        except UnicodeDecodeError:
            # The caller reads the message, which words the error.
            return None
        for begin, count, dtype, shape in self._blocks:
            # All numbers of one shape are one tensor, split in one call.
            part = torch.frombuffer(block, dtype=dtype, count=count, offset=begin)
            values += (part if len(shape) == 1 else part.view(shape)).unbind()
        values += rows
        if not self._others and lacking is None:
            return self._in_order(values)
        try:
            with self._budget():
                values += [self._value(number, found, record, key) for number in self._others]
                values = list(self._in_order(values))
                # Lists of any length need no default: where one is missing, it is empty already.
                for place, number in self._dense.items():
                    if lacking is not None and lacking[place]:
                        values[number] = self._value(number, found, record, key)
        except TFRecordError:
            # The same for a reader's error: from the message, it can list the record's keys.
            return None
        return values

    def _value(self, number: int, found: _Found, record: bytes, key: int) -> Value:
        places, _ = self._plan.places[number]
        columns = [self._plan.of_one(place, found, record) for place in places]
        return rows_of(read_columns(self._readers[number], columns, key))[0]


def _dtype(slot: Slot) -> torch.dtype:
    return torch.float32 if slot.dtype == np.float32 else torch.int64


def _numbers(memory: _Memory, dtype: torch.dtype) -> torch.Tensor:
    # torch.frombuffer refuses memory of 0 bytes.
    has_values = memoryview(memory).nbytes > 0
    return mark_ragged(
        torch.frombuffer(memory, dtype=dtype)
        if has_values
        else torch.empty(0, dtype=dtype, device="cpu")
    )
