"""The Image spec, which decodes encoded bytes to tv_tensors.Image, and its reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import DecodeOn, at_least, knows_keywords, one_of
from torch_tfrecord.batch_memory import Ints, Keys
from torch_tfrecord.columns import (
    Column,
    Feature,
    OneValueReader,
    OneValueSpec,
    rows_of,
    stack,
)
from torch_tfrecord.errors import (
    ImageDecodeError,
    LimitExceededError,
    ParseError,
    TFRecordError,
    raise_first,
)
from torch_tfrecord.media.codec import CHANNELS, DEFAULT_MAX_PIXELS, decode_image
from torch_tfrecord.media.crop_jobs import (
    Pixels,
    StoredImage,
    Table,
    batch_tensor,
    check_image_shape,
    crop_job,
    empty_batch,
    normalization,
    place_pixels,
    resizes_in_core,
    run_job,
    same_size,
    view_pixels,
)
from torch_tfrecord.media.crops import Crop, RandomResizedCrop, ResizedCenterCrop
from torch_tfrecord.media.device_crops import leave, num_left
from torch_tfrecord.media.headers import read_header
from torch_tfrecord.phases import Phase, spent
from torch_tfrecord.random_stream import to_64_bits
from torch_tfrecord.samples import Value
from torch_tfrecord.shown import dtype_name

if TYPE_CHECKING:
    from torch_tfrecord.media.leading_crops import LeadingCrop
    from torch_tfrecord.native.jobs import Job

__all__ = [
    "Image",
]

_Shape: TypeAlias = tuple[Any, ...]
_CHANNELS = {**CHANNELS, "unchanged": None}


@knows_keywords
@dataclass(frozen=True, repr=False)
class Image(OneValueSpec, Feature):
    """An encoded image (JPEG, PNG, GIF, BMP, WebP), decoded to a ``torchvision.tv_tensors.Image``.

    A sample is uint8 [C, H, W], values 0 to 255; a batch is one image tensor [B, C, H, W] if all
    sizes are equal, else a list. With ``crop``, all images have the crop's size, and a batch is
    decoded straight into its tensor, decoding only the region that the crop needs: see
    docs/images.md.

    With ``several``, the feature has any number of images, such as the masks of objects, or none if
    the record lacks it. Each gets the record's crop. A batch is a tensor if all samples have the
    same shape, else a list of samples.

    Args:
        mode: "RGB", "L" (gray), "RGBA" or "unchanged" (the stored channels).
        key: Name of the feature in the record, if it differs from the output's name.
        shape: Expected shape of the decoded image before any crop, as (height, width, channels); an
            entry is an int, None (not checked) or the key of another feature of the record that
            has one integer. A mismatch raises ParseError.
        apply_orientation: Rotate and flip the image according to its EXIF orientation; TensorFlow
            does not.
        crop: A :class:`RandomResizedCrop` or :class:`ResizedCenterCrop`; not for mode "unchanged".
        normalize: (mean, std), one number per channel, for values from 0 to 1: returns float32 like
            torchvision's ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean, std)``. Not
            for mode "unchanged".
        several: "stack" for one image tensor [N, C, H, W] in each sample: images of different sizes
            raise ParseError, and without images H and W are those of ``crop`` or ``shape``, else 0.
            "list" for a list of N images [C, H, W]. None for exactly one image.
        decode_on: Where a loader with ``device=`` has batches decoded: "cpu", "device" (baseline JPEG
            images with a crop, as far as it takes them; its pixels differ a little) or "auto" (as many
            of them there as make the training wait least). See docs/gpu.md.
        default_value: The bytes of an encoded image for records that lack the feature
            (:func:`encode_image` makes them), decoded and cropped like those of a record; ``shape``
            must not name keys, and ``several`` be None. None if such a record raises ParseError.
        max_pixels: Maximum height times width, of the stored image and of the size a crop resizes
            it to; more raises ImageDecodeError before memory is allocated. None means 178,956,970,
            or a quarter of that for whole images with ``normalize``, as a float32 takes four bytes.

    Raises:
        TypeError: An entry of ``shape``, ``crop``, ``default_value`` or ``max_pixels`` has the
            wrong type.
        ValueError: The mode, ``several`` or ``decode_on`` is unknown, the shape does not have three entries,
            ``normalize`` does not fit the mode, ``max_pixels`` is below 1 or below the crop's size,
            or ``default_value`` is no image that this spec reads.

    Example:
        >>> Image(key="image/encoded", shape=("image/height", "image/width", 3))
        Image(key='image/encoded', shape=('image/height', 'image/width', 3))
    """

    _decodes = _has_pictures = True

    mode: str = "RGB"
    _: KW_ONLY
    shape: tuple[int | str | None, ...] | None = None
    apply_orientation: bool = False
    crop: Crop | None = None
    normalize: tuple[Sequence[float], Sequence[float]] | None = None
    max_pixels: int | None = None
    several: Literal["stack", "list"] | None = None
    decode_on: DecodeOn = "cpu"
    default_value: bytes | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if not isinstance(self.mode, str) or self.mode not in _CHANNELS:
            modes = ", ".join(map(repr, _CHANNELS))
            hint = "for pictures of one size crop=RandomResizedCrop(224), or a transform"
            if isinstance(self.mode, str):
                meant = self.mode.upper()
                hint = (
                    f"did you mean {f'{meant!r}' if meant in _CHANNELS else f'key={self.mode!r}'}?"
                )
            raise ValueError(f"mode must be one of {modes}, got {self.mode!r}: {hint}")
        if self.crop is not None and not isinstance(self.crop, Crop):
            kind = f"{type(self.crop).__module__}.{type(self.crop).__qualname__}"
            raise TypeError(
                "crop must be torch_tfrecord.RandomResizedCrop(size) or torch_tfrecord.ResizedCenterCrop(size), got "
                f"{kind.removeprefix('builtins.')}; transforms of torchvision go in transform="
            )
        channels = _CHANNELS[self.mode]
        if channels is None and (self.crop is not None or self.normalize is not None):
            raise ValueError(
                "crop and normalize need one number of channels: mode must not be 'unchanged'"
            )
        # As tuples, so that the spec has a hash.
        if channels is not None and self.normalize is not None:
            object.__setattr__(self, "normalize", _mean_and_std(self.normalize, channels))
        if self.shape is not None:
            shape = self._checked_shape("an int, None or the key of a feature", unknown=None)
            if len(shape) != 3:
                raise ValueError(f"shape must be (height, width, channels), got {shape!r}")
        if self.max_pixels is not None:
            at_least(
                1 if self.crop is None else math.prod(self.crop.size), "max_pixels", self.max_pixels
            )
        one_of("several", self.several, None, "stack", "list")
        one_of("decode_on", self.decode_on, "cpu", "device", "auto")
        super().__post_init__()

    def _reader(self, name: str, *, pads: bool = False) -> ImageReader:
        """Build the reader for Examples."""
        # Takes a second: now, for all workers that are forked later, and not for a spec that reads nothing.
        import_module("torchvision")
        return ImageReader(name, self) if self.several is None else _ImagesReader(name, self)

    def _stored(self, value: object) -> object:
        """The bytes of a picture, or several, of a format that can be decoded and whole by their
        headers.
        """
        pictures = value if isinstance(value, (list, tuple)) else [value]
        for picture in pictures:
            if not isinstance(picture, bytes):
                raise TypeError(
                    f"expected an encoded picture, as from encode_image, got {type(picture).__name__}"
                )
            # The header tells a picture from other bytes, for much less than decoding it.
            read_header(picture)
        return value

    def _leading(self, transform: object) -> LeadingCrop | None:
        """The crop that a transform begins with, so that only its region is decoded."""
        is_usual = (
            type(self) is Image
            and self.mode in CHANNELS
            and self.crop is None
            and self.normalize is None
            and self.several is None
            and not any(isinstance(size, str) for size in self.shape or ())
        )
        if not is_usual:
            return None
        from torch_tfrecord.media.leading_crops import find_leading_crop

        return find_leading_crop(transform, CHANNELS[self.mode])

    def _layout(self) -> tuple[torch.dtype, tuple[None, ...]]:
        dtype = torch.uint8 if self.normalize is None else torch.float32
        return dtype, (None,) * (3 if self.several is None else 4)

    def _undecoded(self, *, is_step: bool = False, but_images: bool = False) -> Feature:
        is_kept = but_images and type(self) is Image
        return self if is_kept else super()._undecoded(is_step=is_step)

    def _opened(self, data: Any, shape: _Shape | None = None) -> StoredImage:
        return StoredImage(
            data,
            self.mode,
            shape=(self.shape or ()) if shape is None else shape,
            apply_orientation=self.apply_orientation,
            max_pixels=self._pixel_limit,
        )

    @cached_property
    def _table(self) -> Table | None:
        return None if self.normalize is None else normalization(*self.normalize)

    @property
    def _pixel_limit(self) -> int:
        if self.max_pixels is not None:
            return self.max_pixels
        is_large = self.normalize is not None and self.crop is None
        return DEFAULT_MAX_PIXELS // 4 if is_large else DEFAULT_MAX_PIXELS

    @property
    def _takes_several(self) -> bool:  # type: ignore[override]
        return self.several is not None

    @property
    def _is_drawn(self) -> bool:
        return self.crop is not None and self.crop.is_random

    def _decoded(
        self,
        values: Sequence[Value],
        shapes: Sequence[_Shape],
        keys: Sequence[int] | Keys,
        rows: Sequence[int] | None = None,
        num_rows: int | None = None,
        decode_on: str = "cpu",
    ) -> torch.Tensor | None:
        """Decode images to rows of one tensor [num_rows, C, H, W]; without a crop uint8, and None if
        their sizes differ.

        Args:
            values: Encoded images.
            shapes, keys: The expected shape and the random key of each.
            rows: The row of each image; None for as many rows as images, in order. Rows without an
                image are not initialised.
            num_rows: Number of rows.
            decode_on: See `Image`.

        Raises:
            ImageDecodeError, ParseError: For an image that cannot be decoded, or has another shape.
            LimitExceededError: See `reserve`.
        """
        crop = self.crop
        if crop is None:
            size = same_size(values, self._pixel_limit)
            if size is None:
                return None
            crop = ResizedCenterCrop(size, size)
        own = None if rows is None else np.asarray(rows, np.int64)
        crops = _Crops(
            self, crop, values, np.asarray(keys, np.uint64), None, decode_on, own, num_rows
        )
        run_job(crops.job)
        if decode_on != "cpu":
            crops.leave(lambda: values)
        return crops.finish(values, shapes)

    def _value(self, stored: memoryview, shape: _Shape, key: int) -> Value:
        """A whole image."""
        pixels = decode_image(
            stored,
            self.mode,
            apply_orientation=self.apply_orientation,
            max_pixels=self._pixel_limit,
        )
        channels, height, width = pixels.shape
        check_image_shape(shape, (height, width, channels))
        table = self._table
        if table is not None:
            rows = empty_batch(1, (height, width), channels, table)
            place_pixels(view_pixels(pixels), rows[0], table)
            pixels = batch_tensor(rows[0])
        return _as_image(pixels)

    def _check_no_draw(self, name: str) -> None:
        if self._is_drawn:
            raise ValueError(
                f"crop of {name!r}: images of a SequenceExample have no random crop (all steps would need the same "
                "one); crop them in the transform"
            )


def _mean_and_std(value: object, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Check (mean, std): one number per channel, and no std of 0."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"normalize must be (mean, std), got {value!r}")
    mean, std = (tuple(map(float, numbers)) for numbers in value)
    if len(mean) != channels or len(std) != channels:
        raise ValueError(
            f"normalize must have {channels} means and {channels} deviations, got {value!r}"
        )
    if not all(map(math.isfinite, mean + std)) or 0 in std:
        raise ValueError(
            f"normalize must have finite means and deviations other than 0, got {value!r}"
        )
    return mean, std


class _Crops:
    """The crops of a batch: most made by a job of the core, which needs no GIL, the others when it is
    finished.

    Args:
        spec: The spec.
        crop: Its crop, or one that leaves the images whole.
        images: The encoded images; or where they are in the ``buffer``, int64 [N, 2] of first byte
            and number of bytes, read when the job runs.
        keys: uint64 [N], the random key of each, which determines its crop.
        decode_on: See `Image`.
        rows: int64 [N]: the row of each; None for as many rows as images, in order.
        num_rows: Number of rows.

    Attributes:
        job: The job of the core; None if it does not have this crop.
        out: The images made so far, an `empty_batch`.
    """

    def __init__(
        self,
        spec: Image,
        crop: Crop,
        images: Any,
        keys: Keys,
        buffer: Any,
        decode_on: str,
        rows: Ints | None = None,
        num_rows: int | None = None,
    ) -> None:
        table, self._resizes = spec._table, resizes_in_core(crop.interpolation) and crop.antialias
        self._spec, self._crop, self._keys, self._table, self._rows = spec, crop, keys, table, rows
        self.out = empty_batch(num_rows or len(images), crop.size, CHANNELS[spec.mode], table)
        drawn = _drawn(crop)
        self.job = None
        if drawn is not None:
            self.job = crop_job(
                images,
                self.out,
                table,
                buffer=buffer,
                interpolation=crop.interpolation if self._resizes else None,
                max_pixels=spec._pixel_limit,
                ignores_exif=not spec.apply_orientation,
                keys=keys,
                rows=rows,
                num_left=num_left(decode_on, len(images), self.out),
                **drawn,
            )

    def finish(self, values: Sequence[Value], shapes: Sequence[_Shape]) -> torch.Tensor:
        """The images, after the job has run.

        Args:
            values: The encoded images.
            shapes: Expected (height, width, channels) of each before cropping; see
                `check_image_shape`.

        Raises:
            ImageDecodeError, ParseError: For the first image that cannot be decoded, or has another
                shape.
        """
        with Phase("decode"):
            sizes = [(0, 0)] * len(values) if self.job is None else self.job.sizes.tolist()
            for number, (height, width) in enumerate(sizes):
                if height:
                    check_image_shape(shapes[number], (height, width, CHANNELS[self._spec.mode]))
                else:
                    self._crop_one(number, values[number], shapes[number])
            return self.image()

    def image(self) -> torch.Tensor:
        """[N, C, H, W]: uint8 in [N, H, W, C] memory ("channels last"), or contiguous float32."""
        return _as_image(batch_tensor(self.out))

    def leave(self, images: Callable[[], Sequence[Any]]) -> None:
        """Leave to a device what the job has left of the images."""
        if self.job is not None:
            is_bicubic = self._crop.interpolation == "bicubic"
            leave(
                self.job,
                images,
                self.out,
                rows=self._rows,
                table=self._table,
                is_bicubic=is_bicubic,
            )

    def _crop_one(self, number: int, data: Any, shape: _Shape) -> None:
        stored = self._spec._opened(data, shape)
        plan = self._crop.plan(stored.height, stored.width, int(self._keys[number]))
        row = number if self._rows is None else self._rows[number]
        pixels = self._resized(stored.pixels(plan[:4]), plan[4:6])
        (height, width), (top, left) = self._crop.size, plan[6:8]
        window = pixels[max(top, 0) : top + height, max(left, 0) : left + width]
        if window.shape[:2] != (height, width):  # with zeros around it
            image = torch.from_numpy(pixels).permute(2, 0, 1)
            from torchvision.transforms.v2 import functional

            window = view_pixels(functional.crop_image(image, top, left, height, width))
        place_pixels(window, self.out[row], self._table, across=plan.across, down=plan.down)

    def _resized(self, pixels: Pixels, size: tuple[int, int]) -> Pixels:
        """Resize [H, W, C] as torchvision's resize does."""
        (height, width), most, crop = pixels.shape[:2], self._spec._pixel_limit, self._crop
        if size == (height, width):
            return pixels
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        if size[0] * size[1] > most:
            raise ImageDecodeError(
                f"expected at most {most} pixels after resizing, got {height} x {width} resized to "
                f"{size[0]} x {size[1]}"
            )
        if not self._resizes:
            from torchvision.transforms import InterpolationMode
            from torchvision.transforms.v2 import functional

            mode = InterpolationMode(crop.interpolation)
            return view_pixels(
                functional.resize_image(
                    image, [*size], interpolation=mode, antialias=crop.antialias
                )
            )
        # The function that torchvision's resize calls.
        resized = torch.nn.functional.interpolate(
            image[None], size=size, mode=crop.interpolation, align_corners=False, antialias=True
        )
        return view_pixels(resized[0])


