"""The plan for reading a batch of SequenceExamples: the feature lists with the compiled core, then
the contexts.

With its tag and length, the context of a SequenceExample is an Example with the same features, so a
`ColumnPlan` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from torch_tfrecord.columns.column_plan import ColumnPlan, Pick, make_picks
from torch_tfrecord.columns.message_columns import steps_of
from torch_tfrecord.columns.plan_parts import Slot, plain_form_of, ways
from torch_tfrecord.columns.reading import Column, Reader, StepColumn, StepReader
from torch_tfrecord.errors import ParseError
from torch_tfrecord.native import native_module
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import PackedRecords

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


class SequencePlan:
    """What several readers want from SequenceExamples, like `ColumnPlan`.

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
        self._picks: list[Pick[StepColumn]] = make_picks(places)

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
