"""``tfrecord verify`` and ``tfrecord salvage``: read files completely, say what is wrong with them, or
copy what is good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from index_tools._terminal import (
    Verb,
    data_paths,
    error_text,
    escape,
    pluralize,
)
from index_tools._workers import Outcome, exit_code, open_executor, work_on_files
from index_tools.index import total
from torch_tfrecord import (
    IndexMismatchError,
    RecordIndex,
    SalvageReport,
    TFRecordError,
    find_files,
    salvage,
)
from torch_tfrecord.files import Access, FileSource
from torch_tfrecord.records import IndexKeeper, SkippedBytes, found_files
from torch_tfrecord.shown import without_secrets

__all__ = ["SALVAGE", "VERIFY"]

_MOST_BAD = 10  # so many records of a file are named without --json

_VERIFY = """\
Checks both checksums of every record, that the file ends where its last record ends, and the
checksums of the compression. Prints one line for each bad file: the record and byte where the first
damage begins (in the decompressed stream for compressed files), what is wrong, how much of the file
is damaged, and how many good records are behind it; with --json, one line for each file, with each
damaged part and its kind. A path or shard that is not there gets a line, too, and the others are still checked
(exit status 2 if nothing else is wrong). The last line counts files, records, bytes and bad files.

With --decode, each record whose checksums match is read by --features. Without them it must be an Example or
SequenceExample, and all its values that begin like a picture or a WAV file must decode. One line for each bad
record, at most 10 of a file, says the feature, and what was expected and found; with --json all are there.

An index beside a file is checked, too. A stale or damaged index only gives a warning and does not
change the exit status: it is never used and does not mean bad data (copying makes indexes stale). If
an index passes for fresh but names other records than the file has, the file is bad.

examples:
  tfrecord verify 'data/train-*.tfrecord' || echo damaged
  tfrecord verify data/ --decode --features features.py"""

_SALVAGE = """\
Copies every record whose two checksums fit to OUT, which appears complete, with its index, or not at all.
IN is only read. A piece that is twice in it comes out twice. Behind each damage the next record is looked
for; in a gzip or zlib file the next member, or block, that decompresses.

Prints what is lost: [begin, end) in bytes of the file, or of what is decompressed from it, and what is
wrong there; for a compressed file also which of its bytes could not be decompressed. Exit status 0 if
there are good records, whatever is lost.

