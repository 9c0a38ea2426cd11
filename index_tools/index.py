"""``tfrecord index``: read many files completely, and build their indexes."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from index_tools._terminal import (
    Verb,
    data_files,
    error_text,
    escape,
    pluralize,
)
from index_tools._workers import Outcome, exit_code, open_executor, work_on_files
from torch_tfrecord import (
    RecordIndex,
    TFRecordError,
    read_records,
)
from torch_tfrecord.files import FileSource, is_remote
from torch_tfrecord.manifests import write_manifest
from torch_tfrecord.records import IndexKeeper, open_stream
from torch_tfrecord.shown import without_secrets

__all__ = ["INDEX", "total"]

_Facts: TypeAlias = dict[str, Any]
"""The facts about a file that has an index."""

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


def total(files: Sequence[tuple[int, int]]) -> str:
    """The records and bytes of files, in words."""
    records, size = map(sum, zip(*files, strict=True)) if files else (0, 0)
    return f"{pluralize(records, 'record')}, {pluralize(size, 'byte')}"


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
        built = (outcome.value["index"] for outcome in outcomes if outcome.value)
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


def _print_indexed(outcomes: Sequence[Outcome[_Facts]], as_json: bool) -> None:
    """Print one line per file, errors on stderr, and a last line with the counts; or a line of JSON
    per file.
    """
    done = [outcome.value for outcome in outcomes if outcome.value]
    for outcome in outcomes:
        path, file = without_secrets(outcome.path), outcome.value
        error = error_text(outcome.error) if outcome.error else ""
        if as_json:
            print(json.dumps({"path": path, **(file or {}), "error": error}))
        elif file:
            begin, end = ("indexed", " ->") if file["is_new"] else ("fresh", ",")
            print(f"{begin} {escape(path)}: {_count([file])}{end} {escape(str(file['index']))}")
        else:
            print(f"error: {error}", file=sys.stderr)
    if not as_json:
        num_new = sum(bool(file["is_new"]) for file in done)
        print(
            f"{pluralize(len(outcomes), 'file')}: {num_new} indexed, {len(done) - num_new} fresh, "
            f"{len(outcomes) - len(done)} failed; {_count(done)}"
        )


def _count(files: Sequence[_Facts]) -> str:
    return total([(file["num_records"], file["num_bytes"]) for file in files])


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
) -> _Facts:
    place = _index_path(file.path, format, output_dir)
    _, compression_type = open_stream(file, "auto")
    if format == _TEXT and compression_type:
        raise ValueError(
            f"{without_secrets(file.path)}: a tfrecord2idx index needs an uncompressed data file, got "
            f"{compression_type}; --format safetensors has no such limit"
        )
    index = None if force else _fresh_index(file, place, format)
    is_new = index is None or not index._kept.keys() >= {*columns}
    if index is None or is_new:
        before = {} if index is None else index._kept
        index = RecordIndex._build(
            file,
            verify_crc=verify_crc,
            trusts_members=not verify_crc,
            index_bytes_ratio=index_bytes_ratio,
            reader=_reader(columns) if columns else None,
        )
        if format == _SIDECAR:
            whole = index._with_facts(_kept={**before, **index._kept})
            IndexKeeper.write(place, whole.to_bytes())
        else:
            index.to_tfrecord2idx(place)
    size = file.file_size
    return {"num_records": len(index), "num_bytes": size, "index": place, "is_new": is_new}


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


INDEX = Verb(
    _INDEX,
    _run_index,
    "paths --jobs --executor --json",
    {
        "--format": {
            "choices": _FORMATS,
            "default": _SIDECAR,
            "help": "index format (default: %(default)s)",
        },
        "--output-dir": {
            "metavar": "DIR",
            "help": "folder for the indexes (default: beside the data)",
        },
        "--columns": {
            "type": lambda text: text.split(","),
            "default": [],
            "metavar": "A,B,len(C)",
            "help": "features to keep beside the offsets, one value a record, or the number of values",
        },
        "--no-crc": {
            "dest": "verify_crc",
            "action": "store_false",
            "help": "do not check the payloads' checksums, only the headers'",
        },
        "--index-bytes-ratio": {
            "type": float,
            "default": 0.005,
            "metavar": "SHARE",
            "help": "of a compressed file, that its seek points may take (default: %(default)s)",
        },
        "--manifest": {
            "action": "store_true",
            "help": "also write one file for the indexes of all files",
        },
        "--force": {"action": "store_true", "help": "rebuild fresh indexes, too"},
    },
)
