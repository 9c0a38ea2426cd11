"""Random steps of RLDS episodes, beside tensorflow-datasets and tf.data in dlimp's style, on the
same files.

The script draws the data: 1,000 episodes of 50 to 400 steps with two camera JPEGs a step, 3.7 GB,
written by `tfds.write`. All sides give batches of 64, of the same values: one observation with both
pictures decoded, and 8 actions with their mask. Ours shuffles every step against every other by
position: "threads" with `make_dataloader`, "workers" with DataLoader's processes. tf.data works as
in Octo and OpenVLA: windows are cut out of each episode, steps flattened, shuffled while encoded,
then decoded. An exact shuffle of all steps needs a buffer of all of them: "tfds" has that, and
makes whole batches itself, its best case. "loader" hands out samples one by one, which are put
together in Python, as the PyTorch loaders of both do, and has the same buffer; "small" is "loader"
with a buffer of `--buffer` steps, which mixes neighbours only. All run in turn, each in a process
of its own; the table shows samples a second after the first batch, the processor time of a sample
(which a busy machine changes less), the time to the first batch, and the peak of memory of all
processes of a side, without the code of libraries. TensorFlow lives in an environment of its own:

    python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu tensorflow-datasets psutil
    pip install -e '.[dev]' psutil
    python benchmarks/rlds.py --directory /tmp/rlds --tfds-python /tmp/tf/bin/python
    python benchmarks/rlds.py --directory /tmp/rlds --memory --samples 50000    # of our workers, over time
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import threading
import time
from pathlib import Path

from child import Child, answer

VERSION = Path("drawn_arm", "1.0.0")
BATCH = 64
HORIZON = 8
EVERY_STEP = 250_000  # more than the data has
SIZES = {"image": 256, "wrist_image": 128}


def memory_bytes() -> int:
    """Memory of this process and all its children; what they share is counted once, libraries' code
    is not counted.
    """
    import psutil

    total = 0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(
            int(line.split()[1]) << 10
            for line in lines
            if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
        )
    return total


def processor_seconds() -> float:
    """Processor time of this process and all its children so far."""
    import psutil

    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)]]
    return sum(item.user + item.system for item in times)


class MemoryWatch(threading.Thread):
    """Notes the memory every second, but for while time is taken: looking at gigabytes takes
    some.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.is_timed = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.is_timed.wait(1):
            self.look()

    def look(self) -> None:
        self.peak = max(self.peak, memory_bytes())


def write_data(directory: Path, num_episodes: int) -> None:
    import numpy as np
    import torch

    from torch_tfrecord import encode_image, tfds

    random = np.random.default_rng(0)

    def picture(size: int) -> bytes:
        y, x = np.mgrid[0:size, 0:size]
        slopes = random.uniform(0.2, 1, (3, 2, 1, 1))
        pixels = (
            (x * slopes[:, 0] + y * slopes[:, 1] + random.uniform(0, 255, (3, 1, 1))) % 256 * 0.6
        )
        for _ in range(25):
            top, left, height, width = (
                random.integers(0, size - 8, 2).tolist() + random.integers(4, size // 3, 2).tolist()
            )
            pixels[:, top : top + height, left : left + width] = random.integers(0, 255, (3, 1, 1))
        pixels += random.normal(0, 3, pixels.shape)
        return encode_image(torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)), "jpeg", 85)

    pictures = {name: [picture(size) for _ in range(600)] for name, size in SIZES.items()}

    def episode(number: int) -> dict[str, object]:
        length = int(random.integers(50, 401))
        last = np.arange(length) == length - 1
        images = {
            name: [bank[i] for i in random.integers(0, 600, length)]
            for name, bank in pictures.items()
        }
        return {
            "steps": {
                "observation": {
                    **images,
                    "state": random.normal(size=(length, 8)).astype(np.float32),
                },
                "action": random.normal(size=(length, 7)).astype(np.float32),
                "reward": last.astype(np.float32),
                "discount": np.ones(length, np.float32),
                "is_first": np.arange(length) == 0,
                "is_last": last,
                "is_terminal": last,
                "language_instruction": [f"move object {number % 50} to the bin"] * length,
            },
            "episode_metadata": {"file_path": f"drawn/{number}"},
        }

    f = tfds.features
    features = {
        "steps": f.Dataset(
            {
                "observation": {
                    **{
                        name: f.Image((size, size, 3), encoding_format="jpeg")
                        for name, size in SIZES.items()
                    },
                    "state": f.Tensor((8,), "float32"),
                },
                "action": f.Tensor((7,), "float32"),
                **{name: f.Scalar("float32") for name in ("reward", "discount")},
                **{name: f.Scalar("bool") for name in ("is_first", "is_last", "is_terminal")},
                "language_instruction": f.Text(),
            }
        ),
        "episode_metadata": {"file_path": f.Text()},
    }
    samples = {"train": (episode(number) for number in range(num_episodes))}
    tfds.write(
        directory / VERSION,
        samples,
        features,
        name=VERSION.parts[0],
        version=VERSION.parts[1],
        num_shards=8,
    )


def our_batches(directory: Path, num_threads: int):
    from torch_tfrecord import make_dataloader, tfds

    dataset = tfds.RLDSDataset(directory / VERSION, "train", action_horizon=HORIZON)
    return iter(make_dataloader(dataset, BATCH, num_threads=num_threads))