def _as_image(pixels: torch.Tensor) -> torch.Tensor:
    from torchvision import tv_tensors

    # Its constructor gives Python's lock away.
    return pixels.as_subclass(tv_tensors.Image)


def _drawn(crop: Crop) -> dict[str, object] | None:
    """How the core draws a crop; None for one of the user's own."""
    if type(crop) is RandomResizedCrop:
        seed = to_64_bits(crop.seed)
        return {"drawn": (seed, crop.scale, crop.ratio, crop.horizontal_flip)}
    if type(crop) is ResizedCenterCrop:
        resize = 0 if crop.resize == "pad" else crop.resize
        return {"centred": resize if isinstance(resize, tuple) else (0, resize)}
    return None


@dataclass
class _Begun:
    """A `Work`."""

    job: Job | None
    finish: Callable[[Sequence[Column]], Value]


class ImageReader(OneValueReader):
    """Reads an Image. With a random crop, it takes the records' random keys: see `Reader`."""

    _spec: Image

    def begin(self, column: Column, keys: Keys) -> _Begun | None:
        """Crop in the same call that reads the records, where the core has the crop."""
        if self._several or self._spec.crop is None:
            return None
        crops = self._labelled(
            _Crops,
            self._spec,
            self._spec.crop,
            column.values,
            keys,
            column.buffer,
            self._spec.decode_on,
        )
        return _Begun(crops.job, partial(self._finish, crops))

    def _finish(self, crops: _Crops, columns: Sequence[Column]) -> Value:
        job = crops.job
        if job is not None:
            spent("decode", job.seconds)
        if self._spec.decode_on != "cpu":
            crops.leave(columns[0].views)
        if job is not None and job.done == len(crops.out) and not self.shape:
            return crops.image()
        values = self._completed(columns[0].views(), columns[0])
        return self._labelled(crops.finish, values, self._shapes(columns))

    def from_values(
        self, values: Sequence[Value], shapes: Sequence[_Shape], keys: Sequence[int] | None = None
    ) -> Value:
        """The column of several encoded images; arguments as in `OneValueReader`, and the records'
        keys.
        """
        with Phase("decode"):
            spec, keys = self._spec, [0] * len(values) if keys is None else keys
            if spec.crop is not None:
                return spec._decoded(values, shapes, keys)
            # Those of one size together, as they are stored.
            if len(values) > 1 and spec.mode in CHANNELS and not spec.apply_orientation:
                # The loop below words the errors of those that cannot be decoded.
                with suppress(ImageDecodeError, LimitExceededError):
                    found = spec._decoded(values, shapes, keys, decode_on=spec.decode_on)
                    if found is not None:
                        return found
            return super().from_values(values, shapes)


