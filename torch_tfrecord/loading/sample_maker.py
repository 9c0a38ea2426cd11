"""From records to samples, for both kinds of datasets: parse, crop, transform, and name the record
in errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, partial, reduce
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.arguments import one_of
from torch_tfrecord.batch_memory import BatchBudget
from torch_tfrecord.columns import Feature, LeadingPart, RecordFeatures
from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import Access
from torch_tfrecord.loading.column_batch import (
    BatchParser,
    ChainedTransforms,
    ColumnBatch,
    ColumnTransform,
    with_label,
)
from torch_tfrecord.loading.transport import register_in_worker
from torch_tfrecord.phases import Phase, count
from torch_tfrecord.records import PackedRecords, Paths
from torch_tfrecord.samples import (
    LEFT_OUT,
    Columns,
    Places,
    RecordPlace,
    SampleList,
    Samples,
    Transform,
    Value,
    transform_each,
    transform_one,
)

__all__ = [
    "NotCroppedError",
    "RecordRows",
    "SampleMaker",
    "SampleParser",
    "UncroppedBatch",
    "helped_by",
    "is_users",
    "transform_samples",
]

_Keys: TypeAlias = "npt.NDArray[np.uint64]"


class _Survey(Protocol):
    """Some records of files; see `tables.Survey`."""

    def features(self) -> RecordFeatures:
        """The features that read all of them."""


class SampleParser(Protocol):
    """Parses the records of a dataset: `BatchParser`, or a parser of a higher layer."""

    needs_keys: bool
    max_batch_bytes: int

    @property
    def features(self) -> object:
        """The features that it reads, for `repr`."""

    def single(self, record: bytes, key: int, where: Callable[[], RecordPlace], /) -> Value:
        """One sample."""

    def batches(
        self,
        records: PackedRecords,
        keys: _Keys | None,
        borders: Sequence[int],
        place: Callable[[int], RecordPlace],
        /,
    ) -> Sequence[Samples]:
        """Several batches: all their records in a row, and the borders between batches."""


class RecordRows(NamedTuple):
    """The records of a batch: their bytes, their keys for random draws, and a function from row to
    place. Records that cannot be read together are a sequence that reads each when it is asked.
    """

    records: PackedRecords | Sequence[bytes]
    keys: _Keys | None
    place: Callable[[int], RecordPlace]

    def row(self, row: int) -> tuple[bytes, int, Callable[[], RecordPlace]]:
        """One record, as the arguments of `SampleMaker.sample`."""
        key = 0 if self.keys is None else int(self.keys[row])
        return bytes(self.records[row]), key, partial(self.place, row)

    @property
    def places(self) -> Places:
        """The records' places as text, for errors."""
        return lambda row: str(self.place(row))

    def parts(self, borders: Sequence[int]) -> list[RecordRows]:
        """The records of several batches, by the borders between them; not copied."""
        if len(borders) == 2:
            return [self]
        return [
            RecordRows(
                self.records[begin:end],
                None if self.keys is None else self.keys[begin:end],
                lambda row, begin=begin: self.place(begin + row),  # type: ignore[misc]
            )
            for begin, end in pairwise(borders)
        ]


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
        transform: Transform | None,
        errors: ErrorLog = RAISES,
    ) -> None:
        self.parser, self.transform, self.errors = parser, transform, errors
        self.crops = CropReader(parser)
        self.draws_at_random = parser is not None and parser.needs_keys
        self.has_user_transform = is_users(transform)

    @classmethod
    def of(
        cls,
        features: RecordFeatures | None,
        max_batch_bytes: int,
        transform: Transform | None = None,
        errors: ErrorLog = RAISES,
    ) -> SampleMaker:
        """Make it from the specs of features; None gives the records' bytes."""
        parser = None
        if features is not None:
            parser = BatchParser(features, max_batch_bytes=max_batch_bytes)
        return cls(parser, transform, errors)

    @classmethod
    def for_dataset(
        cls,
        paths: Paths,
        access: Access,
        features: RecordFeatures | Literal["auto"] | None,
        max_batch_bytes: int,
        transform: Transform | None,
        errors: ErrorLog,
        label_key: str | None = None,
    ) -> SampleMaker:
        """`of` for a dataset's arguments: the features may have to be inferred from its files, and a
        label split off.
        """
        if isinstance(features, str):
            one_of("features", features, "auto", None)
            survey = cast("Callable[[Paths, Access], _Survey]", attached("tables", "Survey"))
            features = survey(paths, access).features()
        names = [*features] if isinstance(features, Mapping) else None
        if label_key is not None and label_key not in (names or ()):
            raise ValueError(
                f"The `label_key` provided ({label_key}) must be one of the `features` keys: {names}"
            )
        return cls.of(features, max_batch_bytes, with_label(transform, label_key), errors)

    @property
    def features(self) -> Any:
        """The features that the parser reads; None for the records' bytes."""
        return None if self.parser is None else self.parser.features

    def sample(
        self,
        record: bytes,
        key: int,
        where: Callable[[], RecordPlace],
        errors: ErrorLog = RAISES,
    ) -> Value:
        """The sample of one record; `where` gives its place."""
        transform = self.transform
        if transform is None:
            return self.parse(record, key, where)
        if self.crops.takes(transform):
            with suppress(NotCroppedError):
                return self.crops.sample(transform, record, where, errors)
        sample = self.parse(record, key, where)
        return transform_one(transform, 0, sample, lambda _: str(where()), errors)

    def parse(self, record: bytes, key: int, where: Callable[[], RecordPlace]) -> Value:
        """`sample` without the transform."""
        if self.parser is None:
            return record
        try:
            return self.parser.single(record, key, where)
        except TFRecordError as error:
            error.locate(**where()._asdict())
            raise

    def load(self, rows: RecordRows, borders: Sequence[int]) -> list[Samples]:
        """The samples of several batches, to be transformed by `transform_samples`: decoded, except
        for an image that the transform crops first.

        Raises:
            TFRecordError: Some record fails, which it names by its row or not at all; `load_singly`
                finds out.
        """
        if self.has_user_transform:
            # Threads decode ahead what the thread that transforms would decode one by one.
            in_turn = threading.current_thread() is threading.main_thread()
            cropped = self.crops.batches(self, rows, borders, in_turn=in_turn)
            if cropped is not None:
                return cropped
        try:
            return self.parse_batches(rows, borders)
        except LimitExceededError:
            if not self.has_user_transform:
                raise
            # Columns would need memory on top of the samples.
            found: list[Samples] = []
            for part in rows.parts(borders):
                with BatchBudget(self.parser.max_batch_bytes):  # type: ignore[union-attr]
                    found.append(self.one_by_one(part))
            return found

    def parse_batches(self, rows: RecordRows, borders: Sequence[int]) -> list[Samples]:
        """The decoded samples of several batches, as columns if possible."""
        records = cast("PackedRecords", rows.records)
        found: Sequence[Samples]
        # In parts for which NumPy does not let the GIL go.
        parts = range(0, len(records), 500)
        count("bytes", sum([records.lengths[first : first + 500].sum() for first in parts]))
        with Phase("parse"):
            if self.parser is None:
                payloads = records.tolist()
                found = [payloads[begin:end] for begin, end in pairwise(borders)]
            else:
                found = self.parser.batches(records, rows.keys, borders, rows.place)
            records.read()  # where no feature has asked for their bytes
            return [*map(self._locate, found, rows.parts(borders))]

    def _locate(self, samples: Samples, rows: RecordRows) -> Samples:
        if not isinstance(samples, ColumnBatch):
            return SampleList(samples, rows.places)

        def parse_again() -> Columns:
            (batch,) = cast("list[ColumnBatch]", self.parse_batches(rows, (0, len(rows.records))))
            return batch.columns

        return samples.located(rows.places, parse_again)

    def transform_samples(self, samples: Samples) -> Samples:
        """Apply the transform to each of a batch's samples from `load`, or to their columns."""
        return transform_samples(self.transform, samples, self.errors)

    def load_batch(self, rows: RecordRows) -> Samples:
        """The samples of one batch, not transformed, each parsed alone where `load` fails."""
        try:
            return self.load(rows, (0, len(rows.records)))[0]
        except TFRecordError as error:
            return self.load_singly(rows, error)

    def load_singly(self, rows: RecordRows, error: TFRecordError) -> SampleList:
        """The samples of a batch for which `load` failed; it raises the error of the first bad
        record, or leaves the bad ones out.
        """
        is_too_large = isinstance(error, LimitExceededError)
        is_known = error.position is not None or (error.path is None and is_too_large)
        if is_known and not self.errors.takes(error):
            # The parser knows the row only.
            if error.path is None and error.position is not None:
                error.path, error.offset, error.position = rows.place(error.position)
            raise error
        found = self.one_by_one(rows)
        if is_too_large and LEFT_OUT not in found:
            raise error  # no record is too large alone
        return found

    def one_by_one(self, rows: RecordRows) -> SampleList:
        """The samples of a batch, not transformed, each parsed alone."""
        return SampleList(self.each(rows), rows.places)

    def each(self, rows: RecordRows, *, transform: bool = False) -> Iterator[Value]:
        """The samples of a batch, each made alone when it is asked for; LEFT_OUT for one that
        fails.
        """
        register_in_worker()  # for samples that are sent alone
        for row in range(len(rows.records)):
            try:
                given = rows.row(row)
                made = self.sample(*given, self.errors) if transform else self.parse(*given)
            except TFRecordError as error:
                if not self.errors.takes(error):
                    raise
                self.errors.add(type(error).__name__, str(error))
                made = LEFT_OUT
            yield made


