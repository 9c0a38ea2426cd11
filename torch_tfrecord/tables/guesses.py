"""What a record is that is no Example: by the fields of its message, without showing their values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from torch_tfrecord.errors import ParseError
from torch_tfrecord.protobuf import find_fields, parse_message

__all__ = ["guess_message", "is_bare"]

_INTEGER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS = {_INTEGER: "integer", _FIXED64: "8 bytes", _BYTES: "bytes or message", _FIXED32: "4 bytes"}
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
    # An Example is a SequenceExample without steps: field 1 means the same in both.
    message = parse_message(record, "SequenceExample")
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
        # A record of megabytes may have millions of fields; the first tell what it is.
        found = itertools.islice(find_fields(record), _MOST_FIELDS)
        fields = [(number, kind, record[begin:end]) for number, kind, begin, end in found]
    except (IndexError, ValueError):
        return None
    # First: its fields 1 and 2 would fit other messages, too.
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
        features = [parse_message(content).features.feature for _, _, content in fields]
        return any(
            feature.WhichOneof("kind") for keys in features for feature in keys.values()
        ) and all(is_bare(content) for _, _, content in fields)
    except ParseError:
        return False
