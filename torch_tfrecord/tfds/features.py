"""The feature tree of a TFDS dataset: one frozen class for each class of ``tensorflow_datasets.features``.

Names and arguments are TFDS's. A tree says what lies in a record (`features.json` is read into one) and what to write::

    FeaturesDict({
        "image": Image(shape=(None, None, 3)),
        "label": ClassLabel(names=["cat", "dog"]),
        "objects": Sequence({"bbox": BBoxFeature(), "label": ClassLabel(num_classes=3)}),
    })

Of a shape, None is a size that is not known. A dtype is numpy's name ("uint8", "float32"), or "string"; a dtype of
torch or numpy, `bytes` and `str` are taken as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from torch_tfrecord.tfds.feature_base import STRING, FeatureConnector, Shape, few, set_fields, torch_dtype_of

__all__ = [
    "STRING",
    "Audio",
    "BBoxFeature",
    "ClassLabel",
    "Dataset",
    "FeatureConnector",
    "FeaturesDict",
    "Image",
    "LabeledImage",
    "Scalar",
    "Sequence",
    "Tensor",
    "Text",
    "Translation",
    "TranslationVariableLanguages",
    "UnknownFeature",
    "Video",
    "as_feature",
    "torch_dtype_of",
]

_IMAGE_FORMATS = (None, "png", "jpeg")
_BBOX_FORMATS = (None, "REL_YXYX", "REL_XYXY", "YXYX", "XYXY", "XYWH")


@dataclass(frozen=True, repr=False)
class _Values(FeatureConnector):
    """How numbers, bools and bytes are stored."""

    encoding: str = field(default="none", kw_only=True)
    minimum: float | None = field(default=None, kw_only=True)
    maximum: float | None = field(default=None, kw_only=True)
    optional: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, repr=False)
class Tensor(_Values):
    """Numbers, bools or bytes of a shape.

    Args:
        shape: Sizes; None for one that varies.
        dtype: Numpy's name, or "string".
        encoding: "none" (a list of numbers), "bytes" (their bytes) or "zlib" (these, compressed). Two or more unknown
            sizes need one of the latter.
        minimum: Smallest value; for information.
        maximum: Largest value; for information.
        optional: Whether an example may have None.
    """

    shape: Shape
    dtype: str


@dataclass(frozen=True, repr=False)
class Scalar(_Values):
    """One number, bool or bytes; arguments as those of `Tensor`."""

    dtype: str

    @property
    def shape(self) -> Shape:
        """No dimensions."""
        return ()


@dataclass(frozen=True, repr=False)
class _Labels(FeatureConnector):
    """Names of classes, and their numbers."""

    num_classes: int | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check and normalise."""
        names = None if self.names is None else tuple(self.names)
        if names is not None and (len(set(names)) != len(names) or not all(isinstance(name, str) for name in names)):
            raise ValueError("names must be different str")
        if names is not None and self.num_classes not in (None, len(names)):
            raise ValueError(f"num_classes must be the number of names, {len(names)}, got {self.num_classes}")
        set_fields(self, names=names, num_classes=len(names) if names is not None else self.num_classes)
        super().__post_init__()

    def int2str(self, label: int | torch.Tensor) -> str:
        """The name of a class.

        Raises:
            ValueError: No such class, or -1, which means that there is no label.
        """
        number = int(label)
        if self.num_classes is None or not 0 <= number < self.num_classes:
            raise ValueError(f"label must be at least 0 and below {self.num_classes}, got {number}")
        return str(number) if self.names is None else self.names[number]

    def str2int(self, name: str) -> int:
        """The number of a class; without names the text of a number.

        Raises:
            ValueError: No such class.
        """
        if self.names is not None:
            if name not in self.names:
                raise ValueError(f"{name!r} is no name of a class; there are {few(self.names)}")
            return self.names.index(name)
        if not name.isdecimal() or int(name) >= (self.num_classes or 0):
            raise ValueError(f"classes have no names, and {name!r} is no number below {self.num_classes}")
        return int(name)


@dataclass(frozen=True, repr=False)
class ClassLabel(_Labels):
    """The number of a class; -1 where there is no label.

    Args:
        num_classes: How many there are.
        names: Their names, in order.

    Example:
        >>> ClassLabel(names=["cat", "dog"]).int2str(1)
        'dog'
    """


@dataclass(frozen=True, repr=False)
class _Pixels(FeatureConnector):
    """What encoded pictures are of."""

    shape: Shape = (None, None, 3)
    dtype: str = "uint8"
    encoding_format: str | None = None
    use_colormap: bool = False

    _num_dimensions: ClassVar[int] = 3

    def __post_init__(self) -> None:
        """Check and normalise."""
        super().__post_init__()
        if len(self.shape) != self._num_dimensions:
            raise ValueError(f"shape must have {self._num_dimensions} entries, got {self.shape}")
        if self.dtype not in ("uint8", "uint16", "float32"):
            raise ValueError(f"dtype must be uint8, uint16 or float32, got {self.dtype}")
        if self.encoding_format not in _IMAGE_FORMATS:
            raise ValueError(f"encoding_format must be one of {_IMAGE_FORMATS}, got {self.encoding_format!r}")


@dataclass(frozen=True, repr=False)
class Image(_Pixels):
    """An encoded picture.

    Args:
        shape: (height, width, channels).
        dtype: "uint8", "uint16", or "float32" (one channel, such as depth).
        encoding_format: What arrays are written as, "png" or "jpeg"; None means PNG. Files are kept as they are.
        use_colormap: Whether people are shown it in colours.
    """


