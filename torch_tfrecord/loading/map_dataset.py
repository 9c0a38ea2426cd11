"""Map-style datasets: random access by position, in two stages of which threads may do the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, chain
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

import numpy as np
from torch.utils.data import Dataset

from torch_tfrecord.arguments import (
    HintsOfDataset,
    IndexPolicy,
    OnError,
    PathLike,
    Paths,
    StorageOptions,
    at_least,
    check_callable,
    check_compression_type,
)
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, Array, Ints, check_max_batch_bytes
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.error_log import RAISES, ErrorLog, ErrorReport, warn_of_no_records
from torch_tfrecord.errors import RemoteError, TFRecordError
from torch_tfrecord.files import Access
from torch_tfrecord.loading.collating import collate, transform_batch
from torch_tfrecord.loading.record_files import RecordFiles, SingleRecords
from torch_tfrecord.loading.sample import to_html
from torch_tfrecord.loading.sample_maker import (
    RecordRows,
    SampleMaker,
    is_users,
    transform_samples,
)
from torch_tfrecord.native import has_native, native_module
from torch_tfrecord.order import DrawEpoch, Leaves, Rank
from torch_tfrecord.per_process import num_processors
from torch_tfrecord.records import IndexKeeper, PackedRecords, RecordTable
from torch_tfrecord.samples import Samples, Transform, Value, without_left_out
from torch_tfrecord.shown import shown_features, shown_files, shown_transform, shown_value

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "DatasetOptions",
    "MapDataset",
    "StagedDataset",
    "check_left",
    "sample_bytes",
    "usual_num_threads",
]

# Several batches are loaded together if their records have no more.
_MOST_BYTES = 64 << 20

_D = TypeVar("_D", bound="StagedDataset")


class StagedDataset(HintsOfDataset, Dataset[Value]):
    """A map-style dataset of ours: threads may load its samples, but may not run its transform.

    Attributes:
        _transform: Called with each sample; None for no transform.
        _batch_transform: Called with the columns of a batch before that; None for no transform.
        _errors: What to do about a record that fails.
        _epoch: The epoch that was chosen for random draws; None if nothing is drawn.
        _positions: From the dataset's positions to those of its records.
    """

    _transform: Transform | None = None
    _batch_transform: Transform | None = None
    _errors: ErrorLog = RAISES
    _epoch: DrawEpoch | None = None
    _positions: Any
    _unit = "records"  # what positions count
    _is_remote = False  # some of its files
    _hint = ""  # where a position is asked for that is no integer

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self: _D, position: slice) -> _D: ...

    @overload
    def __getitem__(self, position: Any) -> Any: ...

    def __getitem__(self, position: Any) -> Any:
        """Return the sample at a position (negative ones count from the end), or for a slice a
        dataset of that part.

        For a list, 1-D array or tensor of positions, return the batch that `collate` makes of their
        samples: a DataLoader with ``batch_size=None`` and a batch sampler asks for these.
        """
        if type(position) is int:
            return self._sample(position)
        if isinstance(position, slice):
            return self._part(self._positions[position])
        if isinstance(position, list) or getattr(position, "ndim", 0) == 1:
            return collate(self.__getitems__(list_of_positions(position)))
        return self._sample(position)

    def __getitems__(self, positions: Sequence[int]) -> Samples:
        """Return the samples at several positions, in that order; DataLoader calls this to make a
        batch.

        The records are read in few calls and parsed together into columns, which `collate` passes
        on. To everything else the result is a sequence of samples, each equal to `ds[position]`. If
        a record is damaged or does not fit the features, you get the error of the first such
        position.
        """
        # a subclass overrides __getitem__, which must win
        if not Leaves.defines_last(type(self), "__getitems__"):
            return [self[position] for position in positions]
        return check_left(self._transform_samples(self._load_samples(positions)), self)

    def _sample(self, position: Any) -> Value:
        """The sample at a position."""
        raise NotImplementedError

    def _part(self: _D, positions: Any) -> _D:
        """The dataset of some positions; all else is shared."""
        part = copy(self)
        part._positions = positions
        return part

    def _absolute(self, position: Any) -> int:
        """A position of this dataset as one of its records."""
        try:
            return int(self._positions[as_integer(position)])
        except IndexError:
            raise IndexError(
                f"position {position} is out of range for {len(self)} {self._unit}"
            ) from None
        except TypeError:
            raise TypeError(
                f"a position must be an integer, got {shown_value(position)}: ds[0] is a sample{self._hint}"
            ) from None

    def _load_samples(self, positions: Sequence[int]) -> Samples:
        """The samples at several positions, without the transform: reads, verifies, parses and
        decodes. Safe from several threads.
        """
        raise NotImplementedError

    def _load_batches(self, batches: Sequence[Sequence[int]]) -> list[Any]:
        """`_load_samples` of several batches, or of the first of them, at least one; where it
        raises, they are loaded one by one.
        """
        return [self._load_samples(positions) for positions in batches]

    def _transform_samples(self, samples: Samples) -> Samples:
        """Apply the transforms to the samples from `_load_samples`."""
        if self._batch_transform is not None:
            samples = transform_batch(self._batch_transform, samples)
        return transform_samples(self._transform, samples, self._errors)

    @property
    def _has_user_transform(self) -> bool:
        """Whether there is a user's transform, which must run in the thread that iterates."""
        return self._batch_transform is not None or is_users(self._transform)

    @property
    def _error_logs(self) -> list[ErrorLog]:
        """The logs of records that are left out, if any are."""
        return [self._errors] if self._errors.skips else []

    @property
    def _num_threads(self) -> int:
        """How many threads read ahead by default: see `usual_num_threads`."""
        return usual_num_threads(self)

    def _salted(self, positions: Sequence[int]) -> Sequence[int]:
        """The positions of a batch with what decides its random draws."""
        return Leaves(self).salted(positions) if self._needs_salt else positions

    @property
    def _draws_at_random(self) -> bool:
        """Whether samples depend on the epoch."""
        return self._epoch is not None

    @property
    def _needs_salt(self) -> bool:
        """Whether random draws need a salt, since no epoch was chosen."""
        return self._epoch is not None and not self._epoch.is_known


