"""From a manifest to the files of a data set: their paths, whether they are still what it says, and
back to names.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files.descriptors import opened
from torch_tfrecord.files.storage import is_remote, open_file
from torch_tfrecord.files.store import RemoteInfo
from torch_tfrecord.files.together import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.manifest import Manifest
from torch_tfrecord.records.sidecar import SIDECAR_FOLDER
from torch_tfrecord.shown import without_secrets

__all__ = [
    "check_local_files",
    "check_remote_files",
    "common_folder",
    "manifest_path",
    "relative_names",
    "shard_paths",
    "stale",
]

_Integers: TypeAlias = "npt.NDArray[np.int64]"

_NAME = "manifest.safetensors"
_MOST_ASKED_SINGLY = (
    100  # of a folder; more are found by a listing, which network file systems answer at once
)


def common_folder(files: Sequence[str]) -> str:
    """The folder that holds all of some sorted files, as they write it, with its slash; "" for the
    current one.
    """
    folder = _folder(files[0])
    while not files[-1].startswith(folder):
        folder = _folder(folder[:-1])
    return folder


def manifest_path(files: Sequence[str], index_dir: str | None = None) -> str:
    """Where the manifest of sorted files is kept: in the hidden folder beside them, or in another
    folder.
    """
    if index_dir is not None:
        return os.path.join(index_dir, _NAME)
    return f"{common_folder(files)}{SIDECAR_FOLDER}/{_NAME}"


def shard_paths(path: str, names: Sequence[str]) -> list[str]:
    """The paths of a manifest's shards, by their names in it.

    Raises:
        IndexMismatchError: a name leads out of the storage of a manifest that lies elsewhere, or is
            none.
    """
    folders: dict[str, str] = {}
    found = []
    for name in names:
        folder, slash, last = name.rpartition("/")
        prefix = folders.get(folder)
        if prefix is None:
            prefix = folders[folder] = _joined(_folder(path), folder + slash, path)
        if last in ("", ".", ".."):
            raise IndexMismatchError(
                "expected a manifest that names files, got a name that is none", path=path
            )
        found.append(prefix + last)
    return found


def _folder(path: str) -> str:
    return path[: path.rfind("/") + 1]


def _joined(base: str, folder: str, path: str) -> str:
    """A folder relative to another one, as that one is written; both with their slash, "" for the
    current one.
    """
    # Whoever serves a manifest must not choose other files of this machine, nor another bucket.
    problem = IndexMismatchError(
        f"expected names relative to the manifest's folder, got {folder[:80]!r}", path=path
    )
    if "://" in folder and not is_remote(path):
        return folder
    if folder.startswith(("/", "file:")) or "://" in folder:
        raise problem
    while folder.startswith("../") and base.rpartition("/")[0].rpartition("/")[2] not in (
        "",
        ".",
        "..",
    ):
        base, folder = base[: base.rfind("/", 0, -1) + 1], folder[3:]
    if ".." in folder.lstrip("./").split("/") or (
        is_remote(path) and (folder.startswith("..") or base.count("/") < 3)
    ):
        raise problem
    return base + folder


def relative_names(files: Sequence[str], path: str) -> list[str]:
    """What a manifest calls its shards: `shard_paths`, turned around.

    Raises:
        ValueError: the manifest would lie in another storage than they, or a name may hold a
            secret.
    """
    folders: dict[str, str] = {}
    names = []
    for file in files:
        if file != without_secrets(file):
            raise ValueError(
                f"a manifest tells its names to whoever has it: {without_secrets(file)} would tell a user or a query; "
                "give them as storage_options"
            )
        folder = _folder(file)
        if folder not in folders:
            folders[folder] = _relative(folder, _folder(path), path)
        names.append(folders[folder] + file[len(folder) :])
    return names


def _relative(folder: str, base: str, path: str) -> str:
    if is_remote(folder) and not is_remote(path):
        return folder
    if is_remote(path) and folder.split("/", 3)[:3] != base.split("/", 3)[:3]:
        text = f"out must be in the storage of the data, {folder}, or a local path, got {path!r}"
        raise ValueError(without_secrets(text))
    relative = (
        posixpath.relpath(folder.partition("://")[2], base.partition("://")[2])
        if is_remote(path)
        else ""
    )
    relative = relative or os.path.relpath(folder or os.curdir, base or os.curdir)
    return "" if relative == os.curdir else f"{relative}/"


def check_local_files(manifest: Manifest, files: Sequence[str], rows: _Integers) -> _Integers:
    """Hold the names, sizes and times of local shards against a manifest, and the bytes of those
    with another time.

    Args:
        manifest: The manifest.
        files: Some of its shards.
        rows: int64 [F]: of each its row.

    Returns:
        int64 [F]: when each was changed last, in nanoseconds.

    Raises:
        IndexMismatchError: a shard is not what the manifest says; names the first.
        FileNotFoundError: a shard is missing.
    """
    head = manifest.head
    sizes, mtimes = _states(files)
    if (sizes < 0).any():
        first = int((sizes < 0).argmax())
        text = f"{int((sizes < 0).sum())} of {len(files)} shards of the manifest are missing"
        raise FileNotFoundError(errno.ENOENT, text, files[first])
    is_other = sizes != head.file_sizes[rows]
    if is_other.any():
        first = int(is_other.argmax())
        raise stale(
            manifest, files[first], f"{head.file_sizes[rows[first]]} bytes", f"{sizes[first]}"
        )
    changed = np.flatnonzero(mtimes != head.mtimes_ns[rows]).tolist()
    _check_fingerprints(manifest, [(files[file], int(rows[file])) for file in changed])
    return mtimes


def check_remote_files(
    manifest: Manifest, files: Sequence[str], rows: _Integers, infos: Mapping[str, RemoteInfo]
) -> None:
    """Hold what a storage said of files against a manifest; what it did not say is seen when a file
    is opened.

    Raises:
        IndexMismatchError: a shard is not what the manifest says; names the first.
    """
    head = manifest.head
    for file, row in zip(files, rows.tolist(), strict=True) if infos else ():
        info = infos.get(file)
        if info is not None and info.size not in (None, head.file_sizes.item(row)):
            raise stale(manifest, file, f"{head.file_sizes[row]} bytes", f"{info.size}")
        if (
            info is not None
            and info.etag
            and head.etags
            and head.etags[row]
            and info.etag != head.etags[row]
        ):
            raise stale(manifest, file, f"ETag {head.etags[row]}", info.etag)


def stale(manifest: Manifest, file: str, expected: str, got: str) -> IndexMismatchError:
    """A shard is not what a manifest says."""
    text = f"the manifest at {manifest.path} is not of this file as it is now: expected {expected}, got {got}"
    return IndexMismatchError(text, path=file)


def _states(files: Sequence[str]) -> tuple[_Integers, _Integers]:
    """Size and time of each file; a size of -1 where it is missing."""
    sizes, mtimes = [], []
    for folder, group in groupby(files, _folder):
        in_folder = list(group)
        for state in (
            _in_folder(folder, in_folder)
            if len(in_folder) > _MOST_ASKED_SINGLY
            else map(_state, in_folder)
        ):
            sizes.append(-1 if state is None else state.st_size)
            mtimes.append(0 if state is None else state.st_mtime_ns)
    return np.array(sizes, np.int64), np.array(mtimes, np.int64)


def _in_folder(folder: str, files: Sequence[str]) -> Iterator[os.stat_result | None]:
    """By the entries of the folder. None of them stays: Python's collector would look at all, again
    and again.
    """
    begin = len(folder)
    with opened(os.scandir, folder or os.curdir) as entries:
        there = {entry.name: entry for entry in entries}
    for file in files:
        entry = there.pop(file[begin:], None)
        try:
            yield _state(file) if entry is None else entry.stat()
        except FileNotFoundError:  # a link to nowhere, or it was removed meanwhile
            yield None


def _state(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except FileNotFoundError:
        return None


def _check_fingerprints(manifest: Manifest, shards: Sequence[tuple[str, int]]) -> None:
    """Copying a folder changes the times: then the bytes at both ends decide, which are read by
    several threads.
    """

    def check(shard: tuple[str, int]) -> None:
        file, row = shard
        expected, got = manifest.head.fingerprints.item(row), open_file(file).fingerprint()
        if got != expected:
            raise stale(manifest, file, f"fingerprint {expected:#010x}", f"{got:#010x}")

    if shards:
        for _ in ProgressBar(
            each_at_once(check, shards), "checking", total=len(shards), unit="file", delay=1.0
        ):
            pass
