"""The manifest of a set of shards: opening a data set from it alone, and building it from the
indexes of the shards.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import IndexPolicy
from torch_tfrecord.errors import IndexMismatchError, outer_level
from torch_tfrecord.files import (
    DEFAULT_ACCESS,
    Access,
    RemoteInfo,
    is_remote,
    local_path,
    open_file,
    write_atomically,
)
from torch_tfrecord.manifests.manifest import (
    MANIFEST_SUFFIX,
    Manifest,
    ShardRow,
    is_manifest,
    manifest_path,
    pack_manifest,
    relative_names,
    shard_paths,
    shard_row,
)
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records import (
    COMPRESSION_TYPES,
    IndexKeeper,
    Paths,
    RecordIndex,
    found_files,
    is_range,
    named_manifest,
    open_table,
    sidecar_path,
    upload_bytes,
    write_sidecar,
)
from torch_tfrecord.shown import without_secrets

__all__ = [
    "ManifestShards",
    "WrittenManifest",
    "build_manifest",
    "open_shards",
    "write_manifest",
]

_Integers: TypeAlias = "npt.NDArray[np.int64]"


class ManifestShards:
    """The shards of a data set by a manifest; pickles small, and reads its rows again where it is
    needed.

    Args:
        manifest: The manifest.
        rows: int64 [F]: of each file its row.
        files: Their paths, as `shard_paths` makes them.
        infos: What storages said of the files; what they did not say is seen when a file is opened.
        compression_type: How all files must be compressed; "auto" is any way.

    Attributes:
        files: The same.
        table: Where the records lie.
        first_compressed: The first file that is compressed, or None.

    Raises:
        IndexMismatchError: a shard is not what the manifest says (names the first), or the manifest
            is damaged.
        FileNotFoundError: a local shard is missing.
    """

    def __init__(
        self,
        manifest: Manifest,
        rows: _Integers,
        files: list[str],
        infos: Mapping[str, RemoteInfo] | None = None,
        compression_type: str = "auto",
    ) -> None:
        self._manifest, self._rows, self.files = manifest, rows, files
        if infos:
            self._check_remote_files(infos)
        is_local = not is_remote(manifest.path) and not is_remote(files[0])
        mtimes = self._check_local_files() if is_local else manifest.mtimes_ns[rows]
        # Kept only where a copy has changed them: most data sets need no second column.
        self._mtimes = mtimes if (mtimes != manifest.mtimes_ns[rows]).any() else None
        self.table = open_table(manifest, rows)
        kinds = manifest.compression[rows]
        self.first_compressed = files[int(kinds.argmax())] if kinds.any() else None
        if compression_type != "auto":
            is_other = kinds != COMPRESSION_TYPES.index(compression_type)
            if is_other.any():
                first = int(is_other.argmax())
                got = repr(COMPRESSION_TYPES[kinds[first]])
                raise self._stale(first, f"compression {compression_type!r}", got)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, file: int) -> RecordIndex:
        """What a file is held against when it is opened; without records."""
        facts = self._manifest.facts(self._rows.item(file))
        facts = facts._with_facts(_kept_at=sidecar_path(self.files[file]))
        if self._mtimes is None:
            return facts
        return facts._with_facts(mtime_ns=self._mtimes.item(file))

    def __getstate__(self) -> dict[str, object]:
        is_all = is_range(self._rows, len(self._manifest))
        # Workers get no list of 100,000 paths: they read the names from the manifest again.
        return {**self.__dict__, "files": None, "_rows": None if is_all else self._rows}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        paths = shard_paths(self._manifest.path, self._manifest.names())
        if state["_rows"] is None:
            self._rows, self.files = np.arange(len(paths)), paths
        else:
            self.files = [paths[row] for row in self._rows.tolist()]

    def _check_local_files(self) -> _Integers:
        """Hold names, sizes and times against the manifest, and the bytes of files with another
        time; returns when each was changed last, int64 [F] nanoseconds.
        """
        states = np.array(list(map(_state, self.files)), np.int64).reshape(-1, 2)
        sizes, mtimes = states[:, 0], states[:, 1]
        if (sizes < 0).any():
            first = int((sizes < 0).argmax())
            text = f"{int((sizes < 0).sum())} of {len(self)} shards of the manifest are missing"
            raise FileNotFoundError(errno.ENOENT, text, self.files[first])
        expected = self._manifest.file_sizes[self._rows]
        if (sizes != expected).any():
            first = int((sizes != expected).argmax())
            raise self._stale(first, f"{expected[first]} bytes", f"{sizes[first]}")
        # Copying a folder changes the times: then the bytes at both ends decide.
        changed = np.flatnonzero(mtimes != self._manifest.mtimes_ns[self._rows]).tolist()
        if changed:
            bar = each_at_once(self._check_fingerprint, changed)
            for _ in ProgressBar(bar, "checking", total=len(changed), unit="file", delay=1.0):
                pass
        return mtimes

    def _check_fingerprint(self, file: int) -> None:
        expected = self._manifest.fingerprints.item(self._rows.item(file))
        got = open_file(self.files[file]).fingerprint()
        if got != expected:
            raise self._stale(file, f"fingerprint {expected:#010x}", f"{got:#010x}")

    def _check_remote_files(self, infos: Mapping[str, RemoteInfo]) -> None:
        etags = self._manifest.etags
        for file, row in enumerate(self._rows.tolist()):
            info = infos.get(self.files[file])
            if info is None:
                continue
            size, etag = self._manifest.file_sizes.item(row), etags[row] if etags else ""
            if info.size not in (None, size):
                raise self._stale(file, f"{size} bytes", f"{info.size}")
            if info.etag and etag and info.etag != etag:
                raise self._stale(file, f"ETag {etag}", info.etag)

    def _stale(self, file: int, expected: str, got: str) -> IndexMismatchError:
        return _stale(self._manifest, self.files[file], expected, got)


def open_shards(
    paths: Paths,
    policy: IndexPolicy,
    index_dir: str | os.PathLike[str] | None = None,
    compression_type: str = "auto",
    access: Access = DEFAULT_ACCESS,
) -> tuple[list[str], Mapping[str, RemoteInfo], ManifestShards | None]:
    """The files of a dataset, what storages said about them, and their shards in the manifest that
    was named or found.

    Args:
        paths: See `find_files`.
        policy: With "memory" only the names of a manifest are used.
        index_dir: Where to look for it, instead of beside the files.
        compression_type: As declared; "auto" is any.
        access: How to reach remote files.

    Raises:
        IndexMismatchError: The manifest that was named is stale or damaged.
        OSError, ValueError, TypeError: See `find_files`.
    """
    named = named_manifest(paths)
    if named is not None and policy != "memory":
        shards = _open_manifest(Manifest(named, access), compression_type)
        return shards.files, {}, shards
    files, infos = found_files(paths, access)
    if policy == "memory":
        return files, infos, None
    place = manifest_path(files, None if index_dir is None else local_path(index_dir))
    return files, infos, _find_manifest(place, access, files, infos, compression_type)


def _open_manifest(manifest: Manifest, compression_type: str) -> ManifestShards:
    """The shards of a manifest that a user named.

    Raises:
        IndexMismatchError, OSError: see `ManifestShards`; nothing else names the files.
    """
    paths = shard_paths(manifest.path, manifest.names())
    if not paths:
        raise IndexMismatchError(
            "expected a manifest of at least one shard, got an empty one", path=manifest.path
        )
    # In the order in which a pattern would list them, so that positions mean the same records.
    keys = list(map(os.fsencode, paths))
    order = sorted(range(len(paths)), key=keys.__getitem__)
    if any(keys[one] == keys[other] for one, other in pairwise(order)):
        raise IndexMismatchError(
            "expected a manifest that names each file once, got one that does not",
            path=manifest.path,
        )
    rows, files = np.array(order, np.int64), [paths[row] for row in order]
    return ManifestShards(manifest, rows, files, None, compression_type)


def _find_manifest(
    path: str,
    access: Access,
    files: list[str],
    infos: Mapping[str, RemoteInfo],
    compression_type: str,
) -> ManifestShards | None:
    """The shards of the manifest beside sorted files; None if there is none that can be used.

    If it names these files but they have changed, it is not used, with a warning.
    """
    try:
        manifest = Manifest(path, access)
        rows = _rows(manifest, files)
        if rows is None:
            return None
        return ManifestShards(manifest, rows, files, infos, compression_type)
    except IndexMismatchError as error:
        text = f"{error}: it is not used; build it again with `tfrecord index --manifest`"
        warnings.warn(text, stacklevel=outer_level())
        return None
    # Most folders have no manifest, which is no reason to say anything.
    except OSError:
        return None


def _rows(manifest: Manifest, files: list[str]) -> _Integers | None:
    """The row of each file; None if the manifest has none of them."""
    paths = shard_paths(manifest.path, manifest.names())
    if paths == files:
        return np.arange(len(files))
    # Some of the shards: a validation set, or the share of one rank.
    row_of = {path: row for row, path in enumerate(paths)}
    rows = np.array([row_of.get(file, -1) for file in files], np.int64)
    missing = rows < 0
    if missing.all():
        return None
    if missing.any():
        first = int(missing.argmax())
        raise _stale(
            manifest,
            files[first],
            f"all {len(files)} files in it",
            f"{int(missing.sum())} that it does not name",
        )
    return rows


def _stale(manifest: Manifest, file: str, expected: str, got: str) -> IndexMismatchError:
    text = f"the manifest at {manifest.path} is not of this file as it is now: expected {expected}"
    return IndexMismatchError(f"{text}, got {got}", path=file)


def _state(file: str) -> tuple[int, int]:
    """Size and time of a file; a size of -1 if it is missing."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


