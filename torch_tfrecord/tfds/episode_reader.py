"""Reads parts of episodes: the short lists of one at once, and of the frames only those asked for.

What is read is held against the checksums that the index of episodes has of each part. The index is not believed for
what a list is: before each stand its key, its kind and its length, and all of them are held against the index. Where
they differ, the whole record is read, whose own CRC tells which of the two is damaged. A record in another form than
the usual one, or in a compressed file, is read as a whole, by its own CRC.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.compression import ByteSource, open_stream
from torch_tfrecord.records.framing import HEADER_BYTES
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.local_reads import read_local_values
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.storage import SourceCache, open_file
from torch_tfrecord.remote.access import DEFAULT_ACCESS, Access
from torch_tfrecord.shown import printable
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

# Short lists this near to each other are read together: a call costs more than so many bytes.
_MAX_GAP_BYTES = 1 << 12

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes] | Frames"
Spans: TypeAlias = Sequence[tuple[int, int, int, int]]
"""Windows' `Span`s, of which the first step and the one behind the last count here."""


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
        records: Sequence[RecordIndex],
        episodes: Sequence[EpisodeIndex],
        access: Access = DEFAULT_ACCESS,
    ) -> None:
        self.files = files
        self.records = records
        self.episodes = episodes
        # No methods of the reader: it would hold itself, and with it open files.
        self.data = SourceCache(functools.partial(_open_data, files, records, access))
        self.tables = SourceCache(functools.partial(_open_tables, episodes, access))

    def record(self, file: int, number: int) -> EpisodeRecord:
        """The record of an episode, by number of file and record."""
        return EpisodeRecord(self, file, number)


def _open_data(files: Sequence[str], records: Sequence[RecordIndex], access: Access, file: int) -> ByteSource:
    """A data file, which must still be the one that was indexed."""
    source = open_file(files[file], access)
    records[file].check_fresh(source)
    return open_stream(source, records[file].compression_type)[0]


def _open_tables(episodes: Sequence[EpisodeIndex], access: Access, file: int) -> ByteSource:
    return open_file(episodes[file].tables_path, access)


class EpisodeRecord:
    """One episode's record, and where its bytes come from.

    Attributes:
        file: Its number.
        number: The record's number in it.
        payload: All of it, where it was read as a whole.
        begin: First byte of the payload in its file.
    """

    __slots__ = ("_num_bytes", "_offset", "begin", "file", "number", "payload", "reader")

    def __init__(self, reader: EpisodeReader, file: int, number: int) -> None:
        self.reader = reader
        self.file = file
        self.payload: bytes | None = None
        self.number = number
        index = reader.records[file]
        self._offset, self._num_bytes = int(index.offsets[number]), int(index.lengths[number])
        self.begin = self._offset + HEADER_BYTES

    def lists(self, wanted: Callable[[str], bool]) -> dict[str, Values]:
        """The lists whose key is wanted: int64 or float32 [N], list of bytes, or `Frames`, not yet read.

        Raises:
            TFRecordError: with the file and the record.
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
        index = self.reader.episodes[self.file]
        if not self.reader.records[self.file].compression_type:
            places = index.places(self.number, self._table(index), self._num_bytes)
            if places is not None:
                return places
        places, self.payload = find_places(self._whole())
        index.check_steps(self.number, places)
        return places

    def _table(self, index: EpisodeIndex) -> bytes:
        start, num_bytes = index.table_range(self.number)
        if index.tables is not None:
            return index.tables[start : start + num_bytes]
        return self.reader.tables.get(self.file).read(num_bytes, index.tables_offset + start)

    def _whole(self) -> bytes:
        return RecordReader().read(self.reader.data.get(self.file), self._offset, self._num_bytes)

    def _short(self, places: Mapping[str, ListPlace], wanted: Callable[[str], bool]) -> Iterator[tuple[str, Values]]:
        """The wanted lists that are read as a whole; of all lists what stands before them is held against the index."""
        pieces = []
        for key, place in places.items():
            is_read = place.kind not in (FRAMES, UNSET) and wanted(key)
            end = place.start + (place.num_bytes if is_read else 0)
            pieces.append(_Piece(place.start - len(place.head), end, key, place, is_read))
        at = 0
        while at < len(pieces):
            begin = end = pieces[at].begin
            group = []
            while at < len(pieces) and pieces[at].begin - end <= _MAX_GAP_BYTES:
                group.append(pieces[at])
                end = max(end, pieces[at].end)
                at += 1
            data = memoryview(self.read(end - begin, begin))
            for piece in group:
                try:
                    content = piece.content(data[piece.begin - begin : piece.end - begin])
                except CorruptRecordError as error:
                    raise self.blame(error) from error.__cause__
                if content is not None:
                    yield piece.key, content

    def read(self, num_bytes: int, start: int) -> bytes:
        """Bytes of the payload."""
        if self.payload is not None:
            return self.payload[start : start + num_bytes]
        data = self.reader.data.get(self.file).read(num_bytes, self.begin + start)
        if len(data) < num_bytes:
            raise CorruptRecordError(f"truncated record: expected {num_bytes} bytes, got {len(data)}")
        return data

    def blame(self, error: CorruptRecordError) -> TFRecordError:
        """The error of a part that is not as the index says: the record's own CRC tells which of them is damaged."""
        if self.payload is None:
            try:
                self._whole()
            except TFRecordError:
                return error
            return IndexMismatchError(
                f"the index of episodes is not of this record, whose own checksum is right: {error.args[0]}"
            )
        return error

    def locate(self, error: TFRecordError) -> TFRecordError:
        """Add file, byte and record to an error."""
        return error.locate(path=self.reader.files[self.file], offset=self._offset, position=self.number)

    def __str__(self) -> str:
        """As errors name it."""
        return f"{printable(self.reader.files[self.file])}: record {self.number} at byte {self._offset}"


