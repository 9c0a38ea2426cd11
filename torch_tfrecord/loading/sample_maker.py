"""From records to samples, for both kinds of datasets: parse, crop, transform, and name the record
in errors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import torch

from torch_tfrecord.arguments import Paths, one_of
from torch_tfrecord.batch_memory import BatchBudget, Keys, check_max_batch_bytes
from torch_tfrecord.columns import (
    Feature,
    RecordFeatures,
    SequenceFeatures,
    make_parser,
    rows_of,
)
from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.extensions import attached
from torch_tfrecord.files import Access
from torch_tfrecord.loading.collating import ColumnBatch
from torch_tfrecord.phases import Phase, count
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.samples import (
    LEFT_OUT,
    Columns,
    LeadingPart,
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
    "RecordRows",
    "SampleMaker",
    "helped_by",
    "is_users",
    "transform_samples",
]


class SampleParser(Protocol):
    """Parses the records of a dataset: a parser of specs, or one of a higher layer."""

    needs_keys: bool
    max_batch_bytes: int

    @property
    def features(self) -> object:
        """The features that it reads, for `repr`."""

    def single(self, record: bytes, key: int, /) -> Value:
        """One sample."""

    def begin(self, records: PackedRecords, /) -> None:
        """Let a thread of the core begin with the records of one batch, for `batches`, where it can."""

    def batches(
        self, records: PackedRecords, keys: Keys | None, borders: Sequence[int], /
    ) -> Sequence[Columns]:
        """The columns of several batches: all their records in a row, and the borders between
        batches.
        """


class RecordRows(NamedTuple):
    """The records of a batch: their bytes, their keys for random draws, and a function from row to
    place. Records that cannot be read together are a sequence that reads each when it is asked.
    """

    records: PackedRecords | Sequence[bytes]
    keys: Keys | None
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
    """Makes samples from records. Pickles; safe from several threads.

    Args:
        features: What to read from each record, or an object that parses it, which has its own
            limit; None gives the records' bytes. A `Source` is not read, but made from the record's
            place.
        max_batch_bytes: As for `TFRecordDataset`.
        transform: Called with each sample.
        errors: What to do about a record that fails.

    Attributes:
        features: What the parser reads.
        parser: None if nothing is parsed.
        draws_at_random: Whether records need keys: a feature has a random crop.
    """

    def __init__(
        self,
        features: RecordFeatures | SampleParser | None,
        max_batch_bytes: int,
        transform: Transform | None = None,
        errors: ErrorLog = RAISES,
    ) -> None:
        self.transform, self.errors = transform, errors
        self.parser: SampleParser | None = None
        self._sources: dict[str, Callable[[list[RecordPlace]], Value]] = {}
        if hasattr(features, "single"):
            self.parser = features  # type: ignore[assignment]
        elif features is not None:
            self._sources, stored = _split_sources(features)
            # Features that are all a `Source` need no parser: no record is read.
            if stored or not self._sources:
                # `parse_example` pads a FixedLenSequenceFeature, as TensorFlow does; in a batch it
                # is jagged, like every var-length feature.
                self.parser = make_parser(stored, pads=False, max_batch_bytes=max_batch_bytes)
            check_max_batch_bytes(max_batch_bytes)
        # The user's mapping may change later.
        self.features: Any = (
            copy(features) if self._sources else getattr(self.parser, "features", None)
        )
        self._gives_bytes = self.parser is None and not self._sources
        self.draws_at_random = self.parser is not None and self.parser.needs_keys

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
        """Make it for a dataset's arguments: the features may have to be inferred from its files,
        and a label split off.
        """
        if isinstance(features, str):
            one_of("features", features, "auto", None)
            inferred: RecordFeatures = attached("tables", "Survey")(paths, access).features()
            features = inferred
        names = [*features] if isinstance(features, Mapping) else None
        if label_key is not None and label_key not in (names or ()):
            raise ValueError(
                f"The `label_key` provided ({label_key}) must be one of the `features` keys: {names}"
            )
        return cls(features, max_batch_bytes, with_label(transform, label_key), errors)

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

        def apply(transform: Transform, sample: Value) -> Value:
            return transform_one(transform, 0, sample, lambda _: str(where()), errors)

        crop = self.crop
        if crop is not None:
            with _undone():
                try:
                    sample = self._encoded.parse(record, 0, where)
                    sample = self._opened(sample, lambda spec, image: spec._opened(image))
                except TFRecordError as error:
                    raise _NotCroppedError from error
                return apply(partial(self._cropped, crop), sample)
        return apply(transform, self.parse(record, key, where))

    def parse(self, record: bytes, key: int, where: Callable[[], RecordPlace]) -> Value:
        """`sample` without the transform."""
        if self._gives_bytes:
            return record
        try:
            sample = self._no_values if self.parser is None else self.parser.single(record, key)
        except TFRecordError as error:
            error.locate(**where()._asdict())
            raise
        # The usual case: nothing asks for the record's place.
        if not self._sources:
            return sample
        place = where()
        return self._complete(
            sample, {name: rows_of(make([place]))[0] for name, make in self._sources.items()}
        )

    @property
    def _no_values(self) -> Value:
        return ({}, {}) if isinstance(self.features, SequenceFeatures) else {}

    def _complete(self, values: Value, sources: Mapping[str, object]) -> Value:
        """Values with those of each `Source`, in the order of the features."""
        if isinstance(self.features, SequenceFeatures):
            context = {**values[0], **sources}
            return {name: context[name] for name in self.features.context_features or {}}, values[1]
        values = {**values, **sources}
        return {name: values[name] for name in self.features}

    def load(self, rows: RecordRows, borders: Sequence[int]) -> list[Any]:
        """The samples of several batches, to be transformed by `transform_samples`: decoded, except
        for an image that the transform crops first.

        Raises:
            TFRecordError: Some record fails; `load_singly` finds out which.
        """
        crop = self.crop
        # Threads decode ahead what the thread that transforms would decode one by one.
        if crop is not None and (
            crop.is_all or threading.current_thread() is threading.main_thread()
        ):
            # The encoded images are read as bytes; the crop is drawn later. Else the usual way
            # finds out what is wrong with a record.
            with suppress(TFRecordError):
                batches: list[Any] = self._encoded.parse_batches(rows, borders)
                opened = partial(
                    self._opened, make=lambda spec, images: [*map(spec._opened, images)]
                )
                return [
                    _UncroppedBatch(batch.map(opened), partial(self.one_by_one, part))
                    for batch, part in zip(batches, rows.parts(borders), strict=True)
                ]
        return self.parse_batches(rows, borders)

    def begin(self, records: PackedRecords) -> None:
        """Let a thread of the core begin with the records of a batch, where it can."""
        if self.parser is not None and self.crop is None:
            with suppress(TFRecordError):  # raised in its turn
                self.parser.begin(records)

    def parse_batches(self, rows: RecordRows, borders: Sequence[int]) -> list[Samples]:
        """The decoded samples of several batches, as columns if possible."""
        records: PackedRecords = rows.records  # type: ignore[assignment]
        # In parts for which NumPy does not let the GIL go.
        firsts = range(0, len(records), 500)
        count("bytes", sum([records.lengths[first : first + 500].sum() for first in firsts]))
        with Phase("parse"):
            found: Sequence[Columns] = [self._no_values] * (len(borders) - 1)
            if self.parser is not None:
                found = self.parser.batches(records, rows.keys, borders)
            elif self._gives_bytes:
                payloads = records.tolist()
                found = [payloads[begin:end] for begin, end in pairwise(borders)]
            records.read()  # where no feature has asked for their bytes
            return [*map(self._batch, found, rows.parts(borders))]

    def _batch(self, columns: Columns, rows: RecordRows) -> Samples:
        if self._sources:
            # Once for all of them: a place is looked up in the index.
            places = [*map(rows.place, range(len(rows.records)))]
            columns = self._complete(
                columns, {name: make(places) for name, make in self._sources.items()}
            )
        if type(columns) not in (dict, tuple):
            # if samples are tensors, torch's default_collate takes only a list
            return SampleList(rows_of(columns), rows.places)

        def parse_again() -> Columns:
            (batch,) = self.parse_batches(rows, (0, len(rows.records)))
            return batch.columns  # type: ignore[attr-defined]

        return ColumnBatch(columns, len(rows.records), rows.places, parse_again)

    def transform_samples(self, samples: Any) -> Samples:
        """Apply the transform to each of a batch's samples from `load`, or to their columns."""
        if isinstance(samples, _UncroppedBatch):
            with Phase("transform"), _undone():
                return self._crop_batch(samples.batch)
            # Decoded as usual.
            samples = samples.whole()
        return transform_samples(self.transform, samples, self.errors)

    # A transform that begins with a crop, if exactly one feature has pictures: the image stays
    # encoded until the crop is drawn, and only what remains of it is decoded. The spec of the image
    # knows which transforms do, and how.

    @property
    def crop(self) -> LeadingPart | None:
        """The crop that the transform begins with."""
        # Asked each time, since the user may change the transform.
        if not is_users(self.transform) or self._image is None:
            return None
        transform: Any = self.transform
        first = transform.first if isinstance(transform, WithLabel) else transform
        return self._image[1]._leading(first)

    @cached_property
    def _image(self) -> tuple[str, Feature] | None:
        """The only feature with pictures, and its name."""
        # Without draws of other features, as `_encoded` gets no keys.
        if self.draws_at_random or not isinstance(self.features, Mapping):
            return None
        found = [item for item in self.features.items() if item[1]._has_pictures]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _encoded(self) -> SampleMaker:
        """Reads the image's bytes instead of the image."""
        features = self._opened(self.features, lambda spec, _: spec._undecoded())
        return SampleMaker(features, self.parser.max_batch_bytes)  # type: ignore[union-attr]

    def _opened(self, values: Value, make: Callable[[Feature, Value], Value]) -> Value:
        """Values by name with what is made of the image's."""
        name, spec = self._image  # type: ignore[misc]
        return {**values, name: make(spec, values[name])}

    def _split(self, values: Value) -> Value:
        """What follows the user's transform."""
        return self.transform.split(values) if isinstance(self.transform, WithLabel) else values

    def _cropped(self, crop: LeadingPart, sample: Value) -> Value:
        """Crop and transform one sample."""
        try:
            with Phase("decode"):  # one picture, which takes a hundred times as long
                value = self._opened(sample, lambda _, image: crop.one(image))
        except TFRecordError as error:
            raise _NotCroppedError from error
        for step in crop.rest:
            value = step(value)
        return self._split(value)

    def _crop_batch(self, batch: ColumnBatch) -> Samples:
        """Apply the transform to each sample, with the same draws, values and errors as for decoded
        images.

        Raises:
            _NotCroppedError: The images must be decoded first.
        """
        crop = self.crop
        if crop is None:  # it was changed since
            raise _NotCroppedError
        if not crop.is_all:
            return transform_each(partial(self._cropped, crop), batch, self.errors)
        # Columns that are made again must be cropped by the same draws.
        state = torch.get_rng_state()

        def crop_all(columns: Columns) -> Columns:
            with Phase("decode"):
                cropped = self._opened(columns, lambda _, each: crop.batch(each, _HELPERS.get()))
            return self._split(cropped)

        def crop_again(columns: Columns) -> Columns:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(state)
                return crop_all(columns)

        try:
            return batch.map(crop_all, crop_again)
        except Exception as error:
            raise _NotCroppedError from error

    def load_batch(self, rows: RecordRows) -> Any:
        """The samples of one batch, not transformed, each parsed alone where `load` fails."""
        try:
            return self.load(rows, (0, len(rows.records)))[0]
        except TFRecordError as error:
            return self.load_singly(rows, error)

    def load_singly(self, rows: RecordRows, error: TFRecordError) -> Samples:
        """The samples of a batch for which `load` failed, each parsed alone; it raises the error of
        the first bad record, or leaves the bad ones out. If none is bad, the batch is too large.
        """
        if not isinstance(error, LimitExceededError):
            return self.one_by_one(rows)
        if is_users(self.transform):  # columns would have needed memory on top of the samples
            with BatchBudget(self.parser.max_batch_bytes):  # type: ignore[union-attr]
                return self.one_by_one(rows)
        if not self.errors.skips:
            for _ in self.each(rows):  # none is kept
                pass
        elif LEFT_OUT in (found := self.one_by_one(rows)):
            return found
        if error.path is None and error.position is not None:  # a row
            error.path, error.offset, error.position = rows.place(error.position)
        raise error

    def one_by_one(self, rows: RecordRows) -> SampleList:
        """The samples of a batch, not transformed, each parsed alone."""
        return SampleList(self.each(rows), rows.places)

    def each(self, rows: RecordRows, *, transform: bool = False) -> Iterator[Value]:
        """The samples of a batch, each made alone when it is asked for; LEFT_OUT for one that
        fails.
        """
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


