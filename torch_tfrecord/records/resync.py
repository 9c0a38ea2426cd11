"""Find the next record after a damaged one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice
from typing import Literal, TypeAlias

from crc32c import crc32c

from torch_tfrecord.files.inflated import SequentialSource
from torch_tfrecord.files.rescue import DOUBLE_BYTES, is_double
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
_DOUBLE_BUDGET_BYTES = 1 << 20
_DOUBLE_BUDGET_PER_BYTE = 2
_INNER_BYTES = 1 << 16  # of records that a payload may end with
_MOST_UNKNOWN = 64  # records of a copy, one behind the other, that did not come before
_LEAST_ALIKE = 0.25  # of damage where a copy begins
_FAR = 1 << 62


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
        self._damaged: set[int] = set()  # places where damage begins
        self._copies: deque[tuple[int, int]] = deque()  # records that came before, too

    def find(self, begin: int) -> tuple[int, DamageKind]:
        """Offset of the next record after a damaged one at `begin`, or the end of the stream if
        there is none; and what is wrong.

        Behind a good header that is where the record ends, if another record or the end of the
        stream is there; behind a damaged one, the last place directly after the checksum of
        everything since `begin`. (The last, as a header at the start of the payload is itself eight
        bytes with their checksum.) Else it is the first record from which records lead past the
        end of the damaged one, as those inside its payload do not.

        Records that came before the damage already, since a piece was written twice, are passed
        over: those directly behind the damage here, others by `pass_copies`.
        """
        self._drop(begin)
        try:
            found, kind = self._find(begin)
            self._damaged.add(begin)
            self._copies = deque(self._find_copies(begin, found))
            end = self.pass_copies(found)
            return end, "doubled" if end > found else kind
        finally:
            self._keep_from(None)

    def pass_copies(self, offset: int) -> int:
        """Where the next record is that did not come before; the offset, if that is there."""
        while self._copies and self._copies[0][0] <= offset:
            begin, end = self._copies.popleft()
            offset = end if begin == offset else offset
        return offset

    def left(self, offset: int) -> int:
        """Bytes from an offset to the next record that came before."""
        return self._copies[0][0] - offset if self._copies else _FAR

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
                    is_found = (at > place and at >= end) or is_last
                    if is_found and (limit is not None or not self._is_in_payload(place)):
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
        """Where the records from a place on end, or the first that leads past another place; a
        damaged payload may be among them.
        """
        behind = self._behind(place)
        while behind is not None and behind < end:
            place, behind = behind, self._behind(behind)
            claimed = self._claimed_end(place) if behind is None else place
            if claimed > place and self._is_border(claimed):
                behind = claimed
        return place if behind is None else behind

    def _claimed_end(self, place: int) -> int:
        """Where a record ends, by its good header; the place itself where there is none."""
        header = self._read(HEADER_BYTES, place)
        return place + payload_length(header) + OVERHEAD_BYTES if is_header(header) else place

    def _is_in_payload(self, place: int) -> bool:
        """Whether the records from a place on are the last of a payload whose beginning is lost:
        then its checksum, and a record, are directly behind them.
        """
        at, behind = place, self._behind(place)
        while behind is not None and behind - place < _INNER_BYTES:
            at, behind = behind, self._behind(behind)
        return behind is None and self._behind(at + FOOTER_BYTES) is not None

    def _find_copies(self, begin: int, found: int) -> list[tuple[int, int]]:
        """The records behind damage that came before it, too: those of a piece that was written
        twice, which leads up to the last record before damage.
        """
        left = _DOUBLE_BUDGET_BYTES + _DOUBLE_BUDGET_PER_BYTE * begin - self._searched
        most_bytes = min(left // 4, DOUBLE_BYTES)
        # Damage of a compressed stream may copy records that are up to 32 KiB before it.
        is_inflated = isinstance(self._source, SequentialSource)
        if isinstance(self._source, SequentialSource):
            most_bytes = min(most_bytes, self._source.kept_behind >> 4)
        if most_bytes < OVERHEAD_BYTES:
            return []
        self._searched += most_bytes
        low = max(begin - most_bytes, 0)
        before = self._source.read(begin - low, low)
        earlier = _by_sums(before)
        damage = self._source.read(min(found - begin, most_bytes), begin)
        at, place, copies = 0, found, list[tuple[int, int]]()
        num_copies, unknown, distance = 0, 0, 0
        while unknown <= (0 if is_inflated else _MOST_UNKNOWN) and place - found < most_bytes:
            behind = self._behind(place)
            if behind is None:  # damage of the copy
                claimed = self._claimed_end(place)
                if claimed == place:
                    break
                place, unknown = claimed, unknown + 1
                continue
            record = self._read(behind - place, place)
            places = earlier.get(_sum_of(record), [])
            like = [other for other in places if before.startswith(record, other)]
            if is_inflated:  # in any order
                at = 0
            there = next((other for other in like if other >= at), -1)
            if there < 0:
                unknown += 1
            else:
                at, unknown = there + len(record), 0
                copies.append((place, behind))
                distance = distance or place - low - there
                # Short records, and those of data that repeat themselves, may well come again.
                if is_inflated:
                    # In data that repeat themselves it comes again with the damage before it.
                    is_copy = len(copies) > 1 or not before[:there].endswith(damage)
                else:
                    shift = behind - low - at
                    is_copy = low + at in self._damaged and is_double(
                        self._source, begin, distance, shift, found - begin, _LEAST_ALIKE
                    )
                num_copies = len(copies) if is_copy else num_copies
            place = behind
        return copies[:num_copies]

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


def _by_sums(data: bytes) -> dict[bytes, list[int]]:
    """Where records may begin, by what `_sum_of` says of each."""
    found: dict[bytes, list[int]] = {}
    for place in find_headers(data):
        end = place + payload_length(data[place : place + HEADER_BYTES]) + OVERHEAD_BYTES
        if end <= len(data):
            found.setdefault(_sum_of(data[place:end]), []).append(place)
    return found


def _sum_of(record: bytes) -> bytes:
    """The length and the checksum of a record."""
    return record[:8] + record[-FOOTER_BYTES:]


def _is_of(crc: int, footer: bytes | memoryview) -> bool:
    return mask(crc) == int.from_bytes(footer, "little")
