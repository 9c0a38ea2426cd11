"""The episode index of a data file: the number of steps of each episode, and the location and
checksum of its lists.

It is stored next to the record index, under the name that the index of ``<data file>.steps`` would
have. Building it takes one pass that checks every record's CRC. With it, the number of steps of a
dataset is known at once, and a sample reads only its own frames, each checked against its own
checksum, instead of whole records of many megabytes. The location tables stay in the file and are
read one by one.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.array_record import (
    FileIndex,
    has_ranges,
    open_records,
    read_record,
    record_offset,
)
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.index_keeper import Kept, SidecarKeeper
from torch_tfrecord.records.sidecar import SidecarFormat, pack, read_sidecar
from torch_tfrecord.tfds.episode_places import (
    ROW_WORDS,
    ListPlace,
    count_steps,
    find_places,
    is_usual,
    read_table,
    write_table,
)
from torch_tfrecord.tfds.example_layout import UNSET, key_head

__all__ = ["EpisodeIndex", "EpisodeIndexKeeper", "build_episode_index"]

_NAME = ".steps"
_FORMAT = SidecarFormat(
    "torch_tfrecord.episodes",
    "3",
    "an episode index",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "table_ends": "int64", "table_crcs": "int64", "tables": "uint8"},
    max_header_bytes=4 << 20,
)
_EPISODE_BYTES = 24  # per episode, without the tables
# The smallest list takes 8 bytes in the record and 24 in the table; a frame takes at least 128 and
# 8.
_MOST_TABLE_BYTES = 4
_MOST_STEPS = 1 << 30  # of an episode whose size in bytes is not known


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Step counts and list locations of all episodes in one file; immutable.

    Attributes:
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records, sorted: the rows of a table.
        table_ends: int64 [N]: end of each episode's table within the concatenated tables.
        table_crcs: int64 [N]: CRC-32C of each table.
        step_lists: See `build_episode_index`.
        tables: The concatenated tables; None if they stay in the file `tables_path`, starting at
            `tables_offset`.
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
        """First byte and size in bytes of an episode's table within the concatenated tables."""
        start = int(self.table_ends[number - 1]) if number else 0
        return start, int(self.table_ends[number]) - start

    def places(self, number: int, table: bytes, payload_bytes: int) -> dict[str, ListPlace] | None:
        """The list locations in an episode's table, by key, in record order, including those of
        kind `UNSET`.

        None for a record that must be read as a whole.

        Raises:
            IndexMismatchError: The table's checksum is wrong, its lists do not fill the payload, or
                their number of steps differs.
        """
        if crc32c(table) != self.table_crcs[number]:
            raise IndexMismatchError(
                f"expected a table with checksum {int(self.table_crcs[number]):#010x} in the episode index, "
                f"got {crc32c(table):#010x} ({len(table)} bytes)",
                position=number,
            )
        if not table:
            return None
        places = read_table(table, self.keys, self._key_heads, payload_bytes, number)
        try:
            self.check_steps(number, places)
        except ParseError as error:
            raise IndexMismatchError(
                f"the episode index: {error.args[0]}", position=number
            ) from error
        return places

    def check_steps(self, number: int, places: Mapping[str, ListPlace]) -> None:
        """Raise IndexMismatchError unless these lists have the number of steps given in the
        index.
        """
        steps = count_steps(places, self.step_lists)
        if steps != self.num_steps[number]:
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
        arrays = {
            "num_steps": self.num_steps,
            "table_ends": self.table_ends,
            "table_crcs": self.table_crcs,
        }
        return pack(
            _FORMAT, metadata, {**arrays, "tables": np.frombuffer(self.tables or b"", np.uint8)}
        )

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
    found: list[tuple[int, dict[str, ListPlace] | None]] = []
    for number in range(len(records)):
        try:
            payload = read_record(stream, records, number)
            places, placed = find_places(payload)
            has_table = placed is payload and has_ranges(records) and is_usual(places, len(payload))
            found.append((count_steps(places, step_lists), places if has_table else None))
        except TFRecordError as error:
            offset = record_offset(records, number)
            raise error.locate(
                path=stream.path, offset=offset, position=number
            ) from error.__cause__
    keys = tuple(sorted({key for _, places in found for key in places or ()}))
    numbers = {key: number for number, key in enumerate(keys)}
    tables = [b"" if places is None else write_table(places, numbers) for _, places in found]
    return EpisodeIndex(
        np.array([steps for steps, _ in found], np.int64),
        keys,
        np.cumsum([len(table) for table in tables], dtype=np.int64),
        np.array([crc32c(table) for table in tables], np.int64),
        step_lists,
        b"".join(tables),
    )


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


