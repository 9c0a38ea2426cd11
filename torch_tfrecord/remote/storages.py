"""What the core asks of storages: see `files.Storages`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch_tfrecord.files import Access, FileSource, RemoteInfo
from torch_tfrecord.remote.block_memory import BlockMemory
from torch_tfrecord.remote.disk_cache import DiskCache
from torch_tfrecord.remote.remote_file import FilesAhead, RemoteFile
from torch_tfrecord.remote.transfers import infos

__all__ = ["STORAGES"]


class _Storages:
    by_blocks = BlockMemory

    def open(
        self, paths: Sequence[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> list[FileSource]:
        asked = [path for path in paths if path not in known]
        found = dict(zip(asked, infos(asked, access), strict=True)) if asked else {}
        return [RemoteFile(path, access, found.get(path) or known[path]) for path in paths]

    def open_in_turn(
        self, paths: Iterable[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> Callable[[str], FileSource]:
        return FilesAhead(paths, access, known).open

    def cache(self, folder: str, max_bytes: int | None, group: str) -> DiskCache:
        return DiskCache(folder, max_bytes, group=group)


STORAGES = _Storages()