# The transform.


def is_users(transform: Transform | None) -> bool:
    """Whether a transform is the user's, which may do anything, such as draw from the global random
    state.
    """
    return transform is not None and not isinstance(transform, ColumnTransform)


def transform_samples(
    transform: Transform | None, samples: Samples, errors: ErrorLog = RAISES
) -> Samples:
    """Apply the transform to each of a batch's samples, or to their columns."""
    if transform is None:
        return samples
    with Phase("transform"):
        # The transform may have been changed since the batch was loaded: then decode as usual.
        if isinstance(samples, UncroppedBatch):
            try:
                return samples.transform(transform, errors)
            except NotCroppedError:
                samples = samples.whole
        if (
            isinstance(transform, ColumnTransform)
            and isinstance(samples, ColumnBatch)
            and samples.is_columns
        ):
            return samples.map(transform.columns)
        return transform_each(transform, samples, errors)


# A transform that begins with a crop: the image stays encoded until the crop is drawn, and only
# what remains of it is decoded. The spec of the image knows which transforms do, and how.

_HELPERS: ContextVar[Executor | None] = ContextVar("torch_tfrecord_helpers", default=None)


@contextmanager
def helped_by(threads: Executor) -> Iterator[None]:
    """Crop this thread's batches with the given threads, inside the ``with`` block."""
    token = _HELPERS.set(threads)
    try:
        yield
    finally:
        _HELPERS.reset(token)


