"""Where the index of a data file is kept: beside it, in a folder of the user's choice, in the
user's cache, nowhere.

Beside the data it lies in a hidden folder, under a name that shares nothing with the data's:
TensorFlow's and pathlib's ``*`` match hidden names, too, so that ``.train-00000.index`` would still
be taken for data by ``*train*``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files.atomic import write_atomically
from torch_tfrecord.files.cached_ranges import without_signature
from torch_tfrecord.files.storage import is_remote
from torch_tfrecord.files.user_cache import cache_dir
from torch_tfrecord.records.sidecar_file import check_replaceable, is_own
from torch_tfrecord.shown import without_secrets

__all__ = [
    "SIDECAR_FOLDER",
    "SIDECAR_SUFFIX",
    "about_data",
    "in_sidecar_folder",
    "new_places",
    "old_sidecar_path",
    "places",
    "remove_own",
    "remove_sidecar",
    "sidecar_folder",
    "sidecar_path",
    "write_sidecar",
]

SIDECAR_FOLDER = ".torch_index"
SIDECAR_SUFFIX = ".index.safetensors"
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
        return f"{folder}{slash}{SIDECAR_FOLDER}/{_digest(name)}{SIDECAR_SUFFIX}"
    absolute = without_signature(data_path) if is_remote(data_path) else os.path.realpath(data_path)
    name = without_secrets(data_path).rpartition("/")[2].removesuffix("?...")
    short = os.fsdecode(os.fsencode(name)[:150])  # names have at most 255 bytes
    return os.path.join(index_dir, f"{short}.{_digest(absolute)}{SIDECAR_SUFFIX}")


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def old_sidecar_path(data_path: str) -> str:
    """``<data file>.index.safetensors``, where indexes were kept before; they are still read."""
    return data_path + SIDECAR_SUFFIX


def new_places(data_path: str, index_dir: str | None = None) -> Iterator[str]:
    """Where a new index of a data file goes: to the first of these that can be written."""
    if index_dir is not None or not is_remote(data_path):
        yield sidecar_path(data_path, index_dir)
    yield sidecar_path(data_path, cache_dir())


def places(data_path: str, index_dir: str | None = None) -> Iterator[str]:
    """Where an index of a data file may lie, in the order of looking: first where new ones go."""
    yield from new_places(data_path, index_dir)
    if index_dir is not None or is_remote(data_path):
        yield sidecar_path(data_path)
    yield old_sidecar_path(data_path)


def write_sidecar(place: str, *content: bytes) -> None:
    """Write an index, in one piece or several, and make its folder where it is missing.

    Raises:
        OSError: nothing was changed at `place`; also where a symbolic link is there, which is not
            followed, or a file that is no index.
    """
    in_sidecar_folder(place, lambda: write_atomically(place, *content))


def in_sidecar_folder(place: str, write: Callable[[], None]) -> None:
    """Call what writes an index, in its folder; again where another process removed the folder,
    which was empty.
    """
    for tries_left in reversed(range(_MOST_TRIES)):
        with sidecar_folder(place):
            try:
                return write()
            except FileNotFoundError:
                if not tries_left:
                    raise


def remove_sidecar(data_path: str) -> None:
    """Remove the index of a data file, where it is kept beside it and where it was before; no file
    that is none.
    """
    place = sidecar_path(data_path)
    if not os.path.islink(os.path.dirname(place)):
        remove_own(place)
    remove_own(old_sidecar_path(data_path))
    with contextlib.suppress(OSError):  # other indexes are there
        Path(place).parent.rmdir()


def remove_own(path: str) -> None:
    """Remove a file if it is an index; what cannot be removed stays."""
    if is_own(path):
        with contextlib.suppress(OSError):
            os.unlink(path)


def about_data(error: IndexMismatchError, data_path: str) -> IndexMismatchError:
    """An error of an index file as one of its data file, since the index's name does not tell whose
    it is.
    """
    if error.path == data_path:
        return error
    return IndexMismatchError(
        f"index at {error.path}: {error.args[0]}", path=data_path, position=error.position
    )


@contextlib.contextmanager
def sidecar_folder(place: str) -> Iterator[None]:
    """Make the folder that an index goes to; after a failure a hidden one is removed again if it is
    empty.

    Raises:
        OSError: it cannot be made, or something is in the way; see `check_replaceable`.
    """
    folder = Path(place).parent
    is_hidden = folder.name == SIDECAR_FOLDER
    if is_hidden and folder.is_symlink():
        raise OSError(
            errno.ELOOP, "expected no symbolic link at the place of the index", str(folder)
        )
    check_replaceable(place)
    made = is_hidden and _made_hidden(folder)
    if not is_hidden:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _made_hidden(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    with contextlib.suppress(OSError):
        shutil.copymode(folder.parent, folder)  # who may add data may add its index
    return True
