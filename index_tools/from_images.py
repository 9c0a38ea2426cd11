"""``tfrecord from-images``: from an image folder to shards of Examples like TensorFlow's ImageNet
files.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from index_tools._arguments import Verbs, add_jobs, add_verb, byte_size, integer
from index_tools._images import (
    ImageFile,
    LoadedImage,
    check_output,
    find_images,
    load_image,
    write_shards,
)
from index_tools._text import counted, error_text, escape, format_table
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.order.random_stream import shuffled
from torch_tfrecord.processors import num_processors
from torch_tfrecord.progress import ProgressBar

__all__ = ["add_parser"]

_T = TypeVar("_T")
_R = TypeVar("_R")

# Large enough that the cost of opening a shard does not matter, small enough to copy and to shuffle
# by file.
_DEFAULT_SHARD_BYTES = 100_000_000

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

With --jpeg-quality, other formats are re-encoded as JPEG; JPEG files keep their bytes. Images with
alpha are kept as they are unless you pass --drop-alpha; 16-bit images are always kept.

examples:
  tfrecord from-images photos/ data/train
  tfrecord from-images photos/ data/train --num-shards 16 --jpeg-quality 92"""


@dataclass
class _Conversion:
    """What was written and what was skipped.

    Attributes:
        classes: The class names, in the order of their labels.
        paths: The shards; empty if no image could be read.
        labels_path: The file of class names.
        formats: Source format -> the numbers of the report's columns.
        kept: Reason -> number of images that --jpeg-quality did not re-encode.
        skipped: The errors of skipped files, in sorted order of the files.
        images_per_class: Label -> number of records.
        num_outside: Number of files directly in the folder, without a class.
    """

    classes: tuple[str, ...]
    num_outside: int
    paths: list[str] = field(default_factory=list)
    labels_path: str = ""
    formats: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    kept: Counter[str] = field(default_factory=Counter)
    skipped: list[tuple[ImageFile, Exception]] = field(default_factory=list)
    images_per_class: Counter[int] = field(default_factory=Counter)

    def count(self, image: LoadedImage) -> None:
        """Count an image that was written."""
        numbers = (1, image.format != image.source_format, image.source_bytes, len(image.encoded))
        self.formats[image.source_format].update(dict(zip(_COLUMNS, numbers, strict=True)))
        if image.kept:
            self.kept[image.kept] += 1
        self.images_per_class[image.file.label] += 1


