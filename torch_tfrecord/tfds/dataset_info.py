"""The metadata of a TFDS directory: dataset_info.json, features.json and the label names."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import torch_tfrecord.tfds.features as f
from torch_tfrecord.arguments import PathLike, StorageOptions
from torch_tfrecord.columns import Feature, RecordFeatures
from torch_tfrecord.errors import ParseError
from torch_tfrecord.files import Access, is_remote, local_path, open_path
from torch_tfrecord.remote import RemoteNames
from torch_tfrecord.shown import shown_list, without_secrets
from torch_tfrecord.tfds.features import set_fields
from torch_tfrecord.tfds.features_json import (
    JsonFields,
    as_root,
    features_from_json,
    read_json,
    read_text,
)
from torch_tfrecord.tfds.parser import SupervisedKeys, leaves_of
from torch_tfrecord.tfds.splits import DEFAULT_TEMPLATE, shard_paths

__all__ = [
    "FEATURES_FILE",
    "INFO_FILE",
    "SPLIT_NAME",
    "VERSION",
    "DatasetInfo",
    "SplitInfo",
    "are_specs",
    "info",
    "info_of",
    "label_file",
]

INFO_FILE, FEATURES_FILE = "dataset_info.json", "features.json"
VERSION = re.compile(r"\d+\.\d+\.\d+")
# Characters that TFDS takes in a split string; a name becomes a part of file names.
SPLIT_NAME = re.compile(r"[\w-]+")
_READABLE = ("tfrecord", "array_record")
_MOST_SHARDS = 100_000  # TFDS writes at most a few thousand
_MAX_DEPTH = 64  # for nested supervised keys


@dataclass(frozen=True)
class SplitInfo:
    """One split of a dataset.

    Attributes:
        name: Name of the split, such as "train".
        shard_lengths: Number of records in each shard; None if an old dataset_info.json does not
            list them.
        num_bytes: Total payload bytes.
        num_shards: Number of shard files.
    """

    name: str
    shard_lengths: tuple[int, ...] | None
    num_bytes: int = 0
    filepath_template: str = DEFAULT_TEMPLATE  # see `shard_paths`
    num_shards: int = 0

    @property
    def num_examples(self) -> int | None:
        """Number of examples; None if dataset_info.json does not say (count the records in the
        files).
        """
        return None if self.shard_lengths is None else sum(self.shard_lengths)


@dataclass(frozen=True, repr=False)
class DatasetInfo:
    """The contents and layout of a TFDS dataset.

    Attributes:
        directory: The directory of this version.
        name: Name of the dataset.
        version: "x.y.z".
        config_name: Name of the config; None if there is none.
        description: Free text.
        splits: Name -> `SplitInfo`, in the order of dataset_info.json.
        features: The feature tree; `features["label"].int2str(0)` names a class.
        supervised_keys: (input, target) or (input, target, weights): names, or nested tuples and
            dicts of them; None if the dataset has none.
        citation: BibTeX.
        license: Free text.
        raw: The parsed dataset_info.json.
        file_format: Format of the shards: "tfrecord" or "array_record".
    """

    directory: str
    name: str
    version: str
    config_name: str | None
    description: str
    splits: Mapping[str, SplitInfo]
    features: f.FeaturesDict | f.Sequence
    supervised_keys: tuple[SupervisedKeys, ...] | None
    citation: str = ""
    license: str = ""
    raw: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    access: Access = field(default=Access.DEFAULT, repr=False, compare=False)
    file_format: str = "tfrecord"

    @property
    def _features_path(self) -> str:
        """The path of features.json."""
        return posixpath.join(self.directory, FEATURES_FILE)

    def _json(self, path: str) -> object:
        """The content of a JSON file, local or where the data are; see `read_json`."""
        return read_json(path, self.access)

    def files(self, split: str) -> list[str]:
        """List the shard paths of a split, in order, without checking that they exist."""
        info = self.splits[split]
        try:
            return shard_paths(
                self.directory,
                info.filepath_template,
                dataset=self.name,
                split=split,
                num_shards=info.num_shards,
                file_format=self.file_format,
            )
        except ParseError as error:
            raise error.locate(path=posixpath.join(self.directory, INFO_FILE)) from error.__cause__

    def __str__(self) -> str:
        """Summarise the dataset as readable text."""
        title = "/".join(part for part in (self.name, self.config_name, self.version) if part)
        lines = [f"{title}  ({without_secrets(self.directory)})"]
        if self.description:
            lines += [f"  {line}" for line in self.description.strip().splitlines()[:8]]
        lines.append("splits:")
        for split in self.splits.values():
            count = (
                "an unknown number of" if split.num_examples is None else f"{split.num_examples:,}"
            )
            lines.append(
                f"  {split.name}: {count} examples in {split.num_shards} shards, {split.num_bytes:,} bytes"
            )
        lines.append(f"supervised_keys: {self.supervised_keys!r}")
        lines += f"features: {self.features!r}".splitlines()
        return "\n".join(lines)

    __repr__ = __str__


def info(directory: PathLike, *, storage_options: StorageOptions = None) -> DatasetInfo:
    """Read the metadata of a TFDS directory without TensorFlow and without opening the shards.

    Args:
        directory: ``.../name/1.0.0`` or ``.../name/config/1.0.0``. If you pass a parent directory,
            the highest version is used, and the only config or the dataset's default config. A
            local path or a URL.
        storage_options: As for `TFRecordDataset`; `load` and `RLDSDataset` use those of the result.

    Returns:
        Name, version, splits with their counts, the feature tree with class names, and supervised
        keys.

    Raises:
        FileNotFoundError: Not a TFDS directory: dataset_info.json or features.json is missing (TFDS
            wrote none up to 3.2.1: `load` takes your own features).
        ParseError: One of the two is damaged, or the shards are neither "tfrecord" nor
            "array_record" files; names the file and the field.
        ValueError: TFDS has not finished writing the directory (``incomplete.*``), or it has
            several configs.

    Example:
        >>> tfds.info("~/tensorflow_datasets/mnist").splits["train"].num_examples  # doctest: +SKIP
        60000
    """
    return _info(directory, Access(storage_options), None)


def _info(directory: PathLike, access: Access, given: object) -> DatasetInfo:
    """`info`, with the features of a directory that has no features.json, or the specs that are
    read instead.
    """
    folder = _version_folder(local_path(directory).rstrip("/") or "/", access)
    path = posixpath.join(folder, INFO_FILE)
    fields = JsonFields(read_json(path, access), path)
    formats = _formats(fields)
    name = fields.text("name") or posixpath.basename(posixpath.dirname(folder))
    there = frozenset(_list_folder(folder, access))
    features = _tree(folder, there, access, given)
    splits = [_split(item) for item in fields.objects("splits")]
    if len({split.name for split in splits}) < len(splits):
        raise fields.error("splits", "different names", [split.name for split in splits])
    # Without checking that the shards exist: a split that nobody reads may be missing.
    found = DatasetInfo(
        directory=folder,
        name=name,
        version=fields.text("version"),
        config_name=fields.text("configName") or None,
        description=fields.text("description"),
        splits={split.name: split for split in splits},
        features=_named(features, folder, there, access),
        supervised_keys=_supervised_keys(fields),
        citation=fields.text("citation"),
        license=fields.inner("redistributionInfo").text("license"),
        raw=fields.values,
        access=access,
        file_format=formats[0],
    )
    # A dataset may be there in several formats; only the files show which. The first shard of each
    # split is looked for: some formats may have been prepared for some splits only.
    for name in formats if len(formats) > 1 else ():
        other = replace(found, file_format=name)
        firsts = [path for split in other.splits for path in other.files(split)[:1]]
        if any(posixpath.basename(path) in there or os.path.exists(path) for path in firsts):
            return other
    return found


def _formats(fields: JsonFields) -> list[str]:
    """The formats that the shards may have, the main one first, without those that cannot be
    read.
    """
    main = fields.text("fileFormat") or _READABLE[0]  # old datasets leave it out
    formats = [
        name for name in (main, *fields.texts("alternativeFileFormats")) if name in _READABLE
    ]
    if not formats:
        expected = " or ".join(map(repr, _READABLE))
        raise ParseError(
            f"fileFormat: expected {expected}, got {main!r}: this shard format is not supported (prepare the dataset "
            "in another with TFDS: `download_and_prepare(file_format='array_record')`)",
            path=fields.path,
        )
    return formats


def info_of(
    directory: PathLike | DatasetInfo,
    storage_options: StorageOptions,
    given: object = None,
    *,
    needs_tree: bool = False,
) -> DatasetInfo:
    """The facts that `info` has of a directory, now or before; options given now count.

    Args:
        directory: See `info`; or its result.
        storage_options: See `info`.
        given: The features that the user passed: a feature tree counts where there is no
            features.json; where feature specs are passed, it is not read.
        needs_tree: Whether to read it even then.
    """
    given = None if needs_tree and are_specs(given) else given
    if not isinstance(directory, DatasetInfo):
        return _info(directory, Access(storage_options), given)
    return (
        directory if storage_options is None else replace(directory, access=Access(storage_options))
    )


def are_specs(features: object) -> TypeGuard[RecordFeatures]:
    """Whether these features are feature specs, such as those of `TFRecordDataset`, or one spec of
    whole records.
    """
    if isinstance(features, Mapping):
        return any(isinstance(item, Feature) for item in features.values())
    return isinstance(features, RecordFeatures)


def _tree(
    folder: str, there: Collection[str], access: Access, given: object
) -> f.FeaturesDict | f.Sequence:
    # Feature specs say all there is to read, so that features.json may be of unknown classes.
    if are_specs(given):
        return f.FeaturesDict({})
    path = posixpath.join(folder, FEATURES_FILE)
    if FEATURES_FILE in there:
        return features_from_json(read_json(path, access), path)
    try:
        # Only where there is no file: what TFDS wrote counts more than what a user remembers.
        return as_root(given)
    except TypeError:  # None, or names
        raise FileNotFoundError(
            errno.ENOENT,
            f"no {FEATURES_FILE} (TFDS up to 3.2.1 wrote none): give tfds.load features=, specs or a FeaturesDict",
            without_secrets(path),
        ) from None


def _split(fields: JsonFields) -> SplitInfo:
    name = fields.text("name")
    if not SPLIT_NAME.fullmatch(name):
        raise fields.error("name", "a split's name", name)
    lengths = fields.counts("shardLengths")
    # Old files have the number of shards alone.
    num_shards = len(lengths) or (fields.integer("numShards") or 0)
    # Names are made for all shards, so that a damaged number must not take all memory.
    if num_shards > _MOST_SHARDS:
        field = "shardLengths" if lengths else "numShards"
        raise fields.error(field, f"at most {_MOST_SHARDS} shards", num_shards)
    known = bool(lengths) or not num_shards
    template = fields.text("filepathTemplate") or DEFAULT_TEMPLATE
    return SplitInfo(
        name, lengths if known else None, fields.integer("numBytes") or 0, template, num_shards
    )


def _supervised_keys(fields: JsonFields) -> tuple[SupervisedKeys, ...] | None:
    keys = fields.inner("supervisedKeys")
    # The oldest form: two names.
    if keys.get("tuple") is None:
        return None if keys.get("input") is None else (keys.text("input"), keys.text("output"))
    found = _keys(keys.values, fields)
    if not isinstance(found, tuple):
        raise fields.error("supervisedKeys", "a tuple", keys.values)
    return found


def _keys(value: object, fields: JsonFields, depth: int = 0) -> SupervisedKeys:
    """Parse one of {"featureKey": name}, {"tuple": {"items": [...]}}, {"dict": {"dict": {...}}}."""
    match value if depth <= _MAX_DEPTH else None:
        # The second is the proto's own name.
        case {"featureKey": str(name)} | {"feature_key": str(name)}:
            return name
        case {"tuple": {"items": list(items)}}:
            return tuple(_keys(item, fields, depth + 1) for item in items)
        case {"dict": {"dict": dict(inner)}}:
            return {str(key): _keys(item, fields, depth + 1) for key, item in inner.items()}
    raise fields.error("supervisedKeys", "featureKey, tuple or dict", value)


def _named(
    tree: f.FeaturesDict | f.Sequence, folder: str, there: Collection[str], access: Access
) -> f.FeaturesDict | f.Sequence:
    """A copy of the tree with the class names from the ``*.labels.txt`` files that exist."""
    tree = copy.deepcopy(tree)
    for leaf in leaves_of(tree):
        feature, file = leaf.feature, label_file(leaf.names)
        is_label = isinstance(feature, (f.ClassLabel, f.LabeledImage)) and feature.names is None
        if not is_label or file not in there:
            continue
        path = posixpath.join(folder, file)
        # Not `splitlines`, which also splits at characters that a name may contain.
        lines = read_text(path, access).split("\n")
        set_fields(feature, names=tuple(line.strip() for line in lines if line.strip()))
        try:
            feature.__post_init__()
        except ValueError as error:
            raise ParseError(
                f"feature {file.removesuffix('.labels.txt')!r}: {error}", path=path
            ) from error
    return tree


# The folder.


def _version_folder(folder: str, access: Access) -> str:
    """Return the folder itself, or the highest version below it.

    Raises:
        FileNotFoundError: There is neither, or no such folder.
        ValueError: TFDS has not finished the folder, or there are several configs.
    """
    # TFDS renames the folder when it is complete.
    if posixpath.basename(folder).startswith("incomplete."):
        raise ValueError(
            f"{without_secrets(folder)}: TFDS has not finished this directory ('incomplete.'); prepare it again"
        )
    try:
        entries = _list_folder(folder, access)
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT,
            "no such directory; expected one that TFDS prepared, such as ~/tensorflow_datasets/mnist; load takes its "
            "name with data_dir=",
            without_secrets(folder),
        ) from None
    if INFO_FILE in entries:
        return folder
    versions = [name for name in entries if VERSION.fullmatch(name)]
    if versions:
        # By number: 1.10.0 is above 1.9.0.
        return posixpath.join(folder, max(versions, key=lambda name: [*map(int, name.split("."))]))
    unfinished = sorted(name for name in entries if name.startswith("incomplete."))
    # A config is a folder of versions, whatever its name.
    configs = [
        name
        for name in entries
        if not name.startswith((".", "incomplete.")) and _has_version(folder, name, access)
    ]
    default = ""
    if ".config" in entries:
        path = posixpath.join(folder, ".config", "metadata.json")
        with contextlib.suppress(FileNotFoundError):  # one that nobody has written is no error
            default = JsonFields(read_json(path, access), path).text("default_config_name")
    configs = [default] if default in configs else configs
    if len(configs) > 1:
        raise ValueError(
            f"{without_secrets(folder)}: several configs, choose one: {shown_list(sorted(configs))}"
        )
    if configs:
        return _version_folder(posixpath.join(folder, configs[0]), access)
    hint = f"; {unfinished[0]} was never finished" if unfinished else ""
    place = without_secrets(posixpath.join(folder, INFO_FILE))
    raise FileNotFoundError(
        errno.ENOENT, f"no {INFO_FILE}: not a TFDS dataset directory{hint}", place
    )


def _has_version(folder: str, name: str, access: Access) -> bool:
    try:
        # There may be files beside the configs.
        return any(map(VERSION.fullmatch, _list_folder(posixpath.join(folder, name), access)))
    except NotADirectoryError:
        return False


def _list_folder(folder: str, access: Access) -> list[str]:
    """List the names in a folder, sorted."""
    if not is_remote(folder):
        return sorted(open_path(os.listdir, folder))
    return sorted(RemoteNames(access).entries(folder))


def label_file(names: Iterable[str]) -> str:
    """The file of class names for a label feature, given the feature names from the root of the
    tree.
    """
    return f"{'-'.join(name.replace('/', '.') for name in names)}.labels.txt"
