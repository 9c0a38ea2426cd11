"""Records of several files by their position over all of them, from the front or from any place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.reader import RecordReader, read_blocks
from torch_tfrecord.records.scan import RecordScanner
from torch_tfrecord.records.sidecar import IndexKeeper
from torch_tfrecord.records.storage import open_file

__all__ = ["Record", "absolute_position", "records_from", "stream_records"]


class Record(NamedTuple):
    """A record and where it lies; `position` counts over all files, `offset` in the (decompressed) stream of one."""

    position: int
    path: str
    offset: int
    payload: bytes


def stream_records(files: Sequence[str]) -> Iterator[Record]:
    """All records from the front; reads little more than what is taken, and needs no index."""
    base = 0
    for path in files:
        num_records = 0
        for block in read_blocks(path, "auto", verify_crc=True, on_corrupt="raise"):
            num_records = block.position + len(block.offsets)
            for number, payload in enumerate(block.payloads or ()):
                yield Record(base + block.position + number, path, int(block.offsets[number]), payload)
        base += num_records


def records_from(files: Sequence[str], position: int) -> Iterator[Record]:
    """The records from a position on, of which those before are not read, only passed over.

    Raises:
        ValueError: at the end, where there are fewer records; the message says how many.
    """
    base, reader = 0, RecordReader()
    for path in files:
        end, stream = base, None
        for first, offsets, lengths in _places(path):
            for number in range(max(position - base - first, 0), len(offsets)):
                stream = stream or open_stream(open_file(path), "auto")[0]
                payload = reader.read(stream, offsets[number], lengths[number])
                yield Record(base + first + number, path, offsets[number], payload)
            end = base + first + len(offsets)
        base = end
    if position >= base:
        raise ValueError(_out_of_range(position, base))


def absolute_position(files: Sequence[str], position: int) -> int:
    """A position counted from the front, given one that may be negative and then counts from the end."""
    if position >= 0:
        return position
    num_records = sum(len(offsets) for path in files for _, offsets, _ in _places(path))
    if position < -num_records:
        raise ValueError(_out_of_range(position, num_records))
    return num_records + position


def _out_of_range(position: int, num_records: int) -> str:
    if not num_records:
        return f"position {position} is out of range: there are no records"
    return f"position must be from {-num_records} to {num_records - 1} ({num_records} records), got {position}"


def _places(path: str) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    """Number of the first record, offsets and lengths of neighbouring records: by a fresh index, else by their headers.

    An index is not built here: looking at data should leave no file behind, and need not walk to a file's end.
    """
    try:
        (index,) = IndexKeeper("require").indexes([path])
    except IndexMismatchError:
        stream, _ = open_stream(open_file(path), "auto")
        for block in RecordScanner(stream, verify_crc=False, keep_payloads=False):
            yield block.position, block.offsets.tolist(), block.lengths.tolist()
        return
    yield 0, index.offsets.tolist(), index.lengths.tolist()
