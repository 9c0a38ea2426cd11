"""Writing TFRecord files that TensorFlow reads: single files and sets of shards, complete or not at
all.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import util
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import (
    PathLike,
    StorageOptions,
    WritableSpec,
    at_least,
    check_compression_type,
    knows_keywords,
    shard_name,
)
from torch_tfrecord.batch_memory import Buffer, Ints
from torch_tfrecord.errors import locate_value
from torch_tfrecord.files import Access, AtomicFile, is_remote, local_path
from torch_tfrecord.protobuf import RowEncoder
from torch_tfrecord.records.codecs import Packing
from torch_tfrecord.records.framing import OVERHEAD_BYTES
from torch_tfrecord.records.record_file import (
    FileSet,
    RecordFile,
    split_records,
    upload_record_files,
)
from torch_tfrecord.shown import without_secrets

__all__ = ["ShardedTFRecordWriter", "TFRecordWriter"]

_W = TypeVar("_W", bound="_Writer")

# Bytes of records in a GZIP member: larger ones save less than 0.1 % of a file, smaller ones cost more.
_MEMBER_BYTES = 1 << 20


class _Writer(ABC):
    """The life of a writer: open, then closed or failed; what failed once stays failed."""

    _closed = True  # until the files are open; also where __init__ was called with wrong arguments
    _name: str  # for warnings: at the end of Python nothing can be made any more

    def __init__(
        self,
        name: str,
        features: Mapping[str, WritableSpec] | None,
        storage_options: StorageOptions,
    ) -> None:
        self._encoder = RowEncoder(features)
        self._access, self._name = Access(storage_options), without_secrets(name)
        self._shards: list[RecordFile] = []
        self._only_last_is_open = False  # all shards before it are prepared
        self._failure: BaseException | None = None
        # A forked child has a copy of the writer, and of its buffer, but not its file.
        self._pid = os.getpid()
        self._count = 0
        # Rows are encoded in the same memory, and written in parts. A forked child may never get it:
        # `_check_open` comes before.
        self._lock = threading.RLock()
        # While everything is there still; workers end without dropping their objects.
        util.Finalize(self, _give_up, (weakref.ref(self),), exitpriority=0)

    def write(self, record: Buffer | Mapping[str, Any]) -> None:
        """Append one record.

        Args:
            record: The payload, or a row: a mapping of feature values that `encode_example` makes
                one of.

        Raises:
            TypeError: neither bytes-like nor a mapping; nothing was written.
            ValueError: the writer is closed, or a value that `encode_example` refuses, or, without
                ``features``, a key whose values were of another kind in an earlier row; nothing was
                written.
            OSError: the disk is full or the like; the file is given up, and `close` raises again.
        """
        self._check_open()
        with self._lock:
            if self._closed or self._failure:  # by another thread
                self._check_open()
            framed = self._encoder.view(record, framed=True)
            data, is_framed = framed or self._payload(record), framed is not None
            length = len(data) - OVERHEAD_BYTES * is_framed
            try:
                self._shard_for(length).write(data, is_framed=is_framed)
            except BaseException as error:
                self._fail(error)
                raise
            self._count += 1
            del framed, data  # they are the encoder's memory

    def write_columns(
        self,
        lists: Mapping[str, tuple[str, Any, Any, Ints, npt.NDArray[np.bool_]]],
        num_rows: int,
    ) -> None:
        """Append an Example for each row of some columns, as `write_arrow` does.

        Args:
            lists: For each key the name of its list ("int64_list", "float_list", "bytes_list"); the
                values of all rows one after the other (int64 or float32 array, or the bytes of all
                strings); offsets of the strings, int64, or None; splits of the rows among values or
                strings, int64 [N + 1]; which rows lack the key, bool [N].
            num_rows: N.

        Raises:
            ValueError: the writer is closed, the arrays do not fit, or a key was of another kind
                before; nothing was written.
            OSError: as for `write`.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            found = self._encoder.encode_columns(lists, num_rows, self._count)
            if found is None:
                for row in self._encoder.rows_of(lists, num_rows):
                    self.write(row)
            else:
                with self._failing():
                    self._write_framed(*found)
                del found  # it is the encoder's memory

    def _write_framed(self, records: memoryview, lengths: Ints) -> None:
        for record, length in split_records(records, lengths):
            self._shard_for(length).write(record, is_framed=True)
            self._count += 1

    def flush(self) -> None:
        """Hand what was written to the operating system. It is durable, and has its name, only
        after `close`.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            with self._failing():
                for shard in self._open_shards():
                    shard.flush()

    def close(self) -> None:
        """Finish: sync to the disk, then let the file appear under its name. Closing twice is no
        error.

        Raises:
            OSError: the file could not be finished. What was there before is there still, or, where
                the folder could not be synced, the new file, whole; nothing where nothing was.
                Raised again at each call.
        """
        if self._closed and self._failure is None:
            return
        self._check_open()
        with self._lock:
            self._check_open()
            with self._failing():
                self._commit()
            self._closed = True

    def _check_open(self) -> None:
        # To close again after a failure must not look like success.
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise ValueError("Writer is closed.")
        if self._pid != os.getpid():
            raise ValueError(
                "a writer cannot be used in a forked process: open one there, or only in the parent"
            )

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        # An interrupt may have cut a record in two, so that it ends the file as an error does.
        self._failure = error
        self._discard()

    def __enter__(self: _W) -> _W:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, GeneratorExit):  # a generator was dropped, which nobody sees
            self._give_up()
        # An exception in the `with` block: what was written is not what was meant to be.
        elif not self._closed:
            self._closed = True
            self._discard()

    def __del__(self) -> None:
        self._give_up()

    def _give_up(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Leave nothing behind and say so, since nobody closed the writer."""
        if self._closed or is_finalizing():  # then it is a forked child's copy
            return
        self._closed = True
        self._discard()
        # an error told of it, and a forked child has a copy
        if self._failure is None and self._pid == os.getpid():
            warnings.warn(
                f"{self._name}: the writer was dropped without close(): its file is given up "
                f"(records lost: {self._count}). Write inside `with`, or call close().",
                stacklevel=3,
            )

    def _payload(self, record: object) -> Buffer:
        if isinstance(record, (bytes, bytearray)):
            return record
        if isinstance(record, memoryview):
            return record.tobytes()  # whatever its shape and format
        if not isinstance(record, Mapping):
            raise TypeError(
                "a record must be bytes, bytearray, memoryview or a mapping of feature values, got "
                f"{type(record).__name__}"
            )
        try:
            return self._encoder.encode(record, self._count)
        except (TypeError, ValueError) as error:
            raise locate_value(error, f"{self._name}: row {self._count}") from error

    def _open_shards(self) -> Sequence[RecordFile]:
        return self._shards[-1:] if self._only_last_is_open else self._shards

    def _discard(self) -> None:
        for shard in self._shards:
            shard.discard()

    @abstractmethod
    def _shard_for(self, length: int) -> RecordFile:
        """The file of the next record, whose payload has that length."""

    @abstractmethod
    def _commit(self) -> None: ...


