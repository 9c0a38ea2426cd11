"""The features of a LeRobot dataset: which features of RLDS steps become one, under which name;
their values: numbers, texts, and the frames of a camera, for a video or as image files; and the
statistics of these, of each episode and of all together.

The statistics follow ``lerobot/datasets/compute_stats.py`` of LeRobot 0.6: which frames of an
episode count, which of their pixels, quantiles from 5,000 bins, and how episodes are put together.
Means and deviations of pixels are exact here; LeRobot adds up millions of float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import torch_tfrecord.tfds.features as f
from torch_tfrecord.errors import ImageDecodeError, ParseError
from torch_tfrecord.images.codec import encode_image
from torch_tfrecord.images.headers import ImageHeader, read_header
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds.episode_columns import EncodedColumn, FeaturePlace
from torch_tfrecord.tfds.episode_store import STEPS, Episode, EpisodeStore
from torch_tfrecord.tfds.parser import LeafPlace, list_leaves, paths_below
from torch_tfrecord.tfds.step_samples import INSTRUCTIONS

__all__ = [
    "CAMERA_DTYPES",
    "STATISTICS",
    "CameraFrames",
    "Chosen",
    "LeRobotFeature",
    "Numbers",
    "PixelStatistics",
    "Statistics",
    "choose_features",
    "merge_statistics",
    "number_statistics",
]

Chosen: TypeAlias = Mapping[str, "str | Sequence[str] | None"]
Numbers: TypeAlias = "npt.NDArray[np.generic]"
Statistics: TypeAlias = Mapping[str, Sequence[object]]
_Kind: TypeAlias = tuple[str, tuple[int, ...]]
"""The dtype and shape of a feature in LeRobot."""

CAMERA_DTYPES = ("video", "image")
_BLOCK_STEPS = 32  # frames read and decoded together
_STRING = "string"
_NUMBERS = {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"}
_NUMBERS |= {"uint8", "uint16", "uint32", "uint64"}
_MOST_DIMENSIONS = 5  # of an array in LeRobot
_OBSERVATION, _ACTION, _TASK = "observation", "action", "task"
_STATES = ("observation/state", "observation/proprio")
# LeRobot writes these itself, or gives them a meaning of its own.
_TAKEN = {"timestamp", "frame_index", "episode_index", "index", "task_index", _TASK}
_TAKEN |= {"language_persistent", "language_events"}

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_OF_VALUES = ("min", "max", "mean", "std", *_QUANTILES)
STATISTICS = (*_OF_VALUES, "count")
_NUM_BINS = 5000
_MARGIN = np.float32(1e-10)
_FEWEST, _MOST, _POWER = 100, 10_000, 0.75  # frames of an episode that count
_LARGE_SIDE, _SMALL_SIDE = 300, 150
_LEVELS = np.arange(256, dtype=np.float32)


class LeRobotFeature(NamedTuple):
    """A feature of the LeRobot dataset.

    Attributes:
        name: Its name there.
        dtype: "video", "image", "string", or a NumPy name.
        shape: Of one step; (height, width, 3) of a camera, 0 until the first frame is known.
        paths: The features of the steps it is made of; several are concatenated.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    paths: tuple[str, ...]

    @property
    def is_camera(self) -> bool:
        """Whether it has frames."""
        return self.dtype in CAMERA_DTYPES

    @property
    def is_text(self) -> bool:
        """Whether it has strings."""
        return self.dtype == _STRING

    def columns(self, episode: Episode) -> list[Any]:
        """The columns of its paths in an episode."""
        find: Callable[[Any, str], Any] = getitem
        return [functools.reduce(find, path.split("/"), episode.steps) for path in self.paths]

    def numbers(self, episode: Episode) -> Numbers:
        """The values of an episode: [T, *shape] in the feature's dtype; [T] of single numbers."""
        parts = [np.asarray(column.values) for column in self.columns(episode)]
        # one feature keeps its shape and dtype; only concatenated ones must be flat and alike
        if len(parts) == 1:
            return parts[0].reshape(-1, *(self.shape if self.shape != (1,) else ()))
        flat = [part.reshape(len(part), -1).astype(self.dtype, copy=False) for part in parts]
        return np.concatenate(flat, axis=1)


# The choice.


