"""Random steps of RLDS episodes: ours with and without choices and transforms, beside dlimp and LeRobot.

The script draws episodes with the features of DROID, three cameras of 320 x 180 as JPEG, writes them
by `tfds.write`, and converts them by LeRobot's own writer to what it reads: videos. A sample is one
observation with its pictures decoded, and 16 actions with their mask:

- "plain": a camera and the wrist's, `make_dataloader`; "workers": the same with processes.
- "choices": one of two cameras, one of three texts, the wrist's masked for one sample in ten.
- "batch" and "step": one function as `batch_transform` and as `step_transform`, as policies have it.
- "dlimp": the pictures of "plain", with tf.data, as openpi and Octo: windows are cut out of each
  episode, steps flattened, shuffled in a buffer of all, then decoded.
- "lerobot": `LeRobotDataset` and DataLoader as its training has them; it decodes all three cameras, as
  "cameras" does.
- With --bucket "bucket" and "cached": "cameras" out of a bucket, without and with a `cache_dir` that an
  epoch has filled; the bucket is the tests' range server on the same processors, 20 ms a request and
  60 MB/s a connection.

All sides run in turn, each in a process of its own that is idle between; the table has medians. The
action and the wrist's picture of first batches are compared with our dataset. A side is a function in
`SIDES`, which gives batches without end. Peers have environments of their own:

    python -m venv /tmp/dlimp && /tmp/dlimp/bin/pip install tensorflow-cpu tensorflow-datasets psutil
    /tmp/dlimp/bin/pip install --no-deps git+https://github.com/kvablack/dlimp
    python -m venv /tmp/lerobot && /tmp/lerobot/bin/pip install lerobot psutil -e .
    python benchmarks/rlds.py --directory /tmp/rlds --dlimp /tmp/dlimp/bin/python --lerobot /tmp/lerobot/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from child import Child, answer
from range_server import RangeServer, range_server

VERSION = Path("drawn_droid", "1.0.1")
CONVERTED = "drawn_lerobot"
HORIZON = 16
HEIGHT, WIDTH, FPS = 180, 320, 15
EVERY_STEP = 250_000  # more than the data has
EARLY = 8  # batches that were read ahead while the side was idle
WRIST, LEFT, RIGHT = "wrist_image_left", "exterior_image_1_left", "exterior_image_2_left"
LATENCY, BANDWIDTH = 0.02, 60e6  # of the bucket: seconds a request, bytes a second and connection
CAMERAS = (LEFT, RIGHT, WRIST)
NUMBERS = ("joint_position", "gripper_position")
TEXTS = ("language_instruction", "language_instruction_2", "language_instruction_3")


def write_data(directory: Path, num_episodes: int) -> None:
    """Each camera of an episode moves over a scene, so that LeRobot's videos are of usual size."""
    import numpy as np
    import torch

    from torch_tfrecord import encode_image, tfds

    random = np.random.default_rng(0)
    slopes = np.indices((2 * HEIGHT, 2 * WIDTH)).sum(0) % 256 * 0.4
    scenes = []
    for _ in range(24):
        blocks = np.kron(random.integers(0, 150, (3, 12, 20)), np.ones((30, 32)))
        scene = slopes + blocks + random.normal(9, 3, blocks.shape)
        scenes.append(scene.clip(0, 255).astype(np.uint8))

    def pictures(length: int) -> list[bytes]:
        scene, phase = scenes[random.integers(len(scenes))], random.uniform(0, 6, 2)
        at = np.sin(np.arange(length)[:, None] * (0.03, 0.05) + phase) * 0.5 + 0.5
        begins = (at * (HEIGHT, WIDTH)).astype(int).tolist()
        cut = [scene[:, y : y + HEIGHT, x : x + WIDTH] for y, x in begins]
        return [encode_image(torch.from_numpy(pixels.copy()), "jpeg", 90) for pixels in cut]

    def walks(**sizes: int) -> dict[str, Any]:
        return {name: random.normal(0, 0.1, (length, n)).cumsum(0) for name, n in sizes.items()}

    def episode(number: int) -> dict[str, Any]:
        nonlocal length
        length = int(random.integers(20, 121))
        last = np.arange(length) == length - 1
        names = {"cartesian_position": 6, "gripper_position": 1, "joint_position": 7}
        speeds = {"cartesian_velocity": 6, "gripper_velocity": 1, "joint_velocity": 7}
        steps = {
            "observation": {**{name: pictures(length) for name in CAMERAS}, **walks(**names)},
            "action_dict": walks(**names, **speeds),
            **walks(action=7),
            **{"reward": last.astype(np.float32), "discount": np.ones(length, np.float32)},
            **{"is_first": np.arange(length) == 0, "is_last": last, "is_terminal": last},
            **{name: [f"{name}: put object {number % 50} away"] * length for name in TEXTS},
        }
        metadata = {"file_path": f"{number}", "recording_folderpath": "drawn"}
        return {"steps": steps, "episode_metadata": metadata}

    def features_of(column: Any, name: str = "") -> Any:
        f = tfds.features
        if isinstance(column, dict):
            return {inner: features_of(item, inner) for inner, item in column.items()}
        if name in CAMERAS:
            return f.Image((HEIGHT, WIDTH, 3), encoding_format="jpeg")
        if isinstance(column, (str, list)):
            return f.Text()
        return f.Tensor(column.shape[1:], str(column.dtype))

    length = 0
    features = features_of(episode(0))
    features["steps"] = tfds.features.Dataset(features["steps"])
    samples = {"train": (episode(number) for number in range(num_episodes))}
    name, version = VERSION.parts
    tfds.write(directory / VERSION, samples, features, name=name, version=version, num_shards=8)