@dataclass(frozen=True, repr=False)
class LabeledImage(_Pixels, _Labels):
    """A picture whose pixels are numbers of classes (a segmentation).

    Args:
        num_classes: How many there are.
        names: Their names, in order.
        shape: (height, width, 1).
        dtype, encoding_format, use_colormap: As of `Image`.
    """

    shape: Shape = (None, None, 1)
    use_colormap: bool = True


@dataclass(frozen=True, repr=False)
class Video(_Pixels):
    """Encoded pictures, one after another.

    Args:
        shape: (frames, height, width, channels).
        dtype, encoding_format, use_colormap: As of `Image`, for each frame.
    """

    shape: Shape = (None, None, None, 3)

    _num_dimensions: ClassVar[int] = 4

    @property
    def frame(self) -> Image:
        """The feature of one frame."""
        return Image(self.shape[1:], self.dtype, self.encoding_format, self.use_colormap)


@dataclass(frozen=True, repr=False)
class Audio(FeatureConnector):
    """A sound, as numbers or as the bytes of its file.

    Args:
        shape: (length,) or (length, channels).
        dtype: Of the numbers.
        file_format: "wav", "flac", ...; None where nothing is known.
        sample_rate: Numbers per second and channel.
        encoding: As of `Tensor`.
        lazy_decode: Whether the record holds the file's bytes.
    """

    shape: Shape = (None,)
    dtype: str = "int64"
    file_format: str | None = field(default=None, kw_only=True)
    sample_rate: int | None = field(default=None, kw_only=True)
    encoding: str = field(default="none", kw_only=True)
    lazy_decode: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check and normalise."""
        super().__post_init__()
        if len(self.shape) not in (1, 2):
            raise ValueError(f"shape must be (length,) or (length, channels), got {self.shape}")


@dataclass(frozen=True, repr=False)
class BBoxFeature(FeatureConnector):
    """A box of four float32.

    Args:
        bbox_format: The meaning of the four: "REL_YXYX" (ymin, xmin, ymax, xmax from 0 to 1), "REL_XYXY", in pixels
            "YXYX", "XYXY" or "XYWH", or None where it is not known.
    """

    bbox_format: str | None = "REL_YXYX"

    def __post_init__(self) -> None:
        """Check the format."""
        if self.bbox_format not in _BBOX_FORMATS:
            raise ValueError(f"bbox_format must be one of {_BBOX_FORMATS}, got {self.bbox_format!r}")


@dataclass(frozen=True, repr=False)
class Text(FeatureConnector):
    """A text, in UTF-8."""


@dataclass(frozen=True, repr=False)
class Translation(FeatureConnector):
    """One text in each of some languages.

    Args:
        languages: Their codes.
    """

    languages: tuple[str, ...]

    def __post_init__(self) -> None:
        """Normalise."""
        set_fields(self, languages=tuple(self.languages))


@dataclass(frozen=True, repr=False)
class TranslationVariableLanguages(FeatureConnector):
    """Texts in languages that vary: two lists, `language` and `translation`.

    Args:
        languages: The codes that occur; None where they are not known.
    """

    languages: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Normalise."""
        set_fields(self, languages=None if self.languages is None else tuple(self.languages))


@dataclass(frozen=True, repr=False)
class FeaturesDict(FeatureConnector, Mapping[str, Any]):
    """Features by name; `tree["image"]`, and of nested ones `tree["a/b"]`.

    Args:
        features: Name -> feature, or a mapping of such again.
    """

    features: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Take nested mappings for FeaturesDicts."""
        if not isinstance(self.features, Mapping) or any(not isinstance(name, str) for name in self.features):
            raise TypeError("features must be a mapping of names to features")
        set_fields(self, features={name: as_feature(value) for name, value in self.features.items()})

    def __getitem__(self, name: str) -> Any:
        """The feature of a name, or of a path of names joined by "/"."""
        if name in self.features or "/" not in name:
            return self.features[name]
        first, rest = name.split("/", 1)
        inner = self.features[first]
        while isinstance(inner, Sequence):
            inner = inner.feature
        if not isinstance(inner, FeaturesDict):
            raise KeyError(name)
        return inner[rest]

    def __iter__(self) -> Iterator[str]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """One line for each feature."""
        lines = [f"    {name!r}: {value!r},".replace("\n", "\n    ") for name, value in self.features.items()]
        return "\n".join(["FeaturesDict({", *lines, "})"])


@dataclass(frozen=True, repr=False)
class Sequence(FeatureConnector):
    """Any number of values of one feature; of a FeaturesDict, one list for each of its leaves.

    Args:
        feature: A feature, or a mapping of them.
        length: How many, where it is always the same.
    """

    feature: Any
    length: int | None = None

    def __post_init__(self) -> None:
        """Take a mapping for a FeaturesDict, -1 for None."""
        set_fields(self, feature=as_feature(self.feature), length=None if self.length == -1 else self.length)


@dataclass(frozen=True, repr=False)
class Dataset(Sequence):
    """As `Sequence`: what TFDS reads as a dataset in the dataset, such as the steps of an episode."""


@dataclass(frozen=True, repr=False)
class UnknownFeature(FeatureConnector):
    """A feature of a class that is not known here; an error only where it is asked for.

    Args:
        class_name: The class, as features.json names it.
        reason: Why it cannot be read.
    """

    class_name: str
    reason: str = "an unknown feature class"


def as_feature(value: object) -> FeatureConnector:
    """A feature as it is; a mapping as FeaturesDict; a dtype as Scalar.

    Raises:
        TypeError: Anything else.
    """
    if isinstance(value, FeatureConnector):
        return value
    if isinstance(value, Mapping):
        return FeaturesDict(value)
    if isinstance(value, (torch.dtype, np.dtype, type)):
        return Scalar(value)  # type: ignore[arg-type]
    raise TypeError(f"a feature must be of torch_tfrecord.tfds.features, a mapping or a dtype, got {value!r}")
