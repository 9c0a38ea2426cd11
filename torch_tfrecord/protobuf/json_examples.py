"""The Examples that JSON text describes.

The JSON form of an Example is protobuf's, with bytes in base64, and integers as numbers or text::

    {"features": {"feature": {"age": {"int64List": {"value": [5]}}}}}

Source: protobuf.dev/programming-guides/json, and what ``tf.io.decode_json_example`` of TensorFlow
2.21 takes.
"""

from __future__ import annotations

import base64
import math
import re

import numpy as np

from torch_tfrecord.errors import ParseError
from torch_tfrecord.json_text import parse_json
from torch_tfrecord.protobuf.messages import Example

__all__ = ["example_of_json"]

_Pairs = list[tuple[str, object]]

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_MOST_FLOAT = float(np.finfo(np.float32).max)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def example_of_json(text: bytes | memoryview) -> bytes:
    """The serialized Example that JSON text describes, like ``tf.io.decode_json_example``.

    Raises:
        ParseError: It is not JSON, or not of an Example.
    """
    message = Example()
    features = _only(parse_json(text, _unique), "features", "an Example")
    if features is not None:
        message.features.SetInParent()
        entries = _only(features, "feature", "'features'")
        for number, (name, feature) in enumerate(
            _object({} if entries is None else entries, "'feature'").items()
        ):
            try:
                _fill(message.features.feature[name], feature)
            except ValueError as error:  # from protobuf: out of range, or not Unicode
                raise ParseError(
                    f"expected values that a list can hold, got others in feature {number}"
                ) from error
    return message.SerializeToString(deterministic=True)


def _unique(pairs: _Pairs) -> dict[str, object]:
    # protobuf refuses a name that comes twice: which value counts would be a guess.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ParseError("expected each name once in the JSON form of an Example, got one twice")
    return found


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ParseError(f"expected a JSON object for {what}, got {_kind(value)}")
    return value


def _only(value: object, name: str, what: str) -> object:
    """The single entry that an object may have; None if it is null or not there."""
    found = _object(value, what)
    if not found.keys() <= {name}:
        raise ParseError(f"expected only {name!r} in {what}, got other names")
    return found.get(name)


def _fill(message: object, feature: object) -> None:
    lists = _object({} if feature is None else feature, "a feature")
    if not lists.keys() <= _LISTS.keys():
        raise ParseError(
            "expected 'bytesList', 'floatList' or 'int64List' in a feature, got other names"
        )
    given = [name for name, found in lists.items() if found is not None]
    if len(given) > 1:
        raise ParseError("expected one list in a feature, got several")
    for name in given:
        field, read = _LISTS[name]
        values = _only(lists[name], "value", f"{name!r}")
        target = getattr(message, field)
        target.SetInParent()
        if not isinstance(values, (list, type(None))):
            raise ParseError(f"expected a JSON list of values, got {_kind(values)}")
        target.value.extend([*map(read, values or ())])


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        try:
            # protobuf takes both alphabets of base64.
            digits = value.replace("-", "+").replace("_", "/").rstrip("=")
            whole = digits + "=" * (-len(digits) % 4)
            # all of the padding may be missing, but not some, as in protobuf
            if len(value) in (len(digits), len(whole)):
                return base64.b64decode(whole, validate=True)
        except ValueError:
            pass
    raise ParseError(f"expected bytes in base64, got {_kind(value)}")


def _integer(value: object) -> int:
    number = _number(value)
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if not isinstance(number, int):
        raise ParseError(f"expected an integer, got {_kind(value)}")
    return number


def _float(value: object) -> float:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    number = _number(value)
    if number is None or abs(number) > _MOST_FLOAT:
        raise ParseError(f"expected a number that float32 can hold, got {_kind(value)}")
    return float(number)


def _number(value: object) -> int | float | None:
    """A number, also as text; None for anything else."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        # Longer text is refused before int() takes quadratic time over it.
        if found is None or len(value) > 400:
            return None
        return int(value) if found[2] is None and found[3] is None else float(value)
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a bool"
    names = {
        dict: "an object",
        list: "a list",
        str: "other text",
        int: "a number",
        float: "a number",
    }
    return names[type(value)]


_LISTS = {
    "bytesList": ("bytes_list", _bytes),
    "bytes_list": ("bytes_list", _bytes),
    "floatList": ("float_list", _float),
    "float_list": ("float_list", _float),
    "int64List": ("int64_list", _integer),
    "int64_list": ("int64_list", _integer),
}