def choose_features(
    tree: f.FeaturesDict | f.Sequence, wanted: Chosen, camera: str
) -> tuple[list[LeRobotFeature], list[str]]:
    """The features of a LeRobot dataset, and the paths of the steps that are not in it.

    Args:
        tree: The features of the RLDS dataset.
        wanted: Name -> path or paths below "steps", or None to leave the feature out. What is not
            mentioned is there under its usual name, if LeRobot can hold it.
        camera: The dtype of images: "video" or "image".

    Raises:
        ValueError: A path names nothing that LeRobot can hold, or a name cannot be used.
    """
    leaves = {
        "/".join(leaf.names[1:]): leaf for leaf in list_leaves(tree) if leaf.names[:1] == (STEPS,)
    }
    usable = {path: kind for path, leaf in leaves.items() if (kind := _kind(leaf, camera))}
    groups = {
        name: _find_paths(name, [tops] if isinstance(tops, str) else tops, usable)
        for name, tops in wanted.items()
        if tops is not None
    }
    used = {path for paths in groups.values() for path in paths}
    for path, (dtype, _) in usable.items():
        name = _usual_name(path, dtype, usable)
        if name == _TASK:
            used.add(path)
        elif path not in used and name not in wanted and name not in _TAKEN:
            groups.setdefault(name, []).append(path)
    # by path, so that concatenated features do not depend on the tree's order
    features = [
        _join(name, paths if name in wanted else sorted(paths), usable)
        for name, paths in groups.items()
    ]
    used.update(path for feature in features for path in feature.paths)
    return features, [path for path in leaves if path not in used]


def _kind(leaf: LeafPlace, camera: str) -> _Kind | None:
    """The dtype and shape of what LeRobot can hold; None for all else."""
    feature: Any = leaf.feature
    # a list of varying length in each step, or a value that may be missing
    if len(leaf.lengths) != 1 or getattr(feature, "optional", False):
        return None
    if type(feature) is f.Image:
        # not depth in 16 bits, which no video holds
        is_picture = feature.dtype == "uint8" and feature.shape[-1] in (1, 3, 4)
        return (camera, (0, 0, 3)) if is_picture else None
    if type(feature) is f.Text:
        return _STRING, (1,)
    if type(feature) is f.ClassLabel:
        return "int64", (1,)
    is_plain = type(feature) in (f.Tensor, f.Scalar) and feature.encoding == "none"
    if not is_plain or feature.dtype not in _NUMBERS:
        return None
    shape = tuple(feature.shape) or (1,)
    return (feature.dtype, shape) if all(shape) and len(shape) <= _MOST_DIMENSIONS else None


def _usual_name(path: str, dtype: str, usable: Mapping[str, _Kind]) -> str:
    """The LeRobot name of a step feature: "task" for the instruction."""
    top, *below = parts = path.split("/")
    if dtype in CAMERA_DTYPES:
        return ".".join(["observation.images", *(below if top == _OBSERVATION else parts)])
    if dtype == _STRING:
        is_task = parts[-1] in INSTRUCTIONS and parts[:-1] in ([], [_OBSERVATION])
        return _TASK if is_task else ".".join(parts)
    states = next(filter(None, (paths_below(usable, state) for state in _STATES)), [])
    if path in states:
        return "observation.state"
    return _ACTION if top == _ACTION else ".".join(parts)


def _find_paths(name: str, tops: Sequence[str], usable: Mapping[str, _Kind]) -> list[str]:
    """The paths of a feature that the user has named; a dict stands for its leaves, in the order of
    their names.
    """
    if not name or name in _TAKEN or "/" in name:
        raise ValueError(
            f"features: {name!r} cannot be the name of a feature: LeRobot uses it, or it has a '/'"
        )
    found: list[str] = []
    for top in tops:
        below = sorted(paths_below(usable, top))
        if not below:
            raise ValueError(
                f"features: {name!r}: no feature {top!r} in the steps that LeRobot can hold; "
                f"there are {shown_list(sorted(usable))}"
            )
        found += below
    if not found:
        raise ValueError(f"features: {name!r} must have at least one path")
    return found


