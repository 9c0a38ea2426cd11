"""Which features of RLDS steps a LeRobot dataset gets, under which names; and their values: numbers,
texts, and the frames of a camera, for a video or as image files.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

import torch_tfrecord.tfds.features as f
from index_tools.lerobot_statistics import PixelStatistics
from torch_tfrecord.errors import ImageDecodeError, ParseError
from torch_tfrecord.images.codec import encode_image, image_size
from torch_tfrecord.images.headers import ImageHeader, read_header
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds.episode_columns import EncodedColumn, FeaturePlace
from torch_tfrecord.tfds.episode_store import STEPS, Episode, EpisodeStore
from torch_tfrecord.tfds.parser import LeafPlace, list_leaves, paths_below
from torch_tfrecord.tfds.step_samples import INSTRUCTIONS

__all__ = ["CAMERA_DTYPES", "CameraFrames", "Chosen", "LeRobotFeature", "choose_features"]

Chosen: TypeAlias = Mapping[str, "str | Sequence[str] | None"]

CAMERA_DTYPES = ("video", "image")
_BLOCK_STEPS = 32  # frames read and decoded together
_STRING = "string"
_NUMBERS = {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"}
_NUMBERS |= {"uint8", "uint16", "uint32", "uint64"}
_MOST_DIMENSIONS = 5  # of an array in LeRobot
_OBSERVATION, _STATE, _ACTION = "observation", "observation.state", "action"
_STATES = ("observation/state", "observation/proprio")
# LeRobot writes these itself, or gives them a meaning of its own.
_TAKEN = {"timestamp", "frame_index", "episode_index", "index", "task_index", "task"}
_TAKEN |= {"language_persistent", "language_events"}


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

    def column(self, steps: Mapping[str, Any]) -> Any:
        """The column of the first path."""
        return _column(steps, self.paths[0])

    def numbers(self, steps: Mapping[str, Any]) -> npt.NDArray[Any]:
        """The values of an episode: [T, *shape] in the feature's dtype."""
        parts = [np.asarray(_column(steps, path).values) for path in self.paths]
        if len(parts) > 1:
            parts = [part.reshape(len(part), -1).astype(self.dtype, copy=False) for part in parts]
        return (
            np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0].reshape(-1, *self.shape)
        )


def _column(steps: Mapping[str, Any], path: str) -> Any:
    return functools.reduce(getitem, path.split("/"), steps)


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
    usable = {
        path: kind for path, leaf in leaves.items() if (kind := _kind(leaf, camera)) is not None
    }
    features = [_named(name, paths, usable) for name, paths in wanted.items() if paths is not None]
    used = {path for feature in features for path in feature.paths}
    groups: dict[str, list[str]] = {}
    for path, (dtype, _) in usable.items():
        name = _usual_name(path, dtype, usable)
        if path not in used and name not in wanted and name not in _TAKEN:
            groups.setdefault(name, []).append(path)
    features += [_joined(name, sorted(paths), usable) for name, paths in groups.items()]
    used |= {path for feature in features for path in feature.paths}
    used |= {
        path for path, (dtype, _) in usable.items() if _usual_name(path, dtype, usable) == "task"
    }
    return features, [path for path in leaves if path not in used]


def _kind(leaf: LeafPlace, camera: str) -> tuple[str, tuple[int, ...]] | None:
    """The dtype and shape of what LeRobot can hold; None for all else."""
    feature: Any = leaf.feature
    if len(leaf.lengths) != 1 or getattr(feature, "optional", False):
        return None
    if type(feature) is f.Image:
        is_picture = feature.dtype == "uint8" and feature.shape[-1] in (1, 3, 4)
        return (camera, (0, 0, 3)) if is_picture else None
    if type(feature) is f.Text:
        return _STRING, (1,)
    if type(feature) is f.ClassLabel:
        return "int64", (1,)
    if (
        type(feature) not in (f.Tensor, f.Scalar)
        or feature.encoding != "none"
        or feature.dtype not in _NUMBERS
    ):
        return None
    shape = tuple(feature.shape) or (1,)
    return (feature.dtype, shape) if all(shape) and len(shape) <= _MOST_DIMENSIONS else None


