"""Records found in files: which ones to look at, and what each of them is.

A few are spread over all files and over each of them, at a bounded cost. A plain file is read at
equal distances of bytes, each time the next record from there on: that needs no index, and only
short reads of a file of any size. Small and compressed files are read from their beginning, as far
as the cost allows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import OnError
from torch_tfrecord.columns import decode_text
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.files import Access, is_remote, open_file
from torch_tfrecord.json_text import parse_json
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.protobuf import decode_sequence_example, find_fields, parse_message
from torch_tfrecord.records import (
    OVERHEAD_BYTES,
    RecordReader,
    SkippedBytes,
    open_stream,
    read_blocks,
)

__all__ = [
    "Decoded",
    "FoundRecord",
    "Values",
    "all_read",
    "guess_message",
    "read_text",
    "spread_records",
]

Values: TypeAlias = "npt.NDArray[np.int64] | npt.NDArray[np.float32] | list[bytes]"
Decoded: TypeAlias = "tuple[dict[str, Values], dict[str, list[Values]]]"
"""A record's context and feature lists; an Example is a context without lists."""

_MOST_BYTES = 1 << 28  # read in all
_MOST_BYTES_EACH = 1 << 22  # for each record that is wanted
_MOST_KEPT = 1 << 12  # records of a file that is read from its beginning, then every second of them
_SMALL_FILE = 1 << 20  # is read as a whole
_SMALL_FILES = 1 << 26  # all together
_FIRST_WINDOW, _FIRST_REMOTE_WINDOW = 1 << 12, 1 << 16  # searched for a record, then twice as much

_INTEGER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS = {_INTEGER: "integer", _FIXED64: "8 bytes", _BYTES: "bytes or message", _FIXED32: "4 bytes"}
_MOST_FIELDS = 10_000  # that are looked at
_MOST_SHOWN = 8

# The name of a message, how its fields are stored, and those that it always has: from TensorFlow's
# event.proto, and scenario.proto and dataset.proto of the Waymo Open Dataset.
_KNOWN = (
    (
        "a TensorFlow event, as in tfevents files",
        {1: (_FIXED64,), 2: (_INTEGER,), **dict.fromkeys(range(3, 11), (_BYTES,))},
        {1},
    ),
    (
        "a Waymo Scenario",
        {1: (_FIXED64, _BYTES), **dict.fromkeys((2, 5, 7, 8, 11, 12, 13), (_BYTES,))}
        | {4: (_INTEGER, _BYTES), 6: (_INTEGER,), 10: (_INTEGER,)},
        {2, 5},
    ),
    (
        "a Waymo Frame",
        {2: (_INTEGER,), **dict.fromkeys((1, *range(3, 12)), (_BYTES,))},
        {1, 2},
    ),
)
# A protobuf message may look like these, too.
_VAGUE = ("an unknown format", "an image truncated in its first bytes")


class FoundRecord(NamedTuple):
    """A record and its place; `position` in its file is None where no index says it."""

    path: str
    position: int | None
    offset: int
    payload: bytes

    @classmethod
    def all_of(
        cls,
        path: str,
        access: Access = Access.DEFAULT,
        on_error: OnError = "raise",
        report: Callable[[str, SkippedBytes], None] | None = None,
    ) -> Iterator[FoundRecord]:
        """All records of a file; see `read_blocks`."""
        file = open_file(path, access).ahead()
        for block in read_blocks(file, "auto", verify_crc=True, on_error=on_error, report=report):
            for number, payload in enumerate(block.payloads or ()):
                yield cls(path, block.position + number, int(block.offsets[number]), payload)

    def decode(self) -> Decoded:
        """Decode an Example, or a SequenceExample, which alone has feature lists.

        protobuf takes most short texts, and other messages, for an Example without features.

        Raises:
            ParseError: It is neither; says what it looks like, and which spec reads it.
        """
        record = self.payload
        with suppress(ParseError):
            context, lists = sample = decode_sequence_example(record)
            found = itertools.chain(context.values(), *lists.values())
            # or at least says their kind
            has_values = any(isinstance(values, np.ndarray) or values for values in found)
            if has_values or (_is_bare(record) and "ELWC" not in str(guess_message(record))):
                return sample
        looks, spec = self.looks_like()
        raise ParseError(
            f"expected an Example or SequenceExample, got {len(record)} bytes that look like {looks}: "
            f"features={spec} reads them"
        )

    def looks_like(self) -> tuple[str, str]:
        """The kind of a record that is no Example, and the `features` that read it.

        Example:
            >>> FoundRecord("", 0, 0, b"a line of text").looks_like()
            ('text', 'Text()')
        """
        record = self.payload
        from torch_tfrecord.media import guess_content, image_format  # imports Pillow

        image = image_format(record)
        if image is not None:
            return f"a {image.upper()} image", "Image()"
        content = guess_content(record)
        if content in (*_VAGUE, "text"):
            if all_read(read_text, [record]):
                return (
                    ("JSON text", "Json()")
                    if all_read(parse_json, [record])
                    else ("text", "Text()")
                )
            message = guess_message(record)
            if message is not None:
                return message, "ListFeatures(...)" if "ELWC" in message else "Proto(...)"
        return content, "None"


# The kind of a record.


