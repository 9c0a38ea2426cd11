"""The episodes of a split: their lengths, and the columns of each, read on demand and cached."""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from torch_tfrecord.arguments import IndexPolicy, PathLike, StorageOptions
from torch_tfrecord.batch_memory import Ints, splits_of
from torch_tfrecord.errors import ParseError, TFRecordError
from torch_tfrecord.files import Access, is_remote
from torch_tfrecord.media import Image
from torch_tfrecord.per_process import ProcessCache, each_at_once
from torch_tfrecord.records import IndexKeeper
from torch_tfrecord.rlds.draws import Draw, DrawnColumn
from torch_tfrecord.rlds.episode_columns import (
    Decoding,
    EpisodeColumn,
    NumberColumn,
    StepLists,
    ValueColumn,
    each_leaf,
    part_of,
    read_leaf,
)
from torch_tfrecord.rlds.episode_index import (
    EpisodeFile,
    EpisodeKeeper,
    EpisodeReader,
    EpisodeRecord,
    Frames,
    Values,
)
from torch_tfrecord.samples import transform_one
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds import (
    Chosen,
    DatasetInfo,
    LeafPlace,
    Split,
    info_of,
    leaves_of,
    open_split,
)

if TYPE_CHECKING:
    from torch_tfrecord import RandomResizedCrop, ResizedCenterCrop

__all__ = ["STEPS", "DecodeImages", "Episode", "EpisodeStore", "EpisodeTransform"]

STEPS = "steps"
_Crop: TypeAlias = "RandomResizedCrop | ResizedCenterCrop"
DecodeImages: TypeAlias = "_Crop | bool | str | Collection[str] | Mapping[str, _Crop | bool]"
"""A crop, True, False, the names or paths of images to decode, or these and how."""
EpisodeTransform: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


class Episode(NamedTuple):
    """The columns and metadata of one episode, which samples are built from.

    Attributes:
        number: Position of the episode.
        num_steps: Number of steps.
        steps: The columns of the steps, nested as in the feature tree.
        metadata: The values of the other features, nested.
        num_bytes: Memory it takes.
    """

    number: int
    num_steps: int
    steps: dict[str, object]
    metadata: dict[str, object]
    num_bytes: int


