"""Open a split of a TFDS dataset as a map-style dataset."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np

from torch_tfrecord.arguments import IndexPolicy, PathLike, StorageOptions, check_callable
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.errors import IndexMismatchError
from torch_tfrecord.files import is_remote
from torch_tfrecord.loading import RecordFiles
from torch_tfrecord.records import IndexKeeper, RecordIndex, RecordTable
from torch_tfrecord.shown import shown_list, shown_text, without_secrets
from torch_tfrecord.tables import TFRecordDataset
from torch_tfrecord.tfds.dataset_info import DatasetInfo, are_specs, info_of
from torch_tfrecord.tfds.parser import Chosen, Decoding, TFDSParser
from torch_tfrecord.tfds.splits import Split, SplitRange, resolve_split

__all__ = ["SplitFiles", "load", "open_split"]

_Directory: TypeAlias = "PathLike | DatasetInfo"


@overload
def load(
    directory: _Directory, split: Split = ..., *, with_info: Literal[False] = ..., **options: Any
) -> TFRecordDataset: ...
@overload
def load(directory: _Directory, split: Split | None = ..., **options: Any) -> Any: ...
def load(  # type: ignore[misc]  # which does not take any option
    directory: _Directory,
    split: Split | None = "train",
    *,
    data_dir: PathLike | None = None,
    shuffle_files: bool = False,
    with_info: bool = False,
    features: Chosen | RecordFeatures = None,
    transform: Callable[[Any], object] | None = None,
    as_supervised: bool = False,
    as_numpy_layout: bool = False,
    decoders: Mapping[str, Callable[[bytes], object] | None] | None = None,
    defaults: Mapping[str, object] | None = None,
    verify_crc: bool = True,
    index: IndexPolicy = "auto",
    index_dir: PathLike | None = None,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    storage_options: StorageOptions = None,
) -> object:
    """Open a split of a TFDS dataset for random access, without TensorFlow and without writing a
    feature spec.

    Examples come in file order, as in TFDS with ``shuffle_files=False`` and one file at a time.

    Args:
        directory: See `info`; or a `DatasetInfo`.
        split: ``"train"``, ``"train[:10%]"``, ``"train[100:200]"``, ``"train[:-5]"``,
            ``"train[:2shard]"``, ``"train+test"``, ``"all"``; or a `ReadInstruction` or a part from
            `even_splits`. Only the shards of the slice are opened. None gives a dict of all splits.
        data_dir: Folder of the datasets; `directory` is then a name there, as TFDS takes it:
            ``"mnist"``, ``"mnist:3.0.1"``, ``"dataset/config:1.0.0"``.
        shuffle_files: False, which TFDS takes, too: `make_dataloader` shuffles records.
        with_info: Return (dataset, info).
        features: The features to read: names and paths (``["image", "objects/label"]``), or a
            nested mapping. Others are neither parsed nor decoded, so their classes may be unknown.
            None reads everything. Or feature specs, as for `TFRecordDataset` (``{"image": Image(),
            "id": FixedLenFeature((), torch.int64)}``, or ``Text()`` for records that are text):
            then features.json is not read. Where there is none (TFDS wrote none up to 3.2.1), give
            specs, or the tree, such as ``tfds.features.FeaturesDict({...})``.
        transform: Called with each sample.
        as_supervised: Return tuples of the dataset's supervised keys, such as (image, label).
        as_numpy_layout: Use the TFDS layout: images [H, W, C], boxes as four plain numbers.
        decoders: Path -> function that decodes the bytes of an image, text or encoded tensor
            instead of the default decoder; None returns the bytes.
        defaults: Path -> value for a missing optional feature; None if not given.
        verify_crc: Check the payload checksums.
        index: See `TFRecordDataset`.
        index_dir: See `TFRecordDataset`.
        max_batch_bytes: See `TFRecordDataset`.
        storage_options: See `TFRecordDataset`; None uses those that `info` was given.

    Returns:
        A `TFRecordDataset` of nested dicts. Numbers and class labels are tensors, images
        `tv_tensors.Image` [C, H, W], segmentation masks `Mask`, videos `Video` [T, C, H, W], boxes
        `BoundingBoxes`, text str, other strings bytes. Sequences are tensors [T, ...] or lists;
        ragged ones are jagged nested tensors or `RaggedTensor`.

    Raises:
        FileNotFoundError: Not a TFDS directory, or a shard is missing.
        IndexMismatchError: A shard has more or fewer records than dataset_info.json says.
        KeyError: `features`, `decoders` or `defaults` name a feature that does not exist.
        ParseError: dataset_info.json or features.json is damaged, or a feature has an unknown
            class.
        ValueError: `shuffle_files` is True; the split is invalid, unknown or empty; the dataset has no supervised keys;
            feature specs with an argument that needs features.json.

    Example:
        >>> ds = tfds.load("~/tensorflow_datasets/mnist", "train[:90%]", as_supervised=True)  # doctest: +SKIP
        >>> ds[0]  # doctest: +SKIP
        (Image([[[...]]], dtype=torch.uint8, ), tensor(4))
    """
    check_callable("transform", transform)
    if shuffle_files:
        raise ValueError(
            "shuffle_files must be False: make_dataloader(ds, batch_size, shuffle=True) draws the examples themselves"
        )
    if data_dir is not None:
        directory = posixpath.join(os.fspath(data_dir), str(directory).replace(":", "/"))
    found = info_of(directory, storage_options, features)
    if as_supervised and found.supervised_keys is None:
        raise ValueError(
            f"{without_secrets(found.directory)}: as_supervised: the dataset has no supervised_keys"
        )
    # Specs of features are read as in `TFRecordDataset`, whatever features.json says.
    parser: Any = features
    if are_specs(features):
        for name, value in (
            ("as_supervised", as_supervised),
            ("as_numpy_layout", as_numpy_layout),
            ("decoders", decoders),
            ("defaults", defaults),
        ):
            if value:
                raise ValueError(
                    f"{name} must not be given with feature specs: it is for features of features.json"
                )
    else:
        parser = TFDSParser(
            found.features,
            features,
            decoding=Decoding(as_numpy_layout, dict(decoders or {}), dict(defaults or {})),
            supervised_keys=found.supervised_keys if as_supervised else None,
            path=found._features_path,
            max_batch_bytes=max_batch_bytes,
        )
        # Plain features are read as those of a `TFRecordDataset`, with all its short cuts.
        parser = parser.plain_features or parser
    keeper = IndexKeeper(index, index_dir=index_dir, verify_crc=verify_crc, access=found.access)

    def opened(split: Split) -> TFRecordDataset:
        files = open_split(found, split, keeper)
        return TFRecordDataset._from_source(
            RecordFiles.of(RecordTable(files.files, files.indexes), verify_crc, found.access),
            parser,
            positions=files.positions,
            transform=transform,
            max_batch_bytes=max_batch_bytes,
        )

    ds = {name: opened(name) for name in found.splits} if split is None else opened(split)
    return (ds, found) if with_info else ds


class SplitFiles(NamedTuple):
    """The files of a split, and the positions of its records.

    Attributes:
        files: Paths, each once, in the order of their first use.
        indexes: The index of each file, all of one format.
        positions: Positions over all files; a range if they are contiguous, else an int64 array.
    """

    files: list[str]
    indexes: Sequence[RecordIndex]
    positions: Sequence[int]


def open_split(info: DatasetInfo, split: Split, keeper: IndexKeeper) -> SplitFiles:
    """Find and check the shards of a split.

    Raises:
        FileNotFoundError, IndexMismatchError, ValueError: See `load`.
    """
    known: dict[str, RecordIndex] = {}

    def counted(files: Sequence[str]) -> tuple[int, ...]:
        """How many records files have; each is indexed once."""
        new = [path for path in files if path not in known]
        _check_there(new)
        # ArrayRecord files have their own index inside.
        is_array = info.file_format == "array_record"
        found = map(RecordIndex._of_array_record, new) if is_array else keeper.indexes(new)
        known.update(zip(new, found, strict=True))
        return tuple(len(known[path]) for path in files)

    lengths: dict[str, tuple[int, ...]] = {}
    shards: dict[str, dict[str, int]] = {}
    every: dict[str, int] = {}
    for name, described in info.splits.items():
        paths, own = info.files(name), described.shard_lengths
        # An old dataset_info.json lists none.
        lengths[name] = counted(paths) if own is None else own
        shards[name] = dict(zip(paths, lengths[name], strict=True))
        every |= shards[name]
    ranges = resolve_split(split, lengths)
    pieces = [piece for part in ranges for piece in _pieces(part, shards[part.split])]
    # A split may name a shard twice ("train+train"): it is opened once.
    files = list(dict.fromkeys(path for path, _, _ in pieces))
    expected = [every[path] for path in files]
    for path, length, found in zip(files, expected, counted(files), strict=True):
        # Else all positions after it would be of other records than in TFDS.
        if found != length:
            raise IndexMismatchError(
                f"expected {length} records (shardLengths in dataset_info.json), got {found} in the shard",
                path=path,
            )
    return SplitFiles(files, [known[path] for path in files], _positions(pieces, files, expected))


def _pieces(part: SplitRange, shards: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """(file, first record, end) of each shard that the range touches; the end is exclusive."""
    pieces = []
    begin = 0
    for path, length in shards.items():
        start, stop = max(part.start - begin, 0), min(part.stop - begin, length)
        if start < stop:
            pieces.append((path, start, stop))
        begin += length
    return pieces


def _positions(
    pieces: Sequence[tuple[str, int, int]], files: Sequence[str], lengths: Sequence[int]
) -> Any:
    begins = dict(zip(files, accumulate(lengths, initial=0), strict=False))
    ranges = [range(begins[path] + start, begins[path] + stop) for path, start, stop in pieces]
    # A range takes no memory, and shows loaders that the order is that of the files.
    if all(left.stop == right.start for left, right in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop)
    return np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in ranges])


def _check_there(files: Sequence[str]) -> None:
    # For remote files the first read shows it.
    local = [path for path in files if not is_remote(path)]
    missing = [path for path in local if not os.path.exists(path)]
    if missing:
        gone = set(missing)
        # With many shards, a wrong file_format or data_dir shows at once in what is there.
        there = (
            shown_list([posixpath.basename(path) for path in local if path not in gone]) or "none"
        )
        names = shown_list([*map(posixpath.basename, missing)])
        text = f"a shard of the dataset is missing: {len(missing)} of {len(local)}: {names}; there are: {there}"
        raise FileNotFoundError(errno.ENOENT, shown_text(text), missing[0])
