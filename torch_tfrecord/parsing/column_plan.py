"""The plan by which a batch of Examples is read: what the readers want, and where the compiled core puts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from torch_tfrecord.batch_memory import empty_bytes
from torch_tfrecord.errors import ParseError
from torch_tfrecord.native import native_module
from torch_tfrecord.parsing.columns import Column
from torch_tfrecord.parsing.message_columns import columns_of
from torch_tfrecord.parsing.wants import Want
from torch_tfrecord.protobuf.example import parse_message
from torch_tfrecord.protobuf.messages import Example
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind

__all__ = [
    "FIELDS",
    "FREE_BYTES",
    "ColumnPlan",
    "PlanPart",
    "Scan",
    "Wanting",
    "canonical_form",
    "from_memory",
    "ways",
]

# Field numbers in a Feature message, and what the core writes for one value.
FIELDS: dict[ListKind, int] = {BYTES_LIST: 1, FLOAT_LIST: 2, INT64_LIST: 3}
_ARRAYS: dict[ListKind, Any] = {BYTES_LIST: np.int64, FLOAT_LIST: np.float32, INT64_LIST: np.int64}
_WIDTHS: dict[ListKind, int] = {BYTES_LIST: 2, FLOAT_LIST: 1, INT64_LIST: 1}
# Dense columns may be that much larger than what they are read from, plus 64 MiB: an int64 of one byte becomes eight,
# and records may lack a feature that has a default. Beyond, it is first looked whether the records fit.
_MAX_GROWTH = 16
FREE_BYTES = 1 << 26
_NO_OFFSETS = np.zeros(0, np.int64)


class Wanting(Protocol):
    """Who wants something of records, as every `Reader`."""

    @property
    def wants(self) -> tuple[Want, ...]:
        """What."""


class Scan(NamedTuple):
    """What the core found in N records.

    Attributes:
        block: The dense columns, one behind the other.
        offsets: int64 [columns of any count, N + 1].
        memories: The values of each column of any count.
        missing: uint8 [all columns, N].
        lacking: The numbers of the columns that some record lacks.
        buffer: The records' bytes, then those that protobuf wrote again.
    """

    block: Any
    offsets: Any
    memories: Sequence[Any]
    missing: Any
    lacking: Sequence[int]
    buffer: Any


class ColumnPlan:
    """What several readers want, each key once. Never changes once built; threads may share it.

    Where readers want one key in different ways (another list, another number of values) the records are gone through
    once more for each way.

    Args:
        readers: The readers, in the order of the outputs.

    Attributes:
        parts: One for each time that the records are gone through.
    """

    def __init__(self, readers: Sequence[Wanting]) -> None:
        native = native_module("columns")
        self.parts = [PlanPart(wants, native) for wants in ways(readers)]
        slots = [_slot(want) for part in self.parts for want in part.wants]
        place = {slot: number for number, slot in enumerate(slots)}
        self.places = [[place[_slot(want)] for want in reader.wants] for reader in readers]
        shared = _repeats(self.places)
        self._picks = [_picker(places, is_shared=repeats) for places, repeats in zip(self.places, shared, strict=True)]

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
    """Of a plan the wants of different keys, which are read by one call of the core, or by its twin.

    Args:
        wants: The wants.
        native: The core; None for the twin.
    """

    def __init__(self, wants: Sequence[Want], native: Any) -> None:
        # By size of a value, so that each column is aligned in the block, and columns of one shape lie side by side.
        self.wants = sorted(wants, key=_order)
        self._core: Any = None if native is None else native.Plan([*map(_core_slot, self.wants)])
        self._dense_places = [number for number, want in enumerate(self.wants) if want.num_values is not None]
        self._any_places = [number for number, want in enumerate(self.wants) if want.num_values is None]
        sizes = [_row_bytes(want) for want in self.wants]
        self.row_bytes = sum(sizes)
        self.begins = [0, *accumulate(sizes)]
        self._groups = _groups(self.wants)

    @property
    def is_compiled(self) -> bool:
        """Whether there is a compiled core."""
        return self._core is not None

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[Column]]:
        """As of `ColumnPlan.read`: for each batch the columns of the wants."""
        if self._core is None:
            messages = [parse_message(record).features.feature for record in records]
            return [columns_of(self.wants, messages[begin:end]) for begin, end in pairwise(borders)]
        if self.row_bytes * len(records) > _MAX_GROWTH * records.buffer.nbytes + FREE_BYTES:
            for record in records:
                columns_of(self.wants, [parse_message(record).features.feature])
        starts, lengths = np.ascontiguousarray(records.starts), np.ascontiguousarray(records.lengths)
        scan = self.scan(records.buffer, starts, lengths, lambda row: canonical_form(records[row]))
        if scan is None:
            raise ParseError("expected records that fit the features")
        return self._columns(scan, len(records), borders)

    def scan(
        self, buffer: Any, starts: Any, lengths: Any, canonical: Callable[[int], bytes] | None = None
    ) -> Scan | None:
        """Read records by the core; arguments, errors and None as of the core's `parse`."""
        num_records = len(starts)
        block = empty_bytes(self.row_bytes * num_records)
        offsets = np.empty((len(self._any_places), num_records + 1), np.int64)
        missing = np.zeros((len(self.wants), num_records), np.uint8)
        found = self._core.parse(buffer, starts, lengths, block, offsets, missing, canonical)
        if found is None:
            return None
        memories, lacks, extras = found
        lacking = [] if lacks is None else [place for place, is_lacking in enumerate(lacks) if is_lacking]
        return Scan(block, offsets, memories, missing, lacking, b"".join([buffer, *extras]) if extras else buffer)

    def dtype_of(self, place: int) -> Any:
        """The numpy dtype of a column's values."""
        return _ARRAYS[self.wants[place].kind]

    def row_column(self, scan: Scan, place: int) -> Column:
        """One column of a scan of one record."""
        want = self.wants[place]
        missing = scan.missing[place] if place in scan.lacking else None
        if want.num_values is None:
            number = self._any_places.index(place)
            return Column(from_memory(scan.memories[number], want.kind), scan.offsets[number], missing, scan.buffer)
        values = scan.block[self.begins[place] : self.begins[place + 1]].view(_ARRAYS[want.kind])
        return Column(values.reshape(1, *_tail(want)), _NO_OFFSETS, missing, scan.buffer)

    def _columns(self, scan: Scan, num_records: int, borders: Sequence[int]) -> list[list[Column]]:
        dense, buffer = self._dense(scan.block, num_records), scan.buffer
        kinds = [self.wants[place].kind for place in self._any_places]
        values = [*map(from_memory, scan.memories, kinds)]
        found = []
        # Forty columns of a small batch: what is done for each of them counts.
        for begin, end in pairwise(borders):
            columns: list[Any] = [None] * len(self.wants)
            for place, array in zip(self._dense_places, dense, strict=True):
                columns[place] = Column(array[begin:end], _NO_OFFSETS, None, buffer)
            for place, array, ends in zip(self._any_places, values, scan.offsets, strict=True):
                first, last = ends[begin], ends[end]
                columns[place] = Column(array[first:last], ends[begin : end + 1] - first, None, buffer)
            for place in scan.lacking:
                columns[place] = columns[place]._replace(missing=_if_any(scan.missing[place, begin:end]))
            found.append(columns)
        return found

    def _dense(self, block: Any, num_records: int) -> list[Any]:
        """The block's parts, one for each dense column; of columns of one shape it is taken apart at once."""
        parts: list[Any] = []
        begin = 0
        for number, want in self._groups:
            end = begin + number * num_records * _row_bytes(want)
            parts.extend(block[begin:end].view(_ARRAYS[want.kind]).reshape(number, num_records, *_tail(want)))
            begin = end
        return parts


