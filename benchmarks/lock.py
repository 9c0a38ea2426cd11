"""How much of its speed a loader keeps beside a thread that computes in Python, as a training loop does between two
kernels: such a thread gives Python's lock away only when it is asked to, after `sys.getswitchinterval()`.

    python benchmarks/lock.py                    # all five
    python benchmarks/lock.py crops tokens --rounds 5

One thread loads, the main thread takes the batches, alone and beside a third that counts. Medians of rounds, in which
all work takes turns. "requests" are those for the lock: the seconds that a batch takes longer beside the loop, in
switch intervals. "loop" is how much slower the loop counts beside the loader.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from corpus import Corpora
from workloads import CROP

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    VarLenFeature,
    make_dataloader,
)

__all__ = ["WORKS", "loader_of", "numbers"]


def numbers() -> dict[str, FixedLenFeature]:
    """The 40 scalars of the tabular file."""
    floats = {f"f{n:02}": FixedLenFeature((), torch.float32) for n in range(13)}
    return floats | {f"i{n:02}": FixedLenFeature((), torch.int64) for n in range(27)}


_LABEL = {"label": FixedLenFeature((), torch.int64)}
# The file, its share that is written, the batch size, and what to read.
WORKS: dict[str, tuple[str, float, int, Any]] = {
    "40 scalars": ("tabular", 1, 1024, numbers()),
    "tokens": ("tokens", 1, 64, {"tokens": FixedLenFeature((2048,), torch.int64)}),
    "embeddings": ("embeddings", 1, 256, {"embedding": FixedLenFeature((1024,), torch.float32)}),
    "crops": (
        "few-images",
        1,
        64,
        {"image": Image(crop=RandomResizedCrop(CROP, horizontal_flip=0.5)), **_LABEL},
    ),
    "texts": (
        "texts",
        0.25,
        64,
        {
            "words": VarLenFeature(bytes),
            "ids": VarLenFeature(torch.int64),
            "title": FixedLenFeature((), str),
            **_LABEL,
        },
    ),
}
_CACHE = Path("~/.cache/torch_tfrecord_benchmarks/lock").expanduser()
# Before the clock starts: what was made before counts for nobody.
_LEAD_IN = 4


def loader_of(work: str, cache: Path = _CACHE, **options: Any) -> tuple[Any, int]:
    """A loader that never ends, and its batch size."""
    corpus, fraction, size, features = WORKS[work]
    path = Corpora(cache, None, fraction).path(corpus)
    return make_dataloader(path, size, features, num_epochs=None, drop_last=True, **options), size


def _per_second(batches: Iterator[Any], size: int, seconds: float) -> float:
    for _ in range(_LEAD_IN):
        next(batches)
    taken, begin, now = 0, time.perf_counter(), 0.0
    while now < begin + seconds:
        next(batches)
        taken, now = taken + 1, time.perf_counter()
    return size * taken / (now - begin)


class _Loop(threading.Thread):
    """Counts until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count, self.is_stopped = 0, False

    def run(self) -> None:
        while not self.is_stopped:
            self.count += 1

    def __enter__(self) -> _Loop:
        self.start()
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.rate = self.count / (time.perf_counter() - self.begin)
        self.is_stopped = True
        self.join()


def _measure(work: str, seconds: float) -> tuple[float, float, float]:
    """Samples a second alone and beside the loop, and the share that the loop loses."""
    rates = []
    with _Loop() as undisturbed:
        time.sleep(seconds / 4)
    for loop in (None, _Loop()):
        loader, size = loader_of(work, num_threads=1)
        batches = iter(loader)
        next(batches)  # the thread starts
        if loop is None:
            rates.append(_per_second(batches, size, seconds))
        else:
            with loop:
                rates.append(_per_second(batches, size, seconds))
            lost = 1 - loop.rate / undisturbed.rate
    return rates[0], rates[1], lost


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="at least, for a measurement")
    parser.add_argument(
        "--interval",
        type=float,
        default=sys.getswitchinterval(),
        help="with 0.05 requests are exact",
    )
    arguments = parser.parse_args()
    sys.setswitchinterval(arguments.interval)
    works = arguments.works or list(WORKS)
    found: dict[str, list[tuple[float, float, float]]] = {work: [] for work in works}
    for _ in range(arguments.rounds):
        for work in works:
            found[work].append(_measure(work, arguments.seconds))
    print("| work | alone/s | beside the loop/s | kept | requests a batch | loop |")
    print("|---|---:|---:|---:|---:|---:|")
    for work, runs in found.items():
        alone, beside, lost = map(statistics.median, zip(*runs, strict=True))
        size = WORKS[work][2]
        requests = (size / beside - size / alone) / sys.getswitchinterval()
        print(
            f"| {work}, batch {size:,} | {alone:,.0f} | {beside:,.0f} | {beside / alone:.2f} | {requests:.1f} "
            f"| {-lost:+.1%} |"
        )


if __name__ == "__main__":
    main()
