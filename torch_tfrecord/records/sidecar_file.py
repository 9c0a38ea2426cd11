"""The format of every file stored next to data: a safetensors file that is fully checked before it
is used.

::

    8 bytes    length of the header, little-endian
    header     {"__metadata__":{"format":<mark>,"version":<n>,"checksum":<8 hex digits>,<fields>},<arrays>}, and spaces
    arrays     concatenated, each of one dimension

The checksum is the CRC-32C of the whole file except its own digits, so it detects any flipped bit.
For a kind whose last array is large (`SidecarFormat.is_lazy`) it ends before that array, whose
parts have checksums of their own. The encoding is unique: a header with other content, duplicates
or another order is rejected. A checksum does not stop an attacker: code that reads a sidecar still
checks its content against the data.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.files.file_source import FileSource
from torch_tfrecord.files.storage import open_file

__all__ = [
    "Sidecar",
    "SidecarFormat",
    "check_replaceable",
    "is_own",
    "pack",
    "read_sidecar",
    "read_source",
    "stored_number",
]

_MARK = "torch_tfrecord."
_LENGTH_BYTES = 8  # of the header length field, which comes first
_ALIGNMENT = 8
_CHECKSUM_DIGITS = 8
_FIRST_READ_BYTES = 4096  # holds the header of most sidecars, so one read is enough
_MOST_HEADER_BYTES = 1 << 20  # searched for the format name of an earlier version
_DTYPES = {"int64": "I64", "float64": "F64", "uint32": "U32", "uint8": "U8"}  # safetensors' names
_METADATA = "__metadata__"
# The first bytes that earlier versions wrote, with metadata in any order.
_MARK_AT_ANY_PLACE = f'"format":"{_MARK}'.encode()
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")


class SidecarFormat(NamedTuple):
    """One kind of sidecar.

    Attributes:
        name: Its format name, "torch_tfrecord." and a word.
        version: The only version that is read.
        what: Its name in errors, such as "an index".
        fields: Names of the metadata fields, each a str, in order.
        arrays: Name -> "int64", "float64", "uint32" or "uint8", in order; those of 8 bytes first.
        max_header_bytes: Maximum size of a header.
        is_lazy: Whether the last array, of uint8, stays in the file: it is neither read nor covered
            by the checksum.
        first_read_bytes: Size of the first read, so that most of these files take one read.
    """

    name: str
    version: str
    what: str
    fields: tuple[str, ...]
    arrays: Mapping[str, str]
    max_header_bytes: int = 1 << 16
    is_lazy: bool = False
    first_read_bytes: int = _FIRST_READ_BYTES


class Sidecar(NamedTuple):
    """The content of a sidecar.

    Attributes:
        metadata: Field -> text.
        arrays: Name -> array [N], read-only; without one that stays in the file.
        starts: Name -> first byte of the array in the file.
        checksum: The 8 digits.
    """

    metadata: dict[str, str]
    arrays: dict[str, npt.NDArray[Any]]
    starts: dict[str, int]
    checksum: str


def pack(
    kind: SidecarFormat,
    metadata: Mapping[str, str],
    arrays: Mapping[str, npt.NDArray[Any]],
    lazy_bytes: int = 0,
) -> bytes:
    """Serialize a sidecar; for a lazy kind, the part before its last array, which has `lazy_bytes`.

    Raises:
        OSError: The header is longer than `read_sidecar` accepts.
    """
    names = list(kind.arrays)[: -1 if kind.is_lazy else None]
    ordered = [np.ascontiguousarray(arrays[name], _stored(kind.arrays[name])) for name in names]
    lengths = dict.fromkeys(kind.arrays, lazy_bytes) | {
        name: len(array) for name, array in zip(names, ordered, strict=True)
    }
    header = _header(kind, metadata, lengths)
    if len(header) > kind.max_header_bytes:
        raise OSError(
            errno.EFBIG,
            f"expected a header of at most {kind.max_header_bytes} bytes, got {len(header)}",
        )
    content = b"".join(
        [
            len(header).to_bytes(_LENGTH_BYTES, "little"),
            header,
            *(array.tobytes() for array in ordered),
        ]
    )
    begin = _LENGTH_BYTES + len(_lead(kind))
    digits = _checksum(content, begin)
    return content[:begin] + digits + content[begin + _CHECKSUM_DIGITS :]


def read_sidecar(
    path: str,
    kind: SidecarFormat,
    most_bytes: Callable[[Mapping[str, str]], int],
    owner: str = "the data file",
    *,
    access: Access = DEFAULT_ACCESS,
) -> Sidecar:
    """Read what `pack` wrote, and check everything that can be checked without the data.

    Args:
        path: The file.
        kind: The expected kind.
        most_bytes: Maps the metadata to the maximum total size of the arrays, given the size of the
            data, as a sparse file may claim gigabytes that it does not hold on disk. May raise
            IndexMismatchError.
        owner: Name of the data with that size, for errors.
        access: How to reach a remote file.

    Raises:
        IndexMismatchError: The sidecar is damaged, has another format or version, or is implausibly
            large.
        OSError: The file cannot be opened or read.
    """
    source = open_file(path, access.without_cache())  # rejects directories and pipes
    return read_source(source, kind, most_bytes, owner)


def read_source(
    source: FileSource,
    kind: SidecarFormat,
    most_bytes: Callable[[Mapping[str, str]], int],
    owner: str,
) -> Sidecar:
    """`read_sidecar` of a file that is open already."""
    try:
        return _read(source, kind, most_bytes, owner)
    except (ValueError, RecursionError, MemoryError) as error:
        text = f"expected {kind.what} written by torch_tfrecord, got {error}"
        raise IndexMismatchError(text, path=source.path) from error
    except IndexMismatchError as error:
        error.locate(path=source.path)
        raise


def _read(
    source: FileSource,
    kind: SidecarFormat,
    most_bytes: Callable[[Mapping[str, str]], int],
    owner: str,
) -> Sidecar:
    head = source.read(kind.first_read_bytes, 0)
    header_bytes = _header_bytes(head, kind)
    if len(head) < _LENGTH_BYTES + header_bytes:
        head = source.read(_LENGTH_BYTES + header_bytes, 0)
    header = head[_LENGTH_BYTES : _LENGTH_BYTES + header_bytes]
    metadata, lengths = _parse_header(header, kind)
    sizes = [
        length * _stored(dtype).itemsize
        for length, dtype in zip(lengths, kind.arrays.values(), strict=True)
    ]
    total = _LENGTH_BYTES + header_bytes + sum(sizes)
    if source.file_size != total:
        raise IndexMismatchError(
            f"expected {kind.what} of {total} bytes, as its header says, got {source.file_size}"
        )
    array_bytes = sum(sizes[: -1 if kind.is_lazy else None])
    expected = _LENGTH_BYTES + header_bytes + array_bytes
    limit = most_bytes(metadata)
    if array_bytes > limit:
        raise IndexMismatchError(
            f"expected {kind.what} with at most {limit} bytes of arrays, by the size of {owner}, got {array_bytes}"
        )
    # Read, not mapped: a file that is truncated while mapped kills the process.
    content = head[:expected] if len(head) >= expected else source.read(expected, 0)
    if len(content) != expected or content[: len(head)] != head[:expected]:
        raise IndexMismatchError(
            f"expected {kind.what} that does not change while it is read, got {len(content)} bytes"
        )
    begin = _LENGTH_BYTES + len(_lead(kind))
    stored = content[begin : begin + _CHECKSUM_DIGITS].decode("ascii", "backslashreplace")
    got = _checksum(content, begin).decode()
    if stored != got:
        raise IndexMismatchError(
            f"expected {kind.what} with checksum {stored}, got {got}: it is damaged"
        )
    return _arrays(content, kind, metadata, lengths, _LENGTH_BYTES + header_bytes, got)


def _header_bytes(head: bytes, kind: SidecarFormat) -> int:
    if not head:
        raise IndexMismatchError(
            f"expected {kind.what} written by torch_tfrecord, got an empty file"
        )
    found = int.from_bytes(head[:_LENGTH_BYTES], "little")
    lead = _lead(kind)
    if head[_LENGTH_BYTES : _LENGTH_BYTES + len(lead)] != lead:
        raise IndexMismatchError(
            f"expected {kind.what} written by torch_tfrecord, of format {kind.name!r} version {kind.version!r}, "
            f"got {'another version of one' if _has_mark(head) else 'another file'}"
        )
    if found > kind.max_header_bytes:
        raise IndexMismatchError(
            f"expected a header of at most {kind.max_header_bytes} bytes, got {found}"
        )
    return found


def _parse_header(header: bytes, kind: SidecarFormat) -> tuple[dict[str, str], list[int]]:
    """Parse the metadata and array lengths, and check that `_header` would write the same
    header.
    """
    found = json.loads(header.decode("ascii"))
    metadata = found.get(_METADATA)
    lengths = [_length(found.get(name)) for name in kind.arrays]
    if not isinstance(metadata, dict) or not all(
        isinstance(metadata.get(name), str) for name in kind.fields
    ):
        raise IndexMismatchError(
            f"expected {kind.what} with the fields {', '.join(kind.fields)}, got others"
        )
    again = bytearray(_header(kind, metadata, dict(zip(kind.arrays, lengths, strict=True))))
    begin = len(_lead(kind))
    again[begin : begin + _CHECKSUM_DIGITS] = header[begin : begin + _CHECKSUM_DIGITS]
    if again != header:
        raise IndexMismatchError(
            f"expected {kind.what} in the exact form that torch_tfrecord writes, got another"
        )
    return {name: metadata[name] for name in kind.fields}, lengths


def _length(described: object) -> int:
    shape = described.get("shape") if isinstance(described, dict) else None
    if (
        not isinstance(shape, list)
        or len(shape) != 1
        or type(shape[0]) is not int
        or not 0 <= shape[0] < 1 << 60
    ):
        raise IndexMismatchError("expected arrays of one dimension, got others")
    return shape[0]


def _arrays(
    content: bytes,
    kind: SidecarFormat,
    metadata: dict[str, str],
    lengths: list[int],
    start: int,
    checksum: str,
) -> Sidecar:
    arrays, starts = {}, {}
    for (name, dtype), length in zip(kind.arrays.items(), lengths, strict=True):
        starts[name] = start
        if start < len(content) or not length:
            arrays[name] = np.frombuffer(content, _stored(dtype), length, start)
            start += arrays[name].nbytes
    return Sidecar(metadata, arrays, starts, checksum)


def _stored(dtype: str) -> np.dtype[Any]:
    stored: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return stored


def _lead(kind: SidecarFormat) -> bytes:
    """The start of every header of a kind, up to the checksum."""
    return (
        f'{{"{_METADATA}":{{"format":"{kind.name}","version":"{kind.version}","checksum":"'.encode()
    )


def _header(kind: SidecarFormat, metadata: Mapping[str, str], lengths: Mapping[str, int]) -> bytes:
    own = {"format": kind.name, "version": kind.version, "checksum": "0" * _CHECKSUM_DIGITS}
    header: dict[str, object] = {_METADATA: own | {name: metadata[name] for name in kind.fields}}
    at = 0
    for name, dtype in kind.arrays.items():
        end = at + lengths[name] * _stored(dtype).itemsize
        header[name] = {
            "dtype": _DTYPES[dtype],
            "shape": [lengths[name]],
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    return text + b" " * (-len(text) % _ALIGNMENT)


def _checksum(content: bytes, begin: int) -> bytes:
    """The checksum of all bytes except its own digits."""
    view = memoryview(content)
    crc = crc32c(view[begin + _CHECKSUM_DIGITS :], crc32c(view[:begin]))
    return b"%08x" % crc


def stored_number(text: str, name: str) -> int:
    """Parse a 64-bit integer from the metadata.

    Raises:
        IndexMismatchError: It is not an integer in the form that `str` writes.
    """
    if not _NUMBER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise IndexMismatchError(
            f"expected a whole number as {name}, got {len(text)} other characters"
        )
    return int(text)


# What may be replaced.


def is_own(path: str) -> bool:
    """Whether there is a regular file with the format name of one of our sidecars, intact or
    damaged.
    """
    try:
        return stat.S_ISREG(os.lstat(path).st_mode) and _is_marked(path)
    except OSError:
        return False


def _is_marked(path: str) -> bool:
    source = open_file(path)
    head = source.read(_FIRST_READ_BYTES, 0)
    size = min(int.from_bytes(head[:_LENGTH_BYTES], "little"), _MOST_HEADER_BYTES)
    return _has_mark(head if size <= len(head) else source.read(size, 0))


def _has_mark(head: bytes) -> bool:
    begins = f'{{"{_METADATA}":{{'.encode()
    return begins in head[_LENGTH_BYTES:] and _MARK_AT_ANY_PLACE in head


def check_replaceable(path: str) -> None:
    """Raise OSError unless a path is free, an empty file, or a file that `is_own`.

    Files that are written automatically must not replace foreign files, or follow symbolic links:
    somebody with write access to a data folder must not choose what other users overwrite.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "expected no symbolic link at the place of the index", path)
    if not stat.S_ISREG(status.st_mode):
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "expected a regular file at the place of the index", path)
    try:
        is_foreign = status.st_size > 0 and not _is_marked(path)
    except FileNotFoundError:  # another process removed it
        return
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    if is_foreign:
        raise FileExistsError(
            errno.EEXIST,
            "expected nothing or an index at the place of the index, got another",
            path,
        )