class EpisodeStore:
    """Reads episodes by position. Pickles without open files; safe from threads and after fork.

    The arguments are those of `RLDSDataset`; `transform` is its `episode_transform`, and `cache` its
    `cache_dir` and `cache_bytes`.

    Attributes:
        info: Metadata of the dataset.
        num_steps: int64 [N]: steps of each episode.
        is_remote: Whether some files are in a storage.
        is_random: Whether images have random crops.
    """

    def __init__(
        self,
        directory: PathLike | DatasetInfo,
        split: Split,
        *,
        features: Chosen = None,
        decode_images: DecodeImages = True,
        transform: EpisodeTransform | None = None,
        index: IndexPolicy = "auto",
        index_dir: PathLike | None = None,
        episode_bytes: int = 32 << 20,
        storage_options: StorageOptions = None,
        cache: tuple[PathLike | None, int | None] = (None, None),
        draws: Sequence[Draw] = (),
    ) -> None:
        Access(None, *cache)  # wrong arguments, before any file is opened
        self.info = info_of(directory, storage_options, features, needs_tree=True)
        access = Access(self.info.access.storage_options, *cache)
        tree: object = self.info.features
        steps = tree.get(STEPS) if isinstance(tree, Mapping) else None
        # Else no sequence, or not of dicts.
        if not isinstance(getattr(steps, "feature", None), Mapping):
            raise ParseError(
                f"expected a feature {STEPS!r} that is a Dataset of dicts, as in RLDS, got "
                f"{shown_list([*tree], repr) if isinstance(tree, Mapping) else tree}; read this dataset "
                "with tfds.load",
                path=self.info._features_path,
            )
        self._choose(features, decode_images, draws)
        self.episode_transform = transform
        # Headers only: building the episode index reads and checks every record anyway.
        files = open_split(
            self.info,
            split,
            IndexKeeper(index, index_dir=index_dir, verify_crc=False, access=access),
        )
        # All step features count, also those that are not read: an index serves every choice of
        # them.
        counted = {
            leaf.path: leaf.num_values
            for leaf in leaves_of(self.info.features)
            if _is_step(leaf) and not leaf.is_empty
        }
        access = access.for_files(files.files)
        self.is_remote = any(map(is_remote, files.files))
        episodes = EpisodeKeeper(index, index_dir).find_all(
            [
                EpisodeFile(path, records, counted, access)
                for path, records in zip(files.files, files.indexes, strict=True)
            ]
        )
        self._reader = EpisodeReader(episodes)
        self._positions = files.positions
        self._begins = splits_of([len(item) for item in files.indexes])[:-1]
        # An array at once: of a range of a million, NumPy would look at each number.
        of_files, own = [item.num_steps for item in episodes], files.positions
        chosen = slice(own.start, own.stop) if isinstance(own, range) else own
        self.num_steps: Ints = np.concatenate(of_files)[chosen]
        self._cache: ProcessCache[Episode] = ProcessCache(episode_bytes, attrgetter("num_bytes"))

    def _choose(
        self, features: Chosen, decode_images: DecodeImages, draws: Sequence[Draw] = ()
    ) -> None:
        self._draws = draws
        options = [name for draw in draws for name in draw.options]
        self._leaves = leaves_of(self.info.features, [features, options] if draws else features)
        there = {leaf.path for leaf in self._leaves if _is_step(leaf)}
        for draw in draws:
            for path in draw.options:
                if path not in there:
                    raise KeyError(f"features: {path!r} is no single feature of a step")
            taken = draw.path in there and draw.path not in options
            if taken or not draw.path.startswith(f"{STEPS}/"):
                raise ValueError(
                    f"features: what is drawn cannot be {draw.path!r}: "
                    f"{'that feature is there, too' if taken else 'it belongs under steps'}"
                )
        self._columns = _column_makers(self._leaves, decode_images, self.info._features_path)
        self._wants = [want for maker in self._columns if maker is not None for want in maker.wants]
        crops = decode_images.values() if isinstance(decode_images, Mapping) else [decode_images]
        self.is_random = any(getattr(crop, "is_random", False) for crop in crops)

    def __len__(self) -> int:
        return len(self.num_steps)

    def episode(self, number: int) -> Episode:
        """The episode at a position.

        Raises:
            TFRecordError: The record is damaged or does not fit the features; names the file,
                record and feature.
        """
        return self._cache.find(number, self._load)

    def episodes(self, numbers: Sequence[int]) -> Iterator[Episode]:
        """The episodes at different positions, in their order; from a storage several at once."""
        closed = {number for number in numbers if self.is_remote and number not in self._cache}
        opened = each_at_once(self.episode, filter(closed.__contains__, numbers))
        return (next(opened) if number in closed else self.episode(number) for number in numbers)

    def only(self, features: Chosen) -> EpisodeStore:
        """A store of the same episodes that reads only these features, without a transform; nothing
        is cached.
        """
        # Files, indexes and what is open are shared.
        other = copy.copy(self)
        other._choose(features, False)
        other.episode_transform = None
        other._cache = ProcessCache(0, attrgetter("num_bytes"))
        return other

    def identity(self) -> list[object]:
        """The identity of this split of these files, as JSON values."""
        files = [index.file for index in self._reader.indexes]
        names = [[posixpath.basename(file.path), file.identity()] for file in files]
        return [names, np.asarray(self._positions).tolist()]

    def record(self, number: int) -> EpisodeRecord:
        """The record of the episode at a position."""
        absolute = int(self._positions[as_integer(number)])
        # Records are numbered over all files.
        file = int(np.searchsorted(self._begins, absolute, side="right")) - 1
        return EpisodeRecord(self._reader, file, absolute - int(self._begins[file]))

    @property
    def files(self) -> list[str]:
        """The data files."""
        return [index.file.path for index in self._reader.indexes]

    @property
    def features(self) -> list[str]:
        """The paths of the features that are read."""
        return [leaf.path for leaf in self._leaves]

    def place(self, number: int) -> str:
        """The record of an episode, formatted for errors."""
        return str(self.record(number).place)

    def _load(self, number: int) -> Episode:
        record = self.record(number)
        num_steps = int(self.num_steps[number])
        lists = record.lists(self._wants)
        steps: dict[str, Any] = {}
        metadata: dict[str, Any] = {}
        options: dict[str, Any] = {path: None for draw in self._draws for path in draw.options}
        for leaf, make in zip(self._leaves, self._columns, strict=True):
            try:
                column = {} if make is None else make(lists, num_steps, record)
            except TFRecordError as error:
                # Most errors name their feature themselves.
                if not str(error.args[0]).startswith("feature "):
                    error.args = (f"feature {leaf.path!r}: {error.args[0]}",)
                raise record.locate(error) from error.__cause__
            if leaf.path in options:
                options[leaf.path] = column
            elif _is_step(leaf):
                _put(steps, leaf.names[1:], column)
            else:
                _put(metadata, leaf.names, column)
        for draw in self._draws:
            found = [options[path] for path in draw.options]
            _put(steps, draw.path.split("/")[1:], DrawnColumn(draw, found))
        episode = Episode(number, num_steps, steps, metadata, 0)
        if self.episode_transform is not None:
            transform = self.episode_transform
            episode = _transform(
                episode, lambda given: transform_one(transform, number, given, self.place)
            )
        # Counted after the transform, which may have added columns.
        columns: list[EpisodeColumn] = []
        each_leaf(episode.steps, columns.append)
        return episode._replace(num_bytes=1024 + sum(column.num_bytes for column in columns))


def _put(tree: dict[str, Any], names: Sequence[str], column: object) -> None:
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
    tree[names[-1]] = column


def _is_step(leaf: LeafPlace) -> bool:
    return leaf.names[0] == STEPS


# Columns of leaves.