# Building a manifest.


class WrittenManifest(NamedTuple):
    """What `write_manifest` wrote.

    Attributes:
        path: The manifest.
        num_files: Its shards.
        num_records: Records of all shards.
        num_bytes: Size of the manifest.
        num_built: Shards whose rows are new.
    """

    path: str
    num_files: int
    num_records: int
    num_bytes: int
    num_built: int


def build_manifest(
    paths: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Write one file for the indexes of all shards, from which a dataset opens without a look at
    each.

    It holds name, size, modification time and fingerprint of each shard, and where its records lie,
    in four bytes a record (eight if one has 4 GiB or more). A dataset of these files, or of some of
    them, finds it by itself where it was written without `out`; else give the dataset the manifest
    in place of its files. It loads what it needs: 100,000 shards with 10^9 records need 40 to 90
    MiB. Names are relative to the manifest: copy the whole folder, and it stays valid.

    Fresh indexes are used, and missing ones built by several threads and kept, as `TFRecordDataset`
    does. What a manifest in the same place says of shards that did not change is taken over;
    without `out` it stays the manifest of all of them, also of those that are not in `paths`.

    Args:
        paths: See `find_files`.
        out: Where it is written, ending with ``.safetensors``; None for
            ``.torch_index/manifest.safetensors`` in the folder that holds all the files.
        storage_options: See `TFRecordDataset`.

    Returns:
        The manifest's path.

    Raises:
        TFRecordError: a shard that must be indexed is damaged.
        OSError: a shard cannot be read, or the manifest not be written; nothing was changed in its
            place.
        ValueError: `out` has another ending, or is in another storage than the files.

    Example:
        >>> build_manifest("data/train-*")  # doctest: +SKIP
        'data/.torch_index/manifest.safetensors'
        >>> ds = TFRecordDataset("data/train-*")  # doctest: +SKIP
    """
    return write_manifest(paths, out, access=Access(storage_options)).path


def write_manifest(
    paths: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    index_dir: str | None = None,
    access: Access = DEFAULT_ACCESS,
    again: bool = False,
) -> WrittenManifest:
    """`build_manifest`, with its figures.

    Args:
        paths: See there.
        out: See there.
        index_dir: See `TFRecordDataset`: where the indexes are kept, and without `out` the
            manifest.
        access: How remote files are reached.
        again: Take the rows of `paths` from the indexes in any case, not from the manifest of
            before.
    """
    files, infos = found_files(paths, access)
    place = manifest_path(files, index_dir) if out is None else local_path(out)
    if not is_manifest(place):
        raise ValueError(
            f"out must end with {MANIFEST_SUFFIX!r}, and not as an index does, got {without_secrets(place)!r}"
        )
    # What did not change is taken over: with 100,000 shards a new one costs one index.
    known = _known_shards(place, access)
    asked = {*files} if again else set()
    if out is None:
        kept = (path for path, shard in known.items() if shard.now(path, access) is not None)
        files = sorted({*files, *kept}, key=os.fsencode)
    keeper = IndexKeeper(index_dir=index_dir, access=access)

    def work(path: str) -> tuple[ShardRow, bool]:
        """The row of a file, and whether it is new."""
        info = infos.get(path)
        if path in known and path not in asked:
            with contextlib.suppress(IndexMismatchError):  # then the lengths are damaged
                facts = known[path].now(path, access, info)
                if facts is not None:
                    return known[path].row()._replace(facts=facts), False
        source = open_file(path, access, info)
        # The version is that of the file as it was opened before it was indexed: what changes in
        # between is stale at once, and never trusted.
        new = shard_row(keeper.index(source))
        return new._replace(facts=new.facts._of_version(source)), True

    found = list(
        ProgressBar(each_at_once(work, files), "indexing", total=len(files), unit="file", delay=1.0)
    )
    keeper.warn_of_displaced()
    content = pack_manifest(relative_names(files, place), [row for row, _ in found])
    if is_remote(place):
        upload_bytes(place, content, access)
    elif out is None:
        write_sidecar(place, content)
    else:
        write_atomically(place, content)
    num_records = sum(len(row.lengths) for row, _ in found)
    num_built = sum(is_new for _, is_new in found)
    return WrittenManifest(place, len(files), num_records, len(content), num_built)


class _KnownShard(NamedTuple):
    """A shard of the manifest that is there already."""

    manifest: Manifest
    number: int

    def row(self) -> ShardRow:
        """Its row."""
        return self.manifest.row(self.number)

    def now(self, path: str, access: Access, info: RemoteInfo | None = None) -> RecordIndex | None:
        """Its facts with time and ETag of now, if the file is still the same, else None."""
        facts = self.manifest.facts(self.number)
        try:
            if not is_remote(path):
                status = os.stat(path)
                # A local file that looks the same is not read: rsync trusts size and time, too.
                if (status.st_size, status.st_mtime_ns) == (facts.file_size, facts.mtime_ns):
                    return facts
            if facts.fingerprint is None:
                return None
            source = open_file(path, access, info)
            facts._with_facts(mtime_ns=0).check_fresh(source)  # a copy has another time
            return facts._of_version(source)
        except (OSError, IndexMismatchError):
            return None


def _known_shards(place: str, access: Access) -> dict[str, _KnownShard]:
    """The shards of the manifest that is there already, by path."""
    try:
        manifest = Manifest(place, access)
        paths = shard_paths(place, manifest.names())
    except (OSError, IndexMismatchError):
        return {}
    return {path: _KnownShard(manifest, number) for number, path in enumerate(paths)}
