"""``tfrecord show``: records as readable text, and the features to read them with."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from index_tools._features import Record, records_of
from index_tools._terminal import (
    PATHS_HELP,
    Verb,
    add_json,
    align,
    data_files,
    error_text,
    escape,
    format_size,
    integer,
    pluralize,
)
from index_tools.recipes import RECIPES
from torch_tfrecord import (
    FixedLenFeature,
    ImageDecodeError,
    IndexMismatchError,
    ListFeatures,
    ParseError,
    RecordIndex,
    TFRecordError,
    parse_tensor,
)
from torch_tfrecord.columns import Feature, make_parser
from torch_tfrecord.files import open_file
from torch_tfrecord.media import image_format, image_size
from torch_tfrecord.protobuf import parse_message
from torch_tfrecord.records import Block, IndexKeeper, RecordReader, RecordScanner, open_stream
from torch_tfrecord.shown import without_secrets
from torch_tfrecord.tables import (
    decode_record,
    features_of,
    looks_like,
    spread_records,
)

__all__ = ["SHOW", "describe_bytes", "describe_record", "describe_values", "show_record"]

_T = TypeVar("_T")
_Row: TypeAlias = tuple[str, str, str, str]
"""Indented name, kind, count and values."""

_Value: TypeAlias = "npt.NDArray[Any] | list[bytes]"
_Values: TypeAlias = "_Value | Sequence[_Value]"
"""Of a feature, or of the steps of a feature list."""

_SIDES = "<<><"

_DEFAULT_RECORDS = 3
_INFER_RECORDS = 100  # as many as `infer_features` looks at

# The most that is shown of a record.
_MAX_NUMBERS = 8
_MAX_STRINGS = 3
_MAX_STEPS = 4
_MAX_TEXT = 60  # characters
_MAX_HEX_BYTES = 12
_LAYOUT = dict.fromkeys(b"\t\n\r")  # not printable, but text has them

_DESCRIPTION = """\
Prints a line for each record with its position, file, byte offset and length, then a line for each
feature with its name, kind, number of values, and values. Text is shown as text, an image as
"jpeg 500x375, 61.2 KB" (width x height), a serialized tensor as dtype and shape, and other bytes as
hex, shortened. For compressed files the offset is that in the decompressed stream. At the end come
the features as Python code, inferred from all records, or from 100 that are spread over all files if
those have 64 MiB or more; and for images among which one does not decode, which one that is.

A record with feature lists is shown as a SequenceExample, an event of TensorBoard (a tfevents file) with its
step, tags and values. A record that is something else is not an error: TFRecord files may contain anything. What
it looks like is said, and which spec reads it.

With --as, the features are those of a well-known data set, and a record that they do not read, or whose pictures
do not decode, is an error. Save them in a file, and other verbs take it as --features.

With --json, each record is a line of JSON, with the name, kind, number and values of its features, shortened as in
text; and so are the features as code.

examples:
  tfrecord show train.tfrecord
  tfrecord show 'data/train-*' --position -1
  tfrecord show train.tfrecord --position 500 -n 10 --no-features
  tfrecord show training_tfexample.tfrecord-00000-of-01000 --as waymo-motion"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help=PATHS_HELP)
    parser.add_argument(
        "-n",
        type=integer(0),
        dest="num_records",
        metavar="N",
        help=f"number of records (default: {_DEFAULT_RECORDS}, with --position 1)",
    )
    parser.add_argument(
        "--position",
        type=int,
        metavar="P",
        help="first record, counted from 0 over all files; negative: from the end",
    )
    parser.add_argument("--no-features", action="store_true", help="do not print features")
    parser.add_argument(
        "--as", dest="recipe", choices=RECIPES, help="read records by the features of this data set"
    )
    add_json(parser)


def _run(
    path: str,
    num_records: int | None,
    position: int | None,
    no_features: bool,
    recipe: str | None,
    as_json: bool,
) -> int:
    """Read no further than needed, and write no file; damage is reported on stderr, after what
    could be read.
    """
    files = data_files([path])
    if num_records is None:
        num_records = _DEFAULT_RECORDS if position is None else 1
    wanted = _stream_records(files) if position is None else _records_from(files, position)
    named: dict[str, Any] = {}
    if recipe:
        exec(RECIPES[recipe], named)
    read = make_parser(named["features"]).single if recipe else None
    show = functools.partial(show_record, read, as_json)
    shown, damage = _until_damage(map(show, itertools.islice(wanted, num_records)))
    for text in shown:
        print(text)
    if not (shown or damage or as_json) and num_records > 0:
        print("no records\n")
    if not no_features:
        looked_at = () if recipe else spread_records(files, _INFER_RECORDS)
        samples, later_damage = _until_damage(looked_at)
        damage = damage or later_damage
        features = RECIPES[recipe] if recipe else _features(samples)
        print(json.dumps({"features": features}) if as_json else features)
    sys.stdout.flush()  # keeps the order if both go to one terminal
    if damage:
        raise damage
    return 0


