"""``tfrecord show``: records as readable text, and a spec that reads them."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from index_tools._arguments import PATHS_HELP, add_verb, data_files, integer
from index_tools._records import Record, absolute_position, records_from, stream_records
from index_tools._text import counted, error_text, escape
from index_tools._values import describe_record, is_sequence_example
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.features.inference import format_features, infer_features_from_records

__all__ = ["ShownRecord", "ShownRecords", "add_parser", "print_report", "run"]

_DEFAULT_RECORDS = 3
# What features are inferred from: as many records as `infer_features` takes, but not gigabytes of them.
_INFER_RECORDS = 100
_INFER_BYTES = 1 << 28

_DESCRIPTION = """\
For each record a line with its position, file, byte offset and length; then a line for each feature
with its name, kind, number of values, and values. Bytes are shown as text where they are text, as
"jpeg 500x375, 61.2 KB" (width x height) where they are an image, as dtype and shape where they are a
serialized tensor, else as their first bytes in hex. Of a compressed file the offset is that in the
decompressed stream. Then come the features as Python code, inferred from the first 100 records.

A record is shown as a SequenceExample where it has feature lists. A record that is no Example is no
error: TFRecord files may hold anything.

examples:
  tfrecord show train.tfrecord
  tfrecord show 'data/train-*' --position -1
  tfrecord show train.tfrecord --position 500 -n 10 --no-features"""


@dataclass(frozen=True)
class ShownRecord:
    """A record: its place (`position` over all files), what it is, and a line of text for each feature."""

    position: int
    path: str
    offset: int
    length: int
    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class ShownRecords:
    """The records asked for, the features as code (empty where not asked for), and the damage that was met, if any."""

    records: tuple[ShownRecord, ...]
    is_empty: bool = False  # there are no records at all
    features: str = ""
    damage: TFRecordError | None = None


def run(
    path: str, *, num_records: int | None = None, position: int | None = None, with_features: bool = True
) -> ShownRecords:
    """Read some records. Reads no further than needed, and writes nothing.

    Args:
        path: As for `find_files`, one of its forms.
        num_records: How many; None is 3, or 1 with a position.
        position: Of the first, over all files; a negative one counts from the end. None is from the front.
        with_features: Infer features from the first 100 records.

    Raises:
        ValueError: there is no such position.
        OSError: there is no such file.
    """
    files = data_files([path])
    if num_records is None:
        num_records = _DEFAULT_RECORDS if position is None else 1
    shown: list[ShownRecord] = []
    samples: list[bytes] = []
    damage: TFRecordError | None = None
    try:
        if position is None:
            records: Iterator[Record] = stream_records(files)
        else:
            records = records_from(files, absolute_position(files, position))
        for record in itertools.islice(records, num_records):
            shown.append(_shown(record))
    except TFRecordError as error:
        damage = error
    is_empty = not shown and damage is None and num_records > 0
    if not with_features:
        return ShownRecords(tuple(shown), is_empty, damage=damage)
    try:
        for sample in _samples(stream_records(files)):
            samples.append(sample)
    except TFRecordError as error:
        damage = damage or error
    return ShownRecords(tuple(shown), is_empty, _features(samples), damage)


def print_report(shown: ShownRecords) -> None:
    """The records, the features, and on stderr the damage."""
    for record in shown.records:
        length = counted(record.length, "byte")
        print(f"record {record.position}: {escape(record.path)}, offset {record.offset}, {length}, {record.kind}")
        print("".join(f"{line}\n" for line in record.lines))
    if shown.is_empty:
        print("no records\n")
    if shown.features:
        print(shown.features)
    if shown.damage is not None:
        sys.stdout.flush()  # so that the order holds where both go to one terminal
        print(f"tfrecord: {error_text(shown.damage)}", file=sys.stderr)


def add_parser(verbs: Any, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "show", summary, _DESCRIPTION, _command)
    parser.add_argument("path", metavar="PATH", help=PATHS_HELP)
    parser.add_argument(
        "-n",
        type=integer(0),
        dest="num_records",
        metavar="N",
        help=f"number of records (default: {_DEFAULT_RECORDS}, with --position 1)",
    )
    parser.add_argument(
        "--position", type=int, metavar="P", help="first record, from 0 over all files; negative: from the end"
    )
    parser.add_argument("--no-features", action="store_true", help="do not infer features")


def _command(options: argparse.Namespace) -> int:
    shown = run(
        options.path,
        num_records=options.num_records,
        position=options.position,
        with_features=not options.no_features,
    )
    print_report(shown)
    return 0 if shown.damage is None else 1


def _shown(record: Record) -> ShownRecord:
    kind, lines = describe_record(record.payload)
    return ShownRecord(record.position, record.path, record.offset, len(record.payload), kind, tuple(lines))


def _samples(records: Iterable[Record]) -> Iterator[bytes]:
    num_bytes = 0
    for record in itertools.islice(records, _INFER_RECORDS):
        num_bytes += len(record.payload)
        yield record.payload
        if num_bytes > _INFER_BYTES:
            return


def _features(records: Sequence[bytes]) -> str:
    """The features as code, or a comment on why there are none."""
    source = f"from the first {counted(len(records), 'record')}" if len(records) > 1 else "from one record"
    if not records:
        return "# no features: there are no records to infer them from"
    if any(map(is_sequence_example, records)):
        return "# no features: they are inferred from Examples, and these are SequenceExamples"
    try:
        features = infer_features_from_records(records)
    except ParseError as error:
        return f"# no features: {error_text(error)}"
    return f"# inferred {source}\n{format_features(features)}" if features else f"# no features {source}"
