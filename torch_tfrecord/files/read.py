"""The one way to the bytes of many ranges of many files: local ones by pread, those of storages all
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import scratch_bytes
from torch_tfrecord.files.descriptors import Descriptor
from torch_tfrecord.files.storage import (
    FileSource,
    LocalFile,
    RangeReader,
    SourceRange,
    truncated,
)
from torch_tfrecord.native import native_module

if TYPE_CHECKING:
    from torch_tfrecord.native.jobs import Job

__all__ = [
    "ReadPlan",
    "plan_reads",
    "read_local_records",
    "read_pieces",
]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
_Bytes: TypeAlias = "npt.NDArray[np.uint8]"

SourceOf: TypeAlias = "Callable[[int], FileSource]"
"""Opens the file of a number, or finds it open."""

# One range is at most this long, plus one piece.
_WINDOW_BYTES = 1 << 24
# Above this, a length in an index may be wrong, and must not allocate memory before the file sizes
# are known.
_MOST_BYTES = 1 << 30
# With at most this many files of at most this size, file and offset fit into one int64.
_MOST_FILES = 1 << 20
_MOST_OFFSET = 1 << 43
_NONE: _Integers = np.empty(0, np.int64)


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
    if int(files.max()) < _MOST_FILES and int(offsets.max()) < _MOST_OFFSET:
        return np.argsort(files * _MOST_OFFSET + offsets)
    order: _Integers = np.lexsort((offsets, files))
    return order


def read_pieces(
    source_of: SourceOf,
    files: _Integers,
    offsets: _Integers,
    sizes: _Integers,
    blocks: RangeReader | None = None,
) -> tuple[_Bytes, _Integers]:
    """Read pieces of several files, those close together by one call, in any order.

    Args:
        source_of: Opens the file of a number, of known size, or finds it open.
        files: int64 [N]: file number of each piece.
        offsets: int64 [N]: its first byte.
        sizes: int64 [N]: its bytes, which lie within the file.
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
    plan = plan_reads(files, offsets, sizes, max_gap_bytes=gap, window_bytes=_WINDOW_BYTES)
    if isinstance(first, LocalFile) and 0 <= plan.num_bytes <= _MOST_BYTES:
        buffer = scratch_bytes(plan.num_bytes)
        numbers, file_of = np.unique(plan.files, return_inverse=True)
        found = np.stack([file_of, plan.begins, plan.sizes, plan.starts])
        count = len(file_of)
        job = _local_job(source_of, numbers.tolist(), found, count, buffer, _NONE, _NONE)
        if _is_done(job):
            return buffer, plan.places
    by_file = [
        (number, source_of(number), [*ranges])
        for number, ranges in groupby(plan.ranges(), itemgetter(0))
    ]
    for _, source, ranges in by_file:  # before anything is allocated for them
        for _, begin, end, _ in ranges:
            if not 0 <= begin <= end <= (source.size or 0):
                raise truncated(source.path, end, source.size or 0)
    buffer = scratch_bytes(plan.num_bytes)
    together: dict[RangeReader, list[SourceRange]] = {}
    for number, source, ranges in by_file:
        if source.together is None:
            source.read_ranges([range_[1:] for range_ in ranges], buffer.data)
        else:
            wanted = together.setdefault(blocks or source.together, [])
            wanted += [SourceRange(source, number, *range_) for _, *range_ in ranges]
    for reader, wanted in together.items():
        reader.read(wanted, buffer.data)
    return buffer, plan.places


def read_local_records(
    source_of: SourceOf,
    files: _Integers,
    offsets: _Integers,
    lengths: _Integers,
    *,
    verify_crc: bool,
) -> tuple[_Bytes, _Integers, Job] | None:
    """The short cut for records of local files: `read_pieces` of them and their check by the
    compiled core, as a job.

    Returns:
        The buffer, where each payload begins in it, and the job that reads them; None if in any
        doubt, as is the job that does not succeed: who reads again finds the error.
    """
    native = native_module("frames")
    if native is None:
        return None
    numbers = np.empty((5, len(files)), np.int64)
    ranges, places = numbers[:4], numbers[4]
    plan = native.plan_reads(
        files, offsets, lengths, LocalFile.max_gap_bytes, _WINDOW_BYTES, ranges, places
    )
    if plan is None or plan[1] > _MOST_BYTES:
        return None
    num_ranges, num_bytes, files_read = plan
    buffer = scratch_bytes(num_bytes)
    job = _local_job(source_of, files_read, ranges, num_ranges, buffer, places, lengths, verify_crc)
    return None if job is None else (buffer, places, job)


def _is_done(job: Job | None) -> bool:
    """Run a job; whether it succeeded."""
    return job is not None and native_module("jobs").run([job]) == 1  # type: ignore[union-attr]


def _local_job(
    source_of: SourceOf,
    files: Sequence[int],
    ranges: _Integers,
    num_ranges: int,
    buffer: _Bytes,
    places: _Integers,
    lengths: _Integers,
    verify_crc: bool = False,
) -> Job | None:
    """The job that reads ranges of local files by the compiled core, without the GIL, and checks records in
    them; of more files than may be held open at once, those of the last, and the others are read.

    Args:
        source_of, files: The files.
        ranges: int64 [4, M]: number among `files`, first byte, size and place in the buffer.
        num_ranges: How many of them, the first.
        buffer: Receives them.
        places, lengths: int64 [N], of the payloads to check in the buffer.
        verify_crc: Also check their checksums.

    Returns:
        None in any doubt.
    """
    native = native_module("frames")
    if native is None:
        return None
    begin = first = 0
    while True:
        held = _hold(source_of, files[first : first + native.MOST_SOURCES])
        if held is None:
            return None
        last = first + len(held)
        is_end = last >= len(files)
        end = num_ranges if is_end else int(np.searchsorted(ranges[0, :num_ranges], last))
        to_check = places if is_end else places[:0]
        job: Job = native.ReadJob(
            held, first, ranges, begin, end, buffer, to_check, lengths, verify_crc
        )
        del held
        if is_end:
            return job
        if not _is_done(job):
            return None
        del job  # before waiting for others
        begin, first = end, last


def _hold(source_of: SourceOf, files: Sequence[int]) -> list[tuple[int, int, Descriptor]] | None:
    """Open as many of the files as allowed, at least one, as a batch may come from thousands;
    return them with sizes, and what keeps each open.

    None if one is not a local file.
    """
    sources = [source_of(file) for file in files]  # create all sources before holding a descriptor
    held: list[tuple[int, int, Descriptor]] = []
    for source in sources:
        if not isinstance(source, LocalFile):
            return None
        descriptor = source.hold_if_free() if held else source.hold()
        if descriptor is None:
            break
        held.append((descriptor.number, source.file_size, descriptor))
    return held
