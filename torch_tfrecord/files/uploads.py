"""Writing files to storages: each appears whole, or not at all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import IO, NamedTuple

from torch_tfrecord.files.access import Access
from torch_tfrecord.files.engine import Job, Transfer
from torch_tfrecord.files.store import RemoteInfo, Store, StoreError

__all__ = ["Upload", "remove", "upload"]

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
        OSError, RemoteError: One could not be written, and is as it was before; others may have
            been written.
    """
    found: list[RemoteInfo] = []
    for first in range(0, len(uploads), _MOST_AT_ONCE):
        group = _Group()
        try:
            jobs = [group.job(item) for item in uploads[first : first + _MOST_AT_ONCE]]
            found += Transfer(jobs, access).answers()
        finally:
            group.end()
    return found


class _Group:
    """Uploads at once. After the error of one the others end before anybody looks what is there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_running, self._is_ended = 0, False

    def job(self, item: Upload) -> Job:
        """The request of one of them."""

        def call(store: Store, name: str) -> RemoteInfo:
            with self._changed:
                if self._is_ended:
                    raise StoreError("another one failed", is_passing=False)
                self._num_running += 1
            try:
                item.file.seek(0)  # a second attempt begins anew
                return store.upload(name, item.file, item.size)
            finally:
                with self._changed:
                    self._num_running -= 1
                    self._changed.notify_all()

        return Job(item.path, f"its {item.size} bytes", 0, call)

    def end(self) -> None:
        """Wait for those that run; none begins any more."""
        with self._changed:
            self._is_ended = True
            self._changed.wait_for(lambda: not self._num_running)


def remove(paths: Sequence[str], access: Access) -> None:
    """Remove files; no error where there is none."""

    def call(store: Store, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            store.remove(name)

    Transfer([Job(path, "its removal", 0, call) for path in paths], access).answers()
