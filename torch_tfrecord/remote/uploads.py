"""Writing files to storages: each appears whole, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain
from typing import IO, NamedTuple

from torch_tfrecord.remote.access import Access
from torch_tfrecord.remote.engine import Job, Transfer
from torch_tfrecord.remote.store import RemoteInfo, Store

__all__ = ["Upload", "exist", "remove", "upload"]

_MOST_AT_ONCE = 4  # files, each in several parts at once


class Upload(NamedTuple):
    """One file to write.

    Attributes:
        path: Where to, with its scheme.
        file: A binary file of this machine; all of it is written.
        size: Its bytes.
    """

    path: str
    file: IO[bytes]
    size: int


def upload(uploads: Sequence[Upload], access: Access) -> list[RemoteInfo]:
    """Write files, a few of them at once; what the storage says of each then.

    Raises:
        OSError, RemoteError: The first that could not be written, and is as it was before; those in front of it are
            written.
    """
    groups = (uploads[first : first + _MOST_AT_ONCE] for first in range(0, len(uploads), _MOST_AT_ONCE))
    jobs = ([_upload_job(item) for item in group] for group in groups)
    return [*chain.from_iterable(Transfer(group, access).answers() for group in jobs)]


def exist(paths: Sequence[str], access: Access) -> list[bool]:
    """Whether there is a file at each path."""

    def call(store: Store, name: str) -> bool:
        try:
            return not store.info(name).is_folder
        except FileNotFoundError:
            return False

    return Transfer([Job(path, "whether it is there", 0, call) for path in paths], access).answers()


def remove(paths: Sequence[str], access: Access) -> None:
    """Remove files; no error where there is none."""

    def call(store: Store, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            store.remove(name)

    Transfer([Job(path, "its removal", 0, call) for path in paths], access).answers()


def _upload_job(item: Upload) -> Job:
    def call(store: Store, name: str) -> RemoteInfo:
        item.file.seek(0)  # a second attempt begins anew
        return store.upload(name, item.file, item.size)

    return Job(item.path, f"its {item.size} bytes", 0, call)
