"""The form of sidecars: files of ours beside data, believed only if their checksum fits.

A sidecar is a safetensors file: arrays of one dimension, and text metadata with ``format``,
``version`` and ``checksum``. It is fully checked before it is used. The checksum is a CRC-32C over
the other metadata and the arrays, so it detects any flipped bit that changes what is read. One
array may be left out of it (`SidecarFormat.lazy`): it stays in the file, and its parts have
checksums of their own. A checksum does not stop an attacker: code that reads a sidecar still checks
its content against the data. `index_paths` says where sidecars are.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files import Access, FileSource, open_file
from torch_tfrecord.records.index_paths import (
    LENGTH_BYTES,
    METADATA,
    PREFIX,
    begins_as_ours,
    write_sidecar,
)

__all__ = [
    "ArrayPlace",
    "Sidecar",
    "SidecarFormat",
    "about_data",
    "stored_number",
]

_Array: TypeAlias = "npt.NDArray[np.generic]"

_DTYPES = {"I64": "int64", "F64": "float64", "U64": "uint64", "U32": "uint32", "U8": "uint8"}
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")


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
            {name: (array.dtype, len(array)) for name, array in ordered.items()},
            {name: array for name, array in ordered.items() if name != self.lazy},
        )
        header: dict[str, object] = {METADATA: own}
        end = 0
        for name, array in ordered.items():
            begin, end = end, end + array.nbytes
            code = next(code for code, dtype in _DTYPES.items() if dtype == array.dtype.name)
            header[name] = {"dtype": code, "shape": [len(array)], "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % LENGTH_BYTES)
        if len(text) > self.max_header_bytes:
            raise OSError(
                errno.EFBIG,
                f"expected a header of at most {self.max_header_bytes} bytes, got {len(text)}",
            )
        length = len(text).to_bytes(LENGTH_BYTES, "little")
        return b"".join([length, text, *(array.data for array in ordered.values())])

    @staticmethod
    def write(place: str, content: bytes) -> None:
        """Write what `pack` made; see `write_sidecar`."""
        write_sidecar(place, content)

    def read(
        self,
        file: str | FileSource,
        most_bytes: Callable[[Mapping[str, str]], int],
        owner: str = "the data file",
        access: Access = Access.DEFAULT,
    ) -> Sidecar:
        """Read what `pack` wrote, and check everything that can be checked without the data.

        Args:
            file: The file, or its path.
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
        source = open_file(file, access.without_cache()) if isinstance(file, str) else file
        try:
            return _read(source, self, most_bytes, owner)
        except (ValueError, RecursionError, MemoryError) as error:
            text = f"expected {self.what} written by torch_tfrecord, got {error}"
            raise IndexMismatchError(text, path=source.path) from error
        except IndexMismatchError as error:
            error.locate(path=source.path)
            raise


class Sidecar(NamedTuple):
    """The content of a sidecar.

    Attributes:
        metadata: Field -> text.
        arrays: Name -> array [N], read-only; without the lazy one.
        places: Name -> dtype, length and first byte in the file of each array.
        checksum: The 8 digits.
    """

    metadata: dict[str, str]
    arrays: dict[str, npt.NDArray[Any]]  # by the dtypes that the format says
    places: dict[str, ArrayPlace]
    checksum: str

    def number(self, name: str) -> int:
        """A metadata field that is a 64-bit integer.

        Raises:
            IndexMismatchError: It is not one in the form that `str` writes.
        """
        return stored_number(self.metadata, name)


class ArrayPlace(NamedTuple):
    """Where an array is in a file."""

    dtype: np.dtype[np.generic]
    length: int
    begin: int


