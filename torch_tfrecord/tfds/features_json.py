"""features.json to a feature tree: all generations of the format.

::

    new   {"pythonClassName": <dotted class>, "image": {"shape": {"dimensions": ["-1", "-1", "3"]}, ...}}
    old   {"type": <dotted class>, "content": {"shape": [null, null, 3], ...}}
    between   {"type": ..., "content": <the new form's content, or its JSON as a string>, "proto_cls": ...}

Numbers may be JSON numbers or strings; names camelCase or snake_case. Source: tensorflow_datasets 4.9.10,
``core/proto/feature.proto`` and the ``from_json_content`` of each class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch_tfrecord.tfds.features as f
from torch_tfrecord.errors import ParseError
from torch_tfrecord.shown import shown_value
from torch_tfrecord.tfds.json_fields import json_integer

__all__ = ["features_from_json"]

_PACKAGE = "tensorflow_datasets."
_MAX_DEPTH = 64  # of features in features: far above any, far below where Python stops
_CONTENT_KEYS = (
    "featuresDict",
    "tensor",
    "classLabel",
    "image",
    "video",
    "audio",
    "boundingBox",
    "text",
    "translation",
    "sequence",
    "jsonFeature",
)


def features_from_json(value: Any, path: str) -> f.FeaturesDict:
    """Build the tree.

    Args:
        value: The parsed JSON.
        path: Of the file, for errors.

    Raises:
        ParseError: Not in one of the forms; names the file and the field. A class that is not known becomes an
            `UnknownFeature`.
    """
    root = _feature(value, _Place(path, ()))
    if isinstance(root, f.FeaturesDict):
        return root
    raise _Place(path, ()).error(f"expected a FeaturesDict, got {type(root).__name__}")


class _Place(NamedTuple):
    """Where in the file something stands."""

    path: str
    names: tuple[str, ...]
    depth: int = 0

    def below(self, *names: str) -> _Place:
        return _Place(self.path, (*self.names, *names), self.depth + 1)

    def error(self, text: str) -> ParseError:
        field = "/".join(self.names)
        return ParseError(f"feature {field!r}: {text}" if field else text, path=self.path)


class _Content:
    """The content of one feature: values by name, of camelCase or snake_case, checked for their type."""

    def __init__(self, values: Mapping[str, Any], place: _Place) -> None:
        self.values = values
        self.place = place

    def get(self, name: str) -> Any:
        """The value, None where there is none."""
        found = self.values.get(name)
        return self.values.get(_snake(name)) if found is None else found

    def integer(self, name: str) -> int | None:
        """A number, written as number or string."""
        value = self.get(name)
        number = json_integer(value)
        if value is not None and number is None:
            raise self.place.error(f"expected {name} as an integer, got {shown_value(value)}")
        return number

    def number(self, name: str) -> float | None:
        """A number that need not be whole."""
        value = self.get(name)
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.place.error(f"expected {name} as a number, got {shown_value(value)}") from None

    def text(self, name: str) -> str | None:
        """A string; "" is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.place.error(f"expected {name} as a string, got {type(value).__name__}")
        return value or None

    def flag(self, name: str) -> bool:
        """A bool; false where it is left out."""
        value = self.get(name)
        if not isinstance(value, (bool, type(None))):
            raise self.place.error(f"expected {name} as true or false, got {shown_value(value)}")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self.get(name) or []
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self.place.error(f"expected {name} as a list of strings, got {shown_value(value)}")
        return tuple(value)

    def shape(self) -> tuple[int | None, ...]:
        """The shape: a list with null, or {"dimensions": [...]} with -1."""
        value = self.get("shape")
        sizes = value.get("dimensions", []) if isinstance(value, Mapping) else [] if value is None else value
        found = [-1 if size is None else json_integer(size) for size in sizes] if isinstance(sizes, list) else [None]
        if any(size is None or size < -1 for size in found):
            raise self.place.error(f"expected shape as a list of sizes, got {shown_value(value)}")
        return tuple(None if size == -1 else size for size in found)

    def dtype(self, default: str | None = None) -> str:
        """The dtype's name."""
        name = self.text("dtype") or default
        if name is None:
            raise self.place.error("expected a dtype, got none")
        return name


def _feature(value: Any, place: _Place) -> f.FeatureConnector:
    if not isinstance(value, Mapping):
        raise place.error(f"expected a feature as an object, got {type(value).__name__}")
    if place.depth > _MAX_DEPTH:
        raise place.error(f"expected features in features at most {_MAX_DEPTH} deep, got more")
    class_name = value.get("pythonClassName", value.get("type"))
    if not isinstance(class_name, str):
        raise place.error("expected the feature's class (pythonClassName), got none")
    content = _content(value, place)
    build = _BUILDERS.get(class_name.rsplit(".", 1)[-1]) if class_name.startswith(_PACKAGE) else None
    if build is None:
        return f.UnknownFeature(class_name)
    if content.get("useEncoder") is not None:
        return f.UnknownFeature(class_name, "texts of the old encoders")
    try:
        built = build(content)
    except (TypeError, ValueError) as error:
        raise place.error(f"{error}") from error
    description = value.get("description")
    if isinstance(description, Mapping):
        description = description.get("text", description.get("description"))
    if isinstance(description, str) and description:
        object.__setattr__(built, "doc", description)
    return built


