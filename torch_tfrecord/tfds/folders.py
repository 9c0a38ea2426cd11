"""Finding the folder of a dataset's version."""

from __future__ import annotations

import errno
import os
import posixpath
import re

from torch_tfrecord.records.descriptors import opened
from torch_tfrecord.records.storage import filesystem, is_remote
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds.json_fields import JsonFields, read_json

__all__ = ["FEATURES_FILE", "INFO_FILE", "list_folder", "version_folder"]

_VERSION = re.compile(r"\d+\.\d+\.\d+")
INFO_FILE, FEATURES_FILE = "dataset_info.json", "features.json"


def version_folder(folder: str) -> str:
    """The folder itself, or that of the highest version below it.

    Raises:
        FileNotFoundError: Neither.
        ValueError: TFDS has not finished the folder, or there are several configs.
    """
    if posixpath.basename(folder).startswith("incomplete."):
        raise ValueError(f"{folder}: TFDS has not finished this directory ('incomplete.'); prepare it again")
    entries = list_folder(folder)
    if INFO_FILE in entries:
        return folder
    versions = [name for name in entries if _VERSION.fullmatch(name)]
    if versions:
        return posixpath.join(folder, max(versions, key=lambda name: [*map(int, name.split("."))]))
    unfinished = sorted(name for name in entries if name.startswith("incomplete."))
    configs = [name for name in entries if not name.startswith((".", "incomplete.")) and _has_version(folder, name)]
    default = _default_config(folder) if ".config" in entries else None
    if default in configs:
        return version_folder(posixpath.join(folder, str(default)))
    if len(configs) == 1:
        return version_folder(posixpath.join(folder, configs[0]))
    if configs:
        raise ValueError(f"{folder}: several configs, choose one: {shown_list(sorted(configs))}")
    hint = f"; {unfinished[0]} was never finished" if unfinished else ""
    raise FileNotFoundError(
        errno.ENOENT, f"no {INFO_FILE}: not a directory of a TFDS dataset{hint}", posixpath.join(folder, INFO_FILE)
    )


def _has_version(folder: str, name: str) -> bool:
    try:
        return any(map(_VERSION.fullmatch, list_folder(posixpath.join(folder, name))))
    except NotADirectoryError:
        return False


def _default_config(folder: str) -> str | None:
    path = posixpath.join(folder, ".config", "metadata.json")
    try:
        return JsonFields(read_json(path), path, "").text("default_config_name") or None
    except FileNotFoundError:
        return None


def list_folder(folder: str) -> list[str]:
    """Names in a folder, sorted."""
    if not is_remote(folder):
        return sorted(opened(os.listdir, folder))
    system, path = filesystem(folder)
    return sorted(posixpath.basename(str(name).rstrip("/")) for name in system.ls(path, detail=False))