@knows_keywords
class TFRecordWriter(_Writer):
    """Writes one TFRecord file; the final path appears complete at `close`, or not at all.

    Plain files are byte-identical to TensorFlow's; compressed ones decompress to identical bytes
    and are reproducible. A writer that is dropped without `close`, also at the end of the program,
    leaves no file: a UserWarning names the path and the number of records lost. Leaving `with` by
    an exception leaves no file, either. Several threads may write: records follow in the order of
    their calls.

    Args:
        path: A local path, or one with a ``scheme://`` (``s3://bucket/train.tfrecord``). A file
            that is there is replaced at `close`; a local device or FIFO is written directly. What
            goes to a storage is first written to the folder for temporary files (``TMPDIR``), and
            uploaded by `close`, in parts where it is large.
        compression_type: "auto" (by the name: ``.gz`` is GZIP, ``.zlib`` ZLIB, else none), None or
            "" (none), "GZIP", "ZLIB".
        compression_level: 0 to 9, or -1 or None for zlib's default (6). Without effect where
            nothing is compressed.
        write_index: Also write the index, in the hidden folder ``.torch_index`` beside the file,
            without reading the file again.
        storage_options: The storage's, as in fsspec: ``{"key": ..., "secret": ...}``; see
            docs/remote.md.
        features: Name -> spec to read the file with later. Rows are then checked and widened by the
            specs, and missing values left out: see `encode_example`. Without it, the values of a
                key must be of one kind in all rows.
        member_bytes: A GZIP file is entered at its members: after so many bytes of records the
            next one begins a member (in a ZLIB file, which is one stream, it follows a full flush).
            The default, 1 MiB, makes files about 0.2 % larger; None writes one member.

    Raises:
        OSError: the file cannot be created; the path is named.
        ValueError: an argument is not one of those above.

    Example:
        >>> with TFRecordWriter("train.tfrecord", write_index=True) as writer:  # doctest: +SKIP
        ...     writer.write({"label": 3, "name": "cat", "x": np.zeros(4, np.float32)})
        ...     writer.write(b"any bytes")
    """

    def __init__(
        self,
        path: PathLike,
        *,
        compression_type: str | None = "auto",
        compression_level: int | None = None,
        write_index: bool = False,
        storage_options: StorageOptions = None,
        features: Mapping[str, WritableSpec] | None = None,
        member_bytes: int | None = _MEMBER_BYTES,
    ) -> None:
        self.path = local_path(path)
        super().__init__(self.path, features, storage_options)
        packing = _packing(self.path, compression_type, compression_level, member_bytes)
        self._file = RecordFile(self.path, packing, write_index)
        self._shards.append(self._file)
        self._closed = False

    def __repr__(self) -> str:
        return f"TFRecordWriter({self._name!r})"

    def _shard_for(self, length: int) -> RecordFile:
        return self._file

    def _write_framed(self, records: memoryview, lengths: Ints) -> None:
        self._file.write_framed(records, lengths)
        self._count += len(lengths)

    def _commit(self) -> None:
        self._file.prepare()
        self._file.publish(self._access)


