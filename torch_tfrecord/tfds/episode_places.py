"""The location of an episode's lists in its record, and the table that stores them in an episode
index.

A table is little-endian uint32 words: the number of lists; for each list, in record order, ``key,
kind, count, num_bytes, crc``; then, for each list of kind `FRAMES`, the lengths and CRC-32Cs of its
values. The locations follow from the sizes, as the lists fill the record. The table is empty for a
record in a non-canonical encoding, or in a compressed file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import IndexMismatchError, ParseError
from torch_tfrecord.files.checksum import crc32c
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

__all__ = [
    "FRAMES",
    "ROW_WORDS",
    "ListPlace",
    "count_steps",
    "find_places",
    "is_usual",
    "read_table",
    "write_table",
]

FRAMES = 4
"""Kind of a bytes_list with values large enough to be read one by one."""
ROW_WORDS = 5
"""Words per list in a table."""

# A list smaller than the first, or with a mean value size below the second, is read whole: another
# read costs more.
_MIN_FRAMES_BYTES = 1 << 14
_MIN_FRAME_BYTES = 1 << 7

_NONE = np.zeros(0, np.int64)
_NONE.flags.writeable = False


class ListPlace(NamedTuple):
    """The location of a list in its record's payload, and the checksums of its parts.

    Attributes:
        kind: `BYTES`, `FLOATS`, `INTEGERS`, `FRAMES`, or `UNSET`.
        num_values: Number of values.
        start: First byte in the payload.
        num_bytes: Bytes of all values; for a bytes_list, including the tags between them.
        crc: CRC-32C of these bytes; 0 for `FRAMES`, where each value has its own.
        head: The bytes before the list in its record, from the start of its entry; empty if they
            are not checked.
        starts: int64 [num_values] for `FRAMES`: first byte of each value in the payload; else
            empty.
        lengths: int64 [num_values]: size of each value in bytes.
        heads: int64 [num_values]: size in bytes of the tag and length before each value.
        crcs: int64 [num_values]: CRC-32C of each value, including its tag and length.
    """

    kind: int
    num_values: int
    start: int
    num_bytes: int
    crc: int
    head: bytes = b""
    starts: npt.NDArray[np.int64] = _NONE
    lengths: npt.NDArray[np.int64] = _NONE
    heads: npt.NDArray[np.int64] = _NONE
    crcs: npt.NDArray[np.int64] = _NONE


def find_places(payload: bytes) -> tuple[dict[str, ListPlace], bytes]:
    """Find a record's lists, and return them with the bytes they refer to: the payload or its
    `canonical` form.

    Keys without a list have a place of kind `UNSET`.

    Raises:
        ParseError: The bytes are not an Example.
    """
    lists = find_entries(payload)
    if lists is None:
        payload = canonical(payload)
        lists = find_entries(payload) or {}
    view = memoryview(payload)
    return {key: _place(view, found) for key, found in lists.items()}, payload


def _place(payload: memoryview, found: ListLayout) -> ListPlace:
    num_values, start, end = found.num_values, found.start, found.start + found.num_bytes
    is_large = (
        found.num_bytes >= _MIN_FRAMES_BYTES and found.num_bytes >= _MIN_FRAME_BYTES * num_values
    )
    if found.kind != BYTES or not is_large:
        return ListPlace(found.kind, num_values, start, found.num_bytes, crc32c(payload[start:end]))
    lengths = np.array(found.lengths, np.int64)
    heads = value_head_bytes(lengths)
    starts = value_starts(start, lengths, heads)
    parts = zip((starts - heads).tolist(), (starts + lengths).tolist(), strict=True)
    crcs = np.array([crc32c(payload[begin:end]) for begin, end in parts], np.int64)
    return ListPlace(
        FRAMES, num_values, start, found.num_bytes, 0, b"", starts, lengths, heads, crcs
    )


def is_usual(places: Mapping[str, ListPlace], payload_bytes: int) -> bool:
    """Whether the list locations follow from their sizes alone: an empty list has two encodings."""
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
    """Infer the number of steps of an episode, which no field stores, from its lists; they must all
    agree.

    A plain list gives it by its number of values, a ragged list by its number of row lengths, and a
    list of arrays with different shapes by its number of arrays.

    Raises:
        ParseError: Two lists disagree, a list ends inside a step, or no list determines the number
            of steps.
    """
    first: tuple[str, int] | None = None
    for key, per_step in step_lists.items():
        steps = _steps_of(places, key, per_step)
        if steps is None:
            continue
        if first is not None and first[1] != steps:
            raise ParseError(
                f"expected the same number of steps in each feature of an episode, got {first[1]} in {first[0]!r} and "
                f"{steps} in {key!r}"
            )
        first = first or (key, steps)
    if first is None:
        raise ParseError(
            f"expected a feature that determines the number of steps, got none of {', '.join(map(repr, step_lists))}"
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
        raise ParseError(
            f"feature {key!r}: expected a multiple of {per_step} values, got {places[key].num_values}"
        )
    return steps


def _is_set(places: Mapping[str, ListPlace], key: str) -> bool:
    return key in places and places[key].kind != UNSET


# Tables.


def write_table(places: Mapping[str, ListPlace], numbers: Mapping[str, int]) -> bytes:
    """Serialize the table of a record's lists; `numbers` maps each key to its number."""
    rows = [
        [numbers[key], place.kind, place.num_values, place.num_bytes, place.crc]
        for key, place in places.items()
    ]
    frames = [
        part
        for place in places.values()
        if place.kind == FRAMES
        for part in (place.lengths, place.crcs)
    ]
    words = np.concatenate([np.array([len(rows)]), np.array(rows, np.int64).reshape(-1), *frames])
    table: bytes = words.astype("<u4").tobytes()
    return table


