"""Say what a record is that is no Example: a message that is often kept in TFRecord files, or
another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from torch_tfrecord.protobuf.messages import Example, SequenceExample

__all__ = ["find_fields", "guess_message", "is_bare"]

_INTEGER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS = {_INTEGER: "integer", _FIXED64: "8 bytes", _BYTES: "bytes or message", _FIXED32: "4 bytes"}
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MOST_FIELDS = 10_000  # that are looked at
_MOST_SHOWN = 8

# What it is, how its fields are stored, and those that it always has: from TensorFlow's
# event.proto, and scenario.proto and dataset.proto of the Waymo Open Dataset.
_KNOWN: tuple[tuple[str, Mapping[int, tuple[int, ...]], frozenset[int]], ...] = (
    (
        "a TensorFlow event, as in tfevents files",
        {1: (_FIXED64,), 2: (_INTEGER,), **dict.fromkeys(range(3, 11), (_BYTES,))},
        frozenset({1}),
    ),
    (
        "a Waymo Scenario",
        {1: (_FIXED64, _BYTES), **dict.fromkeys((2, 5, 7, 8, 11, 12, 13), (_BYTES,))}
        | {4: (_INTEGER, _BYTES), 6: (_INTEGER,), 10: (_INTEGER,)},
        frozenset({2, 5}),
    ),
    (
        "a Waymo Frame",
        {2: (_INTEGER,), **dict.fromkeys((1, *range(3, 12)), (_BYTES,))},
        frozenset({1, 2}),
    ),
)


def is_bare(record: bytes) -> bool:
    """Whether the bytes of an Example or SequenceExample are all of that message, with no fields of
    another one.
    """
    message = SequenceExample.FromString(record)
    message.DiscardUnknownFields()
    return bool(message.ByteSize() == len(record))


def guess_message(record: bytes) -> str | None:
    """What message a record holds, by its fields, without showing their values; None if it is no
    message.

    Example:
        >>> guess_message(bytes.fromhex("09000000000000f03f1001"))
        'a TensorFlow event, as in tfevents files'
    """
    try:
        found = itertools.islice(find_fields(record), _MOST_FIELDS)
        fields = [(number, kind, record[begin:end]) for number, kind, begin, end in found]
    except (IndexError, ValueError):
        return None
    if _is_example_list(fields):
        return "an ExampleListWithContext (ELWC)"
    kinds = {(number, kind) for number, kind, _ in fields}
    numbers = {number for number, _ in kinds}
    for name, layout, required in _KNOWN:
        if required <= numbers and all(kind in layout.get(number, ()) for number, kind in kinds):
            return name
    shown = [f"{number} ({_KINDS[kind]})" for number, kind in sorted(kinds)]
    more = ", ..." if len(shown) > _MOST_SHOWN else ""
    return f"another protobuf message, of the fields {', '.join(shown[:_MOST_SHOWN])}{more}"


def _is_example_list(fields: list[tuple[int, int, bytes]]) -> bool:
    """Whether field 1, several times, and field 2 are Examples, at least one of them with
    values.
    """
    if not all(number in (1, 2) and kind == _BYTES for number, kind, _ in fields):
        return False
    try:
        examples = [Example.FromString(content) for _, _, content in fields]
        return any(map(_has_values, examples)) and all(is_bare(content) for _, _, content in fields)
    except DecodeError:
        return False


def _has_values(example: Any) -> bool:
    return any(feature.WhichOneof("kind") for feature in example.features.feature.values())


def find_fields(
    record: bytes, at: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number and kind of each field of a message, and where its content begins and ends.

    Args:
        record: Holds the message.
        at: First byte of the message.
        end: The byte behind it; None for the end of the record.

    Raises:
        IndexError, ValueError: The bytes are no message.
    """
    end = len(record) if end is None else end
    while at < end:
        tag, at = _varint(record, at)
        number, kind = tag >> 3, tag & 7
        if kind not in _KINDS or not 0 < number < 1 << 29:
            raise ValueError
        begin = at
        if kind == _INTEGER:
            _, at = _varint(record, at)
        else:
            length = _FIXED_BYTES.get(kind)
            if length is None:
                length, begin = _varint(record, at)
            at = begin + length
        if at > end:
            raise IndexError
        yield number, kind, begin, at


def _varint(record: bytes, at: int) -> tuple[int, int]:
    """An integer of seven bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError
