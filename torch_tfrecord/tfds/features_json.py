"""Parse features.json of any TFDS generation into a feature tree, and write a tree as TFDS 4.9
does.

::

    new   {"pythonClassName": <dotted class>, "image": {"shape": {"dimensions": ["-1", "-1", "3"]}, ...}}
    old   {"type": <dotted class>, "content": {"shape": [null, null, 3], ...}}
    between   {"type": ..., "content": <the new form's content, or its JSON as a string>, "proto_cls": ...}

Numbers may be JSON numbers or strings; names camelCase or snake_case. Source: tensorflow_datasets
4.9.10, ``core/proto/feature.proto`` and the ``from_json_content`` and ``to_json_content`` of each
class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch_tfrecord.tfds.features as f
from torch_tfrecord.errors import ParseError
from torch_tfrecord.shown import shown_value
from torch_tfrecord.tfds.features import Shape, set_fields
from torch_tfrecord.tfds.files import json_field, json_integer, snake_case

__all__ = ["as_root", "features_from_json", "features_to_json"]

_PACKAGE = "tensorflow_datasets."
_MAX_DEPTH = 64  # of nested features: far above any real tree, far below Python's recursion limit


def features_from_json(value: Any, path: str) -> f.FeaturesDict | f.Sequence:
    """Build the feature tree. Unknown feature classes become `UnknownFeature`.

    Args:
        value: The parsed JSON.
        path: Path of the file, for errors.

    Raises:
        ParseError: The JSON has none of the known forms; names the file and the field.
    """
    place = _Place(path, ())
    try:
        return as_root(_feature(value, place))
    except TypeError as error:
        raise place.error(f"{error}") from None


def features_to_json(feature: f.FeatureConnector) -> dict[str, Any]:
    """Return the JSON of a tree in the new form, as TFDS 4.9 writes it.

    Raises:
        ValueError: The tree has an `UnknownFeature`.
    """
    name = type(feature).__name__
    if name not in _CLASSES:
        raise ValueError(f"a feature of class {name} cannot be written")
    _, module, key, fields, constants = _CLASSES[name]
    written = {
        key: kind.write(getattr(feature, kind.name or snake_case(key)))
        for key, kind in fields.items()
    }
    content = {**constants, **{name: value for name, value in written.items() if value is not None}}
    node = {"pythonClassName": f"{_PACKAGE}core.features.{module}.{name}", key: content}
    return {**node, "description": feature.doc} if feature.doc else node


def as_root(value: object) -> f.FeaturesDict | f.Sequence:
    """Convert to the features of a dataset, which have names: a FeaturesDict, or a Sequence of
    dicts.

    Raises:
        TypeError: Anything else; TFDS cannot write such datasets.
    """
    root = inner = f.as_feature(value)
    while isinstance(inner, f.Sequence):
        inner = inner.feature
    if not isinstance(inner, f.FeaturesDict) or not isinstance(root, (f.FeaturesDict, f.Sequence)):
        raise TypeError(f"expected a FeaturesDict, or a Sequence of dicts, got {root!r}")
    return root


class _Place(NamedTuple):
    """A position in features.json, for errors."""

    path: str
    names: tuple[str, ...]
    depth: int = 0

    def below(self, *names: str) -> _Place:
        return _Place(self.path, (*self.names, *names), self.depth + 1)

    def error(self, text: str) -> ParseError:
        field = "/".join(self.names)
        return ParseError(f"feature {field!r}: {text}" if field else text, path=self.path)


class _Content:
    """The content of one feature: values by camelCase or snake_case name, with type checks."""

    def __init__(self, values: Mapping[str, Any], place: _Place) -> None:
        self.values = values
        self.place = place

    def get(self, name: str) -> Any:
        """The value, or None."""
        return json_field(self.values, name)

    def integer(self, name: str) -> int | None:
        """An integer, written as a number or string."""
        value = self.get(name)
        number = json_integer(value)
        if value is not None and number is None:
            raise self.place.error(f"expected {name} as an integer, got {shown_value(value)}")
        return number

    def number(self, name: str) -> float | None:
        """A float."""
        value = self.get(name)
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.place.error(
                f"expected {name} as a number, got {shown_value(value)}"
            ) from None

    def text(self, name: str) -> str | None:
        """A string; None for ""."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.place.error(f"expected {name} as a string, got {type(value).__name__}")
        return value or None

    def flag(self, name: str) -> bool:
        """A bool; False if missing."""
        value = self.get(name)
        if not isinstance(value, (bool, type(None))):
            raise self.place.error(f"expected {name} as true or false, got {shown_value(value)}")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self.get(name) or []
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self.place.error(
                f"expected {name} as a list of strings, got {shown_value(value)}"
            )
        return tuple(value)

    def shape(self, name: str) -> Shape:
        """The shape: a list with null, or {"dimensions": [...]} with -1."""
        value = self.get(name)
        sizes = (
            value.get("dimensions", [])
            if isinstance(value, Mapping)
            else []
            if value is None
            else value
        )
        found = (
            [-1 if size is None else json_integer(size) for size in sizes]
            if isinstance(sizes, list)
            else [None]
        )
        if any(size is None or size < -1 for size in found):
            raise self.place.error(f"expected shape as a list of sizes, got {shown_value(value)}")
        return tuple(None if size == -1 else size for size in found)


