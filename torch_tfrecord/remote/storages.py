"""The core's questions to storages, by Protocols of its rooms files, records and loading: names there,
by few requests; files that are opened; and files that are written, each of which appears whole, or
not at all.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import posixpath
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeAlias, cast

from torch_tfrecord.errors import RemoteError
from torch_tfrecord.files import Access, FileSource, RemoteInfo, open_path
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.remote.disk_cache import DiskCache
from torch_tfrecord.remote.remote_file import (
    BlockMemory,
    FilesAhead,
    RemoteFile,
    begin_opening,
)
from torch_tfrecord.remote.store import Store
from torch_tfrecord.remote.stores import fsspec_store_of, store_of
from torch_tfrecord.remote.transfers import Job, Transfer
from torch_tfrecord.shown import without_secrets

__all__ = [
    "STORAGES",
    "RemoteNames",
    "upload_bytes",
    "upload_folder",
]

_USUAL_SUFFIXES = ("", ".tfrecord", ".tfrecord.gz", ".tfrec")


class RemoteNames:
    """Questions about names in storages; what these say of files is kept, so that nobody asks
    again.

    Args:
        access: How they are reached.

    Attributes:
        access: How they are reached.
        infos: Path -> the storage's answer, for files whose size it says.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.infos: dict[str, RemoteInfo] = {}

    def ask(self, paths: Iterable[str]) -> None:
        """Ask for several files at once; those that are not there are left out."""
        asked = [path for path in paths if path not in self.infos and not _is_page(path)]
        for path, info in zip(asked, infos_if_there(asked, self.access), strict=True):
            if info is not None:
                self.infos[path] = info

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        if not self.is_dir(path):
            self.ask([path])
        return path in self.infos or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        """Whether it is a folder, of a path that was asked for; for an address its end says so."""
        info = self.infos.get(path)
        return _is_page(path) if info is None else info.is_folder

    def is_pattern(self, path: str) -> bool:
        """Whether a path is looked at as a pattern first: no request tells whether its name is what
        is meant.
        """
        return glob.has_magic(path) and not (path.startswith("http") and "?" in path)

    def entries(self, folder: str) -> list[str]:
        """The names of what is in a folder: files and folders.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        return [posixpath.basename(path.rstrip("/")) for path, _ in listing(folder, self.access)]

    def glob(self, pattern: str) -> list[str]:
        """The files that a pattern matches, by one listing of the folder that has all of
        them.
        """
        scheme, _, rest = pattern.partition("://")
        parts = rest.split("/")
        first = next(
            (number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts)
        )
        folder, wanted = f"{scheme}://{'/'.join(parts[:first])}", parts[first:]
        try:
            # One listing, also of folders below: a request for each of them would take longer.
            names = self.listing(folder, recursive=len(wanted) > 1 or wanted == ["**"])
        except FileNotFoundError:
            return []
        begin, is_shown = len(folder.rstrip("/")) + 1, parts[-1].startswith(".")
        return [
            name
            for name in names
            if _matches(name[begin:].split("/"), wanted)
            and (is_shown or not posixpath.basename(name).startswith("."))
        ]

    def shards(self, names: Sequence[Sequence[str]]) -> tuple[list[str], list[int]] | None:
        """The shards of a set that are there, and the numbers of those that are not, without a
        listing.

        Args:
            names: Names of each shard, for each suffix that the set may have.

        Returns:
            None where the first shard has none of the names.
        """
        self.ask(names[0])
        suffix = next((number for number, name in enumerate(names[0]) if name in self.infos), None)
        if suffix is None:
            return None
        wanted = [of_shard[suffix] for of_shard in names]
        self.ask(wanted)
        return (
            [name for name in wanted if name in self.infos],
            [number for number, name in enumerate(wanted) if name not in self.infos],
        )

    def suffixes(self, suffix: str) -> tuple[str, ...]:
        """Which suffixes a set may have, of which one is said or none."""
        return (suffix,) if suffix else _USUAL_SUFFIXES

    def glob_if_listed(self, pattern: str) -> list[str]:
        """As `glob`; nothing where the storage lists nothing."""
        try:
            return self.glob(pattern)
        except (RemoteError, OSError):
            return []

    def listing(self, folder: str, *, recursive: bool = False) -> list[str]:
        """The files of a folder, or all below it."""
        if folder.startswith("http"):
            folder = (
                f"{folder.rstrip('/')}/"  # else the links on its page are those of the folder above
            )
        found = listing(folder, self.access, recursive=recursive)
        begin = _begin_below([path for path, _ in found], folder)
        own = f"{folder.rstrip('/')}/"  # as the user writes it
        files = [
            (own + path[begin:], info)
            for path, info in found
            if not info.is_folder and not path.endswith("/")
        ]
        self.infos.update((path, info) for path, info in files if info.size is not None)
        return [path for path, _ in files]


def _is_page(path: str) -> bool:
    """Whether the address is that of a folder, where its server shows a list of links."""
    return path.startswith("http") and path.endswith("/")


def _begin_below(names: Sequence[str], folder: str) -> int:
    """Where in each name the part below the folder begins: some storages write names in another way
    than the user.
    """
    end = f"/{folder.partition('://')[2].strip('/')}/"
    return names[0].find(end, names[0].find("://") + 2) + len(end) if names else 0


def _matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the parts of a name are those of a pattern; ``**`` matches any number of
    folders.
    """
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return len(wanted) == 1 or any(
            _matches(parts[number:], wanted[1:]) for number in range(len(parts))
        )
    return (
        bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])
    )


