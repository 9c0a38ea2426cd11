"""Parse records of a TFDS dataset into samples: the chosen leaves of the feature tree, nested like
the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import getitem
from typing import Any, TypeAlias

import torch

import torch_tfrecord.tfds.features as f
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, Buffer, check_max_batch_bytes
from torch_tfrecord.columns import (
    Feature,
    FixedLenFeature,
    Text,
    VarLenFeature,
    Want,
    decode_text,
    make_parser,
)
from torch_tfrecord.errors import ParseError
from torch_tfrecord.media import Image
from torch_tfrecord.records import PackedRecords
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds.features import Shape
from torch_tfrecord.tfds.leaves import (
    BoxLeaf,
    Element,
    EncodedElement,
    Leaf,
    ListElement,
    PictureElement,
    decoded_sound,
    raw_tensor,
)

__all__ = [
    "Chosen",
    "Decoding",
    "LeafPlace",
    "SupervisedKeys",
    "TFDSParser",
    "flat_keys",
    "leaves_of",
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
    decoders: Mapping[str, Callable[[bytes], object] | None] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)


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

    @property
    def is_image(self) -> bool:
        """Whether each value is an image, perhaps of class numbers."""
        return isinstance(self.feature, (f.Image, f.LabeledImage))

    @property
    def num_values(self) -> int:
        """List values per step of an episode; 0 if the list does not determine it."""
        # A list that is not counted, or is of an unknown class, says nothing of the number of
        # steps.
        is_unknown = isinstance(self.feature, f.UnknownFeature)
        return 0 if len(self.lengths) > 1 or is_unknown else make_element(self).count or 0

    def reader(
        self,
        decoding: Decoding = Decoding(),
        path: str | None = None,
        plain: Collection[str] = (),
    ) -> Leaf:
        """The feature that reads it from records.

        Args:
            decoding: How to decode it.
            path: Path of features.json, for errors.
            plain: Paths of the leaves that plain specs read from the same records.

        Raises:
            ParseError: The feature class is unknown, or torch lacks the dtype; names the feature.
        """
        element, feature = make_element(self, decoding, path), self.feature
        box_format = getattr(feature, "bbox_format", None)
        # Nested rows of boxes have no class in torchvision.
        if box_format is not None and len(self.lengths) < 2 and not decoding.as_numpy_layout:
            # The same `Want` as the image's own reader, so that one pass over the records serves both.
            key, number = self.image_key, 1 if self.image_key in plain else None
            image = None
            if key is not None:
                image = Want(self.path, key, bytes, "Image", num_values=number)
            return BoxLeaf(self.path, element, self.lengths, box_format, image)
        return Leaf(
            self.path,
            element,
            self.lengths,
            is_optional=feature.optional,
            default=decoding.defaults.get(self.path),
        )


def _walk(
    feature: f.FeatureConnector, names: tuple[str, ...], lengths: Shape, image: str | None
) -> list[LeafPlace]:
    # An empty dict inside is a leaf of its own, so that samples have its name.
    if isinstance(feature, f.FeaturesDict) and (feature or not names):
        # Inside a sequence, a box cannot belong to the image of one of its rows.
        images = [name for name, item in feature.items() if isinstance(item, f.Image)]
        # Boxes in a dict refer to the image named "image", or to the only one.
        if not lengths and ("image" in images or len(images) == 1):
            image = "/".join((*names, "image" if "image" in images else images[0]))
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


def plain_spec(place: LeafPlace, decoding: Decoding, path: str | None) -> Feature | None:
    """The feature spec that reads the same values, if the compiled core supports the feature; else
    None. Arguments and errors are those of `LeafPlace.reader`.
    """
    element = make_element(place, decoding, path)
    key, is_list = place.path, isinstance(element, ListElement)
    # A fixed length is checked by `Leaf`, a box needs its image.
    if (
        place.lengths not in ((), (None,))
        or place.feature.optional
        or isinstance(place.feature, f.BBoxFeature)
        # No list has uint64 as it is.
        or element.dtype == torch.uint64
    ):
        return None
    dtype = element.dtype or (str if element.is_text else bytes)
    if place.lengths:
        is_known = (is_list or element.is_text) and not element.shape
        return VarLenFeature(dtype, key=key) if is_known else None
    if element.is_text:
        return Text(key=key)
    if element.plain_mode is not None and not decoding.as_numpy_layout:
        return Image(element.plain_mode, key=key, shape=element.shape)
    # No spec has an element of no values.
    shape = tuple(size for size in element.shape if size)
    is_known = is_list and len(shape) == len(element.shape)
    return FixedLenFeature(shape, dtype, key=key) if is_known else None


def make_element(
    place: LeafPlace, decoding: Decoding = Decoding(), path: str | None = None
) -> Element:
    """Build the element of a leaf, which decodes one value; arguments and errors are those of
    `LeafPlace.reader`.
    """
    element = _own_element(place, decoding, path)
    if place.path not in decoding.decoders:
        return element
    if isinstance(element, ListElement):
        raise ValueError(
            f"decoders: feature {place.path!r} is not an encoded value, but {element.what}"
        )
    return EncodedElement("bytes", decoding.decoders[place.path] or bytes)


def _own_element(place: LeafPlace, decoding: Decoding, path: str | None) -> Element:
    feature = place.feature

    def error(text: str) -> ParseError:
        return ParseError(f"feature {place.path!r}: {text}", path=path)

    match feature:
        case f.Image() | f.LabeledImage():
            return PictureElement(feature, decoding.as_numpy_layout)
        case f.Video():
            return PictureElement(feature.frame, decoding.as_numpy_layout, is_video=True)
        case f.Text():
            return EncodedElement("Text", decode_text, is_text=True)
        case f.ClassLabel():
            return ListElement(torch.int64)
        case f.BBoxFeature():
            return ListElement(torch.float32, (4,))
    if not isinstance(feature, (f.Tensor, f.Scalar, f.Audio)):
        reason, name = "an unsupported class", type(feature).__name__
        if isinstance(feature, f.UnknownFeature):
            reason, name = feature.reason, feature.class_name
        raise error(f"{reason}, {name!r}; to skip it, name the features you want")
    if feature.dtype == f.STRING:
        return ListElement(None, feature.shape)
    dtype = f.torch_dtype_of(feature.dtype)
    if dtype is None:
        raise error(f"torch has no dtype {feature.dtype!r}")
    if isinstance(feature, f.Audio) and feature.lazy_decode:
        return EncodedElement("Audio", partial(decoded_sound, shape=feature.shape, dtype=dtype))
    if feature.encoding != "none":
        return raw_tensor(dtype, feature.shape, feature.encoding == "zlib")
    if dtype.is_complex:
        raise error(f"no list can hold {feature.dtype} without an encoding")
    return ListElement(dtype, feature.shape)


SupervisedKeys: TypeAlias = "str | tuple[SupervisedKeys, ...] | Mapping[str, SupervisedKeys]"
"""Feature names, or nested tuples and dicts of them."""
Chosen: TypeAlias = Any
"""Feature names: paths such as "image" or "objects/label", or a nested mapping {"objects": {"label"}}."""


class TFDSParser:
    """Reads the chosen leaves of each record. Pickles if its decoders do; safe from several
    threads.

    Args:
        features: The feature tree.
        chosen: Names of the features to read; None for all.
        decoding: How to decode the leaves.
        supervised_keys: Return a tuple of these instead of the dict.
        path: Path of features.json, for errors.
        max_batch_bytes: See `TFRecordDataset`.

    Raises:
        KeyError: A name is not in the tree.
        ParseError: A chosen feature has an unknown class.
        ValueError: Nothing is chosen, or a feature cannot have the given decoder or default.
    """

    needs_keys = False  # nothing is drawn at random

    def __init__(
        self,
        features: f.FeatureConnector,
        chosen: Chosen = None,
        *,
        decoding: Decoding | None = None,
        supervised_keys: SupervisedKeys | None = None,
        path: str | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        # Readers have compiled plans, which do not pickle.
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.max_batch_bytes = check_max_batch_bytes(max_batch_bytes)
        decoding = decoding or Decoding()
        _check_paths(decoding, leaves_of(features))
        if supervised_keys is not None and chosen is None:
            # Nothing else of the sample is returned.
            chosen = list(flat_keys(supervised_keys))
        self.leaves = leaves_of(features, chosen)
        self._supervised_keys = supervised_keys
        full = [leaf for leaf in self.leaves if not leaf.is_empty]
        found = {leaf.path: plain_spec(leaf, decoding, path) for leaf in full}
        specs = {key: spec for key, spec in found.items() if spec is not None}
        # Only if nothing else is read: see `plain_features`.
        self._specs = specs if len(specs) == len(self.leaves) else None
        readers: dict[str, Feature | Leaf] = {**specs}
        for leaf in full:
            if leaf.path not in specs:
                readers[leaf.path] = leaf.reader(decoding, path, specs)
        if not readers:  # nothing is read, but a record is an Example anyway
            readers[""] = VarLenFeature(bytes)
        self._parser = make_parser(readers, max_batch_bytes=self.max_batch_bytes)

    def __reduce__(self) -> tuple[Callable[[], TFDSParser], tuple[()]]:
        """Pickle the arguments; unpickling builds the readers again."""
        return partial(TFDSParser, **self._arguments), ()

    def single(self, serialized: Buffer, key: int = 0) -> object:
        """Parse one record into a sample.

        Raises:
            ImageDecodeError: An image cannot be decoded.
            ParseError: The bytes are not an Example, or do not fit the features.
        """
        return self._nest(self._parser.single(serialized))

    def begin(self, records: PackedRecords) -> None:
        """See `SampleParser`."""
        self._parser.begin(records)

    def batches(self, records: PackedRecords, keys: object, borders: Sequence[int]) -> list[object]:
        """Parse several batches at once into columns, nested like a sample: all their records, and
        their borders.
        """
        return [*map(self._nest, self._parser.batches(records, None, borders))]

    @property
    def plain_features(self) -> Mapping[str, Feature] | None:
        """The feature specs that read the same samples, if all leaves are plain and nothing is
        nested; else None.
        """
        is_flat = (
            all(len(leaf.names) == 1 for leaf in self.leaves) and self._supervised_keys is None
        )
        return self._specs if is_flat else None

    @property
    def features(self) -> list[str]:
        """The paths of the features that are read."""
        return [leaf.path for leaf in self.leaves]

    def _nest(self, values: Mapping[str, object]) -> object:
        nested: dict[str, Any] = {}
        for leaf in self.leaves:
            *parents, name = leaf.names
            target = nested
            for parent in parents:
                target = target.setdefault(parent, {})
            # A dict of nothing has no values.
            target[name] = values.get(leaf.path, {})
        keys = self._supervised_keys
        return nested if keys is None else _supervised(keys, nested)


def leaves_of(tree: f.FeatureConnector, chosen: Chosen = None) -> list[LeafPlace]:
    """The leaves of a tree, also dicts of nothing, or the chosen ones, in tree order. A Video adds
    one sequence level.

    Raises:
        KeyError: A name is not in the tree.
        ValueError: Nothing is chosen.
    """
    places = _walk(tree, (), (), None)
    if chosen is None:
        return places
    wanted = list(_chosen_paths(chosen, ()))
    if not wanted:
        raise ValueError("features must name at least one feature, or be None for all")
    # A name means all leaves below it.
    there, found = [leaf.path for leaf in places], set[str]()
    for path in wanted:
        below = [leaf for leaf in there if f"{leaf}/".startswith(f"{path}/")]
        if not below:
            raise KeyError(f"no feature {path!r}; there are {shown_list(sorted(there))}")
        found.update(below)
    return [leaf for leaf in places if leaf.path in found]


def _chosen_paths(chosen: Chosen, names: tuple[str, ...]) -> Iterable[str]:
    if isinstance(chosen, str):
        yield "/".join((*names, chosen))
    elif isinstance(chosen, Mapping):
        for name, inner in chosen.items():
            # As in the PartialDecoding of TFDS, a mapping may have True, or the feature itself.
            if inner is True or isinstance(inner, f.FeatureConnector):
                yield "/".join((*names, name))
            elif inner is not False:
                yield from _chosen_paths(inner, (*names, name))
    elif isinstance(chosen, Iterable):
        for item in chosen:
            yield from _chosen_paths(item, names)
    else:
        raise TypeError(
            f"features must be names, or a nested mapping of them, got {type(chosen).__name__}"
        )


def _check_paths(decoding: Decoding, places: Sequence[LeafPlace]) -> None:
    leaves = {leaf.path: leaf for leaf in places}
    for argument, paths in (("decoders", decoding.decoders), ("defaults", decoding.defaults)):
        for path in paths:
            if path not in leaves:
                raise KeyError(
                    f"{argument}: no feature {path!r}; there are {shown_list(sorted(leaves))}"
                )
    for path in decoding.defaults:
        if not leaves[path].feature.optional:
            raise ValueError(f"defaults: feature {path!r} is not optional")


def _supervised(keys: SupervisedKeys, sample: Any) -> object:
    if isinstance(keys, str):
        # A name may contain a "/" itself.
        return reduce(getitem, (keys,) if keys in sample else keys.split("/"), sample)
    if isinstance(keys, Mapping):
        return {name: _supervised(item, sample) for name, item in keys.items()}
    return tuple(_supervised(item, sample) for item in keys)


def flat_keys(keys: SupervisedKeys) -> Iterator[str]:
    """Yield the feature names in nested supervised keys.

    Raises:
        TypeError: An item is not a name, tuple or dict.
    """
    if isinstance(keys, str):
        yield keys
    elif isinstance(keys, (tuple, Mapping)):
        for item in keys.values() if isinstance(keys, Mapping) else keys:
            yield from flat_keys(item)
    else:
        raise TypeError(
            f"supervised_keys must be names, or tuples and dicts of names, got {type(keys).__name__}"
        )
