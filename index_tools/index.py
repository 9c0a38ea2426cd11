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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from torch_tfrecord import (
    IndexMismatchError,
    RecordIndex,
    SalvageReport,
    TFRecordError,
    find_files,
    read_records,
)
from torch_tfrecord.files import Access, FileSource, is_remote
from torch_tfrecord.manifests import write_manifest
from torch_tfrecord.records import (
    IndexKeeper,
    SkippedBytes,
    found_files,
    open_stream,
)
from torch_tfrecord.shown import without_secrets

__all__ = ["INDEX", "VERIFY"]

_MOST_BAD = 10  # so many records of a file are named without --json
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


@dataclass(frozen=True)
class _Indexed:
    """A file that has an index; `is_new`: there was no fresh one."""

    num_records: int
    num_bytes: int
    index: str
    is_new: bool


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


def _count(files: Sequence[_Indexed | _Checked]) -> str:
    records, size = sum(file.num_records for file in files), sum(file.num_bytes for file in files)
    return f"{pluralize(records, 'record')}, {pluralize(size, 'byte')}"


# Building indexes.


def _add_index_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    add = parser.add_argument
    add("--format", choices=_FORMATS, default=_SIDECAR, help="index format (default: %(default)s)")
    add("--output-dir", metavar="DIR", help="folder for the indexes (default: beside the data)")
    add_jobs(parser, "parallel processes")
    add_executor(parser)
    add(
        "--columns",
        type=lambda text: text.split(","),
        default=[],
        metavar="A,B,len(C)",
        help="features to keep beside the offsets, one value a record, or the number of values",
    )
    add(
        "--no-crc",
        dest="verify_crc",
        action="store_false",
        help="do not check the payloads' checksums, only the headers'",
    )
    add(
        "--index-bytes-ratio",
        type=float,
        default=0.005,
        metavar="SHARE",
        help="of a compressed file, that its seek points may take (default: %(default)s)",
    )
    add("--manifest", action="store_true", help="also write one file for the indexes of all files")
    add("--force", action="store_true", help="rebuild fresh indexes, too")
    add_json(parser)


def _run_index(
    paths: Sequence[str],
    format: str,
    output_dir: str | None,
    jobs: int | None,
    executor: str,
    manifest: bool,
    as_json: bool,
    **options: Any,
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
    if (manifest or options["columns"]) and format != _SIDECAR:
        option = "--manifest" if manifest else "--columns"
        raise ValueError(f"{option} needs --format safetensors")
    task = functools.partial(_index_file, format=format, output_dir=output_dir, **options)
    with open_executor(executor) as workers:
        outcomes = work_on_files(
            task, files, num_jobs=jobs, executor=workers, description="indexing"
        )
    _print_indexed(outcomes, as_json)
    status = exit_code([outcome.error for outcome in outcomes])
    if options["columns"] and not status:
        built = (outcome.value.index for outcome in outcomes if outcome.value)
        kept = (RecordIndex.load(place)._kept for place in built)
        _reader(options["columns"]).check(kept, read_records(files))
    # a manifest of some of the files would pass for that of all
    if manifest and not status:
        made = write_manifest(files, index_dir=output_dir, again=options["force"])
        print(
            json.dumps({"manifest": made.path, "num_files": made.num_files})
            if as_json
            else f"manifest of {pluralize(made.num_files, 'file')}, {pluralize(made.num_records, 'record')}: "
            f"{pluralize(made.num_bytes, 'byte')} -> {escape(made.path)}"
        )
    return status


def _print_indexed(outcomes: Sequence[Outcome[_Indexed]], as_json: bool) -> None:
    """Print one line per file, errors on stderr, and a last line with the counts; or a line of JSON
    per file.
    """
    for outcome in outcomes:
        path, file = without_secrets(outcome.path), outcome.value
        error = error_text(outcome.error) if outcome.error else ""
        if as_json:
            facts = asdict(file) if file else {}
            print(json.dumps({"path": path, **facts, "error": error}))
        elif file:
            begin, end = ("indexed", " ->") if file.is_new else ("fresh", ",")
            print(f"{begin} {escape(path)}: {_count([file])}{end} {escape(file.index)}")
        else:
            print(f"error: {error}", file=sys.stderr)
    if as_json:
        return
    done = [outcome.value for outcome in outcomes if outcome.value]
    num_new = sum(file.is_new for file in done)
    print(
        f"{pluralize(len(outcomes), 'file')}: {num_new} indexed, {len(done) - num_new} fresh, "
        f"{len(outcomes) - len(done)} failed; {_count(done)}"
    )


def _index_path(path: str, format: str, output_dir: str | None) -> str:
    if format == _SIDECAR:
        return IndexKeeper.place(path, output_dir)
    # DALI and others accept any name; the data file's own name with .idx is the usual one.
    if output_dir is not None:
        path = os.path.join(output_dir, os.path.basename(without_secrets(path)))
    return f"{path}.idx"


def _index_file(
    file: FileSource,
    *,
    format: str,
    output_dir: str | None,
    columns: Sequence[str],
    force: bool,
    verify_crc: bool,
    index_bytes_ratio: float,
) -> _Indexed:
    place = _index_path(file.path, format, output_dir)
    _, compression_type = open_stream(file, "auto")
    if format == _TEXT and compression_type:
        raise ValueError(
            f"{without_secrets(file.path)}: a tfrecord2idx index needs an uncompressed data file, got "
            f"{compression_type}; --format safetensors has no such limit"
        )
    fresh = None if force else _fresh_index(file, place, format)
    if fresh is not None and fresh._kept.keys() >= {*columns}:
        return _Indexed(len(fresh), file.file_size, place, is_new=False)
    index = RecordIndex._build(
        file,
        verify_crc=verify_crc,
        trusts_members=not verify_crc,
        index_bytes_ratio=index_bytes_ratio,
        reader=_reader(columns) if columns else None,
    )
    if format == _SIDECAR:
        before = {} if fresh is None else fresh._kept
        index._with_facts(_kept={**before, **index._kept})._keep(place)
    else:
        index.to_tfrecord2idx(place)
    return _Indexed(len(index), file.file_size, place, is_new=True)


def _reader(columns: Sequence[str]) -> Any:
    from torch_tfrecord.tables import ExampleColumns  # imports torch

    return ExampleColumns(columns)


def _fresh_index(file: FileSource, place: str, format: str) -> RecordIndex | None:
    try:
        if format == _SIDECAR:
            return RecordIndex._load_fresh(place, file)
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
    task = functools.partial(_decode_file, features) if is_decoded else _verify_file
    with open_executor(executor) as workers:
        outcomes += work_on_files(
            task, files, num_jobs=jobs, executor=workers, description="verifying"
        )
    errors = [_print_checked(outcome, as_json, is_decoded) for outcome in outcomes]
    if not as_json:
        count = _count([outcome.value for outcome in outcomes if outcome.value])
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
        print(f"bad: {text}{'' if number else extent(file.report)}")
    if len(bad) > _MOST_BAD:
        print(f"bad: {escape(outcome.path)}: {len(bad)} records in all")
    if file.index_problem:
        print(f"warning: {error_text(file.index_problem)}")
    return first


def _decode_file(features: str | None, file: FileSource) -> _Checked:
    from index_tools.record_check import check_records  # imports torch

    return _verify_file(file)._replace(bad_records=[*check_records(file, features)])


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


VERIFY = Verb(_VERIFY, _add_verify_arguments, _run_verify)
