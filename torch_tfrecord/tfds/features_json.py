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
from dataclasses import MISSING, fields
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
    try:
        return as_root(_feature(value, path, ()))
    except TypeError as error:
        raise ParseError(f"{error}", path=path) from None


def features_to_json(feature: f.FeatureConnector) -> dict[str, object]:
    """Return the JSON of a tree in the new form, as TFDS 4.9 writes it.

    Raises:
        ValueError: The tree has an `UnknownFeature`.
    """
    kind = type(feature)
    if kind not in _CLASSES:
        raise ValueError(f"a feature of class {kind.__name__} cannot be written")
    module, key, content = _CLASSES[kind]
    # What protobuf leaves out of its JSON is left out here: the files are compared with those of
    # TFDS.
    written = {name: form.write(getattr(feature, field)) for field, name, form in _fields_of(kind)}
    node: dict[str, object] = {
        "pythonClassName": f"{_PACKAGE}core.features.{module}.{kind.__name__}",
        key: content | {name: value for name, value in written.items() if value is not None},
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

    Args:
        values: The object.
        path: Path of the file, for errors.
        where: The place of the object in it, as it begins the texts of errors.
        names: Names of the features to this one, from the root; "" for a sequence.
    """

    def __init__(
        self, values: object, path: str, where: str = "", names: tuple[str, ...] = ()
    ) -> None:
        self.path, self.where, self._names = path, where, names
        if not isinstance(values, Mapping):
            raise self.damage(f"expected an object, got {type(values).__name__}")
        self.values = values

    def damage(self, text: str) -> ParseError:
        """Build an error that names the object."""
        return ParseError(self.where + text, path=self.path)

    def error(self, name: str, expected: str, found: object) -> ParseError:
        """Build an error that names the field."""
        return self.damage(f"{name}: expected {expected}, got {shown_value(found, 80)}")

    def get(self, name: str) -> Any:
        """The value by its camelCase name; None if there is none."""
        found = self.values.get(name)
        # Old files have the names of the proto.
        return self.values.get(snake_case(name)) if found is None else found

    def text(self, name: str) -> str:
        """A string."""
        value = self.get(name)
        # null means absent, as in proto3.
        if not isinstance(value, (str, type(None))):
            raise self.error(name, "a string", value)
        return value or ""

    def flag(self, name: str) -> bool:
        """A bool; False if missing."""
        value = self.get(name)
        if not isinstance(value, (bool, type(None))):
            raise self.error(name, "true or false", value)
        return bool(value)

    def number(self, name: str) -> float | None:
        """A float."""
        value = self.get(name)
        try:
            # NaN and infinity are strings in proto3 JSON.
            return None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.error(name, "a number", value) from None

    def integer(self, name: str, least: int = 0) -> int | None:
        """An int64, which proto3 JSON writes as a string; None if there is none."""
        value = self.get(name)
        if value is not None and not _is_integer(value, least):
            raise self.error(name, f"an integer of at least {least}", value)
        return None if value is None else int(value)

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of integers of at least 0."""
        return tuple(map(int, self._list(name, "a list of integers", _is_integer)))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._list(name, "a list of strings", lambda item: isinstance(item, str)))

    def shape(self, name: str) -> Shape:
        """The shape: a list with null, or {"dimensions": [...]} with -1."""
        value = self.get(name)
        # No sizes at all is the shape of a scalar.
        sizes = value.get("dimensions", []) if isinstance(value, Mapping) else value or []
        if not isinstance(sizes, list) or not all(
            size is None or _is_integer(size, -1) for size in sizes
        ):
            raise self.error(name, "a list of sizes", value)
        return tuple(None if size is None or int(size) == -1 else int(size) for size in sizes)

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

    def feature(self, value: object, name: str = "") -> f.FeatureConnector:
        """A feature in this one."""
        return _feature(value, self.path, (*self._names, name))

    def _list(
        self, name: str, expected: str, fits: Callable[[object], bool] = lambda item: True
    ) -> list[Any]:
        values = self.get(name) or []
        if not isinstance(values, list) or not all(map(fits, values)):
            raise self.error(name, expected, values)
        return values