def _read(
    source: FileSource,
    kind: SidecarFormat,
    most_bytes: Callable[[Mapping[str, str]], int],
    owner: str,
) -> Sidecar:
    head = source.read(kind.first_read_bytes, 0)
    end = LENGTH_BYTES + _header_bytes(head, kind)
    # A header longer than the first read is rare: an episode index of many keys.
    if len(head) < end:
        head = source.read(end, 0)
    metadata, checksum, places = _parse_header(head[:end], kind)
    total = end + sum(place.length * place.dtype.itemsize for place in places.values())
    if source.file_size != total:
        raise IndexMismatchError(
            f"expected {kind.what} of {total} bytes, as its header says, got {source.file_size}"
        )
    stop = max(
        place.begin + place.length * place.dtype.itemsize
        for name, place in places.items()
        if name != kind.lazy
    )
    # Before anything is allocated.
    limit = most_bytes(metadata)
    if stop - end > limit:
        raise IndexMismatchError(
            f"expected {kind.what} with at most {limit} bytes of arrays, by the size of {owner}, "
            f"got {stop - end}"
        )
    # Read, not mapped: a file that is truncated while mapped kills the process.
    content = head[:stop] if len(head) >= stop else source.read(stop, 0)
    if len(content) != stop or content[:end] != head[:end]:
        raise IndexMismatchError(
            f"expected {kind.what} that does not change while it is read, got {len(content)} bytes"
        )
    arrays = {
        name: np.frombuffer(content, *place) for name, place in places.items() if name != kind.lazy
    }
    own = {"format": kind.name, "version": kind.version, **metadata}
    got = _checksum(own, {name: place[:2] for name, place in places.items()}, arrays)
    if checksum != got:
        raise IndexMismatchError(
            f"expected {kind.what} with checksum {checksum[:8]}, got {got}: it is damaged"
        )
    return Sidecar(metadata, arrays, places, got)


def _header_bytes(head: bytes, kind: SidecarFormat) -> int:
    found = int.from_bytes(head[:LENGTH_BYTES], "little")
    if not begins_as_ours(head):
        raise _other(kind, "another file" if head else "an empty file")
    if found > kind.max_header_bytes:
        raise IndexMismatchError(
            f"expected a header of at most {kind.max_header_bytes} bytes, got {found}"
        )
    return found


def _other(kind: SidecarFormat, got: str) -> IndexMismatchError:
    return IndexMismatchError(
        f"expected {kind.what} written by torch_tfrecord, of format {kind.name!r} version "
        f"{kind.version!r}, got {got}"
    )


def _parse_header(
    head: bytes, kind: SidecarFormat
) -> tuple[dict[str, str], str, dict[str, ArrayPlace]]:
    """The fields, the checksum and where the arrays are."""
    header = json.loads(head[LENGTH_BYTES:].decode())
    metadata = header.pop(METADATA)
    if not isinstance(metadata, dict):
        raise _other(kind, "another file")
    name, version = metadata.pop("format", ""), metadata.pop("version", "")
    # Before the fields, so that the error of an older form says that it is old.
    if (name, version) != (kind.name, kind.version):
        is_ours = str(name).startswith(PREFIX)
        raise _other(kind, "another version of one" if is_ours else "another file")
    if metadata.keys() != {*kind.fields, "checksum"} or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise IndexMismatchError(
            f"expected {kind.what} with the fields {', '.join(kind.fields)}, got others"
        )
    if header.keys() != kind.arrays.keys():
        raise IndexMismatchError(
            f"expected {kind.what} with the arrays {', '.join(kind.arrays)}, got others"
        )
    places = {name: _place(header[name], kind.arrays[name], len(head)) for name in kind.arrays}
    return metadata, metadata.pop("checksum"), places


def _place(described: object, dtypes: str, start: int) -> ArrayPlace:
    match described:
        case {"dtype": str(name), "shape": [int(length)], "data_offsets": [int(begin), int(end)]}:
            dtype = np.dtype(_DTYPES.get(name, "V"))
            if (
                dtype.name in dtypes.split()
                and 0 <= begin <= end == begin + length * dtype.itemsize
            ):
                return ArrayPlace(dtype.newbyteorder("<"), length, start + begin)
    raise IndexMismatchError(f"expected arrays of one dimension, of {dtypes}, got others")


def _checksum(
    metadata: Mapping[str, str],
    shapes: Mapping[str, tuple[np.dtype[np.generic], int]],
    arrays: Mapping[str, _Array],
) -> str:
    """The CRC-32C of the metadata and of what arrays there are, sorted, then of the arrays.

    It is true in whatever order a program writes them.
    """
    described = {name: [dtype.name, length] for name, (dtype, length) in shapes.items()}
    crc = crc32c(json.dumps([metadata, described], sort_keys=True).encode())
    for name in sorted(arrays):
        crc = crc32c(arrays[name].data, crc)
    return f"{crc:08x}"


def stored_number(metadata: Mapping[str, str], name: str) -> int:
    """See `Sidecar.number`."""
    text = metadata[name]
    if not _NUMBER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise IndexMismatchError(
            f"expected a whole number as {name}, got {len(text)} other characters"
        )
    return int(text)
