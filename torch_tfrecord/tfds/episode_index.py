"""The index of a file of episodes: how many steps each has, and where its lists lie, with a checksum of each part.

It stands beside the record index and is built in one pass that checks every record's CRC. With it the length of a
dataset in steps is known at once, and a sample reads its frames alone, each held against its own checksum, in place of
records of many megabytes. The tables of places stay in the file and are read one by one.

A table is uint32 words, little-endian: the number of lists; for each, in the order of the record's bytes, ``key, kind,
count, num_bytes, crc``; then for each list of kind `FRAMES` its values' lengths and CRC-32Cs. Where the lists lie
follows: they fill the record. It is empty for a record in another form than the usual one, or in a compressed file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.compression import ByteSource
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.sidecar_file import SidecarFormat, pack, read_sidecar
from torch_tfrecord.tfds.example_layout import (
    BYTES,
    FLOATS,
    INTEGERS,
    UNSET,
    ListLayout,
    canonical,
    entry_head,
    example_head_bytes,
    find_entries,
    key_head,
    value_head_bytes,
    value_starts,
)

__all__ = ["FRAMES", "EpisodeIndex", "ListPlace", "build_episode_index", "count_steps", "find_places"]

FRAMES = 4
"""Kind of a bytes_list whose values are large enough to be read one by one."""

_FORMAT = SidecarFormat(
    "torch_tfrecord.episodes",
    "2",
    "an index of episodes",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "table_ends": "int64", "table_crcs": "int64", "tables": "uint8"},
    max_header_bytes=4 << 20,
)
_EPISODE_BYTES = 24  # of the arrays but the tables
# The smallest list has 8 bytes in the record and 24 in the table, a frame at least 128 and 8.
_MOST_TABLE_BYTES = 4
_ROW_WORDS = 5

# A list below the first, or with values below the second in the mean, is read as a whole: another read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7


class ListPlace(NamedTuple):
    """Where a list lies in its record's payload, and the checksums of its parts.

    Attributes:
        kind: `BYTES`, `FLOATS`, `INTEGERS`, `FRAMES`, or `UNSET`.
        num_values: How many.
        start: First byte, in the payload.
        num_bytes: Bytes of all values, of bytes with the tags between them.
        crc: CRC-32C of these bytes; 0 for `FRAMES`, where each value has its own.
        starts: int64 [num_values], of `FRAMES` each value's first byte in the payload; else empty.
        lengths: int64 [num_values]: bytes of each.
        heads: int64 [num_values]: bytes of the tag and the length in front of each.
        crcs: int64 [num_values]: CRC-32C of each, with its tag and its length in front of it.
        head: What stands before the list in its record, from the start of its entry; empty where nothing is held
            against it.
    """

    kind: int
    num_values: int
    start: int
    num_bytes: int
    crc: int
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.int64]
    head: bytes = b""


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Steps and places of all episodes of one file; immutable.

    Attributes:
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records, sorted: the rows of a table.
        table_ends: int64 [N]: where each episode's table ends, in the bytes of all tables.
        table_crcs: int64 [N]: CRC-32C of each table.
        step_lists: Of `build_episode_index`.
        tables: The tables themselves; None where they stay in the file `tables_path`, from `tables_offset` on.
    """

    num_steps: npt.NDArray[np.int64]
    keys: tuple[str, ...]
    table_ends: npt.NDArray[np.int64]
    table_crcs: npt.NDArray[np.int64]
    step_lists: Mapping[str, int]
    tables: bytes | None
    tables_path: str = ""
    tables_offset: int = 0
    _key_heads: list[bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key_heads", [key_head(key.encode()) for key in self.keys])

    def __len__(self) -> int:
        return len(self.num_steps)

    def table_range(self, number: int) -> tuple[int, int]:
        """First byte and number of bytes of an episode's table, in the bytes of all tables."""
        start = int(self.table_ends[number - 1]) if number else 0
        return start, int(self.table_ends[number]) - start

    def places(self, number: int, table: bytes, payload_bytes: int) -> dict[str, ListPlace] | None:
        """The places that an episode's table names, by key, in the order of the record's bytes, with those of kind
        `UNSET`; None for a record that must be read as a whole.

        Raises:
            IndexMismatchError: the table has another checksum, its lists do not fill the payload, or they have another
                number of steps.
        """
        if crc32c(table) != self.table_crcs[number]:
            raise IndexMismatchError(
                f"expected a table with checksum {int(self.table_crcs[number]):#010x} in the index of episodes, "
                f"got {crc32c(table):#010x} ({len(table)} bytes)",
                position=number,
            )
        if not table:
            return None
        places = _read_table(table, self.keys, self._key_heads, payload_bytes, number)
        try:
            self.check_steps(number, places)
        except ParseError as error:
            raise IndexMismatchError(f"the index of episodes: {error.args[0]}", position=number) from error
        return places

    def check_steps(self, number: int, places: Mapping[str, ListPlace]) -> None:
        """Raise IndexMismatchError unless these lists have as many steps as the index says."""
        steps = count_steps(places, self.step_lists)
        if steps != self.num_steps[number]:
            raise IndexMismatchError(
                f"the index of episodes: expected {int(self.num_steps[number])} steps, got lists of {steps}",
                position=number,
            )

    def to_bytes(self, records: RecordIndex) -> bytes:
        """The index as a safetensors file; the tables come last in it.

        Raises:
            OSError: there are more keys than would be read again.
        """
        metadata = _identity(records, self.step_lists) | {"keys": json.dumps(self.keys)}
        arrays = {"num_steps": self.num_steps, "table_ends": self.table_ends, "table_crcs": self.table_crcs}
        return pack(_FORMAT, metadata, {**arrays, "tables": np.frombuffer(self.tables or b"", np.uint8)})

    @classmethod
    def load(cls, path: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
        """Read what `to_bytes` wrote, of the same records; the tables are checked, and left in the file.

        Raises:
            IndexMismatchError: damaged, of another format or version, larger than one of these records, or not of
                these records and features.
            OSError: the file cannot be opened.
        """
        try:
            return _load(path, records, step_lists)
        except (ValueError, RecursionError, MemoryError) as error:
            raise IndexMismatchError(
                f"expected an index of episodes written by torch_tfrecord, got {error}", path=path
            ) from error
        except IndexMismatchError as error:
            raise error.locate(path=path) from None


def build_episode_index(stream: ByteSource, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
    """Read every record of a file, check its CRC, and note where its lists lie.

    Args:
        stream: The (decompressed) file.
        records: Its index.
        step_lists: Key of each feature of the steps -> values of one step, 0 where that is not known.

    Raises:
        CorruptRecordError, ParseError: a record is damaged, is no Example, or its features have different numbers of
            steps; names the file, the record and the features.
    """
    reader = RecordReader()
    found: list[tuple[int, dict[str, ListPlace] | None]] = []
    for number, (offset, length) in enumerate(zip(records.offsets.tolist(), records.lengths.tolist(), strict=True)):
        try:
            payload = reader.read(stream, offset, length)
            places, placed = find_places(payload)
            is_usual = placed is payload and not records.compression_type and _fill(places, length)
            found.append((count_steps(places, step_lists), places if is_usual else None))
        except TFRecordError as error:
            raise error.locate(path=stream.path, offset=offset, position=number) from error.__cause__
    return _assemble(found, step_lists)


def find_places(payload: bytes) -> tuple[dict[str, ListPlace], bytes]:
    """The places of a record's lists, and the bytes that they lie in: its own, or those of its `canonical` form.

    Keys whose kind is not set have a place of kind `UNSET`.

    Raises:
        ParseError: The bytes are no Example.
    """
    lists = find_entries(payload)
    if lists is None:
        payload = canonical(payload)
        lists = find_entries(payload) or {}
    view = memoryview(payload)
    return {key: _place(view, found) for key, found in lists.items()}, payload


def _place(payload: memoryview, found: ListLayout) -> ListPlace:
    is_large = found.num_bytes >= _MIN_FRAMES_BYTES and found.num_bytes >= _MIN_FRAME_BYTES * found.num_values
    if found.kind != BYTES or not is_large:
        crc = crc32c(payload[found.start : found.start + found.num_bytes])
        return ListPlace(found.kind, found.num_values, found.start, found.num_bytes, crc, _NONE, _NONE, _NONE, _NONE)
    lengths = np.array(found.lengths, np.int64)
    heads = value_head_bytes(lengths)
    starts = value_starts(found.start, lengths, heads)
    ends = (starts + lengths).tolist()
    crcs = np.array([crc32c(payload[start:end]) for start, end in zip([found.start, *ends], ends, strict=False)])
    crcs = crcs.astype(np.int64)
    return ListPlace(FRAMES, found.num_values, found.start, found.num_bytes, 0, starts, lengths, heads, crcs)


def _fill(places: Mapping[str, ListPlace], payload_bytes: int) -> bool:
    """Whether the lists lie where their sizes alone say: an empty list may be written in two ways."""
    at = example_head_bytes(payload_bytes)
    for key, place in places.items():
        head = entry_head(key_head(key.encode()), _wire_kind(place.kind), place.num_bytes)
        if at is None or place.start != at + len(head):
            return False
        at = place.start + place.num_bytes
    return at == payload_bytes


def _wire_kind(kind: int) -> int:
    return BYTES if kind == FRAMES else kind


def count_steps(places: Mapping[str, ListPlace], step_lists: Mapping[str, int]) -> int:
    """The number of steps of an episode: it is stored nowhere, so every list that tells it must tell the same.

    A list tells it by its number of values; one of rows of different lengths by the number of its row lengths; one of
    arrays of different shapes by the number of its arrays.

    Raises:
        ParseError: two lists disagree, a list ends inside a step, or none tells it.
    """
    first: tuple[str, int] | None = None
    for key, per_step in step_lists.items():
        steps = _steps_of(places, key, per_step)
        if steps is None:
            continue
        if first is not None and first[1] != steps:
            raise ParseError(
                f"expected as many steps in each feature of an episode, got {first[1]} in {first[0]!r} and "
                f"{steps} in {key!r}"
            )
        first = first or (key, steps)
    if first is None:
        raise ParseError(
            f"expected a feature that tells the number of steps, got none of {', '.join(map(repr, step_lists))}"
        )
    return first[1]


def _steps_of(places: Mapping[str, ListPlace], key: str, per_step: int) -> int | None:
    for suffix in ("/ragged_row_lengths_0", "/value"):
        if not _is_set(places, key) and _is_set(places, key + suffix):
            return places[key + suffix].num_values
    if not _is_set(places, key) or not per_step:
        return None
    steps, rest = divmod(places[key].num_values, per_step)
    if rest:
        raise ParseError(f"feature {key!r}: expected a multiple of {per_step} values, got {places[key].num_values}")
    return steps


def _is_set(places: Mapping[str, ListPlace], key: str) -> bool:
    return key in places and places[key].kind != UNSET


_NONE = np.zeros(0, np.int64)
_NONE.flags.writeable = False


# Tables.


def _assemble(
    found: Sequence[tuple[int, Mapping[str, ListPlace] | None]], step_lists: Mapping[str, int]
) -> EpisodeIndex:
    keys = tuple(sorted({key for _, places in found for key in places or ()}))
    numbers = {key: number for number, key in enumerate(keys)}
    tables = [b"" if places is None else _write_table(places, numbers) for _, places in found]
    return EpisodeIndex(
        np.array([steps for steps, _ in found], np.int64),
        keys,
        np.cumsum([len(table) for table in tables], dtype=np.int64),
        np.array([crc32c(table) for table in tables], np.int64),
        step_lists,
        b"".join(tables),
    )


def _write_table(places: Mapping[str, ListPlace], numbers: Mapping[str, int]) -> bytes:
    rows = [[numbers[key], place.kind, place.num_values, place.num_bytes, place.crc] for key, place in places.items()]
    frames = [part for place in places.values() if place.kind == FRAMES for part in (place.lengths, place.crcs)]
    words = np.concatenate([np.array([len(rows)]), np.array(rows, np.int64).reshape(-1), *frames])
    return words.astype("<u4").tobytes()


def _read_table(
    table: bytes, keys: Sequence[str], key_heads: Sequence[bytes], payload_bytes: int, number: int
) -> dict[str, ListPlace]:
    words = np.frombuffer(table, "<u4", len(table) // 4)
    num_rows = int(words[0]) if len(words) else 0
    end = 1 + _ROW_WORDS * num_rows
    start = example_head_bytes(payload_bytes)
    if len(table) % 4 or end > len(words) or start is None:
        raise _bad_table(f"a table of an Example of {payload_bytes} bytes", f"{len(table)} bytes", number)
    rest = words[end:].astype(np.int64)
    places: dict[str, ListPlace] = {}
    at = 0
    for key, kind, count, num_bytes, crc in words[1:end].reshape(-1, _ROW_WORDS).tolist():
        if key >= len(keys) or keys[key] in places or not _is_possible(kind, count, num_bytes):
            raise _bad_table("lists of one key each", f"key {key}, kind {kind}, {count} in {num_bytes} bytes", number)
        head = entry_head(key_heads[key], _wire_kind(kind), num_bytes)
        start += len(head)
        starts = lengths = heads = crcs = _NONE
        if kind == FRAMES:
            lengths, crcs = rest[at : at + count], rest[at + count : at + 2 * count]
            at += 2 * count
            heads = value_head_bytes(lengths)
            starts = value_starts(start, lengths, heads)
            if len(crcs) != count or starts[-1] + lengths[-1] != start + num_bytes:
                raise _bad_table(f"{count} values of {keys[key]!r} in {num_bytes} bytes", "others", number)
        places[keys[key]] = ListPlace(kind, count, start, num_bytes, crc, starts, lengths, heads, crcs, head)
        start += num_bytes
    if start != payload_bytes or at != len(rest):
        raise _bad_table(f"lists that fill {payload_bytes} bytes", f"an end of {start}", number)
    return places


def _is_possible(kind: int, count: int, num_bytes: int) -> bool:
    if kind == FLOATS:
        return num_bytes == 4 * count
    if kind == INTEGERS:
        return count <= num_bytes <= 10 * count
    if kind in (BYTES, FRAMES) and count:
        return num_bytes >= 2 * count
    return kind in (BYTES, UNSET) and count == num_bytes == 0


def _bad_table(expected: str, got: str, number: int) -> IndexMismatchError:
    return IndexMismatchError(f"the index of episodes: expected {expected}, got {got}", position=number)


# The file.


def _identity(records: RecordIndex, step_lists: Mapping[str, int]) -> dict[str, str]:
    """What an index must have been built of to be used."""
    return {
        "file_size": str(records.file_size),
        "mtime_ns": str(records.mtime_ns),
        "fingerprint": "" if records.fingerprint is None else str(records.fingerprint),
        "records": str(crc32c(records.lengths.astype("<i8").data)),
        "step_lists": json.dumps(dict(sorted(step_lists.items()))),
    }


def _load(path: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
    def most_bytes(metadata: Mapping[str, str]) -> int:
        for name, expected in _identity(records, step_lists).items():
            if metadata[name] != expected:
                raise IndexMismatchError(
                    f"the index of episodes is not of this file and these features as they are now: expected {name} "
                    f"{_short(expected)}, got {_short(metadata[name])}"
                )
        table_bytes = 0 if records.compression_type else _MOST_TABLE_BYTES * int(records.lengths.sum())
        return _EPISODE_BYTES * len(records) + table_bytes + 4 * len(records)

    found = read_sidecar(path, _FORMAT, most_bytes)
    num_steps, ends, crcs, tables = (found.arrays[name] for name in _FORMAT.arrays)
    keys = json.loads(found.metadata["keys"])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise IndexMismatchError("expected keys that are different texts in the index of episodes, got others")
    for key in keys:
        key.encode()  # a lone surrogate is no key
    if not len(num_steps) == len(ends) == len(crcs) == len(records):
        raise IndexMismatchError(f"expected an index of {len(records)} episodes, got {len(num_steps)}")
    _check_tables(num_steps, ends, tables, records, _steps_of_keys(keys, step_lists))
    return EpisodeIndex(num_steps, tuple(keys), ends, crcs, step_lists, None, path, found.starts["tables"])


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def _steps_of_keys(keys: Sequence[str], step_lists: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Of each key how many values of its list are a step; 0 where the list does not tell."""
    own = set(keys)
    per_step = {key: per_step for key, per_step in step_lists.items() if 0 < per_step < 1 << 62}
    for key in step_lists:
        per_step |= {key + suffix: 1 for suffix in ("/ragged_row_lengths_0", "/value") if key not in own}
    return np.array([per_step.get(key, 0) for key in keys], np.int64)


def _check_tables(
    num_steps: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tables: npt.NDArray[np.uint8],
    records: RecordIndex,
    per_step: npt.NDArray[np.int64],
) -> None:
    """Hold the steps of all episodes against the lists that tell them: a position is found by them alone."""
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    if ((begins > ends) | (begins < 0) | (ends % 4 != 0)).any() or (ends[-1] if len(ends) else 0) != len(tables):
        raise IndexMismatchError("expected tables one behind the other in the index of episodes, got others")
    if ((num_steps < 0) | (num_steps > records.lengths)).any():
        raise IndexMismatchError("expected no more steps than bytes in the index of episodes, got others")
    words = tables.view("<u4")
    there = np.flatnonzero(ends > begins)
    counts = words[begins[there] // 4].astype(np.int64)
    if (1 + _ROW_WORDS * counts > (ends - begins)[there] // 4).any():
        raise IndexMismatchError("expected whole tables in the index of episodes, got others")
    firsts = begins[there] // 4 + 1 - _ROW_WORDS * (np.cumsum(counts) - counts)
    rows = np.repeat(firsts, counts) + _ROW_WORDS * np.arange(int(counts.sum()))
    keys, kinds, values = (words[rows + number].astype(np.int64) for number in range(3))
    if (keys >= len(per_step)).any():
        raise IndexMismatchError("expected tables of the keys in the index of episodes, got others")
    steps, expected = per_step[keys], num_steps[np.repeat(there, counts)]
    tells = (steps > 0) & (kinds != UNSET)
    wrong = tells & ((values % np.maximum(steps, 1) != 0) | (values // np.maximum(steps, 1) != expected))
    if wrong.any():
        episode = int(np.repeat(there, counts)[np.flatnonzero(wrong)[0]])
        raise IndexMismatchError(
            "the index of episodes: expected as many steps as its lists have, got others", position=episode
        )
