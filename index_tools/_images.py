"""An image folder with one sub-folder per class: list its files, and write them to shards with the
class names.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from index_tools._text import counted
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.files.atomic import AtomicFile
from torch_tfrecord.files.storage import open_file
from torch_tfrecord.images.codec import decode_image, encode_image, image_format, image_size
from torch_tfrecord.images.headers import guess_content
from torch_tfrecord.protobuf.example import encode_example
from torch_tfrecord.records.paths import is_companion, labels_name
from torch_tfrecord.records.writer import ShardedTFRecordWriter

__all__ = [
    "ImageFile",
    "LoadedImage",
    "check_output",
    "encode_image_example",
    "find_images",
    "load_image",
    "write_shards",
]

_SUFFIXES = {None: ".tfrecord", "GZIP": ".tfrecord.gz", "ZLIB": ".tfrecord.zlib"}
_HEAD_BYTES = 64  # enough to recognise an image, so that no video is read completely


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


def find_images(folder: str) -> ImageFolder:
    """List an image folder like torchvision's ImageFolder; hidden files and folders are skipped.

    Every sub-folder is a class, even an empty one, so that the labels of a training and a test
    folder agree.

    Raises:
        OSError: The folder, or one in it, cannot be read.
        ValueError: There is no sub-folder with a file, or a class name has a line break.
    """
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    classes = sorted((entry.name for entry in visible if entry.is_dir()), key=os.fsencode)
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
            f"{len(classes)} empty ones, and {counted(num_outside, 'file')} without a class directly in the folder"
        )
    return ImageFolder(tuple(classes), files, num_outside)


def _walk(folder: str) -> Iterator[str]:
    """All files below a folder, in a fixed order; links are followed, except in loops."""
    seen: set[tuple[int, int]] = set()
    for path, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        status = os.stat(path)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=os.fsencode)
        for name in sorted((name for name in names if not name.startswith(".")), key=os.fsencode):
            yield os.path.join(path, name)


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
        return (
            encoded,
            "16-bit",
        )
    num_channels = len(pixels)
    has_alpha = num_channels in (2, 4)
    # A file may declare one colour transparent without an alpha channel.
    if not drop_alpha and (has_alpha or bool((decode_image(encoded, "RGBA")[3] < 255).any())):
        return encoded, "alpha"
    try:
        return encode_image(pixels[:-1] if has_alpha else pixels, "jpeg", quality), ""
    except ValueError:
        return encoded, "too large"  # sides over 65,535 pixels


# Shards.


def check_output(
    prefix: str, num_shards: int | None, compression_type: str | None, *, force: bool
) -> None:
    """Refuse to write beside another set of shards, as two under one prefix look like a damaged
    one, or over a set.

    Args:
        prefix, num_shards, compression_type: What is to be written.
        force: Whether shards of the same names may be replaced.

    Raises:
        ValueError: The prefix has no name, or there are shards that may not all be replaced.
    """
    if not os.path.basename(prefix):
        raise ValueError(
            f"OUTPUT_PREFIX must end in a name for the shards, such as {prefix}train, got {prefix!r}"
        )
    found = sorted(
        path for path in glob.glob(f"{glob.escape(prefix)}-*-of-*") if not is_companion(path)
    )
    replaced = (
        None
        if num_shards is None or not force
        else f"-of-{num_shards:05d}{_SUFFIXES[compression_type]}"
    )
    left = [path for path in found if replaced is None or not path.endswith(replaced)]
    if left:
        raise ValueError(
            f"a set of shards exists: {left[0]}; remove it, or choose another OUTPUT_PREFIX (--force with --num-shards "
            "writes over a set of as many shards)"
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


def write_shards(
    images: Iterator[LoadedImage],
    classes: tuple[str, ...],
    prefix: str,
    *,
    num_shards: int | None,
    max_shard_bytes: int | None,
    compression_type: str | None,
) -> tuple[list[str], str]:
    """Write shards with their indexes, and ``labels-<prefix's name>.txt``; creates missing folders.

    Returns:
        The paths of the shards and of the labels; [] and "" if there is no image.

    Raises:
        OSError: A file cannot be written. Then, as after an interrupt, nothing is left behind.
    """
    first = next(images, None)
    if first is None:
        return [], ""
    folder, name = os.path.split(prefix)
    labels_path = os.path.join(folder, labels_name(name))
    with _made_folders(folder):
        labels = AtomicFile(labels_path)
        try:
            labels.write(b"".join(os.fsencode(name) + b"\n" for name in classes))
            labels.prepare()
            with _Writer(
                prefix,
                num_shards=num_shards,
                max_shard_bytes=max_shard_bytes,
                compression_type=compression_type,
                suffix=_SUFFIXES[compression_type],
                write_index=True,
            ) as writer:
                writer.labels = labels
                for image in itertools.chain([first], images):
                    writer.write(encode_image_example(image, classes[image.file.label]))
        except BaseException:
            labels.discard()
            raise
    return writer.paths, labels_path


class _Writer(ShardedTFRecordWriter):
    """Shards that appear together with the class names."""

    labels: AtomicFile

    def _beside(self) -> list[AtomicFile]:
        return [self.labels]


@contextlib.contextmanager
def _made_folders(folder: str) -> Iterator[None]:
    """Create a folder and its parents; after a failure remove those that were created."""
    target = Path(folder)
    missing = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):  # not empty: something else was put there
                path.rmdir()
        raise
