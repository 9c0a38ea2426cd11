"""The episode index of a data file: the number of steps of each episode, and where its lists lie.

It is stored next to the record index, under the name that the index of ``<data file>.steps`` would
have. Building it takes one pass that checks every record's CRC. With it, the number of steps of a
dataset is known at once, and a sample reads only its own frames, each checked against its own
checksum, instead of whole records of many megabytes.

The lists of a record fill it: their entries in the Example's map of features follow one another.
So the table of an episode needs no places, only sizes. It is uint32 words: the number of lists; for
each list, in record order, ``key, values, head, size, CRC, is_frames``; then the sizes and the CRCs
of the frames. The table is empty for a record that must be read as a whole: in a compressed file,
or in a form that no writer uses. Tables stay in the file and are read one by one.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.columns.column_plan import ColumnPlan
from torch_tfrecord.columns.dtypes import BYTES_LIST, FLOAT_LIST, INT64_LIST, ListKind
from torch_tfrecord.columns.plan_parts import plain_form_of
from torch_tfrecord.columns.reading import Column, Want
from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf.messages import BytesList, find_fields
from torch_tfrecord.records.data_file import (
    FileIndex,
    has_ranges,
    open_records,
    read_record,
    record_offset,
)
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.index_keeper import Kept, SidecarKeeper
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.records.sidecar import SidecarFormat, pack, read_sidecar

__all__ = [
    "EpisodeIndex",
    "EpisodeIndexKeeper",
    "ListPlace",
    "build_episode_index",
    "is_large",
    "parse_lists",
    "wrap",
]

_NAME = ".steps"
_FORMAT = SidecarFormat(
    "torch_tfrecord.episodes",
    "3",
    "an episode index",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "table_ends": "int64", "table_crcs": "int64", "tables": "uint32"},
    max_header_bytes=4 << 20,
)
# Of a list in a table.
_ROW_WORDS = 6
_UNSET = 0xFFFFFFFF  # number of values of a feature whose kind is not set
_EPISODE_BYTES = 28  # per episode, without the tables
# The smallest list takes 8 bytes in the record and 24 in the table; a frame takes at least 128 and
# 8.
_MOST_TABLE_BYTES = 4
_MOST_STEPS = 1 << 30  # of an episode whose size in bytes is not known

# A list smaller than the first, or with a mean value size below the second, is read whole: another
# read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7
# The tag and length before a value take two bytes, and one more from each of these lengths on.
_HEAD_BORDERS = np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28], np.int64)

_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint32]


class ListPlace(NamedTuple):
    """Where a list lies in its record's payload, and the checksums of its parts.

    Attributes:
        num_values: Number of values; None if the kind of the list is not set.
        start: First byte of its entry.
        head: Bytes before the first value.
        num_bytes: Size of the entry.
        crc: CRC-32C of the entry; of the head alone if it has frames.
        frames: int64 [values, 3] of a long list of bytes: first byte of each value, its size and
            its CRC-32C, with the tag and length before the value; None for another list.
    """

    num_values: int | None
    start: int
    head: int
    num_bytes: int
    crc: int
    frames: _Ints | None = None


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Step counts and list locations of all episodes in one file; immutable.

    Attributes:
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records, sorted: the rows of a table.
        table_ends: int64 [N]: number of words up to the end of each episode's table.
        table_crcs: int64 [N]: CRC-32C of each table.
        step_lists: See `build_episode_index`.
        tables: uint32, the concatenated tables; None if they stay in the file `tables_path`,
            starting at the byte `tables_offset`.
    """

    num_steps: _Ints
    keys: tuple[str, ...]
    table_ends: _Ints
    table_crcs: _Ints
    step_lists: Mapping[str, int]
    tables: _Words | None
    tables_path: str = ""
    tables_offset: int = 0
    key_fields: Mapping[str, bytes] = field(init=False, repr=False)
    """The bytes of each key in its entry."""

    def __post_init__(self) -> None:
        # Looked for in each entry that is read; made once, as protobuf takes longer than the
        # search.
        object.__setattr__(self, "key_fields", {key: wrap(key.encode()) for key in self.keys})

    def __len__(self) -> int:
        return len(self.num_steps)

    def table_range(self, number: int) -> tuple[int, int]:
        """First and last word (exclusive) of an episode's table."""
        return int(self.table_ends[number - 1]) if number else 0, int(self.table_ends[number])

    def places(self, number: int, table: bytes, payload_bytes: int) -> dict[str, ListPlace] | None:
        """The list locations in an episode's table, by key, in record order.

        None for a record that must be read as a whole.

        Raises:
            IndexMismatchError: The table's checksum is wrong, its lists do not fill the payload, or
                their number of steps differs.
        """
        # Tables stay in the file, so that the checksum of the whole was checked when the index was
        # opened, perhaps days ago.
        if crc32c(table) != self.table_crcs[number]:
            raise IndexMismatchError(
                f"expected a table with checksum {int(self.table_crcs[number]):#010x} in the episode index, "
                f"got {crc32c(table):#010x} ({len(table)} bytes)",
                position=number,
            )
        if not table:
            return None
        words = np.frombuffer(table, "<u4").astype(np.int64)
        at = 1 + _ROW_WORDS * int(words[0])
        rows = words[1:at].reshape(-1, _ROW_WORDS)
        start = payload_bytes - int(rows[:, 3].sum())
        is_valid = 2 <= start <= 6  # the tag and length of the map of features
        places: dict[str, ListPlace] = {}
        for key, count, head, size, crc, is_frames in rows.tolist():
            is_valid &= key < len(self.keys) and self.keys[key] not in places and head <= size
            frames = None
            if is_frames:
                sizes, crcs = words[at : at + count], words[at + count : at + 2 * count]
                at += 2 * count
                ends = sizes.cumsum() + (start + head)
                is_valid &= 0 < count == len(crcs) and int(ends[-1]) == start + size
                frames = np.array([ends - sizes, sizes, crcs]).T if is_valid else None
            if not is_valid:
                break
            # A feature without a kind has no list, which is not an empty one.
            num_values = None if count == _UNSET else count
            places[self.keys[key]] = ListPlace(num_values, start, head, size, crc, frames)
            start += size
        is_valid &= at == len(words)
        if not is_valid:
            raise IndexMismatchError(
                f"the episode index: expected lists that fill {payload_bytes} bytes, got others",
                position=number,
            )
        self.check_steps(number, _counts_of(places))
        return places

    def check_steps(self, number: int, counts: Mapping[str, int]) -> None:
        """Raise IndexMismatchError unless lists with these numbers of values have the number of
        steps given in the index.
        """
        try:
            steps = _count_steps(counts, self.step_lists)
        except ParseError as error:
            raise IndexMismatchError(
                f"the episode index: {error.args[0]}", position=number
            ) from error
        if steps not in (None, self.num_steps[number]):
            raise IndexMismatchError(
                f"the episode index: expected {int(self.num_steps[number])} steps, got lists of {steps}",
                position=number,
            )

    def to_bytes(self, records: FileIndex) -> bytes:
        """Serialize the index as a safetensors file, with the tables last.

        Raises:
            OSError: There are more keys than `load` accepts.
        """
        metadata = _identity(records, self.step_lists) | {"keys": json.dumps(self.keys)}
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "num_steps": self.num_steps,
            "table_ends": self.table_ends,
            "table_crcs": self.table_crcs,
            "tables": np.zeros(0, np.uint32) if self.tables is None else self.tables,
        }
        return pack(_FORMAT, metadata, arrays)

    @classmethod
    def load(
        cls,
        path: str,
        records: FileIndex,
        step_lists: Mapping[str, int],
        access: Access = DEFAULT_ACCESS,
    ) -> EpisodeIndex:
        """Read what `to_bytes` wrote for the same records; the tables are checked and stay in the
        file.

        Raises:
            IndexMismatchError: The index is damaged, has another format or version, is larger than
                an index of these records can be, or belongs to other records or features.
            OSError: The file cannot be opened.
        """
        try:
            return _load(path, records, step_lists, access)
        except (ValueError, RecursionError, MemoryError) as error:
            raise IndexMismatchError(
                f"expected an episode index written by torch_tfrecord, got {error}", path=path
            ) from error
        except IndexMismatchError as error:
            raise error.locate(path=path) from None


