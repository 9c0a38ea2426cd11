"""Which modules of the package a record passes on its way: what a reader of the code has to open.

    python benchmarks/walk.py

Each way in is used once before, so that what is imported, opened and planned at first does not
count; then the modules are counted whose functions run, in this process and in its workers. The
root's helpers (`errors`, `arguments`, `shown`) count as all others.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import fsspec
import torch
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    ShardedTFRecordWriter,
    TFRecordDataset,
    collate,
    make_dataloader,
    tfds,
)

PACKAGE = str(Path(sys.modules["torch_tfrecord"].__file__).parent)
FEATURES = {"x": FixedLenFeature((4,), torch.float32), "label": FixedLenFeature((), torch.int64)}
NUM_RECORDS, BATCH = 640, 32


class Walk:
    """Collects the modules whose functions run, also those of workers that write theirs to a file.

    Args:
        folder: For the workers' files.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.seen = folder, set()

    def __call__(self, frame, event, _) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            self.seen.add(name)

    def in_worker(self, _) -> None:
        """Begin in a DataLoader worker: each new module is a line of its file."""
        path = Path(self.folder, str(os.getpid()))
        seen = set()

        def profile(frame, event, _):
            name = frame.f_code.co_filename
            if event == "call" and name.startswith(PACKAGE) and name not in seen:
                seen.add(name)
                with path.open("a") as file:
                    file.write(name + "\n")

        sys.setprofile(profile)
        threading.setprofile(profile)

    def modules(self, work: Callable[[], object]) -> list[str]:
        """The modules that a piece of work passes."""
        self.seen = set()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        for path in Path(self.folder).iterdir():
            self.seen.update(path.read_text().split("\n"))
            path.unlink()
        return sorted(str(Path(name).relative_to(PACKAGE)) for name in self.seen if name)


def write(prefix: str) -> None:
    """A set of shards."""
    with ShardedTFRecordWriter(prefix, num_shards=2) as writer:
        for number in range(NUM_RECORDS):
            writer.write({"x": [float(number)] * 4, "label": number})


def write_episodes(directory: Path) -> None:
    """Episodes of ten steps, without pictures."""
    f = tfds.features
    step = {
        "observation": f.FeaturesDict({"state": f.Tensor(shape=(3,), dtype="float32")}),
        "action": f.Tensor(shape=(2,), dtype="float32"),
        "is_first": f.Scalar(dtype="bool"),
        "is_last": f.Scalar(dtype="bool"),
    }
    episodes = (
        {
            "steps": [
                {
                    "observation": {"state": [float(number)] * 3},
                    "action": [0.0, 1.0],
                    "is_first": number == 0,
                    "is_last": number == 9,
                }
                for number in range(10)
            ]
        }
        for _ in range(8)
    )
    tfds.write(directory, {"train": episodes}, {"steps": f.Dataset(step)}, name="drawn")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as workers:
        prefix, episodes = f"{folder}/train", Path(folder, "drawn", "1.0.0")
        write(prefix)
        write_episodes(episodes)
        walk = Walk(workers)
        dataset = TFRecordDataset(f"{prefix}-*", FEATURES)
        bucket = fsspec.filesystem("memory")
        bucket.put(f"{folder}/train-*", "/bucket/")
        remote = TFRecordDataset("memory://bucket/train-*", FEATURES)
        steps = tfds.RLDSDataset(episodes, "train", window_size=2, action_horizon=2)
        plain = iter(DataLoader(dataset, BATCH, collate_fn=collate))
        loader = make_dataloader(dataset, BATCH)
        forked = make_dataloader(
            dataset,
            BATCH,
            num_workers=2,
            worker_init_fn=walk.in_worker,
            multiprocessing_context="fork",
        )
        ways = {
            "ds[i]": lambda: dataset[5],
            "batch with collate": lambda: next(plain),
            "make_dataloader": lambda: list(loader),
            "two workers": lambda: list(forked),
            "remote record": lambda: remote[5],
            "RLDS sample": lambda: steps[5],
            "sharded set, written": lambda: write(f"{folder}/again"),
        }
        for name, work in ways.items():
            if name != "two workers":
                work()
            passed = walk.modules(work)
            print(f"{name:22s} {len(passed):3d}  {' '.join(passed)}")


if __name__ == "__main__":
    main()