def snake_case(name: str) -> str:
    """Convert a camelCase name to snake_case."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _is_integer(value: object, least: int = 0) -> bool:
    """Whether it is an int64 of at least so much, as a number or a string: not 1.5 or Infinity."""
    # True is an int for Python, and no number in JSON; `int` would also take blanks, underscores and
    # other digits.
    is_one = isinstance(value, int) and not isinstance(value, bool)
    is_one = is_one or (isinstance(value, str) and _INTEGER.fullmatch(value) is not None)
    return is_one and least <= int(value) <= _MAX_INT64  # type: ignore[call-overload]


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


def read_json(path: str, access: Access) -> object:
    """Read a JSON file.

    Raises:
        ParseError: The file is not valid JSON.
    """
    try:
        return json.loads(read_text(path, access))
    except (ValueError, RecursionError) as error:
        # Nested a thousand times is damage, too (RecursionError).
        raise ParseError(f"expected JSON, got damaged text: {error}", path=path) from error


def _feature(value: object, path: str, names: tuple[str, ...]) -> f.FeatureConnector:
    field = "/".join(filter(None, names))
    node = JsonFields(value, path, f"feature {field!r}: " if field else "")
    # Before Python gives up, with an error that says what is wrong.
    if len(names) > _MAX_DEPTH:
        raise node.damage(f"expected features nested at most {_MAX_DEPTH} deep, got more")
    class_name = node.values.get("pythonClassName", node.values.get("type"))
    if not isinstance(class_name, str):
        raise node.damage("expected the feature's class (pythonClassName), got none")
    content = JsonFields(_content(node), path, node.where, names)
    # Modules moved between versions of TFDS, the classes kept their names, except for one.
    name = class_name.rsplit(".", 1)[-1]
    kind = _BY_NAME.get("BBoxFeature" if name == "BBox" else name)
    if kind is None or not class_name.startswith(_PACKAGE):
        return f.UnknownFeature(class_name)
    # These texts are lists of integers whose vocabulary is in files of another kind.
    if content.get("useEncoder") is not None:
        return f.UnknownFeature(class_name, "text of the old encoders")
    values: dict[str, Any] = {
        field: form.read(content, key) for field, key, form in _fields_of(kind)
    }
    try:
        built = kind(**{field: found for field, found in values.items() if found is not MISSING})
    except (TypeError, ValueError) as error:
        is_lacking = kind in (f.Tensor, f.Scalar) and values["dtype"] is MISSING
        raise node.damage("expected a dtype, got none" if is_lacking else f"{error}") from error
    match node.values.get("description"):
        # Some versions wrote the message in place of its text.
        case str(text) | {"text": str(text)} | {"description": str(text)} if text:
            set_fields(built, doc=text)
    return built


def _content(node: JsonFields) -> object:
    found = node.values.get("content")
    if "pythonClassName" in node.values:
        # A oneof of the proto: exactly one content, or none for a class without fields.
        keys = [key for key in node.values if key in _CONTENT_KEYS]
        if len(keys) > 1:
            raise node.damage("expected one content, as an object")
        found = node.values[keys[0]] if keys else None
        if keys in (["jsonFeature"], ["json_feature"]) and isinstance(found, Mapping):
            found = found.get("json")
    # Between the two forms TFDS wrote the content as a string of JSON.
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise node.damage("expected the content as JSON, got another string") from error
    return {} if found is None else found


class _Form(NamedTuple):
    """How a field of a feature class is written in the content.

    Attributes:
        read: Reads it from the content by its key; MISSING for the class's default.
        write: Its JSON value; None leaves it out.
        key: Its key; "" for its name in camelCase, as in proto3 JSON.
    """

    read: Callable[[JsonFields, str], object]
    write: Callable[[Any], object] = lambda value: value
    key: str = ""


def _read_features(content: JsonFields, key: str) -> dict[str, f.FeatureConnector]:
    inner = content.values.get(key)
    # The old form has no key "features"; a feature of that name may be meant.
    is_wrapped = isinstance(inner, Mapping) and not isinstance(
        inner.get("type", inner.get("pythonClassName")), str
    )
    named: Any = inner if is_wrapped and len(content.values) == 1 else content.values
    return {name: content.feature(named[name], str(name)) for name in sorted(named)}


def _read_box_format(content: JsonFields, key: str) -> object:
    # Before TFDS had box formats, all boxes used the default; a proto without a format means that
    # it is unknown.
    is_old = key not in content.values and "dtype" not in content.values
    return MISSING if is_old else content.text(key) or None


def _read_count(content: JsonFields, key: str) -> int | None:
    return content.integer(key) or None


_TEXT = _Form(lambda content, key: content.text(key) or MISSING, lambda text: text or None)
_NUMBER = _Form(JsonFields.number)
_FLAG = _Form(JsonFields.flag, lambda flag: flag or None)
# By the name of the field, or where others have one of that name, by class and field.
_FORMS = {
    "Audio.encoding": _Form(_TEXT.read, str.upper),
    # Old files have the number of classes beside the pixels' fields.
    "LabeledImage.num_classes": _Form(
        lambda content, key: (
            _read_count(content.inner(key), "numClasses") or _read_count(content, "labels")
        ),
        lambda number: {"numClasses": str(number or 0)},
        "label",
    ),
    "bbox_format": _Form(_read_box_format),
    "dtype": _TEXT,
    "encoding": _TEXT,
    "encoding_format": _TEXT,
    "feature": _Form(lambda content, key: content.feature(content.get(key)), features_to_json),
    "features": _Form(
        _read_features,
        lambda features: {name: features_to_json(item) for name, item in features.items()},
    ),
    "file_format": _TEXT,
    "languages": _Form(JsonFields.texts, lambda texts: list(texts or ())),
    # Written even if it is False, as TFDS does.
    "lazy_decode": _Form(JsonFields.flag),
    "length": _Form(
        lambda content, key: content.integer(key, -1),
        lambda length: "-1" if length is None else str(length),
    ),
    "maximum": _NUMBER,
    "minimum": _NUMBER,
    # written to their own file
    "names": _Form(lambda content, key: content.texts(key) or None, lambda names: None),
    "num_classes": _Form(_read_count, lambda number: str(number or 0)),
    "optional": _FLAG,
    "sample_rate": _Form(_read_count, lambda rate: str(rate) if rate else None),
    "shape": _Form(
        JsonFields.shape,
        lambda shape: (
            {"dimensions": [str(-1 if size is None else size) for size in shape]} if shape else {}
        ),
    ),
    "use_colormap": _FLAG,
}


def _fields_of(kind: type[f.FeatureConnector]) -> Iterator[tuple[str, str, _Form]]:
    """The fields of a class, their keys and forms."""
    for item in fields(kind):
        if item.init and item.name != "doc":
            form = _FORMS.get(f"{kind.__name__}.{item.name}") or _FORMS[item.name]
            camel_case = re.sub("_(.)", lambda letter: letter[1].upper(), item.name)
            yield item.name, form.key or camel_case, form


_BOX: dict[str, object] = {"shape": {"dimensions": ["4"]}, "dtype": "float32"}
# Its module in TFDS, the key of its content, and what is written for every feature.
_CLASSES: dict[type[f.FeatureConnector], tuple[str, str, dict[str, object]]] = {
    f.Audio: ("audio_feature", "audio", {}),
    f.BBoxFeature: ("bounding_boxes", "boundingBox", _BOX),
    f.ClassLabel: ("class_label_feature", "classLabel", {}),
    f.Dataset: ("dataset_feature", "sequence", {}),
    f.FeaturesDict: ("features_dict", "featuresDict", {}),
    f.Image: ("image_feature", "image", {}),
    f.LabeledImage: ("labeled_image", "image", {}),
    f.Scalar: ("scalar", "tensor", {"shape": {}}),
    f.Sequence: ("sequence_feature", "sequence", {}),
    f.Tensor: ("tensor_feature", "tensor", {}),
    f.Text: ("text_feature", "text", {}),
    f.Translation: ("translation_feature", "translation", {}),
    f.TranslationVariableLanguages: (
        "translation_feature",
        "translation",
        {"variableLanguagesPerExample": True},
    ),
    f.Video: ("video_feature", "video", {}),
}
_BY_NAME = {kind.__name__: kind for kind in _CLASSES}
_CONTENT_KEYS = {
    name
    for key in (*(key for _, key, _ in _CLASSES.values()), "jsonFeature")
    for name in (key, snake_case(key))
}
