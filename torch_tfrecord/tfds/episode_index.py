"""The index of a file of episodes: how many steps each has, and where its lists lie, with a checksum of each part.

It stands beside the record index and is built in one pass that checks every record's CRC. With it the length of a
dataset in steps is known at once, and a sample reads its frames alone, each held against its own checksum, in place of
records of many megabytes. The tables of places stay in the file and are read one by one.

A table is uint32 words, little-endian: for each key of the file ``kind, count, start, num_bytes, crc``; then for each
list of kind `FRAMES` its values' lengths and CRC-32Cs. It is empty for a record in another form than the usual one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.records.checksum import crc32c
from torch_tfrecord.records.compression import ByteSource
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.tfds.example_layout import BYTES, ListLayout, canonical, find_lists, value_starts

__all__ = ["FRAMES", "EpisodeIndex", "ListPlace", "build_episode_index", "count_steps", "find_places"]

FRAMES = 4
"""Kind of a bytes_list whose values are large enough to be read one by one."""

_FORMAT = "torch_tfrecord.episodes"
_VERSION = "1"
_NO_LIST = 0
_PLACE = np.dtype([("kind", "<u4"), ("count", "<u4"), ("start", "<u4"), ("num_bytes", "<u4"), ("crc", "<u4")])
_SAFETENSORS_LENGTH_BYTES = 8

# A list below the first, or with values below the second in the mean, is read as a whole: another read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7


class ListPlace(NamedTuple):
    """Where a list lies in its record's payload, and the checksums of its parts.

    Attributes:
        kind: `BYTES`, `FLOATS`, `INTEGERS`, or `FRAMES`.
        num_values: How many.
        start: First byte, in the payload.
        num_bytes: Bytes of all values, of bytes with the tags between them.
        crc: CRC-32C of these bytes; 0 for `FRAMES`, where each value has its own.
        starts: int64 [num_values], of `FRAMES` each value's first byte in the payload; else empty.
        lengths: int64 [num_values]: bytes of each.
        crcs: int64 [num_values]: CRC-32C of each.
    """

    kind: int
    num_values: int
    start: int
    num_bytes: int
    crc: int
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Steps and places of all episodes of one file; immutable.

    Attributes:
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records, sorted: the rows of a table.
        table_ends: int64 [N]: where each episode's table ends, in the bytes of all tables.
        table_crcs: int64 [N]: CRC-32C of each table.
        tables: The tables themselves; None where they stay in the file `tables_path`, from `tables_offset` on.
    """

    num_steps: npt.NDArray[np.int64]
    keys: tuple[str, ...]
    table_ends: npt.NDArray[np.int64]
    table_crcs: npt.NDArray[np.int64]
    tables: bytes | None
    tables_path: str = ""
    tables_offset: int = 0

    def __len__(self) -> int:
        return len(self.num_steps)

    def table_range(self, number: int) -> tuple[int, int]:
        """First byte and number of bytes of an episode's table, in the bytes of all tables."""
        start = int(self.table_ends[number - 1]) if number else 0
        return start, int(self.table_ends[number]) - start

    def places(self, number: int, table: bytes, payload_bytes: int) -> dict[str, ListPlace] | None:
        """The places that an episode's table names, by key; None for a record that must be read as a whole.

        Raises:
            IndexMismatchError: the table has another checksum, or names bytes outside of the payload.
        """
        if crc32c(table) != self.table_crcs[number]:
            raise IndexMismatchError(
                f"expected a table with checksum {int(self.table_crcs[number]):#010x} in the index of episodes, "
                f"got {crc32c(table):#010x} ({len(table)} bytes)",
                position=number,
            )
        return _read_table(table, self.keys, payload_bytes, number) if table else None

    def to_bytes(self, records: RecordIndex, step_lists: Mapping[str, int]) -> bytes:
        """The index as a safetensors file; the tables come last in it."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "num_steps": self.num_steps,
            "table_ends": self.table_ends,
            "table_crcs": self.table_crcs,
            "tables": np.frombuffer(self.tables or b"", np.uint8),
        }
        metadata = _identity(records, step_lists) | {"keys": json.dumps(self.keys), "checksum": str(_checksum(arrays))}
        return safetensors.numpy.save(arrays, metadata=metadata)

    @classmethod
    def from_bytes(cls, content: bytes, records: RecordIndex, step_lists: Mapping[str, int], path: str) -> EpisodeIndex:
        """Read what `to_bytes` wrote, of the same records; the tables are checked, and left in the file.

        Raises:
            IndexMismatchError: damaged, of another format or version, or not of these records and features.
        """
        try:
            return _from_bytes(content, records, step_lists, path)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
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
            found.append((count_steps(places, step_lists), places if placed is payload else None))
        except TFRecordError as error:
            raise error.locate(path=stream.path, offset=offset, position=number) from error.__cause__
    return _assemble(found)


def find_places(payload: bytes) -> tuple[dict[str, ListPlace], bytes]:
    """The places of a record's lists, and the bytes that they lie in: its own, or those of its `canonical` form.

    Raises:
        ParseError: The bytes are no Example.
    """
    lists = find_lists(payload)
    if lists is None:
        payload = canonical(payload)
        lists = find_lists(payload) or {}
    view = memoryview(payload)
    return {key: _place(view, found) for key, found in lists.items()}, payload


def _place(payload: memoryview, found: ListLayout) -> ListPlace:
    is_large = found.num_bytes >= _MIN_FRAMES_BYTES and found.num_bytes >= _MIN_FRAME_BYTES * found.num_values
    if found.kind != BYTES or not is_large:
        crc = crc32c(payload[found.start : found.start + found.num_bytes])
        return ListPlace(found.kind, found.num_values, found.start, found.num_bytes, crc, _NONE, _NONE, _NONE)
    lengths = np.array(found.lengths, np.int64)
    starts = value_starts(found.start, lengths)
    spans = zip(starts.tolist(), found.lengths, strict=True)
    crcs = np.array([crc32c(payload[start : start + length]) for start, length in spans], np.int64)
    return ListPlace(FRAMES, found.num_values, found.start, found.num_bytes, 0, starts, lengths, crcs)


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
        if key not in places and key + suffix in places:
            return places[key + suffix].num_values
    if key not in places or not per_step:
        return None
    steps, rest = divmod(places[key].num_values, per_step)
    if rest:
        raise ParseError(f"feature {key!r}: expected a multiple of {per_step} values, got {places[key].num_values}")
    return steps


_NONE = np.zeros(0, np.int64)
_NONE.flags.writeable = False


# Tables.


def _assemble(found: Sequence[tuple[int, Mapping[str, ListPlace] | None]]) -> EpisodeIndex:
    keys = tuple(sorted({key for _, places in found for key in places or ()}))
    tables = [b"" if places is None else _write_table(places, keys) for _, places in found]
    return EpisodeIndex(
        np.array([steps for steps, _ in found], np.int64),
        keys,
        np.cumsum([len(table) for table in tables], dtype=np.int64),
        np.array([crc32c(table) for table in tables], np.int64),
        b"".join(tables),
    )


def _write_table(places: Mapping[str, ListPlace], keys: Sequence[str]) -> bytes:
    rows = np.zeros(len(keys), _PLACE)
    frames = []
    for number, key in enumerate(keys):
        place = places.get(key)
        if place is not None:
            rows[number] = place[:5]
            if place.kind == FRAMES:
                frames.append(np.concatenate([place.lengths, place.crcs]).astype("<u4").tobytes())
    return rows.tobytes() + b"".join(frames)


def _read_table(table: bytes, keys: Sequence[str], payload_bytes: int, number: int) -> dict[str, ListPlace]:
    if len(table) < len(keys) * _PLACE.itemsize or len(table) % 4:
        raise _bad_table(f"{len(keys)} rows", f"{len(table)} bytes", number)
    rows = np.frombuffer(table, _PLACE, len(keys)).tolist()
    words = np.frombuffer(table, "<u4", offset=len(keys) * _PLACE.itemsize).astype(np.int64)
    places: dict[str, ListPlace] = {}
    at = 0
    for key, (kind, count, start, num_bytes, crc) in zip(keys, rows, strict=True):
        if kind == _NO_LIST:
            continue
        if start + num_bytes > payload_bytes:
            raise _bad_table(f"{key!r} within {payload_bytes} bytes", f"an end of {start + num_bytes}", number)
        starts = lengths = crcs = _NONE
        if kind == FRAMES:
            lengths, crcs = words[at : at + count], words[at + count : at + 2 * count]
            starts = value_starts(start, lengths)
            at += 2 * count
            if len(crcs) != count or int(starts[-1] + lengths[-1]) != start + num_bytes:
                raise _bad_table(f"{count} values of {key!r} in {num_bytes} bytes", "others", number)
        places[key] = ListPlace(kind, count, start, num_bytes, crc, starts, lengths, crcs)
    return places


def _bad_table(expected: str, got: str, number: int) -> IndexMismatchError:
    return IndexMismatchError(f"the index of episodes: expected {expected}, got {got}", position=number)


# The file.


def _identity(records: RecordIndex, step_lists: Mapping[str, int]) -> dict[str, str]:
    """What an index must have been built of to be used."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "file_size": str(records.file_size),
        "mtime_ns": str(records.mtime_ns),
        "fingerprint": "" if records.fingerprint is None else str(records.fingerprint),
        "records": str(crc32c(records.lengths.astype("<i8").data)),
        "step_lists": json.dumps(dict(sorted(step_lists.items()))),
    }


