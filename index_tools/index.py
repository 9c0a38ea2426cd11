"""``tfrecord index`` and ``tfrecord verify``: read many files completely, build their indexes or
say what is wrong with them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from index_tools._terminal import (
    Verb,
    add_executor,
    add_jobs,
    add_json,
    add_paths,
    data_files,
    data_paths,
    error_text,
    escape,
    pluralize,
)
from index_tools._workers import Outcome, exit_code, open_executor, work_on_files
from index_tools.salvage import extent
from torch_tfrecord.errors import IndexMismatchError, TFRecordError
from torch_tfrecord.files.seek_points import INDEX_BYTES_RATIO
from torch_tfrecord.files.storage import FileSource, is_remote
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex, index_source, load_fresh
from torch_tfrecord.records.index_paths import sidecar_path, visible_sidecar_path, write_sidecar
from torch_tfrecord.records.manifest_shards import write_manifest
from torch_tfrecord.records.paths import find_files
from torch_tfrecord.records.salvage import SalvageReport
from torch_tfrecord.records.scan import SkippedBytes
from torch_tfrecord.records.sidecar import about_data
from torch_tfrecord.shown import without_secrets

__all__ = ["INDEX", "VERIFY"]

_MOST_BAD = 10  # records of a file that are told without --json
_SIDECAR, _TEXT = _FORMATS = ("safetensors", "tfrecord2idx")

_INDEX = """\
With an index, any record can be read in one step. TFRecordDataset builds missing indexes itself;
building them first saves each job the time, and checks all data.

  safetensors    the format that TFRecordDataset reads, in the hidden folder .torch_index beside the data
                 (or in --output-dir; pass that folder to TFRecordDataset(index_dir=...))
  tfrecord2idx   <file>.idx: the text format of DALI and the package tfrecord; not for compressed files

Files with a fresh index are skipped. A damaged file gets no index; the others still do.

With --manifest one file for all of them is written, too: .torch_index/manifest.safetensors in the folder
that holds all the files (with --output-dir in that one). TFRecordDataset opens from it without a look at
each index: 100,000 files in a second.

With --columns, the index keeps features, so that TFRecordDataset.where("label", 3) reads no record.

examples:
  tfrecord index data/ 'more/train-*.tfrecord' --jobs 8
  tfrecord index data/ --columns 'label,split,len(tokens)'
  tfrecord index data/ --manifest"""

_VERIFY = """\
Checks both checksums of every record, that the file ends where its last record ends, and the
checksums of the compression. Prints one line for each bad file: the record and byte where the first
damage begins (in the decompressed stream for compressed files), what is wrong, how much of the file
is damaged, and how many good records are behind it; with --json, one line for each file, with each
damaged part and its kind. A path that is not there gets a line, too, and the others are still checked (exit
status 2 if nothing else is wrong). The last line counts files, records, bytes and bad files.

With --decode, each record whose checksums match is read by --features. Without them it must be an Example or
SequenceExample, and all its values that begin like a picture or a WAV file must decode. One line for each bad
record, at most 10 of a file, says the feature, and what was expected and found; with --json all are there.

An index beside a file is checked, too. A stale or damaged index only gives a warning and does not
change the exit status: it is never used and does not mean bad data (copying makes indexes stale). If
an index passes for fresh but names other records than the file has, the file is bad.

