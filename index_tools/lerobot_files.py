"""The files of a LeRobot dataset (version 3.0): tables as Parquet, frames as MP4.

The layout is that of LeRobot's own writer (``lerobot/datasets/dataset_writer.py``,
``docs/source/lerobot-dataset-v3``): ``data/chunk-000/file-000.parquet``,
``videos/<camera>/chunk-000/file-000.mp4``, ``meta/episodes/...`` alike. Each file has several
episodes; ``meta/episodes`` says where each begins.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from index_tools.lerobot_features import LeRobotFeature

__all__ = [
    "CODECS",
    "FILES_PER_CHUNK",
    "OWN_FEATURES",
    "DataTable",
    "Movie",
    "VideoEncoder",
    "check_installed",
    "place_of",
    "read_columns",
    "table_bytes",
    "tasks_table",
]

FILES_PER_CHUNK = 1000
CODECS = {"libsvtav1": "av1", "h264": "h264", "hevc": "hevc"}
_PIXELS = "yuv420p"
_FRAMES_PER_KEY = 2  # as LeRobot: frames are read at random
_SVT_PRESET = 12
_INT = "int64"
OWN_FEATURES = {
    name: "float32" if name == "timestamp" else _INT
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
}
"""The columns that every LeRobot dataset has, and their dtypes."""


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


def place_of(number: int) -> str:
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


class Movie:
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


class DataTable:
    """A table of steps, encoded in memory; each episode is one row group.

    Args:
        features: What it has, besides `OWN_FEATURES`.
    """

    def __init__(self, features: Sequence[LeRobotFeature]) -> None:
        self._arrow = _module("pyarrow")
        self._features = [feature for feature in features if feature.dtype != "video"]
        self._schema = self._arrow.schema(
            [self._field(feature) for feature in self._features]
            + [self._arrow.field(name, self._type(dtype)) for name, dtype in OWN_FEATURES.items()],
            metadata={"huggingface": json.dumps({"info": {"features": self._described()}})},
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

    def _type(self, dtype: str) -> Any:
        return self._arrow.from_numpy_dtype(np.dtype(dtype))

    def _field(self, feature: LeRobotFeature) -> Any:
        arrow, shape, metadata = self._arrow, feature.shape, None
        if feature.is_camera:
            kind = arrow.struct({"bytes": arrow.binary(), "path": arrow.string()})
        elif feature.is_text:
            kind = arrow.string()
        else:
            kind = self._type(feature.dtype)
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

    def _described(self) -> dict[str, Any]:
        """The features, as the package `datasets` describes them."""
        described: dict[str, Any] = {}
        for feature in self._features:
            value = {"dtype": feature.dtype, "_type": "Value"}
            if feature.is_camera:
                described[feature.name] = {"_type": "Image"}
            elif feature.shape == (1,):
                described[feature.name] = value
            elif len(feature.shape) == 1:
                described[feature.name] = {
                    "feature": value,
                    "length": feature.shape[0],
                    "_type": "List",
                }
            else:
                kind = f"Array{len(feature.shape)}D"
                described[feature.name] = {
                    "shape": feature.shape,
                    "dtype": feature.dtype,
                    "_type": kind,
                }
        return described | {
            name: {"dtype": dtype, "_type": "Value"} for name, dtype in OWN_FEATURES.items()
        }


def table_bytes(
    columns: Mapping[str, Sequence[Any]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A Parquet file of columns of Python values."""
    arrow = _module("pyarrow")
    sink = arrow.BufferOutputStream()
    _module("pyarrow.parquet").write_table(
        arrow.table(dict(columns), metadata=metadata), sink, compression="snappy"
    )
    return bytes(sink.getvalue())


def read_columns(paths: Sequence[str], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Columns of numbers in several Parquet files, one after the other."""
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
    for path in paths:
        table = _module("pyarrow.parquet").read_table(path, columns=[*names])
        for name in names:
            parts[name].append(np.array(table.column(name).to_pylist()))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def tasks_table(tasks: Sequence[str]) -> bytes:
    """The tasks by number, as pandas writes a frame whose index is the task."""
    names = {"task_index": (_INT, _INT), "task": ("unicode", "object")}
    columns = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": dtype,
            "metadata": None,
        }
        for name, (kind, dtype) in names.items()
    ]
    described = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    return table_bytes(
        {"task_index": range(len(tasks)), "task": tasks}, {"pandas": json.dumps(described)}
    )
