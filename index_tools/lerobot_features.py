"""Which features of RLDS steps a LeRobot dataset gets, under which names, and their values."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import torch_tfrecord.tfds.features as f
from torch_tfrecord.shown import shown_list
from torch_tfrecord.tfds.episode_store import STEPS
from torch_tfrecord.tfds.parser import LeafPlace, list_leaves, paths_below
from torch_tfrecord.tfds.step_samples import INSTRUCTIONS

__all__ = ["CAMERA_DTYPES", "Chosen", "LeRobotFeature", "choose_features"]

Chosen: TypeAlias = Mapping[str, "str | Sequence[str] | None"]

CAMERA_DTYPES = ("video", "image")
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