def add_parser(verbs: Verbs, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "from-images", summary, _DESCRIPTION, _run)
    parser.add_argument("folder", metavar="FOLDER", help="one sub-folder per class")
    parser.add_argument(
        "prefix",
        metavar="OUTPUT_PREFIX",
        help="path and first part of the names of the output files",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--num-shards", type=integer(1), metavar="N", help="write this many shards")
    size.add_argument(
        "--max-shard-bytes",
        type=byte_size,
        metavar="SIZE",
        help="maximum size of a shard, such as 1GiB (default: 100MB)",
    )
    parser.add_argument(
        "--compression",
        type=str.upper,
        choices=("GZIP", "ZLIB"),
        help="compress the shards (default: no, since images are compressed already)",
    )
    parser.add_argument(
        "--jpeg-quality",
        type=integer(1, 100),
        metavar="Q",
        help="re-encode other formats as JPEG of this quality, 1 to 100",
    )
    parser.add_argument(
        "--drop-alpha", action="store_true", help="also re-encode images with alpha, without it"
    )
    parser.add_argument(
        "--shuffle",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="shuffle the records (default: yes)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of the shuffle (default: %(default)s)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write over a set of as many shards (with --num-shards)",
    )
    add_jobs(parser, "decoding threads")


def _run(options: argparse.Namespace) -> int:
    """Convert the folder; either all output files appear at the end, or none."""
    max_shard_bytes, jpeg_quality, drop_alpha = (
        options.max_shard_bytes,
        options.jpeg_quality,
        options.drop_alpha,
    )
    if drop_alpha and jpeg_quality is None:
        raise ValueError("--drop-alpha needs --jpeg-quality: otherwise no image is re-encoded")
    if options.num_shards is None and max_shard_bytes is None:
        max_shard_bytes = _DEFAULT_SHARD_BYTES
    check_output(options.prefix, options.num_shards, options.compression, force=options.force)
    content = find_images(options.folder)
    result = _Conversion(content.classes, content.num_outside)
    files = shuffled(content.files, options.seed) if options.shuffle else list(content.files)
    load = functools.partial(_load_or_error, jpeg_quality=jpeg_quality, drop_alpha=drop_alpha)
    with ProgressBar(total=len(files), desc="converting", unit="image") as bar:
        images = _written(_parallel(load, files, options.jobs or num_processors()), result, bar)
        result.paths, result.labels_path = write_shards(
            images,
            content.classes,
            options.prefix,
            num_shards=options.num_shards,
            max_shard_bytes=max_shard_bytes,
            compression_type=options.compression,
        )
    result.skipped.sort(key=lambda skipped: os.fsencode(skipped[0].path))
    _print_report(result)
    return 0 if result.paths else 1


def _print_report(result: _Conversion) -> None:
    """Print what was written, the bytes per format before and after, and what was skipped; warnings
    go to stderr.
    """
    num_records = sum(result.images_per_class.values())
    if result.paths:
        more = "" if len(result.paths) == 1 else f" to {escape(result.paths[-1])}"
        classes = counted(len(result.classes), "class", "classes")
        print(
            f"wrote {counted(num_records, 'record')} of {classes} in {counted(len(result.paths), 'shard')}: "
            f"{escape(result.paths[0])}{more}"
        )
        print(f"wrote {counted(len(result.classes), 'class name')}: {escape(result.labels_path)}")
        print()
        print("\n".join(format_table(_rows(result))))
    else:
        print("wrote nothing: no image could be read")
    for reason, number in sorted(result.kept.items()):
        print(f"kept {counted(number, 'image')} as they were: {reason}")
    if result.skipped:
        print(f"\nskipped {counted(len(result.skipped), 'file')}:")
        for _, error in result.skipped:
            print(f"  {error_text(error)}")
    sys.stdout.flush()
    if result.num_outside:
        outside = counted(result.num_outside, "file")
        print(
            f"warning: skipped {outside} directly in the folder, without a class", file=sys.stderr
        )
    for label, name in enumerate(result.classes):
        if not result.images_per_class[label]:
            print(f"warning: no images in class {label}: {escape(name)}", file=sys.stderr)


def _rows(result: _Conversion) -> list[tuple[str, ...]]:
    """The table: one row per source format, and the total."""
    formats = [*sorted(result.formats.items()), ("total", sum(result.formats.values(), Counter()))]
    return [
        ("format", *_COLUMNS),
        *((name, *(str(counts[column]) for column in _COLUMNS)) for name, counts in formats),
    ]


def _load_or_error(
    file: ImageFile, *, jpeg_quality: int | None, drop_alpha: bool
) -> LoadedImage | tuple[ImageFile, Exception]:
    try:
        return load_image(file, jpeg_quality=jpeg_quality, drop_alpha=drop_alpha)
    except (ImageDecodeError, OSError) as error:
        return file, error


def _written(
    loaded: Iterator[LoadedImage | tuple[ImageFile, Exception]],
    result: _Conversion,
    bar: ProgressBar,
) -> Iterator[LoadedImage]:
    """Yield the images and count them; note what could not be loaded."""
    for item in loaded:
        bar.update()
        if isinstance(item, LoadedImage):
            result.count(item)
            yield item
        else:
            result.skipped.append(item)


def _parallel(task: Callable[[_T], _R], items: Sequence[_T], num_threads: int) -> Iterator[_R]:
    """`map` with threads (decoding releases the GIL), in order, with few results waiting."""
    pool = ThreadPoolExecutor(num_threads, "tfrecord-images")
    waiting: deque[Future[_R]] = deque()
    source = iter(items)
    try:
        waiting.extend(
            pool.submit(task, item) for item in itertools.islice(source, 2 * num_threads)
        )
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(task, item) for item in itertools.islice(source, 1))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
