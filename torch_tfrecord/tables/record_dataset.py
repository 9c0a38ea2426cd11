"""The map-style dataset that is a table, too: some of its features, its rows by the columns of the
index, Arrow.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least, knows_keywords
from torch_tfrecord.batch_memory import Array, Ints
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.errors import IndexMismatchError, TFRecordError
from torch_tfrecord.loading import (
    MapDataset,
    RecordFiles,
    SampleMaker,
)
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.samples import LEFT_OUT, RecordPlace
from torch_tfrecord.tables.index_columns import ExampleColumns
from torch_tfrecord.tables.inference import KeyCheck
from torch_tfrecord.tables.kept_columns import KeptColumn, Wanted
from torch_tfrecord.tables.scan_tasks import ScanTask, columns_of, plan_tasks, selected

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from typing_extensions import Self

    from torch_tfrecord.tables.arrow import ArrowColumns

__all__ = ["TFRecordDataset"]


_LENGTHS_AT_ONCE = 1 << 20  # some tens of MiB
_MOST_BYTES = (1 << 31) - 1
_BATCH_BYTES, _BATCH_ROWS = 1 << 24, 1 << 16  # records that are read together, at most


@knows_keywords
class TFRecordDataset(MapDataset):
    """Map-style dataset over TFRecord or ArrayRecord files: random access by `ds[i]`, with `len(ds)`
    and slices.

    Works with DataLoader, Subset and random_split. Positions count the records of all files, in the
    order of `files`. A file's index is used if there is a fresh one, else it is built by reading
    the file once. Reading checks every checksum. The dataset pickles without open files; you can
    use it after fork and spawn, and from threads.

    Args:
        paths: A path, a glob, ``name@N``, a directory, a manifest, or a list of these; see
            `find_files`. Local paths or URLs: ``s3://bucket/train-*``, ``https://host/train@64``.
            If you name a manifest, or one is beside the files (see `build_manifest`), the dataset
            opens from it alone and reads from it only what it needs, so that it takes little
            memory, however many records there are.
        features: What to read from each record, by name; None gives the record's bytes; "auto" is
            what `infer_features` proposes, the same for the same files: `features` and the `repr`
            show it. `SequenceFeatures` reads SequenceExamples, as `(context, sequences)`,
            `ListFeatures` lists of Examples; the spec of one bytes value alone (`Image()`,
            `Proto(...)`, `Json()`, ...) reads the record as that value. For random draws (a fused
            crop) see `set_epoch`.
        label_key: Name of the label feature: samples are then (features, label), and the features
            lack the label.
        transform: Called with each sample, a dict that still has the label.
        compression_type: "auto" (detected for each file), None or "" (none), "GZIP", "ZLIB",
            "SNAPPY". A record is decompressed from the last seek point of the index before it, about
            1 MiB; each process keeps up to 256 MiB of decompressed data. Read larger files in
            order, or with `make_dataloader`, whose shuffle decompresses nearly everything once.
        verify_crc: Check the payloads' checksums; headers are always checked.
        index: "auto" (use a fresh index, else build and keep one), "require" (never build),
            "memory" (build, keep nothing).
        index_dir: Folder to keep indexes in, instead of beside the data.
        max_batch_bytes: Limit on the bytes that the values of a batch, or of a sample read alone,
            may need, since a few bytes in a record may stand for gigabytes. Beyond it you get
            LimitExceededError before anything is allocated.
        storage_options: Keys, tokens and addresses for remote paths, named as in fsspec, pandas and
            datasets: ``{"key": ..., "secret": ...}``, ``{"anon": True}``, ``{"endpoint_url":
            ...}``; None takes them from the environment. They appear in no `repr`, error or index.
        cache_dir: Folder on a local disk that caches data of remote files, so that all workers and
            ranks of the host fetch it once; None for no cache. Local files are read directly.
        cache_bytes: Limit on the size of that folder; None for the limit it was created with, or,
            for a new one, a tenth of the disk's free space. Without `cache_dir`, a folder in the
            user's cache is used.
        on_error: "raise", or "skip" to leave a record out of its batch if its bytes, features,
            picture or transform fail (a TFRecordError, or a transform that returns None): see
            `report`. Alone, `ds[i]` always raises, and so does opening a file whose record headers
            are damaged.
        max_errors: With "skip", the most records to leave out; one more raises TFRecordError. None
            for no limit.

    Attributes:
        files: The files, sorted.

    Raises:
        FileNotFoundError: Nothing matches, or a shard is missing; the message names it.
        IndexMismatchError: `index="require"` and a file has no fresh index.
        TFRecordError: A file that must be indexed is damaged.
        ValueError: `label_key` is not one of the features, or an argument is out of range.

    Example:
        >>> ds = TFRecordDataset("train-*", {"label": FixedLenFeature((), torch.int64)})  # doctest: +SKIP
        >>> ds[0]  # doctest: +SKIP
        {'label': tensor(3)}
        >>> loader = DataLoader(ds, batch_size=64, shuffle=True, num_workers=4, collate_fn=collate)  # doctest: +SKIP
    """

    _shown_name = "TFRecordDataset"
    _kept_columns: dict[str, KeptColumn]  # by name, of all positions
    _scanned: dict[str, KeptColumn]  # by key, of these positions

    def _set_up(self, *args: Any) -> None:
        super()._set_up(*args)
        self._kept_columns, self._scanned = {}, {}
        self._check_keys = KeyCheck(self._maker.parser)

    def _part(self, positions: range | Ints) -> Self:
        part = super()._part(positions)
        part._scanned = {}
        return part

    def __getstate__(self) -> dict[str, object]:
        # perhaps large, and workers do not need them
        return {**super().__getstate__(), "_kept_columns": {}, "_scanned": {}}

    def select(self, positions: npt.ArrayLike) -> Self:
        """Return a dataset of the records at some positions, in their order; reads nothing.

        Args:
            positions: Integers from -len(ds) to len(ds) - 1: a list, range, array or tensor, in any
                order, also several times.

        Raises:
            IndexError: A position is out of range.
            TypeError: A position is no integer; for names there is `select_columns`.

        Example:
            >>> ds.select([5, 3])[1]  # doctest: +SKIP
        """
        return self._part(self._absolutes(np.atleast_1d(positions)))

    def select_columns(self, names: Sequence[str]) -> Self:
        """Return a dataset that reads only these features, and parses nothing else.

        Args:
            names: Some of the features' names, in the order that you want in the samples.

        Raises:
            TypeError: `names` is a str, or the features have no names.
            ValueError: A name is not among the features.

        Example:
            >>> ds.select_columns(["label"])[0]  # doctest: +SKIP
            {'label': tensor(3)}
        """
        return self._reading(selected(self.features, names), self._transform)

    def _reading(self, features: RecordFeatures | None, transform: Any) -> Self:
        """This dataset with other features and another transform."""
        other = copy(self)
        other._transform = transform
        other._maker = SampleMaker(features, self._max_batch_bytes, transform, self._errors)
        other._check_keys = KeyCheck(other._maker.parser)
        return other

    # By the columns of the index.

    def column(self, name: str) -> Array:
        """Return a column that the index keeps (see `build_index`), without reading a record.

        Returns:
            [N]: int64, float32, or str (bytes, if one is not UTF-8); a masked array where a record
            has no value. For `balanced_weights`, and for splits that keep the shares of labels.

        Raises:
            IndexMismatchError: The index of a file does not have it.
        """
        return self._kept(name).array()

    def where(self, name: str, value: Wanted) -> Self:
        """Return a dataset of the records that have a value of a feature, in their order.

        Reads no record if the index keeps the column (see `build_index`); else it reads this
        dataset's records once, with a progress bar, and remembers the column.

        Args:
            name: A key of the records or a name in `features`, with at most one value a record; or
                ``len(key)``, for the number of values.
            value: A number or string; a list, array, tensor or range of them; or a function that
                takes the column (see `column`) and returns a bool for each record. Numbers are
                compared as the column stores them: 0.1 as the nearest float32. What it cannot store
                (0.5 among integers), NaN, and what is missing equal nothing.

        Raises:
            IndexMismatchError: The indexes of the files keep columns of several kinds.
            ParseError: A record that is read does not fit the column.
            TypeError: Strings are asked for in a column of numbers, or numbers in one of strings.
            ValueError: No record has the feature.

        Example:
            >>> ds.where("label", 3), ds.where("len(tokens)", lambda n: n < 512)  # doctest: +SKIP
        """
        found, own = self.find(name, value), self._positions
        return self._part(found * own.step + own.start if isinstance(own, range) else own[found])

    def find(self, name: str, value: Wanted) -> Ints:
        """Return the positions of the records that `where` selects: int64, ascending."""
        return np.flatnonzero(self._searched(name).matches(value, name))

    def _searched(self, name: str) -> KeptColumn:
        """The column that is kept, or else read."""
        features = self.features if isinstance(self.features, Mapping) else {}
        key: str = features[name]._key_of(name) if name in features else name
        try:
            column = self._kept(key)
        except NotKeptError:
            if key not in self._scanned:
                self._scanned[key] = self._scan(key)
            column = self._scanned[key]
        if name not in features and len(self) == self._record_files.extent[1]:
            records = map(self._record_files.read, self._positions)
            ExampleColumns([name]).check([{name: column}], records)
        return column

    def _scan(self, key: str) -> KeptColumn:
        """Read a column from the records; those that are left out have no value."""
        columns, raw, step = ExampleColumns([key]), self._reading(None, None), self._usual_rows
        parts = [np.arange(at, min(at + step, len(self))) for at in range(0, len(self), step)]

        def load(part: Any) -> Any:
            with suppress(TFRecordError):  # some record fails: the way below finds out which
                records = self._record_files.read_batch(self._absolutes(part))
                records.read()
                return records
            return [b"" if record is LEFT_OUT else record for record in raw._load_samples(part)]

        loaded = zip(parts, each_at_once(load, parts, self._num_threads), strict=True)
        for part, records in ProgressBar(
            loaded, f"reading {key}", len(parts), unit="record", unit_scale=step, delay=1.0
        ):
            columns.add(records, partial(self._place, part))
        self._errors.tell()
        return columns.columns()[key]

    def _place(self, rows: Ints, row: int) -> RecordPlace:
        return self._record_files.place(int(self._positions[rows[row]]))

    def _kept(self, name: str) -> KeptColumn:
        own: Any = self._positions
        if isinstance(own, range):
            own = slice(own.start, None if own.stop < 0 else own.stop, own.step)
        if name not in self._kept_columns:
            self._kept_columns[name] = _kept_column(self._record_files, name)
        return self._kept_columns[name].take(own)

    def _record_lengths(self, name: str | None) -> Array:
        """The length of each record, in bytes or by a kept column: its integer, or its list's length."""
        if name is None:
            if self._record_files.are_array_records:
                raise TypeError(
                    "ArrayRecord files do not say how long their records are: give lengths=, an array"
                )
            table, own = self._record_files.table, self._positions
            found = np.empty(len(own), np.int32)
            for begin in range(0, len(own), _LENGTHS_AT_ONCE):
                part = np.asarray(own[begin : begin + _LENGTHS_AT_ONCE])
                found[begin : begin + len(part)] = np.minimum(table.find(part)[2], _MOST_BYTES)
            return found
        with suppress(IndexMismatchError):
            return self.column(name)
        return self.column(f"len({name})")

    # As Arrow.

    def scan_tasks(self, target_bytes: int = 128 << 20) -> list[ScanTask]:
        """Cut the dataset into tasks that any process can read by itself, in the order of the
        records.

        A large file gives many tasks, many small files one. A task has no open files, and needs no
        index where it is read. The transform is not applied.

        Args:
            target_bytes: About how many bytes of records a task has.

        Raises:
            TypeError: The features are a TFDS tree.

        Example:
            >>> for task in ds.scan_tasks():  # doctest: +SKIP
            ...     for batch in task.read(["label"]):
            ...         print(task.files, batch.num_rows)
        """
        features = self._maker.features
        limit = self._max_batch_bytes
        return plan_tasks(
            self._record_files, self._positions, target_bytes, features, limit, self._errors
        )

    def iter_arrow(
        self, batch_size: int | None = None, *, decode_images: bool = False
    ) -> Iterator[pyarrow.RecordBatch]:
        """Read the dataset as Arrow record batches, in order: a column for each feature.

        Threads read ahead. The transform is not applied. docs/dataframes.md has the table of types:
        what a record lacks is null, pictures and other encoded values stay encoded.

        Args:
            batch_size: Rows of a batch; the last may have fewer, and others if records are left out.
                None for about 16 MiB of records, at most 65,536 rows.
            decode_images: Pictures as nested lists of pixels, [C, H, W].

        Raises:
            ImportError: pyarrow is missing: install the extra ``arrow``.
            TFRecordError: As for samples.
            TypeError: A feature has no Arrow type.
            ValueError: A column of a batch has more than 2 GiB.
        """
        arrow = self._arrow(decode_images)
        return self._batches(arrow, batch_size)

    def to_arrow(
        self, positions: Sequence[int] | None = None, *, decode_images: bool = False
    ) -> pyarrow.Table:
        """Return the dataset, or the records at some positions, as a `pyarrow.Table`.

        Args:
            positions: From 0 to len(ds) - 1, in any order; None for all.
            decode_images: See `iter_arrow`, also for what is raised.

        Example:
            >>> ds.to_arrow(range(1000)).column("label")  # doctest: +SKIP
        """
        arrow = self._arrow(decode_images)
        import pyarrow

        part = self if positions is None else self.select(positions)
        return pyarrow.Table.from_batches(part._batches(arrow, None), arrow.schema)

    def to_pandas(
        self, positions: Sequence[int] | None = None, *, decode_images: bool = False
    ) -> pandas.DataFrame:
        """Return `to_arrow` as a pandas DataFrame."""
        return self.to_arrow(positions, decode_images=decode_images).to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give DuckDB, polars, pandas, pyarrow and others the record batches of `iter_arrow`."""
        arrow = self._arrow(decode_images=False)
        import pyarrow

        reader = pyarrow.RecordBatchReader.from_batches(arrow.schema, self._batches(arrow, None))
        return reader.__arrow_c_stream__(requested_schema)

    def _arrow(self, decode_images: bool) -> ArrowColumns:
        from torch_tfrecord.tables.arrow import ArrowColumns  # pyarrow, where it is used

        return ArrowColumns(self.features, decode_images=decode_images)

    def _batches(
        self, arrow: ArrowColumns, batch_size: int | None
    ) -> Iterator[pyarrow.RecordBatch]:
        batch_size = (
            self._usual_rows if batch_size is None else at_least(1, "batch_size", batch_size)
        )
        reader = self._reading(arrow.features, None)
        starts = range(0, len(self), batch_size)
        parts = (np.arange(start, min(start + batch_size, len(self))) for start in starts)
        load = partial(_load, reader, arrow)
        for batch in each_at_once(load, parts, self._num_threads):
            if batch is not None:
                yield batch
        self._errors.tell()

    @property
    def _usual_rows(self) -> int:
        """Records of a batch that nobody chose the size of."""
        _, num_records, num_bytes = self._record_files.extent
        return min(max(_BATCH_BYTES * max(num_records, 1) // max(num_bytes, 1), 1), _BATCH_ROWS)


class NotKeptError(IndexMismatchError):
    """The index of a file does not keep a column."""


def _kept_column(files: RecordFiles, name: str) -> KeptColumn:
    """A column that the indexes of all files keep.

    Raises:
        NotKeptError: The index of a file has none of this name.
        IndexMismatchError: It has one of another kind than the others, or it is damaged.
    """
    if files.are_array_records:
        raise NotKeptError(
            f"expected a TFRecord file, whose index can keep the column {name!r}, got an ArrayRecord file: read the "
            "feature itself, such as by `ds.to_arrow()`",
            path=files.table.files[0],
        )
    parts = []
    for file in range(files.extent[0]):
        kept = files.table.facts(file)._kept_index(files.access)._kept
        if name not in kept:
            raise NotKeptError(
                f"expected an index with the column {name!r}, got one with {sorted(kept) or 'none'}: build it "
                f"with `tfrecord index --columns {shlex.quote(name)} PATHS`, or "
                f"build_index(paths, columns=[{name!r}]) (with the dataset's index_dir, if it has one), and "
                "open the dataset again",
                path=files.table.files[file],
            )
        parts.append(cast("KeptColumn", kept[name]))
    try:
        return KeptColumn.join(parts)
    except ValueError as error:
        raise IndexMismatchError(f"column {name!r}: expected {error}") from None


def _load(dataset: Any, arrow: ArrowColumns, positions: Ints) -> pyarrow.RecordBatch | None:
    columns, num_rows = columns_of(dataset._load_samples(positions))
    return arrow.batch(columns, num_rows) if num_rows else None
