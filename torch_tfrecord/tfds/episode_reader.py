"""Read parts of episodes: the short lists of an episode in one read, and only the frames you ask
for.

Each part is checked against its checksum in the episode index. The index is not trusted for what a
list is: the key, kind and length before each list in the record are checked against it, too. If
they differ, the whole record is read and its own CRC shows whether the record or the index is
damaged. A record in a non-canonical encoding, or in a compressed file, is read whole and checked
with its own CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.files.file_source import ByteSource
from torch_tfrecord.files.per_process import ProcessCache
from torch_tfrecord.files.read import read_pieces
from torch_tfrecord.files.storage import open_file
from torch_tfrecord.records.framing import HEADER_BYTES
from torch_tfrecord.records.numbered import (
    FileIndex,
    has_ranges,
    open_records,
    read_record,
    record_offset,
)
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.samples import RecordPlace
from torch_tfrecord.tfds.episode_index import EpisodeIndex
from torch_tfrecord.tfds.episode_places import FRAMES, ListPlace, find_places
from torch_tfrecord.tfds.example_layout import (
    FLOATS,
    INTEGERS,
    UNSET,
    decode_integers,
    split_values,
    value_head,
)

__all__ = ["EpisodeReader", "EpisodeRecord", "Frames", "Spans", "Values", "read_frames"]

_MOST_OPEN = 256

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes] | Frames"
Spans: TypeAlias = Sequence[tuple[int, int, int, int]]
"""`Span`s of windows; only their first step and end (exclusive) are used here."""


class EpisodeReader:
    """Reads the lists of episodes. Keeps a few files open; safe from threads and fork.

    Args:
        files: The data files.
        records: The record index of each.
        episodes: The episode index of each.
        access: How remote files are reached.
    """

    def __init__(
        self,
        files: Sequence[str],
        records: Sequence[FileIndex],
        episodes: Sequence[EpisodeIndex],
        access: Access = DEFAULT_ACCESS,
    ) -> None:
        self.files = files
        self.records = records
        self.episodes = episodes
        self._access = access
        self._data: ProcessCache[Any] = ProcessCache(_MOST_OPEN)
        self._tables: ProcessCache[ByteSource] = ProcessCache(_MOST_OPEN)

    def data(self, file: int) -> Any:
        """A data file, open: see `open_records`."""
        return self._data.find(file, self._open_data)

    def _open_data(self, file: int) -> Any:
        return open_records(self.files[file], self.records[file], self._access)

    def tables(self, file: int) -> ByteSource:
        """The file of an episode index, open."""
        return self._tables.find(file, self._open_tables)

    def _open_tables(self, file: int) -> ByteSource:
        return open_file(self.episodes[file].tables_path, self._access)

    def record(self, file: int, number: int) -> EpisodeRecord:
        """The record of an episode, by file number and record number."""
        return EpisodeRecord(self, file, number)


class EpisodeRecord:
    """The record of one episode, and where its bytes come from.

    Attributes:
        file: Number of the file.
        number: Number of the record in the file.
        payload: The whole payload, if it was read whole.
        begin: First byte of the payload in the file; 0 if only the whole record can be read.
    """

    __slots__ = ("_offset", "begin", "file", "number", "payload", "reader")

    def __init__(self, reader: EpisodeReader, file: int, number: int) -> None:
        self.reader = reader
        self.file = file
        self.payload: bytes | None = None
        self.number = number
        self._offset = record_offset(reader.records[file], number)
        self.begin = 0 if self._offset is None else self._offset + HEADER_BYTES

    def lists(self, wanted: Callable[[str], bool]) -> dict[str, Values]:
        """The lists whose key is wanted: int64 or float32 [N], a list of bytes, or `Frames` that
        are not read yet.

        Raises:
            TFRecordError: A part is damaged or does not match; names the file and the record.
        """
        try:
            places = self._places()
            values: dict[str, Values] = dict(self._short(places, wanted))
            for key, place in places.items():
                if place.kind == FRAMES and wanted(key):
                    values[key] = Frames(self, key, place)
            return values
        except TFRecordError as error:
            raise self.locate(error) from error.__cause__

    def _places(self) -> dict[str, ListPlace]:
        index, records = self.reader.episodes[self.file], self.reader.records[self.file]
        if has_ranges(records):
            places = index.places(
                self.number, self._table(index), int(records.lengths[self.number])
            )
            if places is not None:
                return places
        places, self.payload = find_places(self._whole())
        index.check_steps(self.number, places)
        return places

    def _table(self, index: EpisodeIndex) -> bytes:
        start, num_bytes = index.table_range(self.number)
        if index.tables is not None:
            return index.tables[start : start + num_bytes]
        return self.reader.tables(self.file).read(num_bytes, index.tables_offset + start)

    def _whole(self) -> bytes:
        return read_record(self.reader.data(self.file), self.reader.records[self.file], self.number)

    def _short(
        self, places: Mapping[str, ListPlace], wanted: Callable[[str], bool]
    ) -> Iterator[tuple[str, Values]]:
        """The wanted short lists; the bytes before every list are checked against the index."""
        pieces = []
        for key, place in places.items():
            is_read = place.kind not in (FRAMES, UNSET) and wanted(key)
            end = place.start + (place.num_bytes if is_read else 0)
            pieces.append(_Piece(place.start - len(place.head), end, key, place, is_read))
        for piece, data in zip(pieces, self._parts(pieces), strict=True):
            try:
                content = piece.content(data)
            except CorruptRecordError as error:
                raise self.blame(error) from error.__cause__
            if content is not None:
                yield piece.key, content

    def _parts(self, pieces: Sequence[_Piece]) -> Iterator[memoryview]:
        """The bytes of each piece, in one read."""
        if self.payload is not None:
            for piece in pieces:
                yield memoryview(self.payload)[piece.begin : piece.end]
            return
        begins = np.array([piece.begin for piece in pieces], np.int64)
        sizes = np.array([piece.end for piece in pieces], np.int64) - begins
        files = np.full(len(pieces), self.file, np.int64)
        buffer, places = read_pieces(self.reader.data, files, self.begin + begins, sizes)
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
            yield buffer.data[place : place + size]

    def read(self, num_bytes: int, start: int) -> bytes:
        """Read `num_bytes` bytes of the payload, from `start`."""
        if self.payload is not None:
            return self.payload[start : start + num_bytes]
        data: bytes = self.reader.data(self.file).read(num_bytes, self.begin + start)
        if len(data) < num_bytes:
            raise CorruptRecordError(
                f"truncated record: expected {num_bytes} bytes, got {len(data)}"
            )
        return data

    def blame(self, error: CorruptRecordError) -> TFRecordError:
        """The error for a part that does not match the index: the record's own CRC shows which of
        them is damaged.
        """
        if self.payload is None:
            try:
                self._whole()
            except TFRecordError:
                return error
            return IndexMismatchError(
                f"the episode index does not match this record, whose own checksum is right: {error.args[0]}"
            )
        return error

    def locate(self, error: TFRecordError) -> TFRecordError:
        """Add the file, record and byte offset to an error."""
        return error.locate(
            path=self.reader.files[self.file], offset=self._offset, position=self.number
        )

    def __str__(self) -> str:
        """As errors name it."""
        return str(RecordPlace(self.reader.files[self.file], self._offset, self.number))


class Frames:
    """The values of a long bytes_list, such as encoded images, read on demand.

    Args:
        record: The record.
        key: Key of the list.
        place: Location of its values.

    Attributes:
        num_bytes: Memory it holds.
        record: The record.
        places: int64 [N, 3]: first byte of each value in the file (in the payload if that was read
            whole), its size, and its CRC-32C; all include the tag and length before the value.
    """

    __slots__ = ("_begin", "_heads", "key", "num_bytes", "places", "record")

    def __init__(self, record: EpisodeRecord, key: str, place: ListPlace) -> None:
        self.key = key
        self.record = record
        self._begin = record.begin if record.payload is None else 0
        self._heads = place.heads
        starts, lengths = place.starts - self._heads + self._begin, place.lengths + self._heads
        self.places = np.stack([starts, lengths, place.crcs], axis=1)
        self.num_bytes = self.places.nbytes + (0 if record.payload is None else len(record.payload))

    def __len__(self) -> int:
        return len(self.places)

    def read(self, first: int, stop: int) -> list[bytes]:
        """The values of steps `first` to `stop` - 1, in one read.

        Raises:
            CorruptRecordError: The checksum of a value is wrong; names the file, the record, the
                key and the step.
            IndexMismatchError: The record is intact, but the episode index does not match it.
        """
        starts, lengths, crcs = self.places[first:stop].T.tolist()
        if not starts:
            return []
        try:
            data = self.record.read(starts[-1] + lengths[-1] - starts[0], starts[0] - self._begin)
            values = [
                data[start - starts[0] : start - starts[0] + n]
                for start, n in zip(starts, lengths, strict=True)
            ]
            for step, (value, expected) in enumerate(zip(values, crcs, strict=True), first):
                if crc32c(value) != expected:
                    raise _wrong_checksum(f"feature {self.key!r}, step {step}", value, expected)
            contents = self.contents(first, values)
            if contents is None:
                raise CorruptRecordError(f"feature {self.key!r}: expected values of other lengths")
        except CorruptRecordError as error:
            raise self.record.locate(self.record.blame(error)) from error.__cause__
        except TFRecordError as error:
            raise self.record.locate(error) from error.__cause__
        return contents

    def contents(self, first: int, values: Sequence[bytes]) -> list[bytes] | None:
        """The values without the tag and length before them; None if these do not match the
        index.
        """
        found = []
        for value, head in zip(
            values, self._heads[first : first + len(values)].tolist(), strict=True
        ):
            if not value.startswith(value_head(len(value) - head)):
                return None
            found.append(value[head:])
        return found


def read_frames(frames: Sequence[Frames], spans: Spans) -> list[bytes] | None:
    """`Frames.read` of each window, concatenated, in a few calls.

    None if anything does not match: the caller then reads each window on its own, which also finds
    the error.
    """
    reader = frames[0].record.reader
    found = []
    for item, (first, stop, _, _) in zip(frames, spans, strict=True):
        if item.record.payload is not None or item.record.reader is not reader:
            return None
        found.append(item.places[first:stop])
    counts = [*map(len, found)]
    files = np.repeat([item.record.file for item in frames], counts)
    begins, sizes, crcs = np.ascontiguousarray(np.concatenate(found).T)
    try:
        buffer, places = read_pieces(reader.data, files, begins, sizes)
    except (OSError, TFRecordError):
        return None
    values = PackedRecords(buffer, places, sizes).tolist()
    if any(crc32c(value) != crc for value, crc in zip(values, crcs.tolist(), strict=True)):
        return None
    contents: list[bytes] = []
    for item, (first, _, _, _), count in zip(frames, spans, counts, strict=True):
        own = item.contents(first, values[len(contents) : len(contents) + count])
        if own is None:
            return None
        contents += own
    return contents


def _wrong_checksum(what: str, data: bytes, expected: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"corrupted record: {what}: expected checksum {expected:#010x} (from the episode index), got "
        f"{crc32c(data):#010x} ({len(data)} bytes)"
    )


class _Piece(NamedTuple):
    """The part of one list that is read at once: the bytes before it, and its values if they are
    wanted and short.
    """

    begin: int
    end: int
    key: str
    place: ListPlace
    is_read: bool

    def content(self, data: memoryview) -> Values | None:
        """The list's values; None if they are not read.

        Raises:
            CorruptRecordError: The bytes do not match the episode index.
        """
        _, _, key, place, is_read = self
        content = data[len(place.head) :]
        if data[: len(place.head)] != place.head:
            raise CorruptRecordError(
                f"corrupted record: expected feature {key!r} in {place.num_bytes} bytes (from the episode "
                f"index) at byte {place.start} of the payload, got another"
            )
        if not is_read:
            return None
        if crc32c(content) != place.crc:
            raise _wrong_checksum(f"feature {key!r}", bytes(content), place.crc)
        try:
            values = _decode(place, content)
        except ParseError as error:
            raise CorruptRecordError(f"feature {key!r}: {error.args[0]}") from error
        if len(values) != place.num_values:
            raise CorruptRecordError(
                f"feature {key!r}: expected {place.num_values} values (from the episode index), got {len(values)}"
            )
        return values


def _decode(place: ListPlace, content: memoryview) -> Values:
    if place.kind == FLOATS:
        # a copy, as torch needs writable memory
        return np.frombuffer(content, "<f4").astype(np.float32)
    if place.kind == INTEGERS:
        return decode_integers(content)
    return split_values(bytes(content))
