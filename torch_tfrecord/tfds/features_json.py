"""Read the JSON files of TFDS by field, with errors that name the file and the field; parse
features.json of any TFDS generation into a feature tree, and write a tree as TFDS 4.9 does.

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
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

import torch_tfrecord.tfds.features as f
from torch_tfrecord.errors import ParseError
from torch_tfrecord.files import Access, open_file
from torch_tfrecord.shown import shown_value
from torch_tfrecord.tfds.features import Shape, innermost, set_fields

__all__ = [
    "JsonFields",
    "as_root",
    "features_from_json",
    "features_to_json",
    "read_json",
    "read_text",
]

# A class of another package with a known name may mean anything.
_PACKAGE = "tensorflow_datasets."
_MAX_DEPTH = 64  # nested features: far above any real tree, far below Python's recursion limit


def features_from_json(value: object, path: str) -> f.FeaturesDict | f.Sequence:
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


def features_to_json(feature: f.FeatureConnector) -> dict[str, object]:
    """Return the JSON of a tree in the new form, as TFDS 4.9 writes it.

    Raises:
        ValueError: The tree has an `UnknownFeature`.
    """
    name = type(feature).__name__
    if name not in _CLASSES:
        raise ValueError(f"a feature of class {name} cannot be written")
    known = _CLASSES[name]
    # What protobuf leaves out of its JSON is left out here: the files are compared with those of
    # TFDS.
    content = dict(known.constants)
    for item, key, form in known.fields():
        value = form.write(getattr(feature, item.name))
        if value is not None:
            content[key] = value
    node: dict[str, object] = {
        "pythonClassName": f"{_PACKAGE}core.features.{known.module}.{name}",
        known.key: content,
    }
    return node | ({"description": feature.doc} if feature.doc else {})


def as_root(value: object) -> f.FeaturesDict | f.Sequence:
    """Convert to the features of a dataset, which have names: a FeaturesDict, or a Sequence of
    dicts.

    Raises:
        TypeError: Anything else; TFDS cannot write such datasets.
    """
    root = f.as_feature(value)
    # A dataset of sequences at its root has one list for each feature.
    if not isinstance(innermost(root), f.FeaturesDict) or not isinstance(
        root, (f.FeaturesDict, f.Sequence)
    ):
        raise TypeError(f"expected a FeaturesDict, or a Sequence of dicts, got {root!r}")
    return root


_INTEGER = re.compile(r"-?[0-9]{1,19}")
_MAX_INT64 = (1 << 63) - 1


class JsonFields:
    """The fields of one JSON object (as in proto3, absent means default), with type checks; their
    names are camelCase, or the proto's snake_case.
    """

    def __init__(self, values: object, path: str, where: str) -> None:
        self.path, self.where = path, where
        if not isinstance(values, Mapping):
            raise ParseError(
                f"{where or 'the file'}: expected an object, got {type(values).__name__}", path=path
            )
        self.values = values

    def get(self, name: str) -> object:
        """The value by its camelCase name; None if there is none."""
        found = self.values.get(name)
        # Old files have the names of the proto.
        return self.values.get(snake_case(name)) if found is None else found

    def error(self, name: str, expected: str, found: object) -> ParseError:
        """Build an error that names the field."""
        return ParseError(
            f"{self.where}{name}: expected {expected}, got {shown_value(found, 80)}", path=self.path
        )

    def text(self, name: str) -> str:
        """A string."""
        value = self.get(name)
        # null means absent, as in proto3.
        if not isinstance(value, (str, type(None))):
            raise self.error(name, "a string", value)
        return value or ""

    def integer(self, name: str, expected: str = "an integer") -> int | None:
        """An int64, which proto3 JSON writes as a string; None if there is none."""
        value = self.get(name)
        number = json_integer(value)
        if value is not None and number is None:
            raise self.error(name, expected, value)
        return number

    def count(self, name: str) -> int:
        """An integer of at least 0."""
        expected = "an integer of at least 0"
        number = self.integer(name, expected) or 0
        if number < 0:
            raise self.error(name, expected, number)
        return number

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of integers of at least 0."""
        values = self._list(name, "a list of integers")
        numbers = [number for item in values if (number := json_integer(item)) is not None]
        if len(numbers) < len(values) or min(numbers, default=0) < 0:
            raise self.error(name, "a list of integers", values)
        return tuple(numbers)

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        values = self._list(name, "a list of strings")
        if not all(isinstance(item, str) for item in values):
            raise self.error(name, "a list of strings", values)
        return values

    def objects(self, name: str) -> list[JsonFields]:
        """A list of objects."""
        return [
            JsonFields(item, self.path, f"{self.where}{name}[{number}].")
            for number, item in enumerate(self._list(name, "a list"))
        ]

    def inner(self, name: str) -> JsonFields:
        """An object."""
        value = self.get(name)
        return JsonFields({} if value is None else value, self.path, f"{self.where}{name}.")

    def _list(self, name: str, expected: str) -> list[Any]:
        values = self.get(name) or []
        if not isinstance(values, list):
            raise self.error(name, expected, values)
        return values


