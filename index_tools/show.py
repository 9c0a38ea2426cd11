"""``tfrecord show``: records as readable text, and the features to read them with; ``tfrecord replay``:
those of a step of a training run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from index_tools._features import RECIPES
from index_tools._terminal import (
    PATHS_HELP,
    Verb,
    align,
    data_files,
    error_text,
    escape,
    format_size,
    integer,
    pluralize,
)
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
from torch_tfrecord.shown import shown_value, without_secrets
from torch_tfrecord.tables import FoundRecord, Survey
from torch_tfrecord.train import replay

__all__ = ["REPLAY", "SHOW", "describe_bytes", "describe_values", "show_record"]

_Row: TypeAlias = tuple[str, str, str, str]
"""Indented name, kind, count and values."""

_Value: TypeAlias = "npt.NDArray[Any] | list[bytes]"
_Values: TypeAlias = "_Value | Sequence[_Value]"
"""The values of a feature, or of the steps of a feature list."""

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
    every = enumerate(chain.from_iterable(map(FoundRecord.all_of, files)))
    wanted: Iterator[FoundRecord] = (record._replace(position=number) for number, record in every)
    if position is not None:
        wanted = _records_from(files, position)
    named: dict[str, Any] = {}
    if recipe:
        exec(RECIPES[recipe], named)
    read = make_parser(named["features"]).single if recipe else None
    damage, num_shown = None, 0
    try:
        for record in islice(wanted, num_records):
            print(show_record(record, as_json, read))
            num_shown += 1
    except TFRecordError as error:
        damage = error
    if not (num_shown or damage or as_json) and num_records > 0:
        print("no records\n")
    if not no_features:
        code = RECIPES[recipe] if recipe else ""
        if not recipe:
            survey = Survey(files, num_records=_INFER_RECORDS, until_damage=True)
            damage, code = damage or survey.damage, _features(survey)
        print(json.dumps({"features": code}) if as_json else code)
    sys.stdout.flush()  # keeps the order if both go to one terminal
    if damage:
        raise damage
    return 0


SHOW = Verb(
    _DESCRIPTION,
    _run,
    "--json",
    {
        "path": {"metavar": "PATH", "help": PATHS_HELP},
        "-n": {
            "type": integer(0),
            "dest": "num_records",
            "metavar": "N",
            "help": f"number of records (default: {_DEFAULT_RECORDS}, with --position 1)",
        },
        "--position": {
            "type": int,
            "metavar": "P",
            "help": "first record, counted from 0 over all files; negative: from the end",
        },
        "--no-features": {"action": "store_true", "help": "do not print features"},
        "--as": {
            "dest": "recipe",
            "choices": RECIPES,
            "help": "read records by the features of this data set",
        },
    },
)


def show_record(
    record: FoundRecord, as_json: bool = False, read: Callable[[bytes], object] | None = None
) -> str:
    """A record as text or as JSON; an error if `read`, where there is one, does not read it."""
    path, position, offset, payload = record
    try:
        if read is not None:
            read(payload)  # raises where the record does not fit
        kind, rows = _describe(record)
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
    return "\n".join([head, *align(rows, "<<><"), ""])


# One record.


def _describe(record: FoundRecord) -> tuple[str, list[_Row]]:
    try:
        context, feature_lists = record.decode()
    except ParseError:
        # TFRecord files may contain anything
        looks, _ = record.looks_like()
        if "event" in looks:
            with suppress(ParseError):
                return _describe_event(parse_message(record.payload, "Event"))
        return f"looks like {looks}", [(f"  {describe_bytes(record.payload)}", "", "", "")]
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
            for value in islice(values, most)
        ]
    return ", ".join([*shown, *(["..."] if len(values) > len(shown) else [])])


def _records_from(files: Sequence[str], position: int) -> Iterator[FoundRecord]:
    """The records from a position over all files on, which counts from the end if it is negative;
    earlier ones are skipped without reading their payloads.

    Raises:
        ValueError: There are fewer records (raised at the end); the message gives their number.
    """
    total, base = 0, 0
    if position < 0:
        total = sum(len(block.offsets) for path in files for block in _blocks(path))
    wanted = position + total
    for path in files if wanted >= 0 else ():
        stream = None
        for block in _blocks(path):
            for number in range(max(wanted - base, 0), len(block.offsets)):
                # opened once a record of it is wanted
                stream = stream or open_stream(open_file(path), "auto")[0]
                offset, length = int(block.offsets[number]), int(block.lengths[number])
                payload = RecordReader().read(stream, offset, length)
                yield FoundRecord(path, base + number, offset, payload)
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


def _features(survey: Survey) -> str:
    """The features as code, or a comment that says why there are none."""
    records, features = survey.records, None
    try:
        features = survey.features() if records else None
    except ParseError as error:
        return f"# no features: {error_text(error)}"
    num_files = len({record.path for record in records})
    source = f"from {pluralize(len(records), 'record')} of {pluralize(num_files, 'file')}"
    if not features:
        return f"# no features {source}"
    notes: Iterable[str] = ()
    if not isinstance(features, ListFeatures):
        specs = features if isinstance(features, Mapping) else features.context_features
        notes = _notes_on_images(specs or {}, records)
    return "\n".join([f"# inferred {source}", *notes, str(features)])


def _notes_on_images(specs: Mapping[str, Feature], samples: Sequence[FoundRecord]) -> Iterator[str]:
    """Why a feature is read as bytes although it has images: the first value that is none."""
    contexts = [sample.decode()[0] for sample in samples]
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


# The records of a step of a training run, from the state that it saved.

_REPLAY = """\
STATE is the file of a `loader.state_dict()`, written by json.dump or torch.save. Prints the records of a
step as `tfrecord show` does, those of rank 0 first; the position is that in the dataset. Steps count from 0
in their epoch, before and after a resumption, whatever world sizes the run had, and with the weights that a
Mixture had there. Earlier epochs are as if the last job had read them.

