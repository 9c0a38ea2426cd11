"""Write samples to a directory that TFDS can load."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from pathlib import Path

import torch_tfrecord.tfds.features as f
from torch_tfrecord.arguments import PathLike, StorageOptions, at_least, true_or_false
from torch_tfrecord.errors import locate_value
from torch_tfrecord.files import (
    Access,
    AtomicFile,
    HiddenFolder,
    LocalFile,
    is_remote,
    local_path,
    open_path,
)
from torch_tfrecord.records import OVERHEAD_BYTES, TFRecordWriter, read_blocks
from torch_tfrecord.remote import RemoteNames, upload_folder
from torch_tfrecord.tfds.dataset_info import (
    FEATURES_FILE,
    INFO_FILE,
    SPLIT_NAME,
    VERSION,
    DatasetInfo,
    info,
    label_file,
)
from torch_tfrecord.tfds.encoding import SampleEncoder
from torch_tfrecord.tfds.features_json import as_root, features_to_json
from torch_tfrecord.tfds.parser import SupervisedKeys, flat_keys, leaves_of
from torch_tfrecord.tfds.splits import (
    DEFAULT_TEMPLATE,
    shard_borders,
    shard_count,
    shard_paths,
)

__all__ = ["write"]

_NAME = re.compile(r"[a-zA-Z]\w*")


def write(
    directory: PathLike,
    samples_by_split: Mapping[str, Iterable[Mapping[str, object]]],
    features: Mapping[str, object] | f.Sequence,
    *,
    name: str,
    version: str = "1.0.0",
    config_name: str | None = None,
    description: str = "",
    citation: str = "",
    license: str = "",
    supervised_keys: tuple[SupervisedKeys, ...] | None = None,
    num_shards: int | Mapping[str, int] | None = None,
    as_numpy_layout: bool = False,
    disable_shuffling: bool = False,
    storage_options: StorageOptions = None,
) -> DatasetInfo:
    """Write samples as a dataset that both ``tfds.builder_from_directory`` and `load` can read.

    Samples keep their order, shard after shard. The directory appears complete or not at all; the
    next call removes what a killed process left next to it (``incomplete.*``).

    Args:
        directory: The version directory, ``<data_dir>/<name>[/<config>]/<version>`` in TFDS. Must
            not exist, or be empty. If it is a URL, the files are written to the folder for
            temporary files and uploaded, with dataset_info.json last, so that no reader sees an
            unfinished dataset.
        samples_by_split: Split name -> samples in the form that `load` returns: nested dicts; a
            sequence of dicts may also be a list of dicts. Images are arrays, tensors, or the bytes
            or path of a file, stored unchanged.
        features: The feature tree, built from `torch_tfrecord.tfds.features`: a mapping, or a
            `Sequence` of one.
        name: Name of the dataset: a letter, then letters, digits and "_".
        version: "x.y.z".
        config_name: Name of the config, if any.
        description: Free text.
        citation: BibTeX.
        license: Free text.
        supervised_keys: (input, target) or (input, target, weights); names, or nested tuples and
            dicts of them.
        num_shards: Number of shards of every split, or split name -> number; by default chosen as
            in TFDS (shards of 64 MiB to 1 GiB).
        as_numpy_layout: Image arrays are [H, W, C], as from ``load(as_numpy_layout=True)``.
        disable_shuffling: Mark the dataset as ordered, as TFDS's argument of this name does. TFDS
            then reads the shards one after another, and refuses to shuffle or interleave them (so
            do dlimp, OpenVLA, Octo and openpi).
        storage_options: See `TFRecordDataset`.

    Returns:
        The `DatasetInfo` of the directory.

    Raises:
        FileExistsError: The directory is not empty.
        KeyError: Supervised keys are not among the features.
        TypeError, ValueError: An argument is invalid, a split is empty, or a sample does not fit
            the features; names the split, sample and feature.

    Example:
        >>> features = {"image": f.Image(), "label": f.ClassLabel(num_classes=2)}  # f is tfds.features
        >>> tfds.write("out/toy/1.0.0", {"train": samples}, features, name="toy")  # doctest: +SKIP
    """
    # All arguments are checked before anything is written.
    tree = as_root(features)
    _check("name", name, _NAME)
    _check("version", version, VERSION)
    for split in samples_by_split:
        _check("a split's name", split, SPLIT_NAME)
    if not samples_by_split:
        raise ValueError("samples_by_split must have at least one split")
    _check_keys(supervised_keys, tree)
    encoder = SampleEncoder(tree, as_numpy_layout=as_numpy_layout)
    fields = {
        "name": name,
        "version": version,
        "configName": config_name,
        "description": description,
        "citation": citation,
        "redistributionInfo": {"license": license} if license else None,
        "supervisedKeys": None if supervised_keys is None else _keys_to_json(supervised_keys),
        "fileFormat": "tfrecord",
        # Left out if False, as TFDS does.
        "disableShuffling": true_or_false("disable_shuffling", disable_shuffling) or None,
    }

    def fill(folder: Path) -> None:
        splits = [
            _write_split(folder, name, split, samples, encoder, num_shards)
            for split, samples in samples_by_split.items()
        ]
        texts = {
            INFO_FILE: _json({**fields, "splits": splits}),
            FEATURES_FILE: _json(features_to_json(tree)),
        }
        # Class names are in files of their own.
        for leaf in leaves_of(tree):
            if (
                isinstance(leaf.feature, (f.ClassLabel, f.LabeledImage))
                and leaf.feature.names is not None
            ):
                texts[label_file(leaf.names)] = "\n".join(leaf.feature.names) + "\n"
        for file, text in texts.items():
            AtomicFile.save(str(folder / file), text.encode())

    path = local_path(directory)
    if is_remote(path):
        folder, access = path.rstrip("/"), Access(storage_options)
        with contextlib.suppress(FileNotFoundError):
            if RemoteNames(access).entries(folder):
                raise FileExistsError(errno.EEXIST, "there is something already", folder)
        with tempfile.TemporaryDirectory(prefix="torch_tfrecord-") as temporary:
            fill(Path(temporary))
            # Storages rename no folders: without INFO_FILE, which comes last, no reader takes it for
            # a dataset.
            upload_folder(Path(temporary), folder, INFO_FILE, access)
        return info(path, storage_options=storage_options)
    target = _target(path)
    # A name that every TFDS reader refuses; with 12 digits, as those of TFDS have 6. Its lock shows
    # other processes that this folder is in use.
    hidden = HiddenFolder(
        target, lambda path: f"incomplete.{path.name[1:13].upper()}_{target.name}"
    )
    try:
        fill(hidden.make())
        hidden.publish()
    except BaseException:
        hidden.discard()
        raise
    return info(target)


def _check(what: str, value: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{what} must be like {pattern.pattern}, got {value!r}")


def _target(path: str) -> Path:
    target = Path(os.path.abspath(path))
    # `os.replace` takes the place of an empty directory.
    if target.is_dir() and not open_path(os.listdir, target):
        return target
    if os.path.lexists(target):
        raise FileExistsError(
            errno.EEXIST, "expected a new or empty directory, got an existing one", str(target)
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _write_split(
    folder: Path,
    name: str,
    split: str,
    samples: Iterable[Mapping[str, object]],
    encoder: SampleEncoder,
    num_shards: int | Mapping[str, int] | None,
) -> dict[str, object]:
    """Write the shards of a split: first to one file, as their number and borders depend on the
    sample count.
    """
    wanted = num_shards.get(split) if isinstance(num_shards, Mapping) else num_shards
    if wanted is not None:
        wanted = at_least(1, "num_shards", wanted)
    # Hidden, so that a listing of a killed write shows no shard of a wrong name.
    whole = folder / f".{split}.tfrecord"
    count = num_bytes = 0
    with TFRecordWriter(whole, compression_type=None) as writer:
        for sample in samples:
            try:
                record = encoder.encode(sample)
            except (TypeError, ValueError) as error:
                raise locate_value(error, f"split {split!r}, sample {count}") from error
            writer.write(record)
            count, num_bytes = count + 1, num_bytes + len(record)
    if not count:
        raise ValueError(f"split {split!r} has no samples; TFDS cannot read an empty split")
    # With the frames of the records, as TFDS counts.
    number = wanted or shard_count(num_bytes + OVERHEAD_BYTES * count, count)
    if number > count:
        raise ValueError(f"split {split!r}: {number} shards need as many samples, got {count}")
    ends = shard_borders(count, number)
    paths = shard_paths(str(folder), "", dataset=name, split=split, num_shards=number)
    lengths = [end - start for start, end in pairwise([0, *ends])]
    _divide(whole, paths, lengths)
    return {
        "name": split,
        "shardLengths": [str(length) for length in lengths],
        "numBytes": str(num_bytes),
        "filepathTemplate": DEFAULT_TEMPLATE,
    }


def _divide(whole: Path, paths: list[str], lengths: list[int]) -> None:
    # Most datasets are small: nothing is copied.
    if len(paths) == 1:
        os.replace(whole, paths[0])
        return
    file = LocalFile(str(whole)).ahead()
    blocks = read_blocks(file, "", verify_crc=True, on_error="raise")
    records = (record for block in blocks for record in block.payloads or ())
    for path, length in zip(paths, lengths, strict=True):
        with TFRecordWriter(path, compression_type=None) as writer:
            for record in islice(records, length):
                writer.write(record)
    whole.unlink()


def _check_keys(keys: tuple[SupervisedKeys, ...] | None, tree: f.FeatureConnector) -> None:
    if keys is None:
        return
    if not isinstance(keys, tuple) or len(keys) not in (2, 3):
        raise ValueError(f"supervised_keys must be a tuple of 2 or 3, got {keys!r}")
    # TFDS looks the keys up at the top of the sample.
    there = dict.fromkeys(leaf.names[0] for leaf in leaves_of(tree))
    unknown = [key for key in flat_keys(keys) if key not in there]
    if unknown:
        raise KeyError(f"supervised_keys: no feature {unknown[0]!r}; there are {', '.join(there)}")


def _keys_to_json(keys: SupervisedKeys) -> dict[str, object]:
    if isinstance(keys, str):
        return {"featureKey": keys}
    if isinstance(keys, Mapping):
        return {"dict": {"dict": {name: _keys_to_json(item) for name, item in keys.items()}}}
    return {"tuple": {"items": [_keys_to_json(item) for item in keys]}}


def _json(fields: Mapping[str, object]) -> str:
    # proto3 JSON leaves out what is empty.
    kept = {name: value for name, value in fields.items() if value not in (None, "")}
    return json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