def snake_case(name: str) -> str:
    """Convert a camelCase name to snake_case."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def json_integer(value: object) -> int | None:
    """Parse an int64 written as a number or a string; None for anything else, such as 1.5 or
    Infinity.

    Example:
        >>> json_integer("-1"), json_integer(3), json_integer(1.5), json_integer(10**400)
        (-1, 3, None, None)
    """
    # True is an int for Python, and no number in JSON.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    if isinstance(value, str):
        # `int` would also take blanks, underscores and other digits.
        if not _INTEGER.fullmatch(value):
            return None
        value = int(value)
    return value if -_MAX_INT64 - 1 <= value <= _MAX_INT64 else None


def read_text(path: str, access: Access = Access.DEFAULT) -> str:
    """Read a text file from a local path or a URL.

    Raises:
        ParseError: The file is not UTF-8.
    """
    # At once: these files are small, and may be remote.
    source = open_file(path, access)
    data = source.read(source.file_size, 0)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ParseError(
            f"expected UTF-8 text, got an invalid byte at {error.start}", path=path
        ) from None


def read_json(path: str, access: Access = Access.DEFAULT) -> object:
    """Read a JSON file.

    Raises:
        ParseError: The file is not valid JSON.
    """
    try:
        return json.loads(read_text(path, access))
    except (ValueError, RecursionError) as error:
        # Nested a thousand times is damage, too (RecursionError).
        raise ParseError(f"expected JSON, got damaged text: {error}", path=path) from error


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


class _Content(JsonFields):
    """The content of one feature."""

    def __init__(self, values: Mapping[str, object], place: _Place) -> None:
        super().__init__(values, place.path, "")
        self.place = place

    def error(self, name: str, expected: str, found: object) -> ParseError:
        """Build an error that names the feature and the field."""
        return self.place.error(f"expected {name} as {expected}, got {shown_value(found)}")

    def number(self, name: str) -> float | None:
        """A float."""
        value: Any = self.get(name)
        try:
            # NaN and infinity are strings in proto3 JSON.
            return None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.error(name, "a number", value) from None

    def flag(self, name: str) -> bool:
        """A bool; False if missing."""
        value = self.get(name)
        if not isinstance(value, (bool, type(None))):
            raise self.error(name, "true or false", value)
        return bool(value)

    def shape(self, name: str) -> Shape:
        """The shape: a list with null, or {"dimensions": [...]} with -1."""
        value = self.get(name)
        # No sizes at all is the shape of a scalar.
        sizes = value.get("dimensions", []) if isinstance(value, Mapping) else value or []
        if not isinstance(sizes, list):
            raise self.error("shape", "a list of sizes", value)
        found = [-1 if size is None else json_integer(size) for size in sizes]
        if any(size is None or size < -1 for size in found):
            raise self.error("shape", "a list of sizes", value)
        return tuple(None if size == -1 else size for size in found)


def _feature(value: object, place: _Place) -> f.FeatureConnector:
    if not isinstance(value, Mapping):
        raise place.error(f"expected a feature as an object, got {type(value).__name__}")
    # Before Python gives up, with an error that says what is wrong.
    if place.depth > _MAX_DEPTH:
        raise place.error(f"expected features nested at most {_MAX_DEPTH} deep, got more")
    class_name = value.get("pythonClassName", value.get("type"))
    if not isinstance(class_name, str):
        raise place.error("expected the feature's class (pythonClassName), got none")
    content = _content(value, place)
    # Modules moved between versions of TFDS, the classes kept their names, except for one.
    name = class_name.rsplit(".", 1)[-1]
    known = _CLASSES.get("BBoxFeature" if name == "BBox" else name)
    if known is None or not class_name.startswith(_PACKAGE):
        return f.UnknownFeature(class_name)
    # These texts are lists of integers whose vocabulary is in files of another kind.
    if content.get("useEncoder") is not None:
        return f.UnknownFeature(class_name, "text of the old encoders")
    values: dict[str, Any] = {
        item.name: form.read(content, key, item.default) for item, key, form in known.fields()
    }
    if values.get("dtype") is MISSING:
        raise place.error("expected a dtype, got none")
    try:
        built = known.feature(**values)
    except (TypeError, ValueError) as error:
        raise place.error(f"{error}") from error
    description = value.get("description")
    # Some versions wrote the message in place of its text.
    if isinstance(description, Mapping):
        description = description.get("text", description.get("description"))
    if isinstance(description, str) and description:
        set_fields(built, doc=description)
    return built


def _content(value: Mapping[str, object], place: _Place) -> _Content:
    if "pythonClassName" in value:
        # A oneof of the proto: exactly one content, or none for a class without fields.
        keys = [key for key in value if key in _CONTENT_KEYS]
        found = value[keys[0]] if len(keys) == 1 else None if keys else {}
        if keys in (["jsonFeature"], ["json_feature"]) and isinstance(found, Mapping):
            found = found.get("json")
    else:
        found = value.get("content")
        found = {} if found is None else found
    # Between the two forms TFDS wrote the content as a string of JSON.
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise place.error("expected the content as JSON, got another string") from error
    if not isinstance(found, Mapping):
        raise place.error("expected one content, as an object")
    return _Content(found, place)


class _Form(NamedTuple):
    """How a field of a feature class is written in the content.

    Attributes:
        read: Reads it from the content by its key; the class's default is for what is absent.
        write: Its JSON value; None leaves it out.
    """

    read: Callable[[_Content, str, Any], object]
    write: Callable[[Any], object] = lambda value: value


def _read_features(content: _Content, name: str, _: object) -> dict[str, f.FeatureConnector]:
    inner = content.values.get(name)
    # The old form has no key "features"; a feature of that name may be meant.
    is_wrapped = isinstance(inner, Mapping) and not isinstance(
        inner.get("type", inner.get("pythonClassName")), str
    )
    named: Any = inner if is_wrapped and len(content.values) == 1 else content.values
    return {name: _feature(named[name], content.place.below(str(name))) for name in sorted(named)}


def _read_length(content: _Content, name: str, _: object) -> int | None:
    length = content.integer(name)
    if length is not None and length < -1:
        raise content.place.error(f"expected length as a number or -1, got {length}")
    return length


def _read_label(content: _Content, name: str, _: object) -> int | None:
    label = content.get(name)
    # Old files have the number of classes, beside the pixels' fields.
    label = label if isinstance(label, Mapping) else {"numClasses": content.get("labels")}
    return _Content(label, content.place).integer("numClasses") or None


def _read_box_format(content: _Content, name: str, default: object) -> object:
    # Before TFDS had box formats, all boxes used the default; a proto without a format means that
    # it is unknown.
    is_old = name not in content.values and "dtype" not in content.values
    return default if is_old else content.text(name) or None


_TEXT = _Form(
    lambda content, name, default: content.text(name) or default, lambda text: text or None
)
_NUMBER = _Form(lambda content, name, _: content.number(name))
_FLAG = _Form(lambda content, name, _: content.flag(name), lambda flag: flag or None)
_TEXTS = _Form(
    lambda content, name, default: tuple(content.texts(name)) or (None if default is None else ()),
    lambda texts: list(texts or ()),
)
_FORMS = {
    "bbox_format": _Form(_read_box_format),
    "dtype": _TEXT,
    "encoding": _TEXT,
    "encoding_format": _TEXT,
    "feature": _Form(
        lambda content, name, _: _feature(content.get(name), content.place.below()),
        features_to_json,
    ),
    "features": _Form(
        _read_features,
        lambda features: {name: features_to_json(item) for name, item in features.items()},
    ),
    "file_format": _TEXT,
    "languages": _TEXTS,
    # Written even if it is False, as TFDS does.
    "lazy_decode": _Form(_FLAG.read),
    "length": _Form(_read_length, lambda length: "-1" if length is None else str(length)),
    "maximum": _NUMBER,
    "minimum": _NUMBER,
    "names": _Form(_TEXTS.read, lambda names: None),  # written to their own file
    "num_classes": _Form(
        lambda content, name, _: content.integer(name) or None, lambda number: str(number or 0)
    ),
    "optional": _FLAG,
    "sample_rate": _Form(
        lambda content, name, _: content.integer(name) or None,
        lambda rate: str(rate) if rate else None,
    ),
    "shape": _Form(
        lambda content, name, _: content.shape(name),
        lambda shape: (
            {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}
        ),
    ),
    "use_colormap": _FLAG,
}


class _Class(NamedTuple):
    """A feature class, and how TFDS writes it.

    Attributes:
        feature: The class.
        module: Its module in TFDS.
        key: Key of the content.
        constants: Values written for every feature of the class.
        own: Name of a field -> its key and form, where they are not the usual ones.
    """

    feature: type[f.FeatureConnector]
    module: str
    key: str
    constants: Mapping[str, object] = MappingProxyType({})
    own: Mapping[str, tuple[str, _Form]] = MappingProxyType({})

    def fields(self) -> Iterator[tuple[Field[object], str, _Form]]:
        """The fields of the class, their keys and forms."""
        for item in fields(self.feature):
            if item.init and item.name != "doc":
                # proto3 JSON has camelCase names.
                key = re.sub("_(.)", lambda letter: letter[1].upper(), item.name)
                yield item, *self.own.get(item.name, (key, _FORMS[item.name]))


_LABEL = _Form(_read_label, lambda number: {"numClasses": str(number or 0)})
_BOX = {"shape": {"dimensions": ["4"]}, "dtype": "float32"}
_VARIABLE = {"variableLanguagesPerExample": True}
_ROWS = (
    _Class(
        f.Audio,
        "audio_feature",
        "audio",
        own={"encoding": ("encoding", _Form(_TEXT.read, str.upper))},
    ),
    _Class(f.BBoxFeature, "bounding_boxes", "boundingBox", _BOX),
    _Class(f.ClassLabel, "class_label_feature", "classLabel"),
    _Class(f.Dataset, "dataset_feature", "sequence"),
    _Class(f.FeaturesDict, "features_dict", "featuresDict"),
    _Class(f.Image, "image_feature", "image"),
    _Class(f.LabeledImage, "labeled_image", "image", own={"num_classes": ("label", _LABEL)}),
    _Class(f.Scalar, "scalar", "tensor", {"shape": {}}),
    _Class(f.Sequence, "sequence_feature", "sequence"),
    _Class(f.Tensor, "tensor_feature", "tensor"),
    _Class(f.Text, "text_feature", "text"),
    _Class(f.Translation, "translation_feature", "translation"),
    _Class(f.TranslationVariableLanguages, "translation_feature", "translation", _VARIABLE),
    _Class(f.Video, "video_feature", "video"),
)
_CLASSES = {row.feature.__name__: row for row in _ROWS}
_CONTENT_KEYS = {
    name for key in (*(row.key for row in _ROWS), "jsonFeature") for name in (key, snake_case(key))
}
