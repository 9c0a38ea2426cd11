"""Parse SequenceExamples: the plan that reads them, and the parser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, Buffer, Keys, splits_of
from torch_tfrecord.columns.column_plan import (
    ColumnPlan,
    RowPlan,
    Slots,
    columns_of,
    plain_form_of,
)
from torch_tfrecord.columns.containers import rows_of
from torch_tfrecord.columns.dtypes import Values
from torch_tfrecord.columns.feature import (
    SequenceFeatures,
    make_context_reader,
    make_step_reader,
)
from torch_tfrecord.columns.lists import FixedLenSequenceFeature
from torch_tfrecord.columns.parsers import (
    Parser,
    optional_of,
    read_one,
)
from torch_tfrecord.columns.reading import Column, Reader, StepColumn, StepReader, Want
from torch_tfrecord.errors import ParseError, TFRecordError, raise_first
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import Value

__all__ = [
    "SequenceExampleParser",
]


_START = np.zeros(1, np.int64)


class _Columns(NamedTuple):
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


class SequencePlan(Slots):
    """The wants of several readers from SequenceExamples, like `ColumnPlan`: the feature lists with the
    compiled core, then the contexts. With its tag and length, a context is an Example with the same
    features, so a `ColumnPlan` reads it.

    Args:
        context: The readers of the context.
        steps: The readers of feature lists.

    Attributes:
        core: None without a compiled core, or where messages must do.
        context: The plan of the context.
    """

    def __init__(self, context: Sequence[Reader], steps: Sequence[StepReader]) -> None:
        self.context = ColumnPlan([reader.wants for reader in context])
        # A plan of its own for each reader, run only if a step lacks the size that it needs.
        self._sizes = [ColumnPlan([reader.context_wants]) for reader in steps]
        super().__init__([reader.wants for reader in steps])
        # Key and kind only: here a step may have any number of values.
        self.core: Any = self.native and self.native.SequencePlan(
            [slot.of_core[:2] for slot in self.slots]
        )

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[_Columns]:
        """Read records; arguments, result per batch and errors are those of `ColumnPlan.read`."""
        contexts, lists = self._scan(records)
        context = self.context.read(contexts, borders)
        return [
            self._part(columns, contexts, lists, *ends)
            for columns, ends in zip(context, pairwise(borders), strict=True)
        ]

    def read_one(self, record: Buffer) -> tuple[memoryview, _Columns]:
        """Read one record with the core: the bytes of its context, an Example, and the rest of what
        `read` returns.
        """
        if type(record) is not bytes:
            record = bytes(record)  # a view may have other item sizes, or change meanwhile
        contexts, lists = self._scan(PackedRecords(record, _START, np.array([len(record)])))
        return contexts[0], self._part([], contexts, lists, 0, 1)

    def _scan(self, records: PackedRecords) -> tuple[PackedRecords, list[StepColumn]]:
        """The contexts, and the feature lists of all wants."""
        if self.core is None:
            messages = [parse_message(record, "SequenceExample") for record in records]
            # Read as an Example, a SequenceExample is its context: both have it as field 1.
            return records, [steps_of(slot.want, messages) for slot in self.slots]
        contexts = np.empty((len(records), 2), np.int64)
        borders = np.empty((len(self.slots), len(records) + 1), np.int64)
        missing = np.zeros((len(self.slots), len(records)), np.uint8)
        found = self.core.parse(
            records.buffer,
            np.ascontiguousarray(records.starts),
            np.ascontiguousarray(records.lengths),
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
        lists = []
        for slot, (values, ends), rows, lacks in zip(
            self.slots, parts, borders, missing, strict=True
        ):
            # A view of the core's memory, which the column keeps alive.
            offsets = np.frombuffer(ends, np.int64)
            steps = Column(slot.from_memory(values), offsets, None, buffer)
            lists.append(StepColumn(steps, rows, lacks))
        return PackedRecords(buffer, contexts[:, 0], contexts[:, 1]), lists

    def _part(
        self,
        context: Sequence[Sequence[Column]],
        contexts: PackedRecords,
        lists: Sequence[StepColumn],
        begin: int,
        end: int,
    ) -> _Columns:
        """The columns of one batch; those of the contexts' sizes are read only when asked for."""

        def sizes(plan: ColumnPlan) -> Sequence[Column]:
            return plan.read(contexts[begin:end], (0, end - begin))[0][0]

        columns = self.pick([column.part(begin, end) for column in lists])
        return _Columns(context, columns, [partial(sizes, plan) for plan in self._sizes])


