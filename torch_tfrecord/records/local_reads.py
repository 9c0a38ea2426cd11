"""Read and check batches of records, or of parts of them, from local files with the compiled
core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import scratch_bytes
from torch_tfrecord.files.compression import ByteSource
from torch_tfrecord.files.descriptors import Descriptor
from torch_tfrecord.files.read_plan import reading_order
from torch_tfrecord.files.storage import LocalFile
from torch_tfrecord.native import native_module
from torch_tfrecord.records.packed_records import PackedRecords

__all__ = ["read_local_batch", "read_local_values"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

# Above this, a length in the index may be wrong, and must not allocate memory before the file sizes
# are known.
_MOST_BYTES = 1 << 30


def read_local_batch(
    source_of: Callable[[int], ByteSource],
    files: _Integers,
    offsets: _Integers,
    lengths: _Integers,
    *,
    window_bytes: int,
    verify_crc: bool,
) -> PackedRecords | None:
    """`RecordReader.read_batch` for local files, with the same arguments; None if in doubt.

    A fast path: it releases the GIL once per batch and creates few objects. If it returns None, the
    caller reads again on the slow path, which finds the error.
    """
    native = native_module("frames")
    if native is None:
        return None
    numbers = np.empty((5, len(files)), np.int64)
    ranges, places = numbers[:4], numbers[4]
    order = None if native.in_order(files, offsets) else reading_order(files, offsets)
    plan = native.plan_reads(
        files, offsets, lengths, order, LocalFile.max_gap_bytes, window_bytes, ranges, places
    )
    if plan is None or plan[1] > _MOST_BYTES:
        return None
    num_ranges, num_bytes, files_read = plan
    buffer = scratch_bytes(num_bytes)
    begin = 0
    first = 0
    while first < len(files_read):
        held = _hold(source_of, files_read[first : first + native.MOST_SOURCES])
        if held is None:
            return None
        facts = list(map(_fact, held))
        last = first + len(held)
        is_end = last >= len(files_read)
        end = num_ranges if is_end else int(np.searchsorted(ranges[0, :num_ranges], last))
        to_check = places if is_end else places[:0]
        if not native.read_records(
            facts, first, ranges, begin, end, buffer, to_check, lengths, verify_crc
        ):
            return None
        begin, first = end, last
        del held  # before waiting for others
    return PackedRecords(buffer, places, lengths)


def _hold(
    source_of: Callable[[int], ByteSource], files: Sequence[int]
) -> list[tuple[Descriptor, int]] | None:
    """Open as many of the files as allowed, at least one, as a batch may come from thousands;
    return them with sizes.

    None if one is not a local file.
    """
    sources = [source_of(file) for file in files]  # create all sources before holding a descriptor
    held: list[tuple[Descriptor, int]] = []
    for source in sources:
        if not isinstance(source, LocalFile):
            return None
        descriptor = source.hold_if_free() if held else source.hold()
        if descriptor is None:
            break
        held.append((descriptor, source.file_size))
    return held


def read_local_values(
    source_of: Callable[[int], ByteSource],
    files: Sequence[int],
    counts: Sequence[int],
    places: _Integers,
) -> list[bytes] | None:
    """Read parts of files as bytes, each checked against its checksum; None if in doubt, see
    `read_local_batch`.

    Args:
        source_of: The open source of a file, by its number.
        files: Number of each file to read; repeats are allowed.
        counts: Number of parts to read from each.
        places: int64 [N, 3]: first byte, size and CRC-32C of each part, in the order of `files`.
    """
    native = native_module("frames")
    if native is None:
        return None
    values: list[bytes] = []
    first = 0
    while first < len(files):
        held = _hold(source_of, files[first : first + native.MOST_SOURCES])
        if held is None:
            return None
        last = first + len(held)
        facts = [
            (*_fact(each), count) for each, count in zip(held, counts[first:last], strict=True)
        ]
        end = len(values) + sum(counts[first:last])
        found = native.read_values(facts, places[len(values) : end])
        if found is None:
            return None
        values += found
        first = last
        del held
    return values


def _fact(held: tuple[Descriptor, int]) -> tuple[int, int]:
    descriptor, file_size = held
    return descriptor.number, file_size
