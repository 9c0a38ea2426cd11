"""Where the indexes of data files are, and writing and removing them there; other sidecars, too.

The index of a data file is in a hidden folder beside it, in a folder of the user's choice or in
the user's cache. Beside the data its name shares nothing with the data's: TensorFlow's and
pathlib's ``*`` match hidden names, too, so ``*train*`` would take ``.train-00000.index`` for data.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from torch_tfrecord.files import Access, AtomicFile, is_remote, open_file
from torch_tfrecord.shown import without_secrets, without_signature

__all__ = [
    "LENGTH_BYTES",
    "METADATA",
    "PREFIX",
    "SIDECAR_FOLDER",
    "begins_as_ours",
    "in_sidecar_folder",
    "index_paths",
    "new_index_paths",
    "remove_own",
    "remove_sidecar",
    "sidecar_folder",
    "sidecar_path",
    "visible_sidecar_path",
    "write_sidecar",
]

SIDECAR_FOLDER = ".torch_index"
PREFIX = "torch_tfrecord."  # begins the format names of all sidecars
METADATA = "__metadata__"
LENGTH_BYTES = 8  # the header length field, which comes first
_MARK = f'"format":"{PREFIX}'.encode()
_MOST_HEADER_BYTES = 1 << 20  # searched for the format name
_SIDECAR_SUFFIX = ".index.safetensors"
_MOST_TRIES = 20  # against other processes that remove the folder, each time just before it is used


def sidecar_path(data_path: str, index_dir: str | None = None) -> str:
    """Where the index of a data file is kept: in the hidden folder ``.torch_index`` beside it, or
    in another folder.

    Beside the data the name is a hash of the data file's name alone, so that a folder may be copied
    with its indexes. In a folder for the indexes of many it carries a hash of the whole path, since
    a name alone is not unique there.
    """
    folder, slash, name = data_path.rpartition("/")
    if index_dir is None or os.path.realpath(index_dir) == os.path.realpath(folder + slash):
        return f"{folder}{slash}{SIDECAR_FOLDER}/{_digest(name)}{_SIDECAR_SUFFIX}"
    # A signed URL names the same file tomorrow, with another signature.
    absolute = without_signature(data_path) if is_remote(data_path) else os.path.realpath(data_path)
    name = without_secrets(data_path).rpartition("/")[2].removesuffix("?...")
    short = os.fsdecode(os.fsencode(name)[:150])  # names have at most 255 bytes
    return os.path.join(index_dir, f"{short}.{_digest(absolute)}{_SIDECAR_SUFFIX}")


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def visible_sidecar_path(data_path: str) -> str:
    """``<data file>.index.safetensors``, where users may save an index themselves; read last."""
    return data_path + _SIDECAR_SUFFIX


def new_index_paths(data_path: str, index_dir: str | None = None) -> Iterator[str]:
    """Where a new index of a data file goes: to the first of these that can be written."""
    if index_dir is not None or not is_remote(data_path):
        yield sidecar_path(data_path, index_dir)
    # The data may be read-only, or on a server.
    yield sidecar_path(data_path, Access.user_cache())


def index_paths(data_path: str, index_dir: str | None = None) -> Iterator[str]:
    """Where an index of a data file may be, in the order of looking: first where new ones go."""
    yield from new_index_paths(data_path, index_dir)
    if index_dir is not None or is_remote(data_path):
        yield sidecar_path(data_path)
    yield visible_sidecar_path(data_path)


def write_sidecar(place: str, content: bytes) -> None:
    """Write an index, and make its folder if it is missing.

    Raises:
        OSError: Nothing was changed at `place`; also if a symbolic link is there, which is not
            followed, or a file that is no index.
    """
    in_sidecar_folder(place, lambda: AtomicFile.save(place, content))


def in_sidecar_folder(place: str, write: Callable[[], None]) -> None:
    """Call a function that writes an index; again if another process removed its folder, which was
    empty.
    """
    for tries_left in reversed(range(_MOST_TRIES)):
        with sidecar_folder(place):
            try:
                return write()
            except FileNotFoundError:
                if not tries_left:
                    raise


def remove_sidecar(data_path: str) -> None:
    """Remove the index of a data file beside it."""
    place = sidecar_path(data_path)
    if not os.path.islink(os.path.dirname(place)):
        remove_own(place)
    remove_own(visible_sidecar_path(data_path))
    with contextlib.suppress(OSError):  # other indexes are there
        Path(place).parent.rmdir()


def remove_own(path: str) -> None:
    """Remove a regular file that has the format name of one of our sidecars, intact or damaged;
    what cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode) and _is_marked(path):
            os.unlink(path)


@contextlib.contextmanager
def sidecar_folder(place: str) -> Iterator[None]:
    """Make the folder that an index goes to; after a failure a hidden one is removed again if it is
    empty.

    Raises:
        OSError: It cannot be made, or something is in the way; see `check_replaceable`.
    """
    folder = Path(place).parent
    is_hidden = folder.name == SIDECAR_FOLDER
    # Somebody else may have made it, to have us write elsewhere.
    if is_hidden and folder.is_symlink():
        raise OSError(
            errno.ELOOP, "expected no symbolic link at the place of the index", str(folder)
        )
    check_replaceable(place)
    made = False
    if not is_hidden:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.exists():
        folder.mkdir(exist_ok=True)
        made = True
        with contextlib.suppress(OSError):
            shutil.copymode(folder.parent, folder)  # who may add data may add its index
    try:
        yield
    except BaseException:
        # Only our own: another process may be about to write into one that was there.
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def check_replaceable(path: str) -> None:
    """Raise OSError unless a path is free, an empty file, or one of our sidecars.

    Files that are written automatically must not replace foreign files, or follow symbolic links:
    somebody with write access to a data folder must not choose what other users overwrite.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "expected no symbolic link at the place of the index", path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "expected a regular file at the place of the index", path)
    try:
        is_foreign = status.st_size > 0 and not _is_marked(path)
    except FileNotFoundError:  # another process removed it
        return
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    if is_foreign:
        raise FileExistsError(
            errno.EEXIST,
            "expected nothing or an index at the place of the index, got another",
            path,
        )


def _is_marked(path: str) -> bool:
    """Whether a file has the format name of one of our sidecars, intact or damaged."""
    head = open_file(path).read(_MOST_HEADER_BYTES, 0)
    end = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "little")
    return begins_as_ours(head) and _MARK in head[:end]


def begins_as_ours(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a sidecar."""
    return head.startswith(f'{{"{METADATA}":{{'.encode(), LENGTH_BYTES)
