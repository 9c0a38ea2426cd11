"""The episode index of a data file: the number of steps of each episode, and where its lists are.

It is stored next to the record index, under the name that the index of ``<data file>.steps`` would
have. Building it takes one pass that checks every record's CRC. With it, the number of steps of a
dataset is known at once, and a sample reads only its own frames, each checked against its own
checksum, instead of whole records of many megabytes.

A record is cut into pieces: one for each list with its key; for a long list of bytes one for its
key, and one for each of its values. A piece is three uint32: the number of its key, its length and
its CRC-32C. The pieces fill the record, so their starts follow from their lengths. An episode has
no pieces if its record must be read as a whole: in a compressed file, or in a form that no writer
uses. Pieces stay in the file: those of 10^7 frames are gigabytes. Those of an episode are read when
you ask for it, and have a checksum of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.columns import ColumnPlan, Want
from torch_tfrecord.errors import CorruptRecordError, IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files import Access, FileSource, is_remote, open_file, read_pieces
from torch_tfrecord.per_process import ProcessCache, each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf import find_fields, parse_message, varint
from torch_tfrecord.records import PackedRecords, RecordIndex, SidecarFormat, SidecarKeeper
from torch_tfrecord.samples import RecordPlace
from torch_tfrecord.shown import shown_text

__all__ = [
    "EpisodeFile",
    "EpisodeIndex",
    "EpisodeKeeper",
    "EpisodeReader",
    "EpisodeRecord",
    "Frames",
    "Values",
    "read_frames",
]

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes] | Frames"
_FORMAT = SidecarFormat(
    "torch_tfrecord.episodes",
    "5",
    "an episode index",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "ends": "int64", "checksums": "uint32", "pieces": "uint32"},
    max_header_bytes=4 << 20,
    lazy="pieces",
)
_PIECE_BYTES = 12
_EPISODE_BYTES = 20  # without its pieces
_MOST_PIECE_BYTES = 4  # for each byte of the record; the smallest list takes 6
_MOST_STEPS = 1 << 30  # an episode's

# A list smaller than the first, or with a mean value size below the second, is one piece: another
# read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7
_MOST_OPEN = 256  # files of each kind; descriptors have a limit of their own
_VARINT_STEPS = 1 << np.arange(7, 35, 7)  # from here on a length takes one byte more
_MOST_GAP_BYTES = 1 << 14  # between two frames that are read together: about one more of them
_PREFIX = 6  # the most bytes of the tag and length of an entry, before the key


class EpisodeFile(NamedTuple):
    """A data file, and what its index depends on.

    Attributes:
        path: Its path.
        records: Its record index.
        step_lists: Key of each step feature -> list values per step, 0 if unknown.
        access: How to reach a remote file.
    """

    path: str
    records: RecordIndex
    step_lists: Mapping[str, int]
    access: Access = Access.DEFAULT

    def identity(self) -> dict[str, str]:
        """The data that the index was built from: they must match for the index to be used."""
        records = self.records
        return {
            "file_size": str(records.file_size),
            "mtime_ns": str(records.mtime_ns),
            "fingerprint": str(records.fingerprint),
            # Other records of the same total would have other lengths.
            "records": str(crc32c(records.lengths.astype("<i8").data)),
            "step_lists": _listed(tuple(self.step_lists.items())),
        }

    def count_steps(self, counts: Mapping[str, int]) -> int | None:
        """Infer the number of steps of an episode, which no field stores, from the number of values
        of its lists; they must all agree. None if no list determines it.

        A plain list gives it by its number of values, a ragged list by its number of row lengths,
        and a list of arrays with different shapes by its number of arrays.

        Raises:
            ParseError: Two lists disagree, or a list ends inside a step.
        """
        found: dict[int, str] = {}
        for key, per_step in self.step_lists.items():
            rows = (f"{key}/ragged_row_lengths_0", f"{key}/value")
            count, rest = next((counts[row] for row in rows if row in counts), None), 0
            if key in counts:
                count, rest = divmod(counts[key], per_step) if per_step else (None, 0)
            if rest:
                raise ParseError(
                    f"feature {key!r}: expected a multiple of {per_step} values, got {counts[key]}"
                )
            if count is not None:
                found.setdefault(count, key)
            # Names both, as nobody can know which of them is wrong.
            if len(found) > 1:
                got = " and ".join(f"{count} in {key!r}" for count, key in found.items())
                raise ParseError(
                    f"expected the same number of steps in each feature of an episode, got {got}"
                )
        return next(iter(found), None)


# Thousands of shards have the same.
_listed = lru_cache(lambda items: json.dumps(dict(sorted(items))))


@lru_cache
def _keys_of(text: str) -> tuple[str, ...]:
    keys = tuple(json.loads(text))
    "".join(keys).encode()  # raises an error unless all are text
    return keys


class _KeptPieces(NamedTuple):
    """Where the pieces of a kept index stay.

    Attributes:
        path: The index.
        begin: Their first byte in it.
        checksums: uint32 [N]: CRC-32C of each episode's.
    """

    path: str
    begin: int
    checksums: npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Step counts and pieces of all episodes in one file; immutable.

    Attributes:
        file: The data file.
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records.
        ends: int64 [N]: number of pieces up to the end of each episode.
        pieces: uint32 [P, 3]: number of the key, length and CRC-32C of each piece; or where they
            stay.
    """

    file: EpisodeFile
    num_steps: Ints
    keys: tuple[str, ...]
    ends: Ints
    pieces: npt.NDArray[np.uint32] | _KeptPieces

    def span(self, number: int) -> tuple[int, int]:
        """The first of an episode's pieces, and the one after its last."""
        return int(self.ends[number - 1]) if number else 0, int(self.ends[number])


