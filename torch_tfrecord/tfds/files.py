"""The files of a TFDS dataset: the version directory, and the shard names of a split from its
template.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import string
from collections.abc import Iterable

from torch_tfrecord.errors import ParseError
from torch_tfrecord.files.access import DEFAULT_ACCESS, Access
from torch_tfrecord.files.descriptors import opened
from torch_tfrecord.files.storage import is_remote
from torch_tfrecord.files.transfers import listing
from torch_tfrecord.shown import shown_list, without_secrets
from torch_tfrecord.tfds.json_fields import JsonFields, read_json

__all__ = [
    "DEFAULT_TEMPLATE",
    "FEATURES_FILE",
    "INFO_FILE",
    "VERSION",
    "label_file",
    "list_folder",
    "shard_borders",
    "shard_count",
    "shard_paths",
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
