"""Read parts of episodes: the short lists of an episode in one read, and only the frames you ask
for.

Each part is checked against its checksum in the episode index. The index is not trusted for what a
list is: the key in each entry is checked against it, and entries are parsed as the Example that
they are part of. If they differ, the whole record is read and its own CRC shows whether the record
or the index is damaged. A record without a table in the index is read whole and checked with its
own CRC.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.message_columns import columns_of
from torch_tfrecord.columns.reading import Column, Want
from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.files.file_source import ByteSource
from torch_tfrecord.files.per_process import ProcessCache
from torch_tfrecord.files.read import read_pieces
from torch_tfrecord.files.storage import open_file
from torch_tfrecord.protobuf.messages import find_fields, parse_message, varint
from torch_tfrecord.records.array_record import (
    FileIndex,
    has_ranges,
    open_records,
    read_record,
    record_offset,
)
from torch_tfrecord.records.framing import HEADER_BYTES
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.samples import RecordPlace
from torch_tfrecord.tfds.episode_index import EpisodeIndex, ListPlace, is_large, parse_lists, wrap

__all__ = ["EpisodeReader", "EpisodeRecord", "Frames", "Spans", "Values", "read_frames"]

_MOST_OPEN = 256
_WORD_BYTES = 4  # of a table

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes] | Frames"
_Ints: TypeAlias = "npt.NDArray[np.int64]"
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
        reader: Reads the files.
        file: Number of the file.
        number: Number of the record in the file.
        begin: First byte of the payload in the file; 0 if only the whole record can be read.
    """

    __slots__ = ("_offset", "begin", "file", "number", "reader")

    def __init__(self, reader: EpisodeReader, file: int, number: int) -> None:
        self.reader = reader
        self.file = file
        self.number = number
        self._offset = record_offset(reader.records[file], number)
        self.begin = 0 if self._offset is None else self._offset + HEADER_BYTES

    def lists(self, wants: Sequence[Want]) -> dict[str, Values]:
        """The lists that are wanted and there, by key: int64 or float32 [N], a list of bytes, or
        `Frames` that are not read yet.

        Raises:
            TFRecordError: A part is damaged or does not match; names the file and the record.
        """
        try:
            places = self.places()
            if places is not None:
                return self._placed(places, wants)
            lists = _parse(self._whole(), wants)
            counts = {key: len(values) for key, values in lists.items()}
            self.reader.episodes[self.file].check_steps(self.number, counts)
            return lists
        except TFRecordError as error:
            raise self.locate(error) from error.__cause__

    def places(self) -> dict[str, ListPlace] | None:
        """Where the lists are; None if the record must be read whole."""
        index, records = self.reader.episodes[self.file], self.reader.records[self.file]
        if not has_ranges(records):
            return None
        first, stop = index.table_range(self.number)
        if index.tables is not None:
            table = index.tables[first:stop].tobytes()
        else:
            begin = index.tables_offset + _WORD_BYTES * first
            table = self.reader.tables(self.file).read(_WORD_BYTES * (stop - first), begin)
        return index.places(self.number, table, int(records.lengths[self.number]))

    def _whole(self) -> bytes:
        return read_record(self.reader.data(self.file), self.reader.records[self.file], self.number)

    def _placed(self, places: Mapping[str, ListPlace], wants: Sequence[Want]) -> dict[str, Values]:
        """The wanted lists; the keys of all lists are checked against the index."""
        wanted = {want.key: want for want in wants}
        entries: list[bytes] = []
        frames: dict[str, Values] = {}
        for key, place in places.items():
            if place.frames is not None and key in wanted:
                if wanted[key].kind is not BYTES_LIST:
                    raise wanted[key].wrong_kind(BYTES_LIST)
                frames[key] = Frames(self, key, place.frames)
        try:
            for (key, place), data in zip(
                places.items(), self._read_short(places, wanted), strict=True
            ):
                self._check_entry(key, place, data, key in wanted)
                if key in wanted and place.frames is None:
                    entries.append(data)
            # The entries of an Example are again those of an Example.
            lists = _parse(wrap(b"".join(entries)), wants)
            for key, values in lists.items():
                if len(values) != places[key].num_values:
                    raise CorruptRecordError(
                        f"feature {key!r}: expected {places[key].num_values} values (from the episode index), "
                        f"got {len(values)}"
                    )
        except CorruptRecordError as error:
            raise self.blame(error) from error.__cause__
        return lists | frames

    def _read_short(
        self, places: Mapping[str, ListPlace], wanted: Mapping[str, Want]
    ) -> list[bytes]:
        """The entry of each wanted short list, and the head of each other one."""
        starts = [place.start for place in places.values()]
        sizes = [
            place.num_bytes if key in wanted and place.frames is None else place.head
            for key, place in places.items()
        ]
        files = np.full(len(places), self.file)
        begins = np.array(starts, np.int64) + self.begin
        return _read_parts(self.reader, files, begins, np.array(sizes, np.int64))

    def _check_entry(self, key: str, place: ListPlace, data: bytes, is_wanted: bool) -> None:
        if self.reader.episodes[self.file].key_fields[key] not in data[: place.head]:
            raise CorruptRecordError(
                f"corrupted record: expected feature {key!r} in {place.num_bytes} bytes (from the episode "
                f"index) at byte {place.start} of the payload, got another"
            )
        if is_wanted and crc32c(data) != place.crc:
            raise _wrong_checksum(f"feature {key!r}", data, place.crc)

    def blame(self, error: CorruptRecordError) -> TFRecordError:
        """The error for a part that does not match the index: the record's own CRC shows which of
        them is damaged.
        """
        try:
            self._whole()
        except TFRecordError:
            return error
        return IndexMismatchError(
            f"the episode index does not match this record, whose own checksum is right: {error.args[0]}"
        )

    def locate(self, error: TFRecordError) -> TFRecordError:
        """Add the file, record and byte offset to an error."""
        return error.locate(
            path=self.reader.files[self.file], offset=self._offset, position=self.number
        )

    def __str__(self) -> str:
        """As errors name it."""
        return str(RecordPlace(self.reader.files[self.file], self._offset, self.number))