@knows_keywords
class ShardedTFRecordWriter(_Writer):
    """Writes a set of shards ``<prefix>-00003-of-00010<suffix>``; all appear at `close`, or none.

    After a failure the shards that were there before are there again. A process that is killed
    (``kill -9``) while it renames them leaves some shards old and some new, each of them whole:
    write the set again. A storage has no such set: there the shards appear one after the other,
    those that replaced others stay after a failure, and the rest are removed.

    Args:
        prefix: Path and first part of the names; local, in a folder that is made if it is missing,
            or with a ``scheme://``.
        num_shards: Write to this many shards in turn (all are open at once).
        max_shard_bytes: Begin a new shard before this many bytes (framed, before compression) are
            exceeded; a longer record gets a shard of its own. Exactly one of `num_shards` and
            `max_shard_bytes` must be given.
        compression_type: As for `TFRecordWriter`; "auto" goes by the suffix.
        suffix: Last part of the names.
        write_index: Also write each shard's index.
        storage_options: As for `TFRecordWriter`.
        features: As for `TFRecordWriter`.
        member_bytes: As for `TFRecordWriter`.

    Attributes:
        paths: The names of the shards; known, and filled, after `close`.

    Example:
        >>> with ShardedTFRecordWriter("out/train", num_shards=4) as writer:  # doctest: +SKIP
        ...     for label in range(10):
        ...         writer.write({"label": label})
        >>> writer.paths[0]  # doctest: +SKIP
        'out/train-00000-of-00004.tfrecord'
    """

    # Prepared files of the same folder that appear with the shards; for classes that write such.
    beside: Sequence[AtomicFile] = ()

    def __init__(
        self,
        prefix: PathLike,
        *,
        num_shards: int | None = None,
        max_shard_bytes: int | None = None,
        compression_type: str | None = "auto",
        suffix: str = ".tfrecord",
        write_index: bool = False,
        storage_options: StorageOptions = None,
        features: Mapping[str, WritableSpec] | None = None,
        member_bytes: int | None = _MEMBER_BYTES,
    ) -> None:
        self.prefix = local_path(prefix)
        super().__init__(f"{self.prefix}-*{suffix}", features, storage_options)
        if (num_shards is None) == (max_shard_bytes is None):
            raise ValueError("exactly one of num_shards and max_shard_bytes must be given")
        num_shards = None if num_shards is None else at_least(1, "num_shards", num_shards)
        max_shard_bytes = (
            None if max_shard_bytes is None else at_least(1, "max_shard_bytes", max_shard_bytes)
        )
        self.paths: list[str] = []
        self._suffix = suffix
        self._packing = _packing(suffix, compression_type, None, member_bytes)
        self._max_shard_bytes = max_shard_bytes
        self._write_index = write_index
        self._only_last_is_open = max_shard_bytes is not None
        self._files: FileSet | None = None
        self._closed = False
        with self._failing():
            if not is_remote(self.prefix):
                with contextlib.suppress(FileExistsError):
                    os.makedirs(os.path.dirname(self.prefix) or os.curdir)
                self._files = FileSet(self.prefix, suffix)
            for _ in range(num_shards or 1):
                self._add_shard()

    def __repr__(self) -> str:
        return f"ShardedTFRecordWriter({without_secrets(self.prefix)!r})"

    def _add_shard(self) -> None:
        # How many there will be is not known yet.
        name = f"{self.prefix}-{len(self._shards):05d}{self._suffix}"
        self._shards.append(RecordFile(name, self._packing, self._write_index))

    def _shard_for(self, length: int) -> RecordFile:
        shards = self._open_shards()
        shard = shards[self._count % len(shards)]
        most, num_bytes = self._max_shard_bytes, shard.num_bytes
        if most and num_bytes and num_bytes + length + OVERHEAD_BYTES > most:
            # Finished at once, so that only one file is open, however many there will be.
            self._finish(shard)
            self._add_shard()
            shard = self._shards[-1]
        return shard

    def _finish(self, shard: RecordFile) -> None:
        shard.prepare()
        if self._files is not None:
            self._files.add(shard)

    def _commit(self) -> None:
        for shard in self._open_shards():
            self._finish(shard)
        count = len(self._shards)
        # Classes that write other names know them before.
        paths = self.paths or [
            shard_name(self.prefix, number, count, self._suffix) for number in range(count)
        ]
        if self._files is None:
            upload_record_files(self._shards, paths, self._access)
        else:
            # Their numbers are known by now, so their names are, too.
            self._files.publish(paths, self.beside)
            for shard, path in zip(self._shards, paths, strict=True):
                # Only now: until the last rename the old shards may come back, with their indexes.
                shard.remove_old_indexes(path)
        self.paths = paths

    def _discard(self) -> None:
        super()._discard()
        if self._files is not None:
            self._files.discard()


def _give_up(writer: Callable[[], _Writer | None]) -> None:
    left = writer()
    if left is not None:
        left._give_up()


def _packing(
    name: str, compression_type: str | None, level: int | None, member_bytes: int | None
) -> Packing:
    checked = check_compression_type(compression_type, is_written=True)
    if checked == "auto":
        checked = "GZIP" if name.endswith(".gz") else "ZLIB" if name.endswith(".zlib") else ""
    if level is not None and (isinstance(level, bool) or level not in range(-1, 10)):
        raise ValueError(f"compression_level must be None or -1 to 9, got {level!r}")
    if member_bytes is not None:
        at_least(1, "member_bytes", member_bytes)
    return Packing(checked, -1 if level is None else level, member_bytes)