def _join(name: str, paths: Sequence[str], usable: Mapping[str, _Kind]) -> LeRobotFeature:
    kinds = [usable[path] for path in paths]
    if len(paths) == 1:
        return LeRobotFeature(name, *kinds[0], tuple(paths))
    dtypes = {dtype for dtype, _ in kinds}
    if not dtypes <= _NUMBERS:
        raise ValueError(
            f"features: {name!r}: only numbers can be concatenated, got {shown_list(paths)}"
        )
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    return LeRobotFeature(name, dtype, (sum(math.prod(shape) for _, shape in kinds),), tuple(paths))


# The frames of a camera.


class CameraFrames:
    """The frames of one camera in one episode.

    Reading raises ImageDecodeError for a frame that cannot be decoded, and ParseError for one of
    another size than the feature; both name the feature, the step, the file and the record.

    Args:
        feature: The camera.
        episode: The episode.
        store: Where it is from.

    Attributes:
        statistics: Of the frames that `pixels` or `files` has gone through.
    """

    def __init__(self, feature: LeRobotFeature, episode: Episode, store: EpisodeStore) -> None:
        self._size = feature.shape[:2]
        self._column: EncodedColumn
        (self._column,) = feature.columns(episode)
        self._place = FeaturePlace(
            f"{STEPS}/{feature.paths[0]}", store.record(episode.number).locate
        )
        self.statistics = PixelStatistics(episode.num_steps)

    def first_size(self) -> tuple[int, int]:
        """(height, width) of the first frame."""
        header = self._header(self._column.encoded(0, 1)[0], 0)
        return header.height, header.width

    def pixels(self, first: int = 0, stop: int | None = None) -> Iterator[npt.NDArray[np.uint8]]:
        """The frames of steps as uint8 [H, W, 3]: gray is repeated, alpha left out."""
        for steps in _blocks(first, len(self._column) if stop is None else stop):
            for step, picture in zip(
                steps, self._column.read(steps[0], steps[-1] + 1), strict=True
            ):
                self._check_size(tuple(picture.shape[1:]), step)
                frame = picture.as_subclass(torch.Tensor)[:3].expand(3, -1, -1).permute(1, 2, 0)
                pixels = frame.contiguous().numpy()
                if step in self.statistics.numbers:
                    self.statistics.add(pixels)
                yield pixels

    def files(self) -> Iterator[dict[str, bytes | str]]:
        """The frames as files: the bytes that are there if any program reads the same pixels from
        them, else a PNG.
        """
        for steps in _blocks(0, len(self._column)):
            encoded = self._column.encoded(steps[0], steps[-1] + 1)
            for step, data in zip(steps, encoded, strict=True):
                header = self._header(data, step)
                self._check_size((header.height, header.width), step)
                is_kept = self._is_plain(header)
                if not is_kept or step in self.statistics.numbers:
                    # decoding is what costs: most frames that are kept are never decoded
                    (frame,) = self.pixels(step, step + 1)
                    data = data if is_kept else encode_image(frame.transpose(2, 0, 1), "png")
                ending = header.format if is_kept else "png"
                yield {"bytes": data, "path": f"frame-{step:06d}.{ending}"}

    def _header(self, data: bytes, step: int) -> ImageHeader:
        try:
            return read_header(data)
        except ImageDecodeError as error:
            raise self._place.at_step(error, step) from error

    def _check_size(self, size: tuple[int, ...], step: int) -> None:
        if size != self._size:
            wanted, found = (f"{height} x {width}" for height, width in (self._size, size))
            text = f"expected an image of {wanted} pixels, as in the first episode, got {found}"
            raise self._place.at_step(ParseError(text), step)

    def _is_plain(self, header: ImageHeader) -> bool:
        """Whether any program reads the same pixels from an image: RGB of 8 bits, upright."""
        has_colours = self._column.pictures is not None and self._column.pictures.mode == "RGB"
        is_common = header.format in ("jpeg", "png") and header.channels == 3 and header.bits == 8
        return has_colours and is_common and header.orientation == 1


def _blocks(first: int, stop: int) -> Iterator[range]:
    """The steps from `first` to `stop` - 1, as many together as are read at once."""
    for begin in range(first, stop, _BLOCK_STEPS):
        yield range(begin, min(begin + _BLOCK_STEPS, stop))


# Statistics.


