"""Find the next record after a damaged one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import Literal, TypeAlias

from crc32c import crc32c

from torch_tfrecord.files.inflated import SequentialSource
from torch_tfrecord.files.rescue import DOUBLE_BYTES, behind_double
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

__all__ = ["DamageKind", "RecordSearch"]

DamageKind: TypeAlias = Literal["header CRC", "payload CRC", "cut", "trailing bytes", "doubled"]

# A damaged record up to this long is never mistaken for records that its payload may hold.
_RESYNC_BYTES = 1 << 22
# Bytes searched for headers at a time, and summed at a time.
_PIECE_BYTES = 1 << 21
# The bytes that all searches of a stream may sum together: so many, and so many more for each byte
# that they have passed. Headers that claim the same bytes again and again are out of it soon.
_BUDGET_BYTES = 1 << 26
_BUDGET_PER_BYTE = 8
# The same for bytes in which pieces are looked for that are there twice.
_DOUBLE_BUDGET_BYTES = 1 << 15
_DOUBLE_BUDGET_PER_BYTE = 2
_TAIL_BYTES = 2  # of the record before a copy
_COPY_BYTES = 40


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
        self._searched = 0

    def find(self, begin: int) -> tuple[int, DamageKind]:
        """Offset of the next record after a damaged one at `begin`, or the end of the stream if
        there is none; and what is wrong.

        Behind a good header that is where the record ends, if another record or the end of the
        stream is there; behind a damaged one, the last place directly after the checksum of
        everything since `begin`. (The last, as a header at the start of the payload is itself eight
        bytes with their checksum.) Else it is the first record from which records lead past the
        end of the damaged one, as those inside its payload do not.
        """
        self._drop(begin)
        try:
            return self._find(begin)
        finally:
            self._keep_from(None)

    def _find(self, begin: int) -> tuple[int, DamageKind]:
        header = self._read(HEADER_BYTES, begin)
        is_good, end = is_header(header), begin
        if len(header) == HEADER_BYTES:  # a damaged one may still have the right length
            end += int.from_bytes(header[:8], "little") + OVERHEAD_BYTES
        is_border = end > begin and self._is_border(end)
        if is_good:
            found = self._first_record(begin + HEADER_BYTES - 1, end, end if is_border else None)
        elif (closed := self._last_closed(begin)) is not None:
            found = closed
        else:
            found = end if is_border else self._first_record(begin, begin)
        if (doubled := self._behind_copies(begin, found)) > found:
            return doubled, "doubled"
        if found != self._stream_end or (is_border and found == end):
            return found, "payload CRC" if is_good else "header CRC"
        is_cut = is_good or len(header) < HEADER_BYTES
        return found, "cut" if is_cut else "trailing bytes"

    def _is_border(self, place: int) -> bool:
        """Whether a record begins at a place, or the stream ends there."""
        if not self._is_possible(place):
            return False
        found = self._read(HEADER_BYTES, place)
        return is_header(found) or (not found and len(self._read(1, place - 1)) == 1)

    def _is_possible(self, place: int) -> bool:
        """Whether the stream may have a place, as far as it is known."""
        size, limit = self._source.size, self._source.max_record_bytes
        return place <= size if size is not None else limit is None or place - self._begin <= limit

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
        if self._begin <= offset and offset + num_bytes <= self._end:
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

    def _first_record(self, begin: int, end: int, limit: int | None = None) -> int:
        """The first record from which records lead past the end of the damaged one; at most the
        limit.
        """
        inner = begin + 1 if end > begin else -1  # where a payload begins, which may be a record
        while True:
            for place in islice(self._places, bisect_right(self._places, begin), None):
                if limit is not None and place >= limit:
                    return limit
                if place > begin:
                    at = self._last_behind(place, end)
                    is_last = place != inner and at > place and not self._read(1, at)
                    if (at > place and at >= end) or is_last:
                        return place
                    begin = max(at - 1, begin)  # what these lead to is no better
            if limit is not None and self._end >= limit:
                return limit
            if self._stream_end is not None:
                return self._stream_end
            # What is held has nothing for this place or later ones, but a header's first bytes.
            begin = max(begin, self._end - HEADER_BYTES)
            self._drop(begin)
            self._search_more()

    def _last_behind(self, place: int, end: int) -> int:
        """Where the records from a place on end, or the first that leads past another place; they
        lead over damaged payloads.
        """
        behind = self._behind(place)
        while behind is not None and behind < end:
            place, behind = behind, self._behind(behind)
            if behind is None and is_header(self._read(HEADER_BYTES, place)):
                piece = self._read(_PIECE_BYTES, place + 1)
                self._summed += len(piece)
                others = (self._behind(place + 1 + other) for other in find_headers(piece))
                behind = next(filter(None, others), None)
        return place if behind is None else behind

    def _behind_copies(self, begin: int, found: int) -> int:
        """The first record behind damage that does not come, with what is before it, before the
        damage, too.
        """
        left = _DOUBLE_BUDGET_BYTES + _DOUBLE_BUDGET_PER_BYTE * begin - self._searched
        most_bytes = min(left // 4, DOUBLE_BYTES)
        tail, is_copied = _TAIL_BYTES, False
        # Damage of a compressed stream may copy records that are up to 32 KiB before it.
        if isinstance(self._source, SequentialSource):
            most_bytes, tail = min(most_bytes, self._source.kept_behind >> 4), 0
            is_copied = True
        if most_bytes < _COPY_BYTES:
            return found
        self._searched += most_bytes
        doubled = behind_double(self._source, begin, found, most_bytes)
        if doubled is not None and doubled > found and self._is_border(doubled):
            return doubled
        low, place, is_copy = max(begin - most_bytes, 0), found, False
        before, at, first = self._source.read(begin - low, low), 0, 0
        while (behind := self._behind(place)) is not None:
            copy = self._read(behind - place + tail, place - tail)
            at = before.find(copy, at)
            if at < 0:
                break
            first = at + tail if place == found else first
            # Short records, and those of data that repeat themselves, may well come again.
            if len(copy) >= _COPY_BYTES:
                is_copy = is_copy or is_copied or before.find(copy, at + 1) < 0
            place = behind
        # In those data it comes again with the damage before it.
        damage = self._source.read(found - begin, begin) if is_copy else b""
        return found if before[:first].endswith(damage) else place

    def _behind(self, place: int) -> int | None:
        """Where the record ends that begins at a place; None if there is no complete one."""
        header = self._read(HEADER_BYTES, place)
        if not is_header(header):
            return None
        length = payload_length(header)
        at, end = place + HEADER_BYTES, place + HEADER_BYTES + length
        # Out of budget nothing is a record: skipping too much is safe, hanging is not.
        if not self._is_possible(end + FOOTER_BYTES) or self._budget(place) <= 0:
            return None
        crc = 0
        while at < end:
            piece = self._read(min(_PIECE_BYTES, end - at), at)
            self._summed += len(piece)
            if not piece:
                return None
            crc = crc32c(piece, crc)
            at += len(piece)
        footer = self._read(FOOTER_BYTES, end)
        is_record = len(footer) == FOOTER_BYTES and _is_of(crc, footer)
        return end + FOOTER_BYTES if is_record else None


def _is_of(crc: int, footer: bytes | memoryview) -> bool:
    return mask(crc) == int.from_bytes(footer, "little")
