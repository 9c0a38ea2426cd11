"""The files that every side reads: made once, the same each time, and kept in a folder."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from drawn import MAKERS, images, write_tfds
from workloads import COMPRESSED, RANDOM_SIZES

from torch_tfrecord import TFRecordWriter, build_index
from torch_tfrecord.records.framing import frame
from torch_tfrecord.records.sidecar import sidecar_path, write_sidecar

__all__ = ["COUNTS", "Corpora", "write_records"]

# Records of each file at full size.
COUNTS = {
    "tabular": 200_000,
    "rows": 10_000,
    "tokens": 20_000,
    "few-tokens": 4_000,
    "embeddings": 20_000,
    "images": 1_024,
    "ragged": 50_000,
    "texts": 200_000,
    "sequences": 4_000,
    "tfds": 2_000,
}
# About 64 MB, 128 MB and 256 MB.
COUNTS |= {
    f"random-{name}": count
    for name, count in zip(RANDOM_SIZES, (500_000, 32_000, 2_560), strict=True)
}
# 1.2 GB of records.
COUNTS |= dict.fromkeys(COMPRESSED, 500_000)


class Corpora:
    """Files by name, written when they are first asked for.

    Args:
        folder: Where they are kept.
        photos: A folder of photographs for the images, or None to draw some.
        fraction: 1 is full size; the smoke test takes far less.
    """

    def __init__(self, folder: Path, photos: Path | None, fraction: float = 1.0) -> None:
        self.folder = folder
        self.photos = photos
        self.fraction = fraction

    def count(self, name: str) -> int:
        """Records of a file; whole batches of images, since DALI fills its last batch up."""
        count = max(int(COUNTS[name] * self.fraction), 64)
        return count // 64 * 64 if name == "images" else count

    def path(self, name: str) -> Path:
        """The file, its index beside it, and the text index that DALI and the package tfrecord
        read.

        Of "tfds" the directory, of one version.
        """
        count = self.count(name)
        if name == "tfds":
            return self._tfds(count)
        source = f"-{_digest_of(self.photos)}" if name == "images" else ""
        path = self.folder / f"{name}-{count}{source}.tfrecord"
        if not path.exists():
            print(f"writing {path}", flush=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_records(path, self._records(name, count), name)
        return path

    def _tfds(self, count: int) -> Path:
        directory = self.folder / f"drawn_{count}" / "1.0.0"
        if not directory.exists():
            print(f"writing {directory}", flush=True)
            write_tfds(directory, count)
        return directory

    def _records(self, name: str, count: int) -> Iterator[bytes]:
        if name == "images":
            return images(count, self.photos)
        return MAKERS[name](np.random.default_rng(0), count)


def write_records(path: Path, records: Iterator[bytes], name: str = "") -> None:
    """Write a file, its index and its text index (``.idx``), which compressed ones lack; the file
    appears last.
    """
    part, is_compressed = path.with_suffix(".part"), name in COMPRESSED
    if name == "gzip-one":
        with gzip.open(part, "wb", 6) as file:
            for record in records:
                file.write(frame(record))
    else:
        with TFRecordWriter(part, compression_type="GZIP" if is_compressed else None) as writer:
            for record in records:
                writer.write(record)
    index = build_index(part)
    if not is_compressed:
        index.to_tfrecord2idx(path.with_suffix(".idx"))
    part.rename(path)
    write_sidecar(sidecar_path(str(path)), index.to_bytes())


def _digest_of(photos: Path | None) -> str:
    if photos is None:
        return "drawn"
    names = sorted(
        f"{path.relative_to(photos)} {path.stat().st_size}" for path in photos.rglob("*.jp*g")
    )
    return hashlib.blake2b("\n".join(names).encode(), digest_size=4).hexdigest()
