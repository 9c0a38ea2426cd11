"""``tfrecord from-images``: from an image folder, with one sub-folder per class, to shards of
Examples like TensorFlow's ImageNet files.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from index_tools._outputs import Output, add_output, create_folders
from index_tools._terminal import (
    Verb,
    align,
    error_text,
    escape,
    pluralize,
)
from index_tools.pictures import Encoding, add_image_options, map_in_threads, print_prices
from torch_tfrecord import ImageDecodeError
from torch_tfrecord.files import AtomicFile, open_file
from torch_tfrecord.media import check_image, guess_content, image_format, image_size
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.random_stream import shuffled

__all__ = ["FOLDER_OPTIONS", "FROM_IMAGES", "load_image"]

_HEAD_BYTES = 64  # enough to recognise an image, so that no video is read completely
_COLUMNS = ("images", "re-encoded", "bytes before", "bytes after")

_DESCRIPTION = """\
Each sub-folder of FOLDER is a class. Labels count from 0 in the sorted order of the class names, also
for classes without images, so that a training and a test folder agree. Files may be at any depth;
hidden ones are ignored. Images are JPEG, PNG, GIF, BMP or WebP, detected by content. Each is decoded
to check that it is complete. Unreadable files are skipped and listed at the end; they do not change
the exit status, unless no image is left (1). Writes, all at once when everything is ready, and never
over a set of shards that is there, unless you pass --force:

  FOLDER/PREFIX-00000-of-00004.tfrecord ...  the shards (.gz, .zlib if compressed)
  FOLDER/labels-PREFIX.txt                   the class names, one per line
  FOLDER/.torch_index/                       the shards' indexes

Each record is an Example: image/encoded, image/format (JPEG, PNG, ...), image/height, image/width,
image/class/label, image/class/text, image/filename. Records are shuffled unless you pass --no-shuffle,
since many readers shuffle only a little; the same seed gives the same files.

Images keep their bytes unless you pass --image-format or --image-quality. Then other formats are re-encoded;
JPEG files keep their bytes unless you pass --recompress, and so do images with alpha where JPEG would lose it
(--drop-alpha), with 16 bits (--to-8bit), animations, and images of that format already where nothing is saved:
how many, and why, is said. EXIF's orientation is the only metadata carried over; with --orientation applied
the pixels are turned instead. `--image-quality table` shows what each choice costs, for 100 of the images: bytes,
PSNR and SSIM (higher is nearer to the original; needs the extra `tools`).