def read_table(
    table: bytes, keys: Sequence[str], key_heads: Sequence[bytes], payload_bytes: int, number: int
) -> dict[str, ListPlace]:
    """Read the lists of an Example of `payload_bytes` bytes from its table.

    Args:
        table: Bytes from `write_table`.
        keys: Keys by their numbers.
        key_heads: `key_head` of each key.
        payload_bytes: Size of the Example.
        number: Record number, for errors.

    Raises:
        IndexMismatchError: The table is not valid for such an Example.
    """
    words = np.frombuffer(table, "<u4", len(table) // 4)
    num_rows = int(words[0]) if len(words) else 0
    end = 1 + ROW_WORDS * num_rows
    start = example_head_bytes(payload_bytes)
    if len(table) % 4 or end > len(words) or start is None:
        raise _bad(f"a table of an Example of {payload_bytes} bytes", f"{len(table)} bytes", number)
    rest = words[end:].astype(np.int64)
    places: dict[str, ListPlace] = {}
    at = 0
    for key, kind, count, num_bytes, crc in words[1:end].reshape(-1, ROW_WORDS).tolist():
        if key >= len(keys) or keys[key] in places or not _is_possible(kind, count, num_bytes):
            raise _bad(
                "lists of one key each",
                f"key {key}, kind {kind}, {count} in {num_bytes} bytes",
                number,
            )
        head = entry_head(key_heads[key], _wire_kind(kind), num_bytes)
        start += len(head)
        place = ListPlace(kind, count, start, num_bytes, crc, head)
        if kind == FRAMES:
            lengths, crcs = rest[at : at + count], rest[at + count : at + 2 * count]
            at += 2 * count
            heads = value_head_bytes(lengths)
            starts = value_starts(start, lengths, heads)
            if len(crcs) != count or starts[-1] + lengths[-1] != start + num_bytes:
                raise _bad(
                    f"{count} values of {keys[key]!r} in {num_bytes} bytes", "others", number
                )
            place = place._replace(starts=starts, lengths=lengths, heads=heads, crcs=crcs)
        places[keys[key]] = place
        start += num_bytes
    if start != payload_bytes or at != len(rest):
        raise _bad(f"lists that fill {payload_bytes} bytes", f"an end of {start}", number)
    return places


def _is_possible(kind: int, count: int, num_bytes: int) -> bool:
    if kind == FLOATS:
        return num_bytes == 4 * count
    if kind == INTEGERS:
        return count <= num_bytes <= 10 * count
    if kind in (BYTES, FRAMES) and count:
        return num_bytes >= 2 * count
    return kind in (BYTES, UNSET) and count == num_bytes == 0


def _bad(expected: str, got: str, number: int) -> IndexMismatchError:
    return IndexMismatchError(f"the episode index: expected {expected}, got {got}", position=number)