examples:
  tfrecord verify 'data/train-*.tfrecord' || echo damaged
  tfrecord verify data/ --decode --features features.py"""


class _Read(NamedTuple):
    """One file that could be read.

    Attributes:
        num_records: Its records; if it is damaged, those that are not.
        num_bytes: Its size.
        index_path: Where its index is.
        is_new: Whether that was built now: there was no fresh one.
        damage: The first error, if any.
        report: Where it is damaged.
        index_problem: What is wrong with the index beside the file, which is then not used.
        bad_records: With --decode, the error of each record that does not parse or decode.
    """

    num_records: int
    num_bytes: int
    index_path: str = ""
    is_new: bool = False
    damage: TFRecordError | None = None
    report: SalvageReport | None = None
    index_problem: IndexMismatchError | None = None
    bad_records: Sequence[TFRecordError] = ()


def _count(files: Sequence[_Read]) -> str:
    records, size = sum(file.num_records for file in files), sum(file.num_bytes for file in files)
    return f"{pluralize(records, 'record')}, {pluralize(size, 'byte')}"


# Building indexes.


def _add_index_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--format", choices=_FORMATS, default=_SIDECAR, help="index format (default: %(default)s)"
    )
    parser.add_argument(
        "--output-dir", metavar="DIR", help="folder for the indexes (default: beside the data)"
    )
    add_jobs(parser, "parallel processes")
    add_executor(parser)
    parser.add_argument(
        "--columns",
        metavar="A,B,len(C)",
        help="features to keep beside the offsets, one value a record, or the number of values",
    )
    parser.add_argument(
        "--no-crc",
        action="store_true",
        help="do not check the payloads' checksums, only the headers'",
    )
    parser.add_argument(
        "--index-bytes-ratio",
        type=float,
        default=INDEX_BYTES_RATIO,
        metavar="SHARE",
        help="of a compressed file, that its seek points may take (default: %(default)s)",
    )
    parser.add_argument(
        "--manifest", action="store_true", help="also write one file for the indexes of all files"
    )
    parser.add_argument("--force", action="store_true", help="rebuild fresh indexes, too")
    add_json(parser)


def _run_index(
    paths: Sequence[str],
    format: str,
    output_dir: str | None,
    jobs: int | None,
    executor: str,
    columns: str | None,
    no_crc: bool,
    index_bytes_ratio: float,
    manifest: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Each index appears complete or not at all."""
    files = data_files(paths)
    # A file's index may only be its own.
    places = Counter(_index_path(path, format, output_dir) for path in files)
    for place, number in places.most_common(1):
        if number > 1:
            raise ValueError(
                f"several data files would have the same index {place}; index them one folder at a time"
            )
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    elif any(map(is_remote, files)):
        raise ValueError("indexes are written to local files; pass --output-dir for remote data")
    if (manifest or columns) and format != _SIDECAR:
        option = "--manifest" if manifest else "--columns"
        raise ValueError(f"{option} needs --format safetensors")
    names = tuple(columns.split(",")) if columns else ()
    build = functools.partial(
        _built,
        names,
        verify_crc=not no_crc,
        trusts_members=no_crc,
        index_bytes_ratio=index_bytes_ratio,
    )
    task = functools.partial(
        _index_file, format=format, output_dir=output_dir, build=build, force=force, columns=names
    )
    with open_executor(executor) as workers:
        outcomes = work_on_files(
            task, files, num_jobs=jobs, executor=workers, description="indexing"
        )
    (_print_indexed_json if as_json else _print_indexed)(outcomes)
    status = exit_code([outcome.error for outcome in outcomes])
    # a manifest of some of the files would pass for that of all
    if manifest and not status:
        made = write_manifest(files, index_dir=output_dir, again=force)
        print(
            json.dumps({"manifest": made.path, "num_files": made.num_files})
            if as_json
            else f"manifest of {pluralize(made.num_files, 'file')}, {pluralize(made.num_records, 'record')}: "
            f"{pluralize(made.num_bytes, 'byte')} -> {escape(made.path)}"
        )
    return status


def _print_indexed(outcomes: Sequence[Outcome[_Read]]) -> None:
    """Print one line per file, errors on stderr, and a last line with the counts."""
    for outcome in outcomes:
        if (file := outcome.value) is not None:
            begin, end = ("indexed", " ->") if file.is_new else ("fresh", ",")
            name, index_path = escape(without_secrets(outcome.path)), escape(file.index_path)
            print(f"{begin} {name}: {_count([file])}{end} {index_path}")
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"error: {error_text(outcome.error)}", file=sys.stderr)
    done = [outcome.value for outcome in outcomes if outcome.value is not None]
    num_new = sum(file.is_new for file in done)
    print(
        f"{pluralize(len(outcomes), 'file')}: {num_new} indexed, {len(done) - num_new} fresh, "
        f"{len(outcomes) - len(done)} failed; {_count(done)}"
    )


def _print_indexed_json(outcomes: Sequence[Outcome[_Read]]) -> None:
    """Print one line of JSON per file."""
    for outcome in outcomes:
        facts: dict[str, object] = {"path": without_secrets(outcome.path)}
        if file := outcome.value:
            facts |= {"num_records": file.num_records, "num_bytes": file.num_bytes}
            facts |= {"index": file.index_path, "is_new": file.is_new}
        print(json.dumps({**facts, "error": error_text(outcome.error) if outcome.error else ""}))


def _index_path(path: str, format: str, output_dir: str | None) -> str:
    if format == _SIDECAR:
        return sidecar_path(path, output_dir)
    # DALI and others accept any name; the data file's own name with .idx is the usual one.
    if output_dir is not None:
        path = os.path.join(output_dir, os.path.basename(without_secrets(path)))
    return f"{path}.idx"


def _built(columns: Sequence[str], file: FileSource, **options: Any) -> RecordIndex:
    if not columns:
        return index_source(file, **options)
    from torch_tfrecord.columns.index_columns import ExampleColumns  # imports torch

    return index_source(file, **options, reader=ExampleColumns(columns))


