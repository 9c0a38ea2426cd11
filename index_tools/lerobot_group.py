"""One group of consecutive episodes of a LeRobot dataset: its table, its videos, and what says
where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index_tools.lerobot_camera import CameraFrames
from index_tools.lerobot_features import LeRobotFeature
from index_tools.lerobot_files import (
    FILES_PER_CHUNK,
    DataTable,
    Movie,
    VideoEncoder,
    place_of,
    table_bytes,
)
from index_tools.lerobot_statistics import number_statistics
from torch_tfrecord.files.atomic import write_atomically
from torch_tfrecord.tfds.episode_store import EpisodeStore
from torch_tfrecord.tfds.step_samples import instruction

__all__ = ["EpisodeGroups", "episodes_path"]


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
        rows = [
            self._add(place, number, table, movies)
            for place in range(*self.groups[number : number + 2])
        ]
        _publish(Path(self.out, "data", f"{place_of(number)}.parquet"), table.finish())
        for name, movie in movies.items():
            _publish(Path(self.out, "videos", name, f"{place_of(number)}.mp4"), movie.finish())
        _publish(
            episodes_path(self.out, number),
            table_bytes({name: [row[name] for row in rows] for name in rows[0]}),
        )

    def _add(
        self, place: int, number: int, table: DataTable, movies: dict[str, Movie]
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
                    camera.add_to(movies[feature.name])
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
        self, place: int, file: Mapping[str, int], movies: Mapping[str, Movie]
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