def convert(directory: Path) -> None:
    """Write LeRobot's form of the data, by its own writer with its own defaults."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from torch_tfrecord import tfds

    shape, names = (HEIGHT, WIDTH, 3), ["height", "width", "channels"]
    picture = {"dtype": "video", "shape": shape, "names": names}
    features = {f"observation.images.{name}": picture for name in CAMERAS}
    for name, size in {"observation.state": 8, "action": 7}.items():
        features[name] = {"dtype": "float64", "shape": (size,), "names": None}
    root = directory / CONVERTED
    writer = LeRobotDataset.create("drawn/droid", FPS, features, root, image_writer_threads=4)
    for episode in tfds.RLDSEpisodes(directory / VERSION):
        steps, seen = episode["steps"], episode["steps"]["observation"]
        columns = {"observation.state": numbers_of(seen), "action": steps["action"]}
        for name in CAMERAS:
            columns[f"observation.images.{name}"] = seen[name].permute(0, 2, 3, 1)
        for step, text in enumerate(steps[TEXTS[0]]):
            frame = {name: column[step].numpy() for name, column in columns.items()}
            writer.add_frame({**frame, "task": text})
        writer.save_episode()
    writer.finalize()


def numbers_of(seen: Any) -> Any:
    """[..., 8]: what a policy sees of the arm."""
    import torch

    return torch.cat([seen[name] for name in NUMBERS], -1)


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    """What policies do with a sample, or with a batch of them: bounds to [-1, 1], a gripper that is
    open or closed, names of their own.
    """
    import torch

    seen, action = sample["observation"], sample["action"].float()
    arm = ((action[..., :6] + 2) / 4 * 2 - 1).clamp(-1, 1)
    gripper = (action[..., 6:] > 0.5).float()
    return {
        "action": torch.cat([arm, gripper], -1),
        "state": numbers_of(seen).float(),
        "image": seen[LEFT][..., 0, :, :, :],
        "wrist_image": seen[WRIST][..., 0, :, :, :],
        "prompt": sample["task"]["language_instruction"],
        **{name: sample[name] for name in ("action_pad_mask", "_traj_index", "_frame_index")},
    }


def our_dataset(arguments: argparse.Namespace, side: str, **options: Any) -> Any:
    from torch_tfrecord import tfds

    directory: str | Path = arguments.directory / VERSION
    if side in FAR:
        directory = f"s3://{VERSION}"
        keys = {"endpoint_url": arguments.bucket, "key": "any", "secret": "any"}
        options["storage_options"] = keys
        if side == "cached":
            options |= {"cache_dir": arguments.directory / "cache", "cache_bytes": 1 << 40}
    all_three = "cameras", *FAR
    cameras: dict[str, Any] = dict.fromkeys(CAMERAS if side in all_three else (LEFT, WRIST), True)
    text: Any = True
    if side == "choices":
        cameras = {LEFT: tfds.OneOf([LEFT, RIGHT]), WRIST: tfds.Mask(0.1)}
        text = tfds.OneOf(TEXTS)
    elif side in ("batch", "step"):
        options[f"{side}_transform"] = prepare
    seen = {**cameras, **dict.fromkeys(NUMBERS, True)}
    steps = {"observation": seen, "action": True, TEXTS[0]: text}
    options |= {"features": {"steps": steps}, "action_horizon": HORIZON}
    return tfds.RLDSDataset(directory, "train", **options)


def our_batches(arguments: argparse.Namespace, side: str, **options: Any) -> Iterator[Any]:
    from torch_tfrecord import make_dataloader

    # From a bucket as many threads as there are requests to wait for.
    options = options or {"num_threads": None if side in FAR else arguments.workers}
    loader = make_dataloader(our_dataset(arguments, side), arguments.batch, **options)
    for _ in loader if side == "cached" else ():
        pass  # an epoch fills it
    while True:
        yield from loader


def dlimp_batches(arguments: argparse.Namespace) -> Iterator[Any]:
    """As openpi's `DroidRldsDataset`, but that it decodes after the shuffle, in less memory."""
    import dlimp
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def chunk(episode: Any) -> Any:
        length = tf.shape(episode["action"])[0]
        places = tf.range(length)[:, None] + tf.range(HORIZON)[None]
        names = (LEFT, WRIST, *NUMBERS)
        return {
            "observation": {name: episode["observation"][name] for name in names},
            "action": tf.gather(episode["action"], tf.minimum(places, length - 1)),
            "action_pad_mask": places < length,
            "task": {"language_instruction": episode[TEXTS[0]]},
            "_traj_index": episode["traj_metadata"]["episode_metadata"]["file_path"],
            "_frame_index": tf.range(length),
        }

    def decode(step: Any) -> Any:
        seen = step["observation"]
        pictures = {name: tf.io.decode_jpeg(seen[name], 3) for name in (LEFT, WRIST)}
        return {**step, "observation": {**seen, **pictures}}

    builder = tfds.builder_from_directory(str(arguments.directory / VERSION))
    steps = dlimp.DLataset.from_rlds(builder, num_parallel_reads=8).repeat().traj_map(chunk)
    shuffled = steps.flatten(num_parallel_calls=16).shuffle(EVERY_STEP).frame_map(decode)
    return shuffled.batch(arguments.batch).with_ram_budget(1).iterator(prefetch=4)


