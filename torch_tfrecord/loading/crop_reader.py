"""Reads records so that the image stays encoded until torchvision's transform has drawn its
crop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, reduce
from typing import Any

import torch

from torch_tfrecord.columns.image import Image
from torch_tfrecord.columns.lists import FixedLenFeature
from torch_tfrecord.error_log import RAISES, ErrorLog
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.images.codec import CHANNELS, DEFAULT_MAX_PIXELS
from torch_tfrecord.images.leading_crops import LeadingCrop, find_leading_crop
from torch_tfrecord.images.regions import StoredImage
from torch_tfrecord.loading.batch_parser import BatchParser, nowhere
from torch_tfrecord.loading.column_batch import ChainedTransforms, ColumnBatch, ColumnTransform
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.samples import Places, RecordPlace, transform_each, transform_one

__all__ = ["CropReader", "NotCroppedError", "UncroppedBatch"]


class CropReader:
    """Reads records for a transform that begins with a crop, if the features have exactly one
    Image.

    Args:
        parser: The parser for records that are not cropped first.
    """

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def batches(
        self,
        transform: Any,
        records: PackedRecords,
        borders: Sequence[int],
        place: Callable[[int], RecordPlace] = nowhere,
        *,
        in_turn: bool,
    ) -> list[UncroppedBatch] | None:
        """Read several batches, given all their records in a row and the borders between batches.

        Args:
            transform: The dataset's transform.
            records: The records of all batches.
            borders, place: As for `BatchParser.batches`.
            in_turn: Also accept a crop that is followed by transforms that may draw at random: the
                samples are then decoded and transformed one after another by one thread.

        Returns:
            The batches; None if images must be decoded first, because of the transform or the
            features, or because something is wrong with a record.
        """
        if not self.takes(transform) or not (in_turn or _is_known(*_crop_of(transform))):
            return None
        name, spec = self._image  # type: ignore[misc]
        try:
            batches: list[Any] = self._encoded.batches(records, None, borders, place)
            return [
                UncroppedBatch(batch.map(self._opened), name, CHANNELS[spec.mode])
                for batch in batches
            ]
        except TFRecordError:
            return None

    def columns(
        self, records: PackedRecords, place: Callable[[int], RecordPlace]
    ) -> dict[str, Any]:
        """The columns of one batch, with StoredImages, in new memory."""
        batch: Any = self._encoded.batches(records, None, (0, len(records)), place)[0]
        return self._opened(batch.columns)

    def takes(self, transform: Any) -> bool:
        """Whether a transform begins with a crop of the features' image."""
        return (
            transform is not None
            and self._image is not None
            and _taken_apart(transform)[0] is not None
        )

    def sample(
        self, transform: Any, record: bytes, place: Callable[[int], RecordPlace], number: int
    ) -> Any:
        """Apply a transform that `takes` accepts to the sample of a record at ``place(number)``,
        which errors name.

        Raises:
            NotCroppedError: The image must be decoded first; nothing was drawn yet.
        """
        name, _ = self._image  # type: ignore[misc]
        try:
            sample = self._encoded.single(record, 0, lambda _: place(number))
            sample[name] = self._open(sample[name])
        except TFRecordError as error:
            raise NotCroppedError from error
        with _draws_undone():
            return transform_one(
                partial(_apply, *_crop_of(transform), name), 0, sample, lambda _: str(place(number))
            )

    @cached_property
    def _image(self) -> tuple[str, Image] | None:
        """The Image and its name."""
        # Without draws of other features, as `_encoded` gets no keys.
        can_be_read = type(self._parser) is BatchParser and not self._parser.needs_keys
        features = self._parser.features if can_be_read else None
        images = (
            [item for item in features.items() if isinstance(item[1], Image)]
            if isinstance(features, Mapping)
            else []
        )
        if len(images) != 1:
            return None
        spec = images[0][1]
        is_usual = (
            type(spec) is Image
            and spec.mode in CHANNELS
            and spec.crop is None
            and spec.normalize is None
        )
        is_usual = is_usual and spec.several is None
        return (
            images[0]
            if is_usual and not any(isinstance(size, str) for size in spec.shape or ())
            else None
        )

    @cached_property
    def _encoded(self) -> BatchParser:
        """Reads the image's bytes instead of the image."""
        name, spec = self._image  # type: ignore[misc]
        features = {
            **self._parser.features,
            name: FixedLenFeature((), bytes, spec.default_value, key=spec.key),
        }
        return BatchParser(features, max_batch_bytes=self._parser.max_batch_bytes)

    def _opened(self, columns: dict[str, Any]) -> dict[str, Any]:
        name, _ = self._image  # type: ignore[misc]
        return {**columns, name: [*map(self._open, columns[name])]}

    def _open(self, data: bytes) -> StoredImage:
        _, spec = self._image  # type: ignore[misc]
        return StoredImage(
            data,
            spec.mode,
            shape=spec.shape or (),
            apply_orientation=spec.apply_orientation,
            max_pixels=DEFAULT_MAX_PIXELS if spec.max_pixels is None else spec.max_pixels,
        )


