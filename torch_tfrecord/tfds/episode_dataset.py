"""Read RLDS and Open X-Embodiment episodes as a whole, and the base of the datasets over
episodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from operator import index as as_integer
from typing import Any, TypeVar, overload

from torch.utils.data import Dataset

from torch_tfrecord.arguments import IndexPolicy, check_callable
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes
from torch_tfrecord.errors import LimitExceededError
from torch_tfrecord.loading.sample_block import take_apart
from torch_tfrecord.loading.transport import register_in_worker
from torch_tfrecord.samples import transform_one
from torch_tfrecord.shown import shown_features, shown_files, shown_transform
from torch_tfrecord.tfds.dataset_info import DatasetInfo
from torch_tfrecord.tfds.episode_columns import each_leaf
from torch_tfrecord.tfds.episode_store import STEPS, DecodeImages, Episode, EpisodeStore
from torch_tfrecord.tfds.parser import Chosen
from torch_tfrecord.tfds.splits import Split
from torch_tfrecord.tfds.step_samples import own
from torch_tfrecord.tfds.windows import Span, StepBatch

__all__ = ["EpisodeDataset", "RLDSEpisodes"]

_Same = TypeVar("_Same", bound="EpisodeDataset")


class EpisodeDataset(Dataset[Any]):
    """The shared base of `RLDSDataset` and `RLDSEpisodes`: a range of positions over the episodes
    of a split.
    """

    _unit = "episodes"

    def __init__(self, store: EpisodeStore, num_positions: int, max_batch_bytes: int) -> None:
        self._store = store
        self._max_batch_bytes = max_batch_bytes
        self.info = store.info
        self.num_steps = store.num_steps
        self._positions = range(num_positions)

    def __len__(self) -> int:
        return len(self._positions)

    def _part(self: _Same, positions: slice) -> _Same:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        part._positions = self._positions[positions]
        return part

    def _absolute(self, position: int) -> int:
        try:
            return self._positions[as_integer(position)]
        except IndexError:
            raise IndexError(
                f"position {position} is out of range for {len(self)} {self._unit}"
            ) from None

    def _of_episode(self, number: int, make: Callable[[Episode], dict[str, Any]]) -> dict[str, Any]:
        """Build a sample from one episode, by its number, within the memory budget of a batch."""
        try:
            with BatchBudget(self._max_batch_bytes):
                return make(self._store.episode(number))
        except LimitExceededError as error:
            raise (
                error if error.path else self._store.record(number).locate(error)
            ) from error.__cause__

    def _shown(self, what: str, windows: str, **transforms: object) -> str:
        files, features = shown_files(self._store.files), shown_features(self._store.features)
        shown = "".join(shown_transform(name, transform) for name, transform in transforms.items())
        return f"{what} of {self.info.name}/{self.info.version}, {windows}{files}{features}{shown}"


class RLDSEpisodes(EpisodeDataset):
    """A dataset of whole episodes: ``{"steps": {"action": [T, ...], ...}, "episode_metadata":
    ...}``.

    Args:
        directory: See `RLDSDataset`.
        split: See `RLDSDataset`.
        decode_images: See `RLDSDataset`. The images of all steps are decoded to a
            `tv_tensors.Video` [T, C, H, W]; with False, they are a list of T bytes.
        features: See `RLDSDataset`.
        transform: Called with each episode.
        index: See `TFRecordDataset`.
        index_dir: See `TFRecordDataset`.
        max_batch_bytes: See `TFRecordDataset`; applies to one episode.
        storage_options: See `load`.

    Attributes:
        info: The `DatasetInfo` of the directory.
        num_steps: int64 [episodes]: steps of each episode.

    Example:
        >>> episodes = RLDSEpisodes("bridge/0.1.0", "train", decode_images=False)  # doctest: +SKIP
        >>> episodes[0]["steps"]["action"].shape  # doctest: +SKIP
        torch.Size([38, 7])
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | DatasetInfo,
        split: Split = "train",
        *,
        decode_images: DecodeImages = True,
        features: Chosen = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        index: IndexPolicy = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_callable("transform", transform)
        check_max_batch_bytes(max_batch_bytes)
        store = EpisodeStore(
            directory,
            split,
            features=features,
            decode_images=decode_images,
            index=index,
            index_dir=index_dir,
            cache_bytes=0,
            storage_options=storage_options,
        )
        self._transform = transform
        super().__init__(store, len(store), max_batch_bytes)

    @overload
    def __getitem__(self, position: slice) -> RLDSEpisodes: ...

    @overload
    def __getitem__(self, position: int) -> Any: ...

    def __getitem__(self, position: int | slice) -> Any:
        """Return the episode at a position (negative counts from the end), or for a slice a dataset
        of them.
        """
        if isinstance(position, slice):
            return self._part(position)
        register_in_worker()
        number = self._absolute(position)
        item = self._of_episode(number, self._whole)
        return (
            item
            if self._transform is None
            else transform_one(self._transform, number, item, self._store.place)
        )

    def _whole(self, episode: Episode) -> dict[str, Any]:
        batch = StepBatch([Span(0, episode.num_steps)], [0], None)
        steps = each_leaf(episode.steps, lambda column: take_apart(batch.take([column]), 1)[0])
        metadata = each_leaf(episode.metadata, own)
        return {STEPS: steps, **metadata, "_len": episode.num_steps, "_traj_index": episode.number}

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the episodes at several positions, in that order."""
        return [self[position] for position in positions]

    def __repr__(self) -> str:
        return (
            f"RLDSEpisodes({self._shown(f'{len(self)} episodes', '', transform=self._transform)})"
        )
