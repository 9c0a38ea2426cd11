"""Finding the indexes of data files, building those that are missing or stale, and keeping what was
built.

One process at a time builds what is kept beside a data file; the others wait for it, or build
others meanwhile. A lock of the kernel's says who builds: it goes with its process, however that
ends. Where the file system has no locks, or nothing can be written, each process builds for itself;
what is kept appears whole or not at all in any case.
"""

from __future__ import annotations

import errno
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Generic, Protocol, TypeVar, get_args

from filelock import FileLock, Timeout

from torch_tfrecord.arguments import IndexPolicy, PathLike, one_of
from torch_tfrecord.errors import (
    CompressionError,
    CorruptRecordError,
    IndexMismatchError,
    TFRecordError,
    warn,
)
from torch_tfrecord.files import (
    Access,
    AtomicFile,
    FileSource,
    RemoteInfo,
    is_remote,
    local_path,
    open_file,
)
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.index import RecordIndex
from torch_tfrecord.records.scan import SkippedBytes
from torch_tfrecord.records.sidecar import (
    SIDECAR_FOLDER,
    about_data,
    index_paths,
    new_index_paths,
    remove_sidecar,
    sidecar_folder,
    sidecar_path,
    write_sidecar,
)
from torch_tfrecord.shown import printable

__all__ = ["IndexKeeper", "SidecarKeeper"]

_D = TypeVar("_D", bound="_Data")
_Index = TypeVar("_Index")

_MOST_BUILDING = 2  # indexes at once: each takes a processor, and reads ahead
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
_SILENT_SECONDS = 5.0
_MOST_SECONDS = 600.0  # a process may be stopped, or a child of a killed one may hold its lock


class _Data(Protocol):
    """A data file."""

    @property
    def path(self) -> str: ...


