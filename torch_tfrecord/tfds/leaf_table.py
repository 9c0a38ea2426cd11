"""Turn the leaves of a feature tree into readers: a feature spec for a plain feature, else a
`Leaf`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import torch_tfrecord.tfds.features as f
from torch_tfrecord.columns.dtypes import BYTES_LIST
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.image import Image
from torch_tfrecord.columns.lists import FixedLenFeature, VarLenFeature
from torch_tfrecord.columns.one_value import Text
from torch_tfrecord.columns.reading import Want
from torch_tfrecord.errors import ParseError
from torch_tfrecord.tfds.elements import (
    BytesElement,
    Element,
    EncodedTensor,
    NumberElement,
    StringElement,
    TextElement,
)
from torch_tfrecord.tfds.feature_base import Shape
from torch_tfrecord.tfds.leaves import Leaf
from torch_tfrecord.tfds.pictures import PIXEL_MODES, BoxLeaf, PictureElement, sound_element

__all__ = [
    "Decoding",
    "LeafPlace",
    "list_leaves",
    "make_element",
    "make_leaf",
    "paths_below",
    "plain_spec",
]


@dataclass(frozen=True)
class Decoding:
    """How leaves are decoded.

    Args:
        as_numpy_layout: Use the TFDS layout: images [H, W, C], boxes as four plain numbers.
        decoders: Path -> function that decodes the bytes instead of the feature's own decoder; None
            returns the bytes.
        defaults: Path -> value for a missing optional feature.
    """

    as_numpy_layout: bool = False
    decoders: Mapping[str, Callable[[bytes], Any] | None] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LeafPlace:
    """A leaf and its place in the tree.

    Attributes:
        path: Names from the root, joined by "/": its key in the record.
        names: The same names as a tuple.
        feature: The leaf's feature.
        lengths: Lengths of the sequences around it, outermost first; None for any length.
        image_key: The image that bounding boxes refer to.
    """

    path: str
    names: tuple[str, ...]
    feature: f.FeatureConnector
    lengths: Shape = ()
    image_key: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it is a dict of nothing, which no record has values for."""
        return isinstance(self.feature, f.FeaturesDict)


def list_leaves(tree: f.FeatureConnector) -> list[LeafPlace]:
    """List all leaves in tree order, and dicts of nothing. A Video adds one sequence level."""
    return list(_walk(tree, (), (), None))


def paths_below(paths: Iterable[str], top: str) -> list[str]:
    """Those of the paths that are this one or below it.

    Example:
        >>> paths_below(["a", "ab", "a/b"], "a")
        ['a', 'a/b']
    """
    return [path for path in paths if path == top or path.startswith(f"{top}/")]


def _walk(
    feature: Any, names: tuple[str, ...], lengths: Shape, image: str | None
) -> list[LeafPlace]:
    if isinstance(feature, f.FeaturesDict) and (feature or not names):
        image = image if lengths else _image_of(feature, names) or image
        return [
            leaf
            for name, item in feature.items()
            for leaf in _walk(item, (*names, name), lengths, image)
        ]
    if isinstance(feature, f.Sequence):
        return _walk(feature.feature, names, (*lengths, feature.length), image)
    if isinstance(feature, f.Video):
        lengths = (*lengths, feature.shape[0])
    return [LeafPlace("/".join(names), names, feature, lengths, image)]


def _image_of(features: f.FeaturesDict, names: tuple[str, ...]) -> str | None:
    """The image that boxes in a dict refer to: the one named "image", or the only one."""
    images = [name for name, item in features.items() if isinstance(item, f.Image)]
    chosen = "image" if "image" in images else images[0] if len(images) == 1 else None
    return None if chosen is None else "/".join((*names, chosen))