def _index_file(
    file: FileSource,
    *,
    format: str,
    output_dir: str | None,
    build: Callable[[FileSource], RecordIndex],
    force: bool,
    columns: Sequence[str],
) -> _Read:
    place = _index_path(file.path, format, output_dir)
    _, compression_type = open_stream(file, "auto")
    if format == _TEXT and compression_type:
        raise ValueError(
            f"{without_secrets(file.path)}: a tfrecord2idx index needs an uncompressed data file, got "
            f"{compression_type}; --format safetensors has no such limit"
        )
    fresh = None if force else _fresh_index(file, place, format)
    if fresh is not None and not fresh.kept.keys() >= {*columns}:
        fresh = None
    index = build(file) if fresh is None else fresh
    if fresh is None and format == _SIDECAR:
        write_sidecar(place, index.to_bytes())
    elif fresh is None:
        index.to_tfrecord2idx(place)
    return _Read(len(index), file.file_size, place, is_new=fresh is None)


def _fresh_index(file: FileSource, place: str, format: str) -> RecordIndex | None:
    try:
        if format == _SIDECAR:
            return load_fresh(place, file)
        # The text form has no information on the data file, so compare modification times, like
        # make.
        is_fresh = os.stat(place).st_mtime_ns >= file.mtime_ns
        return RecordIndex.from_tfrecord2idx(place, file.path) if is_fresh else None
    except (OSError, TFRecordError):
        return None


INDEX = Verb(_INDEX, _add_index_arguments, _run_index)


# Checking records.


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    add_jobs(parser, "parallel processes")
    add_executor(parser)
    add_json(parser)
    parser.add_argument(
        "--decode", action="store_true", help="also read each record by its features"
    )
    parser.add_argument(
        "--features",
        metavar="FILE.py",
        help="decode by Python code that assigns `features`, such as `tfrecord show` prints; it is run",
    )


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
    outcomes: list[Outcome[_Read]] = []
    files: list[str] = []
    for path in data_paths(paths):
        try:
            files += find_files(path)
        # the others are still checked
        except OSError as missing:
            outcomes.append(Outcome(path, error=missing))
    task = functools.partial(_check_file, decode=decode or bool(features), features=features)
    with open_executor(executor) as workers:
        outcomes += work_on_files(
            task, files, num_jobs=jobs, executor=workers, description="verifying"
        )
    errors, done = [], [outcome.value for outcome in outcomes if outcome.value is not None]
    for outcome in outcomes:
        file = outcome.value
        bad = [*filter(None, (outcome.error, file and file.damage))]
        bad += file.bad_records if file else ()
        errors.append(bad[0] if bad else None)
        report = (file and file.report) or SalvageReport(file.num_records if file else 0)
        if as_json:
            facts = {"path": without_secrets(outcome.path), **asdict(report)}
            if decode:
                facts["bad_records"] = [*map(error_text, file.bad_records if file else ())]
            print(json.dumps({**facts, "error": error_text(bad[0]) if bad else ""}))
            continue
        for number, error in enumerate(bad[:_MOST_BAD]):
            print(f"bad: {error_text(error)}{'' if number else extent(report)}")
        if len(bad) > _MOST_BAD:
            print(f"bad: {escape(outcome.path)}: {len(bad)} records in all")
        if file and file.index_problem:
            print(f"warning: {error_text(file.index_problem)}")
    if as_json:
        return exit_code(errors)
    num_bad = len(errors) - errors.count(None)
    print(f"{pluralize(len(outcomes), 'file')}, {_count(done)}, {pluralize(num_bad, 'bad file')}")
    return exit_code(errors)


def _check_file(file: FileSource, decode: bool, features: str | None) -> _Read:
    found = _verify_file(file)
    if not decode:
        return found
    from index_tools.record_check import check_records  # imports torch

    return found._replace(bad_records=[*check_records(file, features)])


def _verify_file(file: FileSource) -> _Read:
    skipped = SkippedBytes()
    index = index_source(file, skipped=skipped)
    num_records = len(index) - len(index.damaged or ())
    found = _Read(num_records, file.file_size, damage=skipped.first)
    if skipped:
        return found._replace(report=SalvageReport.of(num_records, skipped))
    for place in (sidecar_path(file.path), visible_sidecar_path(file.path)):
        try:
            stored = load_fresh(place, file)
        except OSError:  # there is none
            continue
        except IndexMismatchError as error:
            return found._replace(index_problem=about_data(error, file.path))
        # what says that it is fresh may be wrong: a file changed in place keeps its size
        if np.array_equal(stored.offsets, index.offsets) and np.array_equal(
            stored.lengths, index.lengths
        ):
            return found
        damage = IndexMismatchError(
            f"the index passes for fresh but names other records: expected "
            f"{pluralize(len(index), 'record')} as in the file, got {len(stored)} or others",
            path=file.path,
        )
        return found._replace(damage=damage)
    return found


VERIFY = Verb(_VERIFY, _add_verify_arguments, _run_verify)