def _feature(value: Any, place: _Place) -> f.FeatureConnector:
    if not isinstance(value, Mapping):
        raise place.error(f"expected a feature as an object, got {type(value).__name__}")
    if place.depth > _MAX_DEPTH:
        raise place.error(f"expected features nested at most {_MAX_DEPTH} deep, got more")
    class_name = value.get("pythonClassName", value.get("type"))
    if not isinstance(class_name, str):
        raise place.error("expected the feature's class (pythonClassName), got none")
    content = _content(value, place)
    name = class_name.rsplit(".", 1)[-1]
    known = (
        _CLASSES.get("BBoxFeature" if name == "BBox" else name)
        if class_name.startswith(_PACKAGE)
        else None
    )
    if known is None:
        return f.UnknownFeature(class_name)
    if content.get("useEncoder") is not None:
        return f.UnknownFeature(class_name, "text of the old encoders")
    try:
        fields = known.fields.items()
        built = known.feature(
            **{kind.name or snake_case(key): kind.read(content, key) for key, kind in fields}
        )
    except (TypeError, ValueError) as error:
        raise place.error(f"{error}") from error
    description = value.get("description")
    if isinstance(description, Mapping):
        description = description.get("text", description.get("description"))
    if isinstance(description, str) and description:
        set_fields(built, doc=description)
    return built


def _content(value: Mapping[str, Any], place: _Place) -> _Content:
    if "pythonClassName" in value:
        keys = [key for key in value if key in _CONTENT_KEYS]
        found = value[keys[0]] if len(keys) == 1 else None if keys else {}
        if keys in (["jsonFeature"], ["json_feature"]) and isinstance(found, Mapping):
            found = found.get("json")
    else:
        found = value.get("content")
        found = {} if found is None else found
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise place.error("expected the content as JSON, got another string") from error
    if not isinstance(found, Mapping):
        raise place.error("expected one content, as an object")
    return _Content(found, place)


class _Kind(NamedTuple):
    """How to read a field from the content by its key, and how to write its value; None leaves it
    out.
    """

    read: Callable[[_Content, str], Any]
    write: Callable[[Any], object] = lambda value: value
    name: str = ""  # name of the class's field, if it differs from the key


def _dtype(default: str | None = None) -> _Kind:
    def read(content: _Content, name: str) -> str:
        found = content.text(name) or default
        if found is None:
            raise content.place.error("expected a dtype, got none")
        return found

    return _Kind(read)


def _read_features(content: _Content, name: str) -> dict[str, f.FeatureConnector]:
    inner = content.values.get(name)
    wrapped = isinstance(inner, Mapping) and not isinstance(
        inner.get("type", inner.get("pythonClassName")), str
    )
    named = inner if wrapped and len(content.values) == 1 and inner is not None else content.values
    return {name: _feature(named[name], content.place.below(str(name))) for name in sorted(named)}


def _read_length(content: _Content, name: str) -> int | None:
    length = content.integer(name)
    if length is not None and length < -1:
        raise content.place.error(f"expected length as a number or -1, got {length}")
    return length


def _read_label(content: _Content, name: str) -> int | None:
    label = content.get(name)
    label = label if isinstance(label, Mapping) else {"numClasses": content.get("labels")}
    return _Content(label, content.place).integer("numClasses") or None


def _read_box_format(content: _Content, name: str) -> str | None:
    # Before TFDS had box formats, all boxes used this one; a proto without a format means that it
    # is unknown.
    old = name not in content.values and "dtype" not in content.values
    return "REL_YXYX" if old else content.text(name)


