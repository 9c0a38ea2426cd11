"""Read JSON files by field, with errors that name the file and the field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from torch_tfrecord.errors import ParseError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.storage import open_file
from torch_tfrecord.shown import shown_value

__all__ = ["JsonFields", "json_field", "json_integer", "read_json", "read_text", "snake_case"]

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_MAX_INT64 = (1 << 63) - 1


class JsonFields:
    """The fields of one JSON object (as in proto3, absent means default), with type checks."""

    def __init__(self, values: Any, path: str, where: str) -> None:
        self.path, self.where = path, where
        if not isinstance(values, Mapping):
            raise ParseError(
                f"{where or 'the file'}: expected an object, got {type(values).__name__}", path=path
            )
        self.values = values

    def get(self, name: str) -> Any:
        """The value, or None."""
        return json_field(self.values, name)

    def error(self, name: str, expected: str, found: object) -> ParseError:
        """Build an error that names the field."""
        return ParseError(
            f"{self.where}{name}: expected {expected}, got {shown_value(found, 80)}", path=self.path
        )

    def text(self, name: str) -> str:
        """A string."""
        value = self.get(name)
        if not isinstance(value, (str, type(None))):
            raise self.error(name, "a string", value)
        return value or ""

    def integer(self, name: str) -> int:
        """An int64, which proto3 JSON writes as a string."""
        value = self.get(name) or 0
        number = json_integer(value)
        if number is None or number < 0:
            raise self.error(name, "an integer of at least 0", value)
        return number

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of int64."""
        values = self.get(name) or []
        numbers = [json_integer(item) for item in values] if isinstance(values, list) else [None]
        if any(number is None or number < 0 for number in numbers):
            raise self.error(name, "a list of integers", values)
        return tuple(number for number in numbers if number is not None)

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        values = self.get(name) or []
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise self.error(name, "a list of strings", values)
        return values

    def objects(self, name: str) -> list[JsonFields]:
        """A list of objects."""
        values = self.get(name) or []
        if not isinstance(values, list):
            raise self.error(name, "a list", values)
        return [
            JsonFields(item, self.path, f"{self.where}{name}[{number}].")
            for number, item in enumerate(values)
        ]

    def inner(self, name: str) -> JsonFields:
        """An object."""
        value = self.get(name)
        return JsonFields({} if value is None else value, self.path, f"{self.where}{name}.")


def json_field(values: Mapping[str, Any], name: str) -> Any:
    """The value by its camelCase name, or by the proto's snake_case name; None if there is
    neither.
    """
    found = values.get(name)
    return values.get(snake_case(name)) if found is None else found


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
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            return None
        value = int(value)
    return value if -_MAX_INT64 - 1 <= value <= _MAX_INT64 else None


def read_text(path: str, access: Access = DEFAULT_ACCESS) -> str:
    """Read a text file from a local path or a URL.

    Raises:
        ParseError: The file is not UTF-8.
    """
    source = open_file(path, access)
    data = source.read(source.file_size, 0)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ParseError(
            f"expected UTF-8 text, got an invalid byte at {error.start}", path=path
        ) from None


def read_json(path: str, access: Access = DEFAULT_ACCESS) -> Any:
    """Read a JSON file.

    Raises:
        ParseError: The file is not valid JSON.
    """
    try:
        return json.loads(read_text(path, access))
    except (ValueError, RecursionError) as error:
        raise ParseError(f"expected JSON, got damaged text: {error}", path=path) from error
