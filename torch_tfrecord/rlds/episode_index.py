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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.errors import IndexMismatchError, ParseError, TFRecordError
from torch_tfrecord.files import Access
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf import find_fields, parse_message, varint
from torch_tfrecord.records import RecordIndex, SidecarFormat, SidecarKeeper

__all__ = ["PIECE_BYTES", "EpisodeFile", "EpisodeIndex", "EpisodeKeeper", "wrap"]

_FORMAT = SidecarFormat(
    "torch_tfrecord.episodes",
    "4",
    "an episode index",
    ("file_size", "mtime_ns", "fingerprint", "records", "step_lists", "keys"),
    {"num_steps": "int64", "ends": "int64", "pieces": "uint32"},
    max_header_bytes=4 << 20,
)
PIECE_BYTES = 12
_EPISODE_BYTES = 16  # without its pieces
_MOST_PIECE_BYTES = 4  # for each byte of the record; the smallest list takes 6
_MOST_STEPS = 1 << 30  # an episode's

# A list smaller than the first, or with a mean value size below the second, is one piece: another
# read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7


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
        number = len(records)
        if not records._is_array_record:
            # Other records of the same total would have other lengths.
            number = crc32c(records.lengths.astype("<i8").data)
        return {
            "file_size": str(records.file_size),
            "mtime_ns": str(records.mtime_ns),
            "fingerprint": "" if records.fingerprint is None else str(records.fingerprint),
            "records": str(number),  # another one if the records are
            "step_lists": json.dumps(dict(sorted(self.step_lists.items()))),
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


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Step counts and pieces of all episodes in one file; immutable.

    Attributes:
        file: The data file.
        num_steps: int64 [N]: steps of each episode.
        keys: The keys of the file's records.
        ends: int64 [N]: number of pieces up to the end of each episode.
        pieces: uint32 [P, 3]: number of the key, length and CRC-32C of each piece; None if they
            stay in the file `path`, starting at the byte `begin`.
    """

    file: EpisodeFile
    num_steps: Ints
    keys: tuple[str, ...]
    ends: Ints
    pieces: npt.NDArray[np.uint32] | None
    path: str = ""
    begin: int = 0

    def places(self, number: int, pieces: bytes) -> dict[str, Ints] | None:
        """Where the lists of an episode are in its record's payload, by key, in record order.

        Each is int64 [pieces, 3]: start, length and CRC-32C of its entry; with more than one row,
        of what comes before its values, then of each value with its tag and length. None for a
        record that must be read as a whole.

        Raises:
            IndexMismatchError: The pieces do not fill the payload.
        """
        if not pieces:
            return None
        num_bytes = int(self.file.records.lengths[number])
        # Only whole pieces: the file may end early.
        table = np.frombuffer(pieces, "<u4", len(pieces) // PIECE_BYTES * 3).reshape(-1, 3)
        keys, table = table[:, 0], table.astype(np.int64)
        # The starts, in place of the keys.
        table[:, 0] = num_bytes - table[::-1, 1].cumsum()[::-1]
        # Before the first are the tag and length of the map of features.
        if keys.max(initial=0) >= len(self.keys) or not 2 <= table[:1, 0].sum() <= 6:
            raise IndexMismatchError(
                f"the episode index: expected lists that fill {num_bytes} bytes, got others",
                position=number,
            )
        return {self.keys[key]: table[keys == key] for key in dict.fromkeys(keys.tolist())}

    def check_steps(self, number: int, counts: Mapping[str, int]) -> None:
        """Raise IndexMismatchError unless lists with these numbers of values have the number of
        steps given in the index.
        """
        try:
            steps, wrong = self.file.count_steps(counts), ""
        except ParseError as error:
            steps, wrong = -1, error.args[0]
        expected = int(self.num_steps[number])
        if steps not in (None, expected):
            raise IndexMismatchError(
                f"the episode index: {wrong or f'expected {expected} steps, got lists of {steps}'}",
                position=number,
            )

    def to_bytes(self) -> bytes:
        """Serialize a built index as a safetensors file, with the pieces last.

        Raises:
            OSError: There are more keys than `load` accepts.
        """
        metadata = self.file.identity() | {"keys": json.dumps(self.keys)}
        pieces = np.zeros(0, np.uint32) if self.pieces is None else self.pieces.ravel()
        return _FORMAT.pack(
            metadata, {"num_steps": self.num_steps, "ends": self.ends, "pieces": pieces}
        )

    @classmethod
    def load(cls, path: str, file: EpisodeFile) -> EpisodeIndex:
        """Read what `to_bytes` wrote for the same file; the pieces are checked and stay there.

        Raises:
            IndexMismatchError: The index is damaged, has another format or version, is larger than
                an index of these records can be, or belongs to other records or features.
            OSError: The file cannot be opened.
        """
        records = file.records

        def most_bytes(metadata: Mapping[str, str]) -> int:
            for name, expected in file.identity().items():
                if metadata[name] != expected:
                    raise IndexMismatchError(
                        f"the episode index does not match the current file and features: expected {name} "
                        f"{_short(expected)}, got {_short(metadata[name])}"
                    )
            # A sparse file may claim gigabytes, which must not be allocated.
            most = int(records.lengths.sum()) if records._has_ranges else 0
            return _EPISODE_BYTES * len(records) + _MOST_PIECE_BYTES * most

        found = _FORMAT.read(path, most_bytes, access=file.access)
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
        except (TypeError, ValueError, RecursionError) as error:
            raise IndexMismatchError(
                f"expected an episode index written by torch_tfrecord, got {error}", path=path
            ) from error
        return cls(file, num_steps, keys, ends, None, path, found.places["pieces"].begin)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


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
        progress = ProgressBar(files, "indexing episodes", len(files), unit="file", delay=1.0)
        found = [*map(self.find, progress)]
        self.warn_of_displaced()
        return found

    def _loaded(self, data: EpisodeFile, place: str) -> EpisodeIndex:
        return EpisodeIndex.load(place, data)

    def _packed(self, data: EpisodeFile, found: EpisodeIndex) -> bytes:
        return found.to_bytes()

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


def wrap(content: bytes) -> bytes:
    """The field 1 of a message, which has this content."""
    return b"\n" + varint(len(content)) + content


def _cut(payload: bytes) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The borders of each list's pieces by its key, in record order, none if they cannot be read on
    their own; and the number of values of each list.

    Raises:
        ParseError: The bytes are not an Example.
    """
    message = parse_message(payload)
    message.DiscardUnknownFields()
    features = dict(message.features.feature)
    counts = {
        key: len(getattr(feature, kind).value)
        for key, feature in features.items()
        if (kind := feature.WhichOneof("kind"))
    }
    borders: dict[str, list[int]] = {}
    try:
        [(_, _, start, stop)] = find_fields(payload)
        for _, _, begin, end in find_fields(payload, start, stop):
            (_, _, *name), _ = find_fields(payload, begin, end)
            key = payload[slice(*name)].decode()
            feature = features[key]
            content = feature.SerializeToString()
            entry = wrap(key.encode()) + b"\x12" + varint(len(content)) + content
            # Other libraries may read what they wrote in their own way: such records are read as a
            # whole, also those of a length in more bytes than it needs.
            if key in borders or payload[start:end] != wrap(entry):
                return {}, counts
            sizes = [1 + len(varint(len(value))) + len(value) for value in feature.bytes_list.value]
            total = sum(sizes)
            borders[key] = [start, end]
            if total >= max(_MIN_FRAMES_BYTES, _MIN_FRAME_BYTES * len(sizes)):
                borders[key] = [start, *accumulate(sizes, initial=end - total)]
            start = end
    except (IndexError, KeyError, ValueError):
        return {}, counts
    return borders, counts