def all_read(read: Callable[[bytes], object], values: Sequence[bytes]) -> bool:
    """Whether ``read`` accepts all values; False if there are none, or only empty ones."""
    try:
        for value in values:
            read(value)
    except TFRecordError:
        return False
    return any(values)


def read_text(value: bytes) -> str:
    """Decode a text without control characters but tabs and line ends; ParseError if it is none."""
    text = decode_text(value)
    if not re.sub("[\t\n\r]", "", text).isprintable():
        raise ParseError("expected printable text")
    return text


def _is_bare(record: bytes) -> bool:
    """Whether the bytes of an Example or SequenceExample are all of that message, with no fields of
    another one.
    """
    # An Example is a SequenceExample without steps: field 1 means the same in both.
    message = parse_message(record, "SequenceExample")
    message.DiscardUnknownFields()
    return message.ByteSize() == len(record)


def guess_message(record: bytes) -> str | None:
    """The message that a record contains, by its fields, without showing their values; None if it is no
    message.

    Example:
        >>> guess_message(bytes.fromhex("09000000000000f03f1001"))
        'a TensorFlow event, as in tfevents files'
    """
    try:
        # A record of megabytes may have millions of fields; the first show what it is.
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
        ) and all(_is_bare(content) for _, _, content in fields)
    except ParseError:
        return False


# Some records of many.


def spread_records(
    paths: Sequence[str], num_records: int, access: Access = Access.DEFAULT
) -> Iterator[FoundRecord]:
    """Records spread as evenly as their files allow, the first record of the first file among them.

    Args:
        paths: The files. Small ones are read whole: below 64 MiB in all, and of compressed ones the
            first 64 MiB. If there are more than `num_records` others, as many are looked at, spread over all.
        num_records: How many; fewer if there are fewer, or if they are so long that more would cost
            too much.
        access: How remote files are reached.

    Raises:
        TFRecordError: A file is damaged in the part that is read, or is no TFRecord file; records
            before come first.
        OSError: A file cannot be opened.
    """
    sizes = itertools.accumulate(open_file(path, access).file_size for path in paths)
    is_small = all(size < _SMALL_FILES for size in sizes)
    wanted = len(paths) if is_small else min(num_records, len(paths))
    chosen = np.linspace(0, len(paths) - 1, wanted).round().astype(int).tolist()
    found, left = 0, _SMALL_FILES if is_small else _MOST_BYTES
    for number, choice in enumerate([*chosen, *sorted({*range(len(paths))} - {*chosen})]):
        if found and number >= wanted:
            return  # others only where these had no record at all
        # If a file has fewer records than its share, later files make up for it.
        files_left = max(wanted - number, 1)
        share = _SMALL_FILES if is_small else -(-(num_records - found) // files_left)
        limit = left if is_small else min(left // files_left, share * _MOST_BYTES_EACH)
        # elsewhere in each file, as few records of many files are looked at
        begin = number / wanted % 1
        for record in _spread(paths[choice], share, begin, max(limit, 1), access):
            found, left = found + 1, left - len(record.payload)
            yield record


def _spread(
    path: str, wanted: int, begin: float, limit: int, access: Access
) -> Iterator[FoundRecord]:
    file = open_file(path, access)
    _, compression = open_stream(file, "auto")
    is_small = file.file_size <= min(_SMALL_FILE, limit)
    reader = RecordReader()
    length = None if compression or is_small else reader.length(file, 0)
    # what is wrong is found by reading
    if length is None or wanted >= file.file_size:
        yield from _from_beginning(path, wanted, begin, limit, access)
        return
    # Fewer of long ones: up to three of their length are read for each.
    wanted = -(-wanted // (1 + 3 * length * wanted // limit))
    begins = [int((number + begin) / wanted * file.file_size) for number in range(wanted)]
    far = is_remote(path)
    window = _FIRST_REMOTE_WINDOW if far else _FIRST_WINDOW
    search = partial(reader.next, file, window=window, most=max(limit // wanted, 2 * length))
    records = each_at_once(search, begins) if far else map(search, begins)
    seen = {
        offset: FoundRecord(path, None if offset else 0, offset, payload)
        for offset, payload in filter(None, records)
    }
    # long records, or the file is damaged: reading it says how
    if not seen or (0 in begins and 0 not in seen):
        first = next(FoundRecord.all_of(path, access))
        seen = {first.offset: first, **seen}
    yield from seen.values()


def _from_beginning(
    path: str, wanted: int, begin: float, limit: int, access: Access
) -> Iterator[FoundRecord]:
    """Records of the beginning of a file; where it is damaged those before the damage, then the
    error.
    """
    kept: list[FoundRecord] = []
    step, num_bytes = 1, 0
    try:
        for number, record in enumerate(FoundRecord.all_of(path, access)):
            num_bytes += len(record.payload) + OVERHEAD_BYTES
            if number % step == 0:
                kept.append(record)
            if num_bytes > limit:
                break
            if len(kept) > max(_MOST_KEPT, 2 * wanted):
                kept, step = kept[::2], 2 * step
    finally:  # where a file is damaged, those before the damage come first
        count = min(wanted, len(kept))
        places = (np.arange(count) + begin) * (len(kept) / max(count, 1))
        for place in places.astype(int).tolist():
            yield kept[place]
