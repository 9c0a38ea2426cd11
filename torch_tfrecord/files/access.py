"""Opening files: local ones here, those with a ``scheme://`` by the extension `remote`, with the
user's options of the storage, and copies of them on the disk.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Protocol

from torch_tfrecord.arguments import PathLike, StorageOptions
from torch_tfrecord.extensions import attached
from torch_tfrecord.files.local_file import LocalFile
from torch_tfrecord.files.storage import FileSource, RemoteInfo, is_remote
from torch_tfrecord.shown import without_secrets

__all__ = ["Access", "open_file"]

_SHORTEST_SECRET = 4  # letters: shorter texts are in any text


class RangeCache(Protocol):
    """Keeps copies of what is read of remote files; made and used by the extension `remote`."""

    folder: str


class _Storages(Protocol):
    """Files of storages; `remote` attaches it as ``STORAGES``."""

    def open(
        self, path: str, access: Access, info: RemoteInfo | None, *, is_current: bool
    ) -> FileSource:
        """See `open_file`."""

    def open_in_turn(
        self, paths: Iterable[str], access: Access, known: Mapping[str, RemoteInfo]
    ) -> Callable[[str], FileSource]:
        """See `Access.open_in_turn`."""

    def cache(self, folder: str, max_bytes: int | None, *, group: str) -> RangeCache:
        """See `Access`; the files of a group are used together."""


def _storages() -> _Storages:
    return attached("remote", "STORAGES")


class Access:
    """Opens files, by the user's options of a storage and of the cache on the disk; it has no
    client, so that it may be pickled.

    Two of equal content are equal, and have the same hash. No value of an option is in a `repr`
    or an error.

    Args:
        storage_options: As of fsspec, pandas and datasets: ``{"key": ..., "secret": ...}``; None
            for none.
        cache_dir: The folder that copies of remote files are kept in; None for no cache, or with
            `cache_bytes` for one in the user's cache.
        cache_bytes: The most bytes of it; None for what it has, or a tenth of the free space of the
            disk.

    Attributes:
        DEFAULT: Without any options.
        cache: Keeps copies of remote files; None for none.
        endpoint: Which storage paths are of, where the options say it; no secret.

    Raises:
        TypeError: `storage_options` is no dict with names of str, or an argument of the cache of
            another kind.
        ValueError: `cache_bytes` is below 16 KiB.

    Example:
        >>> Access({"key": "me", "secret": "xyz"})
        Access(storage_options=2 given)
        >>> Access({"anon": True}) == Access({"anon": True})
        True
    """

    DEFAULT: ClassVar[Access]

    def __init__(
        self,
        storage_options: StorageOptions = None,
        cache_dir: PathLike | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        options = {} if storage_options is None else storage_options
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise TypeError(
                f"storage_options must be a dict with names of str, or None, got {type(options).__name__}"
            )
        self.storage_options: Mapping[str, Any] = _copy_options(options)
        self.endpoint = _endpoint(self.storage_options)
        if cache_dir is not None and not isinstance(cache_dir, (str, os.PathLike)):
            raise TypeError(
                f"cache_dir must be str, os.PathLike[str] or None, got {type(cache_dir).__name__}"
            )
        if cache_dir is None and cache_bytes is not None:
            cache_dir = os.path.join(self.user_cache(), "remote")
        self.cache_bytes = cache_bytes
        self.cache = None if cache_dir is None else self._cache(os.fspath(cache_dir), self.endpoint)
        self.cache_dir = None if self.cache is None else self.cache.folder

    @staticmethod
    def user_cache() -> str:
        """The folder of the user's cache, for what cannot be kept beside the data."""
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(base, "torch_tfrecord")

    def open_in_turn(
        self, paths: Iterable[str], known: Mapping[str, RemoteInfo]
    ) -> Callable[[str], FileSource]:
        """A function that opens the files of a stream, each to be read from front to back; remote
        ones are read ahead, as far as the next files.

        Args:
            paths: In the order in which they will most likely be opened.
            known: Answers of storages about them, where these are known.
        """
        remote = [*filter(is_remote, paths)]
        if not remote:
            return LocalFile
        open_remote = _storages().open_in_turn(remote, self, known)
        return lambda path: open_remote(path) if is_remote(path) else LocalFile(path)

    def without_cache(self) -> Access:
        """The same storages, read without the cache: for small files that are read once."""
        return self if self.cache is None else self._with_cache(None)

    def for_files(self, paths: Sequence[str]) -> Access:
        """The same, for the files of one data set: their copies are in use as long as one of them
        is.
        """
        if self.cache_dir is None or not paths:
            return self
        # All files between the first and the last in order have in common what these two have.
        begin = os.path.commonprefix([min(paths), max(paths)])  # noqa: RUF071 - up to a slash of it
        group = f"{self.endpoint} {begin.rpartition('/')[0]}"
        return self._with_cache(self._cache(self.cache_dir, group))

    def _cache(self, folder: str, group: str) -> RangeCache:
        return _storages().cache(folder, self.cache_bytes, group=group)

    def _with_cache(self, cache: RangeCache | None) -> Access:
        other = copy.copy(self)
        other.cache = cache
        return other

    def without_secrets(self, text: str) -> str:
        """A text of somebody else's, such as a client's error, in which no value of an option or
        URL stands.
        """
        # The longest first: a shorter one may be a part of it, and would leave the rest.
        for value in sorted(_texts(self.storage_options), key=len, reverse=True):
            text = text.replace(value, "...")
        return without_secrets(text)

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, Access) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> tuple[object, ...]:
        # once: each store that is looked up asks for it
        return _freeze(self.storage_options), self.cache_dir, self.cache_bytes

    def __getstate__(self) -> dict[str, object]:
        # An option without a hash counts by its number, which is another one in another process.
        return {name: value for name, value in self.__dict__.items() if name != "_content"}


