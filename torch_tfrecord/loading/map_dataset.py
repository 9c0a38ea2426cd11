"""The map-style dataset: random access by position."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, chain
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import (
    IndexPolicy,
    OnError,
    Paths,
    at_least,
    check_callable,
    check_compression_type,
)
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, check_max_batch_bytes
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.error_log import ErrorLog, ErrorReport, warn_of_no_records
from torch_tfrecord.errors import RemoteError, TFRecordError
from torch_tfrecord.files import Access
from torch_tfrecord.loading.nested_dataset import StagedDataset
from torch_tfrecord.loading.record_files import (
    RecordFiles,
    SingleRecords,
)
from torch_tfrecord.loading.sample import to_html
from torch_tfrecord.loading.sample_maker import RecordRows, SampleMaker
from torch_tfrecord.native import native_module
from torch_tfrecord.order import DrawEpoch
from torch_tfrecord.records import PackedRecords, RecordTable
from torch_tfrecord.samples import Samples, Transform
from torch_tfrecord.shown import shown_features, shown_files, shown_transform, shown_value

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DatasetOptions", "MapDataset"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
# Several batches are loaded together if their records have no more.
_MOST_BYTES = 64 << 20


class DatasetOptions(TypedDict, total=False):
    """Keywords of `TFRecordDataset` that `make_dataloader` passes on."""

    compression_type: str | None
    verify_crc: bool
    index: IndexPolicy
    index_dir: str | os.PathLike[str] | None
    max_batch_bytes: int
    storage_options: Mapping[str, Any] | None
    cache_dir: str | os.PathLike[str] | None
    cache_bytes: int | None
    on_error: OnError
    max_errors: int | None


class MapDataset(StagedDataset):
    """A dataset of files by position, and what every such dataset can do: samples, batches, slices,
    draws by epoch, threads that load ahead. `TFRecordDataset` is this and a table; its arguments
    are explained there.

    Attributes:
        files: The files, sorted.
    """

    _shown_name = "MapDataset"
    _maker: SampleMaker
    _record_files: RecordFiles
    _paths: Paths | None = None  # as given
    _index_dir: str | os.PathLike[str] | None = None

    def __init__(
        self,
        paths: Paths,
        features: RecordFeatures | Literal["auto"] | None = None,
        *,
        label_key: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        compression_type: str | None = "auto",
        verify_crc: bool = True,
        index: IndexPolicy = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        errors = ErrorLog(on_error, max_errors)
        check_callable("transform", transform)
        compression = check_compression_type(compression_type)
        check_max_batch_bytes(max_batch_bytes)
        access = Access(storage_options, cache_dir, cache_bytes)
        maker = SampleMaker.for_dataset(
            paths, access, features, max_batch_bytes, transform, errors, label_key
        )
        table = RecordTable.open(
            paths,
            index,
            index_dir=index_dir,
            # A damaged payload is found when it is read.
            verify_crc=verify_crc and not errors.skips,
            compression_type=compression,
            access=access,
            note=errors.add if errors.skips else None,
        )
        errors.tell()
        if not len(table):
            warn_of_no_records(table.files)
        good = np.delete(np.arange(len(table)), table.damaged) if table.damaged else None
        # Where all files are local, no cache is made.
        source = RecordFiles.of(table, verify_crc, access.for_files(table.files))
        self._set_up(source, good, maker, max_batch_bytes)
        self._paths, self._index_dir = paths, index_dir

    @classmethod
    def _from_source(
        cls,
        source: RecordFiles,
        features: Any = None,
        *,
        positions: Sequence[int] | None = None,
        transform: Transform | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> Self:
        """Make a dataset of files in a given order, for layers above that know the files, such as
        `tfds`.

        Args:
            source: Reads the records of the files, in the order of their table, which may be any.
            features: As for the class; or an object that parses records, with `single`, `batches`
                and `max_batch_bytes`.
            positions: The records to include, counted over all files: a range or an int64 array;
                None for all.
            transform: Called with each sample.
            max_batch_bytes: As for the class; ignored if `features` is an object that parses, which
                has its own.
        """
        dataset = cls.__new__(cls)
        maker = SampleMaker(features, max_batch_bytes, transform)
        dataset._set_up(source, positions, maker, max_batch_bytes)
        return dataset

    def _set_up(
        self,
        source: RecordFiles,
        positions: Sequence[int] | npt.NDArray[np.int64] | None,
        maker: SampleMaker,
        max_batch_bytes: int,
    ) -> None:
        self._maker, self._max_batch_bytes = maker, max_batch_bytes
        self._errors, self._transform = maker.errors, maker.transform
        self._record_files = source
        self._positions: Any = range(len(source.table)) if positions is None else positions
        self._epoch = DrawEpoch() if self._maker.draws_at_random else None

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def files(self) -> list[str]:
        """The files, sorted."""
        return self._record_files.table.files

    @property
    def features(self) -> Any:
        """What is read from each record: your specs, or those of the TFDS tree; None for the
        record's bytes.
        """
        return self._maker.features

    def _part(self, positions: range | _Integers) -> Self:
        # A slice of a subclass is one, too; files, index and report are shared.
        part = copy(self)
        part._positions = positions
        return part

    def _sample(self, position: Any) -> Any:
        absolute, key, files = self._absolute(position), 0, self._record_files
        if self._epoch is not None:
            key = int(self._epoch.keys(self._salted([position]), np.array([absolute]))[0])
        return self._maker.sample(files.read(absolute), key, partial(files.place, absolute))

    @property
    def report(self) -> ErrorReport:
        """What was left out so far with ``on_error="skip"``, by all threads and workers of this
        host, each record once.

        A slice, a `Subset` and the dataset that it is of share one report.
        """
        return self._errors.report()

    def _load_samples(self, positions: Sequence[int]) -> Samples:
        """`__getitems__` without the transform.

        An image that the transform crops first is decoded by `_transform_samples`.
        """
        if not len(positions):
            return []
        positions = self._salted(positions)
        try:
            return self._load_batches([positions])[0]
        except RemoteError:  # of no record: to ask for one after another would fail for each
            raise
        except TFRecordError as error:
            # If one cannot be read, an earlier one may not fit the features.
            absolutes = self._absolutes(positions)
            records = SingleRecords(self._record_files, absolutes)
            return self._maker.load_singly(self._rows(records, [positions], absolutes), error)

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Samples]:
        """`_load_samples` of several batches, whose records are read and parsed together; of the
        first of them only where all have more bytes than is usual.

        Raises:
            TFRecordError: Some record fails; `_load_samples` of each batch finds out which.
        """
        # Not joined as arrays: NumPy would let the GIL go.
        several = len(batches) > 1
        absolute = self._absolutes([*chain.from_iterable(batches)] if several else batches[0])
        records = self._record_files.read_batch(absolute)
        # Memory that is not written to yet.
        if several and len(records.memory) > _MOST_BYTES:
            return self._load_batches(batches[: len(batches) // 2])
        rows = self._rows(records, batches, absolute)
        found = self._maker.load(rows, [0, *accumulate(map(len, batches))])
        self._note_parsed(rows.records)
        return found

    def _note_parsed(self, records: Sequence[bytes] | PackedRecords) -> None:
        """Called with the records of each batch that could be parsed, for layers above."""

    def _rows(
        self,
        records: PackedRecords | SingleRecords,
        batches: Sequence[Sequence[int]],
        absolute: _Integers,
    ) -> RecordRows:
        """The records of several batches with their keys and places."""
        keys = None
        if self._epoch is not None:
            # A batch has its own epoch or salt, so each gets its keys by itself.
            parts = np.split(absolute, [*accumulate(map(len, batches))][:-1])
            salts = map(self._salted, batches)
            keys = np.concatenate([*map(self._epoch.keys, salts, parts)])
        return RecordRows(records, keys, lambda row: self._record_files.place(int(absolute[row])))

    def raw(self, position: int) -> bytes:
        """Return the payload of the record at a position as bytes, unparsed."""
        return self._record_files.read(self._absolute(position))

    def locate(self, position: int) -> tuple[str, int]:
        """Return the file of a position and its record's byte offset, in the decompressed stream
        for compressed files.

        For an ArrayRecord file, return the record's number in place of the offset.

        Example:
            >>> ds.locate(0)  # doctest: +SKIP
            ('train-00000-of-00004.tfrecord', 0)
        """
        place = self._record_files.place(self._absolute(position))
        return place.path, place.position if place.offset is None else place.offset

    def _block_starts(self, block_bytes: int) -> npt.NDArray[np.int64]:
        """Return the first position of each block of neighbouring records, which `shuffle="blocks"`
        shuffles.

        A block is the records of one file that begin within the same `block_bytes` bytes of it.

        Returns:
            int64 [number of blocks], ascending, the first one 0; empty for an empty dataset.
        """
        return self._record_files.table.block_starts(self._positions, block_bytes)

    # What orders ask for.

    def _record_places(self, positions: Sequence[int]) -> tuple[_Integers, _Integers]:
        """The file's number, and the offset in the file, of the records at several positions."""
        files, offsets, _ = self._record_files.table.find(self._absolutes(positions))
        return files, offsets

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, for random draws of features (a fused crop); applies to running
        workers, too.

        Positions from `make_dataloader` and `RecordSampler` carry their own
        epoch, which takes precedence. Until you choose an epoch, all others get new draws each
        time, seeded by torch's default generator.
        """
        at_least(0, "epoch", epoch)
        if self._epoch is not None:
            self._epoch.choose(epoch)

    # From this dataset's positions to those over all files, called "absolute" here.

    def _absolute(self, position: int) -> int:
        try:
            return int(self._positions[as_integer(position)])
        except IndexError:
            raise IndexError(
                f"position {position} is out of range for {len(self)} records"
            ) from None
        except TypeError:
            raise TypeError(
                f"a position must be an integer, got {shown_value(position)}: ds[0] is a sample, "
                "ds.select_columns([name]) a dataset of one feature"
            ) from None

    def _absolutes(self, positions: Sequence[int] | npt.NDArray[Any]) -> _Integers:
        native = native_module("frames")
        if native is not None and isinstance(positions, list):
            numbers = np.empty(len(positions), np.int64)
            # False if one is no plain integer or is out of range: the way below says which.
            if native.integers(positions, len(self), numbers):
                return self._choose(numbers)
        numbers = np.asarray(positions)
        if (
            numbers.dtype != np.int64
            or numbers.ndim != 1
            or not len(numbers)
            or numbers.min() < 0
            or numbers.max() >= len(self)
        ):
            # Not plain integers, or none, or negative, or out of range.
            return np.array([self._absolute(position) for position in positions], dtype=np.int64)
        return self._choose(numbers)

    def _choose(self, numbers: _Integers) -> _Integers:
        """The absolute positions of this dataset's positions, which must be from 0 to below its
        length.
        """
        if isinstance(self._positions, np.ndarray):
            chosen: _Integers = self._positions[numbers]
            return chosen
        # The positions of a whole dataset are their own absolute ones: no copy.
        start, step = self._positions.start, self._positions.step
        return numbers if (start, step) == (0, 1) else numbers * step + start

    def __getstate__(self) -> dict[str, object]:
        # perhaps large, and workers do not need them
        return {**self.__dict__, "_paths": None}

    _repr_html_ = to_html

    def __repr__(self) -> str:
        features = shown_features(self.features)
        transform = shown_transform("transform", self._transform)
        return f"{self._shown_name}({len(self)} records in {shown_files(self.files)}{features}{transform})"