def number_statistics(values: Numbers) -> Statistics:
    """The statistics of numbers [T, ...] over all but the last dimension; [T] counts as [T, 1].

    Not finite values give statistics that are not finite.
    """
    columns = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1).T
    # integers and bools would overflow; each column in one piece is read faster
    columns = columns.astype(np.result_type(columns.dtype, np.float32), order="C")
    with np.errstate(all="ignore"):
        found = [_of_column(column) for column in columns]
    return {name: [item[name] for item in found] for name in _OF_VALUES} | {"count": [len(values)]}


class PixelStatistics:
    """The statistics of the frames of one camera in one episode, in shares of 255.

    Args:
        num_frames: Number of frames of the episode. Of those in `numbers`, every one must be given
            to `add`.

    Attributes:
        numbers: The frames that count.
    """

    def __init__(self, num_frames: int) -> None:
        self._count = max(min(_FEWEST, num_frames), min(int(num_frames**_POWER), _MOST))
        places = np.linspace(0, num_frames - 1, self._count)
        self.numbers = set(np.round(places).astype(int).tolist())
        self._levels = np.zeros((3, len(_LEVELS)), np.int64)

    def add(self, frame: npt.NDArray[np.uint8]) -> None:
        """Count the pixels of a frame [H, W, 3]; of large ones, those of every few rows and
        columns.
        """
        height, width = frame.shape[:2]
        if max(height, width) >= _LARGE_SIDE:
            step = (width if width > height else height) // _SMALL_SIDE
            # Pillow takes no steps
            frame = np.ascontiguousarray(frame[::step, ::step])
        counts = Image.fromarray(frame).histogram()  # twice as fast as NumPy's
        self._levels += np.array(counts, np.int64).reshape(self._levels.shape)

    def result(self) -> Statistics:
        """The statistics, each number as [[[...]], [[...]], [[...]]]."""
        found = [_of_column(_LEVELS[counts > 0], counts[counts > 0]) for counts in self._levels]
        values: dict[str, list[object]] = {
            name: [[[item[name] / 255]] for item in found] for name in _OF_VALUES
        }
        return values | {"count": [self._count]}


def _of_column(
    values: npt.NDArray[np.floating[Any]], weights: npt.NDArray[np.int64] | None = None
) -> dict[str, float]:
    """The statistics of the numbers of one column, each of which may count more than once."""
    mean = np.average(values, weights=weights)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=weights))
    # a histogram of one number has no bins to interpolate in
    few = [values[0]] * len(_QUANTILES)
    quantiles = _quantiles(values, weights) if len(values) > 1 else few
    found = (values.min(), values.max(), mean, deviation, *quantiles)
    return dict(zip(_OF_VALUES, map(float, found), strict=True))


def _quantiles(
    values: npt.NDArray[np.floating[Any]], weights: npt.NDArray[np.int64] | None
) -> Iterator[float]:
    """Interpolated within the bin that reaches each share."""
    margin = values.dtype.type(_MARGIN)
    edges = np.linspace(values.min() - margin, values.max() + margin, _NUM_BINS + 1)
    below = np.cumsum(np.histogram(values, edges, weights=weights)[0])
    total = len(values) if weights is None else weights.sum()
    for share in _QUANTILES.values():
        number = np.searchsorted(below, share * total)
        if 0 < number < len(below):
            part = (share * total - below[number - 1]) / (below[number] - below[number - 1])
            yield edges[number] + part * (edges[number + 1] - edges[number])
        else:  # not all values are in the bins where some are not finite
            yield edges[0] if number == 0 else edges[-1]


def merge_statistics(episodes: Mapping[str, Sequence[object] | Numbers]) -> Statistics:
    """The statistics of all episodes together: quantiles are means of the episodes' quantiles, as
    in LeRobot.

    Args:
        episodes: Statistic -> its value of each episode.
    """
    counts = np.asarray(episodes["count"], np.int64).reshape(-1)
    average = functools.partial(np.average, axis=0, weights=counts)
    columns = {name: np.asarray(episodes[name], np.float64) for name in _OF_VALUES}
    merged = {name: average(column) for name, column in columns.items()}
    # the variance within the episodes, and that of their means
    squares = columns["std"] ** 2 + (columns["mean"] - merged["mean"]) ** 2
    merged |= {"min": columns["min"].min(axis=0), "max": columns["max"].max(axis=0)}
    merged |= {"std": np.sqrt(average(squares)), "count": counts.sum(keepdims=True)}
    return {name: merged[name].tolist() for name in STATISTICS}
