"""Scan tasks: parts of a data set that any process can read by itself, as Arrow record batches.

A task says which bytes of which files are its records, so that a worker needs no index, and reads
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_tfrecord.arguments import at_least
from torch_tfrecord.batch_memory import Ints
from torch_tfrecord.columns import Feature, RecordFeatures, SequenceFeatures
from torch_tfrecord.compression import InflatedFiles
from torch_tfrecord.error_log import ErrorLog
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files import Access, FileSource
from torch_tfrecord.loading import (
    ColumnBatch,
    RecordFiles,
    RecordRows,
    SampleMaker,
    collate,
)
from torch_tfrecord.records import (
    OVERHEAD_BYTES,
    RecordIndex,
    RecordScanner,
    RecordTable,
    SkippedBytes,
)
from torch_tfrecord.samples import RecordPlace, Samples, Value, without_left_out

if TYPE_CHECKING:
    import pyarrow

    from torch_tfrecord.tables.arrow import ArrowColumns

__all__ = ["ScanTask", "columns_of", "plan_tasks", "selected"]


_CHUNK_BYTES = 1 << 21  # measured: forty columns of fewer rows cost more than their values
_RUNS_PER_TASK = 8  # that neighbouring records of one file are cut to, and put together again


class ScanRange(NamedTuple):
    """Neighbouring records of one file.

    Attributes:
        file: Number of the file among the task's.
        first: Number of the first record in the file.
        num_rows: Number of records.
        begin, end: Where their bytes begin and end; in the decompressed stream for compressed files,
            about where for ArrayRecord files.
    """

    file: int
    first: int
    num_rows: int
    begin: int
    end: int


class ScanOptions(NamedTuple):
    """How a task reads; as for `TFRecordDataset`."""

    features: RecordFeatures | None
    verify_crc: bool
    access: Access
    max_batch_bytes: int
    errors: ErrorLog


@dataclass(frozen=True)
class ScanTask:
    """A part of a data set that any process can read; pickles, and opens files only in `read`.

    Attributes:
        files: Paths of its files.
        ranges: Which records of them, in the order of reading.
        num_rows: Number of records.
        num_bytes: Size of these records, decompressed.
    """

    files: tuple[str, ...]
    ranges: tuple[ScanRange, ...]
    num_rows: int
    num_bytes: int
    _indexes: tuple[RecordIndex, ...] = field(repr=False, compare=False)
    _options: ScanOptions = field(repr=False, compare=False)

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Read the records, in order, some at a time: about 2 MiB of them, or one.

        Args:
            columns: Names of the features to parse; None for all.

        Yields:
            Record batches of one schema. Those before an error come before it is raised.

        Raises:
            IndexMismatchError: A file has changed since the task was made.
            TFRecordError: A record is damaged, or does not fit the features; see `TFRecordDataset`,
                whose ``on_error="skip"`` leaves it out here, too.
            OSError: A file cannot be opened.
        """
        _, _, _, max_batch_bytes, errors = self._options
        arrow = self._arrow(columns)
        maker = SampleMaker(arrow.features, max_batch_bytes, None, errors)
        for rows in self._rows():
            found, num_rows = columns_of(maker.load_batch(rows))
            if num_rows:
                yield arrow.batch(found, num_rows)
        errors.tell()

    def schema(self, columns: Sequence[str] | None = None) -> pyarrow.Schema:
        """The schema of what `read` yields."""
        return self._arrow(columns).schema

    def _arrow(self, columns: Sequence[str] | None) -> ArrowColumns:
        from torch_tfrecord.tables.arrow import ArrowColumns  # pyarrow, where it is used

        features = self._options.features
        return ArrowColumns(features if columns is None else selected(features, columns))

    def _rows(self) -> Iterator[RecordRows]:
        """The records, some at a time."""
        _, verify_crc, _, _, errors = self._options
        inflated = InflatedFiles()
        opened: tuple[int, FileSource] | None = None
        for one in self.ranges:
            index = self._indexes[one.file]
            if index._is_array_record:
                yield from self._array_rows(one, index)
                continue
            # Ranges of a file come together; one file is open at a time.
            if opened is None or opened[0] != one.file:
                opened = one.file, self._open(one.file, index, inflated)
            path, num_rows = self.files[one.file], 0
            skipped = SkippedBytes() if errors.skips else None
            for block in RecordScanner(
                _Window(opened[1], one.end),
                verify_crc=verify_crc,
                skipped=skipped,
                begin=(one.begin, one.first),
            ):
                num_rows += len(block.lengths)
                first, offsets = block.position, block.offsets
                yield RecordRows(
                    block.records,  # type: ignore[arg-type]  # they are kept
                    None,
                    lambda row, path=path, first=first, offsets=offsets: RecordPlace(  # type: ignore[misc]
                        path, int(offsets[row]), first + row
                    ),
                )
            for error in skipped.errors if skipped else ():
                errors.add(type(error).__name__, str(error))
            if not skipped and num_rows != one.num_rows:
                raise IndexMismatchError(
                    f"expected {one.num_rows} records from byte {one.begin} to {one.end}, by the index, got {num_rows}",
                    path=path,
                )

    def _array_rows(self, one: ScanRange, index: RecordIndex) -> Iterator[RecordRows]:
        path = self.files[one.file]
        index._open(path, self._options.access)  # checks that it is as it was
        files = RecordFiles.of(RecordTable([path], [RecordIndex._of_array_record(path)]))
        end = one.first + one.num_rows
        step = max(_CHUNK_BYTES * one.num_rows // max(one.end - one.begin, 1), 1)
        for first in range(one.first, end, step):
            numbers = np.arange(first, min(first + step, end))
            place = lambda row, first=first: files.place(first + row)  # noqa: E731
            yield RecordRows(files.read_batch(numbers), None, place)

    def _open(self, file: int, index: RecordIndex, inflated: InflatedFiles) -> FileSource:
        path, access = self.files[file], self._options.access
        source = index._open(path, access)
        last = max(one.end for one in self.ranges if one.file == file)
        if not index.compression_type:
            return source.ahead(last)
        points = index._seek_points(access)
        return inflated.open(source, index.compression_type, last, points, file)


def plan_tasks(
    files: RecordFiles,
    positions: range | Ints,
    target_bytes: int,
    features: RecordFeatures | None,
    max_batch_bytes: int,
    errors: ErrorLog,
) -> list[ScanTask]:
    """Tasks of about so many bytes that read these positions, in their order."""
    at_least(1, "target_bytes", target_bytes)
    if features is not None and not isinstance(features, RecordFeatures):
        raise TypeError(
            "expected features by specs, got those of a TFDS tree: read the same files by "
            "TFRecordDataset(ds.files, infer_features(ds.files))"
        )
    if not len(positions):
        return []
    runs, sizes = _runs(files, positions, max(target_bytes // _RUNS_PER_TASK, 1))
    # The task that a run's middle falls in, so that a task has some of many small runs, or a part of a large one.
    number = (np.cumsum(sizes) - sizes // 2) // target_bytes
    borders = np.flatnonzero(np.diff(number, prepend=-1, append=-1)).tolist()
    options = ScanOptions(features, files.verify_crc, files.access, max_batch_bytes, errors)
    tasks = []
    for begin, end in pairwise(borders):
        own = _joined(runs[begin:end].tolist())
        numbers = {
            file: number for number, file in enumerate(dict.fromkeys(run.file for run in own))
        }
        tasks.append(
            ScanTask(
                tuple(files.table.files[file] for file in numbers),
                tuple(run._replace(file=numbers[run.file]) for run in own),
                sum(run.num_rows for run in own),
                int(sizes[begin:end].sum()),
                tuple(map(files.table.facts, numbers)),
                options,
            )
        )
    return tasks


def _runs(files: RecordFiles, positions: range | Ints, most_bytes: int) -> tuple[Ints, Ints]:
    """Runs of neighbouring records of one file: file, first record, number, begin, end, as int64 [R,
    5]; and their bytes.
    """
    starts = files.table.block_starts(positions, most_bytes)
    if not isinstance(positions, range) or positions.step != 1:
        positions = np.asarray(positions, np.int64)
        starts = np.union1d(starts, np.flatnonzero(np.diff(positions) != 1) + 1)
    ends = np.append(starts[1:], len(positions))
    if isinstance(positions, range):
        firsts, lasts = starts + positions.start, ends - 1 + positions.start
    else:
        firsts, lasts = positions[starts], positions[ends - 1]
    of_files, begins, _ = files.table.find(firsts)
    _, offsets, lengths = files.table.find(lasts)
    stops = offsets + lengths + OVERHEAD_BYTES
    numbers = files.table.numbers(firsts, of_files)
    return np.stack([of_files, numbers, ends - starts, begins, stops], axis=1), stops - begins


def _joined(runs: Sequence[Sequence[int]]) -> list[ScanRange]:
    """The runs, with those that follow one another as one."""
    found: list[ScanRange] = []
    for run in map(ScanRange._make, runs):
        before = found[-1] if found else None
        if before is not None and (before.file, before.end) == (run.file, run.begin):
            rows = before.num_rows + run.num_rows
            found[-1] = before._replace(num_rows=rows, end=run.end)
        else:
            found.append(run)
    return found


def columns_of(samples: Samples) -> tuple[Value, int]:
    """The columns of a batch without what was left out, and how many rows they have."""
    if isinstance(samples, ColumnBatch):
        return samples.columns, len(samples)
    kept = without_left_out(samples)
    is_columns = bool(len(kept)) and isinstance(kept[0], (dict, tuple))
    return (collate(kept) if is_columns else list(kept)), len(kept)


def selected(features: RecordFeatures | None, names: Sequence[str]) -> RecordFeatures:
    """Those of some features that have these names, in the order of the names.

    Raises:
        TypeError: The features have no names.
        ValueError: There is no such name.
    """
    if isinstance(names, str):
        raise TypeError(f"expected a list of names, got the str {names!r}: write [{names!r}]")
    parts: list[Mapping[str, Feature]] = []
    if isinstance(features, SequenceFeatures):
        parts = [features.context_features or {}, features.sequence_features or {}]
    elif isinstance(features, Mapping):
        parts = [features]
    else:
        raise TypeError(f"expected features with names to select from, got {features!r}")
    there = [name for part in parts for name in part]
    for name in names:
        if name not in there:
            raise ValueError(f"expected one of the features {sorted({*there})}, got {name!r}")
    if not names:
        raise ValueError("expected the name of at least one feature")
    found = [{name: part[name] for name in names if name in part} for part in parts]
    return SequenceFeatures(*found) if len(found) > 1 else found[0]


class _Window(FileSource):
    """A file up to a byte, as if it ended there."""

    chunk_bytes = _CHUNK_BYTES

    def __init__(self, file: FileSource, end: int) -> None:
        self._file, self.size, self.path = file, end, file.path
        self.max_gap_bytes, self.max_record_bytes = file.max_gap_bytes, file.max_record_bytes

    def read(self, num_bytes: int, offset: int) -> bytes:
        """Up to `num_bytes` from `offset`; fewer only at the end."""
        return self._file.read(max(min(num_bytes, (self.size or 0) - offset), 0), offset)

    def forget(self, begin: int, end: int) -> bool:
        """See `FileSource`."""
        return self._file.forget(begin, end)
