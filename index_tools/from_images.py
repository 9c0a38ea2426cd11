"""``tfrecord from-images``: an image folder to shards of TensorFlow's ImageNet style Examples."""

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
from typing import Any, TypeVar

from index_tools._arguments import add_jobs, add_verb, byte_size, default_jobs, integer
from index_tools._image_folder import ImageFile, LoadedImage, find_images, load_image
from index_tools._image_shards import check_output, write_shards
from index_tools._text import counted, error_text, escape, format_table
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.order.random_stream import shuffled
from torch_tfrecord.progress import ProgressBar

__all__ = ["Conversion", "FormatCount", "add_parser", "print_report", "run"]

_T = TypeVar("_T")
_R = TypeVar("_R")

# Large enough that opening a shard costs nothing beside reading it, small enough to copy and to shuffle by file.
_DEFAULT_SHARD_BYTES = 100_000_000

_DESCRIPTION = """\
Each sub-folder of FOLDER is a class; its name's place in sorted order is the label, from 0, also where
it holds no image (so that a training and a test folder agree). Files lie at any depth; hidden ones are
ignored. Images are JPEG, PNG, GIF, BMP or WebP, told by their content. Each is decoded to see that it
is whole; what cannot be read is left out, listed at the end, and does not change the exit status,
unless nothing is left (1). Writes, all at once when everything is ready:

  FOLDER/PREFIX-00000-of-00004.tfrecord ...  the shards (.gz, .zlib if compressed)
  FOLDER/labels-PREFIX.txt                   the classes, one a line
  FOLDER/.torch_index/                       the shards' indexes

Each record is an Example: image/encoded, image/format (JPEG, PNG, ...), image/height, image/width,
image/class/label, image/class/text, image/filename. Records are shuffled unless --no-shuffle, since
many readers shuffle little; the same seed gives the same files.

With --jpeg-quality, what is not JPEG becomes JPEG; JPEG files stay byte for byte. Images with alpha
stay as they are unless --drop-alpha, and 16-bit images always.

examples:
  tfrecord from-images photos/ data/train
  tfrecord from-images photos/ data/train --num-shards 16 --jpeg-quality 92"""


@dataclass
class FormatCount:
    """Images of one source format: how many, how many of them were re-encoded, and their bytes before and after."""

    num_images: int = 0
    num_reencoded: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass
class Conversion:
    """What was written and what was left out.

    Attributes:
        classes: In the order of their labels.
        paths: The shards; empty where no image could be read.
        labels_path: The file of class names.
        formats: Source format -> counts.
        kept: Reason -> number of images that --jpeg-quality left as they are.
        skipped: The errors of the files that were left out, in sorted order of the files.
        images_per_class: Label -> number of records.
        num_outside: Files directly in the folder, which are in no class.
    """

    classes: tuple[str, ...]
    num_outside: int
    paths: list[str] = field(default_factory=list)
    labels_path: str = ""
    formats: defaultdict[str, FormatCount] = field(default_factory=lambda: defaultdict(FormatCount))
    kept: Counter[str] = field(default_factory=Counter)
    skipped: list[tuple[ImageFile, Exception]] = field(default_factory=list)
    images_per_class: Counter[int] = field(default_factory=Counter)

    def count(self, image: LoadedImage) -> None:
        """Count an image that was written."""
        counts = self.formats[image.source_format]
        counts.num_images += 1
        counts.num_reencoded += image.format != image.source_format
        counts.bytes_before += image.source_bytes
        counts.bytes_after += len(image.encoded)
        if image.kept:
            self.kept[image.kept] += 1
        self.images_per_class[image.file.label] += 1


def run(
    folder: str,
    prefix: str,
    *,
    num_shards: int | None = None,
    max_shard_bytes: int | None = None,
    compression_type: str | None = None,
    jpeg_quality: int | None = None,
    drop_alpha: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    num_jobs: int | None = None,
) -> Conversion:
    """Write an image folder as a set of shards; all files appear at the end, or none.

    Args:
        folder: One sub-folder per class.
        prefix: Path and first part of the shards' names; missing folders are made.
        num_shards: Write this many shards, in turn.
        max_shard_bytes: Or begin a new one before this size is exceeded; without either, before 100 MB.
        compression_type: None, "GZIP" or "ZLIB"; of little use, as images are compressed already.
        jpeg_quality: 1 to 100: re-encode what is not JPEG. None keeps every file's bytes.
        drop_alpha: Re-encode images with alpha, too.
        shuffle: Put the files in an order that depends on `seed` alone; else they are sorted.
        seed: Of that order.
        num_jobs: Threads that decode; None is as many as there are processors.

    Raises:
        ValueError: no sub-folder with files; wrong arguments; shards of another set with this prefix are there.
        OSError: the folder cannot be read, or the shards cannot be written.
    """
    if drop_alpha and jpeg_quality is None:
        raise ValueError("--drop-alpha needs --jpeg-quality: without it no image is re-encoded")
    if num_shards is None and max_shard_bytes is None:
        max_shard_bytes = _DEFAULT_SHARD_BYTES
    check_output(prefix, num_shards, compression_type)
    content = find_images(folder)
    result = Conversion(content.classes, content.num_outside)
    files = shuffled(content.files, seed) if shuffle else list(content.files)
    load = functools.partial(_load_or_error, jpeg_quality=jpeg_quality, drop_alpha=drop_alpha)
    with ProgressBar(total=len(files), desc="converting", unit="image") as bar:
        images = _written(_parallel(load, files, num_jobs or default_jobs()), result, bar)
        result.paths, result.labels_path = write_shards(
            images,
            content.classes,
            prefix,
            num_shards=num_shards,
            max_shard_bytes=max_shard_bytes,
            compression_type=compression_type,
        )
    result.skipped.sort(key=lambda skipped: os.fsencode(skipped[0].path))
    return result