def _content(value: Mapping[str, Any], place: _Place) -> _Content:
    if "pythonClassName" in value:
        keys = [key for key in _CONTENT_KEYS if key in value or _snake(key) in value]
        found = value.get(keys[0], value.get(_snake(keys[0]))) if len(keys) == 1 else None if keys else {}
        if keys == ["jsonFeature"] and isinstance(found, Mapping):
            found = found.get("json")
    else:
        found = value.get("content")
        found = {} if found is None else found
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise place.error("expected the content as JSON, got a string that is none") from error
    if not isinstance(found, Mapping):
        raise place.error("expected one content, as an object")
    return _Content(found, place)


def _features_dict(content: _Content) -> f.FeaturesDict:
    inner = content.values.get("features")
    wrapped = isinstance(inner, Mapping) and not isinstance(inner.get("type", inner.get("pythonClassName")), str)
    named = inner if wrapped and len(content.values) == 1 and inner is not None else content.values
    return f.FeaturesDict({name: _feature(named[name], content.place.below(str(name))) for name in sorted(named)})


def _tensor(content: _Content) -> f.Tensor:
    return f.Tensor(content.shape(), content.dtype(), **_tensor_options(content))


def _scalar(content: _Content) -> f.Scalar:
    return f.Scalar(content.dtype(), **_tensor_options(content))


def _tensor_options(content: _Content) -> dict[str, Any]:
    return {
        "encoding": content.text("encoding") or "none",
        "minimum": content.number("minimum"),
        "maximum": content.number("maximum"),
        "optional": content.flag("optional"),
    }


def _class_label(content: _Content) -> f.ClassLabel:
    return f.ClassLabel(content.integer("numClasses"), content.texts("names") or None)


def _pixels(content: _Content, dtype: str = "uint8") -> dict[str, Any]:
    return {
        "shape": content.shape(),
        "dtype": content.dtype(dtype),
        "encoding_format": content.text("encodingFormat"),
        "use_colormap": content.flag("useColormap"),
    }


def _labeled_image(content: _Content) -> f.LabeledImage:
    label = content.get("label")
    label = label if isinstance(label, Mapping) else {"numClasses": content.get("labels")}
    return f.LabeledImage(_Content(label, content.place).integer("numClasses"), **_pixels(content))


def _audio(content: _Content) -> f.Audio:
    return f.Audio(
        content.shape(),
        content.dtype("int64"),
        file_format=content.text("fileFormat"),
        sample_rate=content.integer("sampleRate") or None,
        encoding=content.text("encoding") or "none",
        lazy_decode=content.flag("lazyDecode"),
    )


def _bbox(content: _Content) -> f.BBoxFeature:
    # Before there were formats all boxes were of this one; a proto without one means that it is not known.
    old = "bboxFormat" not in content.values and "dtype" not in content.values
    return f.BBoxFeature("REL_YXYX" if old else content.text("bboxFormat"))


def _translation(content: _Content) -> f.Translation:
    return f.Translation(content.texts("languages"))


def _translations(content: _Content) -> f.TranslationVariableLanguages:
    return f.TranslationVariableLanguages(content.texts("languages") or None)


def _sequence_of(kind: type[f.Sequence]) -> Callable[[_Content], f.Sequence]:
    def build(content: _Content) -> f.Sequence:
        length = content.integer("length")
        if length is not None and length < -1:
            raise content.place.error(f"expected length as a number or -1, got {length}")
        return kind(_feature(content.get("feature"), content.place.below()), length)

    return build


_BUILDERS: dict[str, Callable[[_Content], f.FeatureConnector]] = {
    "Audio": _audio,
    "BBox": _bbox,
    "BBoxFeature": _bbox,
    "ClassLabel": _class_label,
    "Dataset": _sequence_of(f.Dataset),
    "FeaturesDict": _features_dict,
    "Image": lambda content: f.Image(**_pixels(content)),
    "LabeledImage": _labeled_image,
    "Scalar": _scalar,
    "Sequence": _sequence_of(f.Sequence),
    "Tensor": _tensor,
    "Text": lambda content: f.Text(),
    "Translation": _translation,
    "TranslationVariableLanguages": _translations,
    "Video": lambda content: f.Video(**_pixels(content)),
}


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
