"""Reads parts of episodes: the short lists of one at once, and of the frames only those asked for.

What is read is held against the checksums that the index of episodes has of each part. The index is not believed for
what a list is: before each stand its key, its kind and its length, and all of them are held against the index. Where
they differ, the whole record is read, whose own CRC tells which of the two is damaged. A record in another form than
the usual one, or in a compressed file, is read as a whole, by its own CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.compression import ByteSource, open_stream
from torch_tfrecord.records.framing import HEADER_BYTES
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.local_reads import read_local_values
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.storage import FileSource, SourceCache, open_file
from torch_tfrecord.shown import printable
from torch_tfrecord.tfds.episode_index import FRAMES, EpisodeIndex, ListPlace, find_places
from torch_tfrecord.tfds.example_layout import (
    FLOATS,
    INTEGERS,
    UNSET,
    decode_integers,
    split_values,
    value_head,
)
from torch_tfrecord.tfds.windows import Span

__all__ = ["EpisodeReader", "Frames", "Values", "read_frames"]

# Short lists this near to each other are read together: a call costs more than so many bytes.
_MAX_GAP_BYTES = 1 << 12

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes] | Frames"


class EpisodeReader:
    """Reads the lists of episodes, by number of file and record. Keeps a few files open; safe from threads and fork.

    Args:
        files: The data files.
        records: The record index of each.
        episodes: The episode index of each.
    """

    def __init__(self, files: Sequence[str], records: Sequence[RecordIndex], episodes: Sequence[EpisodeIndex]) -> None:
        self._files = files
        self._records = records
        self._episodes = episodes
        self._reader = RecordReader()
        self._open_sources()

    def _open_sources(self) -> None:
        self._data = SourceCache(_DataOpener(self._files, self._records))
        self._tables = SourceCache(_TableOpener(self._episodes))

    def lists(self, file: int, record: int, wanted: Callable[[str], bool]) -> dict[str, Values]:
        """The lists whose key is wanted: int64 or float32 [N], list of bytes, or `Frames`, not yet read.

        Raises:
            TFRecordError: with the file and the record.
        """
        part = _Part(self, file, record)
        try:
            places = self._places(part)
            values: dict[str, Values] = dict(_read_short(part, places, wanted))
            for key, place in places.items():
                if place.kind == FRAMES and wanted(key):
                    values[key] = Frames(part, key, place)
            return values
        except TFRecordError as error:
            raise part.locate(error) from error.__cause__

    def _places(self, part: _Part) -> dict[str, ListPlace]:
        index, records = self._episodes[part.file], self._records[part.file]
        if not records.compression_type:
            places = index.places(part.record, self._table(part), int(records.lengths[part.record]))
            if places is not None:
                return places
        places, part.payload = find_places(self._read_whole(part))
        index.check_steps(part.record, places)
        return places

    def _read_whole(self, part: _Part) -> bytes:
        records = self._records[part.file]
        offset, length = int(records.offsets[part.record]), int(records.lengths[part.record])
        return self._reader.read(self._data.get(part.file), offset, length)

    def blame(self, part: _Part, error: CorruptRecordError) -> TFRecordError:
        """The error of a part that is not as the index says: the record's own CRC tells which of them is damaged."""
        if part.payload is None:
            try:
                self._read_whole(part)
            except TFRecordError:
                return error
            return IndexMismatchError(
                f"the index of episodes is not of this record, whose own checksum is right: {error.args[0]}"
            )
        return error

    def _table(self, part: _Part) -> bytes:
        index = self._episodes[part.file]
        start, num_bytes = index.table_range(part.record)
        if index.tables is not None:
            return index.tables[start : start + num_bytes]
        return self._tables.get(part.file).read(num_bytes, index.tables_offset + start)

    def source(self, file: int) -> ByteSource:
        """The open source of a file, by its number."""
        return self._data.get(file)

    def payload_begin(self, file: int, record: int) -> int:
        """First byte of a record's payload in its file."""
        return int(self._records[file].offsets[record]) + HEADER_BYTES

    def read(self, part: _Part, num_bytes: int, start: int) -> bytes:
        """Bytes of a record's payload."""
        data = self._data.get(part.file).read(num_bytes, self.payload_begin(part.file, part.record) + start)
        if len(data) < num_bytes:
            raise CorruptRecordError(f"truncated record: expected {num_bytes} bytes, got {len(data)}")
        return data

    def place(self, file: int, record: int) -> str:
        """A record, as errors name it."""
        return f"{printable(self._files[file])}: record {record} at byte {int(self._records[file].offsets[record])}"

    def locate_record(self, file: int, record: int, error: TFRecordError) -> TFRecordError:
        """Add file, byte and record to an error."""
        offset = int(self._records[file].offsets[record])
        return error.locate(path=self._files[file], offset=offset, position=record)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_data"], state["_tables"]  # open files stay in their process
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_sources()


