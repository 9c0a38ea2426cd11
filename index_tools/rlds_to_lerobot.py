"""``tfrecord rlds-to-lerobot``: from RLDS episodes to a LeRobot dataset."""

from __future__ import annotations

import argparse

from index_tools._arguments import Verbs, add_jobs, add_verb, integer
from index_tools._text import counted, escape
from index_tools.lerobot_export import rlds_to_lerobot

__all__ = ["add_parser"]

_DESCRIPTION = """\
DIRECTORY is a directory that TFDS prepared, of RLDS episodes (Open X-Embodiment, for example). OUT
becomes a LeRobot dataset of version 3.0. Needs pip install 'torch-tfrecord[lerobot]', not LeRobot.

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


def add_parser(verbs: Verbs, summary: str) -> None:
    """Add the verb to the command line."""
    parser = add_verb(verbs, "rlds-to-lerobot", summary, _DESCRIPTION, _run)
    parser.add_argument(
        "directory", metavar="DIRECTORY", help="a directory with features.json and the episodes"
    )
    parser.add_argument("out", metavar="OUT", help="the folder of the LeRobot dataset")
    parser.add_argument(
        "--fps",
        type=integer(1),
        required=True,
        metavar="N",
        help="frames per second, which RLDS does not store",
    )
    parser.add_argument(
        "--split", default="train", help="a split string: 'train[:90%%]' (default: %(default)s)"
    )
    parser.add_argument("--robot-type", metavar="NAME", help="name of the robot")
    parser.add_argument(
        "--feature",
        type=_feature,
        action="append",
        default=[],
        metavar="NAME=PATH[,PATH]",
        help="give features of the steps this LeRobot name, concatenated; nothing after = leaves NAME out; repeatable",
    )
    parser.add_argument(
        "--images",
        choices=("video", "image"),
        default="video",
        help="frames as MP4, or as images with equal pixels",
    )
    parser.add_argument(
        "--codec",
        choices=("libsvtav1", "h264", "hevc"),
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
    add_jobs(parser, "parallel processes")


def _feature(text: str) -> tuple[str, list[str] | None]:
    name, separator, paths = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(
            f"expected NAME=PATH, NAME=PATH,PATH or NAME=, got {text!r}"
        )
    return name, paths.split(",") if paths else None


def _run(options: argparse.Namespace) -> int:
    """Export, and print what was written."""
    result = rlds_to_lerobot(
        options.directory,
        options.out,
        options.split,
        fps=options.fps,
        robot_type=options.robot_type,
        features=dict(options.feature),
        images=options.images,
        codec=options.codec,
        crf=options.crf,
        num_workers=options.jobs,
    )
    for name, paths in result.features.items():
        print(f"{escape(name)}: {escape(', '.join(paths))}")
    if result.left_out:
        print(f"left out: {escape(', '.join(result.left_out))}")
    frames = counted(result.num_frames, "frame")
    print(f"wrote {counted(result.num_episodes, 'episode')}, {frames}: {escape(options.out)}")
    return 0