def canonical_form(record: Any, message_class: Any = Example) -> bytes:
    """The record as every writer makes it, which the core reads.

    Raises:
        ParseError: It is no such message.
    """
    message = parse_message(record, message_class)
    message.DiscardUnknownFields()
    form: bytes = message.SerializeToString(deterministic=True)
    return form


def ways(readers: Iterable[Wanting]) -> list[list[Want]]:
    """The wants, each once, such that no key is in a list twice."""
    ways: list[dict[str, Want]] = [{}]
    for want in (want for reader in readers for want in reader.wants):
        way = next((way for way in ways if _slot(way.get(want.key, want)) == _slot(want)), None)
        if way is None:
            ways.append(way := {})
        if want.key not in way or want.is_required:
            way[want.key] = want
    return [list(way.values()) for way in ways]


def _slot(want: Want) -> tuple[Any, ...]:
    return want.key, want.kind, want.num_values


def _core_slot(want: Want) -> tuple[bytes, int, int, bool]:
    return want.key.encode(), FIELDS[want.kind], _count(want), want.is_required


def _order(want: Want) -> tuple[Any, ...]:
    return want.kind is FLOAT_LIST, want.kind.field, _count(want), want.shape, want.what


def _repeats(places: Sequence[Sequence[int]]) -> list[bool]:
    """For each reader whether one before it has some of its columns."""
    seen: set[int] = set()
    repeats = []
    for found in places:
        repeats.append(not seen.isdisjoint(found))
        seen.update(found)
    return repeats


def _picker(places: Sequence[int], *, is_shared: bool) -> Callable[[Sequence[Column]], Sequence[Column]]:
    """What takes a reader's columns out of all; copies where they are another reader's, whose tensors they become."""
    take = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
    return (lambda columns: [*map(_copied, take(columns))]) if is_shared else take


def _copied(column: Column) -> Column:
    return column._replace(values=column.values.copy(), offsets=column.offsets.copy())


def _if_any(missing: Any) -> Any:
    return missing if missing.any() else None


def _count(want: Want) -> int:
    return -1 if want.num_values is None else want.num_values


def _tail(want: Want) -> tuple[int, ...]:
    """The shape of a dense want's values in one record."""
    count = () if want.num_values == 1 else (want.num_values or 0,)
    return (*count, 2) if want.kind is BYTES_LIST else count


def _row_bytes(want: Want) -> int:
    itemsize: int = np.dtype(_ARRAYS[want.kind]).itemsize
    return (want.num_values or 0) * _WIDTHS[want.kind] * itemsize


def _groups(wants: Sequence[Want]) -> list[tuple[int, Want]]:
    """Neighbours of one kind and count: how many, and one of them; dense ones only."""
    groups: list[tuple[int, Want]] = []
    for want in wants:
        if want.num_values is None:
            continue
        if groups and _order(groups[-1][1])[:3] == _order(want)[:3]:
            groups[-1] = (groups[-1][0] + 1, want)
        else:
            groups.append((1, want))
    return groups


def from_memory(memory: Any, kind: ListKind) -> Any:
    """The array of a list's values in the core's Memory."""
    array = np.frombuffer(memory, _ARRAYS[kind]) if memoryview(memory).nbytes else np.zeros(0, _ARRAYS[kind])
    return array.reshape(-1, 2) if kind is BYTES_LIST else array
