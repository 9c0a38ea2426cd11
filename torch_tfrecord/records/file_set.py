"""Publish several files together, all or none: a set of shards with its indexes.

No single system call renames many files. So they are first completed in a hidden folder. While they
are renamed, a marker (a hidden file named after the set) is in the set's folder, and the replaced
files are kept until it is removed. After a failure, the old files are put back. After ``kill -9``,
readers find the marker and reject the set, and its next writer puts the old files back.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from torch_tfrecord.files.atomic import AtomicFile, write_atomically
from torch_tfrecord.files.descriptors import named, opened
from torch_tfrecord.files.temporaries import (
    claim_folder,
    clear_dead,
    hidden_name,
    lock_dead,
    remove_folder,
    sync_directory,
    temporary_names,
)
from torch_tfrecord.records.sidecar import SIDECAR_FOLDER, in_sidecar_folder, sidecar_folder

__all__ = ["FileSet", "check_whole"]

_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_MOST_WRITERS = 100  # of the same set at once


def check_whole(base: str, suffix: str) -> None:
    """Reject a local set of shards whose writer has not finished replacing it.

    Args:
        base: Prefix of its names, such as ``out/train`` for ``out/train-00003-of-00010.tfrecord``.
        suffix: Suffix of its names.

    Raises:
        OSError: The set may be partly old and partly new.
    """
    if _marker(base, suffix).exists():
        raise OSError(
            errno.EBUSY,
            "this set of shards is not complete: its writer is replacing it, or was killed before it ended; write "
            "it again",
            f"{base}-*{suffix}",
        )


def _marker(base: str, suffix: str) -> Path:
    path = Path(f"{base}-*{suffix}")
    return path.parent / hidden_name(path.name, "partial")


class FileSet:
    """Files of one folder, and indexes in its hidden folder, that are published together.

    Restores the old files if a killed writer of this set left it half replaced, and removes its
    temporary files.

    Args:
        base: See `check_whole`.
        suffix: See `check_whole`.

    Raises:
        OSError: The old files cannot be restored.
    """

    def __init__(self, base: str, suffix: str) -> None:
        self._path = Path(f"{base}-*{suffix}")
        self._marker = _marker(base, suffix)
        self._folder: Path | None = None
        self._descriptor = -1
        self._count = 0
        self._pid = os.getpid()
        self._recover()

    def add(self, file: AtomicFile) -> None:
        """Close and keep a prepared file for `publish`; the files are numbered from 0."""
        if self._folder is None:
            self._recover()  # from a writer that was killed meanwhile
            with named(self._path):
                self._folder, self._descriptor = claim_folder(temporary_names(self._path))
        file.put(_new(self._folder, self._count))
        self._count += 1

    def publish(self, names: Sequence[str]) -> None:
        """Give all files their names.

        Args:
            names: Name of each added file, in the set's folder.

        Raises:
            OSError: A file could not get its name, which the error gives; the old files are back in
                place.
        """
        folder = self._folder
        if folder is None:
            raise ValueError("publish needs at least one file, got none")
        replaces = [os.path.lexists(self._final(name)) for name in names]
        with contextlib.ExitStack() as folders:
            for name in names:
                if _is_index(name):  # find obstacles before any file is renamed
                    folders.enter_context(sidecar_folder(str(self._parent / name)))
            sync_directory(folder)
            if self._marker.exists():
                raise OSError(
                    errno.EBUSY, "another writer is replacing this set of shards", str(self._path)
                )
            try:
                content = json.dumps(
                    {"folder": folder.name, "names": list(names), "replaces": replaces}
                )
                write_atomically(str(self._marker), content.encode("ascii"))
                self._rename(folder, names, replaces)
                self._marker.unlink()
            except BaseException:
                self._take_back(folder, names, replaces)
                raise
        # the new files are durable: at worst, a crash brings back the old ones
        with contextlib.suppress(OSError):
            sync_directory(self._parent)
        self.discard()

    @property
    def _parent(self) -> Path:
        return self._path.parent

    def _final(self, name: str) -> Path:
        path = self._parent / name
        return path if _is_index(name) else Path(os.path.realpath(path))  # keep symbolic links

    def _rename(self, folder: Path, names: Sequence[str], replaces: Sequence[bool]) -> None:
        for number, (name, is_there) in enumerate(zip(names, replaces, strict=True)):
            if is_there:
                with named(self._parent / name):
                    _keep(self._final(name), _old(folder, number))
        sync_directory(folder)
        for number, name in enumerate(names):
            final = self._final(name)
            with named(self._parent / name):
                move = functools.partial(os.replace, _new(folder, number), final)
                in_sidecar_folder(str(final), move) if _is_index(name) else move()
        for path in {self._final(name).parent for name in names}:
            sync_directory(path)

    def _take_back(self, folder: Path, names: Sequence[str], replaces: Sequence[bool]) -> None:
        """Put the old files back; if that fails, too, the marker stays for the next writer."""
        try:
            self._roll_back(folder, names, replaces)
        except OSError:
            self._folder = None  # it holds the old files
            self._close()

    def _roll_back(self, folder: Path, names: Sequence[str], replaces: Sequence[bool]) -> None:
        """Can be called again after an interruption: files that are back are no longer in the
        folder.
        """
        for number, (name, is_there) in enumerate(zip(names, replaces, strict=True)):
            final, old = self._final(name), _old(folder, number)
            if is_there:
                # renaming may be impossible here
                if os.path.lexists(old) and not _is_same(old, final):
                    old.replace(final)
            elif not _new(folder, number).exists():
                final.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another error is being raised
            sync_directory(self._parent)
        self._marker.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Put back the files that a killed writer was replacing, and remove its temporary files."""
        content = b""
        with named(self._path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            content = opened(Path.read_bytes, self._marker)
        if content:
            self._recover_marked(content)
        clear_dead(temporary_names(self._path))

    def _recover_marked(self, content: bytes) -> None:
        folder, names, replaces = self._checked(content)
        try:
            descriptor = lock_dead(folder)
        except FileNotFoundError:  # removed by hand: nothing to put back
            self._marker.unlink(missing_ok=True)
            return
        if descriptor is not None:
            try:
                if self._marker.exists():  # else its writer has finished meanwhile
                    self._roll_back(folder, names, replaces)
            finally:
                os.close(descriptor)

    def _checked(self, content: bytes) -> tuple[Path, list[str], list[bool]]:
        """Parse and check a marker: a foreign file must not choose what is renamed and removed."""
        try:
            fields = json.loads(content)
            folder, names, replaces = (
                str(fields["folder"]),
                list(fields["names"]),
                list(fields["replaces"]),
            )
            is_ours = self._parent / folder in itertools.islice(
                temporary_names(self._path), _MOST_WRITERS
            )
            is_ours = (
                is_ours
                and len(names) == len(replaces)
                and all(_is_plain(name) or _is_index(name) for name in names)
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            is_ours = False
        if not is_ours:
            raise OSError(
                errno.EINVAL,
                f"expected a marker of {self._path.name}, got something else",
                str(self._marker),
            )
        return self._parent / folder, names, replaces

    def discard(self) -> None:
        """Remove everything that was not published; does nothing in a forked child."""
        folder, self._folder = self._folder, None
        if folder is not None and self._pid == os.getpid():
            remove_folder(folder)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _new(folder: Path, number: int) -> Path:
    return folder / f"{number}.new"


def _old(folder: Path, number: int) -> Path:
    return folder / f"{number}.old"


def _is_index(name: str) -> bool:
    folder, slash, rest = name.partition("/")
    return bool(slash) and folder == SIDECAR_FOLDER and _is_plain(rest)


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False


def _keep(path: Path, kept: Path) -> None:
    """Give a file that is being replaced a second name; without hard links, rename it."""
    try:
        os.link(path, kept)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        path.replace(kept)
