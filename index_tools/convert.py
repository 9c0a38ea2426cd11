"""``tfrecord convert``: from files of other kinds to TFRecord, and back.

Each file is first written whole under a hidden name, which says what was asked for; when all are
there, they get their own names. So the same command goes on where it was interrupted.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from index_tools._outputs import add_output, check_outputs, create_folders
from index_tools._terminal import Verb, escape
from index_tools._workers import Advance, work
from index_tools.from_images import FOLDER_OPTIONS, FROM_IMAGES
from index_tools.pictures import add_image_options
from torch_tfrecord import ParseError, TFRecordError, find_files
from torch_tfrecord.arguments import shard_name
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.files import AtomicFile, is_remote
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.shown import features_code

__all__ = ["CONVERT"]

_TFRECORD = "TFRecord"
_KINDS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".json": "json", ".tar": "tar"}
# A stem and an ending; or, without a dot, a prefix.
_NAME = re.compile(
    r"(.*(?=\.)|(?:.*/)?[^./]*)(\.tfrec\w*(?:\.gz|\.zlib)?|\.parquet|\.csv|\.jsonl?|\.tar)?",
    re.DOTALL,
)

_DESCRIPTION = """\
OUT ends in .tfrecord (also .tfrecord.gz, .zlib), .parquet, .csv, .jsonl or .tar (WebDataset); without a dot it is
a prefix of TFRecord shards. IN has such a name, too, or is a folder: of files of one kind; that `save_to_disk` of
Hugging Face datasets wrote (--split); or of images (as for `tfrecord from-images`, whose options apply). One side
is TFRecord.

What is written is typed by --features, else by what is there; then the features are printed as code, to edit and
to pass as --features. Values are checked: what a kind cannot hold is refused by the name of its feature; leave it
out by --columns. TFRecord has no float64: rounded columns are named.

Without --num-shards OUT is one file; a prefix has a shard for each file of IN. Files appear when all are whole, and
never over others unless you pass --force. With --jobs they are written in parallel. After an interrupt the same
command goes on with the files that are missing; what is whole is kept beside OUT, under hidden names.