def list_of_positions(positions: Any) -> list[int]:
    """A batch of positions as a list; TypeError for booleans (a mask).

    Example:
        >>> import numpy as np
        >>> list_of_positions(np.array([3, 1]))
        [3, 1]
    """
    found: list[int] = positions if isinstance(positions, list) else positions.tolist()
    if any(isinstance(position, bool) for position in found):
        raise TypeError(
            "positions must be integers, got booleans: mask.nonzero() gives the positions of a mask"
        )
    return found


def check_left(samples: Samples, dataset: StagedDataset) -> Samples:
    """A dataset's batch without the samples that were left out.

    Raises:
        TFRecordError: None is left, and the loader cannot pass over an empty batch.
    """
    logs = dataset._error_logs
    if not logs:
        return samples
    # A loader of ours attends the log: it passes over an empty batch and warns at the end.
    kept = without_left_out(samples)
    if len(kept) < len(samples) and not all(errors.is_attended for errors in logs):
        for errors in logs:
            errors.tell(once=True)
        if not len(kept):
            raise TFRecordError(
                f"all {len(samples)} records of a batch were left out, and a DataLoader has no empty batch: expected "
                "make_dataloader, which passes over it, a larger batch, or a TFRecordIterableDataset"
            )
    return kept


class DatasetOptions(TypedDict, total=False):
    """Keywords of `TFRecordDataset` that `make_dataloader` passes on."""

    compression_type: str | None
    verify_crc: bool
    index: IndexPolicy
    index_dir: PathLike | None
    max_batch_bytes: int
    storage_options: StorageOptions
    cache_dir: PathLike | None
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
    _hint = ", ds.select_columns([name]) a dataset of one feature"
    _maker: SampleMaker
    _record_files: RecordFiles
    _paths: Paths | None = None  # as given
    _index_dir: PathLike | None = None
    # Called with the first records that could be parsed.
    _check_keys: Callable[[Any, Sequence[str], Access], None] | None = None

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
        index_dir: PathLike | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: StorageOptions = None,
        cache_dir: PathLike | None = None,
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
        keeper = IndexKeeper(
            index,
            index_dir=index_dir,
            # A damaged payload is found when it is read.
            verify_crc=verify_crc and not errors.skips,
            compression_type=compression,
            access=access,
            note=errors.add if errors.skips else None,
        )
        table = RecordTable.open(paths, keeper)
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
        positions: Sequence[int] | Ints | None,
        maker: SampleMaker,
        max_batch_bytes: int,
    ) -> None:
        self._maker, self._max_batch_bytes = maker, max_batch_bytes
        self._errors, self._transform = maker.errors, maker.transform
        self._record_files, self._is_remote = source, source.is_remote
        self._positions: Any = range(len(source.table)) if positions is None else positions
        self._epoch = DrawEpoch() if self._maker.draws_at_random else None

    @property
    def files(self) -> list[str]:
        """The files, sorted."""
        return self._record_files.table.files

    @property
    def features(self) -> Any:
        """The features read from each record: your specs, or those of the TFDS tree; None for the
        record's bytes.
        """
        return self._maker.features

    def _sample(self, position: Any) -> Any:
        absolute, key, files = self._absolute(position), 0, self._record_files
        if self._epoch is not None:
            key = int(self._epoch.keys(self._salted([position]), np.array([absolute]))[0])
        return self._maker.sample(files.read(absolute), key, partial(files.place, absolute))

    @property
    def report(self) -> ErrorReport:
        """The records left out so far with ``on_error="skip"``, by all threads and workers of this
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
        except RemoteError:  # no record's: to ask for one after another would fail for each
            raise
        except TFRecordError as error:
            # If one cannot be read, an earlier one may not fit the features.
            absolutes = self._absolutes(positions)
            records = SingleRecords(self._record_files, absolutes)
            return self._maker.load_singly(self._rows(records, [positions], absolutes), error)

    def _transform_samples(self, samples: Samples) -> Samples:
        return self._maker.transform_samples(samples)

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
        check, self._check_keys = self._check_keys, None
        if check is not None:
            check(rows.records, self.files, self._record_files.access)
        return found

    def _rows(
        self,
        records: PackedRecords | SingleRecords,
        batches: Sequence[Sequence[int]],
        absolute: Ints,
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

    def _block_starts(self, block_bytes: int) -> Ints:
        """Return the first position of each block of neighbouring records, which `shuffle="blocks"`
        shuffles.

        A block is the records of one file that begin within the same `block_bytes` bytes of it.

        Returns:
            int64 [number of blocks], ascending, the first one 0; empty for an empty dataset.
        """
        return self._record_files.table.block_starts(self._positions, block_bytes)

    # Questions that orders ask.

    def _record_places(self, positions: Sequence[int]) -> tuple[Ints, Ints]:
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

    def _absolutes(self, positions: Sequence[int] | Array) -> Ints:
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

    def _choose(self, numbers: Ints) -> Ints:
        """The absolute positions of this dataset's positions, which must be from 0 to below its
        length.
        """
        if isinstance(self._positions, np.ndarray):
            return self._positions[numbers]
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


# Threads that read ahead.

# At least: they wait for answers.
_REMOTE_THREADS = 8
# Samples of more bytes than this are worth a second thread even if they are Python objects.
_SMALL_SAMPLE = 1 << 12


def usual_num_threads(dataset: object) -> int:
    """The default number of threads that read ahead: one per processor that this process may use,
    divided by the training processes that share them (`Rank.num_on_host`).

    Batches of numbers and of images are made without the GIL, so that threads share the work. It is
    at most two where samples are small and mostly Python objects (bytes, str): one makes them while
    the other reads and parses, and more would only take turns, as any would without the compiled
    core. For remote files it is at least 8: the threads mostly wait.
    """
    share = max(num_processors() // Rank.num_on_host(), 1)
    if not has_native():  # the fallbacks keep the GIL
        return 1
    if any(getattr(leaf, "_is_remote", False) for leaf in Leaves(dataset)):
        return max(share, _REMOTE_THREADS)
    if all(map(_holds_lock, Leaves(dataset))):
        return min(share, 2)
    return share


def _holds_lock(leaf: Any) -> bool:
    """Whether samples are small, and most of their values Python objects."""
    features = getattr(leaf, "features", None)
    if not 0 < sample_bytes(leaf) <= _SMALL_SAMPLE:
        return False
    specs = list(features.values()) if isinstance(features, Mapping) else [features]
    objects = [spec for spec in specs if getattr(spec, "_makes_objects", spec is None)]
    return 2 * len(objects) > len(specs)


def sample_bytes(dataset: object) -> float:
    """About how many bytes of the files a sample has; 0 if that is unknown."""
    found = [(leaf, store) for leaf in Leaves(dataset) for store in Leaves(leaf).stores]
    num_samples = sum(max(len(leaf), store.extent[1]) for leaf, store in found)
    return sum(store.extent[2] for _, store in found) / max(num_samples, 1)
