"""The feature tree of a TFDS dataset: one frozen class for each class of
``tensorflow_datasets.features``.

Names and arguments are those of TFDS. A tree describes the content of a record, read or to be
written (`features.json` is parsed into one)::

    FeaturesDict({
        "image": Image(shape=(None, None, 3)),
        "label": ClassLabel(names=["cat", "dog"]),
        "objects": Sequence({"bbox": BBoxFeature(), "label": ClassLabel(num_classes=3)}),
    })

In a shape, None is an unknown size. A dtype is a NumPy name ("uint8", "float32") or "string"; you
can also pass a torch or NumPy dtype, `bytes` or `str`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import one_of
from torch_tfrecord.shown import show_code

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

STRING = "string"
_MAX_ELEMENTS = 1 << 48  # far above what fits a record, far below where torch's sizes overflow

Shape: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True, repr=False)
class FeatureConnector:
    """The base class of all features.

    Args:
        doc: Free-text description of the feature.
    """

    _: KW_ONLY
    doc: str = ""
    optional = False  # a field of those that TFDS lets be None

    def __post_init__(self) -> None:
        """Check and normalise the shape, dtype and encoding, if the feature has them."""
        # A class without a shape, dtype or encoding has nothing to check; a property is not in
        # `vars`.
        own = vars(self)
        set_fields(
            self, **{name: check(own[name]) for name, check in _CHECKS.items() if name in own}
        )

    def __repr__(self) -> str:
        """Show the code that builds the feature, without default arguments."""
        return show_code(self, _code)


def torch_dtype_of(name: str) -> torch.dtype | None:
    """The torch dtype for a NumPy dtype name; None for "string" and dtypes that torch lacks."""
    # torch also has functions and aliases of these names ("float"), and quantised dtypes, which no
    # array can be made of.
    found = vars(torch).get(name)
    is_own = isinstance(found, torch.dtype) and str(found) == f"torch.{name}"
    return found if is_own and not name.startswith(("q", "bits")) else None


def set_fields(feature: FeatureConnector, /, **values: object) -> None:
    """Set fields of a frozen feature while it is built."""
    for name, value in values.items():
        # The documented way of a frozen dataclass, whose fields are normalised once.
        object.__setattr__(feature, name, value)


def _check_shape(shape: Iterable[int | None]) -> Shape:
    """Normalise a shape to a tuple, with None for -1.

    Raises:
        ValueError: A size is negative, or the shape is too large for any record.
    """
    sizes = tuple(None if size in (None, -1) else int(size) for size in shape)
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"shape must be sizes or None, got {shape!r}")
    # features.json may claim any shape: nothing is allocated for it before a record shows as much.
    if math.prod(size or 1 for size in sizes) > _MAX_ELEMENTS:
        raise ValueError(f"shape has more than {_MAX_ELEMENTS} elements")
    return sizes


def fits(found: Shape, shape: Shape) -> bool:
    """Whether concrete sizes match a shape with unknown sizes."""
    return len(found) == len(shape) and all(
        size in (None, there) for size, there in zip(shape, found, strict=True)
    )


def _check_dtype(dtype: Any) -> str:
    """The NumPy name of a NumPy, torch or Python dtype."""
    # TFDS writes str as bytes, and NumPy knows both as object.
    if dtype in (bytes, str, object, "object", "bytes", "str", STRING):
        return STRING
    if isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, str):
        return dtype
    return str(np.dtype(dtype).name)


def _check_encoding(encoding: object) -> str:
    """The encoding name in lower case."""
    name = str(encoding).lower()
    # As TFDS names them; "none" is a plain list of numbers.
    one_of("encoding", name, "none", "bytes", "zlib")
    return name


_CHECKS = {
    "shape": _check_shape,
    "dtype": _check_dtype,
    "encoding": _check_encoding,
}


def innermost(feature: object) -> object:
    """The feature inside of all sequences around it."""
    while isinstance(feature, Sequence):
        feature = feature.feature
    return feature


def few(names: tuple[str, ...]) -> str:
    """The first eight names, for errors."""
    return ", ".join(map(repr, names[:8])) + (
        f" and {len(names) - 8} more" if len(names) > 8 else ""
    )


def _code(value: object) -> str:
    # A dataset may have thousands of class names.
    if isinstance(value, tuple) and len(value) > 8:
        return f"({few(value)})"
    return repr(value)


@dataclass(frozen=True, repr=False)
class _Values(FeatureConnector):
    """Shape, dtype and encoding of numbers, bools and bytes."""

    _: KW_ONLY
    encoding: str = "none"
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False


@dataclass(frozen=True, repr=False)
class Tensor(_Values):
    """Numbers, bools or bytes of a shape.

    Args:
        shape: Sizes; None for a size that varies.
        dtype: NumPy name, or "string".
        encoding: "none" (a list of numbers), "bytes" (raw bytes) or "zlib" (compressed raw bytes).
            Two or more unknown sizes need "bytes" or "zlib".
        minimum: Smallest value, for information only.
        maximum: Largest value, for information only.
        optional: Whether the value may be None.
    """

    shape: Shape
    dtype: str


@dataclass(frozen=True, repr=False)
class Scalar(_Values):
    """One number, bool or byte string; the arguments are those of `Tensor`."""

    dtype: str

    @property
    def shape(self) -> Shape:
        """The empty shape."""
        return ()


@dataclass(frozen=True, repr=False)
class _Labels(FeatureConnector):
    """Class names and numbers."""

    num_classes: int | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check and normalise."""
        # Hashable, and safe from later changes of the list.
        names = None if self.names is None else tuple(self.names)
        if names is not None and (
            len(set(names)) != len(names) or not all(isinstance(name, str) for name in names)
        ):
            raise ValueError("names must be distinct str")
        if names is not None and self.num_classes not in (None, len(names)):
            raise ValueError(
                f"num_classes must be the number of names, {len(names)}, got {self.num_classes}"
            )
        set_fields(
            self, names=names, num_classes=len(names) if names is not None else self.num_classes
        )
        super().__post_init__()

    def int2str(self, label: int | torch.Tensor) -> str:
        """Return the name of a class.

        Raises:
            ValueError: There is no such class, or the label is -1 (no label).
        """
        number = int(label)
        if self.num_classes is None or not 0 <= number < self.num_classes:
            raise ValueError(f"label must be at least 0 and below {self.num_classes}, got {number}")
        return str(number) if self.names is None else self.names[number]

    def str2int(self, name: str) -> int:
        """Return the number of a class by its name; without names, parse the number itself.

        Raises:
            ValueError: There is no such class.
        """
        if self.names is not None:
            if name not in self.names:
                raise ValueError(f"{name!r} is not a class name; expected one of {few(self.names)}")
            return self.names.index(name)
        # Without names the classes are called by their numbers, as in TFDS.
        if not name.isdecimal() or int(name) >= (self.num_classes or 0):
            raise ValueError(
                f"classes have no names, and {name!r} is not a number below {self.num_classes}"
            )
        return int(name)


