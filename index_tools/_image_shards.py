"""Loaded images to shards and a file of class names: all of them, or none."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from index_tools._image_folder import LoadedImage
from torch_tfrecord.protobuf.example import encode_example
from torch_tfrecord.records.atomic import AtomicFile
from torch_tfrecord.records.paths import is_companion, labels_name
from torch_tfrecord.records.writer import ShardedTFRecordWriter

__all__ = ["check_output", "encode_image_example", "write_shards"]

_SUFFIXES = {None: ".tfrecord", "GZIP": ".tfrecord.gz", "ZLIB": ".tfrecord.zlib"}


def check_output(prefix: str, num_shards: int | None, compression_type: str | None) -> None:
    """Refuse to write beside a set of shards that would stay: two sets under one prefix pass for one damaged set.

    Raises:
        ValueError: a prefix without a name, or shards that are there and would not surely be replaced.
    """
    if not os.path.basename(prefix):
        raise ValueError(f"OUTPUT_PREFIX must end in a name for the shards, such as {prefix}train, got {prefix!r}")
    found = sorted(path for path in glob.glob(f"{glob.escape(prefix)}-*-of-*") if not is_companion(path))
    replaced = None if num_shards is None else f"-of-{num_shards:05d}{_SUFFIXES[compression_type]}"
    left = [path for path in found if replaced is None or not path.endswith(replaced)]
    if left:
        raise ValueError(f"another set of shards is there: {left[0]}; remove it, or choose another OUTPUT_PREFIX")


def encode_image_example(image: LoadedImage, class_name: str) -> bytes:
    """The record of an image, with the keys of TensorFlow's ImageNet files; names are bytes as on the disk."""
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
    """Write shards with their indexes, and ``labels-<prefix's name>.txt``; missing folders are made.

    Returns:
        The shards' paths and that of the labels; none and "" where there is no image.

    Raises:
        OSError: nothing is left behind, nor after an interrupt.
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
    """Make a folder and those above it; after a failure those that were made are removed again."""
    target = Path(folder)
    missing = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):  # something else was put there meanwhile
                path.rmdir()
        raise