def build_episode_index(
    stream: Any, records: FileIndex, step_lists: Mapping[str, int]
) -> EpisodeIndex:
    """Read every record of a file, check its CRC, and note the location of its lists.

    Args:
        stream: The file, from `open_records`.
        records: The file's record index.
        step_lists: Key of each step feature -> list values per step, 0 if unknown.

    Raises:
        CorruptRecordError, ParseError: A record is damaged, is not an Example, or its features have
            different numbers of steps; names the file, the record and the features.
    """
    num_steps: list[int] = []
    found: list[dict[str, ListPlace]] = []
    for number in range(len(records)):
        try:
            payload = read_record(stream, records, number)
            places = _find_places(payload)
            # Parts of a compressed or unusual record cannot be read; its steps are counted all the
            # same.
            is_placed = places is not None and has_ranges(records)
            if places is None:
                places = _find_places(plain_form_of(payload)) or {}
            steps = _count_steps(_counts_of(places), step_lists)
            if steps is None:
                raise ParseError(
                    "expected a feature that determines the number of steps, got none of "
                    + ", ".join(map(repr, step_lists))
                )
        except TFRecordError as error:
            offset = record_offset(records, number)
            raise error.locate(
                path=stream.path, offset=offset, position=number
            ) from error.__cause__
        num_steps.append(steps)
        found.append(places if is_placed else {})
    # Each key once for the file: they are most of a short record.
    keys = tuple(sorted({key for places in found for key in places}))
    numbers = {key: number for number, key in enumerate(keys)}
    tables = [_table_of(places, numbers) for places in found]
    return EpisodeIndex(
        np.array(num_steps, np.int64),
        keys,
        np.cumsum([len(table) for table in tables], dtype=np.int64),
        np.array([crc32c(table.data) for table in tables], np.int64),
        step_lists,
        np.concatenate([np.zeros(0, "<u4"), *tables]),
    )