def _usual_name(path: str, dtype: str, usable: Mapping[str, Any]) -> str:
    """The LeRobot name of a step feature: "task" for the instruction."""
    parts = path.split("/")
    if dtype in CAMERA_DTYPES:
        return ".".join(["observation.images", *(parts[1:] if parts[0] == _OBSERVATION else parts)])
    if dtype == _STRING:
        is_task = parts[-1] in INSTRUCTIONS and parts[:-1] in ([], [_OBSERVATION])
        return "task" if is_task else ".".join(parts)
    states = next((below for top in _STATES if (below := paths_below(usable, top))), [])
    if path in states:
        return _STATE
    return _ACTION if paths_below([path], _ACTION) else ".".join(parts)


def _named(
    name: str, tops: str | Sequence[str], usable: Mapping[str, tuple[str, tuple[int, ...]]]
) -> LeRobotFeature:
    """A feature that the user has named; a dict stands for its leaves, in the order of their
    names.
    """
    if not name or name in _TAKEN or "/" in name:
        raise ValueError(
            f"features: {name!r} cannot be the name of a feature: LeRobot uses it, or it has a '/'"
        )
    paths: list[str] = []
    for top in [tops] if isinstance(tops, str) else tops:
        below = sorted(paths_below(usable, top))
        if not below:
            raise ValueError(
                f"features: {name!r}: no feature {top!r} in the steps that LeRobot can hold; there are "
                f"{shown_list(sorted(usable))}"
            )
        paths += below
    return _joined(name, paths, usable)


def _joined(
    name: str, paths: Sequence[str], usable: Mapping[str, tuple[str, tuple[int, ...]]]
) -> LeRobotFeature:
    if not paths:
        raise ValueError(f"features: {name!r} must have at least one path")
    kinds = [usable[path] for path in paths]
    dtypes = {dtype for dtype, _ in kinds}
    if len(paths) == 1:
        return LeRobotFeature(name, *kinds[0], tuple(paths))
    if not dtypes <= _NUMBERS:
        raise ValueError(
            f"features: {name!r}: only numbers can be concatenated, got {shown_list(paths)}"
        )
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    return LeRobotFeature(name, dtype, (sum(math.prod(shape) for _, shape in kinds),), tuple(paths))


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
        self._column: EncodedColumn = feature.column(episode.steps)
        self._place = FeaturePlace(
            f"{STEPS}/{feature.paths[0]}", store.record(episode.number).locate
        )
        self.statistics = PixelStatistics(episode.num_steps)

    def first_size(self) -> tuple[int, int]:
        """(height, width) of the first frame."""
        try:
            return image_size(self._column.encoded(0, 1)[0])
        except ImageDecodeError as error:
            raise self._place.at_step(error, 0) from error

    def pixels(self) -> Iterator[npt.NDArray[np.uint8]]:
        """All frames as uint8 [H, W, 3]."""
        for step, frame in self._pixels(range(len(self._column))):
            self._count(step, frame)
            yield frame

    def files(self) -> Iterator[dict[str, bytes | str]]:
        """The frames as files: the bytes that are there if any program reads the same pixels from
        them, else a PNG.
        """
        for first in range(0, len(self._column), _BLOCK_STEPS):
            stop = min(first + _BLOCK_STEPS, len(self._column))
            for step, data in enumerate(self._column.encoded(first, stop), first):
                header = self._header(data, step)
                is_kept = self._is_plain(header)
                if not is_kept or step in self.statistics.numbers:
                    ((_, frame),) = self._pixels(range(step, step + 1))
                    self._count(step, frame)
                    data = data if is_kept else encode_image(frame.transpose(2, 0, 1), "png")
                yield {
                    "bytes": data,
                    "path": f"frame-{step:06d}.{header.format if is_kept else 'png'}",
                }

    def _count(self, step: int, frame: npt.NDArray[np.uint8]) -> None:
        if step in self.statistics.numbers:
            self.statistics.add(frame)

    def _pixels(self, steps: range) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """The frames of steps as uint8 [H, W, 3]: gray is repeated, alpha left out."""
        for first in range(steps.start, steps.stop, _BLOCK_STEPS):
            pictures = self._column.read(first, min(first + _BLOCK_STEPS, steps.stop))
            for step, picture in enumerate(pictures, first):
                self._check_size(tuple(picture.shape[1:]), step)
                frame = picture.as_subclass(torch.Tensor)[:3].expand(3, -1, -1).permute(1, 2, 0)
                yield step, frame.contiguous().numpy()

    def _header(self, data: bytes, step: int) -> ImageHeader:
        try:
            header = read_header(data)
        except ImageDecodeError as error:
            raise self._place.at_step(error, step) from error
        self._check_size((header.height, header.width), step)
        return header

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