def plain_spec(place: LeafPlace, decoding: Decoding) -> Feature | None:
    """The feature spec that reads the same values, if the compiled core supports the feature; else
    None.
    """
    feature, key = place.feature, place.path
    if (
        key in decoding.decoders
        or len(place.lengths) > 1
        or any(length is not None for length in place.lengths)
    ):
        return None
    is_list = bool(place.lengths)
    if isinstance(feature, f.ClassLabel):
        return (
            VarLenFeature(torch.int64, key=key)
            if is_list
            else FixedLenFeature((), torch.int64, key=key)
        )
    if isinstance(feature, f.Text):
        return VarLenFeature(str, key=key) if is_list else Text(key=key)
    if (
        isinstance(feature, f.Image)
        and feature.dtype == "uint8"
        and not is_list
        and not decoding.as_numpy_layout
    ):
        mode = PIXEL_MODES.get(feature.shape[-1] or 0)
        return None if mode is None else Image(mode, key=key, shape=feature.shape)
    if not isinstance(feature, (f.Tensor, f.Scalar)) or feature.encoding != "none":
        return None
    dtype = bytes if feature.dtype == f.STRING else f.torch_dtype_of(feature.dtype)
    if dtype in (None, torch.uint64) or (isinstance(dtype, torch.dtype) and dtype.is_complex):
        return None
    if is_list:
        return None if feature.shape else VarLenFeature(dtype, key=key)
    shape = tuple(size for size in feature.shape if size)
    return (
        None
        if feature.optional or len(shape) < len(feature.shape)
        else FixedLenFeature(shape, dtype, key=key)
    )


def make_leaf(
    place: LeafPlace,
    decoding: Decoding = Decoding(),
    path: str | None = None,
    plain: Collection[str] = (),
) -> Leaf:
    """Build the reader of a leaf.

    Args:
        place: The leaf.
        decoding: How to decode it.
        path: Path of features.json, for errors.
        plain: Paths of the leaves that plain specs read from the same records.

    Raises:
        ParseError: The feature class is unknown, or torch lacks the dtype; names the feature.
    """
    element = make_element(place, decoding, path)
    if isinstance(place.feature, f.BBoxFeature) and not decoding.as_numpy_layout:
        key = place.image_key
        # The same `Want` as the image's own reader, so that one pass over the records serves both.
        num_values = 1 if key in plain else None
        image = (
            None
            if key is None
            else Want(place.path, key, BYTES_LIST, "Image", num_values=num_values)
        )
        return BoxLeaf(place.path, element, place.lengths, place.feature.bbox_format, image)
    is_optional = getattr(place.feature, "optional", False)
    return Leaf(
        place.path,
        element,
        place.lengths,
        is_optional=is_optional,
        default=decoding.defaults.get(place.path),
    )


def make_element(
    place: LeafPlace, decoding: Decoding = Decoding(), path: str | None = None
) -> Element:
    """Build the element of a leaf, which decodes one value; arguments and errors are those of
    `make_leaf`.
    """
    element = _own_element(place, decoding, path)
    if place.path not in decoding.decoders:
        return element
    if not isinstance(element, BytesElement):
        raise ValueError(
            f"decoders: feature {place.path!r} is not an encoded value, but {element.what}"
        )
    return BytesElement(decoding.decoders[place.path], "bytes")


def _own_element(place: LeafPlace, decoding: Decoding, path: str | None) -> Element:
    feature = place.feature
    if isinstance(feature, (f.Image, f.LabeledImage)):
        return PictureElement(feature, decoding.as_numpy_layout)
    if isinstance(feature, f.Video):
        return PictureElement(feature.frame, decoding.as_numpy_layout, is_video=True)
    if isinstance(feature, f.Text):
        return TextElement()
    if isinstance(feature, f.ClassLabel):
        return NumberElement(torch.int64, ())
    if isinstance(feature, f.BBoxFeature):
        return NumberElement(torch.float32, (4,))
    if isinstance(feature, (f.Tensor, f.Scalar, f.Audio)):
        return _tensor_element(feature, place, path)
    reason, name = "an unsupported class", type(feature).__name__
    if isinstance(feature, f.UnknownFeature):
        reason, name = feature.reason, feature.class_name
    raise ParseError(
        f"feature {place.path!r}: {reason}, {name!r}; to skip it, name the features you want",
        path=path,
    )


def _tensor_element(
    feature: f.Tensor | f.Scalar | f.Audio, place: LeafPlace, path: str | None
) -> Element:
    if feature.dtype == f.STRING:
        return StringElement(feature.shape)
    dtype = f.torch_dtype_of(feature.dtype)
    if dtype is None:
        raise ParseError(f"feature {place.path!r}: torch has no dtype {feature.dtype!r}", path=path)
    if isinstance(feature, f.Audio) and feature.lazy_decode:
        return sound_element(feature, dtype)
    if feature.encoding != "none":
        return EncodedTensor(dtype, feature.shape, feature.encoding == "zlib")
    if dtype.is_complex:
        raise ParseError(
            f"feature {place.path!r}: no list can hold {feature.dtype} without an encoding",
            path=path,
        )
    return NumberElement(dtype, feature.shape)
