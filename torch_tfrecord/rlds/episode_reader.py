"""Read parts of episodes: the short lists of an episode in one read, and only the frames you ask
for.

Each part is checked against its checksum in the episode index. The index is not trusted for what a
list is: the key in each entry is checked against it, and entries are parsed as the Example that
they are part of. If they differ, the whole record is read and its own CRC shows whether the record
or the index is damaged. A record without pieces in the index is read whole and checked
with its own CRC.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.columns import ColumnPlan, Want
from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files import FileSource, LocalFile, open_file, read_pieces
from torch_tfrecord.per_process import ProcessCache
from torch_tfrecord.protobuf import varint
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.rlds.episode_index import PIECE_BYTES, EpisodeIndex, wrap
from torch_tfrecord.samples import RecordPlace

__all__ = ["EpisodeReader", "EpisodeRecord", "Frames", "Spans", "Values", "read_frames"]

# For each kind; descriptors have a limit of their own.
_MOST_OPEN = 256
_PREFIX = 6  # the most bytes of the tag and length of an entry, before the key

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes] | Frames"
Spans: TypeAlias = Sequence[tuple[int, int]]
"""The first step of each window, and the step after its last."""


class EpisodeReader:
    """Reads the data files of indexes, and the pieces in these. Keeps a few files open; safe from
    threads and fork.

    Args:
        indexes: The episode index of each file.
    """

    def __init__(self, indexes: Sequence[EpisodeIndex]) -> None:
        self.indexes = indexes
        self._data: ProcessCache[Any] = ProcessCache(_MOST_OPEN)
        self._sidecars: ProcessCache[FileSource] = ProcessCache(_MOST_OPEN)

    def data(self, file: int) -> Any:
        """A data file, open: see `RecordIndex._open_records`."""
        path, records, _, access = self.indexes[file].file
        return self._data.find(file, lambda _: records._open_records(path, access))

    def pieces(self, file: int, number: int) -> bytes:
        """The pieces of an episode in the index of a file."""
        index = self.indexes[file]
        first, stop = int(index.ends[number - 1]) if number else 0, int(index.ends[number])
        if index.pieces is not None:
            return index.pieces[first:stop].tobytes()
        # Read one by one: those of a large dataset take gigabytes.
        source = self._sidecars.find(file, lambda _: open_file(index.path, index.file.access))
        return source.read(PIECE_BYTES * (stop - first), index.begin + PIECE_BYTES * first)


class EpisodeRecord(NamedTuple):
    """The record of one episode.

    Attributes:
        reader: Reads the files.
        file: Number of the file.
        number: Number of the record in the file.
    """

    reader: EpisodeReader
    file: int
    number: int

    @property
    def _index(self) -> EpisodeIndex:
        return self.reader.indexes[self.file]

    @property
    def begin(self) -> int:
        """First byte of the payload in the file, of a record of which parts can be read."""
        return self._index.file.records._payload(self.number)

    @property
    def place(self) -> RecordPlace:
        """Where the record is, as errors name it."""
        path, records, *_ = self._index.file
        return RecordPlace(path, records._offset(self.number), self.number)

    def lists(self, wants: Sequence[Want]) -> dict[str, Values]:
        """The lists that are wanted and there, by key: int64 or float32 [N], a list of bytes, or
        `Frames` that are not read yet.

        Raises:
            TFRecordError: A part is damaged or does not match; names the file and the record.
        """
        try:
            places = self.places()
            lists = _parse(self._whole(), wants) if places is None else self._placed(places, wants)
            # Positions come from the index.
            counts = {key: len(values) for key, values in lists.items()}
            self._index.check_steps(self.number, counts)
            return lists
        except TFRecordError as error:
            raise self.locate(error) from error.__cause__

    def places(self) -> dict[str, Ints] | None:
        """See `EpisodeIndex.places`."""
        if not self._index.file.records._has_ranges:
            return None
        return self._index.places(self.number, self.reader.pieces(self.file, self.number))

    def _whole(self) -> bytes:
        return self._index.file.records._read(self.reader.data(self.file), self.number)

    def _placed(self, places: Mapping[str, Ints], wants: Sequence[Want]) -> dict[str, Values]:
        """The wanted lists; the keys of all lists are checked against the index."""
        # A key that several features want is read once.
        wanted = {want.key: want for want in wants}
        frames: dict[str, Values] = {
            key: Frames(self, key, rows[1:])
            for key, rows in places.items()
            if len(rows) > 1 and key in wanted
        }
        if any(wanted[key].kind.dtype is not bytes for key in frames):
            return _parse(self._whole(), wants)  # raises the exact error, if the index is right
        heads = [rows[0].tolist() for rows in places.values()]
        # Only the keys are read of lists that are not wanted.
        sizes = [
            size if key in wanted or len(rows) > 1 else min(size, len(_field_of(key)) + _PREFIX)
            for (key, rows), (_, size, _) in zip(places.items(), heads, strict=True)
        ]
        source, begins = self.reader.data(self.file), [self.begin + begin for begin, *_ in heads]
        parts: list[bytes] = []
        if isinstance(source, LocalFile):  # whose reads cost less than a plan of them
            parts = [*map(source.read, sizes, begins)]
        if [*map(len, parts)] != sizes:
            lengths = np.array(sizes, np.int64)
            files = np.full(len(sizes), self.file)
            read = read_pieces(self.reader.data, files, np.array(begins, np.int64), lengths)
            parts = PackedRecords(*read, lengths).tolist()
        entries = []
        try:
            for (key, rows), (begin, size, crc), part in zip(
                places.items(), heads, parts, strict=True
            ):
                # Else an index that lies could exchange two features of the same form, or call one
                # the frames of another.
                values = b"\n" + varint(int(rows[1:, 1].sum())) if len(rows) > 1 else b""
                field = _field_of(key)
                if field not in part[: len(field) + _PREFIX] or not part.endswith(values):
                    raise CorruptRecordError(
                        f"corrupted record: expected feature {key!r} in {size} bytes (from the episode "
                        f"index) at byte {begin} of the payload, got another"
                    )
                if key in wanted and crc32c(part) != crc:
                    raise _wrong_checksum(f"feature {key!r}", part, crc)
                if key in wanted and key not in frames:
                    entries.append(part)
            # The entries of an Example are again those of an Example.
            return _parse(wrap(b"".join(entries)), wants) | frames
        except CorruptRecordError as error:
            raise self.blame(error) from error.__cause__

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
        return error.locate(**self.place._asdict())


@functools.lru_cache(1 << 12)
def _field_of(key: str) -> bytes:
    """The bytes of a key in its entry."""
    return wrap(key.encode())


@functools.lru_cache(1 << 12)  # pictures of a camera have similar sizes
def _head_of(num_bytes: int) -> bytes:
    """The tag and length of a value that takes so many bytes with these."""
    heads = (b"\n" + varint(max(num_bytes - size, 0)) for size in range(2, 7))
    return next((head for size, head in enumerate(heads, 2) if len(head) == size), b"\0")


@functools.lru_cache(maxsize=64)
def _plan_of(wants: tuple[Want, ...]) -> ColumnPlan:
    return ColumnPlan([wants])


def _parse(payload: bytes, wants: Sequence[Want]) -> dict[str, Values]:
    """The lists of an Example that are wanted and there."""
    # The core reads several records; this is one.
    record = PackedRecords(payload, np.zeros(1, np.int64), np.array([len(payload)], np.int64))
    plan = _plan_of(tuple(wants))
    try:
        [[columns]] = plan.read(record, [0, 1])
    except ParseError:
        # The core says that something is wrong, protobuf what it is.
        plan.explain(payload)
        raise
    lists: dict[str, Values] = {}
    for want, column in zip(wants, columns, strict=True):
        if column.missing is None:
            values: Any = column.values
            if want.kind.dtype is bytes:
                # An instruction that is repeated in every step becomes one object.
                seen: dict[bytes, bytes] = {}
                values = [seen.setdefault(each, each) for each in column.strings(bytes)]
            lists[want.key] = values
    return lists


class Frames:
    """The values of a long bytes_list, such as encoded images, read on demand.

    Args:
        record: The record.
        key: Key of the list.
        places: Their rows of `EpisodeIndex.places`.

    Attributes:
        num_bytes: Memory it takes.
        places: int64 [N, 3]: first byte of each value in the file, its size, and its CRC-32C; all
            include the tag and length before the value.
    """

    __slots__ = ("key", "num_bytes", "places", "record")

    def __init__(self, record: EpisodeRecord, key: str, places: Ints) -> None:
        self.record, self.key = record, key
        # From the payload to the file, once for all reads.
        self.places = places + np.array([record.begin, 0, 0])
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
        try:
            return read_frames([self], [(first, stop)])
        except CorruptRecordError as error:
            raise self.record.locate(self.record.blame(error)) from error.__cause__
        except TFRecordError as error:
            raise self.record.locate(error) from error.__cause__


def read_frames(frames: Sequence[Frames], spans: Spans) -> list[bytes]:
    """The values of a window of each of these, concatenated, in a few calls; see `Frames.read`.

    Raises:
        TFRecordError: A value does not match the index, or cannot be read; the record is not named.
    """
    windows = [
        (item, first, item.places[first:stop])
        for item, (first, stop) in zip(frames, spans, strict=True)
        if first < stop
    ]
    if not windows:
        return []
    # The values of a list follow one another: a window is one piece of its file.
    ends = [(int(rows[0, 0]), int(rows[-1, 0] + rows[-1, 1])) for _, _, rows in windows]
    begins, stops = np.array(ends, np.int64).T
    files = np.array([item.record.file for item, _, _ in windows])
    buffer, places = read_pieces(frames[0].record.reader.data, files, begins, stops - begins)
    view, values = buffer.data, []
    for (item, first, rows), shift in zip(windows, (places - begins).tolist(), strict=True):
        for step, (begin, size, crc) in enumerate(rows.tolist(), first):
            value = view[begin + shift : begin + shift + size]
            if crc32c(value) != crc:
                raise _wrong_checksum(f"feature {item.key!r}, step {step}", value, crc)
            head = _head_of(size)
            # No index is built for lengths in more bytes than they need.
            if value[: len(head)] != head:
                raise CorruptRecordError(f"feature {item.key!r}: expected values of other lengths")
            # A copy: the buffer is one for many episodes, and a sample may live long.
            values.append(bytes(value[len(head) :]))
    return values


def _wrong_checksum(what: str, data: bytes | memoryview, expected: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"corrupted record: {what}: expected checksum {expected:#010x} (from the episode index), got "
        f"{crc32c(data):#010x} ({len(data)} bytes)"
    )
