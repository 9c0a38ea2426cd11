"""Look at some records of many: spread over all files, and over each of them, at a bounded cost.

A plain file is read at equal distances of bytes, each time the next record from there on: that
needs no index, and only short reads of a file of any size. Small and compressed files are read from
their beginning, as far as the cost allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files import DEFAULT_ACCESS, Access, FileSource, is_remote, open_file
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.records import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    check_payload,
    find_headers,
    is_header,
    open_stream,
    payload_length,
    read_blocks,
)

__all__ = ["SpreadRecord", "all_records", "spread_records"]


_MOST_BYTES = 1 << 28  # read in all
_MOST_BYTES_EACH = 1 << 22  # for each record that is wanted
_MOST_KEPT = 1 << 12  # records of a file that is read from its beginning, then every second of them
_SMALL_FILE = 1 << 20  # is read as a whole
_SMALL_FILES = 1 << 26  # all together
_FIRST_WINDOW, _FIRST_REMOTE_WINDOW = 1 << 12, 1 << 16  # searched for a record, then twice as much


class SpreadRecord(NamedTuple):
    """A record and its place; `position` in its file is None where no index tells it."""

    path: str
    position: int | None
    offset: int
    payload: bytes


def spread_records(
    paths: Sequence[str], num_records: int, access: Access = DEFAULT_ACCESS
) -> Iterator[SpreadRecord]:
    """Records spread as evenly as their files allow, the first record of the first file among them.

    Args:
        paths: The files. Small ones are read whole: below 64 MiB in all, and of compressed ones the
            first 64 MiB. Of more than `num_records` others as many are looked at, spread over all.
        num_records: How many; fewer if there are fewer, or if they are so long that more would cost
            too much.
        access: How remote files are reached.

    Raises:
        TFRecordError: A file is damaged in the part that is read, or is no TFRecord file; records
            before come first.
        OSError: A file cannot be opened.
    """
    sizes = accumulate(open_file(path, access).file_size for path in paths)
    is_small = all(size < _SMALL_FILES for size in sizes)
    chosen = _evenly(len(paths), len(paths) if is_small else num_records)
    found, left = 0, _SMALL_FILES if is_small else _MOST_BYTES
    for number, choice in enumerate([*chosen, *sorted({*range(len(paths))} - {*chosen})]):
        if found and number >= len(chosen):
            return  # others only where these had no record at all
        # If a file has fewer records than its share, later files make up for it.
        files_left = max(len(chosen) - number, 1)
        share = -(-(num_records - found) // files_left)
        limit = max(min(left // files_left, share * _MOST_BYTES_EACH), 1)
        records = (
            _from_beginning(paths[choice], range(_SMALL_FILES), left, access)
            if is_small
            else _of_file(paths[choice], _fractions(share, number, len(chosen)), limit, access)
        )
        for record in records:
            found, left = found + 1, left - len(record.payload)
            yield record


def _evenly(total: int, wanted: int) -> list[int]:
    """At most so many of the numbers below a total, at equal distances, the first and the last
    among them.
    """
    return (
        np.unique(np.linspace(0, total - 1, min(total, wanted)).round().astype(int)).tolist()
        if total
        else []
    )


def _fractions(share: int, number: int, num_files: int) -> list[float]:
    """Where in a file to look, from 0 to 1: elsewhere in each file, as few records of many files
    are looked at.
    """
    if num_files == 1:
        return [place / max(share - 1, 1) for place in range(share)]
    return [(place + number / (num_files - 1)) / share for place in range(share)]


def _of_file(
    path: str, fractions: Sequence[float], limit: int, access: Access
) -> Iterator[SpreadRecord]:
    file = open_file(path, access)
    _, compression = open_stream(file, "auto")
    is_small = file.file_size <= min(_SMALL_FILE, limit)
    # what is wrong is found by reading
    if compression or is_small or not is_header(file.read(HEADER_BYTES, 0)):
        return _from_beginning(path, fractions, limit, access)
    return _at_bytes(file, fractions, limit, access)


def _from_beginning(
    path: str, fractions: Sequence[float], limit: int, access: Access
) -> Iterator[SpreadRecord]:
    """Records of the beginning of a file; where it is damaged those before the damage, then the
    error.
    """
    kept: list[SpreadRecord] = []
    damage, step, num_bytes = None, 1, 0
    try:
        for record in all_records(path, access):
            num_bytes += len(record.payload) + OVERHEAD_BYTES
            if record.position is not None and record.position % step == 0:
                kept.append(record)
            if num_bytes > limit:
                break
            if len(kept) > max(_MOST_KEPT, 2 * len(fractions)):
                kept, step = kept[::2], 2 * step
    except TFRecordError as error:
        damage = error
    for place in _places(fractions, len(kept)):
        yield kept[place]
    if damage is not None:
        raise damage


def all_records(path: str, access: Access) -> Iterator[SpreadRecord]:
    """The records of a file."""
    for block in read_blocks(path, "auto", verify_crc=True, on_error="raise", access=access):
        for number, payload in enumerate(block.payloads or ()):
            yield SpreadRecord(path, block.position + number, int(block.offsets[number]), payload)


def _places(fractions: Sequence[float], total: int) -> list[int]:
    """The numbers below a total that fractions of it mean, each once; all where there are no more
    than fractions.
    """
    if total <= len(fractions):
        return [*range(total)]
    return sorted({min(int(fraction * total), total - 1) for fraction in fractions})


def _at_bytes(
    file: FileSource, fractions: Sequence[float], limit: int, access: Access
) -> Iterator[SpreadRecord]:
    """The records that follow some places in a file; its first ones where none can be found."""
    length = payload_length(file.read(HEADER_BYTES, 0))
    # Fewer of long ones: up to two of their length are read for each.
    fractions = fractions[:: 1 + 2 * length * len(fractions) // limit]
    begins = [int(fraction * file.file_size) for fraction in fractions]
    search = partial(_record_from, file, most=max(limit // len(fractions), 2 * length))
    found: Iterable[SpreadRecord | None] = (
        each_at_once(search, begins) if is_remote(file.path) else map(search, begins)
    )
    seen: dict[int, SpreadRecord] = {
        record.offset: record for record in found if record is not None
    }
    # long records, or the file is damaged: reading it says how
    if not seen or (0 in begins and 0 not in seen):
        first = next(all_records(file.path, access))
        seen = {first.offset: first, **seen}
    yield from seen.values()


def _record_from(file: FileSource, begin: int, most: int) -> SpreadRecord | None:
    """The first good record from a place on, or the last one of the file; None if that takes too
    many bytes.
    """
    window, content = _FIRST_REMOTE_WINDOW if is_remote(file.path) else _FIRST_WINDOW, b""
    while True:
        content += file.read(window - len(content), begin + len(content))
        reaches_end = begin + len(content) >= file.file_size
        places = find_headers(content)
        for at in reversed(places) if reaches_end and begin > 0 else places:
            length = payload_length(content[at : at + HEADER_BYTES])
            end = at + length + OVERHEAD_BYTES
            if length > most or begin + end > file.file_size:
                continue
            if end > len(content):
                content += file.read(end - len(content), begin + len(content))
            payload = content[at + HEADER_BYTES : end - FOOTER_BYTES]
            with suppress(TFRecordError):  # it is no header, or damaged
                check_payload(payload, content[end - FOOTER_BYTES : end])
                return SpreadRecord(
                    file.path, None if begin + at else 0, begin + at, bytes(payload)
                )
        window = max(window, len(content))
        if window >= most or (reaches_end and begin == 0):
            return None
        window = min(2 * window, most)
        if reaches_end:  # in the last record: go back to where it begins
            begin, content = max(file.file_size - window, 0), b""