def print_report(result: Conversion) -> None:
    """What was written, the bytes per format before and after, what was left out; warnings on stderr."""
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
        print(f"warning: {outside} directly in the folder, in no class: left out", file=sys.stderr)
    for label, name in enumerate(result.classes):
        if not result.images_per_class[label]:
            print(f"warning: no images in class {label}: {escape(name)}", file=sys.stderr)


def add_parser(verbs: Any, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "from-images", summary, _DESCRIPTION, _command)
    parser.add_argument("folder", metavar="FOLDER", help="one sub-folder per class")
    parser.add_argument("prefix", metavar="OUTPUT_PREFIX", help="path and first part of the names of what is written")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--num-shards", type=integer(1), metavar="N", help="write this many shards")
    size.add_argument(
        "--max-shard-bytes", type=byte_size, metavar="SIZE", help="of a shard, such as 200MB or 1GiB (default: 100MB)"
    )
    parser.add_argument(
        "--compression", type=str.upper, choices=("GZIP", "ZLIB"), help="of the shards (default: none; images are)"
    )
    parser.add_argument(
        "--jpeg-quality", type=integer(1, 100), metavar="Q", help="re-encode as JPEG what is not, 1 to 100"
    )
    parser.add_argument("--drop-alpha", action="store_true", help="re-encode images with alpha, too, without it")
    parser.add_argument(
        "--shuffle", action=argparse.BooleanOptionalAction, default=True, help="mix the classes (default: yes)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the order (default: %(default)s)")
    add_jobs(parser, "threads that decode")


def _command(options: argparse.Namespace) -> int:
    result = run(
        options.folder,
        options.prefix,
        num_shards=options.num_shards,
        max_shard_bytes=options.max_shard_bytes,
        compression_type=options.compression,
        jpeg_quality=options.jpeg_quality,
        drop_alpha=options.drop_alpha,
        shuffle=options.shuffle,
        seed=options.seed,
        num_jobs=options.jobs,
    )
    print_report(result)
    return 0 if result.paths else 1


def _rows(result: Conversion) -> list[tuple[str, ...]]:
    """The table: one row a source format, and the total."""
    formats = sorted(result.formats.items())
    total = FormatCount(
        *(sum(getattr(counts, name) for _, counts in formats) for name in FormatCount.__dataclass_fields__)
    )
    rows = [
        (name, str(counts.num_images), str(counts.num_reencoded), str(counts.bytes_before), str(counts.bytes_after))
        for name, counts in [*formats, ("total", total)]
    ]
    return [("format", "images", "re-encoded", "bytes before", "bytes after"), *rows]


def _load_or_error(
    file: ImageFile, *, jpeg_quality: int | None, drop_alpha: bool
) -> LoadedImage | tuple[ImageFile, Exception]:
    try:
        return load_image(file, jpeg_quality=jpeg_quality, drop_alpha=drop_alpha)
    except (ImageDecodeError, OSError) as error:
        return file, error


def _written(
    loaded: Iterator[LoadedImage | tuple[ImageFile, Exception]], result: Conversion, bar: Any
) -> Iterator[LoadedImage]:
    """The images, counted on their way; what could not be loaded is noted."""
    for item in loaded:
        bar.update()
        if isinstance(item, LoadedImage):
            result.count(item)
            yield item
        else:
            result.skipped.append(item)


def _parallel(task: Callable[[_T], _R], items: Sequence[_T], num_threads: int) -> Iterator[_R]:
    """`map` by threads (decoding releases the GIL), in order, with few results waiting."""
    pool = ThreadPoolExecutor(num_threads, "tfrecord-images")
    waiting: deque[Future[_R]] = deque()
    source = iter(items)
    try:
        waiting.extend(pool.submit(task, item) for item in itertools.islice(source, 2 * num_threads))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(task, item) for item in itertools.islice(source, 1))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
