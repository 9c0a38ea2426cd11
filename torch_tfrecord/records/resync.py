"""Find the next record after a damaged one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice

from crc32c import crc32c

from torch_tfrecord.files.inflated import SequentialSource
from torch_tfrecord.files.storage import ByteSource
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    find_headers,
    is_header,
    mask,
    payload_length,
)

__all__ = ["RecordSearch", "behind_record"]

# A damaged record up to this long is never mistaken for records that its payload may hold.
_RESYNC_BYTES = 1 << 22
# Bytes searched for headers at a time, and summed at a time.
_PIECE_BYTES = 1 << 21
# The bytes that all searches of a stream may sum together: so many, and so many more for each byte
# that they have passed. Headers that claim the same bytes again and again are out of it soon.
_BUDGET_BYTES = 1 << 26
_BUDGET_PER_BYTE = 8


def behind_record(source: ByteSource, offset: int) -> int | None:
    """Offset after a record with a good header, or the end of the stream if it is truncated; None
    without a header.
    """
    header = source.read(HEADER_BYTES, offset)
    if not is_header(header):
        return None
    length = payload_length(header)
    limit = source.max_record_bytes if source.size is None else source.size - offset
    if limit is None or length <= limit:
        record = source.read(length + OVERHEAD_BYTES, offset)
        if len(record) == length + OVERHEAD_BYTES:
            return offset + len(record)
    while piece := source.read(_RESYNC_BYTES, offset):
        offset += len(piece)
    return offset


class RecordSearch:
    """Finds the next record after each damaged one; searches must go forward in the stream.

    Bytes are searched for headers once. What is summed to check payloads has a budget that grows
    with the stream, so that no file takes more than a few times its bytes, however many places are
    damaged and whatever the headers claim.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        # The bytes from `_begin` to `_end`, and the offsets of the headers in them.
        self._held = bytearray()
        self._begin = self._end = 0
        self._places: list[int] = []
        self._stream_end: int | None = None
        self._summed = 0

    def find(self, begin: int) -> int:
        """Offset of the next record after a damaged header at `begin`, or the end of the stream if
        there is none.

        That is the first header whose payload matches its checksum, unless it is inside the payload
        of the damaged record: a later place directly after the checksum of everything since `begin`
        wins, and the last such place, as a header at the start of the payload is itself eight bytes
        with their checksum.
        """
        self._drop(begin)
        try:
            closed = self._last_closed(begin)
            return self._first_record(begin) if closed is None else closed
        finally:
            self._keep_from(None)

    def _keep_from(self, offset: int | None) -> None:
        if isinstance(self._source, SequentialSource):
            self._source.keep_from = offset

    def _drop(self, begin: int) -> None:
        """Forget what lies before an offset, which nothing asks for any more."""
        self._keep_from(begin)
        del self._held[: begin - self._begin]
        del self._places[: bisect_left(self._places, begin)]
        self._begin, self._end = begin, max(self._end, begin)

    def _search_more(self) -> None:
        """Search the next piece for headers."""
        first = max(self._end - HEADER_BYTES + 1, self._begin)  # one may lie across the border
        piece = self._source.read(_PIECE_BYTES, self._end)
        self._held += piece
        self._end += len(piece)
        if len(piece) < _PIECE_BYTES:
            self._stream_end = self._end
        self._places += [
            first + at for at in find_headers(bytes(self._held[first - self._begin :]))
        ]

    def _read(self, num_bytes: int, offset: int) -> bytes:
        if offset + num_bytes <= self._end:
            return bytes(self._held[offset - self._begin : offset + num_bytes - self._begin])
        return self._source.read(num_bytes, offset)

    def _budget(self, offset: int) -> int:
        return _BUDGET_BYTES + _BUDGET_PER_BYTE * offset - self._summed

    def _last_closed(self, begin: int) -> int | None:
        """The last place behind the checksum of everything since the damaged header."""
        end = begin + min(_RESYNC_BYTES, self._budget(begin))
        while self._end < end and self._stream_end is None:
            self._search_more()
        first = bisect_left(self._places, begin + OVERHEAD_BYTES)
        places = self._places[first : bisect_right(self._places, end - HEADER_BYTES)]
        if self._stream_end is not None and begin + OVERHEAD_BYTES <= self._stream_end < end:
            places.append(self._stream_end)
        crc, summed, last = 0, begin + HEADER_BYTES, None
        with memoryview(self._held) as held:
            for place in places:
                footer = place - FOOTER_BYTES
                crc = crc32c(held[summed - self._begin : footer - self._begin], crc)
                summed = footer
                if _is_of(crc, held[footer - self._begin : place - self._begin]):
                    last = place
        self._summed += summed - begin
        return last

    def _first_record(self, begin: int) -> int:
        """The first header whose payload matches its checksum."""
        while True:
            for place in islice(self._places, bisect_right(self._places, begin), None):
                if self._is_record(place):
                    return place
            if self._stream_end is not None:
                return self._stream_end
            # What is held has nothing for this place or later ones, but a header's first bytes.
            begin = max(begin, self._end - HEADER_BYTES)
            self._drop(begin)
            self._search_more()

    def _is_record(self, place: int) -> bool:
        """Whether the header at a place starts a complete record."""
        length = payload_length(self._read(HEADER_BYTES, place))
        size, limit = self._source.size, self._source.max_record_bytes
        at, end = place + HEADER_BYTES, place + HEADER_BYTES + length
        is_possible = (
            end + FOOTER_BYTES <= size if size is not None else limit is None or length <= limit
        )
        # Out of budget nothing is a record: skipping too much is safe, hanging is not.
        if not is_possible or self._budget(place) <= 0:
            return False
        crc = 0
        while at < end:
            piece = self._read(min(_PIECE_BYTES, end - at), at)
            self._summed += len(piece)
            if not piece:
                return False
            crc = crc32c(piece, crc)
            at += len(piece)
        footer = self._read(FOOTER_BYTES, end)
        return len(footer) == FOOTER_BYTES and _is_of(crc, footer)


def _is_of(crc: int, footer: bytes | memoryview) -> bool:
    return mask(crc) == int.from_bytes(footer, "little")