@dataclass(frozen=True, repr=False)
class ClassLabel(_Labels):
    """The number of a class; -1 means no label.

    Args:
        num_classes: Number of classes.
        names: Class names, in order.

    Example:
        >>> ClassLabel(names=["cat", "dog"]).int2str(1)
        'dog'
    """


@dataclass(frozen=True, repr=False)
class _Pixels(FeatureConnector):
    """Shape, dtype and format of encoded images."""

    shape: Shape = (None, None, 3)
    dtype: str = "uint8"
    encoding_format: str | None = None
    use_colormap: bool = False

    _num_dimensions = 3

    def __post_init__(self) -> None:
        """Check and normalise."""
        super().__post_init__()
        if len(self.shape) != self._num_dimensions:
            raise ValueError(f"shape must have {self._num_dimensions} entries, got {self.shape}")
        one_of("dtype", self.dtype, "uint8", "uint16", "float32")
        one_of("encoding_format", self.encoding_format, None, "png", "jpeg")


@dataclass(frozen=True, repr=False)
class Image(_Pixels):
    """An encoded image.

    Args:
        shape: (height, width, channels).
        dtype: "uint8", "uint16", or "float32" (one channel, such as depth).
        encoding_format: How arrays are encoded, "png" or "jpeg"; None means PNG. Files are stored
            unchanged.
        use_colormap: Whether viewers show it with a colormap.
    """


@dataclass(frozen=True, repr=False)
class LabeledImage(_Pixels, _Labels):
    """An image whose pixels are class numbers (a segmentation mask).

    Args:
        num_classes: Number of classes.
        names: Class names, in order.
        shape: (height, width, 1).
        dtype, encoding_format, use_colormap: See `Image`.
    """

    # Other defaults than those of an image: one channel of class numbers.
    shape: Shape = (None, None, 1)
    use_colormap: bool = True


@dataclass(frozen=True, repr=False)
class Video(_Pixels):
    """A video, stored as a list of encoded images.

    Args:
        shape: (frames, height, width, channels).
        dtype, encoding_format, use_colormap: See `Image`; they apply to each frame.
    """

    shape: Shape = (None, None, None, 3)

    _num_dimensions = 4

    @property
    def frame(self) -> Image:
        """The feature of one frame."""
        return Image(self.shape[1:], self.dtype, self.encoding_format, self.use_colormap)


@dataclass(frozen=True, repr=False)
class Audio(FeatureConnector):
    """Audio, stored as samples or as the bytes of an audio file.

    Args:
        shape: (length,) or (length, channels).
        dtype: Dtype of the samples.
        file_format: "wav", "flac", ...; None if unknown.
        sample_rate: Samples per second.
        encoding: See `Tensor`.
        lazy_decode: Whether the record has the bytes of the audio file.
    """

    shape: Shape = (None,)
    dtype: str = "int64"
    _: KW_ONLY
    file_format: str | None = None
    sample_rate: int | None = None
    encoding: str = "none"
    lazy_decode: bool = False

    def __post_init__(self) -> None:
        """Check and normalise."""
        super().__post_init__()
        if len(self.shape) not in (1, 2):
            raise ValueError(f"shape must be (length,) or (length, channels), got {self.shape}")