_SHOWN_AFTER = 1.0  # seconds: that something is listed
_UPLOADS_AT_ONCE = 4  # files, each in several parts at once


def infos_if_there(paths: Sequence[str], access: Access) -> list[RemoteInfo | None]:
    """Answers of storages about files, asked all at once; None for a file that is not there."""

    def call(store: Store, name: str) -> RemoteInfo | None:
        with contextlib.suppress(FileNotFoundError):
            return store.info(name)
        return None

    return Transfer([Job(path, "its size", 0, call) for path in paths], access).answers()


def listing(
    folder: str, access: Access, *, recursive: bool = False
) -> list[tuple[str, RemoteInfo]]:
    """The content of a folder, or all files below it: whole paths, whose names come a thousand by a
    request.
    """

    def call(store: Store, name: str) -> list[tuple[str, RemoteInfo]]:
        if folder.startswith("http"):  # whose lists of links fsspec knows to read
            store, name = fsspec_store_of(folder, access)
        return [(store.path_of(entry), info) for entry, info in store.listing(name, recursive)]

    transfer = Transfer([Job(folder, "its listing", 0, call)], access)
    if not transfer.wait(_SHOWN_AFTER):
        with ProgressBar(desc="listing", bar_format="{desc}: {elapsed}") as bar:
            while not transfer.wait(_SHOWN_AFTER):
                bar.refresh()
    (found,) = transfer.answers()
    return found


_Upload: TypeAlias = tuple[str, IO[bytes], int]
"""Where to, with its scheme; a binary file of this machine, all of which is written; its bytes."""


def upload(uploads: Sequence[_Upload], access: Access) -> list[RemoteInfo]:
    """Write files, a few of them at once; what the storage says of each then.

    Raises:
        OSError, RemoteError: One could not be written, and is as it was before; others may have
            been written.
    """
    found: list[RemoteInfo] = []
    for first in range(0, len(uploads), _UPLOADS_AT_ONCE):
        with (
            contextlib.ExitStack() as all_ended
        ):  # after an error, before anybody looks what is there
            begun = [
                Transfer([_upload_job(*item)], access)
                for item in uploads[first : first + _UPLOADS_AT_ONCE]
            ]
            for transfer in begun:
                all_ended.callback(transfer.wait)
            found += [transfer.answers()[0] for transfer in begun]
    return found


