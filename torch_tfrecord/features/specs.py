"""The specs of what to read from a record: one frozen class each, validated when built.

::

    Feature                     the base: key, the name in the record where it is not the output's name
    ├── FixedLenFeature         a known number of values -> tensor of a shape
    ├── VarLenFeature           any number of values     -> 1-D tensor, batch: jagged
    ├── Image                   encoded image            -> tv_tensors.Image
    ├── RawTensor               bytes of an array        -> tensor
    ├── SerializedTensor        TensorProto              -> tensor
    └── Text                    UTF-8 bytes              -> str

Specs hold no state, compare and hash by value, pickle, and print as the code that builds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch

from torch_tfrecord.features.spec_checks import (
    check_list_dtype,
    default_values,
    fixed_shape,
    is_plain,
    mean_and_std,
    shape_with_names,
)
from torch_tfrecord.images.crops import Crop
from torch_tfrecord.values.dtypes import DType, dtype_name

__all__ = [
    "Feature",
    "FixedLenFeature",
    "Image",
    "RawTensor",
    "SerializedTensor",
    "Text",
    "VarLenFeature",
    "is_ragged",
    "mark_ragged",
]

_IMAGE_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4, "unchanged": None}
_RAGGED = "_torch_tfrecord_ragged"


@dataclass(frozen=True, repr=False)
class Feature:
    """The base of all specs.

    Args:
        key: Name of the feature in the record; None means the name of the output.
    """

    key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"key must be str or None, got {type(self.key).__name__}")

    def __repr__(self) -> str:
        """Print the Python code that builds this spec."""
        shown = [
            _code(value) if item.default is MISSING and item.kw_only is not True else f"{item.name}={_code(value)}"
            for item in sorted(fields(self), key=lambda item: item.kw_only is True)
            if (value := getattr(self, item.name)) != item.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class FixedLenFeature(Feature):
    """A feature with the same number of values in every record.

    Read as a tensor of ``shape`` (``[B, *shape]`` in a batch); with dtype ``bytes`` or ``str`` as a scalar for shape
    ``()``, else as a (nested) list.

    Args:
        shape: Sizes of all dimensions; an int means one dimension, ``()`` a scalar.
        dtype: A torch dtype, ``bytes`` or ``str``. bool and integers are read from an int64_list, floats from a
            float_list, bytes and str (strict UTF-8) from a bytes_list. A value outside the dtype's range is ParseError.
        default_value: Used where the record lacks the feature; as many values as ``shape`` has (kept flat). Without it
            a record that lacks the feature is ParseError. A list that is there but empty is always ParseError.
        key: Name of the feature in the record, where it is not the output's name.

    Raises:
        TypeError: An unknown dtype, or a default value of another type.
        ValueError: No shape, an unknown or negative dimension, or a default of the wrong count or out of range.

    Example:
        >>> FixedLenFeature((), torch.int64, -1)
        FixedLenFeature((), torch.int64, default_value=-1)
    """

    shape: tuple[int, ...]
    dtype: DType
    default_value: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "shape", fixed_shape(self.shape))
        check_list_dtype(self.dtype)
        if self.default_value is not None:
            object.__setattr__(self, "default_value", default_values(self.default_value, self.shape, self.dtype))


@dataclass(frozen=True, repr=False)
class VarLenFeature(Feature):
    """A feature with any number of values, also none; a record that lacks it has none.

    Read as a 1-D tensor; a batch is a jagged nested tensor. With dtype ``bytes`` or ``str``: a list, a batch a list of
    lists.

    Args:
        dtype: As in :class:`FixedLenFeature`.
        key: Name of the feature in the record, where it is not the output's name.

    Raises:
        TypeError: An unknown dtype.
        ValueError: No dtype.
    """

    dtype: DType

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_list_dtype(self.dtype)


@dataclass(frozen=True, repr=False)
class Image(Feature):
    """An encoded image (JPEG, PNG, GIF, BMP, WebP), decoded to a ``torchvision.tv_tensors.Image``.

    Read as uint8 [C, H, W], values 0 to 255; a batch is one image tensor [B, C, H, W] where all sizes are equal, else a
    list. With ``crop`` all are of the crop's size, and a batch is decoded straight into its tensor, of which only what
    the crop needs: docs/images.md.

    Args:
        mode: "RGB", "L" (gray), "RGBA" or "unchanged" (the channels that are stored).
        key: Name of the feature in the record, where it is not the output's name.
        shape: What to check the decoded image against, before any crop, as (height, width, channels); an entry is an
            int, None (not checked) or the key of another feature of the record that holds one integer. A difference is
            ParseError.
        apply_orientation: Turn the image as its EXIF orientation says; TensorFlow does not.
        crop: A :class:`RandomResizedCrop` or :class:`ResizedCenterCrop`; not for mode "unchanged".
        normalize: (mean, std), a number per channel for values from 0 to 1: gives float32 as by torchvision's
            ``ToDtype(torch.float32, scale=True)`` and ``Normalize(mean, std)``. Not for mode "unchanged".
        max_pixels: The largest height times width, of the stored image and of what a crop resizes it to; more is
            ImageDecodeError, before memory is taken. None means 178,956,970; a quarter of it for whole images with
            ``normalize``, since a float32 takes four bytes.

    Raises:
        TypeError: An entry of ``shape`` of another type, a crop that is none, or ``max_pixels`` that is no int.
        ValueError: An unknown mode, a shape that has not three entries, means and deviations that do not fit the
            mode, or ``max_pixels`` below 1 or below the crop's size.

    Example:
        >>> Image(key="image/encoded", shape=("image/height", "image/width", 3))
        Image(key='image/encoded', shape=('image/height', 'image/width', 3))
    """

    mode: str = "RGB"
    shape: tuple[int | str | None, ...] | None = field(default=None, kw_only=True)
    apply_orientation: bool = field(default=False, kw_only=True)
    crop: Crop | None = field(default=None, kw_only=True)
    normalize: tuple[Sequence[float], Sequence[float]] | None = field(default=None, kw_only=True)
    max_pixels: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.mode not in _IMAGE_CHANNELS:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _IMAGE_CHANNELS))}, got {self.mode!r}")
        if self.crop is not None and not isinstance(self.crop, Crop):
            raise TypeError(f"crop must be a RandomResizedCrop or ResizedCenterCrop, got {type(self.crop).__name__}")
        channels = _IMAGE_CHANNELS[self.mode]
        if channels is None and (self.crop is not None or self.normalize is not None):
            raise ValueError("crop and normalize need one number of channels: mode must not be 'unchanged'")
        if channels is not None and self.normalize is not None:
            object.__setattr__(self, "normalize", mean_and_std(self.normalize, channels))
        if self.shape is not None:
            shape = shape_with_names(self.shape, "an int, None or the key of a feature", unknown=None)
            if len(shape) != 3:
                raise ValueError(f"shape must be (height, width, channels), got {shape!r}")
            object.__setattr__(self, "shape", shape)
        if self.max_pixels is not None:
            _check_max_pixels(self.max_pixels, self.crop)


@dataclass(frozen=True, repr=False)
class RawTensor(Feature):
    """The bytes of an array: little-endian, row-major, nothing else, in one bytes value.

    Read as a tensor of ``shape``; a batch is stacked where all shapes are equal, else a list.

    Args:
        shape: An entry is an int, -1 (at most one, found from the number of bytes) or the key of another feature of the
            record that holds one integer. The number of bytes must fit exactly, else ParseError.
        dtype: A torch dtype with whole bytes per element.
        key: Name of the feature in the record, where it is not the output's name.

    Raises:
        TypeError: An unknown dtype, or an entry of ``shape`` of another type.
        ValueError: No shape or dtype, a negative dimension, or more than one -1.

    Example:
        >>> RawTensor(("height", "width", 3), torch.uint8, key="image_raw")
        RawTensor(('height', 'width', 3), torch.uint8, key='image_raw')
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.shape is None:
            raise ValueError("Missing shape: give a tuple; -1 stands for one unknown dimension")
        shape = shape_with_names(self.shape, "an int, -1 or the key of a feature", unknown=-1)
        if shape.count(-1) > 1:
            raise ValueError(f"shape may have one -1 at most, got {shape!r}")
        object.__setattr__(self, "shape", shape)
        if not is_plain(self.dtype):
            check_list_dtype(self.dtype)
            raise TypeError(f"dtype must be a torch dtype with whole bytes per element, got {dtype_name(self.dtype)}")


