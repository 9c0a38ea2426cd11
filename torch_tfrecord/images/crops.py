"""Crops that are drawn before an image is decoded: the specs, the plan of each for one image, and the
batches that they make, resized, optionally flipped and normalised.

::

    Crop                    the base: size, interpolation, antialias
    ├── RandomResizedCrop   for training: a random region, resized, optionally flipped
    └── ResizedCenterCrop   for evaluation: the whole image resized, then center-cropped

A plan is a pure function of the image size and a key, which is unique per sample and epoch:
integers in, integers out. It is drawn from the size in the header; only its region is decoded if
possible, resized once in uint8, and written straight to its row of the batch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from torch_tfrecord.arguments import knows_keywords, true_or_false
from torch_tfrecord.batch_memory import empty_bytes, reserve
from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.images.codec import CHANNELS, EncodedImage
from torch_tfrecord.images.regions import (
    Pixels,
    Region,
    StoredImage,
    check_image_shape,
    view_pixels,
)
from torch_tfrecord.native import native_module, optional_module
from torch_tfrecord.order.random_stream import RandomStream, to_64_bits
from torch_tfrecord.shown import show_code

__all__ = [
    "Crop",
    "CropPlan",
    "CropWork",
    "Normalization",
    "RandomResizedCrop",
    "ResizedCenterCrop",
    "ValueTable",
    "batch_tensor",
    "crop_job",
    "empty_batch",
    "interpolation_name",
    "is_cores",
    "place_pixels",
    "resizes_in_core",
    "run_job",
]

_Rows: TypeAlias = "npt.NDArray[np.generic]"

_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")
_PILLOW_NUMBERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
_ATTEMPTS = 10  # torchvision's


class CropPlan(NamedTuple):
    """What to do with one image: cut out a region, resize it, cut a window from that, optionally
    flip it.
    """

    top: int
    left: int
    height: int
    width: int
    resized: tuple[int, int]
    window_top: int = 0
    window_left: int = 0
    flip: bool = False


class Crop:
    """The base class of all crops; the arguments are those of torchvision, with the same meaning.

    Args:
        size: Height and width of the result; an int means a square.
        interpolation: "bilinear", "bicubic", "nearest" or "nearest-exact"; you can also pass an
            ``InterpolationMode`` or Pillow's constant.
        antialias: Smooth when downscaling (bilinear and bicubic).
    """

    size: tuple[int, int]
    interpolation: str
    antialias: bool
    is_random = False

    def __post_init__(self) -> None:
        """Check the common fields."""
        self._set(
            size=_sides("size", self.size),
            interpolation=_interpolation(self.interpolation),
            antialias=self.antialias is not None and true_or_false("antialias", self.antialias),
        )

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def plan(self, height: int, width: int, key: int) -> CropPlan:
        """The plan for an image of this size; ``key`` is the sample's random key, 0 to 2^64 - 1."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Show the Python code that builds this crop."""
        return show_code(self)


@knows_keywords
@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Crop):
    """A random region of the image, resized: torchvision's ``v2.RandomResizedCrop``, drawn before
    decoding.

    The draw is a pure function of (seed, key), where the loader gives each sample in each epoch a
    different key; no random state is read. The distribution is that of torchvision: an area,
    uniform in ``scale``, and an aspect ratio, log-uniform in ``ratio``, are drawn up to 10 times
    until the region fits, at a uniform position; else the central region nearest in ratio is used.
    (Draws have 53 random bits here, 24 in torchvision.) The flip is drawn after the region, so that
    regions are the same with and without it.

    Args:
        size, interpolation, antialias: See :class:`Crop`.
        scale: (min, max) area, as a fraction of the image's.
        ratio: (min, max) of width / height.
        horizontal_flip: Probability of mirroring the result, 0 to 1: ``v2.RandomHorizontalFlip`` at
            no cost.
        seed: Determines the draws, together with the key of each sample.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    Example:
        >>> RandomResizedCrop(224, horizontal_flip=0.5)
        RandomResizedCrop((224, 224), horizontal_flip=0.5)
        >>> RandomResizedCrop(224).plan(375, 500, key=7)[:4]
        (59, 19, 315, 254)
    """

    size: Any
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool = True
    horizontal_flip: float = field(default=0.0, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    is_random = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        self._set(
            scale=_limits("scale", self.scale),
            ratio=_limits("ratio", self.ratio),
            horizontal_flip=_number("horizontal_flip", self.horizontal_flip),
            seed=operator.index(self.seed),
        )
        if not 0 <= self.horizontal_flip <= 1:
            raise ValueError(f"horizontal_flip must be from 0 to 1, got {self.horizontal_flip}")

    def plan(self, height: int, width: int, key: int) -> CropPlan:
        """The plan for an image of this size; see :class:`Crop`."""
        random = RandomStream(self.seed, key)
        region = self._draw_region(random, height, width) or self._central_region(height, width)
        flip = self.horizontal_flip > 0 and _uniform(random) < self.horizontal_flip
        return CropPlan(*region, resized=self.size, flip=flip)

    # These two follow torchvision's RandomResizedCrop.make_params line by line.

    def _draw_region(
        self, random: RandomStream, height: int, width: int
    ) -> tuple[int, int, int, int] | None:
        area = height * width
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_ATTEMPTS):
            target_area = area * (
                self.scale[0] + _uniform(random) * (self.scale[1] - self.scale[0])
            )
            aspect_ratio = math.exp(low + _uniform(random) * (high - low))
            w = round(math.sqrt(target_area * aspect_ratio))
            h = round(math.sqrt(target_area / aspect_ratio))
            if 0 < w <= width and 0 < h <= height:
                return random.below(height - h + 1), random.below(width - w + 1), h, w
        return None

    def _central_region(self, height: int, width: int) -> tuple[int, int, int, int]:
        w, h = width, height
        if width / height < self.ratio[0]:
            h = round(width / self.ratio[0])
        elif width / height > self.ratio[1]:
            w = round(height * self.ratio[1])
        return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True, repr=False)