class _ColumnMaker:
    """Builds the column of one step feature, or the value of a metadata feature."""

    def __init__(self, leaf: LeafPlace, decoded: _Crop | bool, path: str) -> None:
        self._leaf = leaf
        # Boxes of episodes stay as they are stored: the size of an image would have to be read.
        own = replace(leaf, image_key=None)
        self.wants = own.reader(path=path).wants
        if _is_step(leaf):
            own = replace(own, lengths=leaf.lengths[1:])
        self._reader = own.reader(path=path)
        element: Any = self._reader.element
        self._of_lists = Decoding(leaf.path, partial(read_leaf, self._reader))
        self._of_values = None
        crop = None if isinstance(decoded, bool) else decoded
        if element.is_text or (element.is_encoded and decoded):
            # Many images are decoded at once where decoding is a plain `decode_image`.
            image = None if element.plain_mode is None else Image(element.plain_mode, crop=crop)
            if crop is not None and (image is None or len(leaf.lengths) > 1):
                raise ValueError(
                    f"decode_images: {leaf.path!r} has no crop: it is not one uint8 picture a step"
                )
            self._of_values = Decoding(leaf.path, element.decode, image, element.shape)

    def __call__(
        self, lists: Mapping[str, Values], num_steps: int, record: EpisodeRecord
    ) -> object:
        own = {want.key: lists[want.key] for want in self.wants if want.key in lists}
        if not _is_step(self._leaf):
            return read_leaf(self._reader, {key: part_of(values) for key, values in own.items()})
        path = self._leaf.path
        if not own and getattr(self._leaf.feature, "optional", False):
            return ValueColumn([None] * num_steps, is_list=True)
        if not own and num_steps:
            raise ParseError(f"key {path!r} is required but could not be found in the record")
        element, values = self._reader.element, own.get(path)
        # A list that has one element for each step may have a form of its own.
        if len(self._leaf.lengths) == 1 and values is not None:
            if isinstance(values, Frames) and not element.is_encoded:
                # Long texts: a sample would read each of them on its own.
                values = values.read(0, len(values))
            if element.is_text or element.is_encoded:
                return ValueColumn(values, self._of_values, record, is_list=element.is_text)
            if element.count:
                rows = element.many(values)
                is_tensor = isinstance(rows, torch.Tensor)
                return NumberColumn(rows) if is_tensor else ValueColumn(rows, is_list=True)
        return ValueColumn(StepLists(self._reader, own, num_steps), self._of_lists, record)


def _column_makers(
    leaves: list[LeafPlace], decode_images: DecodeImages, path: str
) -> list[_ColumnMaker | None]:
    """How to make the column of each leaf; None for a dict of nothing."""
    images = [leaf.path for leaf in leaves if _is_step(leaf) and leaf.is_image]
    names: Any = [decode_images] if isinstance(decode_images, str) else decode_images
    are_named = isinstance(names, Collection)
    ways = dict.fromkeys(images, False if are_named else names)
    for name in names if are_named else ():
        # A name may be the end of a path.
        found = [image for image in images if f"/{image}".endswith(f"/{name}")]
        if len(found) != 1:
            raise ValueError(
                f"decode_images must be True, False, a crop, or names of images: {name!r} is "
                f"{'none' if not found else 'not one'} of {shown_list(images, repr)}"
            )
        ways[found[0]] = names[name] if isinstance(names, Mapping) else True
    return [
        None if leaf.is_empty else _ColumnMaker(leaf, ways.get(leaf.path, True), path)
        for leaf in leaves
    ]


# Transforms of whole episodes.


def _transform(episode: Episode, transform: EpisodeTransform) -> Episode:
    """The episode with the columns that the `episode_transform` returned."""

    def read(column: EpisodeColumn) -> object:
        # A tensor, or a list of str or bytes; encoded columns stay unread.
        is_read = isinstance(column, NumberColumn) or getattr(column, "is_list", False)
        return column.read(0, len(column)) if is_read else column

    made = transform({**each_leaf(episode.steps, read), **episode.metadata})
    if not isinstance(made, Mapping):
        raise TypeError(f"episode_transform must return a dict, got {type(made).__name__}")
    # Values that the transform adds are columns of steps.
    metadata = {name: made[name] for name in episode.metadata if name in made}
    steps = {
        name: _to_column(value, name, episode)
        for name, value in made.items()
        if name not in metadata
    }
    return episode._replace(steps=steps, metadata=metadata)


def _to_column(value: Any, name: str, episode: Episode) -> object:
    if isinstance(value, Mapping):
        return {
            inner: _to_column(item, f"{name}/{inner}", episode) for inner, item in value.items()
        }
    # Samples take windows of it, which would silently be of other steps.
    if not hasattr(value, "__len__") or len(value) != episode.num_steps:
        got = f"{len(value)} of them" if hasattr(value, "__len__") else type(value).__name__
        raise ValueError(
            f"episode_transform: {name!r}: expected one value for each of the {episode.num_steps} steps of episode "
            f"{episode.number}, got {got}"
        )
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return NumberColumn(value)
    if isinstance(value, EpisodeColumn):
        return value
    return ValueColumn(list(value), is_list=True)
