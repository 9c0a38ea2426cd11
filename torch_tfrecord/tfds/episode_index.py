"""The index of a file of episodes: how many steps each has, and where its lists lie, with a checksum of each part.

It stands beside the record index, where that of a file named ``<data file>.steps`` would be, and is built in one pass
that checks every record's CRC. With it the length of a dataset in steps is known at once, and a sample reads its frames
alone, each held against its own checksum, in place of records of many megabytes. The tables of places stay in the file
and are read one by one.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.compression import ByteSource, open_stream
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.sidecar import SidecarKeeper
from torch_tfrecord.records.sidecar_file import SidecarFormat, pack, read_sidecar
from torch_tfrecord.records.storage import open_file
from torch_tfrecord.remote.access import DEFAULT_ACCESS, Access
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
    "2",
    "an index of episodes",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "table_ends": "int64", "table_crcs": "int64", "tables": "uint8"},
    max_header_bytes=4 << 20,
)
_EPISODE_BYTES = 24  # of the arrays but the tables
# The smallest list has 8 bytes in the record and 24 in the table, a frame at least 128 and 8.
_MOST_TABLE_BYTES = 4


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
        places = read_table(table, self.keys, self._key_heads, payload_bytes, number)
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
    def load(
        cls, path: str, records: RecordIndex, step_lists: Mapping[str, int], access: Access = DEFAULT_ACCESS
    ) -> EpisodeIndex:
        """Read what `to_bytes` wrote, of the same records; the tables are checked, and left in the file.

        Raises:
            IndexMismatchError: damaged, of another format or version, larger than one of these records, or not of
                these records and features.
            OSError: the file cannot be opened.
        """
        try:
            return _load(path, records, step_lists, access)
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
            has_table = placed is payload and not records.compression_type and is_usual(places, length)
            found.append((count_steps(places, step_lists), places if has_table else None))
        except TFRecordError as error:
            raise error.locate(path=stream.path, offset=offset, position=number) from error.__cause__
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
    """The indexes of episodes.

    Args:
        policy: See `SidecarKeeper`.
        index_dir: See there.
        access: How remote files are reached.
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
        super().__init__(policy, index_dir, "index of episodes", "open the dataset once with index='auto'")

    def indexes(
        self, files: Sequence[str], records: Sequence[RecordIndex], step_lists: Mapping[str, int]
    ) -> list[EpisodeIndex]:
        """The episode index of each file; a progress bar appears when building takes more than a second.

        Raises:
            IndexMismatchError: with the policy "require", for a file without a fresh index.
            TFRecordError: a file that must be indexed is damaged, or an episode's features disagree.
        """
        pairs = zip(files, records, strict=True)
        progress = ProgressBar(pairs, "indexing episodes", len(files), unit="file", delay=1.0)
        found = [self._index(path, record_index, step_lists) for path, record_index in progress]
        self.warn_of_displaced()
        return found

    def _index(self, path: str, records: RecordIndex, step_lists: Mapping[str, int]) -> EpisodeIndex:
        def build() -> EpisodeIndex:
            stream, _ = open_stream(open_file(path, self._access), records.compression_type)
            return build_episode_index(stream, records, step_lists)

        load = functools.partial(EpisodeIndex.load, records=records, step_lists=step_lists, access=self._access)
        return self.find(path, path + _NAME, load, build, lambda index: index.to_bytes(records))


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


def _load(path: str, records: RecordIndex, step_lists: Mapping[str, int], access: Access) -> EpisodeIndex:
    def most_bytes(metadata: Mapping[str, str]) -> int:
        for name, expected in _identity(records, step_lists).items():
            if metadata[name] != expected:
                raise IndexMismatchError(
                    f"the index of episodes is not of this file and these features as they are now: expected {name} "
                    f"{_short(expected)}, got {_short(metadata[name])}"
                )
        table_bytes = 0 if records.compression_type else _MOST_TABLE_BYTES * int(records.lengths.sum())
        return _EPISODE_BYTES * len(records) + table_bytes + 4 * len(records)

    found = read_sidecar(path, _FORMAT, most_bytes, access=access)
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
    if (1 + ROW_WORDS * counts > (ends - begins)[there] // 4).any():
        raise IndexMismatchError("expected whole tables in the index of episodes, got others")
    firsts = begins[there] // 4 + 1 - ROW_WORDS * (np.cumsum(counts) - counts)
    rows = np.repeat(firsts, counts) + ROW_WORDS * np.arange(int(counts.sum()))
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
