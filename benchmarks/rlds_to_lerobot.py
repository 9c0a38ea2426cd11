"""From RLDS to LeRobot: `rlds_to_lerobot` beside LeRobot's own way, on the same files.

The script draws the data: episodes of 15 to 35 steps, each with one camera (256 x 256, JPEG), a
state and an action of 7 numbers, written by `tfds.write`. LeRobot's way is that of its
`examples/port_datasets/port_droid.py`: one process reads the episodes with tensorflow-datasets and
calls `add_frame` for every step and `save_episode` for every episode. Both write AV1 with LeRobot's
settings. Each side runs in a process of its own, in turn; the table shows the seconds, and the
processor time of all its processes, which a busy machine changes less. LeRobot lives in an
environment of its own, as it asks for an older torch:

    python -m venv /tmp/lerobot && /tmp/lerobot/bin/pip install 'lerobot[dataset]' tensorflow-cpu tensorflow-datasets
    pip install -e '.[dev,lerobot]'
    python benchmarks/rlds_to_lerobot.py --directory /tmp/rlds_lerobot --lerobot-python /tmp/lerobot/bin/python
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

VERSION = Path("drawn_arm", "1.0.0")
SIZE, NUMBERS, FPS = 256, 7, 10
CHILD_SUBREAPER = (
    36  # of prctl: orphans become children of this process, so that their times are counted
)


def draw(directory: Path, num_episodes: int) -> None:
    """Write the episodes, unless they are there."""
    import numpy as np
    from PIL import Image

    from torch_tfrecord import encode_image, tfds

    if (directory / VERSION / "features.json").exists():
        return
    f = tfds.features
    observation = {
        "image": f.Image((SIZE, SIZE, 3), encoding_format="jpeg"),
        "state": f.Tensor((NUMBERS,), "float32"),
    }
    steps = {
        "observation": observation,
        "action": f.Tensor((NUMBERS,), "float32"),
        "language_instruction": f.Text(),
    }

    def episodes():
        for number in range(num_episodes):
            random = np.random.default_rng(number)
            coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            scene = np.asarray(
                coarse.resize((2 * SIZE, 2 * SIZE), Image.Resampling.BICUBIC)
            ).astype(np.int16)
            noise = random.integers(-6, 7, (SIZE, SIZE, 3), dtype=np.int16)
            yield {
                "steps": [
                    {
                        "observation": {
                            "image": encode_image(
                                np.clip(
                                    scene[4 * t : 4 * t + SIZE, 3 * t : 3 * t + SIZE] + noise,
                                    0,
                                    255,
                                )
                                .astype(np.uint8)
                                .transpose(2, 0, 1),
                                "jpeg",
                                90,
                            ),
                            "state": random.standard_normal(NUMBERS).astype(np.float32),
                        },
                        "action": random.standard_normal(NUMBERS).astype(np.float32),
                        "language_instruction": f"task {number % 50}",
                    }
                    for t in range(int(random.integers(15, 36)))
                ]
            }

    tfds.write(
        directory / VERSION,
        {"train": episodes()},
        {"steps": f.Dataset(steps)},
        name="drawn_arm",
        num_shards=8,
    )


def ours(directory: Path, out: Path, num_workers: int) -> None:
    """This package."""
    from index_tools.lerobot_export import rlds_to_lerobot

    rlds_to_lerobot(directory / VERSION, out, fps=FPS, num_workers=num_workers)


def theirs(directory: Path, out: Path) -> None:
    """As in LeRobot's `port_droid.py`."""
    import tensorflow_datasets
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    features = {
        "observation.images.image": {
            "dtype": "video",
            "shape": (SIZE, SIZE, 3),
            "names": ["height", "width", "channels"],
        },
        "observation.state": {"dtype": "float32", "shape": (NUMBERS,), "names": None},
        "action": {"dtype": "float32", "shape": (NUMBERS,), "names": None},
    }
    dataset = LeRobotDataset.create("drawn/arm", fps=FPS, features=features, root=out)
    builder = tensorflow_datasets.builder_from_directory(str(directory / VERSION))
    for episode in builder.as_dataset(split="train"):
        for step in episode["steps"].as_numpy_iterator():
            dataset.add_frame(
                {
                    "observation.images.image": step["observation"]["image"],
                    "observation.state": step["observation"]["state"],
                    "action": step["action"],
                    "task": step["language_instruction"].decode(),
                }
            )
        dataset.save_episode()
    dataset.finalize()


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds and processor seconds of a command with all its processes."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    try:
        while True:
            os.wait()
    except ChildProcessError:
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Draw the data, run the sides in turn, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--lerobot-python", default=os.environ.get("LEROBOT_PYTHON"))
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        theirs(options.directory, options.out) if options.side == "lerobot" else ours(
            options.directory, options.out, int(options.side)
        )
        return
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1)
    draw(options.directory, options.episodes)
    sides = {f"ours, {count} processes": (sys.executable, str(count)) for count in options.workers}
    if options.lerobot_python:
        sides["lerobot"] = (options.lerobot_python, "lerobot")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, (python, side) in sides.items():
            out = options.directory / f"out_{side}"
            shutil.rmtree(out, ignore_errors=True)
            command = [
                python,
                __file__,
                "--directory",
                options.directory,
                "--side",
                side,
                "--out",
                out,
            ]
            times[name].append(measured(list(map(str, command))))
            print(
                name, [round(number, 1) for number in times[name][-1]], file=sys.stderr, flush=True
            )
    frames = json.loads(
        (options.directory / f"out_{options.workers[0]}/meta/info.json").read_text()
    )["total_frames"]
    print(
        f"{frames} frames\n\n| | seconds | frames/s | processor ms per frame |\n|---|---|---|---|"
    )
    for name, found in times.items():
        seconds, processor = (statistics.median(numbers) for numbers in zip(*found, strict=True))
        print(
            f"| {name} | {seconds:.1f} | {frames / seconds:,.0f} | {1000 * processor / frames:.1f} |"
        )


if __name__ == "__main__":
    main()
