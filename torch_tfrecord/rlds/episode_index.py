"""The episode index of a data file: the number of steps of each episode, and where its lists are.

It is stored next to the record index, under the name that the index of ``<data file>.steps`` would
have. Building it takes one pass that checks every record's CRC. With it, the number of steps of a
dataset is known at once, and a sample reads only its own frames, each checked against its own
checksum, instead of whole records of many megabytes.

A record is cut into pieces: one for each list with its key; for a long list of bytes one for its
key, and one for each of its values. A piece is three uint32: the number of its key, its length and
its CRC-32C. The pieces fill the record, so their starts follow from their lengths. An episode has
no pieces if its record must be read as a whole: in a compressed file, or in a form that no writer
uses. Pieces stay in the file, and those of an episode are read when you ask for it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.columns import (
    Column,
    ColumnPlan,
    Want,
)
from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files import Access, FileSource
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf import find_fields, parse_message, varint
from torch_tfrecord.records import (
    PackedRecords,
    RecordIndex,
    SidecarFormat,
    SidecarKeeper,
)
from torch_tfrecord.samples import DType

__all__ = [
    "EpisodeIndex",
    "build_episode_index",
    "episode_indexes",
    "frame_head",
    "key_field",
    "parse_lists",
    "wrap",
]

_NAME = ".steps"
_FORMAT = SidecarFormat(
    "torch_tfrecord.episodes",
    "4",
    "an episode index",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "ends": "int64", "pieces": "uint32"},
    max_header_bytes=4 << 20,
)
_PIECE_BYTES = 12
_EPISODE_BYTES = 16  # without its pieces
_MOST_PIECE_BYTES = 4  # for each byte of the record; the smallest list takes 6
_MOST_STEPS = 1 << 30  # an episode's

# A list smaller than the first, or with a mean value size below the second, is one piece: another
# read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Step counts and pieces of all episodes in one file; immutable.

    Attributes:
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records.
        ends: int64 [N]: number of pieces up to the end of each episode.
        step_lists: See `build_episode_index`.
        pieces: uint32 [P, 3]: number of the key, length and CRC-32C of each piece; None if they
            stay in the file `path`, starting at the byte `begin`.
    """

    num_steps: _Ints
    keys: tuple[str, ...]
    ends: _Ints
    step_lists: Mapping[str, int]
    pieces: npt.NDArray[np.uint32] | None
    path: str = ""
    begin: int = 0

    def __len__(self) -> int:
        return len(self.num_steps)

    def read(self, number: int, source: Callable[[], FileSource]) -> bytes:
        """The pieces of an episode; `source` opens the file if they are there."""
        first, stop = int(self.ends[number - 1]) if number else 0, int(self.ends[number])
        if self.pieces is not None:
            return self.pieces[first:stop].tobytes()
        size = _PIECE_BYTES * (stop - first)
        return source().read(size, self.begin + _PIECE_BYTES * first)

    def places(self, number: int, pieces: bytes, payload_bytes: int) -> dict[str, _Ints] | None:
        """Where the lists of an episode are in its record's payload, by key, in record order.

        Each is int64 [pieces, 3]: start, length and CRC-32C of its entry; with more than one row,
        of what comes before its values, then of each value with its tag and length. None for a
        record that must be read as a whole.

        Raises:
            IndexMismatchError: The pieces do not fill the payload.
        """
        if not pieces:
            return None
        # Only whole pieces: the file may end early.
        table = np.frombuffer(pieces, "<u4", len(pieces) // _PIECE_BYTES * 3).reshape(-1, 3)
        keys, table = table[:, 0], table.astype(np.int64)
        # The starts, in place of the keys.
        table[:, 0] = payload_bytes - table[::-1, 1].cumsum()[::-1]
        # Before the first are the tag and length of the map of features.
        if keys.max(initial=0) >= len(self.keys) or not 2 <= table[:1, 0].sum() <= 6:
            raise IndexMismatchError(
                f"the episode index: expected lists that fill {payload_bytes} bytes, got others",
                position=number,
            )
        return {self.keys[key]: table[keys == key] for key in dict.fromkeys(keys.tolist())}

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

    def to_bytes(self, records: RecordIndex) -> bytes:
        """Serialize a built index as a safetensors file, with the pieces last.

        Raises:
            OSError: There are more keys than `load` accepts.
        """
        metadata = _identity(records, self.step_lists) | {"keys": json.dumps(self.keys)}
        pieces = np.zeros(0, np.uint32) if self.pieces is None else self.pieces.ravel()
        return _FORMAT.pack(
            metadata, {"num_steps": self.num_steps, "ends": self.ends, "pieces": pieces}
        )

    @classmethod
    def load(
        cls,
        path: str,
        records: RecordIndex,
        step_lists: Mapping[str, int],
        access: Access = Access.DEFAULT,
    ) -> EpisodeIndex:
        """Read what `to_bytes` wrote for the same records; the pieces are checked and stay in the
        file.

        Raises:
            IndexMismatchError: The index is damaged, has another format or version, is larger than
                an index of these records can be, or belongs to other records or features.
            OSError: The file cannot be opened.
        """

        def most_bytes(metadata: Mapping[str, str]) -> int:
            for name, expected in _identity(records, step_lists).items():
                if metadata[name] != expected:
                    raise IndexMismatchError(
                        f"the episode index does not match the current file and features: expected {name} "
                        f"{_short(expected)}, got {_short(metadata[name])}"
                    )
            # A sparse file may claim gigabytes, which must not be allocated.
            most = 0
            if records._has_ranges:
                most = int(records.lengths.sum())
            return _EPISODE_BYTES * len(records) + _MOST_PIECE_BYTES * most

        found = _FORMAT.read(path, most_bytes, access=access)
        num_steps, ends, pieces = (found.arrays[name] for name in _FORMAT.arrays)
        try:
            keys = tuple(json.loads(found.metadata["keys"]))
            "".join(keys).encode()  # raises an error unless all are text
            if not len(num_steps) == len(ends) == len(records):
                raise ValueError(f"one of {len(num_steps)} episodes instead of {len(records)}")
            if ((num_steps < 0) | (num_steps > _MOST_STEPS)).any():
                raise ValueError("impossible numbers of steps")
            if (np.diff(ends, prepend=0) < 0).any() or 3 * ends[-1:].sum() != len(pieces):
                raise ValueError("pieces that do not follow one another")
            return cls(num_steps, keys, ends, step_lists, None, path, found.places["pieces"].begin)
        except (TypeError, ValueError, RecursionError) as error:
            raise IndexMismatchError(
                f"expected an episode index written by torch_tfrecord, got {error}", path=path
            ) from error


def build_episode_index(
    stream: Any, records: RecordIndex, step_lists: Mapping[str, int]
) -> EpisodeIndex:
    """Read every record of a file, check its CRC, and cut it into pieces.

    Args:
        stream: The file, from `RecordIndex._open_records`.
        records: The file's record index.
        step_lists: Key of each step feature -> list values per step, 0 if unknown.

    Raises:
        CorruptRecordError, ParseError: A record is damaged, is not an Example, or its features have
            different numbers of steps; names the file, the record and the features.
    """
    num_steps: list[int] = []
    pieces = [np.zeros((0, 3), np.uint32)]
    numbers: dict[str, int] = {}  # the keys'
    for number in range(len(records)):
        try:
            payload = records._read(stream, number)
            borders, counts = _cut(payload)
            steps = _count_steps(counts, step_lists)
            if steps is None:
                raise ParseError(
                    "expected a feature that determines the number of steps, got none of "
                    + ", ".join(map(repr, step_lists))
                )
        except TFRecordError as error:
            offset = records._offset(number)
            raise error.locate(
                path=stream.path, offset=offset, position=number
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
        np.array(num_steps, np.int64), tuple(numbers), ends, step_lists, np.concatenate(pieces)
    )


class _Data(NamedTuple):
    path: str
    records: RecordIndex


class _Keeper(SidecarKeeper[_Data, EpisodeIndex]):
    _kind = "episode index"
    _advice = "open the dataset once with index='auto'"
    _suffix = _NAME

    def __init__(
        self,
        policy: IndexPolicy,
        index_dir: str | os.PathLike[str] | None,
        step_lists: Mapping[str, int],
        access: Access,
    ) -> None:
        super().__init__(policy, index_dir)
        self._step_lists, self._access = step_lists, access

    def _loaded(self, data: _Data, place: str) -> EpisodeIndex:
        return EpisodeIndex.load(place, data.records, self._step_lists, self._access)

    def _build(self, data: _Data) -> EpisodeIndex:
        stream = data.records._open_records(data.path, self._access)
        return build_episode_index(stream, data.records, self._step_lists)

    def _packed(self, data: _Data, found: EpisodeIndex) -> bytes:
        return found.to_bytes(data.records)


def episode_indexes(
    files: Sequence[str],
    records: Sequence[RecordIndex],
    step_lists: Mapping[str, int],
    policy: IndexPolicy,
    index_dir: str | os.PathLike[str] | None,
    access: Access,
) -> list[EpisodeIndex]:
    """The episode index of each file, loaded, or built and kept; shows a progress bar if building
    takes more than a second.

    Args:
        files: The data files.
        records: The record index of each.
        step_lists: See `build_episode_index`.
        policy, index_dir: See `SidecarKeeper`.
        access: How to reach remote files.

    Raises:
        IndexMismatchError: A file has no fresh index, with the policy "require".
        TFRecordError: A file to be indexed is damaged, or an episode's features disagree.
    """
    keeper = _Keeper(policy, index_dir, step_lists, access)
    data = map(_Data, files, records)
    progress = ProgressBar(data, "indexing episodes", len(files), unit="file", delay=1.0)
    found = [*map(keeper.find, progress)]
    keeper.warn_of_displaced()
    return found


# The lists of a record.


@functools.lru_cache(maxsize=256)  # the records of a dataset mostly have the same lists
def _plan_of(lists: tuple[tuple[str, DType], ...]) -> ColumnPlan:
    return ColumnPlan([[Want(key, key, dtype, "") for key, dtype in lists]])


def parse_lists(payload: bytes, lists: Sequence[tuple[str, DType]]) -> Sequence[Column]:
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


@functools.lru_cache(1 << 12)
def key_field(key: str) -> bytes:
    """The bytes of a key in its entry."""
    return wrap(key.encode())


def wrap(content: bytes) -> bytes:
    """The field 1 of a message, which has this content."""
    return b"\n" + varint(len(content)) + content


def _is_large(num_bytes: int, num_values: int) -> bool:
    """Whether the values of a list of bytes are worth to be read one by one."""
    return num_bytes >= _MIN_FRAMES_BYTES and num_bytes >= _MIN_FRAME_BYTES * num_values


@functools.lru_cache(1 << 12)  # pictures of a camera have similar sizes
def frame_head(num_bytes: int) -> bytes:
    """The tag and length of a value that takes so many bytes with these."""
    head = b""
    for size in range(2, 7):
        head = b"\n" + varint(max(num_bytes - size, 0))
        if len(head) == size:
            break
    return head


def _cut(payload: bytes) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The borders of each list's pieces by its key, in record order, none if they cannot be read on
    their own; and the number of values of each list.

    Raises:
        ParseError: The bytes are not an Example.
    """
    lists = {
        key: getattr(feature, kind).value
        for key, feature in parse_message(payload).features.feature.items()
        if (kind := feature.WhichOneof("kind"))
    }
    counts = {key: len(values) for key, values in lists.items()}
    borders: dict[str, list[int]] = {}
    try:
        for key, is_bytes, start, first, end in _find_entries(payload):
            if key in borders:
                raise ValueError
            borders[key] = [start, end]
            if is_bytes and _is_large(end - first, counts[key]):
                sizes = [1 + len(varint(len(value))) + len(value) for value in lists[key]]
                # A length in more bytes than it needs: a reader of frames expects no such.
                if sum(sizes) != end - first or not payload.endswith(
                    b"\n" + varint(end - first), start, first
                ):
                    raise ValueError
                borders[key] = [start, *accumulate(sizes, initial=first)]
    except (IndexError, KeyError, ValueError):
        return {}, counts
    return borders, counts


def _find_entries(payload: bytes) -> Iterator[tuple[str, bool, int, int, int]]:
    """Each key, whether its list is one of bytes, the first byte of its entry, of its values, and
    the end.

    Raises:
        IndexError, KeyError, ValueError: The features are not one message of entries, each of a key
            and then a list.
    """
    [(field, _, start, stop)] = find_fields(payload)
    if field != 1:
        raise ValueError
    for field, _, begin, end in find_fields(payload, start, stop):
        (first, _, *key_span), (second, _, *feature) = find_fields(payload, begin, end)
        [(kind, _, values, _)] = [*find_fields(payload, *feature)] or [(0, 0, end, end)]
        name = payload[slice(*key_span)]
        # Other libraries may read what they wrote in their own way: such records are read as a whole.
        if (
            (field, first, second) != (1, 1, 2)
            or kind > 3
            or wrap(name) not in payload[start:values]
        ):
            raise ValueError
        yield name.decode(), kind == 1, start, values, end
        start = end


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


def _identity(records: RecordIndex, step_lists: Mapping[str, int]) -> dict[str, str]:
    """The data that the index was built from: they must match for the index to be used."""
    number = len(records)
    if not records._is_array_record:
        # Other records of the same total would have other lengths.
        number = crc32c(records.lengths.astype("<i8").data)
    return {
        "file_size": str(records.file_size),
        "mtime_ns": str(records.mtime_ns),
        "fingerprint": "" if records.fingerprint is None else str(records.fingerprint),
        "records": str(number),  # another one if the records are
        "step_lists": json.dumps(dict(sorted(step_lists.items()))),
    }


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