def lerobot_batches(arguments: argparse.Namespace) -> Iterator[Any]:
    """As `lerobot_train` does; converts the data first, if nobody did."""
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    times = {"action": [number / FPS for number in range(HORIZON)]}
    root, workers = arguments.directory / CONVERTED, arguments.workers
    if not root.exists():
        convert(arguments.directory)
    dataset = LeRobotDataset("drawn/droid", root, delta_timestamps=times)
    options: dict[str, Any] = {"shuffle": True, "num_workers": workers, "prefetch_factor": 2}
    loader = torch.utils.data.DataLoader(dataset, arguments.batch, **options)
    while True:
        yield from loader


FAR = ("bucket", "cached")
OURS = ("plain", "choices", "batch", "step", "cameras")
SIDES: dict[str, Callable[[argparse.Namespace], Iterator[Any]]] = {
    **{name: partial(our_batches, side=name) for name in OURS},
    "workers": lambda given: our_batches(given, "plain", num_workers=given.workers),
    "dlimp": dlimp_batches,
    "lerobot": lerobot_batches,
    **{name: partial(our_batches, side=name) for name in FAR},
}
PEERS = ("dlimp", "lerobot")  # names of the options with their interpreters, too
# Sides with the same action and wrist's picture.
SAME = ("plain", "cameras", "workers", *FAR, *PEERS)


def shown(batch: Any) -> list[list[float]]:
    """Episode, step, sum of the actions and mean of the wrist's picture of each sample."""
    import numpy as np

    is_lerobot = "episode_index" in batch
    names = ("episode_index", "frame_index") if is_lerobot else ("_traj_index", "_frame_index")
    seen = {} if is_lerobot else batch["observation"]
    picture = batch[f"observation.images.{WRIST}"] * 255 if is_lerobot else seen[WRIST]
    columns = [*(batch[name] for name in (*names, "action")), picture]
    rows = [np.asarray(column).astype(float).reshape(len(picture), -1) for column in columns]
    return np.stack([*(row.sum(1) for row in rows[:3]), rows[3].mean(1)], 1).tolist()


def family() -> list[Any]:  # this process and all its children
    import psutil

    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def seconds_used() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family())


