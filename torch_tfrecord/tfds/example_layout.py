"""The location of the lists in a serialized tf.train.Example, so that parts of a long record can be
read on their own.

Only the canonical encoding is read, which protobuf and TensorFlow write (protobuf's wire format,
each field once)::

    Example   0A <length>  entries
    entry     0A <length>  ( 0A <length> key   12 <length> Feature )
    Feature   0A <length>  ( 0A <length> value )*          a bytes_list
              12 <length>  ( 0A <length> floats )          a float_list: 4 bytes each, little-endian
              1A <length>  ( 0A <length> varints )         an int64_list

Other encodings that protobuf accepts (split messages, unknown fields, unpacked numbers, duplicate
keys) are converted to it by protobuf, see `canonical`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import ParseError
from torch_tfrecord.protobuf.example import parse_message

__all__ = [
    "BYTES",
    "FLOATS",
    "INTEGERS",
    "UNSET",
    "ListLayout",
    "canonical",
    "decode_integers",
    "entry_head",
    "example_head_bytes",
    "find_entries",
    "key_head",
    "split_values",
    "value_head",
    "value_head_bytes",
    "value_starts",
]

UNSET, BYTES, FLOATS, INTEGERS = 0, 1, 2, 3
"""Kinds of lists, by their field number in a Feature; `UNSET` if the Feature has no list."""

_FIRST_FIELD, _SECOND_FIELD, _THIRD_FIELD = 0x0A, 0x12, 0x1A
_KINDS = {_FIRST_FIELD: BYTES, _SECOND_FIELD: FLOATS, _THIRD_FIELD: INTEGERS}
_TAGS = {kind: tag for tag, kind in _KINDS.items()}
_FLOAT_BYTES = 4
_MAX_VARINT_BYTES = 10
_LENGTH_LIMIT = 1 << 31  # protobuf's message size limit
# From each of these lengths on, a varint takes one more byte.
_HEAD_BORDERS = np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28], np.int64)


class ListLayout(NamedTuple):
    """The kind of one list, and the location of its values in the record's payload.

    Attributes:
        kind: `BYTES`, `FLOATS`, `INTEGERS` or `UNSET`.
        num_values: Number of values.
        start: First byte; for a bytes_list, the tag of its first value.
        num_bytes: Size in bytes, up to the end of the last value.
        lengths: Size in bytes of each value of a bytes_list; empty for numbers.
    """

    kind: int
    num_values: int
    start: int
    num_bytes: int
    lengths: tuple[int, ...] = ()


class _OtherForm(Exception):  # noqa: N818 - not an error: falls back to protobuf
    """The bytes are not in the canonical encoding."""


def canonical(payload: bytes) -> bytes:
    """Re-encode an Example in the form that `find_entries` reads.

    Raises:
        ParseError: The bytes are not an Example.
    """
    message = parse_message(payload)
    message.DiscardUnknownFields()
    message.features.SetInParent()
    return bytes(message.SerializeToString(deterministic=True))


def find_entries(payload: bytes) -> dict[str, ListLayout] | None:
    """Key -> location of its list, in byte order; None if the encoding is not canonical.

    Example:
        >>> find_entries(bytes.fromhex("0a0c0a0a0a016112051a030a0105"))
        {'a': ListLayout(kind=3, num_values=1, start=13, num_bytes=1, lengths=())}
    """
    try:
        return dict(_lists(payload))
    except (_OtherForm, IndexError, UnicodeDecodeError):
        return None


def _lists(payload: bytes) -> Iterator[tuple[str, ListLayout]]:
    seen = set()
    at, end = _field(payload, 0, len(payload), _FIRST_FIELD)
    if end != len(payload):
        raise _OtherForm
    while at < end:
        at, entry_end = _field(payload, at, end, _FIRST_FIELD)
        start, at = _field(payload, at, entry_end, _FIRST_FIELD)
        key = payload[start:at].decode()
        start, at = _field(payload, at, entry_end, _SECOND_FIELD)
        if at != entry_end or key in seen:
            raise _OtherForm
        seen.add(key)
        yield key, _list(payload, start, at) if start < at else ListLayout(UNSET, 0, start, 0)


def _list(payload: bytes, at: int, end: int) -> ListLayout:
    kind = _KINDS.get(payload[at])
    start, stop = _field(payload, at, end, payload[at])
    if kind is None or stop != end:
        raise _OtherForm
    if kind == BYTES:
        lengths, at = [], start
        while at < end:
            first, at = _field(payload, at, end, _FIRST_FIELD)
            lengths.append(at - first)
        return ListLayout(BYTES, len(lengths), start, end - start, tuple(lengths))
    if start == end:  # an empty list: the field is left out
        return ListLayout(kind, 0, start, 0)
    start, stop = _field(payload, start, end, _FIRST_FIELD)
    if stop != end or (kind == FLOATS and (end - start) % _FLOAT_BYTES):
        raise _OtherForm
    content = np.frombuffer(payload, np.uint8, end - start, start)
    count = len(content) // _FLOAT_BYTES if kind == FLOATS else len(_varint_ends(content))
    return ListLayout(kind, count, start, end - start)


def _field(payload: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Start and end of the content of the field at `at`, after its tag and length."""
    if at >= end or payload[at] != tag:
        raise _OtherForm
    length = payload[at + 1]
    start = at + 2
    if length >= 0x80:
        length &= 0x7F
        shift = 7
        while True:
            byte = payload[start]
            start += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if length >= _LENGTH_LIMIT or shift > 35:
                raise _OtherForm
        # longer than needed: the location of values would not follow from their lengths
        if byte == 0:
            raise _OtherForm
    if start + length > end:
        raise _OtherForm
    return start, start + length