class SequenceExampleParser(Parser[tuple[Values, Values], tuple[Value, ...], _Columns]):
    """Parses SequenceExamples, like :class:`ExampleParser`.

    Args:
        features: What to read.
        pads: Whether batches are padded and have the numbers of steps, as in
            `parse_sequence_example`; else they are what `collate` makes of the samples, or a list
            of samples that `collate` still has to stack.
        max_batch_bytes: See :class:`ExampleParser`.

    Raises:
        TypeError: One of its mappings is not of str to specs.
        ValueError: A spec cannot be read from a context or a feature list.

    Example:
        >>> import torch
        >>> from torch_tfrecord import FixedLenSequenceFeature, SequenceFeatures
        >>> parser = SequenceExampleParser(
        ...     SequenceFeatures(None, {"x": FixedLenSequenceFeature((), torch.int64)})
        ... )
        >>> parser.single(bytes.fromhex("120e0a0c0a017812070a051a030a0105"))
        ({}, {'x': tensor([5])})
    """

    def __init__(
        self,
        features: SequenceFeatures,
        *,
        pads: bool = True,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(max_batch_bytes)
        self.features = features
        context, steps = features.context_features or {}, features.sequence_features or {}
        self._pads = pads
        self._context = {name: make_context_reader(name, spec) for name, spec in context.items()}
        self._steps = {name: make_step_reader(name, spec) for name, spec in steps.items()}
        optional = [reader for reader in self._steps.values() if not reader.is_required]
        self.optional = optional_of(self._context.values()) | optional_of(optional, 1)
        # As in TensorFlow, only dense lists have lengths: the others know their own.
        self._counted = [
            name for name, spec in steps.items() if isinstance(spec, FixedLenSequenceFeature)
        ]

    def single(self, serialized: Buffer, key: int = 0) -> tuple[Values, Values]:
        """Parse one serialized SequenceExample; see `parse_single_sequence_example`."""
        sample = self._compiled(serialized)
        if sample is not None:
            return sample
        message = parse_message(serialized, "SequenceExample")
        with self.budget():
            return (
                {
                    name: read_one(reader, message.context.feature)
                    for name, reader in self._context.items()
                },
                {name: _read_steps(reader, message) for name, reader in self._steps.items()},
            )

    def _compiled(self, serialized: Buffer) -> tuple[Values, Values] | None:
        """Read one sample with the compiled core; None if it cannot, or the record is bad (fall
        back to messages).
        """
        if self._plan.core is None or not isinstance(serialized, (bytes, bytearray, memoryview)):
            return None
        try:
            record, found = self._plan.read_one(serialized)
            with self.budget():
                context = self._row_plan.read(record, 0) if self._context else ()
                sequences = [
                    rows_of(reader.read(columns, sizes))[0]
                    for reader, columns, sizes in zip(
                        self._steps.values(), found.lists, found.sizes, strict=True
                    )
                ]
        except TFRecordError:
            return None
        # The lists are plain and the context is not: messages read both again.
        if context is None:
            return None
        return dict(zip(self._context, context, strict=True)), dict(
            zip(self._steps, sequences, strict=True)
        )

    def _find(self, rows: PackedRecords, keys: Keys, borders: Sequence[int]) -> list[_Columns]:
        with self.budget(len(borders) - 1):
            return self._plan.read(rows, borders)

    @cached_property
    def _plan(self) -> SequencePlan:
        return SequencePlan([*self._context.values()], [*self._steps.values()])

    @cached_property
    def _row_plan(self) -> RowPlan:
        return RowPlan(self._plan.context, [*self._context.values()], self.budget)

    @cached_property
    def _padded(self) -> dict[str, StepReader]:
        specs = self.features.sequence_features or {}
        return {name: make_step_reader(name, spec, pads=True) for name, spec in specs.items()}

    def _read(self, found: _Columns, num_records: int, keys: Keys) -> tuple[Values, ...]:
        readers = zip(self._context.items(), found.context, strict=True)
        context = {name: reader.read(columns) for (name, reader), columns in readers}
        steps = zip(
            (self._padded if self._pads else self._steps).items(),
            found.lists,
            found.sizes,
            strict=True,
        )
        sequences = {name: reader.read(columns, sizes) for (name, reader), columns, sizes in steps}
        if not self._pads:
            return context, sequences
        # Where each record's steps end is known before anything is padded.
        lists = dict(zip(self._steps, found.lists, strict=True))
        lengths = {
            name: torch.from_numpy(np.diff(lists[name][0].borders)) for name in self._counted
        }
        return context, sequences, lengths

    def scalar(self, serialized: Buffer) -> tuple[Values, Values, dict[str, torch.Tensor]]:
        """Parse one record as a batch without the batch dimension, as in TensorFlow."""
        context, sequences = self.single(serialized)
        return (
            context,
            sequences,
            {name: torch.tensor(len(sequences[name]), device="cpu") for name in self._counted},
        )


# From messages.


def steps_of(want: Want, messages: Iterable[Any]) -> StepColumn:
    """The steps of SequenceExample messages for a want with any number of values.

    Raises:
        ParseError: A step has another kind of list.
    """
    lists = [message.feature_lists.feature_list for message in messages]
    # Asked for first, as looking up a key adds it to protobuf's map.
    found = [each[want.key].feature if want.key in each else () for each in lists]
    # Each step is an Example with one feature, so one function reads both.
    [steps] = columns_of([want], [{want.key: step} for step in chain.from_iterable(found)])
    missing = np.array([want.key not in each for each in lists], np.uint8)
    return StepColumn(steps, splits_of([*map(len, found)]), missing)


def _read_steps(reader: StepReader, message: Any) -> Value:
    """The value of one SequenceExample message, like `read_one`."""
    context, lists = message.context.feature, message.feature_lists.feature_list
    try:
        columns = [steps_of(want, [message]) for want in reader.wants]
        return rows_of(reader.read(columns, lambda: columns_of(reader.context_wants, [context])))[0]
    except TFRecordError:
        # The columns do not know the record's keys, which the best error lists.
        first, wanted = reader.step_wants[0], [want.key for want in reader.step_wants]
        if reader.is_required and first.key not in lists:
            raise first.missing_list(lists) from None
        # Where no size is shared, a step must have all of its values itself.
        shared = context if reader.context_wants else {}

        def step(number: int) -> dict[str, Any]:
            own = {
                key: steps.feature[number]
                for key, steps in lists.items()
                if number < len(steps.feature)
            }
            return {**shared, **own}

        longest = max((len(lists[key].feature) for key in wanted if key in lists), default=0)
        raise_first("step", longest, lambda number: columns_of(reader.step_wants, [step(number)]))
        raise
