"""The records that lie in a buffer: where they begin, and whether their checksums are right."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.native import native_module
from torch_tfrecord.records.checksum import crc32c, mask_array
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    check_payload,
    payload_error,
    payload_length,
)

__all__ = ["Walk", "first_bad_record", "walk"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_FOOTER_BYTE_INDEX = np.arange(FOOTER_BYTES)


class Walk(NamedTuple):
    """The complete, undamaged records at the front of a buffer, and why there are no more.

    Attributes:
        starts: int64 [N]: first byte of each payload in the buffer.
        lengths: int64 [N]: its bytes.
        used: Bytes that these records fill.
        next_length: Payload length of the incomplete record behind them; None where its header is cut, too, or bad.
        problem: The error of the record behind them; None where nothing but the end of the buffer ended the walk.
    """

    starts: _Integers
    lengths: _Integers
    used: int
    next_length: int | None
    problem: CorruptRecordError | None


def walk(buffer: Any, *, verify_crc: bool) -> Walk:
    """Walk the records of a buffer (bytes-like) that begins with a header.

    Args:
        verify_crc: Check the payloads' checksums; those of the lengths are always checked.
    """
    native = native_module("frames")
    return _walk(bytes(buffer), verify_crc) if native is None else _walk_natively(native, buffer, verify_crc)


def first_bad_record(buffer: memoryview, places: _Integers, lengths: _Integers, *, verify_crc: bool) -> int | None:
    """Number of the first of some places in a buffer at which no good record of the given length stands, or None."""
    native = native_module("frames")
    if native is not None:
        bad = native.first_bad(buffer, places, lengths, verify_crc)
        return None if bad < 0 else int(bad)
    for number, (place, length) in enumerate(zip(places.tolist(), lengths.tolist(), strict=True)):
        is_inside = place >= 0 and 0 <= length <= len(buffer) - place - OVERHEAD_BYTES
        if not is_inside or not _is_good(buffer[place : place + length + OVERHEAD_BYTES], length, verify_crc):
            return number
    return None


def _is_good(record: memoryview, length: int, verify: bool) -> bool:
    try:
        if payload_length(bytes(record[:HEADER_BYTES])) != length:
            return False
        if verify:
            check_payload(record[HEADER_BYTES:-FOOTER_BYTES], record[-FOOTER_BYTES:])
    except CorruptRecordError:
        return False
    return True


def _walk_natively(native: ModuleType, buffer: Any, verify: bool) -> Walk:
    starts, lengths = np.empty((2, native.max_records(buffer)), dtype=np.int64)
    count, used, why, length = native.walk(buffer, starts, lengths, verify)
    problem: CorruptRecordError | None = None
    view = memoryview(buffer)[used:]
    if why == native.BAD_HEADER:
        problem = _header_error(bytes(view[:HEADER_BYTES]))
    elif why == native.BAD_PAYLOAD:
        end = HEADER_BYTES + length
        problem = payload_error(view[HEADER_BYTES:end], view[end : end + FOOTER_BYTES])
    return Walk(starts[:count], lengths[:count], used, length if why == native.INCOMPLETE else None, problem)


def _header_error(header: bytes) -> CorruptRecordError | None:
    try:
        payload_length(header)
    except CorruptRecordError as error:
        return error
    return None


# The twin.


def _walk(buffer: bytes, verify: bool) -> Walk:
    starts, ends, used, next_length, problem = _complete_records(buffer)
    bad = _first_bad_payload(buffer, starts, ends) if verify else None
    if bad is not None:
        begin, end = starts[bad], ends[bad]
        problem = payload_error(buffer[begin:end], buffer[end : end + FOOTER_BYTES])
        starts, ends, used, next_length = starts[:bad], ends[:bad], begin - HEADER_BYTES, None
    begins = np.array(starts, dtype=np.int64)
    return Walk(begins, np.array(ends, dtype=np.int64) - begins, used, next_length, problem)


def _complete_records(buffer: bytes) -> tuple[list[int], list[int], int, int | None, CorruptRecordError | None]:
    """Start and end of each payload, with headers checked; and the rest as in `Walk`."""
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(buffer)
    while at <= size - HEADER_BYTES:
        try:
            length = payload_length(buffer[at : at + HEADER_BYTES])
        except CorruptRecordError as error:
            return starts, ends, at, None, error
        start = at + HEADER_BYTES
        end = start + length
        if end + FOOTER_BYTES > size:
            return starts, ends, at, length, None
        starts.append(start)
        ends.append(end)
        at = end + FOOTER_BYTES
    return starts, ends, at, None, None


def _first_bad_payload(buffer: bytes, starts: list[int], ends: list[int]) -> int | None:
    if not starts:
        return None
    payloads = (buffer[start:end] for start, end in zip(starts, ends, strict=True))
    crcs = np.fromiter(map(crc32c, payloads), dtype=np.uint32, count=len(starts))
    places = np.array(ends, dtype=np.int64)[:, None] + _FOOTER_BYTE_INDEX
    stored = np.frombuffer(buffer, dtype=np.uint8)[places].view("<u4")[:, 0]
    wrong = np.flatnonzero(mask_array(crcs) != stored)
    return int(wrong[0]) if len(wrong) else None