@dataclass(frozen=True, repr=False)
class SerializedTensor(Feature):
    """A tensor as ``tf.io.serialize_tensor`` writes it (a TensorProto), in one bytes value.

    Read as the stored tensor, with its shape and dtype; string tensors as (nested) list of bytes. A batch is stacked
    where all shapes and dtypes are equal, else a list.

    Args:
        key: Name of the feature in the record, where it is not the output's name.
    """


@dataclass(frozen=True, repr=False)
class Text(Feature):
    """One string, strict UTF-8. Read as str; a batch is a list of str.

    Args:
        key: Name of the feature in the record, where it is not the output's name.
    """


def mark_ragged(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a sample's tensor as of varying length, so that collating makes it jagged also where lengths are equal.

    The mark is on the tensor object: it does not survive an operation on it, nor pickling to another process.
    """
    setattr(tensor, _RAGGED, True)
    return tensor


def is_ragged(tensor: torch.Tensor) -> bool:
    """Whether :func:`mark_ragged` marked this tensor object."""
    return getattr(tensor, _RAGGED, False)


def _check_max_pixels(max_pixels: Any, crop: Crop | None) -> None:
    if isinstance(max_pixels, bool) or not isinstance(max_pixels, int):
        raise TypeError(f"max_pixels must be an int or None, got {max_pixels!r}")
    least = 1 if crop is None else crop.size[0] * crop.size[1]
    if max_pixels < least:
        what = "1" if crop is None else f"the crop's {crop.size[0]} x {crop.size[1]} = {least} pixels"
        raise ValueError(f"max_pixels must be at least {what}, got {max_pixels}")


def _code(value: Any) -> str:
    """The value as Python code: dtypes and types by their name, everything else by its repr."""
    return value.__name__ if isinstance(value, type) else repr(value)
