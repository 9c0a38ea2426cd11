"""A map-style dataset as a table: some of its features, its rows by the columns of the index, Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from torch_tfrecord.arguments import at_least
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.loading import (
    ArrayRecordFiles,
    BatchParser,
    NotKeptError,
    RecordFiles,
    SampleMaker,
    StagedDataset,
    usual_num_threads,
)
from torch_tfrecord.per_process import each_at_once
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.samples import LEFT_OUT, RecordPlace
from torch_tfrecord.tables.index_columns import ExampleColumns
from torch_tfrecord.tables.kept_columns import KeptColumn, Wanted, check_columns
from torch_tfrecord.tables.scan_tasks import ScanTask, columns_of, plan_tasks, selected

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from torch_tfrecord.tables.arrow import ArrowColumns

__all__ = ["TableDataset"]

_Integers: TypeAlias = "npt.NDArray[np.int64]"
_D = TypeVar("_D", bound="TableDataset")

_LENGTHS_AT_ONCE = 1 << 20  # some tens of MiB
_MOST_BYTES = (1 << 31) - 1
_BATCH_BYTES, _BATCH_ROWS = 1 << 24, 1 << 16  # of records that are read together, at most


class TableDataset(StagedDataset):
    """What `TFRecordDataset` offers beside samples; see there."""

    _maker: SampleMaker
    _record_files: RecordFiles
    _positions: range | _Integers
    _max_batch_bytes: int
    _scanned: dict[str, KeptColumn]  # by key, of these positions

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def features(self) -> Any:
        """What is read from each record: your specs, or those of the TFDS tree; None for the
        record's bytes.
        """
        return self._maker.features

    def _part(self: _D, positions: range | _Integers) -> _D:
        # A slice of a subclass is one, too; files, index and report are shared.
        part = copy(self)
        part._positions, part._scanned = positions, {}
        return part

    def select(self: _D, positions: npt.ArrayLike) -> _D:
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

    def select_columns(self: _D, names: Sequence[str]) -> _D:
        """Return a dataset that reads only these features, and parses nothing else.

        Args:
            names: Some of the features' names, in the order that the samples shall have.

        Raises:
            TypeError: `names` is a str, or the features have no names.
            ValueError: A name is not among the features.

        Example:
            >>> ds.select_columns(["label"])[0]  # doctest: +SKIP
            {'label': tensor(3)}
        """
        return self._reading(selected(self.features, names), self._transform)

    def _reading(self: _D, features: RecordFeatures | None, transform: Any) -> _D:
        """This dataset with other features and another transform."""
        other = copy(self)
        parser = None
        if features is not None:
            parser = BatchParser(features, max_batch_bytes=self._max_batch_bytes)
        other._transform = transform
        other._maker = SampleMaker(parser, transform, self._errors)
        return other

    # By the columns of the index.

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column that the index keeps (see `build_index`), without reading a record.

        Returns:
            [N]: int64, float32, or str (bytes, if one is not UTF-8); a masked array where a record
            has no value. For `balanced_weights`, and for splits that keep the shares of labels.

        Raises:
            IndexMismatchError: The index of a file does not have it.
        """
        return self._kept(name).array()

    def where(self: _D, name: str, value: Wanted) -> _D:
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

    def find(self, name: str, value: Wanted) -> _Integers:
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
            check_columns([name], [{name: column}], records)
        return column

    def _scan(self, key: str) -> KeptColumn:
        """Read a column from the records; those that are left out have no value."""
        columns, raw, rows = ExampleColumns([key]), self._reading(None, None), np.arange(len(self))
        step = self._usual_rows
        starts = range(0, len(self), step)
        for begin in ProgressBar(
            starts, f"reading {key}", unit="record", unit_scale=step, delay=1.0
        ):
            part = rows[begin : begin + step]
            records: Any = raw._load_samples(part)  # type: ignore[arg-type]
            filled = [b"" if record is LEFT_OUT else record for record in records]
            columns.add(filled, partial(self._place, part))
        self._errors.tell()
        return columns.columns()[key]

    def _place(self, rows: _Integers, row: int) -> RecordPlace:
        return self._record_files.place(int(self._positions[rows[row]]))

    def _kept(self, name: str) -> KeptColumn:
        own: Any = self._positions
        if isinstance(own, range):
            own = slice(own.start, None if own.stop < 0 else own.stop, own.step)
        return self._record_files.column(name).take(own)

    def _record_lengths(self, name: str | None) -> npt.NDArray[Any]:
        """The length of each record, in bytes or by a kept column: its integer, or its list's length."""
        if name is None:
            if isinstance(self._record_files, ArrayRecordFiles):
                raise TypeError(
                    "ArrayRecord files do not say how long their records are: give lengths=, an array"
                )
            table, own = self._record_files.table, self._positions
            found = np.empty(len(own), np.int32)
            for begin in range(0, len(own), _LENGTHS_AT_ONCE):
                part = np.asarray(own[begin : begin + _LENGTHS_AT_ONCE])
                found[begin : begin + len(part)] = np.minimum(table.find(part).lengths, _MOST_BYTES)
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
        for batch in each_at_once(load, parts, usual_num_threads(self)):
            if batch is not None:
                yield batch
        self._errors.tell()

    @property
    def _usual_rows(self) -> int:
        """Records of a batch that nobody chose the size of."""
        _, num_records, num_bytes = self._record_files.extent
        return min(max(_BATCH_BYTES * max(num_records, 1) // max(num_bytes, 1), 1), _BATCH_ROWS)

    def _absolutes(self, positions: Any) -> _Integers:
        raise NotImplementedError


def _load(dataset: Any, arrow: ArrowColumns, positions: _Integers) -> pyarrow.RecordBatch | None:
    columns, num_rows = columns_of(dataset._load_samples(positions))
    return arrow.batch(columns, num_rows) if num_rows else None