@dataclass(frozen=True, repr=False)
class BBoxFeature(FeatureConnector):
    """A bounding box of four float32.

    Args:
        bbox_format: The meaning of the four numbers: "REL_YXYX" (ymin, xmin, ymax, xmax from 0 to
            1) or "REL_XYXY"; "YXYX", "XYXY" or "XYWH" in pixels; or None if unknown.
    """

    bbox_format: str | None = "REL_YXYX"

    def __post_init__(self) -> None:
        """Check the format."""
        formats = ("REL_YXYX", "REL_XYXY", "YXYX", "XYXY", "XYWH")
        one_of("bbox_format", self.bbox_format, None, *formats)


@dataclass(frozen=True, repr=False)
class Text(FeatureConnector):
    """UTF-8 text."""


@dataclass(frozen=True, repr=False)
class FeaturesDict(FeatureConnector, Mapping[str, Any]):
    """Features by name: `tree["image"]`, or `tree["a/b"]` for nested ones.

    Args:
        features: Name -> feature or nested mapping.
    """

    features: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Convert nested mappings to FeaturesDicts."""
        if not isinstance(self.features, Mapping) or any(
            not isinstance(name, str) for name in self.features
        ):
            raise TypeError("features must be a mapping of names to features")
        set_fields(
            self, features={name: as_feature(value) for name, value in self.features.items()}
        )

    def __getitem__(self, name: str) -> Any:
        """Return the feature with a name, or with a path of names joined by "/"."""
        if name in self.features or "/" not in name:
            return self.features[name]
        # A path goes through sequences, as the keys of records do.
        first, rest = name.split("/", 1)
        inner = innermost(self.features[first])
        if not isinstance(inner, FeaturesDict):
            raise KeyError(name)
        return inner[rest]

    def __iter__(self) -> Iterator[str]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """Show one line per feature."""
        lines = [
            f"    {name!r}: {value!r},".replace("\n", "\n    ")
            for name, value in self.features.items()
        ]
        return "\n".join(["FeaturesDict({", *lines, "})"])


@dataclass(frozen=True, repr=False)
class Translation(FeaturesDict):
    """One text per language: a `FeaturesDict` of them.

    Args:
        languages: Language codes.
    """

    features: Mapping[str, Any] = field(init=False, compare=False)
    languages: tuple[str, ...]

    def __post_init__(self) -> None:
        """Normalise."""
        languages = tuple(self.languages)
        # The features follow from the languages; they are no argument.
        set_fields(self, languages=languages, features={name: Text() for name in languages})

    __repr__ = FeatureConnector.__repr__


@dataclass(frozen=True, repr=False)
class Sequence(FeatureConnector):
    """A list of values of one feature; for a FeaturesDict, one list per leaf.

    Args:
        feature: A feature, or a mapping of features.
        length: Fixed length; None if it varies.
    """

    feature: Any
    length: int | None = None

    def __post_init__(self) -> None:
        """Convert a mapping to a FeaturesDict, and -1 to None."""
        set_fields(
            self,
            feature=as_feature(self.feature),
            length=None if self.length == -1 else self.length,
        )

    def __getitem__(self, name: str) -> Any:
        """Return the feature with a name, or with a path of names, in a sequence of dicts."""
        return self.feature[name]

    def __contains__(self, name: object) -> bool:
        return name in self.feature


@dataclass(frozen=True, repr=False)
class TranslationVariableLanguages(Sequence):
    """Texts in a varying set of languages: a `Sequence` of dicts, `language` and `translation`.

    Args:
        languages: The language codes that occur; None if unknown.
    """

    feature: Any = field(init=False, compare=False)
    length: int | None = field(init=False, compare=False, default=None)
    languages: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Normalise."""
        # In the record two lists of the same length, whatever the languages.
        texts = FeaturesDict({"language": Text(), "translation": Text()})
        set_fields(self, feature=texts, languages=tuple(self.languages or ()) or None)


@dataclass(frozen=True, repr=False)
class Dataset(Sequence):
    """A `Sequence` that TFDS reads as a nested dataset, such as the steps of an episode."""


@dataclass(frozen=True, repr=False)
class UnknownFeature(FeatureConnector):
    """A feature of an unsupported class; an error is raised only if you read it.

    Args:
        class_name: Class name in features.json.
        reason: Why it cannot be read.
    """

    class_name: str
    reason: str = "an unknown feature class"


def as_feature(value: object) -> FeatureConnector:
    """Convert a mapping to a FeaturesDict and a dtype to a Scalar; return a feature unchanged.

    Raises:
        TypeError: Anything else.
    """
    if isinstance(value, FeatureConnector):
        return value
    if isinstance(value, Mapping):
        return FeaturesDict(value)
    if isinstance(value, (torch.dtype, np.dtype, type)):
        # A dtype is checked and named by the Scalar.
        return Scalar(value)  # type: ignore[arg-type]
    raise TypeError(
        f"a feature must be a torch_tfrecord.tfds.features class, a mapping or a dtype, got {value!r}"
    )