def worker_batches(directory: Path, num_workers: int):
    from torch.utils.data import DataLoader

    from torch_tfrecord import collate, tfds

    dataset = tfds.RLDSDataset(directory / VERSION, "train", action_horizon=HORIZON)
    return iter(
        DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            num_workers=num_workers,
            collate_fn=collate,
            prefetch_factor=4,
        )
    )


def tfds_steps(directory: Path, buffer: int = EVERY_STEP):
    """As dlimp and Octo's and OpenVLA's loaders do: steps are not decoded before they were
    shuffled.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(directory / VERSION))
    episodes = builder.as_dataset(
        split="train",
        shuffle_files=True,
        decoders={"steps": tfds.decode.SkipDecoding()},
        # for files that say they are in order
        read_config=tfds.ReadConfig(enable_ordering_guard=False),
    )

    def chunk(episode):
        steps = episode["steps"]
        length = tf.shape(steps["action"])[0]
        places = tf.range(length)[:, None] + tf.range(HORIZON)[None]
        return {
            "observation": steps["observation"],
            "action": tf.gather(steps["action"], tf.minimum(places, length - 1)),
            "action_pad_mask": places < length,
            "task": {"language_instruction": steps["language_instruction"]},
            **{
                name: steps[name]
                for name in ("reward", "discount", "is_first", "is_last", "is_terminal")
            },
            "timestep": tf.range(length),
        }

    def decode(step):
        observation = dict(step["observation"])
        for name in SIZES:
            observation[name] = tf.io.decode_image(
                observation[name], expand_animations=False, dtype=tf.uint8
            )
            observation[name].set_shape((SIZES[name], SIZES[name], 3))
        return {**step, "observation": observation}

    return (
        episodes.repeat()
        .map(chunk, num_parallel_calls=tf.data.AUTOTUNE)
        .interleave(
            tf.data.Dataset.from_tensor_slices, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE
        )
        .shuffle(buffer)
        .map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    )


def tfds_batches(directory: Path):
    return tfds_steps(directory).batch(BATCH).prefetch(4).as_numpy_iterator()


def loader_batches(directory: Path, buffer: int = EVERY_STEP):
    """Samples one by one, stacked as torch's default_collate does."""
    import numpy as np

    def stack(samples):
        if isinstance(samples[0], dict):
            return {name: stack([sample[name] for sample in samples]) for name in samples[0]}
        return samples if isinstance(samples[0], bytes) else np.stack(samples)

    samples = tfds_steps(directory, buffer).prefetch(4 * BATCH).as_numpy_iterator()
    while True:
        yield stack([next(samples) for _ in range(BATCH)])


OURS = ("threads", "workers")
SIDES = {
    "threads": lambda arguments: our_batches(arguments.directory, arguments.workers),
    "workers": lambda arguments: worker_batches(arguments.directory, arguments.workers),
    "tfds": lambda arguments: tfds_batches(arguments.directory),
    "loader": lambda arguments: loader_batches(arguments.directory),
    "small": lambda arguments: loader_batches(arguments.directory, arguments.buffer),
}


def run_side(arguments: argparse.Namespace) -> dict[str, float]:
    """In a process of its own."""
    begin, watch = time.perf_counter(), MemoryWatch()
    batches = SIDES[arguments.side](arguments)
    next(batches)
    first = time.perf_counter() - begin
    watch.is_timed.set()
    begin, work = time.perf_counter(), processor_seconds()
    done = 0
    while done < arguments.samples:
        next(batches)
        done += BATCH
    rate, work = done / (time.perf_counter() - begin), (processor_seconds() - work) / done * 1e3
    watch.look()
    return {"rate": rate, "work": work, "first": first, "peak": watch.peak / 1e6}


def memory_over_time(batches, num_samples: int) -> None:
    """The memory while random samples are read, a line for each tenth."""
    num_batches = num_samples // BATCH
    for number in range(num_batches + 1):
        if number % max(num_batches // 10, 1) == 0:
            print(f"{number * BATCH:7,} samples: {memory_bytes() / 1e6:7.0f} MB", flush=True)
        next(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2, help="threads or processes of ours")
    parser.add_argument("--buffer", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tfds-python", help="a Python that has tensorflow and tensorflow-datasets"
    )
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        answer(lambda: {"run": lambda: run_side(arguments)})
        return
    if not (arguments.directory / VERSION).exists():
        print("drawing the episodes ...", flush=True)
        write_data(arguments.directory, arguments.episodes)
    if arguments.memory:
        memory_over_time(worker_batches(arguments.directory, arguments.workers), arguments.samples)
        return
    names = [name for name in SIDES if name in OURS or arguments.tfds_python]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            python = sys.executable if name in OURS else arguments.tfds_python
            given = [*sys.argv[1:], "--side", name]
            with contextlib.closing(Child(name, python, "rlds.py", *given)) as child:
                results[name].append(child.ask("run"))
            print(number, name, results[name][-1], flush=True)
    for name, rounds in results.items():
        middle = {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}
        print(
            f"{name:7} {middle['rate']:8,.0f} samples/s, {middle['work']:5.2f} ms of processor time a sample, "
            f"first batch after {middle['first']:6.1f} s, peak {middle['peak']:8,.0f} MB"
        )


if __name__ == "__main__":
    main()