class WithLabel:
    """(features, label) of a sample. Without a transform before, also of the columns of a batch.

    Args:
        first: The user's transform, called with the sample before; None for none.
        label_key: The label's name.
    """

    def __init__(self, first: Transform | None, label_key: str) -> None:
        self.first, self._label_key = first, label_key

    def __call__(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Transform a sample."""
        return self.split(sample if self.first is None else self.first(sample))

    def split(self, sample: Value) -> tuple[dict[str, Value], Value]:
        """Take the label out of a sample."""
        if not isinstance(sample, Mapping) or self._label_key not in sample:
            raise ValueError(
                f"the dataset or the transform must return a mapping with the key label_key={self._label_key!r}"
            )
        rest = {key: value for key, value in sample.items() if key != self._label_key}
        return rest, sample[self._label_key]


def with_label(transform: Transform | None, label_key: str | None) -> Transform | None:
    """The transform, and then (features, label) of its sample."""
    return transform if label_key is None else WithLabel(transform, label_key)


def is_users(transform: Transform | None) -> bool:
    """Whether a transform is the user's, which may do anything, such as draw from the global random
    state.
    """
    return (transform.first if isinstance(transform, WithLabel) else transform) is not None


def transform_samples(
    transform: Transform | None, samples: Any, errors: ErrorLog = RAISES
) -> Samples:
    """Apply the transform to each of a batch's samples, or to their columns."""
    if transform is None:
        return samples
    with Phase("transform"):
        if not is_users(transform) and isinstance(samples, ColumnBatch) and samples.is_columns:
            return samples.map(transform)
        return transform_each(transform, samples, errors)


_HELPERS: ContextVar[Executor | None] = ContextVar("torch_tfrecord_helpers", default=None)


@contextmanager
def helped_by(threads: Executor) -> Iterator[None]:
    """Crop this thread's batches with the given threads, inside the ``with`` block."""
    token = _HELPERS.set(threads)
    try:
        yield
    finally:
        _HELPERS.reset(token)


class _NotCroppedError(Exception):
    """Something is wrong with an image or a transform: decode the image first, for the usual
    error.
    """


@contextmanager
def _undone() -> Iterator[None]:
    """End the ``with`` block where images must be decoded first, and restore torch's random state,
    since the transform then draws again.
    """
    state = torch.get_rng_state()
    try:
        yield
    except _NotCroppedError:
        torch.set_rng_state(state)


class _UncroppedBatch(NamedTuple):
    """Samples before their transform, with an image that is still encoded, and what reads the
    samples with decoded images.
    """

    batch: ColumnBatch
    whole: Callable[[], Samples]


def _split_sources(features: Any) -> tuple[dict[str, Any], Any]:
    """What makes each `Source`, and the features that are read from records; a false value if there are
    none.
    """
    if isinstance(features, SequenceFeatures):
        sources, context = _split_sources(features.context_features or {})
        steps = features.sequence_features
        return sources, SequenceFeatures(context, steps) if context or steps else None
    if not isinstance(features, Mapping):
        return {}, features
    each = ((name, getattr(spec, "_of_places", None)) for name, spec in features.items())
    sources = {name: make for name, make in each if make is not None}
    return sources, {name: spec for name, spec in features.items() if name not in sources}