def counted(arguments: argparse.Namespace) -> dict[str, float]:
    """What the bucket was asked for so far, and what it has worked, on the same processors."""
    import psutil

    if arguments.side not in FAR:
        return {}
    stats, machine = RangeServer(arguments.bucket).stats(), psutil.Process().parent().children()[0]
    work = sum(machine.cpu_times()[:2]) * 1e3
    return {"requests": stats["requests"], "KB": stats["bytes_sent"] / 1e3, "server's ms": work}


def frame_bytes(arguments: argparse.Namespace) -> float:
    """Those of the pictures of a sample, in the mean."""
    from torch_tfrecord import tfds

    features = [f"steps/observation/{name}" for name in CAMERAS]
    options: dict[str, Any] = {"features": features, "decode_images": False}
    episodes = tfds.RLDSEpisodes(arguments.directory / VERSION, **options)
    seen = [episode["steps"]["observation"] for episode in episodes]
    total = sum(len(picture) for each in seen for column in each.values() for picture in column)
    return total / episodes.num_steps.sum()


def run_side(arguments: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """In a process of its own: the first batch, then rounds."""
    begin = time.perf_counter()
    batches = SIDES[arguments.side](arguments)
    first_batch = next(batches)
    first = time.perf_counter() - begin
    first_rows = shown(first_batch) if arguments.side in SAME else []

    def run() -> dict[str, float]:
        time.sleep(1 if arguments.side in FAR else 0)  # the side before reads ahead
        for _ in range(EARLY):
            next(batches)
        asked = counted(arguments)
        begin, work, done = time.perf_counter(), seconds_used(), 0
        while (took := time.perf_counter() - begin) < arguments.seconds:
            next(batches)
            done += arguments.batch
        work = (seconds_used() - work) / done * 1e3
        memory = sum(process.memory_full_info().pss for process in family()) / 1e6
        found = {"samples/s": done / took, "CPU ms a sample": work}
        for name, number in counted(arguments).items():
            found[f"{name} a sample"] = (number - asked[name]) / done
        return {**found, "s to the first batch": first, "MB": memory}

    return {"run": run, "look": lambda: first_rows}


def check(arguments: argparse.Namespace, name: str, rows: list[list[float]]) -> None:
    """Compare a side's first batch with our dataset."""
    dataset = our_dataset(arguments, "plain")
    first = [0, *dataset.num_steps.cumsum().tolist()]
    for episode, step, action, picture in rows:
        sample = dataset[first[int(episode)] + int(step)]
        mean = sample["observation"][WRIST].double().mean().item()
        # Videos are not exact.
        if abs(action - sample["action"].sum().item()) > 1e-3 or abs(picture - mean) > 4:
            raise ValueError(f"{name}: step {step} of episode {episode} is another one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4, help="of each side in each round")
    parser.add_argument("--workers", type=int, default=2, help="threads, or processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dlimp", help="a Python that has dlimp")
    parser.add_argument("--lerobot", help="a Python that has lerobot and torch_tfrecord")
    parser.add_argument("--bucket", nargs="?", const="", help="also read the data out of one")
    parser.add_argument("--sides", nargs="*", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        answer(lambda: run_side(arguments))
        return
    if not (arguments.directory / VERSION).exists():
        print("drawing the episodes ...", flush=True)
        write_data(arguments.directory, arguments.episodes)
    peers = {name: getattr(arguments, name) for name in PEERS}
    if arguments.bucket is None:
        peers |= dict.fromkeys(FAR)
    python = dict.fromkeys(SIDES, sys.executable) | peers
    names = [name for name in arguments.sides if python[name]]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        given = sys.argv[1:]
        if arguments.bucket is not None:
            shutil.rmtree(arguments.directory / "cache", ignore_errors=True)
            far = range_server(arguments.directory, latency=LATENCY, bytes_per_second=BANDWIDTH)
            given += ["--bucket", stack.enter_context(far)]
        children = {}
        for name in names:
            child = Child(name, python[name], "rlds.py", *given, "--side", name)
            children[name] = stack.enter_context(contextlib.closing(child))
            check(arguments, name, child.ask("look"))
        for number in range(arguments.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                results[name].append(children[name].ask("run"))
                print(number, name, results[name][-1], flush=True)
    if arguments.bucket is not None:
        print(f"the pictures of a sample have {frame_bytes(arguments) / 1e3:.1f} KB")
    for name, rounds in results.items():
        middle = {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}
        print(f"{name:8}", ", ".join(f"{value:8,.3f} {key}" for key, value in middle.items()))


if __name__ == "__main__":
    main()
