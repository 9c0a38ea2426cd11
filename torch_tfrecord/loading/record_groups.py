"""Records on their way through a stream: groups of them in one buffer, with where each is from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["RecordGroup", "StreamRecord", "regroup"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


# One record: payload, number of its file, offset of its length field, and its number in the file. A plain tuple, since
# making a named one takes longer than all else that is done to a small record in a stream.
StreamRecord: TypeAlias = "tuple[bytes, int, int, int]"


class RecordGroup(NamedTuple):
    """Several records: payloads, and of each the number of its file, its offset, and its number in the file."""

    records: PackedRecords
    files: _Integers
    offsets: _Integers
    numbers: _Integers

    def part(self, rows: slice) -> RecordGroup:
        """Some of the records, not copied."""
        return RecordGroup(self.records[rows], self.files[rows], self.offsets[rows], self.numbers[rows])

    def place(self, row: int) -> tuple[int, int, int]:
        """Number of the file, offset and number in the file of a record."""
        return int(self.files[row]), int(self.offsets[row]), int(self.numbers[row])

    @classmethod
    def of(cls, records: Sequence[StreamRecord]) -> RecordGroup:
        """Single records as a group; copies them into one buffer."""
        payloads, *places = zip(*records, strict=True)
        lengths = np.array([*map(len, payloads)], dtype=np.int64)
        packed = PackedRecords(b"".join(payloads), np.cumsum(lengths) - lengths, lengths)
        return cls(packed, *(np.array(column, dtype=np.int64) for column in places))

    @classmethod
    def join(cls, groups: Sequence[RecordGroup]) -> RecordGroup:
        """Several groups, of at least one record each, as one; copies them into one buffer if they are not one."""
        if len(groups) == 1:
            return groups[0]
        parts, starts, end = [], [], 0
        for group in groups:
            records = group.records
            low, high = int(records.starts.min()), int((records.starts + records.lengths).max())
            parts.append(records.buffer[low:high])
            starts.append(records.starts + (end - low))
            end += high - low
        lengths = [group.records.lengths for group in groups]
        packed = PackedRecords(b"".join(parts), np.concatenate(starts), np.concatenate(lengths))
        return cls(packed, *(np.concatenate(column) for column in zip(*(group[1:] for group in groups), strict=True)))


def regroup(
    groups: Iterator[RecordGroup], size: int, *, drop_last: bool, before_error: Callable[[RecordGroup], object]
) -> Iterator[RecordGroup]:
    """The same records in groups of `size`; the last may have fewer, or is left out with `drop_last`.

    Args:
        groups: In order; empty ones are left out.
        size: At least 1.
        drop_last: Leave out a last group that is not full.
        before_error: Called, where `groups` raises a TFRecordError, with the records that wait for their group to fill.
    """
    waiting: list[RecordGroup] = []
    missing = size
    try:
        for group in groups:
            while len(group.numbers) >= missing:
                yield RecordGroup.join([*waiting, group.part(slice(missing))])
                group = group.part(slice(missing, None))
                waiting, missing = [], size
            if len(group.numbers):
                waiting.append(group)
                missing -= len(group.numbers)
    except TFRecordError:
        if waiting:
            before_error(RecordGroup.join(waiting))
        raise
    if waiting and not drop_last:
        yield RecordGroup.join(waiting)