The files must be where they were. The state of a loader over any other dataset than paths, slices and
mixtures of these does not say which files it reads: call loader.records_of(step) in the program.

examples:
  tfrecord replay state.json --step 41203
  tfrecord replay state.pt --step 41203 --json -n 1"""


def _run_replay(
    state: str, step: int, epoch: int | None, num_records: int | None, as_json: bool
) -> int:
    saved = _read_state(state)
    if saved["run"]["dataset"] is None:
        raise ValueError(
            f"{state}: the state does not say which records the loader reads (a Subset, an array of lengths, ...): "
            "call loader.records_of(step) in the program"
        )
    try:
        records = replay(saved, step, epoch, num_records)
    except IndexError as error:  # wrong use
        raise ValueError(f"{state}: {error}") from None
    for path, offset, position, payload in records:
        print(show_record(FoundRecord(path, position, offset, payload), as_json))
    return 0


def _read_state(path: str) -> Mapping[str, Any]:
    """The state in a file.

    Raises:
        ValueError: It is none that a loader saved.
    """
    with Path(path).open("rb") as file:
        head = file.read(1)
        file.seek(0)
        try:
            found = json.load(file) if head == b"{" else torch.load(file, weights_only=True)
        except Exception as error:  # whatever pickle raises; torch advises to trust the file
            raise ValueError(
                f"{path}: expected a state, got {type(error).__name__}: json.dump or torch.save writes a state_dict()"
            ) from None
    if not isinstance(found, Mapping) or not isinstance(found.get("run"), Mapping):
        raise ValueError(
            f"{path}: expected the state_dict() of a loader that make_dataloader made, got {shown_value(found)}"
        )
    return found


REPLAY = Verb(
    _REPLAY,
    _run_replay,
    "--json",
    {
        "state": {"metavar": "STATE", "help": "a saved loader.state_dict()"},
        "--step": {"type": integer(0), "required": True, "help": "from 0 in its epoch"},
        "--epoch": {"type": integer(0), "help": "default: that of the state"},
        "-n": {
            "dest": "num_records",
            "type": integer(0),
            "metavar": "N",
            "help": "print the first N (default: all)",
        },
    },
)