class EpisodeKeeper(SidecarKeeper[EpisodeFile, EpisodeIndex]):
    """Finds the episode index of a file, or builds and keeps it; see `SidecarKeeper`."""

    _kind = "episode index"
    _advice = "open the dataset once with index='auto'"
    _suffix = ".steps"

    def find_all(self, files: Sequence[EpisodeFile]) -> list[EpisodeIndex]:
        """The indexes of several files; shows a progress bar if building takes more than a second.

        Raises:
            IndexMismatchError: A file has no fresh index, with the policy "require".
            TFRecordError: A file to be indexed is damaged, or an episode's features disagree.
        """
        at_once = each_at_once if any(is_remote(file.path) for file in files) else map
        finding = at_once(self.find, files)
        found = [
            next(finding) for _ in ProgressBar(files, "indexing episodes", unit="file", delay=1.0)
        ]
        self.warn_of_displaced()
        return found

    def _loaded(self, data: EpisodeFile, place: str) -> EpisodeIndex:
        """Read what `_packed` wrote for the same file; the pieces stay there, and those of an
        episode are checked when they are read.

        Raises:
            IndexMismatchError: The index is damaged, has another format or version, is larger than
                an index of these records can be, or belongs to other records or features.
            OSError: The file cannot be opened.
        """
        records = data.records

        def most_bytes(metadata: Mapping[str, str]) -> int:
            # The time of a copy in a storage is that of its upload, whose ends were compared.
            is_copy = is_remote(data.path) and records.fingerprint is not None
            for name, expected in data.identity().items():
                if metadata[name] != expected and not (is_copy and name == "mtime_ns"):
                    raise IndexMismatchError(
                        f"the episode index does not match the current file and features: expected {name} "
                        f"{shown_text(expected, 200)}, got {shown_text(metadata[name], 200)}"
                    )
            return _EPISODE_BYTES * len(records)

        found = _FORMAT.read(place, most_bytes, access=data.access)
        num_steps, ends, checksums = found.arrays.values()
        counts = np.array(ends)
        counts[1:] -= ends[:-1]
        try:
            keys = _keys_of(found.metadata["keys"])
            if {len(array) for array in found.arrays.values()} != {len(records)}:
                raise ValueError(f"one of {len(num_steps)} episodes instead of {len(records)}")
            # Negative numbers are large ones without a sign.
            if np.count_nonzero(num_steps.view(np.uint64) > _MOST_STEPS):
                raise ValueError("impossible numbers of steps")
            # A sparse file may claim gigabytes, which must not be allocated.
            most = records.lengths * (_MOST_PIECE_BYTES if records._has_ranges else 0)
            are_wrong = counts.view(np.uint64) > most // _PIECE_BYTES
            if np.count_nonzero(are_wrong) or 3 * counts.sum() != found.places["pieces"].length:
                raise ValueError("pieces that do not follow one another")
        except (TypeError, ValueError, RecursionError) as error:
            raise IndexMismatchError(
                f"expected an episode index written by torch_tfrecord, got {error}", path=place
            ) from error
        kept = _KeptPieces(place, found.places["pieces"].begin, checksums)
        return EpisodeIndex(data, num_steps, keys, ends, kept)

    def _packed(self, data: EpisodeFile, found: EpisodeIndex) -> bytes:
        """Serialize a built index as a safetensors file, with the pieces last.

        Raises:
            OSError: There are more keys than `_loaded` accepts.
        """
        pieces = np.asarray(found.pieces)
        parts = (pieces[slice(*found.span(number))] for number in range(len(data.records)))
        checksums = np.array([crc32c(part.astype("<u4").data) for part in parts], np.uint32)
        own = {"num_steps": found.num_steps, "ends": found.ends, "pieces": pieces.ravel()}
        metadata = data.identity() | {"keys": json.dumps(found.keys)}
        return _FORMAT.pack(metadata, own | {"checksums": checksums})

    def _build(self, data: EpisodeFile) -> EpisodeIndex:
        """Read every record of a file, check its CRC, and cut it into pieces.

        Raises:
            CorruptRecordError, ParseError: A record is damaged, is not an Example, or its features
                have different numbers of steps; names the file, the record and the features.
        """
        records, num_steps = data.records, []
        stream = records._open_records(data.path, data.access)
        pieces = [np.zeros((0, 3), np.uint32)]
        numbers: dict[str, int] = {}  # the keys'
        for number in range(len(records)):
            try:
                payload = records._read(stream, number)
                borders, counts = _cut(payload)
                steps = data.count_steps(counts)
                if steps is None:
                    raise ParseError(
                        "expected a feature that determines the number of steps, got none of "
                        + ", ".join(map(repr, data.step_lists))
                    )
            except TFRecordError as error:
                offset = records._offset(number)
                raise error.locate(
                    path=data.path, offset=offset, position=number
                ) from error.__cause__
            num_steps.append(steps)
            view = memoryview(payload)
            rows = [
                (name, stop - start, crc32c(view[start:stop]))
                # Parts of a compressed record cannot be read.
                for key, cuts in (borders if records._has_ranges else {}).items()
                for name in [numbers.setdefault(key, len(numbers))]
                for start, stop in pairwise(cuts)
            ]
            # A third of the time of `np.array`, which looks at each tuple as a sequence.
            pieces.append(np.fromiter(chain.from_iterable(rows), np.uint32).reshape(-1, 3))
        ends = np.cumsum([*map(len, pieces[1:])], dtype=np.int64)
        return EpisodeIndex(
            data, np.array(num_steps, np.int64), tuple(numbers), ends, np.concatenate(pieces)
        )


