"""Building the manifest of a set of shards from their indexes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from torch_tfrecord.arguments import PathLike, Paths, StorageOptions
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files import Access, AtomicFile, RemoteInfo, is_remote, local_path, open_file
from torch_tfrecord.manifests.manifest import (
    SUFFIX,
    Manifest,
    ShardRow,
    manifest_path,
    pack_manifest,
    relative_names,
    shard_row,
)
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records import IndexKeeper, RecordIndex, found_files
from torch_tfrecord.remote import upload_bytes
from torch_tfrecord.shown import without_secrets

__all__ = ["build_manifest", "write_manifest"]


class WrittenManifest(NamedTuple):
    """The manifest that `write_manifest` wrote.

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
    out: PathLike | None = None,
    *,
    storage_options: StorageOptions = None,
) -> str:
    """Write one file for the indexes of all shards, from which a dataset opens without a look at
    each.

    It has name, size, modification time and fingerprint of each shard, and where its records are,
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
            ``.torch_index/manifest.safetensors`` in the folder above all the files.
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
    out: PathLike | None = None,
    *,
    index_dir: str | None = None,
    access: Access = Access.DEFAULT,
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
    if not place.endswith(SUFFIX) or place.endswith(f".index{SUFFIX}"):
        raise ValueError(
            f"out must end with {SUFFIX!r}, and not as an index does, got {without_secrets(place)!r}"
        )
    # Shards that did not change are taken over: with 100,000 shards a new one costs one index.
    known: dict[str, int] = {}
    with suppress(OSError, IndexMismatchError):
        before = Manifest(place, access)
        known = {path: row for row, path in enumerate(before.paths())}

    def facts_now(path: str) -> RecordIndex | None:
        return _facts_now(before.facts(known[path]), path, access, infos.get(path))

    asked = {*files} if again else set()
    if out is None:
        kept = (path for path in known if facts_now(path) is not None)
        files = sorted({*files, *kept}, key=os.fsencode)
    keeper = IndexKeeper(index_dir=index_dir, access=access)

    def work(path: str) -> tuple[ShardRow, bool]:
        """The row of a file, and whether it is new."""
        if path in known and path not in asked:
            with suppress(IndexMismatchError):  # then the lengths are damaged
                facts = facts_now(path)
                if facts is not None:
                    return before.row(known[path])._replace(facts=facts), False
        source = open_file(path, access, infos.get(path))
        # The version is that of the file as it was opened before it was indexed: what changes in
        # between is stale at once, and never trusted.
        new = shard_row(keeper.find(source))
        return new._replace(facts=new.facts._of_version(source)), True

    found = list(
        ProgressBar(each_at_once(work, files), "indexing", total=len(files), unit="file", delay=1.0)
    )
    keeper.warn_of_displaced()
    content = pack_manifest(relative_names(files, place), [row for row, _ in found])
    if is_remote(place):
        upload_bytes(place, content, access)
    elif out is None:
        IndexKeeper.write(place, content)
    else:
        AtomicFile.save(place, content)
    num_records = sum(len(row.lengths) for row, _ in found)
    num_built = sum(is_new for _, is_new in found)
    return WrittenManifest(place, len(files), num_records, len(content), num_built)


def _facts_now(
    facts: RecordIndex, path: str, access: Access, info: RemoteInfo | None
) -> RecordIndex | None:
    """The facts of a shard with time and ETag of now, if the file is still the same, else None."""
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
