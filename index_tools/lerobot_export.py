"""Write RLDS episodes as a LeRobot dataset (version 3.0): in parallel, and continued where it was
interrupted.

Consecutive episodes form groups. One process writes the files of a group; the last of them,
``meta/episodes/...``, says that the group is complete. ``meta/info.json``, without which LeRobot
opens nothing, is written when all groups are. Each file appears complete or not at all. A plan in
the folder says which export it is, until that is complete.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from index_tools._terminal import Verb, add_jobs, escape, integer, pluralize
from index_tools._workers import Advance, work_in_processes
from index_tools.lerobot_features import (
    CAMERA_DTYPES,
    STATISTICS,
    CameraFrames,
    Chosen,
    LeRobotFeature,
    choose_features,
    merge_statistics,
)
from index_tools.lerobot_files import (
    CODECS,
    FILE_NAME,
    FILES_PER_CHUNK,
    OWN_FEATURES,
    EpisodeGroups,
    VideoEncoder,
    check_installed,
    read_columns,
    tasks_table,
)
from torch_tfrecord.arguments import IndexPolicy, at_least, one_of
from torch_tfrecord.files.atomic import write_atomically
from torch_tfrecord.files.storage import is_remote
from torch_tfrecord.processors import num_processors
from torch_tfrecord.progress import ProgressBar
from torch_tfrecord.records.index_keeper import build_alone
from torch_tfrecord.shown import printable, shown_list, shown_value
from torch_tfrecord.tfds.dataset_info import DatasetInfo, info_of
from torch_tfrecord.tfds.episode_store import STEPS, EpisodeStore
from torch_tfrecord.tfds.parser import list_leaves
from torch_tfrecord.tfds.splits import Split
from torch_tfrecord.tfds.step_samples import INSTRUCTIONS, instruction

__all__ = ["RLDS_TO_LEROBOT", "LeRobotExport", "rlds_to_lerobot"]

Images: TypeAlias = Literal["video", "image"]
Codec: TypeAlias = Literal["libsvtav1", "h264", "hevc"]

_INFO = "meta/info.json"
_STATE = ".rlds_to_lerobot"  # folder, until the export is complete
_VERSION = "v3.0"  # of LeRobot's layout
# A group is lost when the export is interrupted, and is held in memory encoded: at most this many
# bytes of pixels. And many of them, so that many processes have work; but not by the number of
# processes, which may change.
_GROUP_BYTES = 1 << 31
_MOST_GROUPS_OF_FEW = 64
_OTHER_BYTES = 1024  # of a step, besides pixels; a guess


class LeRobotExport(NamedTuple):
    """What `rlds_to_lerobot` has written.

    Attributes:
        num_episodes: Number of episodes.
        num_frames: Number of frames, each a step.
        features: LeRobot name -> paths of the features in the steps.
        left_out: Paths of the other features of the steps.
    """

    num_episodes: int
    num_frames: int
    features: dict[str, tuple[str, ...]]
    left_out: list[str]


def rlds_to_lerobot(
    directory: str | os.PathLike[str] | DatasetInfo,
    out: str | os.PathLike[str],
    split: Split = "train",
    *,
    fps: int,
    robot_type: str | None = None,
    features: Chosen | None = None,
    images: Images = "video",
    codec: Codec = "libsvtav1",
    crf: int = 30,
    episodes: Sequence[int] | None = None,
    num_workers: int | None = None,
    index: IndexPolicy = "auto",
    index_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> LeRobotExport:
    """Write episodes as a LeRobot dataset (version 3.0), in several processes.

    Needs ``pip install pyarrow av``, not LeRobot itself. Numbers
    keep their values and dtypes. If it is interrupted in any way, call it again with the same
    arguments: it continues with the groups of episodes that are missing. Scripts need the usual
    ``if __name__ == "__main__":`` of processes.

    Args:
        directory: See `RLDSDataset`.
        out: A folder that is new, empty, or has an unfinished export of the same kind.
        split: See `RLDSDataset`: ``"train[:90%]"``. Episodes without steps are left out.
        fps: Frames per second, which RLDS does not store.
        robot_type: Name of the robot, for LeRobot.
        features: LeRobot name -> path or paths below "steps": ``{"observation.state":
            ["observation/joints", "observation/gripper"]}`` are concatenated; a dict stands for its
            features; None leaves the name out. Features not mentioned are there, too: images as
            ``observation.images.<name>``, "observation/state" or "observation/proprio" as
            ``observation.state``, others by their path with dots. What LeRobot has no form for is
            left out (lists of varying length, bytes, 16-bit images).
        images: "video" encodes frames as MP4; "image" stores them as images, with the same pixels.
        codec: Of videos: "libsvtav1" (AV1, LeRobot's own), "h264" or "hevc".
        crf: Quality of videos, 0 (best) to 63 (AV1) or 51.
        episodes: Positions in the split to write, in this order; None for all.
        num_workers: Number of processes; None for one per processor.
        index: See `TFRecordDataset`.
        index_dir: See `TFRecordDataset`.
        storage_options: See `load`.

    Raises:
        FileExistsError: `out` has other files, or an unfinished export with other arguments or of
            other data.
        ImportError: pyarrow or av is missing.
        ChildProcessError: A process died; what is complete is kept.
        ParseError, ImageDecodeError, CorruptRecordError: See `RLDSDataset`; also if images of a
            feature differ in size.

    Example:
        >>> rlds_to_lerobot("bridge/0.1.0", "bridge_lerobot", fps=5)  # doctest: +SKIP
    """
    fps = at_least(1, "fps", fps)
    one_of("images", images, *CAMERA_DTYPES)
    one_of("codec", codec, *CODECS)
    encoder = VideoEncoder(codec, at_least(0, "crf", crf))
    num_workers = (
        num_processors() if num_workers is None else at_least(1, "num_workers", num_workers)
    )
    out = os.fspath(out)
    if is_remote(out):
        raise ValueError(f"out must be a local folder, got {shown_value(out)}")
    for package in ("pyarrow", "av") if images == "video" else ("pyarrow",):
        check_installed(package)
    found = info_of(directory, storage_options)
    chosen, left_out = choose_features(found.features, features or {}, images)
    texts = [leaf.path for leaf in list_leaves(found.features) if leaf.names[-1] in INSTRUCTIONS]
    paths = [*texts, *(f"{STEPS}/{path}" for item in chosen for path in item.paths)]
    # no cache: each episode is read once
    store = EpisodeStore(
        found,
        split,
        features=[*dict.fromkeys(paths)],
        index=index,
        index_dir=index_dir,
        cache_bytes=0,
    )
    numbers = _find_episodes(store, episodes)
    chosen = [_find_size(feature, store, numbers[0]) for feature in chosen]
    arguments = {"fps": fps, "robot_type": robot_type, "features": chosen, "video": encoder}
    request = {"data": store.identity(), "episodes": numbers, **arguments}
    with _lock_folder(out):
        # the numbers of the tasks stand in every file, so they are known before the first
        tasks = _plan(out, request, store.only(texts) if texts else None)
        frames = np.concatenate([[0], np.cumsum(store.num_steps[numbers])])
        job = EpisodeGroups(
            store, chosen, fps, encoder, out, numbers, frames, _divide(frames, chosen), tasks
        )
        _write_groups(job, num_workers)
        _finish(job, robot_type)
    # after the lock in it is gone; another process may hold it again
    with contextlib.suppress(OSError):
        _plan_path(out).parent.rmdir()
    named = {item.name: item.paths for item in chosen}
    return LeRobotExport(len(numbers), int(frames[-1]), named, left_out)


def _find_episodes(store: EpisodeStore, episodes: Sequence[int] | None) -> list[int]:
    """The numbers of the episodes to write."""
    wanted = range(len(store)) if episodes is None else episodes
    for number in wanted:
        if at_least(0, "episodes", number) >= len(store):
            raise ValueError(
                f"episodes: the split has {len(store)} episodes, got the position {number}"
            )
    numbers = [int(number) for number in wanted if store.num_steps[number]]
    if not numbers:
        raise ValueError(
            f"{printable(store.info.directory)}: expected episodes with steps, got none"
        )
    return numbers


def _find_size(feature: LeRobotFeature, store: EpisodeStore, number: int) -> LeRobotFeature:
    """A camera with the size of its first frame."""
    if not feature.is_camera:
        return feature
    camera = CameraFrames(feature, store.episode(number), store)
    return feature._replace(shape=(*camera.first_size(), 3))


def _divide(frames: npt.NDArray[np.int64], features: Sequence[LeRobotFeature]) -> list[int]:
    """The first episode of each group, and the number of all."""
    pixels = sum(math.prod(feature.shape) for feature in features if feature.is_camera)
    ends = frames * (_OTHER_BYTES + pixels)
    # a function of the data alone: an export may go on with more workers
    limit = min(_GROUP_BYTES, max(1, int(ends[-1]) // _MOST_GROUPS_OF_FEW))
    first = np.unique(ends[:-1] // limit, return_index=True)[1]
    return [*first.tolist(), len(frames) - 1]


# The plan: which export is in the folder, until that is complete.


def _plan_path(out: str) -> Path:
    return Path(out, _STATE, "plan.json")


@contextlib.contextmanager
def _lock_folder(out: str) -> Iterator[None]:
    """The folder for this process alone.

    Raises:
        FileExistsError: It has files of others, or another process is at work.
    """
    folder, plan = Path(out), _plan_path(out)
    others = {path.name for path in folder.iterdir()} - {_STATE} if folder.exists() else set()
    if others and not plan.exists():
        is_whole = (folder / _INFO).exists()
        got = "a LeRobot dataset" if is_whole else shown_list(sorted(others))
        raise FileExistsError(
            f"{printable(out)}: expected a folder that is new or empty, or an unfinished export, got {got}"
        )
    plan.parent.mkdir(parents=True, exist_ok=True)
    # a kernel's lock, which goes with the process, however that ends
    with build_alone([str(plan)], lambda _: contextlib.nullcontext()) as is_alone:
        if not is_alone:
            raise FileExistsError(f"{printable(out)}: another process is exporting to this folder")
        yield


def _plan(
    out: str, request: Mapping[str, object], instructions: EpisodeStore | None
) -> dict[str, int]:
    """The tasks by number: of the unfinished export in the folder, else of a new one, which is
    noted there.

    Raises:
        FileExistsError: There is another export.
    """
    # as it comes back from the file: tuples become lists
    wanted = json.loads(json.dumps(request, default=asdict))
    try:
        plan = json.loads(_plan_path(out).read_bytes())
    except FileNotFoundError:
        tasks = _list_tasks(instructions, wanted["episodes"])  # reads all episodes
        plan = {"request": wanted, "tasks": tasks}
        write_atomically(str(_plan_path(out)), json.dumps(plan).encode())
    if others := [name for name, value in wanted.items() if plan["request"].get(name) != value]:
        raise FileExistsError(
            f"{printable(out)}: expected an unfinished export of the same {shown_list(others)}, got another one; "
            f"repeat its arguments, or delete the folder"
        )
    return {task: number for number, task in enumerate(plan["tasks"])}


def _list_tasks(store: EpisodeStore | None, numbers: Sequence[int]) -> list[str]:
    """The instructions, in the order in which they appear."""
    if store is None:
        return [""]
    tasks: dict[str, None] = {}
    for number in ProgressBar(numbers, "tasks", unit="episode", delay=1.0):
        episode = store.episode(number)
        tasks |= dict.fromkeys(instruction(episode, step) for step in range(episode.num_steps))
    return [*tasks]


# The groups, and what holds for all of them.


def _write_groups(job: EpisodeGroups, num_workers: int) -> None:
    """Write the groups that are missing."""
    missing = [
        number for number in range(len(job)) if not job.path("meta/episodes", number).exists()
    ]
    # what is done counts, so that the bar does not begin at 0 again
    total = int(job.frames[-1])
    num_done = total - sum(map(job.num_frames, missing))
    with ProgressBar(total=total, initial=num_done, desc="exporting", unit="frame") as bar:
        if missing:
            work_in_processes(
                functools.partial(_write_group, job),
                missing,
                min(num_workers, len(missing)),
                bar,
                module=__name__,
                advice="run it again, with fewer workers: it continues",
            )


def _write_group(job: EpisodeGroups, number: int, advance: Advance) -> None:
    os.environ.setdefault("SVT_LOG", "1")  # errors only
    # there is a process for each processor
    torch.set_num_threads(1)
    job.write(number)
    advance(job.num_frames(number))


def _finish(job: EpisodeGroups, robot_type: str | None) -> None:
    """Write what is known when all groups are there; ``info.json`` last, as LeRobot opens nothing
    without it.
    """
    names = [item.name for item in [*job.features, *OWN_FEATURES] if not item.is_text]
    paths = [job.path("meta/episodes", number) for number in range(len(job))]
    columns = read_columns(paths, [f"stats/{name}/{key}" for name in names for key in STATISTICS])
    statistics = {
        name: merge_statistics({key: columns[f"stats/{name}/{key}"] for key in STATISTICS})
        for name in names
    }
    content = {
        "meta/tasks.parquet": tasks_table([*job.tasks]),
        "meta/stats.json": json.dumps(statistics, indent=4).encode(),
        _INFO: json.dumps(_describe(job, robot_type), indent=4, ensure_ascii=False).encode(),
    }
    for name, data in content.items():
        write_atomically(os.path.join(job.out, name), data)
    # last: until then the folder is an unfinished export
    _plan_path(job.out).unlink()


def _describe(job: EpisodeGroups, robot_type: str | None) -> dict[str, object]:
    """The content of ``info.json``."""
    features: dict[str, dict[str, object]] = {
        item.name: {"dtype": item.dtype, "shape": [*item.shape], "names": None}
        for item in [*job.features, *OWN_FEATURES]
    }
    video_path = None
    for item in job.features:
        if item.is_camera:
            features[item.name]["names"] = ["height", "width", "channels"]
        if item.dtype == "video":
            features[item.name]["info"] = job.encoder.info(item.shape, job.fps)
            video_path = f"videos/{{video_key}}/{FILE_NAME}.mp4"
    return {
        "codebase_version": _VERSION,
        "fps": job.fps,
        "features": features,
        "total_episodes": len(job.episodes),
        "total_frames": int(job.frames[-1]),
        "total_tasks": len(job.tasks),
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": f"data/{FILE_NAME}.parquet",
        "video_path": video_path,
        "robot_type": robot_type,
        "splits": {"train": f"0:{len(job.episodes)}"},
    }


# The verb.

_DESCRIPTION = """\
DIRECTORY is a directory that TFDS prepared, of RLDS episodes (Open X-Embodiment, for example). OUT
becomes a LeRobot dataset of version 3.0. Needs pip install pyarrow av, not LeRobot.

If it is interrupted, run the same command again: it continues with the episodes that are missing.
OUT must be new or empty, or have an unfinished export of the same data with the same options.

Numbers keep their values. Images become observation.images.NAME, the state observation.state, the
instruction the task; others keep their path, with dots. --feature names them otherwise, or leaves
them out. Prints what was written, and what LeRobot has no form for.

examples:
  tfrecord rlds-to-lerobot bridge/0.1.0 bridge_lerobot --fps 5 --robot-type widowx
  tfrecord rlds-to-lerobot droid/1.0.0 droid_lerobot --fps 15 --split 'train[:100]' \\
      --feature observation.state=observation/joint_position,observation/gripper_position \\
      --feature discount="""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIRECTORY", help="a directory with features.json and the episodes"
    )
    parser.add_argument("out", metavar="OUT", help="the folder of the LeRobot dataset")
    add_lerobot_options(parser, is_needed=True)
    add_jobs(parser, "parallel processes")


def add_lerobot_options(parser: argparse.ArgumentParser, *, is_needed: bool = False) -> None:
    """Add the options of the verb."""
    parser.add_argument(
        "--fps",
        type=integer(1),
        required=is_needed,
        metavar="N",
        help="frames per second, which RLDS does not store",
    )
    parser.add_argument(
        "--split", default="train", help="a split string: 'train[:90%%]' (default: %(default)s)"
    )
    parser.add_argument("--robot-type", metavar="NAME", help="name of the robot")
    parser.add_argument(
        "--feature",
        dest="chosen",
        type=_parse_feature,
        action="append",
        default=[],
        metavar="NAME=PATH[,PATH]",
        help="give features of the steps this LeRobot name, concatenated; nothing after = leaves NAME out; repeatable",
    )
    parser.add_argument(
        "--images",
        choices=CAMERA_DTYPES,
        default="video",
        help="frames as MP4, or as images with equal pixels",
    )
    parser.add_argument(
        "--codec",
        choices=[*CODECS],
        default="libsvtav1",
        help="of videos (default: %(default)s)",
    )
    parser.add_argument(
        "--crf",
        type=integer(0, 63),
        default=30,
        metavar="Q",
        help="quality of videos, 0 is best (default: %(default)s)",
    )


def _parse_feature(text: str) -> tuple[str, list[str] | None]:
    name, separator, paths = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(
            f"expected NAME=PATH, NAME=PATH,PATH or NAME=, got {text!r}"
        )
    return name, paths.split(",") if paths else None


def _run(
    directory: str,
    out: str,
    chosen: list[tuple[str, list[str] | None]],
    jobs: int | None,
    **options: Any,
) -> int:
    """Export, and print what was written."""
    result = rlds_to_lerobot(directory, out, features=dict(chosen), num_workers=jobs, **options)
    for name, paths in result.features.items():
        print(f"{escape(name)}: {escape(', '.join(paths))}")
    if result.left_out:
        print(f"left out: {escape(', '.join(result.left_out))}")
    frames = pluralize(result.num_frames, "frame")
    print(f"wrote {pluralize(result.num_episodes, 'episode')}, {frames}: {escape(out)}")
    return 0


RLDS_TO_LEROBOT = Verb(_DESCRIPTION, _add_arguments, _run)