# The lists of a record.


def _wrap(content: bytes) -> bytes:
    """The field 1 of a message, which has this content."""
    return b"\n" + varint(len(content)) + content


def _cut(payload: bytes) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The borders of each list's pieces by its key, in record order, none if they cannot be read on
    their own; and the number of values of each list.

    Raises:
        ParseError: The bytes are not an Example.
    """
    features = dict(parse_message(payload).features.feature)
    counts = {
        key: len(getattr(feature, kind).value)
        for key, feature in features.items()
        if (kind := feature.WhichOneof("kind"))
    }
    borders: dict[str, list[int]] = {}
    try:
        [(_, _, start, stop)] = find_fields(payload)
        for _, _, begin, end in find_fields(payload, start, stop):
            (_, _, *name), (_, _, *feature) = find_fields(payload, begin, end)
            key, num_bytes = payload[slice(*name)].decode(), feature[1] - feature[0]
            values = features[key].bytes_list.value
            lengths = np.fromiter(map(len, values), np.int64)
            # Each with its tag and the bytes of its length.
            sizes = (lengths + 2 + _VARINT_STEPS.searchsorted(lengths, "right")).tolist()
            total = sum(sizes)
            content = b"\n" + varint(total) if sizes else b""
            entry = _wrap(key.encode()) + b"\x12" + varint(num_bytes)
            head = b"\n" + varint(len(entry) + num_bytes) + entry + content
            # Other libraries may read what they wrote in their own way: such records are read as a
            # whole, also those of a length in more bytes than it needs.
            is_usual = not sizes or num_bytes == len(content) + total
            if key in borders or not is_usual or not payload.startswith(head, start):
                return {}, counts
            borders[key] = [start, end]
            if total >= max(_MIN_FRAMES_BYTES, _MIN_FRAME_BYTES * len(sizes)):
                borders[key] = [start, *accumulate(sizes, initial=end - total)]
            start = end
    except (IndexError, KeyError, ValueError):
        return {}, counts
    return borders, counts


# Reading.
#
# Each part is checked against its checksum in the index. The index is not trusted for what a list
# is: the key in each entry is checked against it, and entries are parsed as the Example that they
# are part of. If they differ, the whole record is read and its own CRC shows whether the record or
# the index is damaged. A record without pieces is read whole and checked with its own CRC.


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

    def places(self, file: int, number: int) -> dict[str, Ints]:
        """Where the lists of an episode are in its record's payload, by key, in record order.

        Each is int64 [pieces, 3]: start, length and CRC-32C of its entry; with more than one row,
        of what comes before its values, then of each value with its tag and length. Empty for
        a record that must be read as a whole.

        Raises:
            IndexMismatchError: The pieces are damaged, or do not fill the payload.
        """
        index, kept = self.indexes[file], self.indexes[file].pieces
        first, stop = index.span(number)
        if first == stop:
            return {}
        if isinstance(kept, _KeptPieces):
            # Read one by one: those of a large dataset take gigabytes.
            source = self._sidecars.find(file, lambda _: open_file(kept.path, index.file.access))
            begin, end = (kept.begin + _PIECE_BYTES * piece for piece in (first, stop))
            found = source.read(end - begin, begin)
            expected = int(kept.checksums[number])
            # A cache may have had damaged bytes.
            if crc32c(found) != expected and source.forget(begin, end):
                found = source.read(end - begin, begin)
            got = crc32c(found)
            if got != expected:
                raise IndexMismatchError(
                    f"the episode index at {kept.path}: expected places of lists with checksum {expected:#010x}, "
                    f"got {got:#010x}: remove it, and it is built again"
                )
            pieces = np.frombuffer(found, "<u4").reshape(-1, 3)
        else:
            pieces = kept[first:stop]
        num_bytes = index.file.records.lengths[number]
        keys, table = pieces[:, 0], pieces.astype(np.int64)
        # The starts, in place of the keys.
        table[:, 0] = num_bytes - table[::-1, 1].cumsum()[::-1]
        # The pieces of a list follow one another.
        starts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        names = keys[starts[:-1]].tolist()
        is_known = max(names) < len(index.keys) and len({*names}) == len(names)
        # Before the first are the tag and length of the map of features.
        if not (is_known and 2 <= table[0, 0] <= 6):
            raise IndexMismatchError(
                f"the episode index: expected lists that fill {num_bytes} bytes, got others"
            )
        spans = zip(names, pairwise(starts), strict=True)
        return {index.keys[name]: table[slice(*span)] for name, span in spans}


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
            places = self.reader.places(self.file, self.number)
            lists = self._placed(places, wants) if places else _parse(self._whole(), wants)
            # Positions come from the index.
            expected, wrong = int(self._index.num_steps[self.number]), ""
            try:
                steps = self._index.file.count_steps({key: len(lists[key]) for key in lists})
            except ParseError as error:
                steps, wrong = -1, error.args[0]
            if steps not in (None, expected):
                wrong = wrong or f"expected {expected} steps, got lists of {steps}"
                raise IndexMismatchError(f"the episode index: {wrong}")
            return lists
        except TFRecordError as error:
            raise self.locate(error) from error.__cause__

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
        table = np.array([rows[0] for rows in places.values()])
        heads = table.tolist()
        # Only the keys are read of lists that are not wanted.
        sizes = [
            size if key in wanted or len(rows) > 1 else min(size, len(_field_of(key)) + _PREFIX)
            for (key, rows), (_, size, _) in zip(places.items(), heads, strict=True)
        ]
        lengths, files = np.array(sizes, np.int64), np.full(len(sizes), self.file)
        read = read_pieces(self.reader.data, files, table[:, 0] + self.begin, lengths)
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
            return _parse(_wrap(b"".join(entries)), wants) | frames
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


@lru_cache(1 << 12)
def _field_of(key: str) -> bytes:
    """The bytes of a key in its entry."""
    return _wrap(key.encode())


@lru_cache(1 << 12)  # pictures of a camera have similar sizes
def _head_of(num_bytes: int) -> bytes:
    """The tag and length of a value that takes so many bytes with these."""
    heads = (b"\n" + varint(max(num_bytes - size, 0)) for size in range(2, 7))
    return next((head for size, head in enumerate(heads, 2) if len(head) == size), b"\0")


@lru_cache(maxsize=64)
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
                strings, seen = column.strings(bytes), dict[bytes, bytes]()
                values = [*map(seen.setdefault, strings, strings)]
            lists[want.key] = values
    return lists


class Frames:
    """The values of a long bytes_list, such as encoded images, read on demand.

    Args:
        record: The record.
        key: Key of the list.
        places: Their rows of `EpisodeReader.places`.

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
        """The values of steps `first` to `stop` - 1: see `read_frames`."""
        return read_frames([(self, first, stop)])[0] if first < stop else []


