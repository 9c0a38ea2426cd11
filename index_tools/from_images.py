"""``tfrecord from-images``: from an image folder, with one sub-folder per class, to shards of
Examples like TensorFlow's ImageNet files.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import itertools
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from index_tools._terminal import (
    Verb,
    add_jobs,
    align,
    byte_size,
    error_text,
    escape,
    integer,
    pluralize,
)
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.files.atomic import AtomicFile
from torch_tfrecord.files.storage import open_file
from torch_tfrecord.images.codec import decode_image, encode_image, image_format, image_size
from torch_tfrecord.images.headers import guess_content
from torch_tfrecord.order.random_stream import shuffled
from torch_tfrecord.processors import num_processors
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.protobuf.example import encode_example
from torch_tfrecord.records.paths import is_companion, labels_name
from torch_tfrecord.records.writer import ShardedTFRecordWriter

__all__ = ["FROM_IMAGES", "find_images", "load_image"]

_T = TypeVar("_T")
_Item = TypeVar("_Item")

# Large enough that the cost of opening a shard does not matter, small enough to copy and to shuffle
# by file.
_DEFAULT_SHARD_BYTES = 100_000_000

_SUFFIXES = {None: ".tfrecord", "GZIP": ".tfrecord.gz", "ZLIB": ".tfrecord.zlib"}
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

With --jpeg-quality, other formats are re-encoded as JPEG; JPEG files keep their bytes. Images with
alpha are kept as they are unless you pass --drop-alpha; 16-bit images are always kept.

examples:
  tfrecord from-images photos/ data/train
  tfrecord from-images photos/ data/train --num-shards 16 --jpeg-quality 92"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
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
        dest="compression_type",
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


class ImageFile(NamedTuple):
    """A file of a class folder; reading it shows whether it is an image."""

    path: str
    label: int


class ImageFolder(NamedTuple):
    """The contents of an image folder: the classes in the order of their labels, and the sorted
    files.
    """

    classes: tuple[str, ...]
    files: tuple[ImageFile, ...]
    num_outside: int  # files directly in the folder, without a class


class LoadedImage(NamedTuple):
    """An image as it is written to the record.

    Attributes:
        file: The file that it is from.
        encoded: The bytes of an image file.
        format: Format of `encoded`: "jpeg", "png", "gif", "bmp" or "webp".
        height, width: As stored, in pixels; EXIF orientation is not applied.
        source_format: Format of the file.
        source_bytes: Size of the file.
        kept: Why an image that should be re-encoded was not; empty if it was, or need not be.
    """

    file: ImageFile
    encoded: bytes
    format: str
    height: int
    width: int
    source_format: str
    source_bytes: int
    kept: str


class _Conversion:
    """What was written and what was skipped.

    Attributes:
        formats: Source format -> the numbers of the report's columns.
        kept: Reason -> number of images that --jpeg-quality did not re-encode.
        skipped: Path and error of each skipped file.
        labels: Label -> number of records.
    """

    def __init__(self) -> None:
        self.formats: dict[str, Counter[str]] = {}
        self.kept: Counter[str] = Counter()
        self.skipped: list[tuple[str, Exception]] = []
        self.labels: Counter[int] = Counter()

    def count(self, image: LoadedImage) -> None:
        """Count an image that was written."""
        numbers = (1, image.format != image.source_format, image.source_bytes, len(image.encoded))
        counts = self.formats.setdefault(image.source_format, Counter())
        counts.update(dict(zip(_COLUMNS, numbers, strict=True)))
        self.kept.update([image.kept] if image.kept else [])
        self.labels[image.file.label] += 1

    def table(self) -> list[str]:
        """The lines of a table: one per source format, and the total."""
        formats = [*sorted(self.formats.items()), ("total", sum(self.formats.values(), Counter()))]
        rows = [(name, *(str(counts[column]) for column in _COLUMNS)) for name, counts in formats]
        return align([("format", *_COLUMNS), *rows], "<" + ">" * len(_COLUMNS))


def _run(
    folder: str,
    prefix: str,
    jpeg_quality: int | None,
    drop_alpha: bool,
    shuffle: bool,
    seed: int,
    force: bool,
    jobs: int | None,
    **shards: Any,
) -> int:
    """Convert the folder; either all output files appear at the end, or none."""
    if drop_alpha and jpeg_quality is None:
        raise ValueError("--drop-alpha needs --jpeg-quality: otherwise no image is re-encoded")
    if not (shards["num_shards"] or shards["max_shard_bytes"]):
        shards["max_shard_bytes"] = _DEFAULT_SHARD_BYTES
    shards["suffix"] = _SUFFIXES[shards["compression_type"]]
    is_forced = force and shards["num_shards"]
    ending = "-of-{num_shards:05d}{suffix}".format(**shards) if is_forced else None
    _check_output(prefix, ending)
    content, result = find_images(folder), _Conversion()
    files = shuffled(content.files, seed) if shuffle else content.files

    def load(file: ImageFile) -> LoadedImage | tuple[str, Exception]:
        try:
            return load_image(file, jpeg_quality=jpeg_quality, drop_alpha=drop_alpha)
        except (ImageDecodeError, OSError) as error:
            return file.path, error

    def images() -> Iterator[LoadedImage]:
        for item in map_in_threads(load, files, jobs or num_processors()):
            bar.update()
            if isinstance(item, LoadedImage):
                result.count(item)
                yield item
            else:
                result.skipped.append(item)

    with ProgressBar(total=len(files), desc="converting", unit="image") as bar:
        paths = _write_shards(images(), content.classes, prefix, shards)
    _print_report(result, content, paths)
    return 0 if paths else 1


FROM_IMAGES = Verb(_DESCRIPTION, _add_arguments, _run)


def _print_report(result: _Conversion, content: ImageFolder, paths: Sequence[str]) -> None:
    """Print what was written, the bytes per format before and after, and what was skipped; warnings
    go to stderr.
    """
    if paths:
        labels, *shards = map(escape, paths)
        num_records = pluralize(result.labels.total(), "record")
        num_classes = pluralize(len(content.classes), "class", "classes")
        more = "" if len(shards) == 1 else f" to {shards[-1]}"
        print(
            f"wrote {num_records} of {num_classes} in {pluralize(len(shards), 'shard')}: "
            f"{shards[0]}{more}"
        )
        print(f"wrote {pluralize(len(content.classes), 'class name')}: {labels}\n")
        print("\n".join(result.table()))
    else:
        print("wrote nothing: no image could be read")
    for reason, number in sorted(result.kept.items()):
        print(f"kept {pluralize(number, 'image')} as they were: {reason}")
    if result.skipped:
        print(f"\nskipped {pluralize(len(result.skipped), 'file')}:")
        for _, error in sorted(result.skipped, key=lambda skipped: os.fsencode(skipped[0])):
            print(f"  {error_text(error)}")
    sys.stdout.flush()
    if content.num_outside:
        outside = pluralize(content.num_outside, "file")
        print(
            f"warning: skipped {outside} directly in the folder, without a class", file=sys.stderr
        )
    for label, name in enumerate(content.classes):
        if not result.labels[label]:
            print(f"warning: no images in class {label}: {escape(name)}", file=sys.stderr)


def map_in_threads(
    task: Callable[[_Item], _T], items: Sequence[_Item], num_threads: int
) -> Iterator[_T]:
    """`map` with threads (decoding releases the GIL), in order, with few results waiting."""
    pool = ThreadPoolExecutor(num_threads, "tfrecord-images")
    waiting: deque[Future[_T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(task, item))
            # as many wait as are being worked on: the writer is faster than the decoders
            if len(waiting) == 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# Images.


def find_images(folder: str) -> ImageFolder:
    """List an image folder like torchvision's ImageFolder; hidden files and folders are skipped.

    Every sub-folder is a class, even an empty one, so that the labels of a training and a test
    folder agree.

    Raises:
        OSError: The folder, or one in it, cannot be read.
        ValueError: There is no sub-folder with a file, or a class name has a line break.
    """
    visible = [path for path in Path(folder).iterdir() if not path.name.startswith(".")]
    classes = sorted((path.name for path in visible if path.is_dir()), key=os.fsencode)
    # the file of class names has one on each line
    broken = [name for name in classes if "\n" in name or "\r" in name]
    if broken:
        raise ValueError(f"{folder}: expected class names without line breaks, got {broken[0]!r}")
    files = tuple(
        ImageFile(path, label)
        for label, name in enumerate(classes)
        for path in _walk(os.path.join(folder, name))
    )
    num_outside = len(visible) - len(classes)
    if not files:
        raise ValueError(
            f"{folder}: expected sub-folders with images, one per class, such as {folder}/cat/1.jpg, got "
            f"{len(classes)} empty ones, and {pluralize(num_outside, 'file')} without a class directly in the folder"
        )
    return ImageFolder(tuple(classes), files, num_outside)


def _walk(folder: str) -> Iterator[str]:
    """All files below a folder, in a fixed order; links are followed, except in loops."""
    seen: set[tuple[int, int]] = set()
    for path, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        status = os.stat(path)
        place = status.st_dev, status.st_ino
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


def load_image(
    file: ImageFile, *, jpeg_quality: int | None = None, drop_alpha: bool = False
) -> LoadedImage:
    """Read an image, decode it to check that it is complete, and re-encode it if wanted.

    Args:
        file: The file.
        jpeg_quality: 1 to 100: re-encode other formats as JPEG. None keeps every file's bytes.
        drop_alpha: Also re-encode images with alpha, without it.

    Raises:
        ImageDecodeError: The file is not an image, or is damaged.
        OSError: The file cannot be read, or is a pipe or device.
    """
    source = open_file(file.path)
    # a film in the folder may have gigabytes
    head = source.read(_HEAD_BYTES, 0)
    format = image_format(head)
    if format is None:
        content = f"that look like {guess_content(head)}" if head else "(an empty file)"
        raise ImageDecodeError(
            f"expected a JPEG, PNG, GIF, BMP or WebP image, got {source.file_size} bytes {content}",
            path=file.path,
        )
    encoded = source.read(source.file_size, 0)
    try:
        pixels = decode_image(encoded, "unchanged")
        height, width = image_size(encoded)
        smaller, kept = encoded, ""
        if jpeg_quality is not None and format != "jpeg":
            smaller, kept = _as_jpeg(encoded, pixels, jpeg_quality, drop_alpha)
    except ImageDecodeError as error:
        raise error.locate(path=file.path) from error.__cause__
    new_format = format if smaller is encoded else "jpeg"
    return LoadedImage(file, smaller, new_format, height, width, format, len(encoded), kept)


def _as_jpeg(
    encoded: bytes, pixels: torch.Tensor, quality: int, drop_alpha: bool
) -> tuple[bytes, str]:
    """The image as JPEG, or its own bytes and the reason."""
    if pixels.dtype != torch.uint8:
        # JPEG would silently drop half of the bits, for example of a depth map
        return encoded, "16-bit"
    has_alpha = len(pixels) in (2, 4)
    # A file may declare one colour transparent without an alpha channel.
    if not drop_alpha and (has_alpha or bool((decode_image(encoded, "RGBA")[3] < 255).any())):
        return encoded, "alpha"
    try:
        return encode_image(pixels[:-1] if has_alpha else pixels, "jpeg", quality), ""
    except ValueError:
        return encoded, "too large"  # sides over 65,535 pixels


# Shards.


def _check_output(prefix: str, replaced: str | None) -> None:
    """Refuse to write beside another set of shards, as two under one prefix look like a damaged
    one, or over a set, but for names with the ending `replaced`.
    """
    if not os.path.basename(prefix):
        raise ValueError(
            f"OUTPUT_PREFIX must end in a name for the shards, such as {prefix}train, got {prefix!r}"
        )
    for path in sorted(glob.glob(f"{glob.escape(prefix)}-*-of-*")):
        if not (is_companion(path) or (replaced and path.endswith(replaced))):
            raise ValueError(
                f"a set of shards exists: {path}; remove it, or choose another OUTPUT_PREFIX (--force with "
                "--num-shards writes over a set of as many shards)"
            )


def encode_image_example(image: LoadedImage, class_name: str) -> bytes:
    """The record of an image, with the keys of TensorFlow's ImageNet files; names are the bytes on
    disk.
    """
    return encode_example(
        {
            "image/encoded": image.encoded,
            "image/format": image.format.upper(),
            "image/height": image.height,
            "image/width": image.width,
            "image/class/label": image.file.label,
            "image/class/text": os.fsencode(class_name),
            "image/filename": os.fsencode(os.path.basename(image.file.path)),
        }
    )


class _Writer(ShardedTFRecordWriter):
    """Shards that appear together with the class names."""

    labels: AtomicFile

    def _beside(self) -> list[AtomicFile]:
        return [self.labels]


def _write_shards(
    images: Iterator[LoadedImage], classes: Sequence[str], prefix: str, options: Mapping[str, Any]
) -> list[str]:
    """Write shards with their indexes, and ``labels-<prefix's name>.txt``; creates missing folders.

    Returns:
        The paths of the labels and of the shards; [] if there is no image.

    Raises:
        OSError: A file cannot be written. Then, as after an interrupt, nothing is left behind.
    """
    # folders are made only if there is something to put there
    first = next(images, None)
    if first is None:
        return []
    folder, name = os.path.split(prefix)
    with _create_folders(folder), contextlib.ExitStack() as stack:
        labels = AtomicFile(os.path.join(folder, labels_name(name)))
        stack.callback(labels.discard)  # does nothing once it is published
        labels.write(b"".join(os.fsencode(name) + b"\n" for name in classes))
        labels.prepare()
        with _Writer(prefix, write_index=True, **options) as writer:
            writer.labels = labels
            for image in itertools.chain([first], images):
                writer.write(encode_image_example(image, classes[image.file.label]))
    return [labels.path, *writer.paths]


@contextlib.contextmanager
def _create_folders(folder: str) -> Iterator[None]:
    """Create a folder and its parents; after a failure remove those that were created."""
    target = Path(folder)
    missing = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        # innermost first
        for path in missing:
            with contextlib.suppress(OSError):  # not empty: something else was put there
                path.rmdir()
        raise
