"""From the records of a stream to its samples, one by one or a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.loading.column_batch import ColumnBatch
from torch_tfrecord.loading.crop_reader import NotCroppedError, UncroppedBatch
from torch_tfrecord.loading.record_stream import RecordStream
from torch_tfrecord.loading.sample_maker import (
    RecordRows,
    SampleMaker,
    located_error,
    transform_samples,
)
from torch_tfrecord.samples import LEFT_OUT, SampleList, transform_one, without_left_out

__all__ = ["batch_of", "samples_of"]


def samples_of(maker: SampleMaker, stream: RecordStream, rows: RecordRows) -> Iterable[Any]:
    """The samples of a part of a stream; those before a bad record are yielded before its error is
    raised.
    """
    return (
        _parsed(maker, stream, rows)
        if maker.transform is None
        else _transformed(maker, stream, rows)
    )


def _parsed(maker: SampleMaker, stream: RecordStream, rows: RecordRows) -> Iterable[Any]:
    try:
        samples: Sequence[Any] = maker.batch(rows)
    except TFRecordError:
        return _parsed_by_halves(maker, stream, rows)
    if not isinstance(samples, ColumnBatch) or not samples.block.template:
        return samples
    samples.block.joined = partial(stream.sizes.learn, stream.num_taken)
    return samples.block.samples()


def _parsed_by_halves(maker: SampleMaker, stream: RecordStream, rows: RecordRows) -> Iterator[Any]:
    size = len(rows.records)
    if size == 1:
        yield from maker.each(rows)
        return
    yield from _parsed(maker, stream, rows.part(0, size // 2))
    yield from _parsed(maker, stream, rows.part(size // 2, size))


def _transformed(maker: SampleMaker, stream: RecordStream, rows: RecordRows) -> Iterator[Any]:
    """The samples, each cropped and transformed only when it is taken."""
    uncropped = _uncropped(maker, rows)
    if uncropped is None:
        places, transform = rows.places, maker.transform
        for row, sample in enumerate(_parsed(maker, stream, rows)):
            yield transform_one(transform, row, sample, places, maker.errors)  # type: ignore[arg-type]
        return
    for row in range(len(uncropped)):
        try:
            sample = uncropped.transform_row(maker.transform, row, maker.errors)
        except NotCroppedError:
            sample = maker.tried(partial(maker.parsed, *rows.row(row)))
            sample = transform_one(maker.transform, row, sample, rows.places, maker.errors)  # type: ignore[arg-type]
        yield sample


def _uncropped(maker: SampleMaker, rows: RecordRows) -> UncroppedBatch | None:
    found = maker.uncropped(rows, (0, len(rows.records)), in_turn=True)
    return None if found is None else found[0]


def batch_of(maker: SampleMaker, rows: RecordRows) -> Sequence[Any]:
    """The samples of a batch; a TFRecordError is that of its first bad record."""
    uncropped = _uncropped(maker, rows)
    if uncropped is not None:
        with suppress(NotCroppedError):
            return without_left_out(uncropped.transformed(maker.transform, maker.errors))
    try:
        samples = maker.batch(rows)
    except LimitExceededError as error:
        if maker.transform is None and all(sample is not LEFT_OUT for sample in maker.each(rows)):
            # no record is too large alone
            raise located_error(error, rows.place) from error.__cause__
        samples = maker.without_columns(rows)
    except TFRecordError:
        if not maker.errors.skips:
            return SampleList(
                (maker.sample(*rows.row(row)) for row in range(len(rows.records))), rows.places
            )
        samples = maker.one_by_one(rows)
    return without_left_out(transform_samples(maker.transform, samples, maker.errors))
