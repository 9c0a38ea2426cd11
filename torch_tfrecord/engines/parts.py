"""Shared by the engines: the dataset of their paths, and a folder of files that many processes write
and that appears when all are whole.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_tfrecord.arguments import Paths
from torch_tfrecord.columns import Feature, RecordFeatures
from torch_tfrecord.files import is_remote
from torch_tfrecord.records import IndexKeeper
from torch_tfrecord.tables import TFRecordDataset, write_arrow

if TYPE_CHECKING:
    import pyarrow

__all__ = ["PartFolder", "open_dataset", "schema_of"]


def open_dataset(
    paths: Paths, features: RecordFeatures | None, columns: Sequence[str] | None, options: Any
) -> TFRecordDataset:
    """The dataset of some paths; features are inferred from records where none are given."""
    dataset = TFRecordDataset(paths, "auto" if features is None else features, **options)
    return dataset if columns is None else dataset.select_columns(columns)


def schema_of(dataset: TFRecordDataset) -> pyarrow.Schema:
    """The Arrow schema of what a dataset reads."""
    return dataset[:0].to_arrow().schema


@dataclass(frozen=True)
class PartFolder:
    """A folder that gets files from many processes; pickles.

    Files are written to a hidden folder inside, and get their names when all are whole, so that a
    task may fail, be killed or run twice.

    Args:
        path: The folder, which all processes share.
        features: See `write_arrow`.
        compression_type: "", "GZIP" or "ZLIB".

    Raises:
        ValueError: The folder is on a storage, which cannot rename.
    """

    path: str
    features: Mapping[str, Feature] | None = None
    compression_type: str = ""
    _job: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        """Check the path."""
        if is_remote(self.path):
            raise ValueError(
                f"expected a folder of a file system that all workers share, got {self.path}: upload the files later"
            )

    @property
    def _staging(self) -> Path:
        return Path(self.path, f".writing-{self._job}")

    def write(self, batches: Iterable[pyarrow.RecordBatch]) -> str:
        """Write one file, and return its name until `commit`."""
        self._staging.mkdir(parents=True, exist_ok=True)
        name = str(self._staging / f"{uuid.uuid4().hex}.tfrecord")
        write_arrow(batches, name, features=self.features, compression_type=self.compression_type)
        return name

    def commit(self, names: Sequence[str], *, overwrite: bool = False) -> list[str]:
        """Give the files their names, in this order, and return these.

        Args:
            names: What `write` returned, one for each part of the data.
            overwrite: Remove the parts of earlier jobs.
        """
        suffix = {"GZIP": ".gz", "ZLIB": ".zlib"}.get(self.compression_type, "")
        before = [*Path(self.path).glob("part-*-of-*.tfrecord*")] if overwrite else []
        found = []
        for number, name in enumerate(names):
            own = f"part-{self._job}-{number:05d}-of-{len(names):05d}.tfrecord{suffix}"
            found.append(os.path.join(self.path, own))
            os.replace(name, found[-1])
        for path in before:
            IndexKeeper.remove(str(path))
            path.unlink()
        self.abort()
        return found

    def abort(self) -> None:
        """Remove what was written and has no name."""
        shutil.rmtree(self._staging, ignore_errors=True)