class NotCroppedError(Exception):
    """Something is wrong with an image or a transform: decode the image first, for the usual
    error.
    """


class CropReader:
    """Reads records for a transform that begins with a crop, if exactly one feature has pictures.

    Args:
        parser: The parser for records that are not cropped first.
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    @cached_property
    def _image(self) -> tuple[str, Feature] | None:
        """The only feature with pictures, and its name."""
        # Without draws of other features, as `_encoded` gets no keys.
        can_be_read = type(self._parser) is BatchParser and not self._parser.needs_keys
        features = self._parser.features if can_be_read else None
        if not isinstance(features, Mapping):
            return None
        found = [item for item in features.items() if item[1]._has_pictures]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _encoded(self) -> SampleMaker:
        """Reads the image's bytes instead of the image."""
        name, spec = self._image  # type: ignore[misc]
        features = {**self._parser.features, name: spec._undecoded()}
        return SampleMaker(
            BatchParser(features, max_batch_bytes=self._parser.max_batch_bytes), None
        )

    def takes(self, transform: Transform | None) -> bool:
        """Whether a transform begins with a crop of the features' image."""
        # Asked each time, since the user may change the transform.
        return (
            transform is not None
            and self._image is not None
            and self._take_apart(transform)[0] is not None
        )

    def find(self, transform: object) -> tuple[LeadingPart, Sequence[Transform]]:
        """The crop that a transform begins with, and our own transforms after the user's.

        Raises:
            NotCroppedError: The transform was changed since.
        """
        crop, others = self._take_apart(transform)
        if crop is None:
            raise NotCroppedError
        return crop, others

    def _take_apart(self, transform: Any) -> tuple[LeadingPart | None, Sequence[Transform]]:
        if isinstance(transform, ChainedTransforms):
            crop, others = self._take_apart(transform.first)
            return crop, [*others, transform.second]
        return self._image[1]._leading(transform), []  # type: ignore[index]

    def batches(
        self, maker: SampleMaker, rows: RecordRows, borders: Sequence[int], *, in_turn: bool
    ) -> list[Samples] | None:
        """Several batches whose image is still encoded.

        Args:
            maker: Makes the decoded samples where that fails.
            rows, borders: As for `SampleMaker.load`.
            in_turn: Also accept a crop that is followed by transforms that may draw at random: the
                samples are then decoded and transformed one after another by one thread.

        Returns:
            None if images must be decoded first, because of the transform or the features, or
            because something is wrong with a record.
        """
        transform = maker.transform
        if not self.takes(transform) or not (in_turn or _is_known(*self.find(transform))):
            return None
        # The encoded images are read as bytes; the crop is drawn later.
        name, _ = self._image  # type: ignore[misc]
        try:
            batches: list[Any] = self._encoded.parse_batches(rows, borders)
        except TFRecordError:
            return None
        wholes = [partial(maker.one_by_one, part) for part in rows.parts(borders)]
        return [
            UncroppedBatch(batch.map(self._open_all), name, self.find, whole)
            for batch, whole in zip(batches, wholes, strict=True)
        ]

    def sample(
        self,
        transform: Transform,
        record: bytes,
        where: Callable[[], RecordPlace],
        errors: ErrorLog,
    ) -> Value:
        """Apply a transform that `takes` accepts to the sample of a record.

        Raises:
            NotCroppedError: The image must be decoded first; nothing was drawn yet.
        """
        name, spec = self._image  # type: ignore[misc]
        try:
            sample = self._encoded.parse(record, 0, where)
            sample[name] = spec._opened(sample[name])
        except TFRecordError as error:
            raise NotCroppedError from error
        with _undo_draws():
            apply = partial(_apply, *self.find(transform), name)
            return transform_one(apply, 0, sample, lambda _: str(where()), errors)

    def _open_all(self, columns: Columns) -> Columns:
        name, spec = self._image  # type: ignore[misc]
        return {**columns, name: [*map(spec._opened, columns[name])]}


