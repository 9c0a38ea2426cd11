"""A data set opened from a manifest alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.errors import IndexMismatchError, outer_level
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.storage import is_remote
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.records.index import COMPRESSION_TYPES, RecordIndex
from torch_tfrecord.records.manifest import Manifest
from torch_tfrecord.records.manifest_files import (
    check_local_files,
    check_remote_files,
    manifest_path,
    shard_paths,
    stale,
)
from torch_tfrecord.records.manifest_table import is_range, manifest_table
from torch_tfrecord.records.paths import Paths, found_files, named_manifest

__all__ = ["ManifestShards", "open_shards"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


class ManifestShards:
    """The shards of a data set by a manifest; pickles small, and reads its head again where it is
    needed.

    Args:
        manifest: The manifest.
        rows: int64 [F]: of each file its row.
        files: Their paths, as `shard_paths` makes them.

    Attributes:
        files: The same.
        table: Where the records lie.
        first_compressed: The first file that is compressed, or None.

    Raises:
        IndexMismatchError: a local shard is not what the manifest says, or the manifest is damaged.
        FileNotFoundError: a local shard is missing.
    """

    def __init__(self, manifest: Manifest, rows: _Integers, files: list[str]) -> None:
        self._manifest, self._rows, self.files = manifest, rows, files
        self._mtimes = (
            None if is_remote(manifest.path) or is_remote(files[0]) else self._checked_mtimes()
        )
        self.table = manifest_table(manifest, rows)
        compressed = np.flatnonzero(manifest.head.compression[rows])
        self.first_compressed = files[compressed[0]] if len(compressed) else None

    def _checked_mtimes(self) -> _Integers | None:
        mtimes = check_local_files(self._manifest, self.files, self._rows)
        return mtimes if (mtimes != self._manifest.head.mtimes_ns[self._rows]).any() else None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, file: int) -> RecordIndex:
        """What a file is held against when it is opened; without records."""
        facts = self._manifest.facts(self._rows.item(file))
        if self._mtimes is not None:
            object.__setattr__(facts, "mtime_ns", self._mtimes.item(file))
        return facts

    def check_compression(self, compression_type: str) -> None:
        """Raise IndexMismatchError unless all files are compressed as declared; "auto" is any
        way.
        """
        kinds = self._manifest.head.compression[self._rows]
        if compression_type != "auto":
            is_other = kinds != COMPRESSION_TYPES.index(compression_type)
            if is_other.any():
                first = int(is_other.argmax())
                got = repr(COMPRESSION_TYPES[kinds[first]])
                raise stale(
                    self._manifest, self.files[first], f"compression {compression_type!r}", got
                )

    def __getstate__(self) -> dict[str, object]:
        is_all = is_range(self._rows, len(self._manifest))
        return {**self.__dict__, "files": None, "_rows": None if is_all else self._rows}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        paths = shard_paths(self._manifest.path, self._manifest.names())
        if state["_rows"] is None:
            self._rows, self.files = np.arange(len(paths)), paths
        else:
            self.files = [paths[row] for row in self._rows.tolist()]


def open_shards(
    paths: Paths,
    policy: IndexPolicy,
    index_dir: str | os.PathLike[str] | None = None,
    compression_type: str = "auto",
    access: Access = DEFAULT_ACCESS,
) -> tuple[list[str], Mapping[str, RemoteInfo], ManifestShards | None]:
    """The files of a data set, what storages said of them, and their shards by a manifest: one that
    was named or found.

    Args:
        paths: See `find_files`.
        policy: With "memory" no manifest is looked at for more than names.
        index_dir: Where it is looked for, in place of beside the files.
        compression_type: As declared; "auto" is any.
        access: How remote files are reached.

    Raises:
        IndexMismatchError: the manifest that was named is stale or damaged.
        OSError, ValueError, TypeError: as `find_files`.
    """
    named = named_manifest(paths)
    if named is not None and policy != "memory":
        shards = _open_manifest(Manifest(named, access))
        shards.check_compression(compression_type)
        return shards.files, {}, shards
    files, infos = found_files(paths, access)
    if policy == "memory":
        return files, infos, None
    place = manifest_path(files, None if index_dir is None else os.fspath(index_dir))
    return files, infos, _find_manifest(place, access, files, infos, compression_type)


def _open_manifest(manifest: Manifest) -> ManifestShards:
    """The shards of a manifest that a user named.

    Raises:
        IndexMismatchError, OSError: as of `ManifestShards`; nothing else names the files.
    """
    paths = shard_paths(manifest.path, manifest.names())
    if not paths:
        raise IndexMismatchError(
            "expected a manifest of at least one shard, got an empty one", path=manifest.path
        )
    keys = list(map(os.fsencode, paths))
    order = range(len(paths)) if _ascend(keys) else sorted(range(len(paths)), key=keys.__getitem__)
    if any(keys[one] == keys[other] for one, other in pairwise(order)):
        raise IndexMismatchError(
            "expected a manifest that names each file once, got one that does not",
            path=manifest.path,
        )
    return ManifestShards(manifest, np.array(order, np.int64), [paths[row] for row in order])


def _ascend(keys: Sequence[bytes]) -> bool:
    return all(one <= other for one, other in pairwise(keys))


def _find_manifest(
    path: str,
    access: Access,
    files: list[str],
    infos: Mapping[str, RemoteInfo],
    compression_type: str,
) -> ManifestShards | None:
    """The shards of the manifest beside sorted files; None where there is none that may be used.

    One that is of these files but not as they are now is left alone, with a warning.
    """
    try:
        manifest = Manifest(path, access)
        rows = _rows(manifest, files)
        if rows is None:
            return None
        check_remote_files(manifest, files, rows, infos)
        found = ManifestShards(manifest, rows, files)
        found.check_compression(compression_type)
        return found
    except IndexMismatchError as error:
        text = f"{error}: it is not used; build it again with `tfrecord index --manifest`"
        warnings.warn(text, stacklevel=outer_level())
        return None
    except OSError:
        return None


def _rows(manifest: Manifest, files: list[str]) -> _Integers | None:
    """Of each file its row; None where the manifest is of others."""
    paths = shard_paths(manifest.path, manifest.names())
    if paths == files:
        return np.arange(len(files))
    row_of = {path: row for row, path in enumerate(paths)}
    rows = np.array([row_of.get(file, -1) for file in files], np.int64)
    missing = rows < 0
    if missing.all():
        return None
    if missing.any():
        first = int(missing.argmax())
        raise stale(
            manifest,
            files[first],
            f"all {len(files)} files in it",
            f"{int(missing.sum())} that it does not name",
        )
    return rows