class UncroppedBatch(Sequence[Any]):
    """Samples before their transform, with an image that is still encoded. On access, the image is
    decoded.

    Args:
        batch: The columns, with StoredImages.
        name: Name of the image feature.
        channels: Channels of the decoded image.
    """

    def __init__(self, batch: ColumnBatch, name: str, channels: int) -> None:
        self._batch, self._name, self._channels = batch, name, channels
        self._read: Callable[[], Sequence[Any]] = list

    def located(
        self, places: Places, again: Callable[[], Any], read: Callable[[], Sequence[Any]]
    ) -> UncroppedBatch:
        """Like `ColumnBatch.located`, with a function that reads the samples with decoded
        images.
        """
        self._batch, self._read = self._batch.located(places, again), read
        return self

    def __len__(self) -> int:
        return len(self._batch)

    def __getitem__(self, number: Any) -> Any:
        return self.whole[number]

    @cached_property
    def whole(self) -> Sequence[Any]:
        """The samples with their images decoded."""
        return self._read()

    def transformed(self, transform: Any, errors: ErrorLog = RAISES) -> Sequence[Any]:
        """Apply the transform to each sample, with the same draws, values and errors as for decoded
        images.

        Raises:
            NotCroppedError: The images must be decoded first; nothing was drawn yet.
        """
        with _draws_undone():
            crop, others = _crop_of(transform)
            if _is_known(crop, others):
                return self._at_once(crop, others)
            return transform_each(partial(_apply, crop, others, self._name), self._batch, errors)

    def transform_row(self, transform: Any, number: int, errors: ErrorLog = RAISES) -> Any:
        """Apply the transform to one sample.

        Raises:
            NotCroppedError: The image must be decoded first; nothing was drawn yet.
        """
        with _draws_undone():
            apply, places = partial(_apply, *_crop_of(transform), self._name), self._batch.places
            return transform_one(apply, number, self._batch[number], places, errors)

    def _at_once(self, crop: LeadingCrop, others: Sequence[ColumnTransform]) -> ColumnBatch:
        state = torch.get_rng_state()

        def crop_all(columns: dict[str, Any]) -> dict[str, Any]:
            return {**columns, self._name: crop.batch(columns[self._name], self._channels)}

        def crop_again(columns: dict[str, Any]) -> dict[str, Any]:
            with torch.random.fork_rng(devices=()):
                torch.set_rng_state(state)
                return crop_all(columns)

        try:
            batch = self._batch.map(crop_all, crop_again)
        except Exception as error:
            raise NotCroppedError from error
        for transform in others:
            batch = batch.map(transform.columns)
        return batch


def _apply(crop: LeadingCrop, others: Sequence[Any], name: str, sample: dict[str, Any]) -> Any:
    """Crop and transform one sample."""
    try:
        image = crop.image(sample[name])
    except TFRecordError as error:
        raise NotCroppedError from error
    steps: list[Callable[[Any], Any]] = [*crop.rest, *others]
    return reduce(lambda value, step: step(value), steps, {**sample, name: image})


class NotCroppedError(Exception):
    """Something is wrong with an image or a transform: decode the image first, for the usual
    error.
    """


@contextmanager
def _draws_undone() -> Iterator[None]:
    """Restore torch's random state if images must be decoded first, since the transform then draws
    again.
    """
    state = torch.get_rng_state()
    try:
        yield
    except NotCroppedError:
        torch.set_rng_state(state)
        raise


def _taken_apart(transform: Any) -> tuple[LeadingCrop | None, Sequence[Any]]:
    """The crop that a transform begins with, if any, and our own transforms after the user's."""
    if isinstance(transform, ChainedTransforms):
        crop, others = _taken_apart(transform.first)
        return crop, [*others, transform.second]
    return find_leading_crop(transform), []


def _crop_of(transform: Any) -> tuple[LeadingCrop, Sequence[Any]]:
    crop, others = _taken_apart(transform)
    if crop is None:  # the transform was changed since
        raise NotCroppedError
    return crop, others


def _is_known(crop: LeadingCrop, others: Sequence[Any]) -> bool:
    return crop.is_all and all(isinstance(transform, ColumnTransform) for transform in others)