class _ImagesReader(ImageReader):
    """Reads an Image with ``several``: the images of all records as one batch, then divided among
    the records.
    """

    def __init__(self, name: str, spec: Image) -> None:
        super().__init__(name, spec)
        if spec.default_value is not None:
            raise ValueError(
                "default_value needs several=None: a record without the feature has no images"
            )
        self._want.is_required = False  # as with a VarLenFeature
        self._stacks = spec.several == "stack"
        height, width, channels = (
            size if isinstance(size, int) else 0 for size in spec.shape or (0, 0, 0)
        )
        size = (height, width) if spec.crop is None else spec.crop.size
        dtype = torch.uint8 if spec.normalize is None else torch.float32
        # The value of a record without images, so that a batch of such records stacks, too.
        self._none = torch.empty(
            0, _CHANNELS[spec.mode] or channels, *size, dtype=dtype, device="cpu"
        )

    def read(self, columns: Sequence[Column], keys: Sequence[int] | None = None) -> Value:
        """The batch's column: one tensor [B, N, C, H, W], or a list of samples."""
        bounds, shapes = columns[0].bounds(), self._shapes(columns)
        # Each image has the shape, and the random key, of its record.
        record = [number for number, (begin, end) in enumerate(bounds) for _ in range(begin, end)]
        keys = [0] * len(bounds) if keys is None else keys
        each = (
            columns[0].views(),
            [shapes[number] for number in record],
            [keys[number] for number in record],
        )
        images = self._labelled(self._images, *each, record)
        return self._labelled(self._divided, images, bounds)

    def _images(
        self,
        views: Sequence[Value],
        shapes: Sequence[_Shape],
        keys: Sequence[int],
        record: Sequence[int],
    ) -> Value:
        """All images: a tensor, or a list; errors name the record, or for a single record the
        image.
        """
        try:
            return self.from_values(views, shapes, keys) if views else []
        except LimitExceededError as error:
            if error.position is not None:
                error.position = record[error.position]
            raise
        except TFRecordError:
            raise_first(
                "image",
                len(views),
                lambda at: self.from_values([views[at]], [shapes[at]], [keys[at]]),
            )
            raise

    def _divided(self, images: Any, bounds: Sequence[tuple[int, int]]) -> Value:
        """The images of each record."""
        if not self._stacks:
            images = rows_of(images)
            return [[*images[begin:end]] for begin, end in bounds]
        counts = {end - begin for begin, end in bounds}
        if isinstance(images, torch.Tensor) and len(counts) == 1 and 0 not in counts:
            return _as_image(images.unflatten(0, (len(bounds), -1)))
        return stack([self._stacked(images[begin:end]) for begin, end in bounds])

    def _stacked(self, images: Any) -> torch.Tensor:
        if not len(images):
            # A copy, as the sample is the user's to change.
            return _as_image(self._none.clone())
        found = images if isinstance(images, torch.Tensor) else stack(images)
        if isinstance(found, torch.Tensor):
            return _as_image(found)
        kinds = [f"{[*image.shape]} of {dtype_name(image.dtype)}" for image in images]
        other = next(number for number, kind in enumerate(kinds) if kind != kinds[0])
        text = f"expected images of one size, got {kinds[0]} in image 0, {kinds[other]} in image {other}"
        raise ParseError(f"{text}: several='list' reads them")