def _upload_job(path: str, file: IO[bytes], size: int) -> Job:
    def call(store: Store, name: str) -> RemoteInfo:
        file.seek(0)  # a second attempt starts again
        return store.upload(name, file, size)

    return Job(path, f"its {size} bytes", 0, call)


class UploadFile:
    """A file being written: until it is uploaded it takes room in the folder for temporary files,
    ``TMPDIR``.

    Args:
        path: The final path, with its scheme.

    Raises:
        OSError: There can be no temporary file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: IO[bytes] = open_path(lambda _: tempfile.TemporaryFile(), without_secrets(path))  # noqa: SIM115
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        with self._located():
            self._file.write(data)
        self.size += len(data)

    def flush(self) -> None:
        """Hand all bytes to the operating system; the storage gets them at the end."""
        with self._located():
            self._file.flush()

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # not of the storage
            text = f"{error.strerror} (its temporary file in {tempfile.gettempdir()})"
            raise OSError(error.errno, text, without_secrets(self.path)) from error

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Bytes that were handed to the operating system; fewer only at their end."""
        return os.pread(self._file.fileno(), num_bytes, offset)

    def upload(self, path: str) -> _Upload:
        """All of it, to be written under a name."""
        self.flush()
        return path, self._file, self.size

    def discard(self) -> None:
        """Remove it; safe to call at any time."""
        with contextlib.suppress(OSError):
            self._file.close()


def upload_files(
    files: Sequence[UploadFile], paths: Sequence[str], access: Access
) -> list[RemoteInfo]:
    """Write files under their names; the storage's answer about each.

    Raises:
        OSError, RemoteError: One could not be written. Those that replace nothing are removed
            again; a file that was replaced before the error stays the new one.
    """
    # Only what replaces nothing can be taken back: a storage keeps no old version.
    before = zip(paths, infos_if_there(paths, access), strict=True)
    with _removing([path for path, info in before if info is None or info.is_folder], access):
        uploads = zip(files, paths, strict=True)
        return upload([file.upload(path) for file, path in uploads], access)


@contextlib.contextmanager
def _removing(paths: Sequence[str], access: Access) -> Iterator[None]:
    """Remove files after an error; no other one where there is none."""

    def call(store: Store, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            store.remove(name)

    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # for an error that is being raised
            Transfer([Job(path, "its removal", 0, call) for path in paths], access).answers()
        raise


def upload_bytes(path: str, data: bytes, access: Access) -> RemoteInfo:
    """Write a small file to a storage; it appears whole, or not at all.

    Raises:
        OSError, RemoteError: It is as it was before.
    """
    file = UploadFile(path)
    try:
        file.write(data)
        return upload([file.upload(path)], access)[0]
    finally:
        file.discard()


def upload_folder(folder: Path, target: str, last: str, access: Access) -> None:
    """Write all files of a folder to one of a storage, the one named `last` after the others.

    Raises:
        OSError, RemoteError: One could not be written; all of them are removed again.
    """
    paths = sorted(folder.iterdir(), key=lambda path: (path.name == last, path.name))
    with contextlib.ExitStack() as opened:
        uploads = [
            (f"{target}/{path.name}", opened.enter_context(path.open("rb")), path.stat().st_size)
            for path in paths
        ]
        with _removing([path for path, *_ in uploads], access):
            upload(uploads[:-1], access)
            upload(uploads[-1:], access)


class _Storages:
    by_blocks = BlockMemory
    cache = DiskCache
    names = RemoteNames
    new_file = UploadFile
    open_in_turn = FilesAhead
    upload = staticmethod(upload_files)

    def open(
        self, path: str, access: Access, info: RemoteInfo | None, *, is_current: bool
    ) -> FileSource:
        if info and (is_current or store_of(path, access)[0].checks_etag):
            return RemoteFile(path, access, info)
        return cast("RemoteFile", begin_opening(RemoteFile, path, access).answers()[0])


STORAGES = _Storages()