class SidecarKeeper(ABC, Generic[_D, _Index]):
    """Finds what is kept beside data files, builds what is missing or stale, and keeps what it
    built.

    Args:
        policy: "auto" (use a fresh sidecar, else build and keep), "require" (never build), "memory"
            (build, keep nothing and look at no sidecar).
        index_dir: A folder to keep indexes in; without it they are beside the data, or in the
            user's cache where that cannot be written.

    Attributes:
        policy, index_dir: The same.
    """

    # For errors: what is kept, and how to build it, where it is required.
    _kind = "index"
    _advice = "build it with `tfrecord index`, or use index='auto'"
    _suffix = ""  # makes the data file's path the one that the sidecar is kept for

    def __init__(self, policy: IndexPolicy, index_dir: PathLike | None) -> None:
        one_of("index", policy, *get_args(IndexPolicy))
        self.policy = policy
        self.index_dir = None if index_dir is None else local_path(index_dir)
        self._displaced: list[tuple[str, str | None, str]] = []

    @abstractmethod
    def _loaded(self, data: _D, place: str) -> _Index:
        """The index kept at a place.

        Raises:
            IndexMismatchError: It is not of the data as they are now.
            OSError: It is not there.
        """

    @abstractmethod
    def _build(self, data: _D) -> _Index:
        """The index to be kept of a data file."""

    @abstractmethod
    def _packed(self, data: _D, found: _Index) -> bytes:
        """The bytes to keep; none where it is not kept."""

    def find(self, data: _D) -> _Index:
        """The index of a data file: kept, or built. May be called from several threads.

        Raises:
            IndexMismatchError: with the policy "require", where no place has a fresh one.
            TFRecordError, OSError: It cannot be built.
        """
        if self.policy == "memory":
            return self._build(data)
        name = data.path + self._suffix
        found, stale = self._load(data, index_paths)
        if found is not None:
            return found
        if self.policy == "require":
            there = " or ".join(index_paths(name, self.index_dir))
            raise stale or IndexMismatchError(
                f"expected an {self._kind} at {there}, got none ({self._advice})", path=data.path
            )
        # First without waiting, so that this process builds something else meanwhile; then silently,
        # as most indexes take less; then with a warning.
        for seconds in (0.0, _SILENT_SECONDS, _MOST_SECONDS):
            with self._building_alone(name, seconds) as is_alone:
                # Another process may have built it meanwhile.
                found, _ = self._load(data, new_index_paths)
                if found is not None:
                    return found
                if is_alone:
                    return self._build_and_keep(data)
            if seconds:
                text = f"another process builds its {self._kind}; waiting for it"
                warn(f"{printable(data.path)}: {text}")
            while not seconds and self._help():
                pass
        return self._build_and_keep(data)

    def _load(
        self, data: _D, places: Callable[[str, str | None], Iterable[str]]
    ) -> tuple[_Index | None, IndexMismatchError | None]:
        """The index that is kept; or what is wrong with it, where there is one."""
        stale: IndexMismatchError | None = None
        for place in places(data.path + self._suffix, self.index_dir):
            try:
                return self._loaded(data, place), None
            except IndexMismatchError as error:
                # The first place is where it belongs: its error says most.
                stale = stale or about_data(error, data.path)
            except OSError:
                continue
        return None, stale

    @contextmanager
    def _building_alone(self, name: str, seconds: float = 0.0) -> Iterator[bool]:
        """Whether this process may build what is kept for a file: False while another one builds it.

        Args:
            name: The file's path, with the suffix.
            seconds: How long to wait for another process.
        """
        with ExitStack() as held:
            # The lock is where the index will be: processes that may write there meet at it.
            for place in new_index_paths(name, self.index_dir):
                folder, kept = os.path.split(place)
                lock = FileLock(
                    os.path.join(folder, AtomicFile.hidden_name(kept, "lock")), mode=0o666
                )
                try:
                    with ExitStack() as own:
                        if os.path.basename(folder) == SIDECAR_FOLDER:
                            own.callback(_try, os.rmdir, folder)  # it may be empty in the end
                        own.enter_context(sidecar_folder(place))
                        own.enter_context(lock.acquire(timeout=seconds))
                        own.callback(_try, os.unlink, lock.lock_file)
                        held.enter_context(own.pop_all())
                # Another process holds the lock: it builds, or it has died and its child holds it.
                except Timeout:
                    yield False
                    return
                except (OSError, NotImplementedError) as error:  # there can be no lock here
                    # filelock leaves its file behind where the lock itself failed.
                    if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                        _try(os.unlink, lock.lock_file)
                    continue
                break
            # Without any lock each process builds for itself: slower, but never wrong.
            yield True

    def _help(self) -> bool:
        """Build something else that is missing while another process builds what is asked for;
        whether there was.
        """
        return False

    def _build_and_keep(self, data: _D) -> _Index:
        found = self._build(data)
        content = self._packed(data, found)
        place = self._written(data, content) if content else None
        if place is not None:
            # Parts of it stay in the file. Another process may have put there another one.
            with suppress(OSError, IndexMismatchError):
                return self._loaded(data, place)
        return found

    def _written(self, data: _D, content: bytes) -> str | None:
        """The place where it is kept now; None where none can be written."""
        reason = ""
        for number, place in enumerate(new_index_paths(data.path + self._suffix, self.index_dir)):
            try:
                write_sidecar(place, content)
            except OSError as error:
                # Why the first place failed, which is the one users know.
                foreign = f"a file that is no index lies where its index would ({error.filename})"
                is_foreign = isinstance(error, FileExistsError)
                reason = reason or (foreign if is_foreign else "the folder cannot be written")
                continue
            if number:
                self._displaced.append((data.path, place, reason))
            return place
        self._displaced.append((data.path, None, reason))
        return None

    def warn_of_displaced(self) -> None:
        """Say once where sidecars are kept that could not be kept where they belong."""
        if not self._displaced:
            return
        path, place, reason = self._displaced[0]
        failed = f"no {self._kind} could be kept, it is built again each time"
        kept = f"its {self._kind} is kept at {place}" if place else failed
        warn(
            f"{printable(path)}: {reason}: {kept} ({len(self._displaced)} such files). "
            "Give index_dir= to choose a place, or index='memory' (build_index: save=False) if none is wanted."
        )
        self._displaced.clear()


