"""From records to samples, for both kinds of datasets: parse, crop, transform, and name the record
in errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_tfrecord.batch_memory import BatchBudget
from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.loading.column_batch import ColumnBatch, ColumnTransform
from torch_tfrecord.loading.crop_reader import CropReader, NotCroppedError, UncroppedBatch
from torch_tfrecord.loading.transport import register_in_worker
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.samples import (
    LEFT_OUT,
    Places,
    RecordPlace,
    SampleList,
    transform_each,
    transform_one,
    without_left_out,
)

__all__ = [
    "RecordRows",
    "SampleMaker",
    "SampleParser",
    "check_left",
    "located_error",
    "transform_samples",
]

_Keys: TypeAlias = "npt.NDArray[np.uint64]"


class SampleParser(Protocol):
    """What a dataset parses its records with: `BatchParser`, or a parser of a higher layer.

    One with ``needs_places = True`` also takes the function from a row to its place, as its last
    argument.
    """

    needs_keys: bool
    max_batch_bytes: int

    @property
    def features(self) -> Any:
        """What it reads, for `repr`."""

    def single(self, record: bytes, key: int = 0, /) -> Any:
        """One sample."""

    def batches(
        self, records: PackedRecords, keys: _Keys | None, borders: Sequence[int]
    ) -> Sequence[Sequence[Any]]:
        """Several batches: all their records in a row, and the borders between batches."""


class RecordRows(NamedTuple):
    """The records of a batch: their bytes, their keys for random draws, and a function from row to
    place.
    """

    records: PackedRecords
    keys: _Keys | None
    place: Callable[[int], RecordPlace]

    def row(self, row: int) -> tuple[bytes, int, Callable[[int], RecordPlace], int]:
        """One record, as the arguments of `SampleMaker.sample`."""
        return (
            bytes(self.records[row]),
            0 if self.keys is None else int(self.keys[row]),
            self.place,
            row,
        )

    @property
    def places(self) -> Places:
        """The records' places as text, for errors."""
        return lambda row: str(self.place(row))

    def part(self, begin: int, end: int) -> RecordRows:
        """Some of them, not copied."""
        if end - begin == len(self.records):
            return self
        keys = None if self.keys is None else self.keys[begin:end]
        return RecordRows(self.records[begin:end], keys, lambda row: self.place(begin + row))

    def parts(self, borders: Sequence[int]) -> list[RecordRows]:
        """The records of several batches, by the borders between them."""
        return [self.part(begin, end) for begin, end in pairwise(borders)]