class UncroppedBatch(Sequence[Value]):
    """Samples before their transform, with an image that is still encoded. On access, the image is
    decoded.

    Args:
        batch: The columns, with opened images.
        name: Name of the image feature.
        find: See `CropReader.find`.
        read: Reads the samples with decoded images.
    """

    def __init__(
        self,
        batch: ColumnBatch,
        name: str,
        find: Callable[[object], tuple[LeadingPart, Sequence[Transform]]],
        read: Callable[[], Samples],
    ) -> None:
        self._batch, self._name, self._find, self._read = batch, name, find, read

    def __len__(self) -> int:
        return len(self._batch)

    def __getitem__(self, number: Any) -> Any:
        return self.whole[number]

    @cached_property
    def whole(self) -> Samples:
        """The samples with their images decoded."""
        return self._read()

    def transform(self, transform: Transform, errors: ErrorLog) -> Samples:
        """Apply the transform to each sample, with the same draws, values and errors as for decoded
        images.

        Raises:
            NotCroppedError: The images must be decoded first; nothing was drawn yet.
        """
        with _undo_draws():
            crop, others = self._find(transform)
            if _is_known(crop, others):
                return self._crop_at_once(crop, others)
            return transform_each(partial(_apply, crop, others, self._name), self._batch, errors)

    def _crop_at_once(self, crop: LeadingPart, others: Sequence[Any]) -> ColumnBatch:
        # Columns that are made again must be cropped by the same draws.
        state = torch.get_rng_state()

        def crop_all(columns: Columns) -> Columns:
            with Phase("decode"):
                return {**columns, self._name: crop.batch(columns[self._name], _HELPERS.get())}

        def crop_again(columns: Columns) -> Columns:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(state)
                return crop_all(columns)

        try:
            batch = self._batch.map(crop_all, crop_again)
        except Exception as error:
            raise NotCroppedError from error
        return reduce(lambda found, transform: found.map(transform.columns), others, batch)


def _apply(crop: LeadingPart, others: Sequence[Transform], name: str, sample: Value) -> Value:
    """Crop and transform one sample."""
    try:
        with Phase("decode"):  # of one picture, which takes a hundred times as long
            image = crop.one(sample[name])
    except TFRecordError as error:
        raise NotCroppedError from error
    steps: list[Transform] = [*crop.rest, *others]
    return reduce(lambda value, step: step(value), steps, {**sample, name: image})


@contextmanager
def _undo_draws() -> Iterator[None]:
    """Restore torch's random state if images must be decoded first, since the transform then draws
    again.
    """
    state = torch.get_rng_state()
    try:
        yield
    except NotCroppedError:
        torch.set_rng_state(state)
        raise


def _is_known(crop: LeadingPart, others: Sequence[object]) -> bool:
    return crop.is_all and all(isinstance(transform, ColumnTransform) for transform in others)
