"""An image folder, one sub-folder per class: its files, and each file made ready to be a record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.images.codec import decode_image, encode_image, image_format, image_size
from torch_tfrecord.images.headers import guess_content
from torch_tfrecord.records.storage import open_file

__all__ = ["ImageFile", "ImageFolder", "LoadedImage", "find_images", "load_image"]

_HEAD_BYTES = 64  # tell an image from anything else, so that no film is read whole


class ImageFile(NamedTuple):
    """A file of a class folder; whether it is an image is seen when it is read."""

    path: str
    label: int


@dataclass(frozen=True)
class ImageFolder:
    """What an image folder holds: the classes in the order of their labels, and the files, sorted."""

    classes: tuple[str, ...]
    files: tuple[ImageFile, ...]
    num_outside: int  # files directly in the folder, which are in no class


class LoadedImage(NamedTuple):
    """An image as it goes into the record.

    Attributes:
        file: Where it is from.
        encoded: The bytes of an image file.
        format: Of `encoded`: "jpeg", "png", "gif", "bmp" or "webp".
        height, width: As stored; EXIF orientation is not applied.
        source_format: Of the file.
        source_bytes: Size of the file.
        kept: Why an image that should be re-encoded was not; empty where it was, or need not be.
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
    """List an image folder as torchvision's ImageFolder does; hidden files and folders are left out.

    Every sub-folder is a class, also an empty one: so that the labels of a training and a test folder agree.

    Raises:
        OSError: the folder, or one in it, cannot be read.
        ValueError: there is no sub-folder with a file, or a class name has a line break.
    """
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    classes = sorted((entry.name for entry in visible if entry.is_dir()), key=os.fsencode)
    broken = [name for name in classes if "\n" in name or "\r" in name]
    if broken:
        raise ValueError(f"{folder}: expected class names of one line (for the file of labels), got {broken[0]!r}")
    files = tuple(
        ImageFile(path, label) for label, name in enumerate(classes) for path in _walk(os.path.join(folder, name))
    )
    if not files:
        raise ValueError(f"{folder}: expected sub-folders with images, one per class, got {len(classes)} empty ones")
    return ImageFolder(tuple(classes), files, len(visible) - len(classes))


def _walk(folder: str) -> Iterator[str]:
    """All files below a folder, in a fixed order; links are followed, but not in circles."""
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


def load_image(file: ImageFile, *, jpeg_quality: int | None = None, drop_alpha: bool = False) -> LoadedImage:
    """Read an image, decode all of it to see that it is whole, and re-encode it where that is wanted.

    Args:
        file: The file.
        jpeg_quality: 1 to 100: make a JPEG of what is none. None keeps every file's bytes.
        drop_alpha: Re-encode images with alpha, too, without it.

    Raises:
        ImageDecodeError: not an image, or a damaged one.
        OSError: the file cannot be read, or is a pipe or device.
    """
    source = open_file(file.path)
    head = source.read(_HEAD_BYTES, 0)
    format = image_format(head)
    if format is None:
        content = f"that look like {guess_content(head)}" if head else "(an empty file)"
        raise ImageDecodeError(
            f"expected a JPEG, PNG, GIF, BMP or WebP image, got {source.file_size} bytes {content}", path=file.path
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


def _as_jpeg(encoded: bytes, pixels: torch.Tensor, quality: int, drop_alpha: bool) -> tuple[bytes, str]:
    """The image as JPEG; or its own bytes, and why."""
    if pixels.dtype != torch.uint8:
        return encoded, "16-bit"  # JPEG would silently drop half of the bits, as of a depth map
    num_channels = len(pixels)
    has_alpha = num_channels in (2, 4)
    # One colour may stand for "transparent" without a channel for it.
    if not drop_alpha and (has_alpha or bool((decode_image(encoded, "RGBA")[3] < 255).any())):
        return encoded, "alpha"
    try:
        return encode_image(pixels[:-1] if has_alpha else pixels, "jpeg", quality), ""
    except ValueError:
        return encoded, "too large"  # sides over 65,535 pixels