class _Part:
    """One record: where its bytes come from."""

    __slots__ = ("file", "payload", "reader", "record")

    def __init__(self, reader: EpisodeReader, file: int, record: int) -> None:
        self.file = file
        self.record = record
        self.payload: bytes | None = None  # where it was read as a whole
        self.reader = reader

    def read(self, num_bytes: int, start: int) -> bytes:
        if self.payload is not None:
            return self.payload[start : start + num_bytes]
        return self.reader.read(self, num_bytes, start)

    def locate(self, error: TFRecordError) -> TFRecordError:
        return self.reader.locate_record(self.file, self.record, error)


class Frames:
    """The values of a long bytes_list, such as encoded images: read when they are asked for.

    Args:
        part: The record.
        key: The list's key.
        place: Where its values lie.

    Attributes:
        num_bytes: Memory that it keeps.
        part: The record.
        places: int64 [N, 3]: first byte of each value in the file (in the payload where that was read as a whole), its
            bytes, and its CRC-32C; with its tag and its length, which stand in front of it.
    """

    __slots__ = ("_begin", "_heads", "key", "num_bytes", "part", "places")

    def __init__(self, part: _Part, key: str, place: ListPlace) -> None:
        self.key = key
        self.part = part
        self._begin = part.reader.payload_begin(part.file, part.record) if part.payload is None else 0
        self._heads = place.heads
        starts, lengths = place.starts - self._heads + self._begin, place.lengths + self._heads
        self.places = np.stack([starts, lengths, place.crcs], axis=1)
        self.num_bytes = self.places.nbytes + (0 if part.payload is None else len(part.payload))

    def __len__(self) -> int:
        return len(self.places)

    def read(self, first: int, stop: int) -> list[bytes]:
        """The values of the steps `first` to `stop` - 1, by one read.

        Raises:
            CorruptRecordError: a value has another checksum; names the file, the record, the key and the step.
            IndexMismatchError: the record is whole, and the index of episodes is not of it.
        """
        starts, lengths, crcs = self.places[first:stop].T.tolist()
        if not starts:
            return []
        try:
            data = self.part.read(starts[-1] + lengths[-1] - starts[0], starts[0] - self._begin)
            values = [data[start - starts[0] : start - starts[0] + n] for start, n in zip(starts, lengths, strict=True)]
            for step, (value, expected) in enumerate(zip(values, crcs, strict=True), first):
                if crc32c(value) != expected:
                    raise _wrong_checksum(f"feature {self.key!r}, step {step}", value, expected)
            contents = self.contents(first, values)
            if contents is None:
                raise CorruptRecordError(f"feature {self.key!r}: expected values of other lengths")
        except CorruptRecordError as error:
            raise self.part.locate(self.part.reader.blame(self.part, error)) from error.__cause__
        except TFRecordError as error:
            raise self.part.locate(error) from error.__cause__
        return contents

    def contents(self, first: int, values: Sequence[bytes]) -> list[bytes] | None:
        """Values without the tag and the length in front of them; None where these say something else."""
        found = []
        for value, head in zip(values, self._heads[first : first + len(values)].tolist(), strict=True):
            if not value.startswith(value_head(len(value) - head)):
                return None
            found.append(value[head:])
        return found


def read_frames(frames: Sequence[Frames], spans: Sequence[Span]) -> list[bytes]:
    """What `Frames.read` gives of each window, one after another, by a few calls in all.

    Raises:
        CorruptRecordError: As `Frames.read`, of the first window that is damaged.
    """
    values = _read_local(frames, spans)
    if values is None:  # each in its own way, which also finds what is wrong
        windows = zip(frames, spans, strict=True)
        values = [value for item, span in windows for value in item.read(span.first, span.stop)]
    return values