def _parse(payload: bytes, wants: Sequence[Want]) -> dict[str, Values]:
    """The lists of an Example that are wanted and there."""
    try:
        columns = parse_lists(payload, [(want.key, want.kind) for want in wants])
    except ParseError:
        columns_of(wants, [parse_message(payload).features.feature])  # raises the exact error
        raise
    pairs = zip(wants, columns, strict=True)
    return {want.key: _values_of(want, column) for want, column in pairs if column.missing is None}


def _values_of(want: Want, column: Column) -> Values:
    if want.kind is not BYTES_LIST:
        numbers: Values = column.values
        return numbers
    values: list[bytes] = column.strings(bytes)
    if is_large(int(column.values[:, 1].sum()), len(values)):
        return values
    seen: dict[bytes, bytes] = {}  # an instruction repeated in every step becomes one object
    return [*map(seen.setdefault, values, values)]


class Frames:
    """The values of a long bytes_list, such as encoded images, read on demand.

    Args:
        record: The record.
        key: Key of the list.
        places: See `ListPlace`.

    Attributes:
        num_bytes: Memory it holds.
        record: The record.
        places: int64 [N, 3]: first byte of each value in the file, its size, and its CRC-32C; all
            include the tag and length before the value.
    """

    __slots__ = ("key", "num_bytes", "places", "record")

    def __init__(self, record: EpisodeRecord, key: str, places: npt.NDArray[np.int64]) -> None:
        self.key = key
        self.record = record
        self.places = places + np.array([record.begin, 0, 0], np.int64)
        self.num_bytes = self.places.nbytes

    def __len__(self) -> int:
        return len(self.places)

    def read(self, first: int, stop: int) -> list[bytes]:
        """The values of steps `first` to `stop` - 1, in one read.

        Raises:
            CorruptRecordError: The checksum of a value is wrong; names the file, the record, the
                key and the step.
            IndexMismatchError: The record is intact, but the episode index does not match it.
        """
        starts, sizes, crcs = self.places[first:stop].T.tolist()
        if not starts:
            return []
        file, begin = np.array([self.record.file]), starts[0]
        whole = np.array([starts[-1] + sizes[-1] - begin])
        try:
            buffer, [at] = read_pieces(self.record.reader.data, file, np.array([begin]), whole)
            first_byte, parts = int(at) - begin, zip(starts, sizes, strict=True)
            values = [
                buffer.data[first_byte + start : first_byte + start + size] for start, size in parts
            ]
            for step, (value, expected) in enumerate(zip(values, crcs, strict=True), first):
                if crc32c(value) != expected:
                    raise _wrong_checksum(f"feature {self.key!r}, step {step}", value, expected)
            contents = _contents(values)
            if contents is None:
                raise CorruptRecordError(f"feature {self.key!r}: expected values of other lengths")
        except CorruptRecordError as error:
            raise self.record.locate(self.record.blame(error)) from error.__cause__
        except TFRecordError as error:
            raise self.record.locate(error) from error.__cause__
        return contents


def _contents(values: Sequence[bytes | memoryview]) -> list[bytes] | None:
    """The values without the tag and length before them; None if one is not such a field."""
    contents = []
    for value in values:
        head = _usual_head(len(value))
        begin = len(head)
        if value[:begin] != head:  # a long form, or damage
            try:
                field, _, begin, end = next(find_fields(bytes(value)))
            except (IndexError, ValueError):
                return None
            if field != 1 or end != len(value):
                return None
        contents.append(bytes(value[begin:]))
    return contents


@functools.lru_cache(1 << 12)
def _usual_head(num_bytes: int) -> bytes:
    """The tag and length of a value that takes so many bytes with these."""
    size = (
        num_bytes - 2 if num_bytes < 130 else num_bytes - 3 if num_bytes < 16_387 else num_bytes - 4
    )
    return b"\n" + varint(size)


def read_frames(frames: Sequence[Frames], spans: Spans) -> list[bytes] | None:
    """`Frames.read` of each window, concatenated, in a few calls.

    None if anything does not match: the caller then reads each window on its own, which also finds
    the error.
    """
    reader = frames[0].record.reader
    if any(item.record.reader is not reader for item in frames):
        return None
    found = [
        item.places[first:stop] for item, (first, stop, _, _) in zip(frames, spans, strict=True)
    ]
    files = np.repeat([item.record.file for item in frames], [*map(len, found)])
    begins, sizes, crcs = np.ascontiguousarray(np.concatenate(found).T)
    try:
        values = _read_parts(reader, files, begins, sizes)
    except (OSError, TFRecordError):
        return None
    if [*map(crc32c, values)] != crcs.tolist():
        return None
    return _contents(values)


def _read_parts(reader: EpisodeReader, files: _Ints, begins: _Ints, sizes: _Ints) -> list[bytes]:
    buffer, places = read_pieces(reader.data, files, begins, sizes)
    return PackedRecords(buffer, places, sizes).tolist()


def _wrong_checksum(what: str, data: bytes | memoryview, expected: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"corrupted record: {what}: expected checksum {expected:#010x} (from the episode index), got "
        f"{crc32c(data):#010x} ({len(data)} bytes)"
    )
