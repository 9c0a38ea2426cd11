"""Read RLDS and Open X-Embodiment episodes: windows of steps by position, or whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torch_tfrecord.arguments import (
    DecodeOn,
    IndexPolicy,
    Pad,
    PathLike,
    StorageOptions,
    at_least,
    check_callable,
    integer,
    one_of,
)
from torch_tfrecord.batch_memory import MAX_BATCH_BYTES, BatchBudget, check_max_batch_bytes
from torch_tfrecord.errors import LimitExceededError, TFRecordError
from torch_tfrecord.loading import (
    ColumnBatch,
    StagedDataset,
)
from torch_tfrecord.order import DrawEpoch
from torch_tfrecord.rlds.draws import Drawn, declared
from torch_tfrecord.rlds.episode_columns import each_leaf
from torch_tfrecord.rlds.episode_store import (
    STEPS,
    DecodeImages,
    Episode,
    EpisodeStore,
    EpisodeTransform,
)
from torch_tfrecord.rlds.step_samples import (
    DifferentNamesError,
    StepBatch,
    finish,
    own,
    step_columns,
)
from torch_tfrecord.rlds.windows import (
    DROID_KEY,
    Keep,
    KeepKey,
    UniformGoals,
    Windows,
    chosen_steps,
)
from torch_tfrecord.samples import Places, SampleList, transform_one
from torch_tfrecord.shown import shown_features, shown_files, shown_transform, shown_value
from torch_tfrecord.tfds import Chosen, DatasetInfo, Split

__all__ = [
    "EpisodeDataset",
    "RLDSDataset",
    "RLDSEpisodes",
]


class EpisodeDataset(StagedDataset):
    """The shared base of `RLDSDataset` and `RLDSEpisodes`: a range of positions over the episodes
    of a split.
    """

    _unit = "episodes"
    _positions: range

    def __init__(self, store: EpisodeStore, num_positions: int, max_batch_bytes: int) -> None:
        self._store = store
        self._max_batch_bytes = max_batch_bytes
        self.info, self._is_remote = store.info, store.is_remote
        self.num_steps = store.num_steps
        self._positions = range(num_positions)

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
            `tv_tensors.Video` [T, C, H, W]; with False, they are a list of T bytes. A crop must not
            be random.
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
        directory: PathLike | DatasetInfo,
        split: Split = "train",
        *,
        decode_images: DecodeImages = True,
        features: Chosen = None,
        transform: Callable[[dict[str, Any]], object] | None = None,
        index: IndexPolicy = "auto",
        index_dir: PathLike | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: StorageOptions = None,
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
            episode_bytes=0,
            storage_options=storage_options,
        )
        if store.is_random:
            raise ValueError(
                "decode_images: whole episodes have no random crop; crop them in the transform"
            )
        self._transform = transform
        super().__init__(store, len(store), max_batch_bytes)

    def _sample(self, position: Any) -> Any:
        number = self._absolute(position)
        try:
            with BatchBudget(self._max_batch_bytes):
                item = self._whole(self._store.episode(number))
        except LimitExceededError as error:
            self._store.record(number).locate(error)  # the budget knows no records
            raise
        return (
            item
            if self._transform is None
            else transform_one(self._transform, number, item, self._store.place)
        )

    def _whole(self, episode: Episode) -> dict[str, object]:
        # One window of all steps.
        nothing = np.zeros(1, np.int64)
        batch = StepBatch([episode], nothing.view(np.uint64), "cpu", nothing, episode.num_steps)
        columns = finish(each_leaf(episode.steps, lambda column: batch.take([column])))
        steps = each_leaf(columns, lambda column: ColumnBatch(column, 1)[0])
        metadata = each_leaf(episode.metadata, own)
        return {STEPS: steps, **metadata, "_len": episode.num_steps, "_traj_index": episode.number}

    def __getitems__(self, positions: Sequence[int]) -> list[object]:
        """Return the episodes at several positions, in that order."""
        return [self[position] for position in positions]

    def __repr__(self) -> str:
        return (
            f"RLDSEpisodes({self._shown(f'{len(self)} episodes', '', transform=self._transform)})"
        )


# The episodes of a batch are in memory together up to this many bytes: records that are read
# whole may be large.
_MOST_HELD_BYTES = 256 << 20


class RLDSDataset(EpisodeDataset):
    """A dataset of steps, each with a window of past observations and a horizon of future actions.

    Each position is one step; episodes follow in file order. A sample reads and decodes only the
    frames of its window, and checks each against a checksum. The first use reads every file once to
    build an index, which is stored next to the data. Use it like any map-style dataset: with
    DataLoader, `RecordSampler`, `Mixture` or Subset. It pickles without open files, and is safe
    after fork and spawn, and from threads.

    The sample at step t of an episode with T steps::

        observation      the dataset's own names, each [window_size, ...]: steps t - window_size + 1 to t; images are
                         a tv_tensors.Video [window_size, C, H, W]
            timestep     int64 [window_size]: step numbers
            pad_mask     bool [window_size]: True for a step of the episode, False for padding
        action           [action_horizon, ...]: steps t to t + action_horizon - 1; a dict if the dataset has one
        action_pad_mask  bool [action_horizon]
        task             {"language_instruction": str}, "" if there is none; with `goals` the goal's observation, too
        reward, is_first, ...   the other features of step t
        episode_metadata ...    the other features of the episode
        dataset_name     str
        _len, _traj_index, _frame_index    int: T, the number of the episode in this split, t

    Args:
        directory: See `tfds.info`; or a `DatasetInfo`.
        split: See `tfds.load`; slices count episodes: ``"train[:90%]"``.
        window_size: Number of observations per sample: the current step and those before it.
        action_horizon: Number of actions per sample: the current step and those after it (the term
            in Octo; OpenVLA's ``future_action_window_size`` is one less).
        pad: Padding at the ends of an episode: "repeat" the first observation and the last action,
            "zero", or None: steps whose window or horizon does not fit are excluded.
        decode_images: False returns images as encoded bytes; or pass the names of those to decode,
            such as ["image"]. Or a `RandomResizedCrop` or `ResizedCenterCrop`, in which all are
            decoded to its size, whatever the stored one; or a dict of names to crops and True. A
            random crop is a pure function of its seed, the epoch and the step: all steps of a
            sample, and its goal, have the same one.
        decode_on: As for `Image`, for JPEG frames of one size in batches of which no window is padded.
        features: Paths to read, such as ["steps/observation/image", "steps/action"], or a nested
            mapping, ``{"steps": {"action": True}}``; None for all. In place of a name: `OneOf` and
            `Mask`.
        keep: Steps to give samples of: a dict of each episode's key to ranges [first step, end), or
            a JSON file of one, as openpi and NVIDIA Cosmos filter DROID. Episodes whose key is not
            there are left out. Windows are not changed: they may contain other steps of the episode.
        keep_key: How an episode's key is made: text with paths of the episode's features in braces
            (`_traj_index` is its number in this split), or a function called with the episode's
            metadata, which returns None to leave an episode out.
        goals: How to draw a goal for each sample, from the later steps of its episode: ``task``
            then also has the observation at that step (`task["image"]` is [C, H, W]) and its
            number, ``timestep``.
        batch_transform: Called with the columns of a batch, nested as `collate` makes them (action
            [B, action_horizon, ...], images [B, window_size, C, H, W], a list of B str); returns a
            dict of columns, of B rows each. `ds[i]` is a batch of one.
        step_transform: Called with each sample, after `batch_transform`.
        episode_transform: Called with each episode when it is read: a dict of the step columns and
            the metadata. Numbers are tensors [T, ...], text is lists of str, images are objects of
            length T that are not read yet. You may rename, change or drop columns, but each must
            keep one value per step. Must be a pure function: its result is cached for further
            samples of the episode.
        index: See `TFRecordDataset`.
        index_dir: See `TFRecordDataset`.
        episode_bytes: Memory limit, in each process, for the columns of recently read episodes.
            Frames are not cached.
        max_batch_bytes: See `TFRecordDataset`; counts the windows and frames of the samples.
        storage_options: See `load`.
        cache_dir, cache_bytes: See `TFRecordDataset`.

    Attributes:
        info: The `DatasetInfo` of the directory.
        num_steps: int64 [episodes]: steps of each episode.

    Raises:
        FileNotFoundError, IndexMismatchError, ParseError, ValueError: See `tfds.load`; also if the
            dataset has no steps, the features of an episode have different numbers of steps, `keep`
            does not contain ranges, or no episode has one of its keys.
        KeyError: `keep_key` names a feature that is not there.

    Example:
        >>> ds = RLDSDataset("bridge/0.1.0", "train", window_size=2, action_horizon=4)  # doctest: +SKIP
        >>> ds[0]["observation"]["image"].shape, ds[0]["action"].shape  # doctest: +SKIP
        (torch.Size([2, 3, 256, 256]), torch.Size([4, 7]))
    """

    _unit = "steps"

    def __init__(
        self,
        directory: PathLike | DatasetInfo,
        split: Split = "train",
        *,
        window_size: int = 1,
        action_horizon: int = 1,
        pad: Pad = "repeat",
        decode_images: DecodeImages = True,
        decode_on: DecodeOn = "cpu",
        features: Chosen = None,
        keep: Keep | None = None,
        keep_key: KeepKey = DROID_KEY,
        goals: UniformGoals | None = None,
        batch_transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        step_transform: Callable[[dict[str, Any]], object] | None = None,
        episode_transform: EpisodeTransform | None = None,
        index: IndexPolicy = "auto",
        index_dir: PathLike | None = None,
        episode_bytes: int = 32 << 20,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        storage_options: StorageOptions = None,
        cache_dir: PathLike | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        check_callable("batch_transform", batch_transform)
        check_callable("step_transform", step_transform)
        check_callable("episode_transform", episode_transform)
        # Before any file is opened.
        integer("episode_bytes", episode_bytes)
        check_max_batch_bytes(max_batch_bytes)
        if not isinstance(goals, (UniformGoals, type(None))):
            raise TypeError(f"goals must be a tfds.UniformGoals or None, got {shown_value(goals)}")
        # NumPy integers become int, so that equal windows are equal text.
        self._windows = Windows(
            at_least(1, "window_size", window_size),
            at_least(1, "action_horizon", action_horizon),
            pad,
        )
        one_of("pad", pad, "repeat", "zero", None)
        one_of("decode_on", decode_on, "cpu", "device", "auto")
        names, self._draws = declared(features)
        if decode_on != "cpu" and any(draw.mask is not None for draw in self._draws):
            raise ValueError("pictures are masked by the CPU: Mask needs decode_on='cpu'")
        store = EpisodeStore(
            directory,
            split,
            features=names,
            draws=self._draws,
            decode_images=decode_images,
            transform=episode_transform,
            index=index,
            index_dir=index_dir,
            episode_bytes=episode_bytes,
            storage_options=storage_options,
            cache=(cache_dir, cache_bytes),
        )
        self._transform, self._batch_transform = step_transform, batch_transform
        self._goals, self._decode_on = goals, decode_on
        is_drawn = self._draws or goals is not None or store.is_random
        self._epoch = DrawEpoch() if is_drawn else None
        self._first_steps = np.cumsum(store.num_steps) - store.num_steps
        firsts, stops = self._windows.ends(store.num_steps)
        self._ranges = chosen_steps(store, firsts, stops, keep, keep_key)
        super().__init__(store, len(self._ranges), max_batch_bytes)

    def _sample(self, position: Any) -> Any:
        return self._transform_samples(self._load_samples([position]))[0]

    def _load_samples(self, positions: Sequence[int]) -> Sequence[object]:
        """`__getitems__` without the step_transform: reads, verifies and decodes. Safe from several
        threads.
        """
        return self._load(self._salted(positions)) if len(positions) else []

    def _load(self, positions: Sequence[int]) -> Sequence[object]:
        """The samples at positions, which must be `salted`."""
        # One search for all positions of a batch.
        numbers, steps = self._ranges.find(np.array([*map(self._absolute, positions)], np.int64))
        goals = drawn = None
        keys = np.zeros(len(steps), np.uint64)
        if self._epoch is not None:
            # By the step among all steps of the split: the same whichever of them are positions.
            at = self._first_steps[numbers] + steps
            keys = self._epoch.keys(positions, at)
            if self._goals is not None:
                own = self._epoch.keys(positions, at, self._goals.seed)
                goals = self._goals.draw(steps, self.num_steps[numbers], own)
            if self._draws:
                drawn = Drawn(self._draws, keys)
        # A transform may draw at random, so that it is called once.
        kept: list[Episode] = []

        def read() -> dict[str, object]:
            """The columns, each time in new memory."""
            episodes = kept or self._episodes(numbers.tolist())
            if self._store.episode_transform is not None:
                kept[:] = episodes
            columns = step_columns(
                self._windows, episodes, steps, goals, drawn, keys, self._decode_on
            )
            return {**columns, "dataset_name": [self.info.name] * len(steps)}

        try:
            with BatchBudget(self._max_batch_bytes):
                return ColumnBatch(read(), len(steps), self._places(positions), read)
        except (TFRecordError, DifferentNamesError, _TooLargeError) as error:
            if len(positions) == 1:
                if isinstance(error, LimitExceededError):
                    self._store.record(numbers[0]).locate(error)
                raise
        # One by one, to raise the error of the first bad position.
        with BatchBudget(self._max_batch_bytes):
            samples = [self._load([position])[0] for position in positions]
            return SampleList(samples, self._places(positions))

    def _episodes(self, numbers: list[int]) -> list[Episode]:
        found: dict[int, Episode] = {}
        num_bytes = 0
        for episode in self._store.episodes(sorted(set(numbers))):  # in the order of the files
            found[episode.number] = episode
            num_bytes += episode.num_bytes
            if num_bytes > _MOST_HELD_BYTES and len(found) > 1:
                raise _TooLargeError
        return [found[number] for number in numbers]

    def locate(self, position: int) -> tuple[int, int]:
        """Return (episode number, step number) of a position."""
        numbers, steps = self._ranges.find(np.array([self._absolute(position)]))
        return int(numbers[0]), int(steps[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, for all draws; applies to running workers, too.

        Positions from `make_dataloader` and `RecordSampler` carry their own
        epoch, which takes precedence. Until you choose an epoch, all others get new draws each
        time, seeded by torch's default generator.
        """
        at_least(0, "epoch", epoch)
        if self._epoch is not None:
            self._epoch.choose(epoch)

    def _places(self, positions: Sequence[int]) -> Places:
        def place(number: int) -> str:
            episode, step = self.locate(positions[number])
            return f"{self._store.place(episode)}, episode {episode}, step {step}"

        return place

    def __repr__(self) -> str:
        transforms = {
            "batch_transform": self._batch_transform,
            "step_transform": self._transform,
            "episode_transform": self._store.episode_transform,
        }
        what = f"{len(self)} positions in {len(self.num_steps)} episodes"
        return f"RLDSDataset({self._shown(what, f'{self._windows}, ', **transforms)})"


class _TooLargeError(Exception):
    """The episodes of a batch do not fit into memory together."""