def _read_local(frames: Sequence[Frames], spans: Sequence[Span]) -> list[bytes] | None:
    reader = frames[0].part.reader
    files: list[int] = []
    counts: list[int] = []
    places: list[npt.NDArray[np.int64]] = []
    for item, (first, stop, _, _) in zip(frames, spans, strict=True):
        part, found = item.part, item.places[first:stop]
        if part.payload is not None or part.reader is not reader:
            return None
        if not files or part.file != files[-1]:
            files.append(part.file)
            counts.append(0)
        counts[-1] += len(found)
        places.append(found)
    try:
        values = read_local_values(reader.source, files, counts, np.concatenate(places))
    except (OSError, TFRecordError):  # of opening a file
        return None
    return None if values is None else _contents(frames, spans, values)


def _contents(frames: Sequence[Frames], spans: Sequence[Span], values: Sequence[bytes]) -> list[bytes] | None:
    found: list[bytes] = []
    for item, (first, stop, _, _) in zip(frames, spans, strict=True):
        own = item.contents(first, values[len(found) : len(found) + len(item.places[first:stop])])
        if own is None:
            return None
        found += own
    return found


def _wrong_checksum(what: str, data: bytes, expected: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"corrupted record: {what}: expected checksum {expected:#010x} (by the index of episodes), got "
        f"{crc32c(data):#010x} ({len(data)} bytes)"
    )


def _read_short(
    part: _Part, places: Mapping[str, ListPlace], wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Any]]:
    """The wanted lists that are read as a whole; of all lists what stands before them is held against their places."""
    pieces = [_Piece(key, place, wanted(key)) for key, place in places.items()]
    at = 0
    while at < len(pieces):
        begin = end = pieces[at].begin
        group = []
        while at < len(pieces) and pieces[at].begin - end <= _MAX_GAP_BYTES:
            group.append(pieces[at])
            end = max(end, pieces[at].end)
            at += 1
        data = memoryview(part.read(end - begin, begin))
        for piece in group:
            try:
                content = piece.content(data[piece.begin - begin : piece.end - begin])
            except CorruptRecordError as error:
                raise part.reader.blame(part, error) from error.__cause__
            if content is not None:
                yield piece.key, content


class _Piece:
    """What is read of one list at once: its values where they are wanted and short, and what stands before them."""

    __slots__ = ("_head", "_is_read", "_place", "begin", "end", "key")

    def __init__(self, key: str, place: ListPlace, is_wanted: bool) -> None:
        self.key = key
        self._place = place
        self._is_read = is_wanted and place.kind not in (FRAMES, UNSET)
        self._head = place.head
        self.begin = place.start - len(self._head)
        self.end = place.start + (place.num_bytes if self._is_read else 0)

    def content(self, data: memoryview) -> Any:
        """The list's values; None where they are not read.

        Raises:
            CorruptRecordError: Something differs from what the index of episodes says.
        """
        head = len(self._head)
        if data[:head] != self._head:
            raise CorruptRecordError(
                f"corrupted record: expected feature {self.key!r} in {self._place.num_bytes} bytes (by the index of "
                f"episodes) at byte {self._place.start} of the payload, got another"
            )
        if not self._is_read:
            return None
        content = data[head:]
        if crc32c(content) != self._place.crc:
            raise _wrong_checksum(f"feature {self.key!r}", bytes(content), self._place.crc)
        try:
            values = _decode(self._place, content)
        except ParseError as error:
            raise CorruptRecordError(f"feature {self.key!r}: {error.args[0]}") from error
        if len(values) != self._place.num_values:
            raise CorruptRecordError(
                f"feature {self.key!r}: expected {self._place.num_values} values (by the index of episodes), "
                f"got {len(values)}"
            )
        return values


def _decode(place: ListPlace, content: memoryview) -> Any:
    if place.kind == FLOATS:
        return np.frombuffer(content, "<f4").astype(np.float32)  # own memory, which torch may write to
    if place.kind == INTEGERS:
        return decode_integers(content)
    return split_values(bytes(content))


class _DataOpener:
    """Opens data files by number, which must still be those that were indexed. Apart from the reader: no cycle."""

    def __init__(self, files: Sequence[str], records: Sequence[RecordIndex]) -> None:
        self._files = files
        self._records = records

    def __call__(self, file: int) -> ByteSource:
        source = open_file(self._files[file])
        index = self._records[file]
        index.check_fresh(source)
        return open_stream(source, index.compression_type)[0]


class _TableOpener:
    """Opens the files of tables by number."""

    def __init__(self, episodes: Sequence[EpisodeIndex]) -> None:
        self._episodes = episodes

    def __call__(self, file: int) -> FileSource:
        return open_file(self._episodes[file].tables_path)
