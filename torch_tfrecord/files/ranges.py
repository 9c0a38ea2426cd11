"""Which ranges of which files to read, and where each piece of them ends up: pure arithmetic, from
plan to plan.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "LOCAL_GAP_BYTES",
    "ReadPlan",
    "plan_reads",
]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

# Two reads with at most so many bytes between them become one: copying 4 KiB costs as much as a
# call.
LOCAL_GAP_BYTES = 1 << 12

# With at most this many files of at most this size, file and offset fit into one int64.
_MOST_FILES = 1 << 20
_MOST_BYTES = 1 << 43


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

    def ranges(self) -> list[tuple[int, int, int, int]]:
        """Number of the file, first byte, end, and start in the buffer, of each range."""
        columns = (self.files, self.begins, self.begins + self.sizes, self.starts)
        return [*zip(*(column.tolist() for column in columns), strict=True)]


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
    order = _reading_order(files, offsets)
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


def _reading_order(files: _Integers, offsets: _Integers) -> _Integers:
    """The numbers of the pieces, sorted by file and offset: int64 [N]."""
    if not len(files) or (files == files[0]).all():
        return np.argsort(offsets)
    # sorting one number is faster than two
    if int(files.max()) < _MOST_FILES and int(offsets.max()) < _MOST_BYTES:
        return np.argsort(files * _MOST_BYTES + offsets)
    order: _Integers = np.lexsort((offsets, files))
    return order
