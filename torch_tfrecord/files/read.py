"""The one way to the bytes of many ranges of many files: local ones by pread, those of storages all
at once.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

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
from torch_tfrecord.native import native_module

__all__ = ["read_pieces"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
_Bytes: TypeAlias = "npt.NDArray[np.uint8]"


def _plan(
    files: _Integers, offsets: _Integers, sizes: _Integers, gap: int
) -> tuple[_Integers, list[int], _Integers]:
    """M ranges to read into one buffer, one after the other, and the places of N pieces in it.

    Returns:
        int64 [4, M]: number among the files, first byte, size and place in the buffer of each range;
        the files; int64 [N]: start of each piece in the buffer.
    """
    ranges, places = np.empty((4, len(files)), np.int64), np.empty(len(files), np.int64)
    native = native_module("frames")
    plan = native and native.plan_reads(
        files, offsets, sizes, 0, 0, gap, WINDOW_BYTES, ranges, places
    )
    if plan:
        return np.ascontiguousarray(ranges[:, : plan[0]]), plan[2], places
    # Each piece by itself, where there is no compiled core or a number is out of range.
    order = np.lexsort((offsets, files))
    numbers, ranges[0] = np.unique(files[order], return_inverse=True)
    ranges[1], ranges[2] = offsets[order], sizes[order]
    places[order] = ranges[3] = np.cumsum(ranges[2]) - ranges[2]
    return ranges, numbers.tolist(), places


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
    ranges, numbers, places = _plan(
        files, offsets, sizes, 0 if first is None else first.max_gap_bytes
    )
    num_bytes = int(ranges[2].sum())
    if isinstance(first, LocalFile) and 0 <= num_bytes <= MOST_BYTES:
        buffer = scratch_bytes(num_bytes)
        if LocalFile.read_together(source_of, numbers, ranges, buffer):
            return buffer, places
    rows = [(file, at, at + size, start) for file, at, size, start in ranges.T.tolist()]
    by_file = [
        (numbers[file], source_of(numbers[file]), [*group])
        for file, group in groupby(rows, itemgetter(0))
    ]
    for _, source, group in by_file:  # before anything is allocated for them
        for _, begin, end, _ in group:
            if not 0 <= begin <= end <= (source.size or 0):
                raise truncated(source.path, end, source.size or 0)
    buffer = scratch_bytes(num_bytes)
    together: dict[ReadTogether, list[tuple[FileSource, int, int, int, int]]] = {}
    for number, source, group in by_file:
        if source.together is None:
            source.read_ranges([row[1:] for row in group], buffer.data)
        else:
            wanted = together.setdefault(blocks or source.together, [])
            wanted += [(source, number, *row[1:]) for row in group]
    for read, wanted in together.items():
        read(wanted, buffer.data)
    return buffer, places