examples:
  tfrecord convert data.parquet data/train --num-shards 16 --jobs 4
  tfrecord convert 'data/train-*' train.csv --columns label,text
  tfrecord convert labels.csv labels.tfrecord --features features.py
  tfrecord convert photos/ data/train --labels-csv labels.csv"""


def _run(source: str, out: str, columns: str | None, features: str | None, **options: Any) -> int:
    """Find out which conversion it is, and do it."""
    usual = options.pop("usual")
    split = options.pop("split")
    kind, files = ("images", []) if options["labels_csv"] else _find_input(source)
    goal = _kind(out)
    if kind != "images":
        _output_paths(out, 1, False)
    if (kind == _TFRECORD) == (goal == _TFRECORD):
        raise ValueError(
            f"expected TFRecord on one side, got {kind} to {goal} (TFRecord to TFRecord: tfrecord reshard)"
        )
    if kind == "images":
        return FROM_IMAGES.run(source, out, **options)
    taken = [options.pop(name) for name in ("num_shards", "force", "jobs")]
    for name, value in options.items():
        if value != usual(name):
            raise ValueError(f"--{name.replace('_', '-')} is not for {kind} to {goal}")
    names = columns.split(",") if columns else None
    try:
        return _convert(kind, files, out, split, names, features, *taken)
    except ModuleNotFoundError as error:
        text = f"this conversion needs the package {error.name}: pip install {error.name}"
        raise ImportError(text) from error
    except (KeyError, TypeError) as error:  # no such split, or a column that is in no list
        raise ValueError(f"{error} (see --split, --columns)") from error


CONVERT = Verb(
    _DESCRIPTION,
    _run,
    "--features --jobs --json --seed",
    {
        "source": {"metavar": "IN", "help": "a file, a glob (quoted), or a folder"},
        "out": {"metavar": "OUT", "help": "a file, or a prefix of TFRecord shards"},
        "--columns": {"metavar": "A,B", "help": "only these features (default: all)"},
        **FOLDER_OPTIONS,
        "--split": {
            "default": "train",
            "help": "of a saved Hugging Face dataset (default: %(default)s)",
        },
    },
    (
        add_output,
        add_image_options,
        lambda parser: parser.set_defaults(usual=parser.get_default),
    ),
)


def _kind(path: str) -> str:
    return _KINDS.get(os.path.splitext(path)[1].lower(), _TFRECORD)


def _find_input(source: str) -> tuple[str, list[str]]:
    """The kind of what is there, and the files."""
    names = sorted(os.listdir(source)) if os.path.isdir(source) else []
    if {"state.json", "dataset_dict.json"}.intersection(names):
        return "dataset", [source]
    files = [os.path.join(source, name) for name in names if _kind(name) != _TFRECORD]
    if "features.json" in names:  # beside records of TFDS
        files = []
    try:
        files += find_files(source)
    except FileNotFoundError:
        if not names:
            raise
    kinds = {*map(_kind, files)} or {"images"}
    if len(kinds) > 1:
        raise ValueError(f"{source}: expected files of one kind, got {' and '.join(sorted(kinds))}")
    return kinds.pop(), files


def _convert(
    kind: str,
    files: list[str],
    out: str,
    split: str,
    names: list[str] | None,
    features: str | None,
    num_shards: int | None,
    force: bool,
    jobs: int | None,
) -> int:
    with needs_extra("this conversion", "arrow"):
        from index_tools.table_formats import deal_tables, read_tables, write_table
    # they import torch, which an image folder does without
    from index_tools._features import load_features
    from torch_tfrecord import (
        FixedLenFeature,
        Image,
        RawTensor,
        TFRecordDataset,
        infer_features,
    )

    paths = _output_paths(out, num_shards or len(files), bool(num_shards))
    specs: Any = load_features(features, files) if features or kind == _TFRECORD else None
    count = len(paths)
    is_dealt = kind != _TFRECORD and count != len(files)
    ages = [
        (os.path.getsize(path), os.path.getmtime(path)) for path in files if not is_remote(path)
    ]
    request, ending = repr([files, ages, specs, names, split]), os.path.splitext(paths[0])[1]
    folder = os.path.dirname(out)
    *staged, kept = [
        os.path.join(folder, AtomicFile.hidden_name(request + path, f"part{ending}"))
        for path in (*paths, "")
    ]
    if kind == _TFRECORD:
        stored = specs
        if not features and isinstance(specs, dict):
            plain = FixedLenFeature((), bytes)
            for name, spec in specs.items():
                if isinstance(spec, RawTensor):  # its sizes may be in other features
                    specs[name] = plain
            # the bytes of pictures are read without torchvision
            stored = {
                name: plain if isinstance(spec, Image) else spec for name, spec in specs.items()
            }
        data = TFRecordDataset(files, stored)
        data = data.select_columns(names) if names else data
        ends = [len(data) * number // count for number in range(count + 1)]
        reads = [data[begin:end].iter_arrow for begin, end in pairwise(ends)]
        write = partial(write_table, _kind(out), data[:0].to_arrow().schema)
        specs = (
            {name: specs[name] for name in data.features} if stored is not specs else data.features
        )
    else:
        read = partial(read_tables, kind, names=names or specs, specs=specs, split=split)
        reads = [partial(read, [path]) for path in files]
        if is_dealt:  # some rows at a time
            deal = partial(deal_tables, partial(read, files), kept, [])
            reads = [partial(deal, number, count) for number in range(count)]
        write = partial(_write_records, specs)
    check_outputs(paths, force)
    with (
        create_folders(out),
        _staging(staged, paths, kept),
        ProgressBar(desc="converting", unit="row") as bar,
    ):
        parts = zip(reads, staged, strict=True)
        missing = [(part, 0) for part in parts if not os.path.exists(part[1])]
        for part, _ in missing[:is_dealt]:  # the first to be dealt reads all
            _write_part(write, part, bar.update)
        for _ in work(
            partial(_write_part, write),
            missing[is_dealt:],
            bar,
            num_jobs=jobs or 1,
            module=__name__,
            advice="the same command goes on, also with fewer --jobs",
        ):
            pass
        if not any(map(os.path.getsize, staged)):
            raise ValueError(f"{files[0]}: expected rows with values in the columns, got none")
        try:
            specs = specs or infer_features(staged)
        except ParseError as error:  # its record is in none of your files
            raise ParseError(*error.args) from error
        if names and (lacking := {*names}.difference(specs)):
            raise ValueError(f"expected columns with values, got {sorted(lacking)} without")
    if not features:
        print(f"# from {escape(files[0])}\n{features_code(specs)}\n")
    print(f"# wrote {' to '.join(map(escape, dict.fromkeys([paths[0], paths[-1]])))}")
    return 0


@contextlib.contextmanager
def _staging(staged: list[str], paths: list[str], kept: str) -> Iterator[None]:
    """Give whole files their names; after an interrupt they stay, for the next time, but not the rows
    that are kept for others.
    """
    pairs = [*zip(staged, paths, strict=True)]
    try:
        yield
    except (TypeError, ValueError, TFRecordError) as error:
        for whole, path in pairs:
            error.args = tuple(str(text).replace(whole, path) for text in error.args)
            Path(whole).unlink(missing_ok=True)  # the next time would end the same
        raise
    finally:
        Path(kept).unlink(missing_ok=True)
    for whole, path in pairs:
        os.replace(whole, path)


def _output_paths(out: str, count: int, are_shards: bool) -> list[str]:
    match = _NAME.fullmatch(out)
    if not match or is_remote(out):
        raise ValueError(
            f"{out}: expected a name that ends in .tfrecord (.gz, .zlib), .parquet, .csv, .jsonl or .tar, or a prefix "
            "without a dot, on this machine"
        )
    stem, ending = match.groups()
    if ending and not are_shards:
        return [out]
    return [shard_name(stem, number, count, ending or ".tfrecord") for number in range(count)]


def _write_records(specs: Any, batches: Iterator[Any], path: str) -> None:
    from torch_tfrecord import write_arrow

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        write_arrow(batches, path, features=specs)
    for warning in told:  # floats were rounded
        print(f"warning: {escape(str(warning.message))}", file=sys.stderr)


def _write_part(write: Callable[..., None], pair: tuple[Any, str], advance: Advance) -> None:
    def told() -> Iterator[Any]:
        for batch in read():
            yield batch
            advance(batch.num_rows)

    read, path = pair
    write(told(), path)
