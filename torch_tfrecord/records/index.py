"""The index of a TFRecord file: where each record is.

A `RecordIndex` is never trusted: records must follow each other from the first byte to the
last, or it is no index of that file. That rules out an offset that points into a payload which
happens to look like a record.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

from torch_tfrecord.arguments import PathLike, StorageOptions, check_compression_type
from torch_tfrecord.batch_memory import Array, Ints
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.extensions import attached, is_there
from torch_tfrecord.files import (
    Access,
    AtomicFile,
    FileSource,
    LocalFile,
    RemoteInfo,
    is_remote,
    local_path,
    open_file,
)
from torch_tfrecord.records.array_record import ArrayRecordFile
from torch_tfrecord.records.codecs import DETECTED_BYTES, SeekPoints, codecs, open_stream
from torch_tfrecord.records.framing import HEADER_BYTES, OVERHEAD_BYTES
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.scan import Block, RecordScanner, SkippedBytes
from torch_tfrecord.records.sidecar import ArrayPlace, SidecarFormat, stored_number
from torch_tfrecord.samples import RecordPlace

__all__ = ["COMPRESSION_TYPES", "RecordIndex"]

COMPRESSION_TYPES = ("", "GZIP", "ZLIB", "SNAPPY")
_FORMAT = SidecarFormat(
    "torch_tfrecord.index",
    "7",
    "an index",
    (
        "file_size",
        "mtime_ns",
        "compression_type",
        "fingerprint",
        "etag",
        "num_points",
        "points_bytes",
        "points_checksum",
        "columns",
    ),
    {"offsets": "int64", "lengths": "int64", "extra": "uint8"},
    lazy="extra",
)
_NO_RECORDS = np.zeros(0, dtype=np.int64)
_NO_RECORDS.flags.writeable = False
_ZERO = np.zeros(1, np.int64)
_LIMIT = np.uint64(1 << 62)  # above any offset or length; negative numbers are above it, too
_ENTRY_BYTES = 16  # an offset and a length
_MOST_EXPANSION = 1032  # by deflate: 258 bytes from 2 bits
_MOST_POINT_BYTES = 1 << 26  # that seek points ever take
_MAX_DIGITS = 19  # for 2^63 - 1
_TEXT_NUMBER = re.compile(rb"[0-9]{1,%d}" % _MAX_DIGITS)


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """Offsets and lengths of all records of one file; immutable.

    Attributes:
        offsets: int64 [N]: first byte of each record's length field; in the decompressed stream for
            compressed files.
        lengths: int64 [N]: payload length of each record in bytes.
        file_size: Bytes of the data file.
        compression_type: "" (none), "GZIP", "ZLIB" or "SNAPPY".
        mtime_ns: Modification time of the data file, nanoseconds since the epoch; 0 where it is not
            known.
        fingerprint: CRC-32C over the first and last 4 KiB of the data file; None where it is not
            known.
        etag: The version of the data file that its storage says; None where it says none, and of
            local files.
        columns: Name -> the values of a column that `build_index` kept, [N]: int64, float32, or str
            (bytes, if one is not UTF-8); a masked array where a record has none.

    Raises:
        IndexMismatchError: the records do not follow each other from 0 to the end of the
            file.
    """

    offsets: Ints
    lengths: Ints
    file_size: int
    compression_type: str = ""
    mtime_ns: int = 0
    fingerprint: int | None = None
    etag: str | None = None
    # Where a compressed file can be entered; None where that is not known, or was not read.
    _points: SeekPoints | None = field(default=None, repr=False)
    # The index file that has them.
    _kept_at: str | _KeptExtra | None = field(default=None, repr=False)
    # The columns; those of an index file are read when they are asked for.
    _kept: Mapping[str, _Column] = field(default_factory=dict, repr=False)
    # Numbers of the entries that are no records, but what is between two: see `_build`.
    _damaged: tuple[int, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("offsets", "lengths"):
            # A view, so that the array that was given stays writable.
            array = np.ascontiguousarray(getattr(self, name), dtype=np.int64).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.compression_type not in (*COMPRESSION_TYPES, "ARRAY_RECORD"):
            raise ValueError(
                f"compression_type must be '', 'GZIP', 'ZLIB' or 'SNAPPY', got {self.compression_type!r}"
            )
        _check_contiguous(
            self.offsets, self.lengths, None if self.compression_type else self.file_size
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordIndex):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        arrays = (self.offsets.tobytes(), self.lengths.tobytes())
        return (
            *arrays,
            self.file_size,
            self.compression_type,
            self.mtime_ns,
            self.fingerprint,
            self.etag,
        )

    def _seek_points(self, access: Access = Access.DEFAULT) -> SeekPoints | None:
        """Where the compressed file can be entered; read from the index file if need be.

        Returns:
            None where that is not known, since the index file is not there any more or is another
            one: then the file is decompressed from its beginning.
        """
        kept = self._kept_index(access)._kept_at if self.compression_type else None
        if self._points is None and isinstance(kept, _KeptExtra):
            with suppress(OSError, IndexMismatchError):
                return kept.read_points(self.file_size)
        return self._points

    @property
    def columns(self) -> Mapping[str, Array]:
        """See the class."""
        return {name: column.array() for name, column in self._kept.items()}

    def _kept_index(self, access: Access) -> RecordIndex:
        """This index, or the one in the index file that `_kept_at` names, if it is there."""
        if isinstance(self._kept_at, str):
            facts = attrgetter("file_size", "compression_type", "fingerprint")
            with suppress(OSError, IndexMismatchError):
                found = _load(self._kept_at, None, access)
                return found if facts(found) == facts(self) else self
        return self

    def check_fresh(self, source: FileSource) -> None:
        """Raise IndexMismatchError unless this is the index of a data file as it is now.

        Compares the size, the time of the last change, and the fingerprint; what is not known is
        not compared. The time of a remote file is not compared if the fingerprint is, so that an
        index may be uploaded with its data, and nothing but the size is where both ETags are known
        and equal.
        """
        problem = None
        times = self.mtime_ns, source.mtime_ns
        are_compared = self.fingerprint is None or not is_remote(source.path)
        if source.file_size != self.file_size:
            problem = f"expected a file of {self.file_size} bytes, got {source.file_size}"
        # Equal ETags are proof enough, and save the request for the fingerprint.
        elif self.etag is not None and self.etag == source.etag:
            return
        elif are_compared and all(times) and len({*times}) > 1:
            problem = (
                f"expected a file last changed at {self.mtime_ns} ns, got {source.mtime_ns} ns"
            )
        elif self.fingerprint is not None and (found := source.fingerprint()) != self.fingerprint:
            problem = (
                f"expected a file with fingerprint {self.fingerprint:#010x}, got {found:#010x}"
            )
        if problem:
            raise IndexMismatchError(
                f"the index is not of this file as it is now: {problem}", path=source.path
            )

    def _of_version(self, source: FileSource) -> RecordIndex:
        """The same index, which `check_fresh` has passed, with the file's time and ETag as they are
        now.
        """
        if (self.etag, self.mtime_ns) == (source.etag, source.mtime_ns):
            return self
        return self._with_facts(etag=source.etag, mtime_ns=source.mtime_ns)

    def _with_facts(self, **facts: object) -> RecordIndex:
        """The same index with other attributes, which are not checked again."""
        same = copy.copy(self)
        for name, value in facts.items():
            object.__setattr__(same, name, value)
        return same

    @property
    def _is_array_record(self) -> bool:
        """Whether the file is an ArrayRecord file, and this says about where its records are."""
        return self.compression_type == "ARRAY_RECORD"

    @property
    def _has_ranges(self) -> bool:
        """Whether parts of a record can be read by offset, as of an uncompressed file."""
        return not self.compression_type

    def _open(self, path: str, access: Access) -> FileSource:
        """The bytes of this index's file.

        Raises:
            IndexMismatchError: It has changed.
            OSError: It cannot be opened.
        """
        info = RemoteInfo(self.file_size, self.etag, self.mtime_ns)
        source = open_file(path, access, None if self.etag is None else info, is_current=False)
        self.check_fresh(source)
        return source

    def _open_records(self, path: str, access: Access) -> FileSource | ArrayRecordFile:
        """The same, for `_read`."""
        if self._is_array_record:
            return ArrayRecordFile(path, self.check_fresh)
        return open_stream(self._open(path, access), self.compression_type)[0]

    def _read(self, file: FileSource | ArrayRecordFile, number: int) -> bytes:
        """A whole record, checked."""
        if isinstance(file, ArrayRecordFile):
            return file.read(number)
        return RecordReader().read(file, int(self.offsets[number]), int(self.lengths[number]))

    def _offset(self, number: int) -> int | None:
        """First byte of a record; None where the file alone knows it."""
        return None if self._is_array_record else int(self.offsets[number])

    def _payload(self, number: int) -> int:
        """First byte of a record's payload, if `_has_ranges`."""
        return int(self.offsets[number]) + HEADER_BYTES

    def _borders(self) -> Ints:
        """The offset of each record, and the end of the last: int64 [N + 1]."""
        end = self.offsets[-1] + self.lengths[-1] + OVERHEAD_BYTES if len(self) else 0
        return np.append(self.offsets, end)

    def _without_records(self) -> RecordIndex:
        """An index whose arrays are empty, which is enough for `check_fresh`."""
        return self._with_facts(offsets=_NO_RECORDS, lengths=_NO_RECORDS)

    @classmethod
    def _bare(
        cls,
        file_size: int,
        compression_type: str = "",
        mtime_ns: int = 0,
        fingerprint: int | None = None,
        etag: str | None = None,
    ) -> RecordIndex:
        """Like `_without_records`: an index of a file of which only this is known here."""
        empty = cls(_NO_RECORDS, _NO_RECORDS, 0, compression_type, mtime_ns, fingerprint, etag)
        return empty._with_facts(file_size=file_size)

    @classmethod
    def _of_array_record(cls, path: str) -> RecordIndex:
        """The number of records of an ArrayRecord file, which knows itself where they are: here as
        if all had the same size.

        Raises:
            CorruptRecordError: The file is damaged.
            ImportError: The package array-record is missing.
            OSError: The file cannot be opened.
            ValueError: The path is remote.
        """
        count = len(ArrayRecordFile(path))
        source = LocalFile(path)
        borders = np.arange(count + 1, dtype=np.int64) * source.file_size // max(count, 1)
        facts = cls._bare(source.file_size, "ARRAY_RECORD", source.mtime_ns, source.fingerprint())
        return facts._with_facts(offsets=borders[:-1], lengths=np.diff(borders) - OVERHEAD_BYTES)

    def save(self, path: PathLike) -> None:
        """Write the index as a safetensors file; it appears complete or not at all.

        The file has the arrays ``offsets`` and ``lengths`` (int64), the seek points of a
        compressed file and after them the columns as ``extra`` (uint8), and, as string metadata,
        ``format``, ``version``, ``checksum`` (CRC-32C of the other metadata and the first two
        arrays), ``file_size``, ``mtime_ns``, ``compression_type``, ``fingerprint``, ``etag``,
        ``num_points``, ``points_bytes``, ``points_checksum`` and ``columns``. What was at `path` is
        replaced, and a symbolic link is followed: you named it.

        Raises:
            OSError: nothing was changed under `path`.
        """
        AtomicFile.save(local_path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """The bytes that `save` writes."""
        metadata = {
            "file_size": str(self.file_size),
            "mtime_ns": str(self.mtime_ns),
            "compression_type": self.compression_type,
            "fingerprint": "" if self.fingerprint is None else str(self.fingerprint),
            "etag": self.etag or "",
        }
        points = b"" if self._points is None else self._points.to_bytes()
        metadata["num_points"] = str(0 if self._points is None else len(self._points))
        metadata["points_bytes"] = str(len(points))
        metadata["points_checksum"] = f"{crc32c(points):08x}"
        metadata["columns"], columns = _stored().pack(self._kept) if self._kept else ("", b"")
        arrays = {"offsets": self.offsets, "lengths": self.lengths}
        return _FORMAT.pack(
            metadata, {**arrays, "extra": np.frombuffer(points + columns, np.uint8)}
        )

    @classmethod
    def load(cls, path: PathLike, *, storage_options: StorageOptions = None) -> RecordIndex:
        """Read an index that `save` wrote, and check all of it but its data file.

        Args:
            path: A local path, or one with a ``scheme://``.
            storage_options: See `TFRecordDataset`.

        Raises:
            IndexMismatchError: damaged, of another format or version, or records that do not
                follow each other.
            OSError: the file cannot be opened.
        """
        return _load(local_path(path), None, Access(storage_options))

    @classmethod
    def _build(
        cls,
        file: FileSource,
        *,
        verify_crc: bool = True,
        compression_type: str | None = "auto",
        index_bytes_ratio: float = 0.005,
        trusts_members: bool = False,
        skipped: SkippedBytes | None = None,
        reader: ColumnReader | None = None,
    ) -> RecordIndex:
        """`build_index` of a file that is open already.

        Args:
            file, verify_crc, compression_type, index_bytes_ratio: See there.
            trusts_members: Take the lengths of the records from the headers of gzip members, where
                those of a local file have them; if they are wrong, reading a record shows it.
            skipped: Then also of a damaged file: an entry of the index is for what is between
                two records, and cannot be read.
            reader: Reads the columns that are kept.
        """
        if not 0 <= index_bytes_ratio <= 1:
            raise ValueError(f"index_bytes_ratio must be 0 to 1, got {index_bytes_ratio!r}")
        gaps = None if skipped is None else skipped.gaps
        kind = check_compression_type(compression_type)
        stream, found = open_stream(file.ahead(), kind, index_bytes_ratio, gaps)
        if found == "ARRAY_RECORD" and skipped is None:
            raise IndexMismatchError(
                "expected a TFRecord file, got an ArrayRecord file, which has its own index: a dataset has files of "
                "one kind",
                path=file.path,
            )
        # Starts with an empty one, as nothing cannot be concatenated.
        offsets: list[Ints] = [_NO_RECORDS]
        lengths: list[Ints] = [_NO_RECORDS]
        may_jump = (
            trusts_members and found == "GZIP" and not is_remote(file.path) and reader is None
        )
        members = codecs().members(file, index_bytes_ratio) if may_jump else None
        if members is not None:
            of_members, points = members
            offsets.append(np.cumsum(of_members + OVERHEAD_BYTES) - of_members - OVERHEAD_BYTES)
            lengths.append(of_members)
        else:
            for block in RecordScanner(
                stream, verify_crc=verify_crc, keep_payloads=reader is not None, skipped=skipped
            ):
                offsets.append(block.offsets)
                lengths.append(block.lengths)
                if reader is not None and block.records is not None:
                    reader.add(block.records, partial(_place, block, file.path))
            points = codecs().points_of(stream) if found in COMPRESSION_TYPES[1:] else None
        facts = (file.file_size, found, file.mtime_ns, file.fingerprint(), file.etag)
        all_offsets, all_lengths = np.concatenate(offsets), np.concatenate(lengths)
        if not skipped:
            kept = {} if reader is None else reader.columns()
            return cls(all_offsets, all_lengths, *facts, points, _kept=kept)
        begins, ends = np.array(skipped.ranges, np.int64).reshape(-1, 2).T
        numbers = np.searchsorted(all_offsets, begins)
        return cls._bare(*facts)._with_facts(
            offsets=np.insert(all_offsets, numbers, begins),
            lengths=np.insert(all_lengths, numbers, ends - begins - OVERHEAD_BYTES),
            _points=points,
            _damaged=tuple((numbers + np.arange(len(numbers))).tolist()),
        )

    @classmethod
    def _load_fresh(
        cls, path: str, data: FileSource, access: Access = Access.DEFAULT
    ) -> RecordIndex:
        """The index at a path, if it is of the data file as it is now.

        Args:
            path: The index.
            data: The data file.
            access: How a remote index is reached.

        Raises:
            IndexMismatchError: it is not, or is none; nothing larger than an index of that file is
                read.
            OSError: the index cannot be opened.
        """
        index = _load(path, data, access)
        index.check_fresh(data)
        # A plain file needs no look: its records would not fill it. What is empty is of any
        # compression.
        if (
            index.compression_type
            and data.file_size
            and codecs().detect(data.read(DETECTED_BYTES, 0)) != index.compression_type
        ):
            raise IndexMismatchError(
                f"the index is not of this file as it is now: expected compression {index.compression_type!r}, "
                "got a file of another",
                path=data.path,
            )
        return index._of_version(data) if is_remote(data.path) else index

    @classmethod
    def from_tfrecord2idx(cls, path: PathLike, data_path: PathLike) -> RecordIndex:
        """Read the text index of DALI's or vahidk's ``tfrecord2idx``: lines of ``<offset> <payload
        + 16>``.

        Nothing in it is trusted: it must describe the data file from its first byte to its last.
        That each record's header agrees is checked when the record is read.

        Raises:
            IndexMismatchError: damaged, not of this file, or of a compressed file (that tool cannot
                index those).
        """
        name, data = local_path(path), open_file(local_path(data_path))
        try:
            _, compression_type = open_stream(data, "auto")
            if compression_type:
                raise IndexMismatchError(
                    f"expected an uncompressed data file, got {compression_type}: {data.path}"
                )
            # Small, whatever the data: two numbers a record.
            text = open_file(name)
            offsets, sizes = _parse_text(text.read(text.file_size, 0))
            return cls(
                offsets,
                sizes - OVERHEAD_BYTES,
                data.file_size,
                "",
                data.mtime_ns,
                data.fingerprint(),
                data.etag,
            )
        except IndexMismatchError as error:
            error.locate(path=name)
            raise

    def to_tfrecord2idx(self, path: PathLike) -> None:
        """Write the text index that DALI and vahidk/tfrecord read: one line ``<offset> <payload +
        16>`` a record.

        Raises:
            ValueError: the data file is compressed; those readers need offsets in the file itself.
        """
        if self.compression_type:
            raise ValueError(
                f"a tfrecord2idx index needs an uncompressed data file, got {self.compression_type}"
            )
        sizes = self.lengths + OVERHEAD_BYTES
        lines = [
            f"{offset} {size}\n"
            for offset, size in zip(self.offsets.tolist(), sizes.tolist(), strict=True)
        ]
        AtomicFile.save(local_path(path), "".join(lines).encode("ascii"))


class _Column(Protocol):
    """A column that an index keeps."""

    def array(self) -> Array:
        """Its values; see `RecordIndex.columns`."""


class _Stored(Protocol):
    """The object that the extension `tables` attaches: columns in an index file."""

    def __call__(
        self,
        described: str,
        num_records: int,
        num_bytes: int,
        read: Callable[[int, int], bytes],
        path: str,
    ) -> Mapping[str, _Column]:
        """The columns that `pack` describes, each read when it is asked for.

        Raises:
            ValueError, TypeError, KeyError: The description is none.
            IndexMismatchError: They have another number of bytes in all.
        """

    def pack(self, columns: Mapping[str, Any]) -> tuple[str, bytes]:
        """The description of columns, and their bytes."""


class ColumnReader(Protocol):
    """Reads columns while an index is built."""

    def add(
        self, records: Iterable[bytes | memoryview], place: Callable[[int], RecordPlace]
    ) -> None:
        """Read them of some records; `place` says of a row where it is."""

    def columns(self) -> Mapping[str, _Column]:
        """The columns of all blocks."""


def _place(block: Block, path: str, row: int) -> RecordPlace:
    return RecordPlace(path, int(block.offsets[row]), block.position + row)


def _check_contiguous(offsets: Ints, lengths: Ints, size: int | None) -> None:
    if offsets.ndim != 1 or offsets.shape != lengths.shape:
        raise IndexMismatchError(
            f"expected offsets and lengths of one size, got {offsets.shape} and {lengths.shape}"
        )
    # Bounded first: with lengths below 2^62 no sum below overflows. As few calls as possible:
    # thousands of shards are opened.
    bad = ((offsets | lengths).view(np.uint64) >= _LIMIT).nonzero()[0]
    if len(bad):
        at = int(bad[0])
        raise IndexMismatchError(
            f"expected an offset and a length within a file, got offset {offsets[at]} and length {lengths[at]}",
            position=at,
        )
    ends = offsets + lengths + OVERHEAD_BYTES
    expected = np.concatenate([_ZERO, ends[:-1]])[: len(offsets)]
    bad = (offsets != expected).nonzero()[0]
    if len(bad):
        at = int(bad[0])
        raise IndexMismatchError(
            f"expected each record right behind the one before: offset {expected[at]}, got {offsets[at]}",
            position=at,
        )
    end = int(ends[-1]) if len(ends) else 0
    if size is not None and end != size:
        raise IndexMismatchError(
            f"expected records up to the end of the file ({size} bytes), got an end of {end}"
        )


def _most_bytes(data: FileSource | None, metadata: Mapping[str, str]) -> int:
    """The most that the arrays of an index may take, by what it says of its file."""
    file_size = stored_number(metadata, "file_size")
    if data is not None and file_size != data.file_size:  # before its arrays are read
        raise IndexMismatchError(
            f"the index is not of this file as it is now: expected a file of {file_size} bytes, "
            f"got {data.file_size}",
            path=data.path,
        )
    # An index has at most as many records as there could be empty ones in the data.
    stream = file_size * _MOST_EXPANSION if metadata["compression_type"] else file_size
    return stream // OVERHEAD_BYTES * _ENTRY_BYTES


def _load(path: str, data: FileSource | None, access: Access) -> RecordIndex:
    found = _FORMAT.read(path, partial(_most_bytes, data), access=access)
    metadata = found.metadata
    try:
        num_points = stored_number(metadata, "num_points")
        points_bytes = stored_number(metadata, "points_bytes")
        if metadata["compression_type"] not in COMPRESSION_TYPES:
            raise IndexMismatchError(
                "expected the compression '', 'GZIP', 'ZLIB' or 'SNAPPY', got another"
            )
        extra = _KeptExtra(
            path,
            found.places["extra"],
            num_points,
            points_bytes,
            metadata["points_checksum"],
            access,
        )
        return RecordIndex(
            found.arrays["offsets"],
            found.arrays["lengths"],
            stored_number(metadata, "file_size"),
            metadata["compression_type"],
            stored_number(metadata, "mtime_ns"),
            stored_number(metadata, "fingerprint") if metadata["fingerprint"] else None,
            metadata["etag"] or None,
            _kept_at=extra,
            _kept=_stored_columns(extra, metadata["columns"], len(found.arrays["offsets"])),
        )
    except IndexMismatchError as error:
        error.locate(path=path)
        raise


class _KeptExtra(NamedTuple):
    """Where in an index file the seek points and the columns are, and the checksum of the points."""

    path: str
    place: ArrayPlace
    num_points: int
    points_bytes: int
    checksum: str
    access: Access

    def read_points(self, file_size: int) -> SeekPoints | None:
        """Those of a data file of this size."""
        if not self.num_points:
            return None
        data = self._read(0, min(self.points_bytes, _MOST_POINT_BYTES))
        if f"{crc32c(data):08x}" != self.checksum:
            raise IndexMismatchError("the seek points are damaged", path=self.path)
        return codecs().points_from(data, self.num_points, file_size)

    def read_columns(self, begin: int, num_bytes: int) -> bytes:
        """So many bytes of the columns."""
        return self._read(self.points_bytes + begin, num_bytes)

    def _read(self, begin: int, num_bytes: int) -> bytes:
        source = open_file(self.path, self.access.without_cache())
        return source.read(num_bytes, self.place.begin + begin)


def _stored() -> _Stored:
    return attached("tables", "StoredColumns")


def _stored_columns(extra: _KeptExtra, described: str, num_records: int) -> Mapping[str, _Column]:
    num_bytes = extra.place.length - extra.points_bytes
    if described and is_there("tables"):
        try:
            return _stored()(described, num_records, num_bytes, extra.read_columns, extra.path)
        except (ValueError, TypeError, KeyError) as error:
            raise IndexMismatchError(f"expected columns, got {error}") from error
    if num_bytes and not described:
        raise IndexMismatchError("expected seek points and columns up to the end of the index")
    return {}


def _parse_text(text: bytes) -> tuple[Ints, Ints]:
    if b"\r" in text:
        raise IndexMismatchError("expected lines that end as on Unix, got carriage returns")
    words = text.split()
    for number, word in enumerate(words):
        if not _TEXT_NUMBER.fullmatch(word):
            raise IndexMismatchError(
                f"expected decimal numbers of at most {_MAX_DIGITS} digits, got {len(word)} other characters",
                position=number // 2,
            )
    if len(words) % 2:
        raise IndexMismatchError(f"expected pairs of offset and size, got {len(words)} numbers")
    numbers = [int(word) for word in words]
    if max(numbers, default=0) >= 1 << 63:
        raise IndexMismatchError(f"expected numbers below 2^63, got {max(numbers)}")
    pairs = np.array(numbers, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()