def _table_of(places: Mapping[str, ListPlace], numbers: Mapping[str, int]) -> _Words:
    """The table of a record's lists; `numbers` maps each key to its number."""
    if not places:
        return np.zeros(0, "<u4")
    rows = [
        (
            numbers[key],
            _UNSET if each.num_values is None else each.num_values,
            *each[2:5],
            each.frames is not None,
        )
        for key, each in places.items()
    ]
    frames = [each.frames[:, 1:].T.ravel() for each in places.values() if each.frames is not None]
    return np.concatenate([[len(rows)], np.ravel(rows), *frames]).astype("<u4")


class EpisodeIndexKeeper(SidecarKeeper[EpisodeIndex]):
    """Loads, builds and stores episode indexes.

    Args:
        policy: See `SidecarKeeper`.
        index_dir: See `SidecarKeeper`.
        access: How to reach remote files.
    """

    _reloads = True

    def __init__(
        self,
        policy: IndexPolicy = "auto",
        *,
        index_dir: str | os.PathLike[str] | None = None,
        access: Access = DEFAULT_ACCESS,
    ) -> None:
        self._access = access
        super().__init__(
            policy, index_dir, "episode index", "open the dataset once with index='auto'"
        )

    def indexes(
        self, files: Sequence[str], records: Sequence[FileIndex], step_lists: Mapping[str, int]
    ) -> list[EpisodeIndex]:
        """The episode index of each file; shows a progress bar if building takes more than a
        second.

        Raises:
            IndexMismatchError: A file has no fresh index, with the policy "require".
            TFRecordError: A file to be indexed is damaged, or an episode's features disagree.
        """
        pairs = zip(files, records, strict=True)
        progress = ProgressBar(pairs, "indexing episodes", len(files), unit="file", delay=1.0)
        found = [self._index(path, record_index, step_lists) for path, record_index in progress]
        self.warn_of_displaced()
        return found

    def _index(self, path: str, records: FileIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
        def build() -> EpisodeIndex:
            return build_episode_index(
                open_records(path, records, self._access), records, step_lists
            )

        load = functools.partial(
            EpisodeIndex.load, records=records, step_lists=step_lists, access=self._access
        )
        return self.find(
            Kept(path, path + _NAME, load, build, lambda index: index.to_bytes(records))
        )


# The lists of a record.


@functools.lru_cache(maxsize=256)  # the records of a dataset mostly have the same lists
def _plan_of(lists: tuple[tuple[str, ListKind], ...]) -> ColumnPlan:
    return ColumnPlan([[Want(key, key, kind, "") for key, kind in lists]])


def parse_lists(payload: bytes, lists: Sequence[tuple[str, ListKind]]) -> Sequence[Column]:
    """The columns of these keys of one Example.

    Raises:
        ParseError: The bytes are not an Example, or a list has another kind; in general words.
    """
    if not lists:
        return ()
    # The core reads several records; this is one.
    record = PackedRecords(payload, np.zeros(1, np.int64), np.array([len(payload)], np.int64))
    [[columns]] = _plan_of(tuple(lists)).read(record, [0, 1])
    return columns


def wrap(content: bytes) -> bytes:
    """The field 1 of a message, which has this content."""
    wrapped: bytes = BytesList(value=[content]).SerializeToString()
    return wrapped


def is_large(num_bytes: int, num_values: int) -> bool:
    """Whether the values of a list of bytes are worth to be read one by one."""
    return num_bytes >= _MIN_FRAMES_BYTES and num_bytes >= _MIN_FRAME_BYTES * num_values


_KINDS = {0: None, 1: BYTES_LIST, 2: FLOAT_LIST, 3: INT64_LIST}  # by the field of the list


def _find_places(payload: bytes) -> dict[str, ListPlace] | None:
    """The place of each list by its key, in record order; None if they cannot be read on their own.

    Raises:
        ParseError: The bytes are not an Example.
    """
    try:
        entries = _find_entries(payload)
    except (IndexError, KeyError, ValueError):
        return None
    # Counting values takes the parser of Examples: numbers are packed.
    lists = [(key, kind) for key, (kind, *_) in entries.items() if kind is not None]
    columns = dict(zip([key for key, _ in lists], parse_lists(payload, lists), strict=True))
    view, places = memoryview(payload), {}
    for key, (kind, start, first, end) in entries.items():
        count = len(columns[key].values) if key in columns else None
        place = ListPlace(count, start, first - start, end - start, 0)
        if kind is BYTES_LIST and is_large(end - first, count or 0):
            # Sizes with tag and length follow from the lengths of the values.
            lengths = columns[key].values[:, 1]
            sizes = lengths + 2 + _HEAD_BORDERS.searchsorted(lengths, "right")
            ends = first + np.cumsum(sizes)
            if ends[-1] != end:  # a length in more bytes than it needs
                return None
            spans = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
            crcs = np.array([crc32c(view[begin:stop]) for begin, stop in spans], np.int64)
            place = place._replace(frames=np.stack([ends - sizes, sizes, crcs], axis=1))
        checked = view[start : end if place.frames is None else first]
        places[key] = place._replace(crc=crc32c(checked))
    return places


def _find_entries(payload: bytes) -> dict[str, tuple[ListKind | None, int, int, int]]:
    """Key -> the kind of its list, the first byte of its entry, of its values, and the end.

    Raises:
        IndexError, KeyError, ValueError: The features are not one message of entries, each of a key
            and then a list.
    """
    found: dict[str, tuple[ListKind | None, int, int, int]] = {}
    [(field, _, start, stop)] = find_fields(payload)
    if field != 1:
        raise ValueError
    for field, _, begin, end in find_fields(payload, start, stop):
        (first, _, *key_span), (second, _, *feature) = find_fields(payload, begin, end)
        [(kind, _, values, _)] = [*find_fields(payload, *feature)] or [(0, 0, end, end)]
        name = payload[slice(*key_span)]
        key, is_usual = name.decode(), wrap(name) in payload[start:values]
        # Whoever wrote anything else may read it in its own way: such records are read as a whole.
        if (field, first, second) != (1, 1, 2) or key in found or not is_usual:
            raise ValueError
        found[key] = _KINDS[kind], start, values, end
        start = end
    return found


def _counts_of(places: Mapping[str, ListPlace]) -> dict[str, int]:
    return {key: place.num_values for key, place in places.items() if place.num_values is not None}


def _count_steps(counts: Mapping[str, int], step_lists: Mapping[str, int]) -> int | None:
    """Infer the number of steps of an episode, which no field stores, from the number of values of
    its lists; they must all agree. None if no list determines it.

    A plain list gives it by its number of values, a ragged list by its number of row lengths, and a
    list of arrays with different shapes by its number of arrays.

    Raises:
        ParseError: Two lists disagree, or a list ends inside a step.
    """
    first: tuple[str, int] | None = None
    for key, per_step in step_lists.items():
        steps = _steps_of(counts, key, per_step)
        if steps is None:
            continue
        # Names both, as nobody can know which of them is wrong.
        if first is not None and first[1] != steps:
            raise ParseError(
                f"expected the same number of steps in each feature of an episode, got {first[1]} in {first[0]!r} and "
                f"{steps} in {key!r}"
            )
        first = first or (key, steps)
    return None if first is None else first[1]


def _steps_of(counts: Mapping[str, int], key: str, per_step: int) -> int | None:
    if key not in counts:
        rows = (counts.get(key + suffix) for suffix in ("/ragged_row_lengths_0", "/value"))
        return next((count for count in rows if count is not None), None)
    if not per_step:
        return None
    steps, rest = divmod(counts[key], per_step)
    if rest:
        raise ParseError(
            f"feature {key!r}: expected a multiple of {per_step} values, got {counts[key]}"
        )
    return steps


# The file.


def _identity(records: FileIndex, step_lists: Mapping[str, int]) -> dict[str, str]:
    """What the index was built from: it must match for the index to be used."""
    number = len(records)
    if isinstance(records, RecordIndex):
        # Other records of the same total would have other lengths.
        number = crc32c(records.lengths.astype("<i8").data)
    return {
        "file_size": str(records.file_size),
        "mtime_ns": str(records.mtime_ns),
        "fingerprint": "" if records.fingerprint is None else str(records.fingerprint),
        "records": str(number),  # another one if the records are
        "step_lists": json.dumps(dict(sorted(step_lists.items()))),
    }


def _load(
    path: str, records: FileIndex, step_lists: Mapping[str, int], access: Access
) -> EpisodeIndex:
    def most_bytes(metadata: Mapping[str, str]) -> int:
        for name, expected in _identity(records, step_lists).items():
            if metadata[name] != expected:
                raise IndexMismatchError(
                    f"the episode index does not match the current file and features: expected {name} "
                    f"{_short(expected)}, got {_short(metadata[name])}"
                )
        # A sparse file may claim gigabytes, which must not be allocated.
        table_bytes = _MOST_TABLE_BYTES * int(records.lengths.sum()) if has_ranges(records) else 0
        return _EPISODE_BYTES * len(records) + table_bytes

    found = read_sidecar(path, _FORMAT, most_bytes, access=access)
    num_steps, ends, crcs, tables = (found.arrays[name] for name in _FORMAT.arrays)
    keys = json.loads(found.metadata["keys"])
    if (
        not isinstance(keys, list)
        or not all(isinstance(key, str) for key in keys)
        or len(set(keys)) != len(keys)
    ):
        raise IndexMismatchError("expected distinct text keys in the episode index, got others")
    if not len(num_steps) == len(ends) == len(crcs) == len(records):
        raise IndexMismatchError(
            f"expected an episode index of {len(records)} episodes, got {len(num_steps)}"
        )
    _check_tables(num_steps, ends, tables, records, _steps_of_keys(keys, step_lists))
    return EpisodeIndex(
        num_steps, tuple(keys), ends, crcs, step_lists, None, path, found.places["tables"].begin
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def _steps_of_keys(keys: Sequence[str], step_lists: Mapping[str, int]) -> _Ints:
    """The number of list values per step for each key; 0 if the list does not determine it."""
    # A plain list comes first, as in `_steps_of`.
    own = set(keys)
    per_step = {key: per_step for key, per_step in step_lists.items() if 0 < per_step < 1 << 62}
    for key in step_lists:
        per_step |= {
            key + suffix: 1 for suffix in ("/ragged_row_lengths_0", "/value") if key not in own
        }
    return np.array([per_step.get(key, 0) for key in keys], np.int64)


def _check_tables(
    num_steps: _Ints, ends: _Ints, tables: _Words, records: FileIndex, per_step: _Ints
) -> None:
    """Check the step counts of all episodes against their lists: positions depend on these counts
    alone.
    """
    # Without a loop over episodes, of which there may be a million.
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    total = ends[-1] if len(ends) else 0
    if ((begins > ends) | (begins < 0)).any() or total != len(tables):
        raise IndexMismatchError("expected contiguous tables in the episode index, got others")
    most = records.lengths if isinstance(records, RecordIndex) else _MOST_STEPS
    if ((num_steps < 0) | (num_steps > most)).any():
        raise IndexMismatchError(
            "expected at most one step per byte in the episode index, got more"
        )
    # Episodes with a table.
    there = np.flatnonzero(ends > begins)
    counts = tables[begins[there]].astype(np.int64)
    if (1 + _ROW_WORDS * counts > (ends - begins)[there]).any():
        raise IndexMismatchError("expected complete tables in the episode index, got others")
    # So that adding the number of a row among all gives its place.
    firsts = begins[there] + 1 - _ROW_WORDS * (np.cumsum(counts) - counts)
    rows = np.repeat(firsts, counts) + _ROW_WORDS * np.arange(int(counts.sum()))
    keys, values = (tables[rows + number].astype(np.int64) for number in range(2))
    if (keys >= len(per_step)).any():
        raise IndexMismatchError("expected tables with known keys in the episode index, got others")
    steps, expected = per_step[keys], num_steps[np.repeat(there, counts)]
    whole, rest = np.divmod(values, np.maximum(steps, 1))
    wrong = (steps > 0) & (values != _UNSET) & ((rest != 0) | (whole != expected))
    if wrong.any():
        episode = int(np.repeat(there, counts)[np.flatnonzero(wrong)[0]])
        raise IndexMismatchError(
            "the episode index: expected the number of steps that its lists have, got another",
            position=episode,
        )
