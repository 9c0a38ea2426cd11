"""``tfrecord verify``: check every record of many files."""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from index_tools._terminal import (
    Verbs,
    add_jobs,
    add_paths,
    add_verb,
    counted,
    data_paths,
    error_text,
)
from index_tools._workers import Outcome, exit_code, work_on_files
from torch_tfrecord.errors import IndexMismatchError, TFRecordError
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex, index_source, load_fresh
from torch_tfrecord.records.paths import find_files
from torch_tfrecord.records.scan import RecordScanner, SkippedBytes
from torch_tfrecord.records.sidecar import about_data, sidecar_path, visible_sidecar_path

__all__ = ["add_parser"]

_DESCRIPTION = """\
Checks both checksums of every record, that the file ends where its last record ends, and the
checksums of the compression. Prints one line for each bad file: the record and byte where the first
damage begins (in the decompressed stream for compressed files), what is wrong, and how much of the
file is damaged. A path that is not there gets a line, too, and the others are still checked (exit
status 2 if nothing else is wrong). The last line counts files, records, bytes and bad files.

An index beside a file is checked, too. A stale or damaged index only gives a warning and does not
change the exit status: it is never used and does not mean bad data (copying makes indexes stale). If
an index passes for fresh but names other records than the file has, the file is bad.

example:
  tfrecord verify 'data/train-*.tfrecord' || echo damaged"""


class _VerifiedFile(NamedTuple):
    """What was found in one file that could be read.

    Attributes:
        num_records: Undamaged records.
        num_bytes: Size of the file.
        damage: The first error, if any.
        num_damaged_places: Number of damaged places; neighbouring damaged records count as one.
        num_damaged_bytes: Bytes in these places, in the decompressed stream for compressed files.
        index_problem: What is wrong with the index beside the file, which is then not used.
    """

    num_records: int
    num_bytes: int
    damage: TFRecordError | None = None
    num_damaged_places: int = 0
    num_damaged_bytes: int = 0
    index_problem: IndexMismatchError | None = None


def add_parser(verbs: Verbs, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "verify", summary, _DESCRIPTION, _run)
    add_paths(parser)
    add_jobs(parser, "parallel processes")


def _run(options: argparse.Namespace) -> int:
    """Print one line for each bad file and each warning, and a last line with the counts; write no
    file.
    """
    outcomes: list[Outcome[_VerifiedFile]] = []
    files: list[str] = []
    for path in data_paths(options.paths):
        try:
            files += find_files(path)
        except OSError as missing:
            outcomes.append(Outcome(path, error=missing))
    outcomes += work_on_files(_verify_file, files, num_jobs=options.jobs, description="verifying")
    for outcome in outcomes:
        error, found = _error(outcome), outcome.value
        if error is not None:
            print(f"bad: {error_text(error)}{_extent(found)}")
        if found and found.index_problem:
            print(f"warning: {error_text(found.index_problem)}")
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    errors = list(map(_error, outcomes))
    print(
        f"{counted(len(outcomes), 'file')}, {counted(sum(file.num_records for file in values), 'record')}, "
        f"{counted(sum(file.num_bytes for file in values), 'byte')}, "
        f"{counted(len(errors) - errors.count(None), 'bad file')}"
    )
    return exit_code(errors)


def _error(outcome: Outcome[_VerifiedFile]) -> Exception | None:
    return outcome.error or (outcome.value.damage if outcome.value else None)


def _extent(found: _VerifiedFile | None) -> str:
    if found is None or not found.num_damaged_places:
        return ""
    places, good = (
        counted(found.num_damaged_places, "place"),
        counted(found.num_records, "good record"),
    )
    return f" ({counted(found.num_damaged_bytes, 'byte')} damaged in {places}, {good})"


def _verify_file(file: FileSource) -> _VerifiedFile:
    try:
        index = index_source(file)
    except TFRecordError as error:
        return _measure_damage(file, error)
    for place in (sidecar_path(file.path), visible_sidecar_path(file.path)):
        try:
            stored = load_fresh(place, file)
        except OSError:  # there is none
            continue
        except IndexMismatchError as error:
            return _VerifiedFile(
                len(index), file.file_size, index_problem=about_data(error, file.path)
            )
        return _VerifiedFile(len(index), file.file_size, _difference(index, stored, file.path))
    return _VerifiedFile(len(index), file.file_size)


def _difference(index: RecordIndex, stored: RecordIndex, path: str) -> IndexMismatchError | None:
    if np.array_equal(stored.offsets, index.offsets) and np.array_equal(
        stored.lengths, index.lengths
    ):
        return None
    return IndexMismatchError(
        f"the index passes for fresh but names other records: expected {counted(len(index), 'record')} as in the "
        f"file, got {len(stored)} or others",
        path=path,
    )


def _measure_damage(file: FileSource, error: TFRecordError) -> _VerifiedFile:
    """Read a damaged file again, past its damage: the fast check of good files stops at the first
    damage.
    """
    skipped = SkippedBytes()
    stream, _ = open_stream(file, "auto")
    num_records = sum(
        len(block.offsets) for block in RecordScanner(stream, keep_payloads=False, skipped=skipped)
    )
    # A compressed stream may end early between two records; then it is unknown how much is lost.
    lost = [end - begin for begin, end in skipped.ranges if end > begin]
    return _VerifiedFile(num_records, file.file_size, error, len(lost), sum(lost))