_SHAPE = _Kind(
    _Content.shape,
    lambda shape: (
        {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}
    ),
)
_ENCODING = _Kind(lambda content, name: content.text(name) or "none")
_NUMBER = _Kind(_Content.number)
_TEXT = _Kind(_Content.text, lambda text: text or None)
_FLAG = _Kind(_Content.flag, lambda flag: flag or None)
_BOX_FORMAT = _Kind(_read_box_format)
_NUM_CLASSES = _Kind(
    lambda content, name: content.integer(name) or None, lambda number: str(number or 0)
)
# written to their own file
_NAMES = _Kind(lambda content, name: content.texts(name) or None, lambda names: None)
_LABEL = _Kind(_read_label, lambda number: {"numClasses": str(number or 0)}, "num_classes")
_RATE = _Kind(
    lambda content, name: content.integer(name) or None, lambda rate: str(rate) if rate else None
)
_LANGUAGES = _Kind(_Content.texts, list)
_ANY = _Kind(
    lambda content, name: content.texts(name) or None, lambda languages: list(languages or ())
)
_FEATURES = _Kind(
    _read_features,
    lambda features: {name: features_to_json(item) for name, item in features.items()},
)
_INNER = _Kind(
    lambda content, name: _feature(content.get(name), content.place.below()), features_to_json
)
_LENGTH = _Kind(_read_length, lambda length: "-1" if length is None else str(length))


class _Class(NamedTuple):
    """A feature class, and how TFDS writes it.

    Attributes:
        feature: The class.
        module: Its module in TFDS.
        key: Key of the content.
        fields: The fields of the content by their keys: the class's field names in camelCase.
        constants: Values written for every feature of the class.
    """

    feature: type[f.FeatureConnector]
    module: str
    key: str
    fields: Mapping[str, _Kind] = MappingProxyType({})
    constants: Mapping[str, object] = MappingProxyType({})


_OPTIONS = {"encoding": _ENCODING, "minimum": _NUMBER, "maximum": _NUMBER, "optional": _FLAG}
_PIXELS = {"shape": _SHAPE, "dtype": _dtype("uint8"), "encodingFormat": _TEXT, "useColormap": _FLAG}
_AUDIO = {
    "shape": _SHAPE,
    "dtype": _dtype("int64"),
    "fileFormat": _TEXT,
    "sampleRate": _RATE,
    "encoding": _Kind(_ENCODING.read, str.upper),
    "lazyDecode": _Kind(_Content.flag),
}
_SEQUENCE = {"length": _LENGTH, "feature": _INNER}
_BOX = {"shape": {"dimensions": ["4"]}, "dtype": "float32"}
_VARIABLE = {"variableLanguagesPerExample": True}
_ROWS = (
    _Class(f.Audio, "audio_feature", "audio", _AUDIO),
    _Class(f.BBoxFeature, "bounding_boxes", "boundingBox", {"bboxFormat": _BOX_FORMAT}, _BOX),
    _Class(
        f.ClassLabel,
        "class_label_feature",
        "classLabel",
        {"numClasses": _NUM_CLASSES, "names": _NAMES},
    ),
    _Class(f.Dataset, "dataset_feature", "sequence", _SEQUENCE),
    _Class(f.FeaturesDict, "features_dict", "featuresDict", {"features": _FEATURES}),
    _Class(f.Image, "image_feature", "image", _PIXELS),
    _Class(f.LabeledImage, "labeled_image", "image", {"label": _LABEL, **_PIXELS}),
    _Class(f.Scalar, "scalar", "tensor", {"dtype": _dtype(), **_OPTIONS}, {"shape": {}}),
    _Class(f.Sequence, "sequence_feature", "sequence", _SEQUENCE),
    _Class(f.Tensor, "tensor_feature", "tensor", {"shape": _SHAPE, "dtype": _dtype(), **_OPTIONS}),
    _Class(f.Text, "text_feature", "text"),
    _Class(f.Translation, "translation_feature", "translation", {"languages": _LANGUAGES}),
    _Class(
        f.TranslationVariableLanguages,
        "translation_feature",
        "translation",
        {"languages": _ANY},
        _VARIABLE,
    ),
    _Class(f.Video, "video_feature", "video", _PIXELS),
)
_CLASSES = {row.feature.__name__: row for row in _ROWS}
_CONTENT_KEYS = {
    name for key in (*(row.key for row in _ROWS), "jsonFeature") for name in (key, snake_case(key))
}
