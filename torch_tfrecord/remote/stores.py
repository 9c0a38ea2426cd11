"""Which client asks the storage of a path: `obstore` where it can, else the file system of fsspec.

`obstore` is asked for s3, gs, az and http where it is installed and every option has a counterpart
there; for paths that it would not read as they are written, such as those with a query, and for all
else fsspec is.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from torch_tfrecord.errors import needs_extra, optional_import, warn_once
from torch_tfrecord.files import Access
from torch_tfrecord.per_process import PerProcess, module_of_process
from torch_tfrecord.remote.fsspec_store import FsspecStore, HttpStore, fsspec_filesystem
from torch_tfrecord.remote.obstore_options import ObstoreConfig, obstore_config
from torch_tfrecord.remote.obstore_store import ObstoreProcess, ObstoreStore
from torch_tfrecord.remote.store import Store

__all__ = ["fsspec_store_of", "store_of"]

_INSTEAD = "fsspec reads in its place"
_StoreMaker = Callable[[str, ObstoreConfig, Access], Store]


def obstore_stores() -> _StoreMaker | None:
    """The function that makes stores of `obstore` in this process; None where it is not installed, or, with a
    warning, cannot be loaded.
    """
    # imported within: a process that has it from its parent may not use it, as its threads do not
    # come along through a fork
    made: _StoreMaker | None = module_of_process("obstore", _here, _in_fork)
    return made


def _here() -> _StoreMaker | None:
    module = optional_import("obstore", _INSTEAD)
    return None if module is None else partial(ObstoreStore, module)


def _in_fork() -> _StoreMaker | None:
    return ObstoreProcess() if sys.modules.get("obstore") else _here()


_HTTP = ("http", "https")
_SCHEMES_OF_OBSTORE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", *_HTTP})
# an address that nobody writes in another way
_AS_IT_IS = re.compile(r"[\w/;=@:+$,!~*'()&.-]*", re.ASCII)
_MOST_STORES = 64
_Made = TypeVar("_Made", bound="Store | None")


class _Stores:
    """The clients of a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: dict[object, Any] = {}  # clients; None where there cannot be one


# A client of the parent is of no use after a fork, and its end would wait for threads.
_STORES = PerProcess(_Stores, keeps_parents=True)


def store_of(path: str, access: Access = Access.DEFAULT) -> tuple[Store, str]:
    """The store of a path with a scheme, and what it calls the path.

    Clients are made in the process that asks, when it first asks, and kept.

    Raises:
        ImportError: fsspec needs a package for the scheme; names it.
        ValueError: nobody knows the scheme.
    """
    scheme, place, name = _parts(path)
    if name is not None:
        key = scheme, place, access
        store = _find_or_make(key, lambda: _obstore_store(scheme, place, access))
        if store is not None:
            return store, name
    return fsspec_store_of(path, access)


def fsspec_store_of(path: str, access: Access) -> tuple[Store, str]:
    """`store_of` by fsspec, whatever else there is."""
    try:
        filesystem, name = fsspec_filesystem(path, access)
    except ImportError:  # fsspec's names only its own package
        scheme = path.partition("://")[0]
        if scheme not in _SCHEMES_OF_OBSTORE:
            raise
        with needs_extra(f"reading {scheme}://", "remote"):
            importlib.import_module("obstore")
        raise
    kind = HttpStore if "http" in filesystem.protocol else FsspecStore
    return _find_or_make((filesystem, access), lambda: kind(filesystem, access)), name


def _parts(path: str) -> tuple[str, str, str | None]:
    """Scheme, bucket or host, and the name there as `obstore` calls it; None where it cannot be
    said so.
    """
    scheme, _, rest = path.partition("://")
    place, _, name = rest.partition("/")
    if "::" in scheme or ("@" in place and not scheme.startswith("abfs")):
        return scheme, place, None
    if scheme in _HTTP and not _AS_IT_IS.fullmatch(name):
        return scheme, place, None
    is_plain = (
        all(part not in ("", ".", "..") for part in name.rstrip("/").split("/"))
        if name
        else scheme not in _HTTP
    )
    return scheme, place, name if is_plain and place else None


def _obstore_store(scheme: str, place: str, access: Access) -> Store | None:
    if scheme not in _SCHEMES_OF_OBSTORE:
        return None
    import fsspec.config  # takes long, and most paths are local

    usual = fsspec.config.conf.get(scheme, {})  # the user's configuration of fsspec
    options = {**(usual if isinstance(usual, Mapping) else {}), **access.storage_options}
    config = obstore_config(scheme, f"{scheme}://{place}" if scheme in _HTTP else place, options)
    make = None if config is None else obstore_stores()
    if config is None or make is None:
        return None
    try:
        return make(f"{scheme}://{place}/", config, access)
    except Exception as error:  # fsspec, which knows the options, says what is wrong with them
        reason = access.without_secrets(str(error))[:300]
        warn_once(f"{scheme}://{place}: obstore: {reason}: {_INSTEAD}")
        return None


def _find_or_make(key: object, make: Callable[[], _Made]) -> _Made:
    """The client that this process made for a key."""
    stores = _STORES.get()
    with stores.lock:
        if key not in stores.found:
            # A program with new options each time must not fill the memory with clients.
            if len(stores.found) >= _MOST_STORES:
                stores.found.clear()
            stores.found[key] = make()
        made: _Made = stores.found[key]
        return made
