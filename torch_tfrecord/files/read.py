"""The one way to the bytes of many ranges of many files: local ones by pread, those of storages all
at once.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import scratch_bytes
from torch_tfrecord.files.local_file import LocalFile
from torch_tfrecord.files.storage import (
    MOST_BYTES,
    WINDOW_BYTES,
    FileSource,
    ReadTogether,
    SourceOf,
    truncated,
)

__all__ = ["ReadPlan", "plan_reads", "read_pieces"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
_Bytes: TypeAlias = "npt.NDArray[np.uint8]"


class ReadPlan(NamedTuple):
    """M ranges to read into one buffer, one after the other, and the places of N pieces in it.

    Attributes:
        files: int64 [M]: file number, ascending.
        begins: int64 [M]: first byte of the range in the file, ascending within a file.
        sizes: int64 [M]: size of the range in bytes.
        starts: int64 [M]: start of the range in the buffer.
        places: int64 [N]: start of each requested piece in the buffer, in request order.
    """

    files: _Integers
    begins: _Integers
    sizes: _Integers
    starts: _Integers
    places: _Integers

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return int(self.sizes.sum())


def plan_reads(
    files: _Integers, offsets: _Integers, sizes: _Integers, *, max_gap_bytes: int, window_bytes: int
) -> ReadPlan:
    """Sort the pieces by file and offset and merge neighbours, so that few calls read them all.

    Args:
        files: int64 [N]: file number of each piece.
        offsets: int64 [N]: its first byte.
        sizes: int64 [N]: its size in bytes; offset + size < 2^63.
        max_gap_bytes: Pieces with at most this gap between them become one range; the gap is read,
            too.
        window_bytes: Only pieces that start in the same window of this size (aligned to a multiple
            of it) are merged, which limits a range to this size plus one piece.

    Example:
        >>> files, offsets = np.array([0, 0, 0]), np.array([90, 0, 10])
        >>> plan = plan_reads(files, offsets, np.array([5, 10, 10]), max_gap_bytes=4, window_bytes=1 << 20)
        >>> plan.begins.tolist(), plan.sizes.tolist(), plan.places.tolist()
        ([0, 90], [20, 5], [20, 0, 10])
    """
    order = np.lexsort((offsets, files))
    file, begin = files[order], offsets[order]
    end = begin + sizes[order]
    is_new = np.ones(len(begin), dtype=np.bool_)
    is_new[1:] = (
        (file[1:] != file[:-1])
        | (begin[1:] > end[:-1] + max_gap_bytes)
        | (begin[1:] // window_bytes != begin[:-1] // window_bytes)
    )
    first = np.flatnonzero(is_new)
    range_begins = begin[first]
    range_sizes = (np.maximum.reduceat(end, first) if len(first) else end) - range_begins
    starts = np.cumsum(range_sizes) - range_sizes
    number = np.cumsum(is_new) - 1  # range number of each sorted piece
    places = np.empty(len(begin), dtype=np.int64)
    places[order] = starts[number] + begin - range_begins[number]
    return ReadPlan(file[first], range_begins, range_sizes, starts, places)


def read_pieces(
    source_of: SourceOf,
    files: _Integers,
    offsets: _Integers,
    sizes: _Integers,
    blocks: ReadTogether | None = None,
) -> tuple[_Bytes, _Integers]:
    """Read pieces of several files, those close together by one call, in any order.

    Args:
        source_of: Opens the file of a number, of known size, or finds it open.
        files: int64 [N]: file number of each piece.
        offsets: int64 [N]: its first byte.
        sizes: int64 [N]: its bytes, which are within the file.
        blocks: Reads files that are read together, in place of `FileSource.together`.

    Returns:
        A buffer, and where each piece begins in it: int64 [N].

    Raises:
        CorruptRecordError: A file ends inside a piece.
        OSError, RemoteError: A file cannot be read.
    """
    first = source_of(int(files[0])) if len(files) and blocks is None else None
    if isinstance(first, LocalFile) and len(files) == 1:  # for one piece a plan costs more
        begin, size = int(offsets[0]), int(sizes[0])
        if begin >= 0 and 0 <= size <= first.file_size - begin:
            buffer = scratch_bytes(size)
            if first.read_into(buffer.data, begin) == size:
                return buffer, np.zeros(1, np.int64)
    gap = 0 if first is None else first.max_gap_bytes
    plan = plan_reads(files, offsets, sizes, max_gap_bytes=gap, window_bytes=WINDOW_BYTES)
    if isinstance(first, LocalFile) and 0 <= plan.num_bytes <= MOST_BYTES:
        buffer = scratch_bytes(plan.num_bytes)
        numbers, file_of = np.unique(plan.files, return_inverse=True)
        ranges = np.stack([file_of, plan.begins, plan.sizes, plan.starts])
        if LocalFile.read_together(source_of, numbers.tolist(), ranges, buffer):
            return buffer, plan.places
    columns = (plan.files, plan.begins, plan.begins + plan.sizes, plan.starts)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    by_file = [
        (number, source_of(number), [*group]) for number, group in groupby(rows, itemgetter(0))
    ]
    for _, source, group in by_file:  # before anything is allocated for them
        for _, begin, end, _ in group:
            if not 0 <= begin <= end <= (source.size or 0):
                raise truncated(source.path, end, source.size or 0)
    buffer = scratch_bytes(plan.num_bytes)
    together: dict[ReadTogether, list[tuple[FileSource, int, int, int, int]]] = {}
    for _, source, group in by_file:
        if source.together is None:
            source.read_ranges([row[1:] for row in group], buffer.data)
        else:
            wanted = together.setdefault(blocks or source.together, [])
            wanted += [(source, *row) for row in group]
    for read, wanted in together.items():
        read(wanted, buffer.data)
    return buffer, plan.places
