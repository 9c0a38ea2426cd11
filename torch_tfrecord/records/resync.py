"""Find the next record after a damaged one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torch_tfrecord.files.checksum import MARK_BYTES, RunningChecksums, moved, moved_by, unmask
from torch_tfrecord.files.file_source import ByteSource
from torch_tfrecord.files.inflated import SequentialSource
from torch_tfrecord.records.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    find_headers,
    is_header,
    payload_length,
)

__all__ = ["RecordSearch", "behind_record"]

_Integers = npt.NDArray[np.int64]
_Checksums = npt.NDArray[np.uint32]

# A damaged record up to this long is never mistaken for records that its payload may hold.
_RESYNC_BYTES = 1 << 22
# Bytes searched for headers at a time.
_PIECE_BYTES = 1 << 21


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


class _Piece:
    """The headers found in a part of the stream, with the keys from `checksum` for their payloads.

    Attributes:
        begin, content: The bytes, including some of the next piece.
        end: Start of the next piece.
        places, ends, keys: int64, int64, uint32 [N]: offset of each header that may start a
            complete record, the end of its payload, and the key of the payload's beginning.
        closings, closed: uint32, int64 [M]: the keys of the positions before headers, as payload
            ends, ascending, and the offsets of those headers.
        is_settled: Whether `places` has only good records: those that extend beyond `content` were
            checked, too.
    """

    def __init__(self, begin: int, content: bytes, end: int) -> None:
        self.begin, self.content, self.end = begin, content, end
        self.places = self.ends = self.closed = np.zeros(0, np.int64)
        self.keys = self.closings = np.zeros(0, np.uint32)
        self.is_settled = False

    def last_closed(self, key: int, limit: int) -> int | None:
        """The last header up to `limit` that directly follows a payload whose beginning has this
        key.
        """
        first = int(np.searchsorted(self.closings, np.uint32(key)))
        if first == len(self.closings) or self.closings[first] != key:
            return None
        last = int(np.searchsorted(self.closings, np.uint32(key), "right"))
        place = first + int(np.searchsorted(self.closed[first:last], limit, "right")) - 1
        return int(self.closed[place]) if place >= first else None


class RecordSearch:
    """Finds the next record after each damaged one; searches must go forward in the stream.

    Results are shared between searches: all searches of a stream together process its bytes a
    constant number of times, regardless of the number of damaged places and the lengths in headers.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._sums = RunningChecksums(self._read)
        self._pieces: list[_Piece] = []
        self._begin = self._end = 0  # the range of the stream searched for headers so far
        self._stream_end: int | None = None
        self._closing_at_end: int | None = None

    def find(self, begin: int) -> int:
        """Offset of the next record after a damaged header at `begin`, or the end of the stream if
        there is none.

        That is the first header whose payload matches its checksum, unless it is inside the payload
        of the damaged record: a later place directly after the checksum of everything since `begin`
        wins, and the last such place, as a header at the start of the payload is itself eight bytes
        with their checksum.
        """
        self._keep_from(begin)
        try:
            # A header directly after a piece still belongs to it.
            self._pieces = [piece for piece in self._pieces if piece.end + FOOTER_BYTES > begin]
            if not self._pieces or self._end < begin:
                self._pieces.clear()
                self._sums.start(begin)
                self._begin = self._end = begin
            while self._stream_end is None and self._end < begin + _RESYNC_BYTES:
                self._add_piece()
            closed = self._last_closed(begin)
            return self._first_record(begin) if closed is None else closed
        finally:
            self._keep_from(None)

    def _keep_from(self, offset: int | None) -> None:
        if isinstance(self._source, SequentialSource):
            self._source.keep_from = offset

    def _read(self, num_bytes: int, offset: int) -> bytes:
        for piece in self._pieces:
            at, end = offset - piece.begin, piece.begin + len(piece.content)
            if at >= 0 and (offset + num_bytes <= end or end == self._stream_end):
                return piece.content[at : at + num_bytes]
        return self._source.read(num_bytes, offset)

    # Headers and their keys.

    def _add_piece(self) -> None:
        begin = self._end
        end = (begin + _PIECE_BYTES) // MARK_BYTES * MARK_BYTES
        # what a header may need whose footer starts before `end`
        wanted = end - begin + OVERHEAD_BYTES - 1
        content = self._source.read(wanted, begin)
        if len(content) < wanted:
            end = self._stream_end = begin + len(content)
        piece = _Piece(begin, content, end)
        self._pieces.append(piece)
        self._sums.extend(end)  # while its bytes are in memory
        places = begin + np.array(find_headers(content), dtype=np.int64)
        if begin > self._begin:  # the first of them belong to the last piece
            places = places[places >= begin + FOOTER_BYTES]
        self._note_closings(piece, places[places >= self._begin + FOOTER_BYTES])
        self._note_records(piece, places)
        self._end = end

    def _note_closings(self, piece: _Piece, places: _Integers) -> None:
        closings = self._end_keys(places - FOOTER_BYTES)
        order = np.argsort(closings, kind="stable")
        piece.closings, piece.closed = closings[order], places[order]
        if self._stream_end is not None and self._stream_end >= self._begin + OVERHEAD_BYTES:
            self._closing_at_end = int(
                self._end_keys(np.array([self._stream_end - FOOTER_BYTES]))[0]
            )

    def _note_records(self, piece: _Piece, places: _Integers) -> None:
        fields = np.frombuffer(piece.content, np.uint8)[
            (places - piece.begin)[:, None] + np.arange(8)
        ]
        lengths = np.ascontiguousarray(fields).view("<i8")[:, 0].astype(np.int64)
        ends = places + HEADER_BYTES + lengths
        limit, size = self._source.max_record_bytes, self._source.size
        if size is not None:
            is_possible = ends + FOOTER_BYTES <= size
        else:
            is_possible = lengths <= (lengths if limit is None else limit)
        places, ends = places[is_possible], ends[is_possible]
        keys = self._begin_keys(places + HEADER_BYTES)
        is_inside = ends + FOOTER_BYTES <= piece.begin + len(piece.content)
        is_good = ~is_inside
        is_good[is_inside] = self._end_keys(ends[is_inside]) == keys[is_inside]
        piece.places, piece.ends, piece.keys = places[is_good], ends[is_good], keys[is_good]

    def _settle(self, piece: _Piece) -> None:
        """Check which headers of a piece start good records that extend beyond it."""
        is_good = piece.ends + FOOTER_BYTES <= piece.begin + len(piece.content)
        open_ones = np.flatnonzero(~is_good)
        stream_end = self._sums.extend(int(piece.ends[open_ones].max()) + FOOTER_BYTES)
        open_ones = open_ones[piece.ends[open_ones] + FOOTER_BYTES <= stream_end]
        is_good[open_ones] = self._end_keys(piece.ends[open_ones]) == piece.keys[open_ones]
        piece.places, piece.ends, piece.keys = (
            piece.places[is_good],
            piece.ends[is_good],
            piece.keys[is_good],
        )
        piece.is_settled = True

    def _begin_keys(self, points: _Integers) -> _Checksums:
        return moved(self._sums.up_to(points), -points)

    def _end_keys(self, points: _Integers) -> _Checksums:
        footers = b"".join(self._read(FOOTER_BYTES, point) for point in points.tolist())
        stored = unmask(np.frombuffer(footers, "<u4").astype(np.uint32))
        return moved(self._sums.up_to(points) ^ stored, -points)

    # Lookups.

    def _last_closed(self, begin: int) -> int | None:
        end, first = self._stream_end, begin + OVERHEAD_BYTES
        if end is not None and end < first:
            return None
        start = np.array([begin + HEADER_BYTES])
        key = moved_by(int(self._sums.up_to(start)[0]), -begin - HEADER_BYTES)
        if end is not None and end < begin + _RESYNC_BYTES and key == self._closing_at_end:
            return end
        for piece in reversed(self._pieces):
            place = piece.last_closed(key, begin + _RESYNC_BYTES - HEADER_BYTES)
            if place is not None:
                return place if place >= first else None
        return None

    def _first_record(self, begin: int) -> int:
        while True:
            for piece in self._pieces:
                place = self._first_record_in(piece, begin)
                if place is not None:
                    return place
            if self._stream_end is not None:
                return self._stream_end
            self._pieces.clear()  # they have nothing for this place or later ones
            self._keep_from(self._end)
            self._add_piece()

    def _first_record_in(self, piece: _Piece, begin: int) -> int | None:
        number = int(np.searchsorted(piece.places, begin, "right"))
        if number == len(piece.places):
            return None
        if piece.is_settled or piece.ends[number] + FOOTER_BYTES <= piece.begin + len(
            piece.content
        ):
            return int(piece.places[number])
        self._settle(piece)
        return self._first_record_in(piece, begin)
