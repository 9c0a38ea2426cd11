"""``tfrecord index``: build the indexes of many files."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from index_tools._terminal import (
    Verbs,
    add_jobs,
    add_paths,
    add_verb,
    data_files,
    error_text,
    escape,
    pluralize,
)
from index_tools._workers import Outcome, exit_code, work_on_files
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.files.storage import is_remote
from torch_tfrecord.records.compression import open_stream
from torch_tfrecord.records.index import RecordIndex, index_source, load_fresh
from torch_tfrecord.records.manifest_shards import write_manifest
from torch_tfrecord.records.sidecar import sidecar_path, write_sidecar
from torch_tfrecord.shown import without_secrets

__all__ = ["add_parser"]

_FORMATS = ("safetensors", "tfrecord2idx")

_DESCRIPTION = """\
With an index, any record can be read in one step. TFRecordDataset builds missing indexes itself;
building them first saves each job the time, and checks all data.

  safetensors    the format that TFRecordDataset reads, in the hidden folder .torch_index beside the data
                 (or in --output-dir; pass that folder to TFRecordDataset(index_dir=...))
  tfrecord2idx   <file>.idx: the text format of DALI and the package tfrecord; not for compressed files

Files with a fresh index are skipped. A damaged file gets no index; the others still do.

With --manifest one file for all of them is written, too: .torch_index/manifest.safetensors in the folder
that holds all the files (with --output-dir in that one). TFRecordDataset opens from it without a look at
each index: 100,000 files in a second.

examples:
  tfrecord index data/ 'more/train-*.tfrecord' --jobs 8
  tfrecord index data/ --manifest"""


class _IndexedFile(NamedTuple):
    """One file with its index; `is_new` is False if there was a fresh one already."""

    path: str
    index_path: str
    num_records: int
    num_bytes: int
    is_new: bool


def add_parser(verbs: Verbs, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "index", summary, _DESCRIPTION, _run)
    add_paths(parser)
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="safetensors",
        help="index format (default: %(default)s)",
    )
    parser.add_argument(
        "--output-dir", metavar="DIR", help="folder for the indexes (default: beside the data)"
    )
    add_jobs(parser, "parallel processes")
    parser.add_argument(
        "--no-crc",
        action="store_true",
        help="do not check the payloads' checksums, only the headers'",
    )
    parser.add_argument(
        "--manifest", action="store_true", help="also write one file for the indexes of all files"
    )
    parser.add_argument("--force", action="store_true", help="rebuild fresh indexes, too")


def _run(options: argparse.Namespace) -> int:
    """Each index appears complete or not at all."""
    format, output_dir = options.format, options.output_dir
    files = data_files(options.paths)
    places = [_index_path(path, format, output_dir) for path in files]
    repeated = [place for place, count in Counter(places).items() if count > 1]
    if repeated:
        raise ValueError(
            f"several data files would have the same index {repeated[0]}; index them one folder at a time"
        )
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    elif any(map(is_remote, files)):
        raise ValueError("indexes are written to local files; pass --output-dir for remote data")
    if options.manifest and format != "safetensors":
        raise ValueError("--manifest needs --format safetensors")
    settings = {"verify_crc": not options.no_crc, "force": options.force}
    task = functools.partial(_index_file, format=format, output_dir=output_dir, **settings)
    outcomes = work_on_files(task, files, num_jobs=options.jobs, description="indexing")
    _print_report(outcomes)
    status = exit_code([outcome.error for outcome in outcomes])
    if options.manifest and not status:
        _write_manifest(files, output_dir, again=options.force)
    return status


def _write_manifest(files: Sequence[str], output_dir: str | None, *, again: bool) -> None:
    written = write_manifest(files, index_dir=output_dir, again=again)
    print(
        f"manifest of {pluralize(written.num_files, 'file')}, {pluralize(written.num_records, 'record')}: "
        f"{pluralize(written.num_bytes, 'byte')} -> {escape(written.path)}"
    )


def _print_report(outcomes: Sequence[Outcome[_IndexedFile]]) -> None:
    """Print one line per file, errors on stderr, and a last line with the counts."""
    done = [outcome.value for outcome in outcomes if outcome.value is not None]
    for file in done:
        content = f"{pluralize(file.num_records, 'record')}, {pluralize(file.num_bytes, 'byte')}"
        begin, end = ("indexed", " ->") if file.is_new else ("fresh", ",")
        print(
            f"{begin} {escape(without_secrets(file.path))}: {content}{end} {escape(file.index_path)}"
        )
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"error: {error_text(outcome.error)}", file=sys.stderr)
    num_new = sum(file.is_new for file in done)
    print(
        f"{pluralize(len(outcomes), 'file')}: {num_new} indexed, {len(done) - num_new} fresh, "
        f"{len(outcomes) - len(done)} failed; {pluralize(sum(file.num_records for file in done), 'record')}, "
        f"{pluralize(sum(file.num_bytes for file in done), 'byte')}"
    )


def _index_path(path: str, format: str, output_dir: str | None) -> str:
    if format == "safetensors":
        return sidecar_path(path, output_dir)
    # DALI and others accept any name; the data file's own name with .idx is the usual one.
    return f"{path if output_dir is None else os.path.join(output_dir, os.path.basename(without_secrets(path)))}.idx"


def _index_file(
    file: FileSource, *, format: str, output_dir: str | None, verify_crc: bool, force: bool
) -> _IndexedFile:
    place = _index_path(file.path, format, output_dir)
    _, compression_type = open_stream(file, "auto")
    if format == "tfrecord2idx" and compression_type:
        raise ValueError(
            f"{without_secrets(file.path)}: a tfrecord2idx index needs an uncompressed data file, got "
            f"{compression_type}; --format safetensors has no such limit"
        )
    index = None if force else _fresh_index(file, place, format)
    is_new = index is None
    if index is None:
        index = index_source(file, verify_crc=verify_crc)
        if format == "safetensors":
            write_sidecar(place, index.to_bytes())
        else:
            index.to_tfrecord2idx(place)
    return _IndexedFile(file.path, place, len(index), file.file_size, is_new)


def _fresh_index(file: FileSource, place: str, format: str) -> RecordIndex | None:
    try:
        if format == "safetensors":
            return load_fresh(place, file)
        # The text form has no information on the data file, so compare modification times, like
        # make.
        if os.stat(place).st_mtime_ns < file.mtime_ns:
            return None
        return RecordIndex.from_tfrecord2idx(place, file.path)
    except (OSError, TFRecordError):
        return None
