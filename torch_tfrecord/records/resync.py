"""Finding the next record behind a damaged one."""

from __future__ import annotations

import numpy as np

from torch_tfrecord.records.checksum import crc32c, mask, mask_array
from torch_tfrecord.records.compression import ByteSource
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    find_headers,
    is_header,
    payload_error,
    payload_length,
)
from torch_tfrecord.records.range_checksums import range_checksums

__all__ = ["end_of_stream", "find_record", "whole_record_at"]

# Bytes searched at a time for the next record behind a damaged header. A damaged record up to this long is never
# mistaken for records that its payload may hold.
_RESYNC_BYTES = 1 << 22


def end_of_stream(source: ByteSource, offset: int) -> int:
    """Offset of the end, found by reading on from `offset`."""
    while piece := source.read(_RESYNC_BYTES, offset):
        offset += len(piece)
    return offset


def whole_record_at(source: ByteSource, offset: int) -> int | None:
    """Payload length of a record with a good header whose bytes are all there; None where there is none."""
    header = source.read(HEADER_BYTES, offset)
    if not is_header(header):
        return None
    length = payload_length(header)
    limit = source.max_record_bytes if source.size is None else source.size - offset
    if limit is not None and length > limit:
        return None
    record = source.read(length + OVERHEAD_BYTES, offset)
    return length if len(record) == length + OVERHEAD_BYTES else None


def find_record(source: ByteSource, begin: int) -> int:
    """Offset of the next record behind one with a damaged header at `begin`; the stream's end where there is none.

    That is the first place with a header whose payload has its checksum, unless it lies inside the payload of the
    damaged record: a later place, in front of which stands the checksum of everything since `begin`, wins. The last
    such place, since a header that begins the payload is itself eight bytes and their checksum.
    """
    chunk = source.read(_RESYNC_BYTES, begin)
    places = [begin + 1 + at for at in find_headers(chunk[1:])]
    if len(chunk) < _RESYNC_BYTES:
        places.append(begin + len(chunk))
    is_good = _within(chunk, [place - begin for place in places])
    found: int | None = None
    closed: int | None = None
    payload_crc, checked = 0, HEADER_BYTES
    for place in places:
        payload_end = place - begin - FOOTER_BYTES
        if payload_end >= HEADER_BYTES:
            payload_crc, checked = crc32c(chunk[checked:payload_end], payload_crc), payload_end
            if mask(payload_crc) == int.from_bytes(chunk[payload_end : payload_end + FOOTER_BYTES], "little"):
                closed = place
        if found is None and closed is None and is_good.get(place - begin, True) and _is_good_record(source, place):
            found = place
    if closed is not None:
        return closed
    return _find_record_beyond(source, begin, chunk) if found is None else found


def _find_record_beyond(source: ByteSource, begin: int, chunk: bytes) -> int:
    """Go on where `chunk`, the bytes at `begin`, held no record."""
    while len(chunk) == _RESYNC_BYTES:
        begin += len(chunk) - HEADER_BYTES + 1
        chunk = source.read(_RESYNC_BYTES, begin)
        places = find_headers(chunk)
        is_good = _within(chunk, places)
        for at in places:
            if is_good.get(at, True) and _is_good_record(source, begin + at):
                return begin + at
    return begin + len(chunk)


def _within(chunk: bytes, places: list[int]) -> dict[int, bool]:
    """Of the headers at these places whose records end within the chunk: whether the payload has its checksum.

    All at once: headers that each claim what follows would else have the same bytes checked again for each of them.
    """
    starts = np.array([place for place in places if place <= len(chunk) - OVERHEAD_BYTES], dtype=np.int64)
    lengths = np.array([payload_length(chunk[at : at + HEADER_BYTES]) for at in starts.tolist()], dtype=np.int64)
    inside = lengths <= len(chunk) - OVERHEAD_BYTES - starts
    starts, ends = starts[inside], starts[inside] + lengths[inside] + HEADER_BYTES
    crcs = range_checksums(chunk, starts + HEADER_BYTES, ends)
    stored = [int.from_bytes(chunk[end : end + FOOTER_BYTES], "little") for end in ends.tolist()]
    is_good = mask_array(crcs) == np.array(stored, dtype=np.uint32)
    return dict(zip(starts.tolist(), is_good.tolist(), strict=True))


def _is_good_record(source: ByteSource, offset: int) -> bool:
    length = whole_record_at(source, offset)
    if length is None:
        return False
    record = source.read(length + OVERHEAD_BYTES, offset)
    return payload_error(record[HEADER_BYTES:-FOOTER_BYTES], record[-FOOTER_BYTES:]) is None
