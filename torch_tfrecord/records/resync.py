"""Find the next record after a damaged one."""

from __future__ import annotations

from array import array
from functools import cache

from crc32c import crc32c

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.files import FileSource
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    checksum_error,
    find_headers,
    is_header,
)

__all__ = ["RecordSearch"]

_PIECE_BYTES = 1 << 21  # searched for headers at a time, and summed at a time
_STEP_BYTES = 1 << 12  # a checksum is kept for each so many


_ONES = (1 << 32) - 1


class RecordSearch:
    """Finds the next record after each damaged one; searches must go forward in the stream.

    A record is where both checksums fit. Each byte is searched for headers once. Headers may claim
    the same bytes again and again: the checksum of a long payload comes from those of all that is
    before its two ends, so that each byte is summed a few times, whatever a file claims.
    """

    def __init__(self, source: FileSource) -> None:
        self._source = source
        # The bytes searched last, the headers in them, and how many of these are passed.
        self._held, self._begin, self._end = b"", 0, 0
        self._places: list[int] = []
        self._passed = 0
        self._at_end = False
        # Checksums of what is between `_first` and each step after it.
        self._first, self._sums = 0, array("I", [0])
        self._claimed = 0  # where the last of the damaged records ends by its header
        source.kept_before = _STEP_BYTES

    def find(self, begin: int) -> tuple[int, str]:
        """Offset of the next record after a damaged one at `begin`, or the end of the stream if
        there is none; and what is wrong.

        Where the header's checksum fits, the damaged record ends where the header says, if another
        header or the end of the stream is there. Records before that are part of its payload,
        unless they lead, one directly after the other, up to that end or past it: then bytes are
        missing. Where the header's checksum does not fit, but the payload's does, that is the end.
        Else the next record is the next place where both checksums fit.
        """
        self._keep_from(begin)
        header = self._read(HEADER_BYTES, begin)
        is_good = is_header(header)
        end = begin + OVERHEAD_BYTES + int.from_bytes(header[:8], "little")
        is_border = len(header) == HEADER_BYTES and self._is_border(begin, end)
        if is_good:
            self._claimed = max(self._claimed, end)
        elif is_border and self._is_payload(begin, end):
            return end, "header CRC"
        found = self._next_record(begin, end if is_good and is_border else None)
        if found is None:
            is_cut = is_good or len(header) < HEADER_BYTES
            return self._end, "cut" if is_cut else "trailing bytes"
        return found, "payload CRC" if is_good else "header CRC"

    def error(self, place: int, length: int) -> CorruptRecordError | None:
        """The error of a damaged record among bytes that damaged ones before it claim, too, as to
        read them for each would take quadratic time; None for others.
        """
        if place >= self._claimed:
            return None
        self._keep_from(place)
        crc = self._crc(place + HEADER_BYTES, length)
        footer = self._read(FOOTER_BYTES, place + HEADER_BYTES + length)
        if crc is None or len(footer) < FOOTER_BYTES:
            text = f"truncated record: expected {length + OVERHEAD_BYTES} bytes, got the end"
            return CorruptRecordError(text)
        return checksum_error(crc, footer, length)

    def _keep_from(self, offset: int) -> None:
        self._source.keep_from = offset

    def _is_possible(self, begin: int, end: int) -> bool:
        """Whether the stream may have so much, as far as that is known."""
        size, limit = self._source.size, self._source.max_record_bytes
        return end <= size if size is not None else limit is None or end - begin <= limit

    def _is_border(self, begin: int, place: int) -> bool:
        """Whether a record begins at a place, or the stream ends there."""
        if not self._is_possible(begin, place):
            return False
        found = self._read(HEADER_BYTES, place)
        return is_header(found) or (not found and len(self._read(1, place - 1)) == 1)

    def _next_record(self, begin: int, limit: int | None) -> int | None:
        """The next record after a place, at most the limit, unless what is before leads there;
        None if there is none.
        """
        while True:
            while self._passed < len(self._places):
                place = self._places[self._passed]
                if limit is not None and place >= limit:
                    return limit
                self._passed += 1
                if place <= begin or (behind := self._record_end(place)) is None:
                    continue
                while limit is not None and behind < limit:
                    following = self._record_end(behind)
                    if following is None:  # inside the payload
                        return limit
                    behind = following
                return place
            if limit is not None and self._end >= limit:
                return limit
            if self._at_end:
                return None
            self._search_more(begin)

    def _search_more(self, begin: int) -> None:
        """Search the next piece for headers."""
        self._begin = max(self._end - HEADER_BYTES + 1, begin)  # one may be across the border
        self._keep_from(self._begin)
        self._held = self._source.read(_PIECE_BYTES, self._begin)
        self._end = self._begin + len(self._held)
        self._at_end = len(self._held) < _PIECE_BYTES
        self._places = [self._begin + at for at in find_headers(self._held)]
        self._passed = 0

    def _read(self, num_bytes: int, offset: int) -> bytes:
        if self._begin <= offset and offset + num_bytes <= self._end:
            return self._held[offset - self._begin : offset + num_bytes - self._begin]
        return self._source.read(num_bytes, offset)

    def _record_end(self, place: int) -> int | None:
        """Where the record ends that begins at a place; None if there is no good one."""
        header = self._read(HEADER_BYTES, place)
        end = place + OVERHEAD_BYTES + int.from_bytes(header[:8], "little")
        return end if is_header(header) and self._is_payload(place, end) else None

    def _is_payload(self, place: int, end: int) -> bool:
        """Whether the checksum fits of the payload of a record from a place to an end."""
        begin, footer = place + HEADER_BYTES, end - FOOTER_BYTES
        crc = self._crc(begin, footer - begin) if self._is_possible(place, end) else None
        stored = b"" if crc is None else self._read(FOOTER_BYTES, footer)
        return len(stored) == FOOTER_BYTES and not checksum_error(crc or 0, stored, 0)

    def _crc(self, begin: int, num_bytes: int) -> int | None:
        """The CRC-32C of a part of the stream; None if the stream ends before."""
        if num_bytes <= 2 * _STEP_BYTES:
            part = self._read(num_bytes, begin)
            return crc32c(part) if len(part) == num_bytes else None
        if not 0 <= begin - self._first < _STEP_BYTES * len(self._sums):
            self._first, self._sums = begin, array("I", [0])
        before, last = self._sum(begin), self._sum(begin + num_bytes)
        return None if before is None or last is None else _shifted(before, num_bytes) ^ last

    def _sum(self, end: int) -> int | None:
        """The CRC-32C of all from `_first` on; None if the stream ends before."""
        number, rest = divmod(end - self._first, _STEP_BYTES)
        while len(self._sums) <= number:
            at = self._first + _STEP_BYTES * (len(self._sums) - 1)
            piece = memoryview(self._source.read(_PIECE_BYTES, at))
            if len(piece) < _STEP_BYTES:
                return None
            for low in range(0, len(piece) - _STEP_BYTES + 1, _STEP_BYTES):
                self._sums.append(crc32c(piece[low : low + _STEP_BYTES], self._sums[-1]))
        part = self._read(rest, self._first + number * _STEP_BYTES)
        return crc32c(part, self._sums[number]) if len(part) == rest else None


def _shifted(crc: int, num_bytes: int) -> int:
    """The part that a CRC-32C adds to that of `num_bytes` more: ``crc(ab) == _shifted(crc(a), len(b)) ^
    crc(b)``.

    Source: `crc32_combine` of zlib.
    """
    for power in range(num_bytes.bit_length()):
        if num_bytes >> power & 1:
            crc = _times(_shifts(power), crc)
    return crc


@cache
def _shifts(power: int) -> list[int]:
    """The value of each bit of a CRC-32C after 2^power zeros."""
    if power:
        return [_times(_shifts(power - 1), shifted) for shifted in _shifts(power - 1)]
    # One zero byte: `crc32c` takes and gives the complement.
    return [crc32c(b"\0", _ONES ^ 1 << bit) ^ _ONES for bit in range(32)]


def _times(shifts: list[int], crc: int) -> int:
    found = 0
    for bit, shifted in enumerate(shifts):
        found ^= shifted * (crc >> bit & 1)
    return found