def _endpoint(options: Mapping[str, Any]) -> str:
    """Addresses and accounts of storages, which may have the same paths."""
    inner = options.get("client_kwargs")
    for_clients = inner if isinstance(inner, Mapping) else {}
    found = [
        options.get("endpoint_url"),
        for_clients.get("endpoint_url"),
        options.get("account_name"),
    ]
    return " ".join(value for value in found if isinstance(value, str))


def _copy_options(value: Any) -> Any:
    """Copies of dicts and lists, which their owner may change; all else as it is."""
    if isinstance(value, Mapping):
        return {name: _copy_options(item) for name, item in value.items()}
    return [*map(_copy_options, value)] if isinstance(value, list) else value


def _freeze(value: Any) -> object:
    """The same for equal content, with a hash; an object that has none counts as itself."""
    if isinstance(value, Mapping):
        return frozenset((name, _freeze(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_freeze, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value  # True is not 1


def _texts(value: Any) -> set[str]:
    if isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode("utf-8", "replace")
        return {text} if len(text) >= _SHORTEST_SECRET else set()
    if isinstance(value, Mapping):
        value = [*value.values()]
    return set().union(*map(_texts, value)) if isinstance(value, (list, tuple)) else set()


Access.DEFAULT = Access()


def open_file(
    path: str,
    access: Access = Access.DEFAULT,
    info: RemoteInfo | None = None,
    *,
    is_current: bool = True,
) -> FileSource:
    """Open a local or remote file for reading ranges of it.

    Args:
        path: Local, or with a ``scheme://``.
        access: How a remote file is reached.
        info: Its storage's answer about it, where that is known.
        is_current: Whether `info` is of now. Older facts are used only where a read notices that
            the file has changed since.

    Raises:
        ImportError: It is remote, and the extension is not installed.
    """
    if not is_remote(path):
        return LocalFile(path)
    return _storages().open(path, access, info, is_current=is_current)
