"""Where the index of a data file is kept: beside it, in a folder of the user's choice, in the user's cache, nowhere."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from torch_tfrecord.callers import outer_level
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.records.index import RecordIndex, index_source
from torch_tfrecord.records.storage import FileSource, is_remote, open_file

__all__ = ["SIDECAR_SUFFIX", "IndexKeeper", "cache_dir", "sidecar_path"]

SIDECAR_SUFFIX = ".index.safetensors"


def sidecar_path(data_path: str, index_dir: str | None = None) -> str:
    """Where the index of a data file lies: ``<data file>.index.safetensors``, or in a folder for the indexes of many.

    In a folder the name carries a hash of the data file's whole path, since a name alone is not unique there.
    """
    if index_dir is None:
        return data_path + SIDECAR_SUFFIX
    absolute = data_path if is_remote(data_path) else os.path.realpath(data_path)
    name = os.fsdecode(os.fsencode(os.path.basename(data_path))[:150])  # names have at most 255 bytes
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    return os.path.join(index_dir, f"{name}.{digest}{SIDECAR_SUFFIX}")


class IndexKeeper:
    """Finds the indexes of data files, builds what is missing or stale, and keeps what it built.

    Args:
        policy: "auto" (use a fresh sidecar, else build and keep), "require" (never build), "memory" (build, keep
            nothing and look at no sidecar).
        index_dir: A folder to keep indexes in; without it they lie beside the data, or in the user's cache where that
            cannot be written.
        verify_crc: Check all payloads' checksums while building.
        compression_type: Of all the files; "auto" detects it for each.
    """

    def __init__(
        self,
        policy: str = "auto",
        *,
        index_dir: str | os.PathLike[str] | None = None,
        verify_crc: bool = True,
        compression_type: str = "auto",
    ) -> None:
        if policy not in ("auto", "require", "memory"):
            raise ValueError(f"index must be 'auto', 'require' or 'memory', got {policy!r}")
        self._policy = policy
        self._index_dir = None if index_dir is None else os.fspath(index_dir)
        self._verify = verify_crc
        self._compression_type = compression_type
        self._displaced: list[tuple[str, str | None]] = []

    def indexes(self, paths: Sequence[str]) -> list[RecordIndex]:
        """The index of each file, in order; see `each`."""
        return list(self.each(paths))

    def each(self, paths: Sequence[str]) -> Iterator[RecordIndex]:
        """The index of each file, one after the other, so that a caller may drop what it has used.

        A progress bar appears when building takes more than a second.

        Raises:
            IndexMismatchError: with the policy "require", for a file without a fresh index.
            TFRecordError: a data file that must be indexed is damaged.
            OSError: a data file cannot be opened.
        """
        progress = tqdm(paths, "indexing", unit="file", delay=1.0, disable=None, leave=False)
        for path in progress:
            yield self._index(path)
        if self._displaced:
            path, place = self._displaced[0]
            kept = f"its index is kept at {place}" if place else "no index could be kept, it is built again each time"
            warnings.warn(
                f"{path}: the folder cannot be written: {kept} ({len(self._displaced)} such files). "
                "Give index_dir= to choose a place, or index='memory' if none is wanted.",
                stacklevel=outer_level(),
            )
            self._displaced.clear()

    def _index(self, path: str) -> RecordIndex:
        data = open_file(path)
        if self._policy == "memory":
            return self._build(data)
        stale: IndexMismatchError | None = None
        for place in self._places(path):
            try:
                index = RecordIndex.load(place)
                self._check(index, data)
                return index
            except IndexMismatchError as error:
                stale = stale or error
            except OSError:
                continue
        if self._policy == "require":
            raise stale or IndexMismatchError(
                f"expected an index at {' or '.join(self._places(path))}, got none "
                "(build it with `tfrecord index`, or use index='auto')",
                path=path,
            )
        index = self._build(data)
        self._keep(index, path)
        return index

    def _check(self, index: RecordIndex, data: FileSource) -> None:
        index.check_fresh(data)
        if self._compression_type not in ("auto", index.compression_type):
            raise IndexMismatchError(
                f"expected compression {self._compression_type!r}, got {index.compression_type!r} in the index",
                path=data.path,
            )

    def _build(self, data: FileSource) -> RecordIndex:
        return index_source(data, verify_crc=self._verify, compression_type=self._compression_type)

    def _keep(self, index: RecordIndex, path: str) -> None:
        places = list(self._places(path))
        if self._index_dir is not None or is_remote(path):
            del places[0]  # looked at, but not where new ones go
        for number, place in enumerate(places):
            try:
                if place != sidecar_path(path):
                    Path(place).parent.mkdir(parents=True, exist_ok=True)
                index.save(place)
            except OSError:
                continue
            if number:
                self._displaced.append((path, place))
            return
        self._displaced.append((path, None))

    def _places(self, path: str) -> Iterator[str]:
        """Where an index of `path` may lie, beside it first; the others cost some time to tell."""
        yield sidecar_path(path)
        if self._index_dir is not None:
            yield sidecar_path(path, self._index_dir)
        yield sidecar_path(path, cache_dir())


def cache_dir() -> str:
    """The folder of the user's cache that indexes go to where the data's own cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "torch_tfrecord")