class SampleMaker:
    """Makes samples from records.

    Args:
        parser: None gives the records' bytes.
        transform: Called with each sample.
        errors: What to do about a record that fails.

    Attributes:
        draws_at_random: Whether records need keys: a feature has a random crop.
        has_user_transform: Whether there is a user's transform, which may do anything, such as draw
            from the global random state.
    """

    def __init__(
        self,
        parser: SampleParser | None,
        transform: Callable[[Any], Any] | None,
        errors: ErrorLog = RAISES,
    ) -> None:
        self.parser, self.errors = parser, errors
        self.transform = transform
        self.crops = CropReader(parser)
        self._needs_places = getattr(parser, "needs_places", False)
        self.draws_at_random = parser is not None and parser.needs_keys
        self.has_user_transform = transform is not None and not isinstance(
            transform, ColumnTransform
        )

    @property
    def features(self) -> Any:
        """What the parser reads; None for the records' bytes."""
        return None if self.parser is None else self.parser.features

    def sample(
        self, record: bytes, key: int, place: Callable[[int], RecordPlace], number: int
    ) -> Any:
        """The sample of one record, which is at ``place(number)``."""
        register_in_worker()
        transform = self.transform
        if self.crops.takes(transform):
            with suppress(NotCroppedError):
                return self.crops.sample(transform, record, place, number)
        sample = self.parsed(record, key, place, number)
        if transform is None:
            return sample
        return transform_one(transform, number, sample, lambda number: str(place(number)))

    def parsed(
        self, record: bytes, key: int, place: Callable[[int], RecordPlace], number: int
    ) -> Any:
        """`sample` without the transform."""
        if self.parser is None:
            return record
        try:
            places: Any = (lambda _: place(number),) if self._needs_places else ()
            return self.parser.single(record, key, *places)
        except TFRecordError as error:
            error.locate(**place(number)._asdict())
            raise

    def batches(self, rows: RecordRows, borders: Sequence[int]) -> Sequence[Sequence[Any]]:
        """The samples of several batches, not transformed; an error carries the number of its
        record.
        """
        if self.parser is None:
            payloads = rows.records.tolist()
            found: Sequence[Any] = [payloads[begin:end] for begin, end in pairwise(borders)]
        else:
            places: Any = (rows.place,) if self._needs_places else ()
            found = self.parser.batches(rows.records, rows.keys, borders, *places)
        return [*map(self._located, found, rows.parts(borders))]

    def _located(self, samples: Sequence[Any], rows: RecordRows) -> Sequence[Any]:
        if not isinstance(samples, ColumnBatch):
            return SampleList(samples, rows.places)
        return samples.located(rows.places, lambda: self.batch(rows).columns)

    def batch(self, rows: RecordRows) -> Any:
        """The samples of a batch, not transformed; an error carries the number of its record."""
        return self.batches(rows, (0, len(rows.records)))[0]

    def uncropped(
        self, rows: RecordRows, borders: Sequence[int], *, in_turn: bool
    ) -> list[UncroppedBatch] | None:
        """The batches with the image still encoded; None if it is not cropped first: see
        `CropReader.batches`.
        """
        batches = self.crops.batches(
            self.transform, rows.records, borders, rows.place, in_turn=in_turn
        )
        if batches is None:
            return None
        pairs = zip(batches, rows.parts(borders), strict=True)
        again = self.crops.columns
        return [
            batch.located(
                part.places,
                partial(again, part.records, part.place),
                partial(self.one_by_one, part),
            )
            for batch, part in pairs
        ]

    def each(self, rows: RecordRows) -> Iterator[Any]:
        """The samples of a batch, not transformed, each parsed alone; LEFT_OUT for one that
        fails.
        """
        return (
            self.tried(partial(self.parsed, *rows.row(row))) for row in range(len(rows.records))
        )

    def tried(self, make: Callable[[], Any]) -> Any:
        """What a function returns; LEFT_OUT if it fails, and records that fail are left out."""
        try:
            return make()
        except TFRecordError as error:
            if not self.errors.takes(error):
                raise
            self.errors.add(type(error).__name__, str(error))
            return LEFT_OUT

    def one_by_one(self, rows: RecordRows) -> SampleList:
        """`each`, as a batch."""
        return SampleList(self.each(rows), rows.places)

    def without_columns(self, rows: RecordRows) -> SampleList:
        """`one_by_one`, for a batch whose columns would need too much memory on top of the
        samples.
        """
        with BatchBudget(self.parser.max_batch_bytes):  # type: ignore[union-attr]
            return self.one_by_one(rows)


def transform_samples(
    transform: Callable[[Any], Any] | None, samples: Sequence[Any], errors: ErrorLog = RAISES
) -> Sequence[Any]:
    """Apply the transform to each of a batch's samples, or to their columns."""
    if transform is None:
        return samples
    if isinstance(samples, UncroppedBatch):
        try:
            return samples.transformed(transform, errors)
        except NotCroppedError:
            samples = samples.whole
    if (
        isinstance(transform, ColumnTransform)
        and isinstance(samples, ColumnBatch)
        and samples.is_columns
    ):
        return samples.map(transform.columns)
    return transform_each(transform, samples, errors)


def check_left(samples: Sequence[Any], dataset: object) -> Sequence[Any]:
    """A dataset's batch without the samples that were left out.

    Raises:
        TFRecordError: None is left, and the loader cannot pass over an empty batch.
    """
    logs: Sequence[ErrorLog] = getattr(dataset, "_error_logs", ())
    if not any(errors.skips for errors in logs):
        return samples
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


def located_error(error: TFRecordError, place: Callable[[int], RecordPlace]) -> TFRecordError:
    """A batch's error with the file and place of the record that it names by number."""
    if error.path is None and error.position is not None:
        error.path, error.offset, error.position = place(error.position)
    return error
