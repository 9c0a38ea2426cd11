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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index_tools.lerobot_features import CameraFrames, LeRobotFeature
from index_tools.lerobot_statistics import number_statistics
from torch_tfrecord.files.atomic import write_atomically
from torch_tfrecord.tfds.episode_store import EpisodeStore
from torch_tfrecord.tfds.step_samples import instruction

__all__ = [
    "CODECS",
    "FILES_PER_CHUNK",
    "OWN_FEATURES",
    "EpisodeGroups",
    "VideoEncoder",
    "check_installed",
    "episodes_path",
    "read_columns",
    "tasks_table",
]

FILES_PER_CHUNK = 1000
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


def check_installed(*names: str) -> None:
    """ImportError unless these modules are there, which the extra `lerobot` installs."""
    for name in names:
        _module(name)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} is missing, which writes LeRobot's files: pip install 'torch-tfrecord[lerobot]'"
        ) from error


def _place_of(number: int) -> str:
    """Folder and name of a file, without its ending."""
    return f"chunk-{number // FILES_PER_CHUNK:03d}/file-{number % FILES_PER_CHUNK:03d}"


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

    def info(self, height: int, width: int, fps: int) -> dict[str, Any]:
        """What LeRobot notes about the videos of a camera."""
        preset = _SVT_PRESET if self.codec == "libsvtav1" else None
        return {
            "video.height": height, "video.width": width, "video.codec": CODECS[self.codec],
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
        self._av = _module("av")
        self._feature, self._encoder = feature, encoder
        self._buffer = io.BytesIO()
        self._container = self._av.open(self._buffer, "w", format="mp4")
        self._stream = self._container.add_stream(encoder.codec, fps, options=encoder.options)
        self._stream.pix_fmt = _PIXELS
        self._stream.height, self._stream.width, _ = feature.shape
        self.num_frames = 0

    def add(self, frame: npt.NDArray[np.uint8]) -> None:
        """Encode a frame [H, W, 3].

        Raises:
            ValueError: The codec cannot encode frames of this size.
        """
        self._encode(self._av.VideoFrame.from_ndarray(frame, format="rgb24"))
        self.num_frames += 1

    def finish(self) -> bytes:
        """The MP4 file."""
        self._encode(None)
        self._container.close()
        return self._buffer.getvalue()

    def _encode(self, frame: Any) -> None:
        try:
            self._container.mux(self._stream.encode(frame))
        except self._av.error.FFmpegError as error:
            height, width, _ = self._feature.shape
            raise ValueError(
                f"{self._feature.name}: {self._encoder.codec} cannot encode frames of {height} x {width} pixels; use "
                f"another codec, or images='image'"
            ) from error


class _DataTable:
    """A table of steps, encoded in memory; each episode is one row group.

    Args:
        features: What it has, besides `OWN_FEATURES`.
    """

    def __init__(self, features: Sequence[LeRobotFeature]) -> None:
        self._arrow = _module("pyarrow")
        columns = [*(feature for feature in features if feature.dtype != "video"), *OWN_FEATURES]
        described = {feature.name: _describe_column(feature) for feature in columns}
        self._schema = self._arrow.schema(
            [self._field(feature) for feature in columns],
            metadata={"huggingface": json.dumps({"info": {"features": described}})},
        )
        self._sink = self._arrow.BufferOutputStream()
        self._writer = _module("pyarrow.parquet").ParquetWriter(
            self._sink, self._schema, compression="snappy"
        )

    def add(self, columns: Mapping[str, Any]) -> None:
        """Add an episode: name -> array [T, ...], list of T str, or list of T encoded images."""
        arrays = [self._array(field, columns[field.name]) for field in self._schema]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> bytes:
        """The Parquet file."""
        self._writer.close()
        return bytes(self._sink.getvalue())

    def _field(self, feature: LeRobotFeature) -> Any:
        arrow, shape, metadata = self._arrow, feature.shape, None
        if feature.is_camera:
            kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
        elif feature.is_text:
            kind = arrow.string()
        else:
            kind = arrow.from_numpy_dtype(np.dtype(feature.dtype))
            if len(shape) > 1:
                for _ in shape:
                    kind = arrow.list_(kind)
                metadata = {
                    "ARROW:extension:name": f"datasets.features.features.Array{len(shape)}DExtensionType",
                    "ARROW:extension:metadata": json.dumps([list(shape), feature.dtype]),
                }
            elif shape != (1,):
                kind = arrow.list_(kind, shape[0])
        return arrow.field(feature.name, kind, metadata=metadata)

    def _array(self, field: Any, values: Any) -> Any:
        if not isinstance(values, np.ndarray):
            return self._arrow.array(values, field.type)
        numbers = self._arrow.array(values.reshape(-1))
        if values.ndim == 1 or values.shape[1:] == (1,):
            return numbers
        if values.ndim == 2:
            return self._arrow.FixedSizeListArray.from_arrays(numbers, values.shape[1])
        for size in reversed(values.shape[1:]):
            offsets = np.arange(0, len(numbers) + 1, size, dtype=np.int32)
            numbers = self._arrow.ListArray.from_arrays(offsets, numbers)
        return numbers


def _describe_column(feature: LeRobotFeature) -> dict[str, object]:
    """A feature, as the package `datasets` describes it."""
    value = {"dtype": feature.dtype, "_type": "Value"}
    if feature.is_camera:
        return {"_type": "Image"}
    if feature.shape == (1,):
        return dict(value)
    if len(feature.shape) == 1:
        return {"feature": value, "length": feature.shape[0], "_type": "List"}
    return {**value, "shape": feature.shape, "_type": f"Array{len(feature.shape)}D"}


def _table_bytes(
    columns: Mapping[str, Sequence[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A Parquet file of columns of Python values."""
    arrow = _module("pyarrow")
    sink = arrow.BufferOutputStream()
    _module("pyarrow.parquet").write_table(
        arrow.table(dict(columns), metadata=metadata), sink, compression="snappy"
    )
    return bytes(sink.getvalue())


def read_columns(paths: Sequence[Path], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Columns of numbers in several Parquet files, one after the other."""
    read = _module("pyarrow.parquet").read_table
    tables = [read(path, columns=[*names]) for path in paths]
    table = _module("pyarrow").concat_tables(tables)
    return {name: np.array(table.column(name).to_pylist()) for name in names}


def tasks_table(tasks: Sequence[str]) -> bytes:
    """The tasks by number, as pandas writes a frame whose index is the task."""
    columns = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": dtype,
            "metadata": None,
        }
        for name, kind, dtype in (("task_index", _INT, _INT), ("task", "unicode", "object"))
    ]
    described = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    return _table_bytes(
        {"task_index": range(len(tasks)), "task": tasks}, {"pandas": json.dumps(described)}
    )


# Groups of episodes.


def episodes_path(out: str, number: int) -> Path:
    """The file that says where the episodes of a group are; it is written last."""
    return Path(out, "meta", "episodes", f"{_place_of(number)}.parquet")


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

    def write(self, number: int) -> None:
        """Write the files of a group; each appears complete or not at all."""
        table = _DataTable(self.features)
        cameras = [feature for feature in self.features if feature.dtype == "video"]
        movies = {feature.name: _Movie(feature, self.fps, self.encoder) for feature in cameras}
        rows = [
            self._add(place, number, table, movies)
            for place in range(*self.groups[number : number + 2])
        ]
        _publish(Path(self.out, "data", f"{_place_of(number)}.parquet"), table.finish())
        for name, movie in movies.items():
            _publish(Path(self.out, "videos", name, f"{_place_of(number)}.mp4"), movie.finish())
        _publish(
            episodes_path(self.out, number),
            _table_bytes({name: [row[name] for row in rows] for name in rows[0]}),
        )

    def _add(
        self, place: int, number: int, table: _DataTable, movies: dict[str, _Movie]
    ) -> dict[str, Any]:
        """Add an episode to the files; return its row of ``meta/episodes``."""
        episode = self.store.episode(self.episodes[place])
        tasks = [instruction(episode, step) for step in range(episode.num_steps)]
        row: dict[str, Any] = {
            "episode_index": place,
            "tasks": [*dict.fromkeys(tasks)],
            "length": episode.num_steps,
        }
        file = {"chunk_index": number // FILES_PER_CHUNK, "file_index": number % FILES_PER_CHUNK}
        row |= self._where(place, file, movies)
        columns = self._own_columns(place, tasks)
        found = {name: number_statistics(values) for name, values in columns.items()}
        columns["timestamp"] = columns["timestamp"].astype(np.float32)
        for feature in self.features:
            if feature.is_camera:
                camera = CameraFrames(feature, episode, self.store)
                if feature.name in movies:
                    for frame in camera.pixels():
                        movies[feature.name].add(frame)
                else:
                    columns[feature.name] = [*camera.files()]
                found[feature.name] = camera.statistics.result()
            elif feature.is_text:
                columns[feature.name] = feature.column(episode.steps).read(0, episode.num_steps)
            else:
                columns[feature.name] = values = feature.numbers(episode.steps)
                found[feature.name] = number_statistics(
                    values[:, 0] if feature.shape == (1,) else values
                )
        table.add(columns)
        row |= {
            f"stats/{name}/{key}": value
            for name, items in found.items()
            for key, value in items.items()
        }
        return row | {f"meta/episodes/{key}": value for key, value in file.items()}

    def _where(
        self, place: int, file: Mapping[str, int], movies: Mapping[str, _Movie]
    ) -> dict[str, Any]:
        """Where an episode is going to be in its files."""
        begin, end = map(int, self.frames[place : place + 2])
        where: dict[str, Any] = {f"data/{key}": value for key, value in file.items()}
        where |= {"dataset_from_index": begin, "dataset_to_index": end}
        for name, movie in movies.items():
            first, last = movie.num_frames, movie.num_frames + end - begin
            times = {"from_timestamp": first / self.fps, "to_timestamp": last / self.fps}
            where |= {f"videos/{name}/{key}": value for key, value in {**file, **times}.items()}
        return where

    def _own_columns(self, place: int, tasks: list[str]) -> dict[str, Any]:
        """The columns of `OWN_FEATURES` of an episode, given the task of each step."""
        steps = np.arange(len(tasks))
        return {
            "timestamp": steps / self.fps,
            "frame_index": steps,
            "episode_index": np.full(len(steps), place),
            "index": steps + int(self.frames[place]),
            "task_index": np.array([self.tasks[task] for task in tasks]),
        }


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(str(path), content)
