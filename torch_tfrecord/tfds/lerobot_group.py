"""One group of consecutive episodes of a LeRobot dataset: its table, its videos, and what says where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_tfrecord.errors import ImageDecodeError, ParseError, TFRecordError
from torch_tfrecord.images.codec import encode_image
from torch_tfrecord.images.headers import ImageHeader, read_header
from torch_tfrecord.records.atomic import write_atomically
from torch_tfrecord.tfds.episode_columns import EncodedColumn, FeaturePlace
from torch_tfrecord.tfds.episode_store import STEPS, Episode, EpisodeStore
from torch_tfrecord.tfds.lerobot_features import LeRobotFeature
from torch_tfrecord.tfds.lerobot_files import FILES_PER_CHUNK, DataTable, Movie, VideoEncoder, place_of, table_bytes
from torch_tfrecord.tfds.lerobot_statistics import PixelStatistics, number_statistics
from torch_tfrecord.tfds.rlds import instruction

__all__ = ["EpisodeGroups", "episodes_path"]

_BLOCK_STEPS = 32  # frames read and decoded together


def episodes_path(out: str, number: int) -> Path:
    """The file that says where the episodes of a group are; it is written last."""
    return Path(out, "meta", "episodes", f"{place_of(number)}.parquet")


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
        table = DataTable(self.features)
        cameras = [feature for feature in self.features if feature.dtype == "video"]
        movies = {feature.name: Movie(feature, self.fps, self.encoder) for feature in cameras}
        rows = [self._add(place, number, table, movies) for place in range(*self.groups[number : number + 2])]
        _publish(Path(self.out, "data", f"{place_of(number)}.parquet"), table.finish())
        for name, movie in movies.items():
            _publish(Path(self.out, "videos", name, f"{place_of(number)}.mp4"), movie.finish())
        _publish(episodes_path(self.out, number), table_bytes({name: [row[name] for row in rows] for name in rows[0]}))

    def _add(self, place: int, number: int, table: DataTable, movies: dict[str, Movie]) -> dict[str, Any]:
        """Add an episode to the files; return its row of ``meta/episodes``."""
        episode = self.store.episode(self.episodes[place])
        begin, end = map(int, self.frames[place : place + 2])
        steps = np.arange(episode.num_steps)
        tasks = [instruction(episode, step) for step in range(episode.num_steps)]
        file = {"chunk_index": number // FILES_PER_CHUNK, "file_index": number % FILES_PER_CHUNK}
        row: dict[str, Any] = {"episode_index": place, "tasks": [*dict.fromkeys(tasks)], "length": episode.num_steps}
        row |= {f"data/{key}": value for key, value in file.items()}
        row |= {"dataset_from_index": begin, "dataset_to_index": end}
        for name, movie in movies.items():
            first, last = movie.num_frames, movie.num_frames + episode.num_steps
            times = {"from_timestamp": first / self.fps, "to_timestamp": last / self.fps}
            row |= {f"videos/{name}/{key}": value for key, value in {**file, **times}.items()}
        columns: dict[str, Any] = {
            "timestamp": steps / self.fps,
            "frame_index": steps,
            "episode_index": np.full(len(steps), place),
            "index": steps + begin,
            "task_index": np.array([self.tasks[task] for task in tasks]),
        }
        found = {name: number_statistics(values) for name, values in columns.items()}
        columns["timestamp"] = columns["timestamp"].astype(np.float32)
        for feature in self.features:
            if feature.is_camera:
                columns[feature.name], found[feature.name] = self._frames(feature, episode, movies.get(feature.name))
            elif feature.is_text:
                columns[feature.name] = feature.column(episode.steps).read(0, len(steps))
            else:
                columns[feature.name] = feature.numbers(episode.steps)
                values = columns[feature.name]
                found[feature.name] = number_statistics(values[:, 0] if feature.shape == (1,) else values)
        table.add(columns)
        row |= {f"stats/{name}/{key}": value for name, items in found.items() for key, value in items.items()}
        return row | {f"meta/episodes/{key}": value for key, value in file.items()}

    def _frames(self, feature: LeRobotFeature, episode: Episode, movie: Movie | None) -> tuple[Any, dict[str, Any]]:
        """The column of a camera, with its frames unless they go to a movie, and its statistics."""
        statistics = PixelStatistics(episode.num_steps)
        if movie is None:
            return [*self._images(feature, episode, statistics)], statistics.result()
        for step, frame in self._pixels(feature, episode, range(episode.num_steps)):
            movie.add(frame)
            if step in statistics.numbers:
                statistics.add(frame)
        return None, statistics.result()

    def _images(
        self, feature: LeRobotFeature, episode: Episode, statistics: PixelStatistics
    ) -> Iterator[dict[str, bytes | str]]:
        """The frames as files: the bytes that are there if any program reads the same pixels from them, else a PNG."""
        column = feature.column(episode.steps)
        for first in range(0, episode.num_steps, _BLOCK_STEPS):
            stop = min(first + _BLOCK_STEPS, episode.num_steps)
            for step, data in enumerate(column.encoded(first, stop), first):
                header = self._header(feature, episode, data, step)
                frame = None
                if step in statistics.numbers or not _is_plain(header, column):
                    ((_, frame),) = self._pixels(feature, episode, range(step, step + 1))
                if step in statistics.numbers and frame is not None:
                    statistics.add(frame)
                kind = header.format if _is_plain(header, column) else "png"
                yield {
                    "bytes": data
                    if frame is None or _is_plain(header, column)
                    else encode_image(frame.transpose(2, 0, 1), kind),
                    "path": f"frame-{step:06d}.{kind}",
                }

    def _pixels(
        self, feature: LeRobotFeature, episode: Episode, steps: range
    ) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """The frames of steps as uint8 [H, W, 3]: gray is repeated, alpha left out."""
        column = feature.column(episode.steps)
        for first in range(steps.start, steps.stop, _BLOCK_STEPS):
            pictures = column.read(first, min(first + _BLOCK_STEPS, steps.stop))
            for step, picture in enumerate(pictures, first):
                self._check_size(feature, episode, tuple(picture.shape[1:]), step)
                frame = picture.as_subclass(torch.Tensor)[:3].expand(3, -1, -1).permute(1, 2, 0)
                yield step, frame.contiguous().numpy()

    def _header(self, feature: LeRobotFeature, episode: Episode, data: bytes, step: int) -> ImageHeader:
        try:
            header = read_header(data)
        except ImageDecodeError as error:
            raise self._at(feature, episode, step, error) from error
        self._check_size(feature, episode, (header.height, header.width), step)
        return header

    def _check_size(self, feature: LeRobotFeature, episode: Episode, size: tuple[int, ...], step: int) -> None:
        if size != feature.shape[:2]:
            height, width, _ = feature.shape
            text = f"expected an image of {height} x {width} pixels, as in the first episode, got {size[0]} x {size[1]}"
            raise self._at(feature, episode, step, ParseError(text))

    def _at(self, feature: LeRobotFeature, episode: Episode, step: int, error: TFRecordError) -> TFRecordError:
        place = FeaturePlace(f"{STEPS}/{feature.paths[0]}", self.store.record(episode.number).locate)
        return place.at_step(error, step)


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(str(path), content)


def _is_plain(header: ImageHeader, column: EncodedColumn) -> bool:
    """Whether any program reads the same pixels from an image: RGB of 8 bits, upright."""
    has_colours = column.pictures is not None and column.pictures.mode == "RGB"
    is_common = header.format in ("jpeg", "png") and header.channels == 3 and header.bits == 8
    return has_colours and is_common and header.orientation == 1