SHOW = Verb(_DESCRIPTION, _add_arguments, _run)


def _until_damage(items: Iterable[_T]) -> tuple[list[_T], TFRecordError | None]:
    found: list[_T] = []
    try:
        for item in items:
            found.append(item)
    except TFRecordError as error:
        return found, error
    return found, None


def show_record(read: Callable[[bytes], object] | None, as_json: bool, record: Record) -> str:
    """A record as text or as JSON; an error if `read`, where there is one, does not read it."""
    path, position, offset, payload = record
    try:
        if read is not None:
            read(payload)  # raises where the record does not fit
        kind, rows = _describe(payload)
    except TFRecordError as error:
        raise error.locate(path=path, position=position, offset=offset) from error.__cause__
    path, length = without_secrets(path), len(payload)
    if as_json:
        features = [[*map(str.strip, row)] for row in rows]
        place = {"position": position, "path": path, "offset": offset, "length": length}
        return json.dumps({**place, "kind": kind, "features": features})
    head = (
        f"record {position}: {escape(path)}, offset {offset}, {pluralize(length, 'byte')}, {kind}"
    )
    return "\n".join([head, *align(rows, _SIDES), ""])


# One record.


def describe_record(record: bytes) -> tuple[str, list[str]]:
    """The kind of a record, and its lines of text, one per feature."""
    kind, rows = _describe(record)
    return kind, align(rows, _SIDES)


def _describe(record: bytes) -> tuple[str, list[_Row]]:
    try:
        context, feature_lists = decode_record(record)
    except ParseError:
        # TFRecord files may contain anything
        looks, _ = looks_like(record)
        if "event" in looks:
            with suppress(ParseError):
                return _describe_event(parse_message(record, "Event"))
        return f"looks like {looks}", [(f"  {describe_bytes(record)}", "", "", "")]
    if not feature_lists:
        return f"Example, {pluralize(len(context), 'feature')}", _feature_rows(context)
    rows = [*_feature_rows(context, "context "), *_feature_rows(feature_lists, "list ")]
    kind = f"SequenceExample, {pluralize(len(context), 'context feature')}"
    return f"{kind}, {pluralize(len(feature_lists), 'feature list')}", rows


def _describe_event(event: Any) -> tuple[str, list[_Row]]:
    """An event of TensorBoard: its tags and values; a tensor may be a number, pictures or text."""
    found: dict[str, _Value] = {}
    for value in event.summary.value:
        found[value.tag] = [value.image.encoded_image_string]  # empty for a histogram or sound
        if value.HasField("simple_value"):
            found[value.tag] = np.array([value.simple_value], np.float32)
        elif value.HasField("tensor"):
            tensor = parse_tensor(value.tensor.SerializeToString())
            if isinstance(tensor, torch.Tensor):
                found[value.tag] = tensor.flatten().float().numpy()
            else:
                found[value.tag] = [*np.array(tensor, object).flat]
    what = escape(event.file_version) or pluralize(len(found), "value")
    return f"event of step {event.step}, {what}", _feature_rows(found)


def describe_bytes(value: bytes, most: int = _MAX_TEXT) -> str:
    """A bytes value: text as text, an image as format, width x height and size, a TensorProto as
    dtype and shape; of a text, at most so many characters.
    """
    image, size = image_format(value), format_size(len(value))
    if image is not None:
        sides = "(damaged)"
        with suppress(ImageDecodeError):
            height, width = image_size(value)
            sides = f"{width}x{height}"
        return f"{image} {sides}, {size}"
    with suppress(UnicodeDecodeError):
        # an image or a serialized tensor is rarely UTF-8, text nearly always is no tensor
        text = value.decode()
        if text.translate(_LAYOUT).isprintable():
            shown = escape(text[:most], escape_backslash=True).replace('"', '\\"')
            return f'"{shown}"' if len(text) <= most else f'"{shown}..." ({size})'
    with suppress(TFRecordError):
        tensor = parse_tensor(value)
        if isinstance(tensor, torch.Tensor):
            kind, shape = str(tensor.dtype).removeprefix("torch."), [*tensor.shape]
        else:
            kind, shape = "string", [*np.array(tensor, object).shape]
        return f"TensorProto {kind} {shape}, {size}"
    more = "..." if len(value) > _MAX_HEX_BYTES else ""
    return f"0x{value[:_MAX_HEX_BYTES].hex()}{more} ({size})"


