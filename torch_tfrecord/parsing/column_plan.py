"""The plan by which the compiled core reads a batch of Examples: what the readers want, and where it is put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from torch_tfrecord.batch_memory import empty_bytes
from torch_tfrecord.native import native_module
from torch_tfrecord.parsing.columns import Column, NativeReader, Reader, Want
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.values.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind

__all__ = ["ColumnPlan"]

# Field numbers in a Feature message, and what the core writes for one value.
_FIELDS: dict[ListKind, int] = {BYTES_LIST: 1, FLOAT_LIST: 2, INT64_LIST: 3}
_ARRAYS: dict[ListKind, Any] = {BYTES_LIST: np.int64, FLOAT_LIST: np.float32, INT64_LIST: np.int64}
_WIDTHS: dict[ListKind, int] = {BYTES_LIST: 2, FLOAT_LIST: 1, INT64_LIST: 1}
# Dense columns may be that much larger than what they are read from, plus 64 MiB: an int64 of one byte becomes eight,
# and records may lack a feature that has a default.
_MAX_GROWTH = 16
_FREE_BYTES = 1 << 26
_NO_OFFSETS = np.zeros(0, np.int64)


class ColumnPlan:
    """What several readers want, each key once. Never changes once built; threads may share it.

    A reader takes part if it has ``wants`` that do not contradict those of the readers before it: one key is read as
    one list with one number of values.

    Args:
        readers: The readers, in the order of the outputs.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        wants: dict[str, Want] = {}
        keys = [_add(wants, reader) for reader in readers]
        # By size of a value, so that each column is aligned in the block, and columns of one shape lie side by side.
        ordered = sorted(wants.values(), key=lambda want: (want.kind is FLOAT_LIST, want.kind.field, _count(want)))
        self._wants = ordered
        place = {want.key: number for number, want in enumerate(ordered)}
        self._picks = [
            None if found is None else _picker([place[key] for key in found], is_shared=is_shared)
            for found, is_shared in zip(keys, _repeats(keys), strict=True)
        ]
        native = native_module("columns") if ordered else None
        slots = [(want.key.encode(), _FIELDS[want.kind], _count(want), want.is_required) for want in ordered]
        self._core = None if native is None else native.Plan(slots)
        self._dense_places = [number for number, want in enumerate(ordered) if want.num_values is not None]
        self._ragged_places = [number for number, want in enumerate(ordered) if want.num_values is None]
        self._row_bytes = sum(_row_bytes(want) for want in ordered)
        self._groups = _groups(ordered)

    @property
    def is_useful(self) -> bool:
        """Whether there is a compiled core, and a reader that it serves."""
        return self._core is not None

    def read(self, records: PackedRecords, borders: Sequence[int]) -> list[list[Sequence[Column] | None]] | None:
        """Read records of which all are plain (``native.columns``).

        Args:
            records: The records of one or more batches, one behind the other.
            borders: Where each batch begins, from 0 on, and where the last one ends.

        Returns:
            For each batch, for every reader the columns that it wants, None for a reader that takes no part. None where
            some record is not plain or does not fit what is wanted: then nothing is known of any.
        """
        num_records, buffer = len(records), records.buffer
        num_bytes = self._row_bytes * num_records
        if self._core is None or num_bytes > _MAX_GROWTH * buffer.nbytes + _FREE_BYTES:
            return None
        block = empty_bytes(num_bytes)
        offsets = np.empty((len(self._ragged_places), num_records + 1), np.int64)
        missing = np.zeros((len(self._wants), num_records), np.bool_)
        starts, lengths = np.ascontiguousarray(records.starts), np.ascontiguousarray(records.lengths)
        found = self._core.parse(buffer, starts, lengths, block, offsets, missing.view(np.uint8))
        if found is None:
            return None
        memories, has_missing = found
        dense = self._dense(block, num_records)
        kinds = [self._wants[place].kind for place in self._ragged_places]
        ragged = [*map(_from_memory, memories, kinds)]
        lacking = [place for place, lacks in enumerate(has_missing) if lacks] if True in has_missing else []
        found = []
        # Forty columns of a small batch: what is done for each of them counts.
        for begin, end in pairwise(borders):
            columns: list[Any] = [None] * len(self._wants)
            for place, array in zip(self._dense_places, dense, strict=True):
                columns[place] = Column(array[begin:end], _NO_OFFSETS, None, buffer)
            for place, array, ends in zip(self._ragged_places, ragged, offsets, strict=True):
                first, last = ends[begin], ends[end]
                columns[place] = Column(array[first:last], ends[begin : end + 1] - first, None, buffer)
            for place in lacking:
                columns[place] = columns[place]._replace(missing=missing[place, begin:end])
            found.append([None if pick is None else pick(columns) for pick in self._picks])
        return found

    def _dense(self, block: Any, num_records: int) -> list[Any]:
        """The block's parts, one for each dense column; of columns of one shape it is taken apart at once."""
        parts: list[Any] = []
        begin = 0
        for number, want in self._groups:
            end = begin + number * num_records * _row_bytes(want)
            shape = (number, num_records, _count(want)) if want.num_values != 1 else (number, num_records)
            tail = (2,) if want.kind is BYTES_LIST else ()
            parts.extend(block[begin:end].view(_ARRAYS[want.kind]).reshape(shape + tail))
            begin = end
        return parts


def _add(wants: dict[str, Want], reader: Reader | NativeReader) -> list[str] | None:
    """Add what a reader wants; its keys, or None where it takes no part."""
    asked: Sequence[Want] = getattr(reader, "wants", None) or ()
    found = dict(wants)
    for want in asked:
        before = found.setdefault(want.key, want)
        if before[:3] != want[:3] or not _is_unicode(want.key):
            return None
        found[want.key] = before._replace(is_required=before.is_required or want.is_required)
    wants.update(found)
    return [want.key for want in asked] or None


def _repeats(keys: Sequence[list[str] | None]) -> list[bool]:
    """For each reader whether one before it has some of its keys."""
    seen: set[str] = set()
    repeats = []
    for found in keys:
        repeats.append(not seen.isdisjoint(found or ()))
        seen.update(found or ())
    return repeats


def _picker(places: Sequence[int], *, is_shared: bool) -> Callable[[Sequence[Column]], Sequence[Column]]:
    """What takes a reader's columns out of all; copies where they are another reader's, whose tensors they become."""
    take = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
    return (lambda columns: [*map(_copied, take(columns))]) if is_shared else take


def _copied(column: Column) -> Column:
    return column._replace(values=column.values.copy(), offsets=column.offsets.copy())


def _is_unicode(key: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def _count(want: Want) -> int:
    return -1 if want.num_values is None else want.num_values


def _row_bytes(want: Want) -> int:
    itemsize: int = np.dtype(_ARRAYS[want.kind]).itemsize
    return (want.num_values or 0) * _WIDTHS[want.kind] * itemsize


def _groups(wants: Sequence[Want]) -> list[tuple[int, Want]]:
    """Neighbours of one kind and count: how many, and one of them; dense ones only."""
    groups: list[tuple[int, Want]] = []
    for want in wants:
        if want.num_values is None:
            continue
        if groups and groups[-1][1][1:3] == want[1:3]:
            groups[-1] = (groups[-1][0] + 1, want)
        else:
            groups.append((1, want))
    return groups


def _from_memory(memory: Any, kind: ListKind) -> Any:
    array = np.frombuffer(memory, _ARRAYS[kind]) if memoryview(memory).nbytes else np.zeros(0, _ARRAYS[kind])
    return array.reshape(-1, 2) if kind is BYTES_LIST else array