class ResizedCenterCrop(Crop):
    """Resize the whole image, then center-crop: torchvision's ``v2.Resize(resize)`` and
    ``v2.CenterCrop(size)``.

    Args:
        size, interpolation, antialias: See :class:`Crop`.
        resize: Length of the shorter side before cropping (the longer one keeps the aspect ratio,
            rounded down), or (height, width); no side shorter than ``size``.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    Example:
        >>> ResizedCenterCrop(224, 256)
        ResizedCenterCrop((224, 224), 256)
    """

    size: Any
    resize: int | tuple[int, int]
    interpolation: Any = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        resize = _sides("resize", self.resize)
        self._set(resize=resize[0] if isinstance(self.resize, int) else resize)
        if resize[0] < self.size[0] or resize[1] < self.size[1]:
            raise ValueError(f"resize must not be below size {self.size}, got {self.resize}")

    def plan(self, height: int, width: int, key: int) -> CropPlan:
        """The plan for an image of this size; it is not random."""
        if isinstance(self.resize, tuple):
            resized = self.resize
        else:
            longer = int(self.resize * max(height, width) / min(height, width))
            resized = (longer, self.resize) if height > width else (self.resize, longer)
        top, left = (
            round((side - target) / 2.0) for side, target in zip(resized, self.size, strict=True)
        )
        return CropPlan(0, 0, height, width, resized, top, left)


def _uniform(random: RandomStream) -> float:
    return random.below(1 << 53) / (1 << 53)


def _sides(name: str, value: Any) -> tuple[int, int]:
    sides = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(sides) == 1:
        sides *= 2
    if isinstance(value, str) or len(sides) != 2 or any(isinstance(side, bool) for side in sides):
        raise TypeError(f"{name} must be an int or (height, width), got {value!r}")
    height, width = map(operator.index, sides)
    if height < 1 or width < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}")
    return height, width


