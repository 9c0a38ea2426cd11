"""Crops that are drawn before an image is decoded.

::

    Crop                    the base: size, interpolation, antialias
    ├── RandomResizedCrop   for training: a random region, resized, optionally flipped
    └── ResizedCenterCrop   for evaluation: the whole image resized, then center-cropped or padded

A plan is a pure function of the image size and a key, which is unique per sample and epoch:
integers in, integers out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

from torch_tfrecord.arguments import knows_keywords, true_or_false
from torch_tfrecord.random_stream import RandomStream
from torch_tfrecord.shown import show_code

__all__ = [
    "Crop",
    "CropPlan",
    "RandomResizedCrop",
    "ResizedCenterCrop",
    "centre",
    "interpolation_name",
]

_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")
_PILLOW_NUMBERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
_ATTEMPTS = 10  # torchvision's


class CropPlan(NamedTuple):
    """The steps for one image: cut out a region, resize it, cut a window from that, with zeros where
    the window is larger, mirror it ``across`` and ``down``. The core's struct of this name has the same fields.
    """

    top: int
    left: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    window_top: int = 0
    window_left: int = 0
    across: bool = False
    down: bool = False


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
    _: KW_ONLY
    horizontal_flip: float = 0.0
    seed: int = 0
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
        return CropPlan(*region, *self.size)._replace(across=flip)

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
            rounded down), or (height, width); no side shorter than ``size``. Or "pad": as large as fits
            ``size``, each side rounded down, in the middle of zeros, as ``resize_with_pad`` of
            openpi and ``tf.image``.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    Example:
        >>> ResizedCenterCrop(224, 256)
        ResizedCenterCrop((224, 224), 256)
        >>> ResizedCenterCrop(224, "pad").plan(180, 320, key=0)[4:8]  # a window above the picture
        (126, 224, -49, 0)
    """

    size: Any
    resize: int | tuple[int, int] | Literal["pad"]
    interpolation: Any = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.resize == "pad":
            return
        resize = _sides("resize", self.resize)
        self._set(resize=resize[0] if isinstance(self.resize, int) else resize)
        if resize[0] < self.size[0] or resize[1] < self.size[1]:
            raise ValueError(f"resize must not be below size {self.size}, got {self.resize}")

    def plan(self, height: int, width: int, key: int) -> CropPlan:
        """The plan for an image of this size; it is not random."""
        if isinstance(self.resize, tuple):
            resized = self.resize
        elif isinstance(self.resize, str):
            ratio = max(height / self.size[0], width / self.size[1])
            resized = max(int(height / ratio), 1), max(int(width / ratio), 1)
        else:
            longer = int(self.resize * max(height, width) / min(height, width))
            resized = (longer, self.resize) if height > width else (self.resize, longer)
        return CropPlan(0, 0, height, width, *resized, *centre(resized, self.size))


def centre(sides: Sequence[int], target: Sequence[int]) -> tuple[int, int]:
    """Where a window is in the middle of an image, as in torchvision: half to even where it cuts, and
    down where it pads.
    """
    top, left = (
        round((side - wanted) / 2) if side > wanted else -((wanted - side) // 2)
        for side, wanted in zip(sides, target, strict=True)
    )
    return top, left


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
    """The name of an interpolation, given as ``InterpolationMode``, as Pillow's constant, or by name."""
    name = getattr(value, "value", value)
    return _PILLOW_NUMBERS.get(name, name) if isinstance(name, int) else name


def _interpolation(value: object) -> str:
    name = interpolation_name(value)
    if name not in _INTERPOLATIONS:
        raise ValueError(
            f"interpolation must be one of {', '.join(map(repr, _INTERPOLATIONS))}, got {value!r}"
        )
    return str(name)
