"""The files of a TFDS dataset: the version directory, the shard names of a split from its
template, and JSON files, read by field with errors that name the file and the field.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from torch_tfrecord.errors import ParseError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.descriptors import opened
from torch_tfrecord.files.storage import is_remote, open_file
from torch_tfrecord.files.transfers import listing
from torch_tfrecord.shown import shown_list, shown_value, without_secrets

__all__ = [
    "DEFAULT_TEMPLATE",
    "FEATURES_FILE",
    "INFO_FILE",
    "VERSION",
    "JsonFields",
    "json_integer",
    "label_file",
    "list_folder",
    "read_json",
    "read_text",
    "shard_borders",
    "shard_count",
    "shard_paths",
    "snake_case",
    "version_folder",
]

VERSION = re.compile(r"\d+\.\d+\.\d+")
INFO_FILE, FEATURES_FILE = "dataset_info.json", "features.json"
DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_VARIABLES = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")
_MIN_DIGITS = 5
_MIN_SHARD_BYTES = 64 << 20  # TFDS writes shards of 64 MiB to 1 GiB
_MAX_SHARD_BYTES = 1 << 30


def version_folder(folder: str, access: Access = DEFAULT_ACCESS) -> str:
    """Return the folder itself, or the highest version below it.

    Raises:
        FileNotFoundError: There is neither, or no such folder.
        ValueError: TFDS has not finished the folder, or there are several configs.
    """
    if posixpath.basename(folder).startswith("incomplete."):
        raise ValueError(
            f"{without_secrets(folder)}: TFDS has not finished this directory ('incomplete.'); prepare it again"
        )
    try:
        entries = list_folder(folder, access)
    except FileNotFoundError:
        text = "no such directory; expected one that TFDS prepared, such as ~/tensorflow_datasets/mnist, not its name"
        raise FileNotFoundError(errno.ENOENT, text, without_secrets(folder)) from None
    if INFO_FILE in entries:
        return folder
    versions = [name for name in entries if VERSION.fullmatch(name)]
    if versions:
        return posixpath.join(folder, max(versions, key=lambda name: [*map(int, name.split("."))]))
    unfinished = sorted(name for name in entries if name.startswith("incomplete."))
    configs = [
        name
        for name in entries
        if not name.startswith((".", "incomplete.")) and _has_version(folder, name, access)
    ]
    default = _default_config(folder, access) if ".config" in entries else None
    if default in configs:
        return version_folder(posixpath.join(folder, str(default)), access)
    if len(configs) == 1:
        return version_folder(posixpath.join(folder, configs[0]), access)
    if configs:
        raise ValueError(
            f"{without_secrets(folder)}: several configs, choose one: {shown_list(sorted(configs))}"
        )
    hint = f"; {unfinished[0]} was never finished" if unfinished else ""
    place = without_secrets(posixpath.join(folder, INFO_FILE))
    raise FileNotFoundError(
        errno.ENOENT, f"no {INFO_FILE}: not a TFDS dataset directory{hint}", place
    )


def _has_version(folder: str, name: str, access: Access) -> bool:
    try:
        return any(map(VERSION.fullmatch, list_folder(posixpath.join(folder, name), access)))
    except NotADirectoryError:
        return False


def _default_config(folder: str, access: Access) -> str | None:
    path = posixpath.join(folder, ".config", "metadata.json")
    try:
        return JsonFields(read_json(path, access), path, "").text("default_config_name") or None
    except FileNotFoundError:
        return None


def list_folder(folder: str, access: Access = DEFAULT_ACCESS) -> list[str]:
    """List the names in a folder, sorted."""
    if not is_remote(folder):
        return sorted(opened(os.listdir, folder))
    return sorted(posixpath.basename(name.rstrip("/")) for name, _ in listing(folder, access))


def label_file(names: Iterable[str]) -> str:
    """The file of class names for a label feature, given the feature names from the root of the
    tree.
    """
    return f"{'-'.join(name.replace('/', '.') for name in names)}.labels.txt"


def shard_paths(
    directory: str,
    template: str,
    *,
    dataset: str,
    split: str,
    num_shards: int,
    file_format: str = "tfrecord",
) -> list[str]:
    """The files of a split, in order.

    Args:
        directory: The dataset directory.
        template: A template like ``{SPLIT}/data.{FILEFORMAT}-{SHARD_INDEX}``, "" for TFDS's
            default. Everything from the last ``%`` on is an encoding hint and ignored; ``name@N``
            means N shards, ``name@*`` any number.
        dataset: Name of the dataset.
        split: Name of the split.
        num_shards: Number of shards.
        file_format: Format of the shards.

    Raises:
        ParseError: The template has unknown variables, leads outside the dataset directory, or
            lacks the shard number although there are several shards.

    Example:
        >>> shard_paths("d", "", dataset="mnist", split="train", num_shards=1)
        ['d/mnist-train.tfrecord-00000-of-00001']
    """
    plain = re.sub(
        r"@(\d+|\*)", "-{SHARD_X_OF_Y}", (template or DEFAULT_TEMPLATE).rsplit("%", 1)[0]
    )
    try:
        used = [name for _, name, _, _ in string.Formatter().parse(plain) if name is not None]
    except ValueError:
        used = ["?"]
    if any(name not in _VARIABLES for name in used):
        raise ParseError(
            f"split {split!r}: cannot read filepathTemplate {template!r}; the known variables are {_VARIABLES}"
        )
    if num_shards > 1 and not set(used) & {"SHARD_INDEX", "SHARD_X_OF_Y"}:
        raise ParseError(
            f"split {split!r}: filepathTemplate {template!r} has no number for {num_shards} shards"
        )
    names = {"DATASET": dataset, "SPLIT": split, "FILEFORMAT": file_format}
    digits = max(_MIN_DIGITS, len(str(num_shards)))
    total, found = f"{num_shards:0{digits}d}", []
    for number in range(num_shards):
        one = f"{number:0{digits}d}"
        found.append(
            plain.format(
                **names, SHARD_INDEX=one, NUM_SHARDS=total, SHARD_X_OF_Y=f"{one}-of-{total}"
            )
        )
    # the others differ only in digits
    if found and (posixpath.isabs(found[0]) or ".." in found[0].split("/")):
        raise ParseError(
            f"split {split!r}: filepathTemplate {template!r} leads outside the dataset directory: {found[0]!r}"
        )
    return [posixpath.join(directory, name) for name in found]


def shard_count(num_bytes: int, num_examples: int) -> int:
    """The number of shards that TFDS chooses: as many as possible of at least 64 MiB, up to 1024,
    none over 1 GiB.

    Args:
        num_bytes: Total bytes of all records, including framing.
        num_examples: Number of records.

    Source: ``shard_utils.ShardConfig.calculate_number_shards``.
    """
    most, fewest = num_bytes // _MIN_SHARD_BYTES, num_bytes // _MAX_SHARD_BYTES
    if fewest > 1024:
        enough = -(-fewest // 1024) * 1024
        return max(2048, enough) if num_examples >= enough else max(num_examples, 1)
    candidates = (1 << power for power in range(10, 0, -1))
    return next((n for n in candidates if fewest <= n <= most and num_examples >= n), 1)


def shard_borders(num_examples: int, num_shards: int) -> list[int]:
    """The end (exclusive) of each shard's examples, rounded as in TFDS.

    Example:
        >>> shard_borders(127, 4)
        [32, 64, 95, 127]
    """
    return [round(num_examples * number / num_shards) for number in range(1, num_shards + 1)]


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
        return self.values.get(snake_case(name)) if found is None else found

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


def read_json(path: str, access: Access = DEFAULT_ACCESS) -> object:
    """Read a JSON file.

    Raises:
        ParseError: The file is not valid JSON.
    """
    try:
        return json.loads(read_text(path, access))
    except (ValueError, RecursionError) as error:
        raise ParseError(f"expected JSON, got damaged text: {error}", path=path) from error
