"""The plan for reading records: what the readers want, and where the compiled core puts it.

A `ColumnPlan` reads the columns of batches, a `RowPlan` the values of one record, a `SequencePlan`
those of SequenceExamples.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from torch_tfrecord.columns.containers import rows_of
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.message_columns import steps_of
from torch_tfrecord.columns.plan_parts import (
    Found,
    Memory,
    PartWork,
    PlanPart,
    Slot,
    plain_form_of,
    ways,
)
from torch_tfrecord.columns.reading import (
    Buffer,
    Column,
    Reader,
    StepColumn,
    StepReader,
    Want,
    Work,
    read_columns,
)
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.native import native_module
from torch_tfrecord.phases import spent
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import Value, mark_ragged

__all__ = [
    "ColumnPlan",
    "RowPlan",
    "SequenceColumns",
    "SequencePlan",
]


class _Copied(Protocol):
    def copied(self: _C) -> _C:
        """The same in memory of its own."""


_C = TypeVar("_C", bound=_Copied)
_Pick: TypeAlias = Callable[[Sequence[_C]], Sequence[_C]]


class ColumnPlan:
    """What several readers want, with each key once. Immutable, so threads may share it.

    If readers want the same key in different ways (another kind of list, another number of values),
    each way takes another pass over the records.

    Args:
        wants: What each reader wants, in the order of the outputs.

    Attributes:
        parts: One per pass over the records.
        places: For each reader, the numbers of its columns among those of all parts.
    """

    def __init__(self, wants: Sequence[Sequence[Want]]) -> None:
        self.parts = [PlanPart(way) for way in ways(itertools.chain.from_iterable(wants))]
        place = {
            slot.key: number
            for number, slot in enumerate(slot for part in self.parts for slot in part.slots)
        }
        self.places = [[place[Slot(want).key] for want in each] for each in wants]
        self._picks: list[_Pick[Column]] = _make_picks(self.places)

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
        batches = self.begin(records, borders)
        self.run(records, batches)
        return [*map(self.columns, batches)]

    def explain(self, record: Buffer) -> None:
        """See `PlanPart.explain`."""
        for part in self.parts:
            part.explain(record)

    def begin(self, records: PackedRecords, borders: Sequence[int]) -> list[list[PartWork]]:
        """What is to be run for each batch."""
        for part in self.parts:
            part.check_growth(records)
        return [
            [PartWork(part, records, *ends) for part in self.parts] for ends in pairwise(borders)
        ]

    def columns(self, works: Sequence[PartWork]) -> list[Sequence[Column]]:
        """The columns of a batch that each reader wants, once it is run."""
        columns = [column for work in works for column in work.finish()]
        return [pick(columns) for pick in self._picks]

    def run(self, records: PackedRecords, batches: Iterable[Sequence[PartWork | Work]]) -> None:
        """Read the records and fill their columns: in one call without the GIL, where nothing is
        unusual.

        Args:
            records: Those of all batches.
            batches: What to run for each batch, in this order.

        Raises:
            TFRecordError: A record cannot be read, or does not fit.
        """
        every = (records, *itertools.chain.from_iterable(batches))
        works = [work for work in every if work.job is not None]
        jobs, done, reading = [work.job for work in works], 0, records.job
        while done < len(jobs):
            done += self.parts[0].jobs.run(jobs[done:])
            if done:
                records.job = None  # or what stopped would read them again
            for stopped in works[done : done + 1]:  # here, since the next may need what it leaves
                if isinstance(stopped, PackedRecords):
                    stopped.read()
                elif isinstance(stopped, PartWork):
                    stopped.finish()
                done += 1
        if reading is not None:
            spent("read", reading.seconds)


def _make_picks(places: Sequence[Sequence[int]]) -> list[_Pick[_C]]:
    """For each reader, a function that selects its columns by their places.

    A column that an earlier reader has got is copied, as that reader may have made its tensor of
    the same memory.
    """
    seen: set[int] = set()
    picks: list[_Pick[_C]] = []
    for own in places:
        # Of a single place itemgetter would give the column itself, so a slice keeps the sequence.
        take = itemgetter(*own) if len(own) > 1 else itemgetter(slice(own[0], own[0] + 1))
        picks.append(take if seen.isdisjoint(own) else functools.partial(_pick_copies, take))
        seen.update(own)
    return picks


def _pick_copies(take: _Pick[_C], columns: Sequence[_C]) -> list[_C]:
    return [column.copied() for column in take(columns)]


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
        plan = ColumnPlan([reader.wants for reader in readers])
        self._readers, self._budget, self._places = readers, budget, plan.places
        self._part = plan.parts[0]
        # A key that is wanted in two ways needs a second pass: rare enough to leave it to messages.
        self._is_useful = self._part.core is not None and len(plan.parts) == 1
        if not self._is_useful:
            return
        native: Any = native_module("columns")
        self._string_at, self._strings_in = native.string_at, native.strings_in
        # A column that two readers take must not be the memory of both.
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
        if not self._is_useful or not isinstance(record, (bytes, bytearray, memoryview)):
            return None
        if type(record) is not bytes:
            record = bytes(record)  # a view may have other item sizes, or change meanwhile
        found: Found | None = self._part.core.parse_one(record)
        if found is None:
            return None
        at = self._string_at
        try:
            values: list[Value] = [
                at(record, found[0], begin, is_text) for begin, is_text in self._strings
            ]
            lists = [
                self._strings_in(record, found[1][place], is_text)
                if dtype is None
                else _numbers(found[1][place], dtype)
                for place, dtype, is_text in self._lists
            ]
        except UnicodeDecodeError:
            # The caller reads the message, which words the error.
            return None
        for begin, count, dtype, shape in self._blocks:
            # All numbers of one shape are one tensor, split in one call.
            block = torch.frombuffer(found[0], dtype=dtype, count=count, offset=begin)
            values += (block if len(shape) == 1 else block.view(shape)).unbind()
        values += lists
        if not self._others and found[2] is None:
            return self._in_order(values)
        try:
            with self._budget():
                values += [self._value(number, found, record, key) for number in self._others]
                return self._completed(self._in_order(values), found, record, key)
        except TFRecordError:
            # The same for a reader's error: from the message, it can list the record's keys.
            return None

    def _completed(
        self, values: Sequence[Value], found: Found, record: bytes, key: int
    ) -> Sequence[Value]:
        """Fill in the defaults of plain features that the record lacks."""
        if found[2] is None:
            return values
        completed = list(values)
        # Lists of any length need no default: where one is missing, it is empty already.
        for place, number in self._plain.items():
            if found[2][place]:
                completed[number] = self._value(number, found, record, key)
        return completed

    def _value(self, number: int, found: Found, record: bytes, key: int) -> Value:
        columns = [self._part.row_column(found, place, record) for place in self._places[number]]
        return rows_of(read_columns(self._readers[number], columns, key))[0]

    def _block(self, places: Sequence[int]) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
        """First byte, number of values, dtype and shape of a run of slots."""
        first, begins = self._part.slots[places[0]], self._part.begins
        count = (begins[places[-1] + 1] - begins[places[0]]) // first.dtype.itemsize
        return begins[places[0]], count, _dtype(first), (len(places), *first.want.shape)

    def _list(self, reader: Reader, slot: Slot) -> tuple[torch.dtype | None, bool]:
        """The dtype of a list of any length (None for strings), and whether strings are str."""
        return None if slot.want.kind is BYTES_LIST else _dtype(slot), getattr(
            reader, "is_text", False
        )


def _dtype(slot: Slot) -> torch.dtype:
    return torch.float32 if slot.dtype == np.float32 else torch.int64


def _numbers(memory: Memory, dtype: torch.dtype) -> torch.Tensor:
    # torch.frombuffer refuses memory of 0 bytes.
    has_values = memoryview(memory).nbytes > 0
    return mark_ragged(
        torch.frombuffer(memory, dtype=dtype) if has_values else torch.empty(0, dtype=dtype)
    )


def _runs(slots: Sequence[Slot], places: Sequence[int]) -> list[list[int]]:
    """Split ascending places into runs of equal shape and dtype."""
    # Place minus number stays the same for as long as places follow one another.
    numbered = enumerate(places)
    runs = groupby(numbered, key=lambda item: (item[1] - item[0], slots[item[1]].order[:4]))
    return [[place for _, place in run] for _, run in runs]


_START = np.zeros(1, np.int64)


class SequenceColumns(NamedTuple):
    """The columns of N SequenceExamples.

    Attributes:
        context: The columns of each context reader.
        lists: The columns of each feature list reader.
        sizes: For each feature list reader, a function that reads the columns of its
            ``context_wants``.
    """

    context: Sequence[Sequence[Column]]
    lists: Sequence[Sequence[StepColumn]]
    sizes: Sequence[Callable[[], Sequence[Column]]]


class SequencePlan:
    """What several readers want from SequenceExamples, like `ColumnPlan`: the feature lists with the
    compiled core, then the contexts. With its tag and length, a context is an Example with the same
    features, so a `ColumnPlan` reads it.

    Args:
        context: The readers of the context.
        steps: The readers of feature lists.
    """

    def __init__(self, context: Sequence[Reader], steps: Sequence[StepReader]) -> None:
        self._context = ColumnPlan([reader.wants for reader in context]) if context else None
        # A plan of its own for each reader, run only if a step lacks the size that it needs.
        self._sizes = [
            ColumnPlan([one.context_wants]) if one.context_wants else None for one in steps
        ]
        self._ways = [[*way] for way in ways(want for reader in steps for want in reader.wants)]
        native = native_module("columns")
        # Key and kind only: here a step may have any number of values.
        slots = [[slot.of_core[:2] for slot in way] for way in self._ways]
        self._cores = [] if native is None else [*map(native.SequencePlan, slots)]
        keys = [slot.key for way in self._ways for slot in way]
        places = [[keys.index(Slot(want).key) for want in reader.wants] for reader in steps]
        self._picks: list[_Pick[StepColumn]] = _make_picks(places)

    @property
    def is_compiled(self) -> bool:
        """Whether there is a compiled core."""
        return bool(self._cores)

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[SequenceColumns]:
        """Read records; arguments, result per batch and errors are those of `ColumnPlan.read`."""
        contexts, lists = self._scan(records)
        context: Sequence[Sequence[Sequence[Column]]] = (
            [[]] * (len(borders) - 1)
            if self._context is None
            else self._context.read(contexts, borders)
        )
        return [
            self._part(columns, contexts, lists, *ends)
            for columns, ends in zip(context, pairwise(borders), strict=True)
        ]

    def read_one(
        self, record: bytes | bytearray | memoryview
    ) -> tuple[memoryview, SequenceColumns]:
        """Read one record with the core: the bytes of its context, an Example, and the rest of what
        `read` returns.
        """
        if type(record) is not bytes:
            record = bytes(record)  # a view may have other item sizes, or change meanwhile
        contexts, lists = self._scan(PackedRecords(record, _START, np.array([len(record)])))
        return contexts[0], self._part([], contexts, lists, 0, 1)

    def _scan(self, records: PackedRecords) -> tuple[PackedRecords, list[StepColumn]]:
        """The contexts, and the feature lists of all wants."""
        if not self._cores:
            messages = [parse_message(record, "SequenceExample") for record in records]
            # Read as an Example, a SequenceExample is its context: both have it as field 1.
            return records, [steps_of(slot.want, messages) for way in self._ways for slot in way]
        lists: list[StepColumn] = []
        places = np.ascontiguousarray(records.starts), np.ascontiguousarray(records.lengths)
        for core, slots in zip(self._cores, self._ways, strict=True):
            contexts = np.empty((len(records), 2), np.int64)
            borders = np.empty((len(slots), len(records) + 1), np.int64)
            missing = np.zeros((len(slots), len(records)), np.uint8)
            found = core.parse(
                records.buffer,
                *places,
                contexts,
                borders,
                missing,
                lambda row: plain_form_of(records[row], "SequenceExample"),
            )
            if found is None:
                # Which record, and why, is found by reading them again one by one.
                raise ParseError("expected records that fit the features")
            parts, extras = found
            buffer = b"".join([records.buffer, *extras]) if extras else records.buffer
            for slot, (values, ends), rows, lacks in zip(
                slots, parts, borders, missing, strict=True
            ):
                # A view of the core's memory, which the column keeps alive.
                offsets = np.frombuffer(ends, np.int64)
                steps = Column(slot.from_memory(values), offsets, None, buffer)
                lists.append(StepColumn(steps, rows, lacks))
        # Every pass finds the same contexts; those of the last one point into its buffer.
        return PackedRecords(buffer, contexts[:, 0], contexts[:, 1]), lists

    def _part(
        self,
        context: Sequence[Sequence[Column]],
        contexts: PackedRecords,
        lists: Sequence[StepColumn],
        begin: int,
        end: int,
    ) -> SequenceColumns:
        """The columns of one batch; those of the contexts' sizes are read only when asked for."""

        def make_read(plan: ColumnPlan | None) -> Callable[[], Sequence[Column]]:
            return lambda: (
                [] if plan is None else plan.read(contexts[begin:end], (0, end - begin))[0][0]
            )

        columns = [column.part(begin, end) for column in lists]
        return SequenceColumns(
            context, [pick(columns) for pick in self._picks], [*map(make_read, self._sizes)]
        )
