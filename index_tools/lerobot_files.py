"""The files of a LeRobot dataset (version 3.0): tables as Parquet, frames as MP4.

The layout is that of LeRobot's own writer (``lerobot/datasets/dataset_writer.py``,
``docs/source/lerobot-dataset-v3``): ``data/chunk-000/file-000.parquet``,
``videos/<camera>/chunk-000/file-000.mp4``, ``meta/episodes/...`` alike. Each file has several
episodes, a group of consecutive ones; ``meta/episodes`` says where each begins.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from index_tools.lerobot_features import (
    CameraFrames,
    LeRobotFeature,
    Numbers,
    number_statistics,
)
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.files.atomic import write_atomically
from torch_tfrecord.tfds.episode_store import EpisodeStore
from torch_tfrecord.tfds.step_samples import instruction

__all__ = [
    "CODECS",
    "FILES_PER_CHUNK",
    "FILE_NAME",
    "OWN_FEATURES",
    "EpisodeGroups",
    "VideoEncoder",
    "check_installed",
    "read_columns",
    "tasks_table",
]

_Values: TypeAlias = "Numbers | Sequence[object]"
"""The values of a column: an array [T, ...], a list of T str, or a list of T encoded images."""

_Table: TypeAlias = Any
"""A table of pyarrow, which may be missing."""

FILES_PER_CHUNK = 1000
FILE_NAME = "chunk-{chunk_index:03d}/file-{file_index:03d}"
CODECS = {"libsvtav1": "av1", "h264": "h264", "hevc": "hevc"}
_PIXELS = "yuv420p"
_FRAMES_PER_KEY = 2  # as LeRobot: frames are read at random
_SVT_PRESET = 12
_INT = "int64"
OWN_FEATURES = [
    LeRobotFeature(name, "float32" if name == "timestamp" else _INT, (1,), ())
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
]
"""The columns that every LeRobot dataset has."""


def check_installed(name: str) -> ModuleType:
    """A module that the extra `lerobot` installs; ImportError if it is missing."""
    with needs_extra("a LeRobot dataset", "lerobot", name):
        return importlib.import_module(name)


@dataclass(frozen=True)
class VideoEncoder:
    """How videos are encoded; the defaults are LeRobot's.

    Args:
        codec: "libsvtav1" (AV1), "h264" or "hevc".
        crf: Lower is better and larger.
    """

    codec: str = "libsvtav1"
    crf: int = 30

    @property
    def options(self) -> dict[str, str]:
        """For the encoder. One thread each: every process has its own."""
        common = {"g": str(_FRAMES_PER_KEY), "crf": str(self.crf)}
        if self.codec == "libsvtav1":
            return common | {"preset": str(_SVT_PRESET), "svtav1-params": "fast-decode=0:lp=1"}
        return common | {"threads": "1"}

    def info(self, shape: Sequence[int], fps: int) -> dict[str, object]:
        """What LeRobot notes about the videos of a camera."""
        preset = _SVT_PRESET if self.codec == "libsvtav1" else None
        return {
            "video.height": shape[0], "video.width": shape[1], "video.codec": CODECS[self.codec],
            "video.pix_fmt": _PIXELS, "video.fps": fps, "video.channels": 3, "has_audio": False,
            "video.g": _FRAMES_PER_KEY, "video.crf": self.crf, "video.preset": preset, "video.fast_decode": 0,
            "video.video_backend": "pyav", "video.extra_options": {}, "is_depth_map": False,
        }  # fmt: skip


class _Movie:
    """The frames of one camera in one file, encoded in memory.

    Args:
        feature: The camera.
        fps: Frames per second.
        encoder: How to encode.

    Attributes:
        num_frames: Frames so far.
    """

    def __init__(self, feature: LeRobotFeature, fps: int, encoder: VideoEncoder) -> None:
        self._av = check_installed("av")
        self._feature, self._encoder = feature, encoder
        # in memory, as a file appears complete or not at all
        self._buffer = io.BytesIO()
        self._container = self._av.open(self._buffer, "w", format="mp4")
        self._stream = self._container.add_stream(encoder.codec, fps, options=encoder.options)
        self._stream.pix_fmt = _PIXELS
        self._stream.height, self._stream.width, _ = feature.shape
        self.num_frames = 0

    def extend(self, frames: Iterable[npt.NDArray[np.uint8]]) -> None:
        """Encode frames [H, W, 3].

        Raises:
            ValueError: The codec cannot encode frames of this size.
        """
        for frame in frames:
            self._encode(self._av.VideoFrame.from_ndarray(frame, format="rgb24"))
            self.num_frames += 1

    def finish(self) -> bytes:
        """The MP4 file."""
        self._encode(None)
        self._container.close()
        return self._buffer.getvalue()

    def _encode(self, frame: object) -> None:
        try:
            self._container.mux(self._stream.encode(frame))
        except self._av.error.FFmpegError as error:
            height, width, _ = self._feature.shape
            # H.264 needs even sides, for example
            raise ValueError(
                f"{self._feature.name}: {self._encoder.codec} cannot encode frames of {height} x "
                f"{width} pixels; use another codec, or images='image'"
            ) from error


# Tables.


def _parquet(*tables: _Table) -> bytes:
    """A Parquet file; each table is a row group of its own."""
    sink = check_installed("pyarrow").BufferOutputStream()
    open_writer = check_installed("pyarrow.parquet").ParquetWriter
    with open_writer(sink, tables[0].schema, compression="snappy") as writer:
        for table in tables:
            writer.write_table(table)
    return bytes(sink.getvalue())


def _step_table(features: Sequence[LeRobotFeature], columns: Mapping[str, _Values]) -> _Table:
    """The steps of an episode: features, and `OWN_FEATURES`."""
    arrow = check_installed("pyarrow")
    stored = [*(feature for feature in features if feature.dtype != "video"), *OWN_FEATURES]
    forms = [_form(feature) for feature in stored]
    fields = [field for field, _ in forms]
    described = {field.name: described for field, described in forms}
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    arrays = [_array(field.type, columns[field.name]) for field in fields]
    table: _Table = arrow.table(arrays, schema=arrow.schema(fields, metadata=metadata))
    return table


def _form(feature: LeRobotFeature) -> tuple[Any, dict[str, object]]:
    """The field of a column, and how the package `datasets` describes it."""
    arrow, name, dtype, shape = check_installed("pyarrow"), *feature[:3]
    if feature.is_camera:
        kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
        return arrow.field(name, kind), {"_type": "Image"}
    kind = arrow.string() if feature.is_text else arrow.from_numpy_dtype(np.dtype(dtype))
    value = {"dtype": dtype, "_type": "Value"}
    if shape == (1,):
        return arrow.field(name, kind), {**value}
    if len(shape) == 1:
        described = {"feature": value, "length": shape[0], "_type": "List"}
        return arrow.field(name, arrow.list_(kind, *shape)), described
    for _ in shape:
        kind = arrow.list_(kind)
    array = f"Array{len(shape)}D"
    # by which `datasets` knows arrays again
    metadata = {
        "ARROW:extension:name": f"datasets.features.features.{array}ExtensionType",
        "ARROW:extension:metadata": json.dumps([shape, dtype]),
    }
    described = {**value, "shape": shape, "_type": array}
    return arrow.field(name, kind, metadata=metadata), described


def _array(kind: object, values: _Values) -> object:
    arrow = check_installed("pyarrow")
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        return arrow.array(values, kind)
    # Made of the flat array, as Arrow takes nested lists of Python numbers only.
    array = arrow.array(values.reshape(-1))
    if values.ndim == 2:
        return arrow.FixedSizeListArray.from_arrays(array, values.shape[1])
    for size in reversed(values.shape[1:]):
        offsets = np.arange(0, len(array) + 1, size, dtype=np.int32)
        array = arrow.ListArray.from_arrays(offsets, array)
    return array


def read_columns(paths: Sequence[Path], names: Sequence[str]) -> dict[str, Numbers]:
    """Columns of numbers in several Parquet files, one after the other."""
    read = check_installed("pyarrow.parquet").read_table
    table = check_installed("pyarrow").concat_tables(read(path, columns=[*names]) for path in paths)
    return {name: np.array(table.column(name).to_pylist()) for name in names}


def tasks_table(tasks: Sequence[str]) -> bytes:
    """The tasks by number, as pandas writes a frame whose index is the task."""
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in (("task_index", _INT, _INT), ("task", "unicode", "object"))
    ]  # fmt: skip
    described = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    rows = {"task_index": range(len(tasks)), "task": tasks}
    metadata = {"pandas": json.dumps(described)}
    return _parquet(check_installed("pyarrow").table(rows, metadata=metadata))


# Groups of episodes.


@dataclass(frozen=True)
class EpisodeGroups:
    """What every process needs to write a group. Pickles without open files.

    Attributes:
        store: The episodes.
        features: What is written of them.
        fps: Frames per second.
        encoder: How videos are encoded.
        out: The folder of the LeRobot dataset.
        episodes: Their numbers in the store.
        frames: int64 [episodes + 1]: the first frame of each episode, and the number of all.
        groups: The first episode of each group, as a place in `episodes`, and the number of all.
        tasks: Instruction -> number.
    """

    store: EpisodeStore
    features: list[LeRobotFeature]
    fps: int
    encoder: VideoEncoder
    out: str
    episodes: list[int]
    frames: npt.NDArray[np.int64]
    groups: list[int]
    tasks: dict[str, int]

    def __len__(self) -> int:
        return len(self.groups) - 1

    def num_frames(self, number: int) -> int:
        """Frames of a group."""
        return int(self.frames[self.groups[number + 1]] - self.frames[self.groups[number]])

    def path(self, folder: str, number: int, ending: str = "parquet") -> Path:
        """A file of a group. That in ``meta/episodes`` says where its episodes are, and is written
        last.
        """
        return Path(self.out, folder, f"{FILE_NAME.format(**_file_indexes(number))}.{ending}")

    def write(self, number: int) -> None:
        """Write the files of a group; each appears complete or not at all."""
        movies = {
            feature.name: _Movie(feature, self.fps, self.encoder)
            for feature in self.features
            if feature.dtype == "video"
        }
        places = range(*self.groups[number : number + 2])
        rows, tables = zip(
            *(self._add(place, _file_indexes(number), movies) for place in places), strict=True
        )
        contents = {self.path("data", number): _parquet(*tables)}
        for name, movie in movies.items():
            contents[self.path(f"videos/{name}", number, "mp4")] = movie.finish()
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        episodes = check_installed("pyarrow").table(columns)
        # last: it says that the group is complete
        contents[self.path("meta/episodes", number)] = _parquet(episodes)
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(str(path), content)

    def _add(
        self, place: int, file: Mapping[str, int], movies: Mapping[str, _Movie]
    ) -> tuple[dict[str, object], _Table]:
        """Add an episode to the movies; return its row of ``meta/episodes``, and its steps."""
        episode, begin = self.store.episode(self.episodes[place]), int(self.frames[place])
        length = episode.num_steps
        tasks = [instruction(episode, step) for step in range(length)]
        row: dict[str, object] = {
            "episode_index": place,
            # LeRobot lists each task once
            "tasks": [*dict.fromkeys(tasks)],
            "length": length,
            "dataset_from_index": begin,
            "dataset_to_index": begin + length,
            **_below("data", file),
            **_below("meta/episodes", file),
        }
        for name, movie in movies.items():
            first, last = movie.num_frames, movie.num_frames + length
            # of the movie, where the group's earlier episodes come before
            times = {"from_timestamp": first / self.fps, "to_timestamp": last / self.fps}
            row |= _below(f"videos/{name}", {**file, **times})
        steps = np.arange(length)
        columns: dict[str, _Values] = {
            "timestamp": steps / self.fps,
            "frame_index": steps,
            "episode_index": np.full(length, place),
            "index": steps + begin,
            "task_index": np.array([self.tasks[task] for task in tasks]),
        }
        found = {name: number_statistics(np.asarray(column)) for name, column in columns.items()}
        for feature in self.features:
            name = feature.name
            if feature.is_text:
                columns[name] = feature.columns(episode)[0].read(0, length)
            elif not feature.is_camera:
                columns[name] = values = feature.numbers(episode)
                found[name] = number_statistics(values)
            else:
                camera = CameraFrames(feature, episode, self.store)
                if name in movies:
                    movies[name].extend(camera.pixels())
                else:
                    columns[name] = [*camera.files()]
                found[name] = camera.statistics.result()
        for name, items in found.items():
            row |= _below(f"stats/{name}", items)
        return row, _step_table(self.features, columns)


def _file_indexes(number: int) -> dict[str, int]:
    return {"chunk_index": number // FILES_PER_CHUNK, "file_index": number % FILES_PER_CHUNK}


def _below(folder: str, items: Mapping[str, object]) -> dict[str, object]:
    return {f"{folder}/{name}": value for name, value in items.items()}
