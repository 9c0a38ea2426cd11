"""Some entries of a serialized tf.train.Example: what is not asked for is neither parsed nor copied."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["select_entries"]

_FIRST_FIELD = 0x0A  # of Example (features), of Features (an entry of the map), of an entry (its key)
_LENGTH_LIMIT = 1 << 31


def select_entries(serialized: bytes | bytearray | memoryview, keys: Collection[bytes]) -> bytes | None:
    """An Example with only the entries of these keys, in their order.

    Args:
        serialized: In the form that protobuf and TensorFlow write: one Features, in it entries, each with its key
            first.
        keys: UTF-8.

    Returns:
        The bytes; None where they are of another form, and protobuf must read all of them.

    Example:
        >>> select_entries(bytes.fromhex("0a0c0a0a0a016112051a030a0105"), [b"b"]).hex()
        '0a00'
    """
    view = memoryview(serialized)
    chosen = []
    try:
        at, end = _field(view, 0, len(view))
        if end != len(view):
            return None
        while at < end:
            start = at
            content, at = _field(view, at, end)
            key_start, key_end = _field(view, content, at)
            if view[key_start:key_end].tobytes() in keys:
                chosen.append(view[start:at])
    except (IndexError, ValueError):
        return None
    entries = b"".join(chosen)
    return bytes([_FIRST_FIELD]) + _varint(len(entries)) + entries


def _field(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Start and end of the content of a field with the number 1 and a length."""
    if view[at] != _FIRST_FIELD:
        raise ValueError
    length = view[at + 1]
    start = at + 2
    if length >= 0x80:
        length, shift = length & 0x7F, 7
        while True:
            byte = view[start]
            start += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if length >= _LENGTH_LIMIT or shift > 35:
                raise ValueError
    if start + length > end:
        raise ValueError
    return start, start + length


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