class IndexKeeper(SidecarKeeper[FileSource, RecordIndex]):
    """The indexes of records.

    Args:
        policy: See `SidecarKeeper`.
        index_dir: See there.
        verify_crc: Check all payloads' checksums while building.
        compression_type: Compression of all files; "auto" detects it for each.
        access: How remote files are reached, and the indexes beside them.
        note: Takes the name and the text of each error of a damaged file, of which there is then an
            index that is not kept; without it such a file raises.

    Attributes:
        compression_type, access: The same.
    """

    # Where the index of a data file is kept, by its path and the folder of indexes; writing and
    # removing it.
    place = staticmethod(sidecar_path)
    write = staticmethod(write_sidecar)
    remove = staticmethod(remove_sidecar)

    def __init__(
        self,
        policy: IndexPolicy = "auto",
        *,
        index_dir: PathLike | None = None,
        verify_crc: bool = True,
        compression_type: str = "auto",
        access: Access = Access.DEFAULT,
        note: Callable[[str, str], object] | None = None,
    ) -> None:
        super().__init__(policy, index_dir)
        self._verify = verify_crc
        self.compression_type = compression_type
        self.access, self._note = access, note
        self._building = threading.BoundedSemaphore(_MOST_BUILDING)
        self._to_help: deque[str] = deque()

    def indexes(self, paths: Sequence[str]) -> list[RecordIndex]:
        """The index of each file, in order; see `each`."""
        return list(self.each(paths))

    def each(
        self, paths: Sequence[str], infos: Mapping[str, RemoteInfo] | None = None
    ) -> Iterator[RecordIndex]:
        """The index of each file, one after the other, so that a caller may drop what it has used.

        A progress bar appears when building takes more than a second. Indexes of remote files are
        looked for at once.

        Args:
            paths: The files.
            infos: What storages say of them, where that is known.

        Raises:
            IndexMismatchError: with the policy "require", for a file without a fresh index.
            TFRecordError: a data file that must be indexed is damaged.
            OSError: a data file cannot be opened.
        """
        self._to_help = deque(paths)
        known = infos or {}

        def find(path: str) -> RecordIndex:
            return self.find(open_file(path, self.access, known.get(path)))

        # Local files are opened one by one: that takes no time, and descriptors are few.
        found = (each_at_once if any(map(is_remote, paths)) else map)(find, paths)
        for _ in ProgressBar(paths, "indexing", unit="file", delay=1.0):
            yield next(found)
        self.warn_of_displaced()

    def keep(self, data: FileSource, index: RecordIndex) -> None:
        """Keep an index of a file, with the columns of the one that is there."""
        found, _ = self._load(data, index_paths)
        with suppress(OSError, IndexMismatchError):  # a column is damaged
            index = index._with_facts(_kept={**(found._kept if found else {}), **index._kept})
        self._written(data, index.to_bytes())

    def _loaded(self, data: FileSource, place: str) -> RecordIndex:
        index = RecordIndex._load_fresh(place, data, self.access)
        if self.compression_type not in ("auto", index.compression_type):
            raise IndexMismatchError(
                f"expected compression {self.compression_type!r}, got {index.compression_type!r} in the index",
                path=data.path,
            )
        return index

    def _build(self, data: FileSource) -> RecordIndex:
        build = partial(
            RecordIndex._build,
            data,
            verify_crc=self._verify,
            compression_type=self.compression_type,
            trusts_members=self._note is None,
        )
        with self._building:
            try:
                return build()
            except (CorruptRecordError, CompressionError):
                if self._note is None:
                    raise
            skipped = SkippedBytes()
            # A record that goes on after a cut would hide those in it.
            found = build(skipped=skipped, verify_crc=True)
        for kind, text in skipped.texts():
            self._note(kind, text)
        return found

    def _packed(self, data: FileSource, found: RecordIndex) -> bytes:
        return found.to_bytes() if found._damaged is None else b""

    def _help(self) -> bool:
        while self._to_help:
            # Each file is tried once: who has its lock builds it.
            path = self._to_help.popleft()
            # A failure comes again in that file's turn.
            with (
                suppress(OSError, TFRecordError),
                self._building_alone(path) as is_alone,
            ):
                # Another process may have built it since this list was made.
                if is_alone:
                    data = open_file(path, self.access)
                    if self._load(data, index_paths)[0] is None:
                        self._build_and_keep(data)
                        return True
        return False


def _try(function: Callable[[str], None], path: str) -> None:
    with suppress(OSError):
        function(path)
