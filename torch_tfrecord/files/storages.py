"""The seam of the extension `remote`: what the core asks of storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from torch_tfrecord.extensions import attached

if TYPE_CHECKING:
    from torch_tfrecord.files.access import Access, RangeCache
    from torch_tfrecord.files.storage import FileSource, RangeReader

__all__ = ["RemoteInfo", "Storages", "storages"]


class RemoteInfo(NamedTuple):
    """A storage's answer about a file that it has not read.

    Attributes:
        size: Bytes; None where the storage does not say.
        etag: Its version, as the storage calls it; None where it has none.
        mtime_ns: When it was last changed, nanoseconds since the epoch; 0 where that is not known.
        is_folder: Whether it is a folder.
    """

    size: int | None
    etag: str | None = None
    mtime_ns: int = 0
    is_folder: bool = False


class Storages(Protocol):
    """Files of storages; `remote` attaches it as ``STORAGES``."""

    def open(
        self, paths: Sequence[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> list[FileSource]:
        """Open files; of those that are not known the storages are asked, all at once."""

    def open_in_turn(
        self, paths: Iterable[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> Callable[[str], FileSource]:
        """See `files.open_in_turn`."""

    def by_blocks(
        self, extent_of: Callable[[int, int, int], tuple[int, int]], block_bytes: int
    ) -> RangeReader:
        """Reads whole blocks of files and keeps them for a while, as all of a block is read soon.

        Args:
            extent_of: Begin and end of the block around a byte of a file: called with the file's
                number, the byte and `block_bytes`.
            block_bytes: See `FileSource.together`.
        """

    def cache(self, folder: str, max_bytes: int | None, group: str) -> RangeCache:
        """Keeps copies in a folder; see `Access`."""


def storages() -> Storages:
    """The storages of the extension `remote`.

    Raises:
        ImportError: The extension is not installed.
    """
    return cast("Storages", attached("remote", "STORAGES"))
