"""The storages that the core asks: by Protocols of its rooms files and records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch_tfrecord.files import Access, FileSource, RemoteInfo
from torch_tfrecord.remote.disk_cache import DiskCache
from torch_tfrecord.remote.remote_file import BlockMemory, FilesAhead, RemoteFile
from torch_tfrecord.remote.remote_paths import RemoteNames
from torch_tfrecord.remote.stores import store_of
from torch_tfrecord.remote.transfers import infos
from torch_tfrecord.remote.uploads import UploadFile, upload_files

__all__ = ["STORAGES"]


class _Storages:
    @staticmethod
    def by_blocks(
        extent_of: Callable[[int, int, int], tuple[int, int]], block_bytes: int
    ) -> Callable[..., None]:
        return BlockMemory(extent_of, block_bytes).read

    names = RemoteNames
    new_file = UploadFile
    upload = staticmethod(upload_files)

    def open(
        self,
        paths: Sequence[str],
        access: Access,
        known: Mapping[str, RemoteInfo],
        *,
        is_current: bool,
    ) -> list[FileSource]:
        asked = [
            path
            for path in paths
            if path not in known or not (is_current or store_of(path, access)[0].checks_etag)
        ]
        found = dict(zip(asked, infos(asked, access), strict=True)) if asked else {}
        return [RemoteFile(path, access, found.get(path) or known[path]) for path in paths]

    def open_in_turn(
        self, paths: Iterable[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> Callable[[str], FileSource]:
        return FilesAhead(paths, access, known).open

    def cache(self, folder: str, max_bytes: int | None, group: str) -> DiskCache:
        return DiskCache(folder, max_bytes, group=group)


STORAGES = _Storages()