def _limits(name: str, value: object) -> tuple[float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise TypeError(f"{name} must be (least, greatest), got {value!r}")
    low, high = (_number(name, limit) for limit in value)
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{name} must be (least, greatest), both above 0, got {value!r}")
    return low, high


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def interpolation_name(value: object) -> object:
    """The name of an interpolation: of an ``InterpolationMode``, of Pillow's constant, or itself."""
    name = value.value if isinstance(value, InterpolationMode) else value
    return _PILLOW_NUMBERS.get(name, name) if isinstance(name, int) else name


def _interpolation(value: object) -> str:
    name = interpolation_name(value)
    if name not in _INTERPOLATIONS:
        raise ValueError(
            f"interpolation must be one of {', '.join(map(repr, _INTERPOLATIONS))}, got {value!r}"
        )
    return str(name)


# Batches.


class ValueTable:
    """A lookup table of an elementwise transform of uint8 images: a float32 for each channel and
    value.

    Args:
        transform: Maps an image [C, H, W] to one with the same number of channels.
        channels: C.

    Attributes:
        values: float32 [C, 256].

    Raises:
        ValueError: The transform does not return float32 [C, H, W].
    """

    def __init__(self, transform: Callable[[torch.Tensor], torch.Tensor], channels: int) -> None:
        every_value = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(channels, 1, 1)
        result = transform(every_value)
        if result.dtype != torch.float32 or result.shape != every_value.shape:
            raise ValueError(
                f"expected float32 {list(every_value.shape)}, got {result.dtype} {list(result.shape)}"
            )
        self.values = result.reshape(channels, 256).numpy()


class Normalization(ValueTable):
    """torchvision's ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean, std)``, bit for
    bit.

    Args:
        mean, std: One number per channel, for values from 0 to 1.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        def normalize(image: torch.Tensor) -> torch.Tensor:
            image = functional.to_dtype_image(image, torch.float32, scale=True)
            result: torch.Tensor = functional.normalize_image(image, list(mean), list(std))
            return result

        super().__init__(normalize, len(mean))


class CropWork:
    """Images that are decoded and cropped to one size: most by a job of the core, which needs no
    GIL, the others when it is finished.

    Args:
        crop: The crop of each image.
        images: The encoded images; or where they are in the ``buffer``, int64 [N, 2] of first byte
            and number of bytes, read when the job runs.
        keys: uint64 [N], the random key of each, which determines its crop.
        mode: "RGB", "L" or "RGBA".
        normalization: None for uint8.
        apply_orientation: Apply the EXIF orientation of each image before it is cropped.
        max_pixels: Maximum height times width, of an image and of its resized form.

    Attributes:
        job: The job of the core; None if it does not have this crop.
    """

    def __init__(
        self,
        crop: Crop,
        images: Any,
        keys: npt.NDArray[np.uint64],
        *,
        buffer: Any = None,
        mode: str,
        normalization: Normalization | None,
        apply_orientation: bool,
        max_pixels: int,
    ) -> None:
        self._crop, self._keys, self._mode, self._table = crop, keys, mode, normalization
        self._is_upright, self._max_pixels = apply_orientation, max_pixels
        self._out = empty_batch(len(images), crop.size, CHANNELS[mode], normalization)
        drawn = _drawn(crop)
        self.job = None
        if drawn is not None:
            options = {"ignores_exif": not apply_orientation, "keys": keys, **drawn}
            self.job = crop_job(
                buffer, images, self._out, normalization, max_pixels, crop.interpolation, **options
            )

    @property
    def is_done(self) -> bool:
        """Whether the job has made all of them."""
        return self.job is not None and self.job.done == len(self._out)

    def finish(
        self, values: Sequence[EncodedImage], shapes: Sequence[tuple[object, ...]]
    ) -> torch.Tensor:
        """The cropped images.

        Args:
            values: The encoded images; not kept.
            shapes: Expected (height, width, channels) of each before cropping; see
                `check_image_shape`.

        Returns:
            uint8 [N, C, H, W] in [N, H, W, C] memory ("channels last"), or float32 [N, C, H, W],
            contiguous.

        Raises:
            ImageDecodeError, ParseError: Of the first image that cannot be decoded, or has another
                shape.
        """
        if not self.is_done or any(shapes):
            sizes = [(0, 0)] * len(values) if self.job is None else self.job.sizes.tolist()
            for row, (height, width) in enumerate(sizes):
                if height:
                    check_image_shape(shapes[row], (height, width, CHANNELS[self._mode]))
                else:
                    self._crop_one(row, values[row], shapes[row])
        return self.tensor()

    def tensor(self) -> torch.Tensor:
        """What is made so far."""
        return batch_tensor(self._out, self._table)

    def _crop_one(self, row: int, data: EncodedImage, shape: tuple[object, ...]) -> None:
        most = self._max_pixels
        image = StoredImage(
            data, self._mode, shape=shape, apply_orientation=self._is_upright, max_pixels=most
        )
        plan = self._crop.plan(image.height, image.width, int(self._keys[row]))
        pixels = _resize(image.pixels(Region(*plan[:4])), plan.resized, self._crop, most)
        (height, width), top, left = self._crop.size, plan.window_top, plan.window_left
        window = pixels[top : top + height, left : left + width]
        place_pixels(window, self._out[row], self._table, across=plan.flip)


def crop_job(
    buffer: Any,
    images: Any,
    out: _Rows,
    table: ValueTable | None,
    max_pixels: int,
    interpolation: str | None,
    **options: Any,
) -> Any:
    """A job of the core that crops images, resized by ``interpolation`` unless that is None; None
    without the core, or for what it does not have.
    """
    native, sizes = optional_module("jpeg"), _sizes(out, table)
    if native is None or sizes[3] == CHANNELS["RGBA"] or not len(out):
        return None
    return native.CropJob(
        buffer,
        images,
        out.reshape(-1).view(np.uint8),
        sizes,
        table=None if table is None else table.values,
        max_pixels=max_pixels,
        resizes=interpolation is not None,
        bicubic=interpolation == "bicubic",
        **options,
    )


def run_job(job: Any) -> None:
    """Run a job of the core, if there is one."""
    if job is not None:
        native_module("jobs").run([job])  # type: ignore[union-attr]


def is_cores(crop: Crop, mode: str) -> bool:
    """Whether the core has the crop, for plain JPEG images."""
    return mode in ("RGB", "L") and optional_module("jpeg") is not None and _drawn(crop) is not None


def _drawn(crop: Crop) -> dict[str, object] | None:
    """How the core draws a crop; None for one of the user's own, and where it resizes otherwise."""
    if not (crop.antialias and resizes_in_core(crop.interpolation)):
        return None
    if type(crop) is RandomResizedCrop:
        seed = to_64_bits(crop.seed)
        return {"drawn": (seed, crop.scale, crop.ratio, crop.horizontal_flip)}
    if type(crop) is ResizedCenterCrop:
        return {"centred": crop.resize if isinstance(crop.resize, tuple) else (0, crop.resize)}
    return None


def empty_batch(
    number: int, size: tuple[int, int], channels: int, table: ValueTable | None
) -> _Rows:
    """Allocate memory for `place_pixels`: uint8 [N, H, W, C], or with a table float32
    [N, C, H, W].
    """
    shape = (number, *size, channels) if table is None else (number, channels, *size)
    dtype = np.dtype(np.uint8 if table is None else np.float32)
    reserve(num_bytes := math.prod(shape) * dtype.itemsize)
    return empty_bytes(num_bytes).view(dtype).reshape(shape)


def _sizes(out: _Rows, table: ValueTable | None) -> tuple[int, ...]:
    """(N, H, W, C) of an `empty_batch`."""
    number, *sizes = out.shape
    return (number, *sizes) if table is None else (number, *sizes[1:], sizes[0])


def batch_tensor(out: _Rows, table: ValueTable | None) -> torch.Tensor:
    """An `empty_batch` as [N, C, H, W]."""
    # Transposed here, since each call of torch's gives Python's lock away.
    return torch.from_numpy(out if table is not None else out.transpose(0, 3, 1, 2))


def place_pixels(
    pixels: Pixels,
    row: _Rows,
    table: ValueTable | None = None,
    *,
    across: bool = False,
    down: bool = False,
) -> None:
    """Copy uint8 [H, W, C], mirrored ``across`` and ``down``, to a row of an `empty_batch`."""
    native = optional_module("jpeg")
    if native is not None:
        plan = (0, 0, *pixels.shape[:2] * 2, 0, 0, across, down)
        values = None if table is None else table.values
        out = row.reshape(-1).view(np.uint8)
        native.place(np.ascontiguousarray(pixels), plan, out, (1, *pixels.shape), table=values)
        return
    pixels = pixels[:: -1 if down else 1, :: -1 if across else 1]
    if table is None:
        row[:] = pixels
    else:
        for values, channel, target in zip(
            table.values, pixels.transpose(2, 0, 1), row, strict=True
        ):
            np.take(values, channel, out=target, mode="clip")


def _resize(pixels: Pixels, size: tuple[int, int], crop: Crop, max_pixels: int) -> Pixels:
    """Resize [H, W, C] as torchvision's resize does."""
    height, width, channels = pixels.shape
    if size == (height, width):
        return pixels
    if size[0] * size[1] > max_pixels:
        raise ImageDecodeError(
            f"expected at most {max_pixels} pixels after resizing, got {height} x {width} resized to "
            f"{size[0]} x {size[1]}"
        )
    image = torch.from_numpy(np.ascontiguousarray(pixels))  # resizing is fastest on this layout
    if not (crop.antialias and resizes_in_core(crop.interpolation)):
        mode = InterpolationMode(crop.interpolation)
        slow = functional.resize_image(
            image.permute(2, 0, 1), [*size], interpolation=mode, antialias=crop.antialias
        )
        return view_pixels(slow)
    # What torchvision's resize calls. The first stride is explicit, else torch takes the batch of
    # one for contiguous.
    image = image.as_strided(
        (1, channels, height, width), (height * width * channels, 1, width * channels, channels)
    )
    resized = torch.nn.functional.interpolate(
        image, size=size, mode=crop.interpolation, align_corners=False, antialias=True
    )
    return view_pixels(resized[0])


def resizes_in_core(interpolation: object) -> bool:
    """Whether torch resizes uint8 with antialias by the kernel that the core has, too; on other
    processors torchvision resizes float32, which rounds differently, and so do we.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return interpolation in ("bilinear", "bicubic") and capability in ("AVX2", "AVX512")
