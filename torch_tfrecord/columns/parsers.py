"""Parse records with feature specs: several records to a batch of columns, one record to a sample.

A sample is the row of a batch of one. If a batch fails, its records are read again one by one, to
raise the error of the first bad record. The error text for a record comes from its protobuf message
(``message_columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from torch_tfrecord.batch_memory import (
    MAX_BATCH_BYTES,
    BatchBudget,
    Buffer,
    Keys,
    check_max_batch_bytes,
)
from torch_tfrecord.columns.column_plan import (
    ColumnPlan,
    ColumnWork,
    RowPlan,
    columns_of,
)
from torch_tfrecord.columns.containers import rows_of
from torch_tfrecord.columns.dtypes import Values
from torch_tfrecord.columns.feature import Feature, make_reader
from torch_tfrecord.columns.reading import (
    Column,
    LackingError,
    Reader,
    StepReader,
    Work,
    read_columns,
)
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import Value

__all__ = [
    "ExampleParser",
    "Parser",
    "PartParser",
    "optional_of",
    "packed",
    "read_one",
]

_Sample = TypeVar("_Sample")
_Batch = TypeVar("_Batch")
_Found = TypeVar("_Found")
"""What a parser finds in the records of a batch, before its readers make values of it."""


class Parser(Generic[_Sample, _Batch, _Found]):
    """The shared base of all parsers: a batch reports the lowest position that fails."""

    features: Any
    """What it reads."""
    needs_keys = False
    """Whether a spec draws at random, so that the record keys matter."""
    optional: Mapping[tuple[int, str], str] = {}
    """Features whose key a record may lack: as (0, key), of a feature list as (1, key)."""
    _pads: bool

    def __init__(self, max_batch_bytes: int) -> None:
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle the specs; the readers are built again."""
        # A reader may have compiled objects and lambdas, which do not pickle.
        kind: Callable[..., object] = type(self)
        return partial(kind, pads=self._pads, max_batch_bytes=self.max_batch_bytes), (
            self.features,
        )

    def budget(self, num_batches: int = 1) -> BatchBudget:
        """The memory budget of this many batches; each ``with`` starts a fresh one."""
        return BatchBudget(self.max_batch_bytes * num_batches)

    def single(self, serialized: Buffer, key: int = 0) -> _Sample:
        """Parse one record."""
        raise NotImplementedError

    def batch(self, records: Iterable[Buffer], keys: Keys | None = None) -> _Batch:
        """Parse several records into columns.

        Dense columns of a batch may share one block of memory, which lives as long as any of them.

        Args:
            records: PackedRecords, which are not copied, or the bytes of each record.
            keys: uint64 [N]: a random key per record for specs that draw at random. None means
                zeros.

        Raises:
            TFRecordError: The first record that fails; ``position`` is its number among these
                records.
        """
        rows = packed(records)
        keys = _checked_keys(keys, len(rows))
        try:
            return self.batches(rows, keys, (0, len(rows)))[0]
        except TFRecordError:
            # The batch may have met another bad record first, or say less than the message does.
            for position, (row, key) in enumerate(zip(rows, keys.tolist(), strict=True)):
                try:
                    self.single(row, key)
                except TFRecordError as error:
                    raise error.locate(position=position) from error.__cause__
            # Each record is fine by itself: so it was the batch, such as its memory.
            raise

    def batches(
        self, records: PackedRecords, keys: Keys | None, borders: Sequence[int]
    ) -> list[_Batch]:
        """Parse several batches at once.

        Args:
            records: The concatenated records of all batches.
            keys: The keys of all records; see :meth:`batch`.
            borders: The start of each batch, beginning with 0, and the end of the last one.

        Raises:
            TFRecordError: Some record fails, or the batch needs too much memory: the caller reads
                record by record to find out which.
        """
        keys, batches = _checked_keys(keys, len(records)), []
        # The values that the core finds count against all batches together, columns of readers each.
        found = self._find(records, keys, borders)
        for columns, (begin, end) in zip(found, pairwise(borders), strict=True):
            try:
                with self.budget():
                    batches.append(self._read(columns, end - begin, keys[begin:end]))
            except LimitExceededError as error:
                # Readers count from the begin of their batch, callers from that of the first one.
                error.position = None if error.position is None else error.position + begin
                raise
        return batches

    def begin(self, rows: PackedRecords) -> None:
        """Let a thread of the core begin to parse the records of one batch, for `batches`, where it can."""

    def _find(self, rows: PackedRecords, keys: Keys, borders: Sequence[int]) -> Sequence[_Found]:
        """The contents of the records of several batches, not yet as values."""
        raise NotImplementedError

    def _read(self, found: _Found, num_records: int, keys: Keys) -> _Batch:
        """Read every feature of a batch from its columns."""
        raise NotImplementedError