examples:
  tfrecord from-images photos/ data/train
  tfrecord from-images photos/ data/train --image-quality table
  tfrecord from-images photos/ data/train --num-shards 16 --image-format jpeg --image-quality 92"""


FOLDER_OPTIONS: dict[str, dict[str, Any]] = {
    "--labels-csv": {
        "metavar": "FILE",
        "help": "the images are not in sub-folders: a CSV names the file and its label, in the first two columns; its "
        "first line is a header if it names no file",
    },
    "--shuffle": {
        "action": argparse.BooleanOptionalAction,
        "default": True,
        "help": "shuffle the records (default: yes)",
    },
}


_File: TypeAlias = tuple[str, int]
"""The path of a file, and its label; reading it shows whether it is an image."""

_Folder: TypeAlias = tuple[list[str], list[_File], int]
"""Classes in the order of their labels, sorted files, and the number of files without a class."""

_Loaded: TypeAlias = tuple[_File, bytes, bytes, str]
"""A file, its bytes, those of the record (the same object where it keeps its own), and why they were
not re-encoded although they should be; empty if they were, or need not be.
"""


class _Report(NamedTuple):
    """The images that were written, and those that were skipped.

    Attributes:
        paths: The file of the class names, and the shards.
        formats: Source format -> the numbers of the table's columns.
        kept: Reason -> number of images that were to be re-encoded, and were not.
        skipped: The error of each skipped file.
        classes: Class -> number of records.
    """

    paths: list[str]
    formats: dict[str, Counter[str]]
    kept: Counter[str]
    skipped: list[str]
    classes: Counter[str]


def _run(
    folder: str,
    prefix: str,
    shuffle: bool,
    seed: int,
    jobs: int | None,
    as_json: bool,
    labels_csv: str | None,
    **options: Any,
) -> int:
    """Convert the folder; either all output files appear at the end, or none."""
    is_table = options["image_quality"] == "table"
    encoding, output = Encoding.take(options), Output.named(prefix, **options)
    if not is_table:
        output.check()
    content = _read_labels(folder, labels_csv) if labels_csv else _find_images(folder)
    report = _Report([], defaultdict(Counter), Counter(), [], Counter())
    files = shuffled(content[1], seed) if shuffle or is_table else content[1]

    def load(file: _File) -> _Loaded | None:
        try:
            return file, *load_image(file[0], None if is_table else encoding)
        except (ImageDecodeError, OSError) as error:
            report.skipped.append(error_text(error))
            return None

    if is_table and encoding:
        pictures = (image[1] for image in map(load, files) if image)
        print_prices(pictures, encoding, jobs, as_json=as_json)
        for error in report.skipped:
            print(f"skipped: {error}", file=sys.stderr)
        return 0
    loaded = map_in_threads(load, files, jobs)
    bar = ProgressBar(loaded, total=len(files), desc="converting", unit="image")
    _write_shards(filter(None, bar), content[0], output, report)
    report.skipped.sort()
    if as_json:
        print(json.dumps(report._asdict()))
    else:
        _print_report(report, content)
    return 0 if report.paths else 1


FROM_IMAGES = Verb(
    _DESCRIPTION,
    _run,
    "--jobs --json --seed",
    {
        "folder": {"metavar": "FOLDER", "help": "one sub-folder per class"},
        "prefix": {
            "metavar": "OUTPUT_PREFIX",
            "help": "path and first part of the names of the output files; one file if it ends in .tfrecord "
            "(.gz, .zlib)",
        },
        **FOLDER_OPTIONS,
    },
    (add_output, add_image_options),
)


def _print_report(report: _Report, content: _Folder) -> None:
    """Print what was written, the bytes per format before and after, and what was skipped; warnings
    go to stderr.
    """
    names, _, num_outside = content
    if report.paths:
        labels, *shards = map(escape, report.paths)
        num_records = pluralize(report.classes.total(), "record")
        num_classes = pluralize(len(names), "class", "classes")
        paths = " to ".join(dict.fromkeys((shards[0], shards[-1])))
        print(f"wrote {num_records} of {num_classes} in {pluralize(len(shards), 'shard')}: {paths}")
        print(f"wrote {pluralize(len(names), 'class name')}: {labels}\n")
        total = sum(report.formats.values(), Counter[str]())
        rows = [*sorted(report.formats.items()), ("total", total)]
        cells = [(name, *(str(counts[column]) for column in _COLUMNS)) for name, counts in rows]
        print("\n".join(align([("format", *_COLUMNS), *cells], "<>>>>")))
    else:
        print("wrote nothing: no image could be read")
    for reason, number in sorted(report.kept.items()):
        print(f"kept {pluralize(number, 'image')} as they were: {reason}")
    if report.skipped:
        print(f"\nskipped {pluralize(len(report.skipped), 'file')}:")
        print("\n".join(f"  {error}" for error in report.skipped))
    outside = f"skipped {pluralize(num_outside, 'file')} directly in the folder, without a class"
    warnings = [outside] * bool(num_outside)
    for label, name in enumerate(names):
        if name not in report.classes:
            warnings.append(f"no images in class {label}: {escape(name)}")
    sys.stdout.flush()
    sys.stderr.writelines(f"warning: {text}\n" for text in warnings)


# Images.


def _find_images(folder: str) -> _Folder:
    """List an image folder like torchvision's ImageFolder; hidden files and folders are skipped.

    Every sub-folder is a class, even an empty one, so that the labels of a training and a test
    folder agree.

    Raises:
        OSError: The folder, or one in it, cannot be read.
        ValueError: There is no sub-folder with a file, or a class name has a line break.
    """
    visible = [path for path in Path(folder).iterdir() if not path.name.startswith(".")]
    classes = sorted((path.name for path in visible if path.is_dir()), key=os.fsencode)
    for name in classes:
        # the file of class names has one on each line
        if "\n" in name or "\r" in name:
            raise ValueError(f"{folder}: expected class names without line breaks, got {name!r}")
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in _walk(os.path.join(folder, name))
    ]
    num_outside = len(visible) - len(classes)
    if not files:
        raise ValueError(
            f"{folder}: expected sub-folders with images, one per class, such as {folder}/cat/1.jpg, got "
            f"{len(classes)} empty ones, and {pluralize(num_outside, 'file')} without a class directly in the folder"
        )
    return classes, files, num_outside


def _read_labels(folder: str, labels_csv: str) -> _Folder:
    """List the images that a CSV names, with or without their endings, and their labels.

    The classes are sorted: by their value if all are integers.

    Raises:
        OSError: The folder or the CSV cannot be read.
        ValueError: The CSV names a file twice, or one that is not there, or without a label.
    """
    paths = {os.path.relpath(path, folder): path for path in _walk(folder)}
    known = {os.path.splitext(name)[0]: path for name, path in paths.items()} | paths
    with Path(labels_csv).open(newline="", encoding="utf-8-sig") as file:
        rows = [(*row, "", "")[:2] for row in csv.reader(file)]
    if rows and rows[0][0] not in known:
        header = escape(", ".join(rows.pop(0)))
        print(f"header of {escape(labels_csv)}: {header}", file=sys.stderr)
    labels = {known.get(name): label for name, label in rows}
    if None in labels or "" in labels.values() or len(labels) < max(len(rows), 1):
        raise ValueError(f"{labels_csv}: expected rows with another file of {folder} and its label")
    is_integer = all(map(str.isdecimal, labels.values()))
    classes = sorted({*labels.values()}, key=int if is_integer else os.fsencode)
    files = [(str(path), classes.index(label)) for path, label in labels.items()]
    return classes, files, len(paths) - len(files)


def _walk(folder: str) -> Iterator[str]:
    """All files below a folder, in a fixed order; links are followed, except in loops."""
    seen: set[str] = set()
    for path, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        place = os.path.realpath(path)
        for found in (folders, names):
            found[:] = sorted((name for name in found if name[0] != "."), key=os.fsencode)
        # a link to a folder that was there already, perhaps above
        if place in seen:
            folders.clear()
        else:
            seen.add(place)
            yield from (os.path.join(path, name) for name in names)


def _raise(error: OSError) -> None:
    raise error


def load_image(path: str, encoding: Encoding | None = None) -> tuple[bytes, bytes, str]:
    """Read an image, decode it to check that it is complete, and re-encode it if wanted.

    Args:
        path: The file.
        encoding: How to re-encode it. None keeps every file's bytes.

    Returns:
        See `_Loaded`.

    Raises:
        ImageDecodeError: The file is not an image, or is damaged.
        OSError: The file cannot be read, or is a pipe or device.
    """
    opened = open_file(path)
    # a film in the folder may have gigabytes
    head = opened.read(_HEAD_BYTES, 0)
    try:
        if image_format(head) is None:
            content = f"that look like {guess_content(head)}" if head else "(an empty file)"
            raise ImageDecodeError(
                f"expected a JPEG, PNG, GIF, BMP or WebP image, got {opened.file_size} bytes {content}"
            )
        source = opened.read(opened.file_size, 0)
        if encoding:
            return source, *encoding.encode(source)
        check_image(source)
        return source, source, ""
    except ImageDecodeError as error:
        raise error.locate(path=path) from error.__cause__


# Shards.


def _write_shards(
    images: Iterator[_Loaded], classes: Sequence[str], output: Output, report: _Report
) -> None:
    """Write shards with their indexes, and ``labels-<prefix's name>.txt``; creates missing folders,
    and says in the report what was written: nothing if there is no image.

    Records have the keys of TensorFlow's ImageNet files; names are the bytes on disk.

    Raises:
        OSError: A file cannot be written. Then, as after an interrupt, nothing is left.
    """
    # folders are made only if there is something to put there
    first = next(images, None)
    if not first:
        return
    folder, name = os.path.split(output.prefix)
    with create_folders(output.prefix):
        labels = AtomicFile(os.path.join(folder, f"labels-{name}.txt"))
        try:
            labels.write(b"".join(os.fsencode(name) + b"\n" for name in classes))
            labels.prepare()
            with output.writer([labels]) as writer:
                for (path, label), source, encoded, kept in itertools.chain([first], images):
                    height, width = image_size(encoded)
                    example = {
                        "image/encoded": encoded,
                        "image/format": str(image_format(encoded)).upper(),
                        "image/height": height,
                        "image/width": width,
                        "image/class/label": label,
                        "image/class/text": os.fsencode(classes[label]),
                        "image/filename": os.fsencode(os.path.basename(path)),
                    }
                    writer.write(example)
                    numbers = 1, encoded is not source, len(source), len(encoded)
                    format = image_format(source) or ""
                    report.formats[format].update(dict(zip(_COLUMNS, numbers, strict=True)))
                    report.kept.update([kept] if kept else [])
                    report.classes[classes[label]] += 1
        finally:
            labels.discard()  # does nothing once it is published
    report.paths.extend([labels.path, *writer.paths])