def read_frames(
    windows: Sequence[tuple[Frames, int, int]], *, is_again: bool = False
) -> list[list[bytes]]:
    """The values of windows, each from a step to before another one, of lists of the same reader: all in a
    few calls, those of a storage at once; again where a cache had damaged bytes.

    Raises:
        CorruptRecordError: The checksum of a value is wrong; names the file, the first window's
            record, the key and the step.
        IndexMismatchError: That record is intact, but the episode index does not match it.
    """
    if not windows:
        return []
    record, found = windows[0][0].record, list[list[bytes]]()
    rows_of = [frames.places[first:stop] for frames, first, stop in windows]
    # The values of a list follow one another: a window is one piece of its file.
    ends = [(rows[0, 0], rows[-1, 0] + rows[-1, 1]) for rows in rows_of]
    begins, stops = np.array(ends, np.int64).T
    files = np.array([frames.record.file for frames, _, _ in windows])
    try:
        buffer, places = read_pieces(
            record.reader.data, files, begins, stops - begins, most_gap=_MOST_GAP_BYTES
        )
        shifts = (places - begins).tolist()
        for (frames, first, _), rows, shift in zip(windows, rows_of, shifts, strict=True):
            found.append([])
            for step, (begin, size, crc) in enumerate(rows.tolist(), first):
                value = buffer.data[begin + shift : begin + shift + size]
                if crc32c(value) != crc:
                    raise _wrong_checksum(f"feature {frames.key!r}, step {step}", value, crc)
                head = _head_of(size)
                # No index is built for lengths in more bytes than they need.
                if value[: len(head)] != head:
                    raise CorruptRecordError(
                        f"feature {frames.key!r}: expected values of other lengths"
                    )
                # A copy: the buffer is one for many episodes, and a sample may live long.
                found[-1].append(bytes(value[len(head) :]))
    except CorruptRecordError as error:
        blamed = record.blame(error)
        # A cache had damaged bytes, perhaps, before the whole record was read.
        if isinstance(blamed, IndexMismatchError) and not is_again:
            return read_frames(windows, is_again=True)
        # Those who read several records do so again, one by one.
        raise record.locate(blamed) from error.__cause__
    except TFRecordError as error:
        raise record.locate(error) from error.__cause__
    return found


def _wrong_checksum(what: str, data: bytes | memoryview, expected: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"corrupted record: {what}: expected checksum {expected:#010x} (from the episode index), got "
        f"{crc32c(data):#010x} ({len(data)} bytes)"
    )