_Columns: TypeAlias = "tuple[Sequence[Sequence[Column]], dict[str, Work]]"
"""The columns that each reader wants of a batch, and the readers' own work."""


class ExampleParser(Parser[Values, Values, _Columns]):
    """Parses Examples with a mapping of feature specs. Pickles; safe from several threads.

    Args:
        features: Output name -> feature spec, or a reader; such a parser does not pickle.
        pads: Whether rows of a FixedLenSequenceFeature are padded in a batch, as in TensorFlow;
            else they are jagged.
        max_batch_bytes: Memory limit for the values of a batch, or of a sample; see
            `parse_example`.

    Raises:
        TypeError: ``features`` is not a mapping of str to specs.
        ValueError: ``features`` is empty or None, or a spec cannot be read from an Example.

    Example:
        >>> import torch
        >>> from torch_tfrecord import FixedLenFeature
        >>> parser = ExampleParser({"a": FixedLenFeature((), torch.int64)})
        >>> parser.single(bytes.fromhex("0a0c0a0a0a016112051a030a0105"))
        {'a': tensor(5)}
    """

    def __init__(
        self,
        features: Mapping[str, Feature | Reader] | None,
        *,
        pads: bool = True,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(max_batch_bytes)
        if features is None or (isinstance(features, Mapping) and not features):
            raise ValueError(
                f"Argument `features` cannot be None or empty, got {features!r}; decode_example(record) needs none"
            )
        if not isinstance(features, Mapping):
            raise TypeError(
                f"features must be a mapping of names to specs, got {type(features).__name__}"
            )
        self.features: Values = dict(features)
        self._pads = pads
        # One set for samples, one for batches: they differ if rows are padded.
        readers = [make_reader(name, spec) for name, spec in self.features.items()]
        self._row_readers = self._readers = readers
        self.optional = optional_of(readers)
        self.needs_keys = any(getattr(reader, "keyed", False) for reader in readers)
        if pads:
            self._readers = [
                make_reader(name, spec, pads=True) for name, spec in self.features.items()
            ]

    def single(self, serialized: Buffer, key: int = 0) -> Values:
        """Parse one serialized Example; see `parse_single_example`.

        Args:
            serialized: The record's bytes.
            key: Random key for specs that draw at random, an unsigned 64-bit integer.
        """
        # The core reads plain records; messages read the rest, and word all errors.
        found = self._row_plan.read(serialized, key)
        if found is None:
            record = parse_message(serialized).features.feature
            with self.budget():
                found = [read_one(reader, record, key) for reader in self._row_readers]
        return dict(zip(self.features, found, strict=True))

    def begin(self, rows: PackedRecords) -> None:
        """See `Parser`.

        Raises:
            LimitExceededError: As there.
        """
        plan = self._plan
        if plan.core is not None and not self._begins:
            with self.budget():
                works = plan.begin(rows, (0, len(rows)))
            rows.begun = self, works, plan.jobs.Started(works[0].job)

    def _find(self, rows: PackedRecords, keys: Keys, borders: Sequence[int]) -> list[_Columns]:
        begun, rows.begun = rows.begun, None
        if begun is not None and begun[0] is self and begun[2].finish():
            return [(self._plan.pick(work.finish()), {}) for work in begun[1]]
        with self.budget(len(borders) - 1):
            works = self._plan.begin(rows, borders)
        ends = pairwise(borders)
        own = [
            self._begin(work, keys[slice(*pair)]) for work, pair in zip(works, ends, strict=True)
        ]
        every: list[ColumnWork | Work] = []
        for work, others in zip(works, own, strict=True):
            every += [work, *others.values()]
        self._plan.run(rows, every)
        found = [self._plan.pick(work.finish()) for work in works]
        return [*zip(found, own, strict=True)]

    def _begin(self, work: ColumnWork, keys: Keys) -> dict[str, Work]:
        """The readers' own work on a batch whose columns are still to be filled."""
        if work.job is None:
            return {}
        with self.budget():
            begun = {name: begin(work.dense(place), keys) for name, begin, place in self._begins}
        return {name: work for name, work in begun.items() if work is not None}

    @cached_property
    def _begins(self) -> list[tuple[str, Callable[..., Work | None], int]]:
        """The readers that have work of their own, and the number of their column."""
        readers = zip(self.features, self._readers, self._plan.places, strict=True)
        return [
            (name, reader.begin, place)
            for name, reader, ((place, *_), _) in readers
            if hasattr(reader, "begin") and place not in self._plan.lists
        ]

    @cached_property
    def _plan(self) -> ColumnPlan:
        return ColumnPlan([reader.wants for reader in self._readers])

    @cached_property
    def _row_plan(self) -> RowPlan:
        return RowPlan(self._plan, self._row_readers, self.budget)

    def _read(self, found: _Columns, num_records: int, keys: Keys) -> Values:
        """Read every feature from its columns."""
        columns, works = found
        values: Values = {}
        for name, reader, own in zip(self.features, self._readers, columns, strict=True):
            # Most features draw nothing, and then there is no call in between.
            values[name] = (
                works[name].finish(own)
                if name in works
                else read_columns(reader, own, keys)
                if self.needs_keys
                else reader.read(own)
            )
        return values


class PartParser(Parser[Value, Value, PackedRecords]):
    """The base of parsers of other records than Examples: each batch is read by itself, a sample as
    a batch of one.
    """

    def single(self, serialized: Buffer, key: int = 0) -> Value:
        """Parse one record."""
        try:
            with self.budget():
                return self._row(packed([serialized]), np.array([key], np.uint64))
        except TFRecordError as error:
            error.position = None  # only the number within the batch of one
            raise

    def _row(self, record: PackedRecords, keys: Keys) -> Value:
        """The only row of a batch of one record."""
        raise NotImplementedError

    def _find(self, rows: PackedRecords, keys: Keys, borders: Sequence[int]) -> list[PackedRecords]:
        return [rows[begin:end] for begin, end in pairwise(borders)]


def optional_of(
    readers: Iterable[Reader | StepReader], place: int = 0
) -> dict[tuple[int, str], str]:
    """See `Parser.optional`."""
    wants = chain.from_iterable(reader.wants for reader in readers)
    return {(place, want.key): want.label for want in wants if not want.is_required}


def packed(records: Iterable[Value]) -> PackedRecords:
    """The bytes of several records, in one buffer."""
    if isinstance(records, PackedRecords):
        return records
    # drops trailing NULs
    fixed_width = isinstance(records, np.ndarray) and records.dtype.kind == "S"
    if fixed_width or isinstance(records, (bytes, bytearray, memoryview, str)):
        raise TypeError("serialized must be a list of the records' bytes")
    rows = list(records)
    for position, row in enumerate(rows):
        if not isinstance(row, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"Expected serialized to be a scalar or vector: a list of bytes, got {type(row).__name__} at {position}"
            )
    # A view may have other item sizes, so its length may not be its number of bytes.
    parts = [row if isinstance(row, bytes) else bytes(row) for row in rows]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return PackedRecords(b"".join(parts), ends[:-1], np.diff(ends))


def _checked_keys(keys: Keys | None, num_records: int) -> Keys:
    if keys is None:
        # Nobody gave keys: a record then draws the same whenever it is parsed.
        return np.zeros(num_records, np.uint64)
    if len(keys) != num_records:
        raise ValueError(f"expected a key for each of {num_records} records, got {len(keys)}")
    return np.asarray(keys, np.uint64)


def read_one(reader: Reader, record: Any, key: int = 0) -> Value:
    """The value of one record, the row of a batch of one; raises the errors of `columns_of` and the
    reader.

    Args:
        reader: Reads the feature.
        record: A map of key to Feature message.
        key: Random key for readers that draw at random, an unsigned 64-bit integer.
    """
    columns = columns_of(reader.wants, [record])
    try:
        column = read_columns(reader, columns, key)
    except LackingError as error:
        raise error.want.missing(record) from None
    except TFRecordError as error:
        error.position = None  # only the number within the batch of one
        raise
    return rows_of(column)[0]
