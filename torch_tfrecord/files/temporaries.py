"""Temporary names in a folder: hidden, locked while in use, and removed by the next user after a
kill.

The names are derived from the final name, so the next run finds them without listing the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from torch_tfrecord.files.descriptors import named, opened

__all__ = [
    "claim",
    "claim_folder",
    "clear_dead",
    "hidden_name",
    "remove_folder",
    "sync_directory",
    "temporary_names",
]

_ATTEMPTS = 3


def hidden_name(key: str, ending: str) -> str:
    """A hidden name without the final one in it, as ``*train*`` in TensorFlow and pathlib matches
    hidden names.
    """
    return f".{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.{ending}"


def temporary_names(path: Path) -> Iterator[Path]:
    """Yield the temporary names for a path, in the order in which they are used."""
    return (
        path.parent / hidden_name(f"{number}/{path.name}", "tmp") for number in itertools.count()
    )


def claim(names: Iterator[Path], create: Callable[[Path], int]) -> tuple[Path, int]:
    """Create and lock a file or folder under the first free name.

    Args:
        names: Names from `temporary_names`.
        create: Creates it and returns its descriptor; raises FileExistsError if the name is taken.

    Raises:
        OSError: See `create`.
    """
    for path in names:
        for attempt in range(_ATTEMPTS):
            try:
                descriptor = create(path)
            except FileExistsError:
                if not _remove_dead(path):
                    break
            except FileNotFoundError:  # another process removed it before it was locked
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                if _lock(descriptor, path):
                    return path, descriptor
                os.close(descriptor)
    raise AssertionError("names never end")


def claim_folder(names: Iterator[Path]) -> tuple[Path, int]:
    """Create a folder under the first free name; closing the descriptor unlocks it."""
    return claim(names, _make_folder)


def _make_folder(path: Path) -> int:
    path.mkdir()
    try:
        return opened(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        remove_folder(path)
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder and its content, as far as possible."""
    with contextlib.suppress(OSError):  # rmtree lets some errors through
        shutil.rmtree(path, ignore_errors=True)


def clear_dead(names: Iterator[Path]) -> None:
    """Remove what killed processes left under these names, up to the first name that is free or in
    use.
    """
    for path in names:
        if not _remove_dead(path):
            return


def _remove_dead(path: Path) -> bool:
    """Remove a file or folder that nobody has locked; return whether it was removed."""
    with contextlib.suppress(OSError):  # in use, or a file system without locks
        descriptor = opened(
            os.open, path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                shutil.rmtree(path) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else path.unlink()
                return True
        finally:
            os.close(descriptor)
    return False


def _lock(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder; return whether it still exists."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where nobody can remove it as abandoned
        return True
    try:
        return _is_at(descriptor, path)
    except OSError:
        return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def sync_directory(folder: Path) -> None:
    """Sync the names in a folder to disk, if possible: a folder that may not be listed cannot be
    opened.

    Raises:
        OSError: The disk failed; names the folder.
    """
    with named(folder):
        try:
            descriptor = opened(os.open, folder, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            # file systems that cannot sync a directory
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)