# The file.


def _identity(records: FileIndex, step_lists: Mapping[str, int]) -> dict[str, str]:
    """What the index was built from: it must match for the index to be used."""
    return {
        "file_size": str(records.file_size),
        "mtime_ns": str(records.mtime_ns),
        "fingerprint": "" if records.fingerprint is None else str(records.fingerprint),
        "records": str(_records_number(records)),
        "step_lists": json.dumps(dict(sorted(step_lists.items()))),
    }


def _records_number(records: FileIndex) -> int:
    """A number that differs if the records do."""
    return (
        crc32c(records.lengths.astype("<i8").data)
        if isinstance(records, RecordIndex)
        else len(records)
    )


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
        table_bytes = _MOST_TABLE_BYTES * int(records.lengths.sum()) if has_ranges(records) else 0
        return _EPISODE_BYTES * len(records) + table_bytes + 4 * len(records)

    found = read_sidecar(path, _FORMAT, most_bytes, access=access)
    num_steps, ends, crcs, tables = (found.arrays[name] for name in _FORMAT.arrays)
    keys = json.loads(found.metadata["keys"])
    if (
        not isinstance(keys, list)
        or not all(isinstance(key, str) for key in keys)
        or len(set(keys)) != len(keys)
    ):
        raise IndexMismatchError("expected distinct text keys in the episode index, got others")
    for key in keys:
        key.encode()  # rejects lone surrogates
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


def _steps_of_keys(keys: Sequence[str], step_lists: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """The number of list values per step for each key; 0 if the list does not determine it."""
    own = set(keys)
    per_step = {key: per_step for key, per_step in step_lists.items() if 0 < per_step < 1 << 62}
    for key in step_lists:
        per_step |= {
            key + suffix: 1 for suffix in ("/ragged_row_lengths_0", "/value") if key not in own
        }
    return np.array([per_step.get(key, 0) for key in keys], np.int64)


def _check_tables(
    num_steps: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    tables: npt.NDArray[np.uint8],
    records: FileIndex,
    per_step: npt.NDArray[np.int64],
) -> None:
    """Check the step counts of all episodes against their lists: positions depend on these counts
    alone.
    """
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(ends)]
    if ((begins > ends) | (begins < 0) | (ends % 4 != 0)).any() or (
        ends[-1] if len(ends) else 0
    ) != len(tables):
        raise IndexMismatchError("expected contiguous tables in the episode index, got others")
    most = records.lengths if isinstance(records, RecordIndex) else _MOST_STEPS
    if ((num_steps < 0) | (num_steps > most)).any():
        raise IndexMismatchError(
            "expected at most one step per byte in the episode index, got more"
        )
    words = tables.view("<u4")
    there = np.flatnonzero(ends > begins)
    counts = words[begins[there] // 4].astype(np.int64)
    if (1 + ROW_WORDS * counts > (ends - begins)[there] // 4).any():
        raise IndexMismatchError("expected complete tables in the episode index, got others")
    firsts = begins[there] // 4 + 1 - ROW_WORDS * (np.cumsum(counts) - counts)
    rows = np.repeat(firsts, counts) + ROW_WORDS * np.arange(int(counts.sum()))
    keys, kinds, values = (words[rows + number].astype(np.int64) for number in range(3))
    if (keys >= len(per_step)).any():
        raise IndexMismatchError("expected tables with known keys in the episode index, got others")
    steps, expected = per_step[keys], num_steps[np.repeat(there, counts)]
    tells = (steps > 0) & (kinds != UNSET)
    wrong = tells & (
        (values % np.maximum(steps, 1) != 0) | (values // np.maximum(steps, 1) != expected)
    )
    if wrong.any():
        episode = int(np.repeat(there, counts)[np.flatnonzero(wrong)[0]])
        raise IndexMismatchError(
            "the episode index: expected the number of steps that its lists have, got another",
            position=episode,
        )
