"""Names in storages: what is there, by few requests, and what the storage says of it on the way."""

from __future__ import annotations

import fnmatch
import glob
import posixpath
from collections.abc import Iterable, Sequence

from torch_tfrecord.errors import RemoteError
from torch_tfrecord.files import Access, RemoteInfo
from torch_tfrecord.remote.transfers import infos_if_there, listing

__all__ = ["RemoteNames"]

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

    def listing(self, path: str) -> list[str]:
        """The files of a folder."""
        return self._listed(path, recursive=False)

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
            names = self._listed(folder, recursive=len(wanted) > 1 or wanted == ["**"])
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
            names: Of each shard, for each suffix that the set may have.

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

    def _listed(self, folder: str, *, recursive: bool) -> list[str]:
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