example:
  tfrecord salvage damaged.tfrecord.gz good.tfrecord.gz"""


class _Checked(NamedTuple):
    """A file that could be read, or by default one that could not.

    Attributes:
        num_records: Its good records.
        num_bytes: Its size.
        report: Where it is damaged.
        damage: The first error, if any.
        index_problem: What is wrong with the index beside the file, which is then not used.
        bad_records: With --decode, the error of each record that does not parse or decode.
    """

    num_records: int = 0
    num_bytes: int = 0
    report: SalvageReport = SalvageReport(0)
    damage: TFRecordError | None = None
    index_problem: IndexMismatchError | None = None
    bad_records: Sequence[TFRecordError] = ()


def _run_verify(
    paths: Sequence[str],
    jobs: int | None,
    executor: str,
    as_json: bool,
    decode: bool,
    features: str | None,
) -> int:
    """Print one line for each bad file and each warning, and a last line with the counts; or a line
    of JSON for each file. Write no file.
    """
    outcomes: list[Outcome[_Checked]] = []
    files: list[str] = []
    for path in data_paths(paths):
        try:
            files += find_files(path)
        except (OSError, ValueError, TFRecordError) as error:
            outcomes.append(Outcome(path, error=error))
            with suppress(OSError, ValueError, TFRecordError):  # the shards that are there
                files += found_files(path, Access.DEFAULT, are_whole=False)[0]
    is_decoded = decode or bool(features)
    task = partial(_decode_file, features) if is_decoded else _verify_file
    with open_executor(executor) as workers:
        outcomes += work_on_files(
            task, files, num_jobs=jobs, executor=workers, description="verifying"
        )
    errors = [_print_checked(outcome, as_json, is_decoded) for outcome in outcomes]
    if not as_json:
        good = [outcome.value for outcome in outcomes if outcome.value]
        count = total([(file.num_records, file.num_bytes) for file in good])
        num_bad = pluralize(len(errors) - errors.count(None), "bad file")
        print(f"{pluralize(len(outcomes), 'file')}, {count}, {num_bad}")
    return exit_code(errors)


def _print_checked(outcome: Outcome[_Checked], as_json: bool, is_decoded: bool) -> Exception | None:
    """Print what is wrong with a file, or a line of JSON; its first error."""
    file = outcome.value or _Checked()
    bad = [*filter(None, (outcome.error, file.damage)), *file.bad_records]
    first, texts = bad[0] if bad else None, [*map(error_text, bad)]
    if as_json:
        facts = {"path": without_secrets(outcome.path), **asdict(file.report)}
        if is_decoded:
            facts["bad_records"] = [*map(error_text, file.bad_records)]
        print(json.dumps({**facts, "error": texts[0] if bad else ""}))
        return first
    for number, text in enumerate(texts[:_MOST_BAD]):
        print(f"bad: {text}{'' if number else _extent(file.report)}")
    if len(bad) > _MOST_BAD:
        print(f"bad: {escape(outcome.path)}: {len(bad)} records in all")
    if file.index_problem:
        print(f"warning: {error_text(file.index_problem)}")
    return first


def _verify_file(file: FileSource) -> _Checked:
    skipped = SkippedBytes()
    index = RecordIndex._build(file, skipped=skipped)
    num_records = len(index) - len(index._damaged or ())
    report = SalvageReport.of(num_records, skipped)
    found = _Checked(num_records, file.file_size, report, skipped.first)
    if skipped:
        return found
    for place in (IndexKeeper.place(file.path), f"{file.path}.index.safetensors"):
        try:
            stored = RecordIndex._load_fresh(place, file)
        except OSError:  # there is none
            continue
        except IndexMismatchError as error:
            text = f"index at {error.path}: {error.args[0]}"
            problem = IndexMismatchError(text, path=file.path, position=error.position)
            return found._replace(index_problem=error if error.path == file.path else problem)
        # size and time may pass for fresh: a file changed in place keeps its size
        if np.array_equal((stored.offsets, stored.lengths), (index.offsets, index.lengths)):
            return found
        damage = IndexMismatchError(
            f"the index passes for fresh but names other records: expected "
            f"{pluralize(len(index), 'record')} as in the file, got {len(stored)} or others",
            path=file.path,
        )
        return found._replace(damage=damage)
    return found


# Pictures and sounds.


def _decode_file(features: str | None, file: FileSource) -> _Checked:
    return _verify_file(file)._replace(bad_records=[*_check_records(file.path, features)])


def _check_records(path: str, source: str | None) -> Iterator[TFRecordError]:
    """The error of each record whose checksums match, but which does not parse or decode.

    Args:
        path: The file.
        source: A file of code that assigns `features`; None to read Examples and SequenceExamples
            with whatever features they have, and decode all values that begin like a picture or a
            WAV file.
    """
    # they import torch
    from index_tools._features import load_features
    from torch_tfrecord.columns import make_parser
    from torch_tfrecord.tables import FoundRecord

    parse = None if source is None else make_parser(load_features(source, [])).single
    # damage is found by others
    for record in FoundRecord.all_of(path, on_error="skip", report=lambda *_: None):
        try:
            if parse is None:
                _decode_values(*record.decode())
            else:
                parse(record.payload)
        except TFRecordError as error:
            yield error.locate(path=path, position=record.position, offset=record.offset)


def _decode_values(context: Mapping[str, Any], lists: Mapping[str, Any]) -> None:
    from torch_tfrecord import Audio, decode_image
    from torch_tfrecord.media import image_format

    steps = ((name, values) for name, each in lists.items() for values in each)
    for name, values in chain(context.items(), steps):
        for value in values if isinstance(values, list) else ():  # numbers are neither
            try:
                if image_format(value):
                    decode_image(value)
                elif value[8:12] == b"WAVE":
                    Audio()._decode(memoryview(value), 0)
            except TFRecordError as error:
                raise type(error)(f"feature {name!r}: {error.args[0]}") from error.__cause__


# Copying what is good.


def _run_salvage(path: str, out: str, compression_type: str, as_json: bool) -> int:
    report = salvage(path, out, compression_type=compression_type)
    if as_json:
        print(json.dumps(asdict(report)))
        return 0
    for (begin, end), kind in zip(report.lost, report.kinds, strict=True):
        print(f"lost [{begin}, {end}): {kind}")
    for begin, end, kind in report.gaps:
        print(f"not decompressed [{begin}, {end}): {kind}")
    copied = f"{pluralize(report.num_records, 'record')} -> {escape(without_secrets(out))}"
    print(f"{copied}{_extent(report)}")
    return 0


def _extent(report: SalvageReport) -> str:
    """How much of a file is damaged, in words; nothing where nothing is."""
    lost = [end - begin for begin, end in report.lost if end > begin]
    places, good = pluralize(len(lost), "place"), pluralize(report.num_records, "good record")
    behind = f", {report.num_behind} behind the first damage" if report.num_behind else ""
    return f" ({pluralize(sum(lost), 'byte')} damaged in {places}, {good}{behind})" if lost else ""


VERIFY = Verb(
    _VERIFY,
    _run_verify,
    "paths --jobs --executor --json --features",
    {"--decode": {"action": "store_true", "help": "also read each record by its features"}},
)
SALVAGE = Verb(
    _SALVAGE,
    _run_salvage,
    "--json",
    {
        "path": {"metavar": "IN", "help": "the damaged file"},
        "out": {"metavar": "OUT", "help": "the new file; compressed if its name ends so"},
        "--compression-type": {
            "default": "auto",
            "metavar": "TYPE",
            "help": "GZIP, ZLIB or SNAPPY, where the first bytes of IN may be damaged (default: %(default)s)",
        },
    },
)
