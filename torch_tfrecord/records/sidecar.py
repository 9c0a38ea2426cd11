"""Sidecars: files of ours beside data, believed only if their checksum fits; their form, and where
they are.

A sidecar is a safetensors file: arrays of one dimension, and text metadata with ``format``,
``version`` and ``checksum``. It is fully checked before it is used. The checksum is a CRC-32C over
the other metadata and the arrays, so it detects any flipped bit that changes what is read. One
array may be left out of it (`SidecarFormat.lazy`): it stays in the file, and its parts have
checksums of their own. A checksum does not stop an attacker: code that reads a sidecar still checks
its content against the data.

The index of a data file is in a hidden folder beside it, in a folder of the user's choice or in
the user's cache. Beside the data its name shares nothing with the data's: TensorFlow's and
pathlib's ``*`` match hidden names, too, so ``*train*`` would take ``.train-00000.index`` for data.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.errors import IndexMismatchError, name_path, os_error
from torch_tfrecord.files import Access, AtomicFile, FileSource, is_remote, open_file
from torch_tfrecord.shown import without_secrets, without_signature

__all__ = [
    "SIDECAR_FOLDER",
    "ArrayPlace",
    "SidecarFormat",
    "about_data",
    "in_sidecar_folder",
    "index_paths",
    "new_index_paths",
    "remove_own",
    "remove_sidecar",
    "sidecar_folder",
    "sidecar_path",
    "stored_number",
    "visible_sidecar_path",
    "write_sidecar",
]

_Array: TypeAlias = "npt.NDArray[np.generic]"

# Thousands of shards are opened: what is the same for all of them is made once.
_DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U8": np.dtype("u1"),
}
_name_of = cache(attrgetter("name"))
_sorted_text = json.JSONEncoder(sort_keys=True).encode
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")

SIDECAR_FOLDER = ".torch_index"
_PREFIX = "torch_tfrecord."  # begins the format names of all sidecars
_METADATA = "__metadata__"
_LENGTH_BYTES = 8  # the header length field, which comes first
_MARK = f'"format":"{_PREFIX}'.encode()
_MOST_HEADER_BYTES = 1 << 20  # searched for the format name
_SIDECAR_SUFFIX = ".index.safetensors"
_MOST_TRIES = 20  # against other processes that remove the folder, each time just before it is used


def about_data(error: IndexMismatchError, data_path: str) -> IndexMismatchError:
    """An error of an index file as one of its data file, since the index's name does not say whose
    it is.
    """
    if error.path == data_path:
        return error
    return IndexMismatchError(
        f"index at {error.path}: {error.args[0]}", path=data_path, position=error.position
    )


class SidecarFormat(NamedTuple):
    """One kind of sidecar.

    Attributes:
        name: Its format name, "torch_tfrecord." and a word.
        version: The only version that is read.
        what: Its name in errors, such as "an index".
        fields: Names of the metadata fields.
        arrays: Name -> "int64", "float64", "uint32" or "uint8", or several of them; in the order
            of the file, long elements first so that all are aligned.
        max_header_bytes: Maximum size of a header.
        lazy: The last array, if it stays in the file: neither read nor covered by the checksum.
        first_read_bytes: Size of the first read, so that most of these files take one read.
    """

    name: str
    version: str
    what: str
    fields: tuple[str, ...]
    arrays: Mapping[str, str]
    max_header_bytes: int = 1 << 16
    lazy: str = ""
    first_read_bytes: int = 1 << 12

    def pack(self, metadata: Mapping[str, str], arrays: Mapping[str, _Array]) -> bytes:
        """Serialize a sidecar.

        Raises:
            OSError: The header is longer than `read` accepts.
        """
        # Not by safetensors itself, which sorts arrays and leaves the order of metadata to chance:
        # equal sidecars are to be equal bytes, and arrays that are read at once are side by side.
        ordered = {
            name: arrays[name].astype(arrays[name].dtype.newbyteorder("<"), "C", copy=False)
            for name in self.arrays
        }
        own = {"format": self.name, "version": self.version, **metadata}
        own["checksum"] = _checksum(
            own,
            {name: ArrayPlace(array.dtype, len(array), 0) for name, array in ordered.items()},
            {name: array for name, array in ordered.items() if name != self.lazy},
        )
        header: dict[str, object] = {_METADATA: own}
        end = 0
        for name, array in ordered.items():
            begin, end = end, end + array.nbytes
            code = next(code for code, dtype in _DTYPES.items() if dtype == array.dtype)
            header[name] = {"dtype": code, "shape": [len(array)], "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        if len(text) > self.max_header_bytes:
            raise OSError(
                errno.EFBIG,
                f"expected a header of at most {self.max_header_bytes} bytes, got {len(text)}",
            )
        length = len(text).to_bytes(_LENGTH_BYTES, "little")
        return b"".join([length, text, *(array.data for array in ordered.values())])

    def read(
        self,
        path: str,
        most_bytes: Callable[[Mapping[str, str]], int],
        owner: str = "the data file",
        access: Access = Access.DEFAULT,
    ) -> Sidecar:
        """Read what `pack` wrote, and check everything that can be checked without the data.

        Args:
            path: The file.
            most_bytes: Maps the metadata to the maximum total size of the arrays, given the size of the
                data, as a sparse file may claim gigabytes that it does not have on disk. May raise
                IndexMismatchError.
            owner: Name of the data with that size, for errors.
            access: How to reach a remote path.

        Raises:
            IndexMismatchError: The sidecar is damaged, has another format or version, or is implausibly
                large.
            OSError: The file cannot be opened or read.
        """
        # Rejects directories and pipes.
        source = open_file(path, access.without_cache())
        try:
            return self._read(source, most_bytes, owner)
        except (ValueError, RecursionError, MemoryError) as error:
            raise IndexMismatchError(
                f"expected {self.what} written by torch_tfrecord, got {error}", path=path
            ) from error
        except IndexMismatchError as error:
            error.locate(path=path)
            raise

    def _read(
        self, source: FileSource, most_bytes: Callable[[Mapping[str, str]], int], owner: str
    ) -> Sidecar:
        head = source.read(self.first_read_bytes, 0)
        if not _begins_as_ours(head):
            raise self._other("another file" if head else "an empty file")
        header_bytes = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if header_bytes > self.max_header_bytes:
            raise IndexMismatchError(
                f"expected a header of at most {self.max_header_bytes} bytes, got {header_bytes}"
            )
        end = _LENGTH_BYTES + header_bytes
        # A header longer than the first read is rare: an episode index of many keys.
        if len(head) < end:
            head = source.read(end, 0)
        header = json.loads(head[_LENGTH_BYTES:end].decode())
        metadata = self._metadata(header.pop(_METADATA))
        checksum = metadata.pop("checksum")
        if header.keys() != self.arrays.keys():
            raise IndexMismatchError(
                f"expected {self.what} with the arrays {', '.join(self.arrays)}, got others"
            )
        places, total, stop = dict[str, ArrayPlace](), end, end
        for name, dtypes in self.arrays.items():
            places[name] = place = _place(header[name], dtypes, end)
            total += place.end - place.begin
            if name != self.lazy:
                stop = max(stop, place.end)
        if source.file_size != total:
            raise IndexMismatchError(
                f"expected {self.what} of {total} bytes, as its header says, got {source.file_size}"
            )
        # Before anything is allocated.
        limit = most_bytes(metadata)
        if stop - end > limit:
            raise IndexMismatchError(
                f"expected {self.what} with at most {limit} bytes of arrays, by the size of {owner}, "
                f"got {stop - end}"
            )
        # Read, not mapped: a file that is truncated while mapped kills the process.
        content = head[:stop] if len(head) >= stop else source.read(stop, 0)
        if len(content) != stop or content[:end] != head[:end]:
            raise IndexMismatchError(
                f"expected {self.what} that does not change while it is read, got {len(content)} bytes"
            )
        arrays = {
            name: np.frombuffer(content, *place)
            for name, place in places.items()
            if name != self.lazy
        }
        own = {"format": self.name, "version": self.version, **metadata}
        got = _checksum(own, places, arrays)
        if checksum != got:
            raise IndexMismatchError(
                f"expected {self.what} with checksum {checksum[:8]}, got {got}: it is damaged"
            )
        return Sidecar(metadata, arrays, places, got, source)

    def _metadata(self, found: object) -> dict[str, str]:
        if not isinstance(found, dict):
            raise self._other("another file")
        name, version = found.pop("format", ""), found.pop("version", "")
        # Before the fields, so that the error of an older form says that it is old.
        if (name, version) != (self.name, self.version):
            is_ours = str(name).startswith(_PREFIX)
            raise self._other("another version of one" if is_ours else "another file")
        if {*map(type, found.values())} != {str} or found.keys() != {*self.fields, "checksum"}:
            raise IndexMismatchError(
                f"expected {self.what} with the fields {', '.join(self.fields)}, got others"
            )
        return found

    def _other(self, got: str) -> IndexMismatchError:
        return IndexMismatchError(
            f"expected {self.what} written by torch_tfrecord, of format {self.name!r} version "
            f"{self.version!r}, got {got}"
        )


class Sidecar(NamedTuple):
    """The content of a sidecar.

    Attributes:
        metadata: Field -> text.
        arrays: Name -> array [N], read-only; without the lazy one.
        places: Name -> dtype, length and first byte in the file of each array.
        checksum: The 8 digits.
        source: The open file.
    """

    metadata: dict[str, str]
    arrays: dict[str, npt.NDArray[Any]]  # by the dtypes that the format says
    places: dict[str, ArrayPlace]
    checksum: str
    source: FileSource


class ArrayPlace(NamedTuple):
    """Where an array is in a file."""

    dtype: np.dtype[np.generic]
    length: int
    begin: int

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.begin + self.length * self.dtype.itemsize


def _checksum(
    metadata: Mapping[str, str],
    places: Mapping[str, ArrayPlace],
    arrays: Mapping[str, _Array],
) -> str:
    """The CRC-32C of the metadata and of what arrays there are, sorted, then of the arrays.

    It is true in whatever order a program writes them.
    """
    described = {name: [_name_of(dtype), length] for name, (dtype, length, _) in places.items()}
    crc = crc32c(_sorted_text([metadata, described]).encode())
    for name in sorted(arrays):
        crc = crc32c(arrays[name].data, crc)
    return f"{crc:08x}"


def _place(described: Any, dtypes: str, start: int) -> ArrayPlace:
    try:
        dtype = _DTYPES[described["dtype"]]
        [length], [begin, end] = described["shape"], described["data_offsets"]
        is_array = (
            type(length) is type(begin) is type(end) is int
            and 0 <= begin <= end == begin + length * dtype.itemsize
            and _name_of(dtype) in dtypes.split()
        )
    except (KeyError, TypeError, ValueError):
        is_array = False
    if not is_array:
        raise IndexMismatchError(f"expected arrays of one dimension, of {dtypes}, got others")
    return ArrayPlace(dtype, length, start + begin)


def stored_number(metadata: Mapping[str, str], name: str) -> int:
    """A metadata field that is a 64-bit integer.

    Raises:
        IndexMismatchError: It is not one in the form that `str` writes.
    """
    text = metadata[name]
    if not _NUMBER.fullmatch(text) or not -(1 << 63) <= (number := int(text)) < 1 << 63:
        raise IndexMismatchError(
            f"expected a whole number as {name}, got {len(text)} other characters"
        )
    return number


# Where sidecars are.


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


def new_index_paths(data_path: str, index_dir: str | None) -> Iterator[str]:
    """Where a new index of a data file goes: to the first of these that can be written."""
    if index_dir is not None or not is_remote(data_path):
        yield sidecar_path(data_path, index_dir)
    # The data may be read-only, or on a server.
    yield sidecar_path(data_path, Access.user_cache())


def index_paths(data_path: str, index_dir: str | None) -> Iterator[str]:
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
    with suppress(OSError):  # other indexes are there
        Path(place).parent.rmdir()


def remove_own(path: str) -> None:
    """Remove a regular file that has the format name of one of our sidecars, intact or damaged;
    what cannot be removed stays.
    """
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode) and _is_marked(path):
            os.unlink(path)


@contextmanager
def sidecar_folder(place: str) -> Iterator[None]:
    """Make the folder that an index goes to; after a failure a hidden one is removed again if it is
    empty.

    Raises:
        OSError: It cannot be made, or something is in the way; see `_check_replaceable`.
    """
    folder = Path(place).parent
    is_hidden = folder.name == SIDECAR_FOLDER
    # Somebody else may have made it, to have us write elsewhere.
    if is_hidden and folder.is_symlink():
        raise OSError(
            errno.ELOOP, "expected no symbolic link at the place of the index", str(folder)
        )
    _check_replaceable(place)
    made = False
    if not is_hidden:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.exists():
        folder.mkdir(exist_ok=True)
        made = True
        with suppress(OSError):
            shutil.copymode(folder.parent, folder)  # who may add data may add its index
    try:
        yield
    except BaseException:
        # Only our own: another process may be about to write into one that was there.
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _check_replaceable(path: str) -> None:
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
        raise os_error(errno.EISDIR, path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "expected a regular file at the place of the index", path)
    try:
        with name_path(path):
            is_foreign = status.st_size > 0 and not _is_marked(path)
    except FileNotFoundError:  # another process removed it
        return
    if is_foreign:
        raise FileExistsError(
            errno.EEXIST,
            "expected nothing or an index at the place of the index, got another",
            path,
        )


def _is_marked(path: str) -> bool:
    """Whether a file has the format name of one of our sidecars, intact or damaged."""
    head = open_file(path).read(_MOST_HEADER_BYTES, 0)
    end = _LENGTH_BYTES + int.from_bytes(head[:_LENGTH_BYTES], "little")
    return _begins_as_ours(head) and _MARK in head[:end]


def _begins_as_ours(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a sidecar."""
    return head.startswith(f'{{"{_METADATA}":{{'.encode(), _LENGTH_BYTES)