def _varint_ends(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Position of the last byte of each varint in these bytes."""
    ends = np.flatnonzero(data < 0x80)
    if (
        not len(ends)
        or ends[-1] != len(data) - 1
        or np.diff(ends, prepend=-1).max() > _MAX_VARINT_BYTES
    ):
        raise _OtherForm
    return ends


# The bytes before a list, and before each value of a bytes_list, follow from their lengths alone.


def example_head_bytes(payload_bytes: int) -> int | None:
    """Number of bytes before the first entry of an Example of this size; None if no Example has
    this size.

    Example:
        >>> example_head_bytes(129), example_head_bytes(130), example_head_bytes(131)
        (2, None, 3)
    """
    return next(
        (n for n in range(2, 8) if payload_bytes >= n == 1 + _varint_bytes(payload_bytes - n)), None
    )


def key_head(key: bytes) -> bytes:
    """The bytes of a key in its entry, with tag and length."""
    return value_head(len(key)) + key


def entry_head(key: bytes, kind: int, num_bytes: int) -> bytes:
    """The bytes before a list in an Example, from the start of its entry to the first byte of its
    values.

    Args:
        key: Bytes from `key_head`.
        kind: Kind of the list.
        num_bytes: Size of its values in bytes.

    Example:
        >>> entry_head(key_head(b"a"), INTEGERS, 1).hex()
        '0a0a0a016112051a030a01'
    """
    feature = b""
    if kind != UNSET:
        inner = value_head(num_bytes) if kind != BYTES and num_bytes else b""
        feature = value_head(len(inner) + num_bytes, _TAGS[kind]) + inner
    named = key + value_head(len(feature) + num_bytes, _SECOND_FIELD) + feature
    return value_head(len(named) + num_bytes) + named


def value_head(length: int, tag: int = _FIRST_FIELD) -> bytes:
    """The tag and length before content of this size, such as a value of a bytes_list."""
    if length < 0x80:  # the common case, and this runs several times per list and episode
        return bytes((tag, length))
    if length < 0x4000:
        return bytes((tag, length & 0x7F | 0x80, length >> 7))
    encoded = bytearray((tag, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80))
    length >>= 14
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def _varint_bytes(number: int) -> int:
    return (number.bit_length() + 6) // 7 or 1


def value_head_bytes(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Size in bytes of the tag and length before each value of a bytes_list."""
    return _HEAD_BORDERS.searchsorted(lengths, "right") + 2


def value_starts(
    start: int, lengths: npt.NDArray[np.int64], heads: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """First byte of each value of a bytes_list that begins at `start`; `heads` comes from
    `value_head_bytes`.

    Example:
        >>> lengths = np.array([3, 200, 0])
        >>> value_starts(100, lengths, value_head_bytes(lengths))
        array([102, 108, 310])
    """
    starts: npt.NDArray[np.int64] = start + np.cumsum(heads + lengths) - lengths
    return starts


def split_values(content: bytes) -> list[bytes]:
    """Split the bytes of a bytes_list into values; a text repeated in every step becomes one shared
    object.

    Raises:
        ParseError: The bytes are not a bytes_list.

    Example:
        >>> split_values(bytes.fromhex("0a01610a00"))
        [b'a', b'']
    """
    values: list[bytes] = []
    seen: dict[bytes, bytes] = {}
    at = 0
    try:
        if content:
            start, end = _field(content, 0, len(content), _FIRST_FIELD)
            count, rest = divmod(len(content), end)
            # an instruction repeated in every step
            if not rest and content == content[:end] * count:
                return [content[start:end]] * count
        while at < len(content):
            start, at = _field(content, at, len(content), _FIRST_FIELD)
            values.append(seen.setdefault(content[start:at], content[start:at]))
    except (_OtherForm, IndexError):
        raise ParseError(
            f"expected a list of bytes, got {len(content)} bytes that cannot be parsed"
        ) from None
    return values


def decode_integers(content: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Decode the packed bytes of an int64_list to a writable int64 array that owns its memory.

    Raises:
        ParseError: The bytes are not packed integers.

    Example:
        >>> decode_integers(bytes([5, 0x80, 0x02]))
        array([  5, 256])
    """
    data = np.frombuffer(content, np.uint8)
    if (data < 0x80).all():
        return data.astype(np.int64)
    try:
        ends = _varint_ends(data)
    except _OtherForm:
        raise ParseError(
            f"expected packed integers, got {len(data)} bytes that cannot be parsed"
        ) from None
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(data)) - np.repeat(starts, ends + 1 - starts)
    parts = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)