def _feature_rows(features: Mapping[str, _Values], what: str = "") -> list[_Row]:
    return [
        (escape(f"  {what}{name}"), _kind(values), str(len(values)), describe_values(values))
        for name, values in features.items()
    ]


def _kind(values: _Values | bytes) -> str:
    """A feature list has all kinds of its steps; "-" is that of nothing."""
    if isinstance(values, bytes):
        return "bytes"
    if isinstance(values, np.ndarray):
        return str(values.dtype)
    return "/".join(sorted({*map(_kind, values)} - {"-"})) or "-"


def describe_values(values: _Values) -> str:
    """The first values of a feature, or steps of a feature list."""
    if isinstance(values, np.ndarray):
        numbers = values[:_MAX_NUMBERS].tolist()
        shown = [f"{value:.7g}" if isinstance(value, float) else str(value) for value in numbers]
    else:
        steps = list, np.ndarray
        most = _MAX_STEPS if isinstance(next(iter(values), None), steps) else _MAX_STRINGS
        shown = [
            f"[{describe_values(value)}]" if isinstance(value, steps) else describe_bytes(value)
            for value in itertools.islice(values, most)
        ]
    return ", ".join([*shown, *(["..."] if len(values) > len(shown) else [])])


# Records by their position over all files, from the first or from any record.


def _stream_records(files: Sequence[str]) -> Iterator[Record]:
    """All records from the first on; reads little more than what is taken, and needs no index."""
    records = itertools.chain.from_iterable(map(records_of, files))
    for position, (path, _, offset, payload) in enumerate(records):
        yield path, position, offset, payload


def _records_from(files: Sequence[str], position: int) -> Iterator[Record]:
    """The records from a position on, which counts from the end if it is negative; earlier ones are
    skipped without reading their payloads.

    Raises:
        ValueError: There are fewer records (raised at the end); the message gives their number.
    """
    total, base, reader = 0, 0, RecordReader()
    if position < 0:
        total = sum(len(block.offsets) for path in files for block in _blocks(path))
    wanted = position + total
    # files before the position are passed over by their records' number alone
    for path in files if wanted >= 0 else ():
        stream = None
        for block in _blocks(path):
            for number in range(max(wanted - base, 0), len(block.offsets)):
                # opened once a record of it is wanted
                stream = stream or open_stream(open_file(path), "auto")[0]
                offset, length = int(block.offsets[number]), int(block.lengths[number])
                payload = reader.read(stream, offset, length)
                yield path, base + number, offset, payload
            base += len(block.offsets)
    total = max(total, base)
    if not total:
        raise ValueError(f"position {position} is out of range: there are no records")
    if not -total <= position < total:
        raise ValueError(
            f"position must be from {-total} to {total - 1} ({total} records), got {position}"
        )


def _blocks(path: str) -> Iterator[RecordIndex | Block]:
    """Offsets and lengths of neighbouring records: from a fresh index, else from headers.

    Does not build an index: looking at data should leave no file, and need not read to the
    file's end.
    """
    try:
        yield from IndexKeeper("require").indexes([path])
    except IndexMismatchError:
        stream, _ = open_stream(open_file(path), "auto")
        yield from RecordScanner(stream, verify_crc=False, keep_payloads=False)


# Features.


def _features(samples: Sequence[Any]) -> str:
    """The features as code, or a comment that says why there are none."""
    try:
        features = features_of(samples)
    except ParseError as error:
        return f"# no features: {error_text(error)}"
    num_files = len({sample.path for sample in samples})
    source = f"from {pluralize(len(samples), 'record')} of {pluralize(num_files, 'file')}"
    if not features:
        return f"# no features {source}"
    notes: Iterable[str] = ()
    if not isinstance(features, ListFeatures):
        specs = features if isinstance(features, Mapping) else features.context_features
        notes = _notes_on_images(specs or {}, samples)
    return "\n".join([f"# inferred {source}", *notes, str(features)])


def _notes_on_images(specs: Mapping[str, Feature], samples: Sequence[Any]) -> Iterator[str]:
    """Why a feature is read as bytes although it has images: the first value that is none."""
    contexts = [decode_record(sample.payload)[0] for sample in samples]
    for name, spec in specs.items():
        if spec != FixedLenFeature((), bytes):
            continue
        for sample, context in zip(samples, contexts, strict=True):
            try:
                image_size(context[name][0])
            except ImageDecodeError as error:
                if any(image_format(context[name][0]) for context in contexts):
                    text = f"{name} is not Image(): {sample.path}: record at byte {sample.offset}"
                    yield escape(f"# {text}: {error}")
                break
