"""The plan for reading a batch of SequenceExamples: the feature lists with the compiled core, then
the contexts.

With its tag and length, the context of a SequenceExample is an Example with the same features, so a
`ColumnPlan` reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.columns.column_plan import ColumnPlan, Slot, plain_form_of, ways
from torch_tfrecord.columns.message_columns import columns_of, steps_of
from torch_tfrecord.columns.reading import Column, Ints, Reader, StepColumn, StepReader, Want
from torch_tfrecord.errors import ParseError
from torch_tfrecord.native import native_module
from torch_tfrecord.protobuf.messages import SequenceExample, parse_message
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["SequenceColumns", "SequencePlan"]

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


class _Found(NamedTuple):
    """What the core found for a want in all records."""

    values: npt.NDArray[Any]
    offsets: Ints
    borders: Ints
    missing: npt.NDArray[np.uint8]
    buffer: Any

    def part(self, begin: int, end: int) -> StepColumn:
        """The part for some of the records."""
        if end - begin == len(self.missing):
            return StepColumn(
                Column(self.values, self.offsets, None, self.buffer), self.borders, self.missing
            )
        borders = self.borders[begin : end + 1]
        offsets = self.offsets[borders[0] : borders[-1] + 1]
        values = self.values[offsets[0] : offsets[-1]]
        steps = Column(values, offsets - offsets[0], None, self.buffer)
        return StepColumn(steps, borders - borders[0], self.missing[begin:end])


class _Wants(NamedTuple):
    """Wraps wants for a plan."""

    wants: tuple[Want, ...]


class SequencePlan:
    """What several readers want from SequenceExamples, like `ColumnPlan`.

    Args:
        context: The readers of the context.
        steps: The readers of feature lists.
    """

    def __init__(self, context: Sequence[Reader], steps: Sequence[StepReader]) -> None:
        self._context_readers, self._steps = context, steps
        self._sizes = [
            ColumnPlan([_Wants(one.context_wants)]) if one.context_wants else None for one in steps
        ]
        self._ways = [[*way] for way in ways(want for reader in steps for want in reader.wants)]
        native = native_module("columns")
        slots = [[slot.of_core[:2] for slot in way] for way in self._ways]
        self._cores = [] if native is None else [*map(native.SequencePlan, slots)]
        keys = [slot.key for way in self._ways for slot in way]
        self._places = [[keys.index(Slot(want).key) for want in reader.wants] for reader in steps]

    @functools.cached_property
    def _context(self) -> ColumnPlan:
        return ColumnPlan(self._context_readers)

    @property
    def is_compiled(self) -> bool:
        """Whether there is a compiled core."""
        return bool(self._cores)

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[SequenceColumns]:
        """Read records; arguments, result per batch and errors are those of `ColumnPlan.read`."""
        if not self.is_compiled:
            messages = [parse_message(record, SequenceExample) for record in records]
            return [self._of_messages(messages[begin:end]) for begin, end in pairwise(borders)]
        contexts, lists = self._scan(records)
        context = (
            self._context.read(contexts, borders)
            if self._context_readers
            else [[]] * (len(borders) - 1)
        )
        return [
            SequenceColumns(
                columns, self._pick(lists, begin, end), self._sizes_of(contexts[begin:end])
            )
            for columns, (begin, end) in zip(context, pairwise(borders), strict=True)
        ]

    def read_one(self, record: bytes | bytearray | memoryview) -> tuple[Any, SequenceColumns]:
        """Read one record with the core: the bytes of its context, an Example, and the rest of what
        `read` returns.
        """
        if type(record) is not bytes:
            record = bytes(record)  # a view may have other item sizes, or change meanwhile
        contexts, lists = self._scan(PackedRecords(record, _START, np.array([len(record)])))
        columns = SequenceColumns([], self._pick(lists, 0, 1), self._sizes_of(contexts))
        return contexts[0], columns

    def _scan(self, records: PackedRecords) -> tuple[PackedRecords, list[_Found]]:
        """The contexts, and the feature lists of all wants."""
        lists: list[_Found] = []
        for core, slots in zip(self._cores, self._ways, strict=True):
            contexts = np.empty((len(records), 2), np.int64)
            borders = np.empty((len(slots), len(records) + 1), np.int64)
            missing = np.zeros((len(slots), len(records)), np.uint8)
            places = np.ascontiguousarray(records.starts), np.ascontiguousarray(records.lengths)
            arrays = contexts, borders, missing
            found = core.parse(
                records.buffer,
                *places,
                *arrays,
                lambda row: plain_form_of(records[row], SequenceExample),
            )
            if found is None:
                raise ParseError("expected records that fit the features")
            parts, extras = found
            buffer = b"".join([records.buffer, *extras]) if extras else records.buffer
            for slot, (values, ends), rows, lacks in zip(
                slots, parts, borders, missing, strict=True
            ):
                offsets = np.frombuffer(ends, np.int64)
                lists.append(_Found(slot.from_memory(values), offsets, rows, lacks, buffer))
        return PackedRecords(buffer, contexts[:, 0], contexts[:, 1]), lists

    def _pick(self, lists: Sequence[_Found], begin: int, end: int) -> list[list[StepColumn]]:
        """The columns of each reader; copies columns that become the tensors of another reader."""
        seen: set[int] = set()
        picked = []
        for places in self._places:
            columns = [lists[place].part(begin, end) for place in places]
            picked.append(columns if seen.isdisjoint(places) else [*map(_copied, columns)])
            seen.update(places)
        return picked

    def _sizes_of(self, contexts: PackedRecords) -> list[Callable[[], Sequence[Column]]]:
        def reading(plan: ColumnPlan | None) -> Callable[[], Sequence[Column]]:
            return lambda: [] if plan is None else plan.read(contexts, (0, len(contexts)))[0][0]

        return [*map(reading, self._sizes)]

    def _of_messages(self, messages: Sequence[Any]) -> SequenceColumns:
        contexts = [message.context.feature for message in messages]

        def reading(reader: StepReader) -> Callable[[], Sequence[Column]]:
            return lambda: columns_of(reader.context_wants, contexts)

        return SequenceColumns(
            [columns_of(reader.wants, contexts) for reader in self._context_readers],
            [[steps_of(want, messages) for want in reader.wants] for reader in self._steps],
            [*map(reading, self._steps)],
        )


def _copied(column: StepColumn) -> StepColumn:
    steps = column.steps._replace(
        values=column.steps.values.copy(), offsets=column.steps.offsets.copy()
    )
    return StepColumn(steps, column.borders.copy(), column.missing)