class Frames:
    """The values of a long bytes_list, such as encoded images: read when they are asked for.

    Args:
        record: The record.
        key: The list's key.
        place: Where its values lie.

    Attributes:
        num_bytes: Memory that it keeps.
        record: The record.
        places: int64 [N, 3]: first byte of each value in the file (in the payload where that was read as a whole), its
            bytes, and its CRC-32C; with its tag and its length, which stand in front of it.
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
        """The values of the steps `first` to `stop` - 1, by one read.

        Raises:
            CorruptRecordError: a value has another checksum; names the file, the record, the key and the step.
            IndexMismatchError: the record is whole, and the index of episodes is not of it.
        """
        starts, lengths, crcs = self.places[first:stop].T.tolist()
        if not starts:
            return []
        try:
            data = self.record.read(starts[-1] + lengths[-1] - starts[0], starts[0] - self._begin)
            values = [data[start - starts[0] : start - starts[0] + n] for start, n in zip(starts, lengths, strict=True)]
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
        """Values without the tag and the length in front of them; None where these say something else."""
        found = []
        for value, head in zip(values, self._heads[first : first + len(values)].tolist(), strict=True):
            if not value.startswith(value_head(len(value) - head)):
                return None
            found.append(value[head:])
        return found


def read_frames(frames: Sequence[Frames], spans: Spans) -> list[bytes] | None:
    """What `Frames.read` gives of each window, one after another, by a few calls in all.

    None in any doubt: then each is read by itself, which also finds what is wrong.
    """
    reader = frames[0].record.reader
    files: list[int] = []
    counts: list[int] = []
    places: list[npt.NDArray[np.int64]] = []
    for item, (first, stop, _, _) in zip(frames, spans, strict=True):
        record, found = item.record, item.places[first:stop]
        if record.payload is not None or record.reader is not reader:
            return None
        if not files or record.file != files[-1]:
            files.append(record.file)
            counts.append(0)
        counts[-1] += len(found)
        places.append(found)
    try:
        values = read_local_values(reader.data.get, files, counts, np.concatenate(places))
    except (OSError, TFRecordError):  # of opening a file
        return None
    if values is None:
        return None
    contents: list[bytes] = []
    for item, (first, _, _, _), found in zip(frames, spans, places, strict=True):
        own = item.contents(first, values[len(contents) : len(contents) + len(found)])
        if own is None:
            return None
        contents += own
    return contents


def _wrong_checksum(what: str, data: bytes, expected: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"corrupted record: {what}: expected checksum {expected:#010x} (by the index of episodes), got "
        f"{crc32c(data):#010x} ({len(data)} bytes)"
    )


class _Piece(NamedTuple):
    """What is read of one list at once: its values where they are wanted and short, and what stands before them."""

    begin: int
    end: int
    key: str
    place: ListPlace
    is_read: bool

    def content(self, data: memoryview) -> Values | None:
        """The list's values; None where they are not read.

        Raises:
            CorruptRecordError: Something differs from what the index of episodes says.
        """
        _, _, key, place, is_read = self
        content = data[len(place.head) :]
        if data[: len(place.head)] != place.head:
            raise CorruptRecordError(
                f"corrupted record: expected feature {key!r} in {place.num_bytes} bytes (by the index of "
                f"episodes) at byte {place.start} of the payload, got another"
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
                f"feature {key!r}: expected {place.num_values} values (by the index of episodes), got {len(values)}"
            )
        return values


def _decode(place: ListPlace, content: memoryview) -> Values:
    if place.kind == FLOATS:
        return np.frombuffer(content, "<f4").astype(np.float32)  # own memory, which torch may write to
    if place.kind == INTEGERS:
        return decode_integers(content)
    return split_values(bytes(content))