def _checksum(arrays: Mapping[str, Any]) -> int:
    crc = 0
    for name in ("num_steps", "table_ends", "table_crcs", "tables"):
        crc = int(crc32c(np.ascontiguousarray(arrays[name]).view(np.uint8).data, crc))
    return crc


def _from_bytes(content: bytes, records: RecordIndex, step_lists: Mapping[str, int], path: str) -> EpisodeIndex:
    if not content:
        raise IndexMismatchError("expected an index of episodes written by torch_tfrecord, got an empty file")
    arrays = safetensors.numpy.load(content)
    header_end = _SAFETENSORS_LENGTH_BYTES + int.from_bytes(content[:_SAFETENSORS_LENGTH_BYTES], "little")
    header = json.loads(content[_SAFETENSORS_LENGTH_BYTES:header_end])
    metadata: dict[str, str] = header.get("__metadata__") or {}
    for name, expected in _identity(records, step_lists).items():
        if metadata.get(name) != expected:
            raise IndexMismatchError(
                f"the index of episodes is not of this file and these features as they are now: expected {name} "
                f"{expected}, got {metadata.get(name)}"
            )
    if str(_checksum(arrays)) != metadata["checksum"]:
        raise IndexMismatchError(
            f"expected arrays with checksum {metadata['checksum']} in the index of episodes, got {_checksum(arrays)}"
        )
    num_steps, ends, crcs = (arrays[name] for name in ("num_steps", "table_ends", "table_crcs"))
    if not num_steps.shape == ends.shape == crcs.shape == (len(records),) or num_steps.dtype != np.int64:
        raise IndexMismatchError(f"expected an index of {len(records)} episodes, got {num_steps.shape[0]}")
    offset = header_end + int(header["tables"]["data_offsets"][0])
    return EpisodeIndex(num_steps, tuple(json.loads(metadata["keys"])), ends, crcs, None, path, offset)
