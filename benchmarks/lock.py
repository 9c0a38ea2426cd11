"""How much of its speed a loader keeps beside a thread that computes in Python, as a training loop does between two
kernels: such a thread gives Python's lock away only when it is asked to, after `sys.getswitchinterval()`.

    python benchmarks/lock.py                    # all five
    python benchmarks/lock.py crops tokens --rounds 5

One thread loads, the main thread takes the batches, alone and beside a third that counts and drops them: a training
loop does, and dropping a tensor lets go of the lock twice. Medians of rounds, in which all work takes turns. "requests"
are those for the lock: the seconds that a batch takes longer beside the loop, in switch intervals. "loop waits" is the
share of its time in which the loop has no processor: it waits for the lock, or there are more threads than processors.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from corpus import Corpora
from environments import DEFAULT_FOLDER, Environments
from runner import SideProcess
from side import Job
from workloads import CROP, WORKLOADS

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    VarLenFeature,
    make_dataloader,
)

__all__ = ["CACHE", "WORKS", "loader_of", "numbers", "per_second"]


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
CACHE = Path("~/.cache/torch_tfrecord_benchmarks/lock").expanduser()
# Before the clock starts: what was made before counts for nobody.
_LEAD_IN = 4


def loader_of(work: str, **options: Any) -> tuple[Any, int]:
    """A loader that never ends, and its batch size."""
    corpus, fraction, size, features = WORKS[work]
    path = Corpora(CACHE, None, fraction).path(corpus)
    return make_dataloader(path, size, features, num_epochs=None, drop_last=True, **options), size


def per_second(
    batches: Iterator[Any], size: int, seconds: float, taken_by: deque[Any] | None = None
) -> float:
    """Samples a second of an endless loader's batches, each of so many."""
    for _ in range(_LEAD_IN):
        next(batches)
    dropped: deque[Any] = deque(maxlen=1) if taken_by is None else taken_by
    taken, begin, now = 0, time.perf_counter(), 0.0
    while now < begin + seconds:
        dropped.append(next(batches))
        taken, now = taken + 1, time.perf_counter()
    return size * taken / (now - begin)


class _Loop(threading.Thread):
    """Counts until it is stopped, and drops what it is given."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_stopped, self.waits = False, 0.0
        self.given: deque[Any] = deque()

    def run(self) -> None:
        begin, worked = time.perf_counter(), time.thread_time()
        count = 0
        while not self.is_stopped:
            count += 1
            if self.given:
                self.given.popleft()
        worked = time.thread_time() - worked
        self.waits = 1 - worked / (time.perf_counter() - begin)

    def __enter__(self) -> _Loop:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_stopped = True
        self.join()


def _measure(work: str, seconds: float) -> tuple[float, float, float]:
    """Samples a second alone and beside the loop, and the share of its time that the loop waits."""
    rates, loop = [], _Loop()
    for is_beside in (False, True):
        loader, size = loader_of(work, num_threads=1)
        batches = iter(loader)
        next(batches)  # the thread starts
        if is_beside:
            with loop:
                rates.append(per_second(batches, size, seconds, loop.given))
        else:
            rates.append(per_second(batches, size, seconds))
    return rates[0], rates[1], loop.waits


_LOOPS = {"crops": "images", "tokens": "tokens", "40 scalars": "tabular"}
_PAUSES = (0.0, 0.04, 0.08)


def _loop(arguments: argparse.Namespace) -> None:
    """Print the table of the training loop."""
    environments = Environments(DEFAULT_FOLDER, dict(one.split("=", 1) for one in arguments.python))
    corpora = Corpora(CACHE, None)
    print("| work | loader | " + " | ".join(f"{1000 * pause:.0f} ms" for pause in _PAUSES) + " |")
    print("|---|---|" + "---:|" * len(_PAUSES))
    for work in arguments.works or _LOOPS:
        workload = WORKLOADS[_LOOPS[work]]
        path, count = str(corpora.path(workload.corpus)), corpora.count(workload.corpus)
        processes = [
            SideProcess(python, Job(side, workload.name, variant, path, count, os.cpu_count() or 1))
            for side in ("ours", "tensorflow", "dali")
            if (python := environments.python(side))
            for variant in workload.variants.get(side, ())[: 2 if side == "ours" else 1]
        ]
        ideal = [f"{workload.batch_size / pause:,.0f}" if pause else "" for pause in _PAUSES]
        print(f"| {work}, batch {workload.batch_size:,} | never waited for | {' | '.join(ideal)} |")
        found: dict[SideProcess, dict[float, list[float]]] = {
            process: {pause: [] for pause in _PAUSES} for process in processes
        }
        for _ in range(arguments.rounds):
            for pause in _PAUSES:
                for process in processes:
                    found[process][pause].append(process.loop(arguments.seconds, pause))
        for process, rates in found.items():
            process.end()
            cells = " | ".join(f"{statistics.median(each):,.0f}" for each in rates.values())
            print(f"| | {process.job.side}, {process.job.variant} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", action="store_true", help="a training loop, beside the peers")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=INTERPRETER", help="one you have"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="at least, for a measurement")
    parser.add_argument(
        "--interval",
        type=float,
        default=sys.getswitchinterval(),
        help="with 0.05 requests are exact",
    )
    arguments = parser.parse_args()
    if arguments.loop:
        _loop(arguments)
        return
    sys.setswitchinterval(arguments.interval)
    works = arguments.works or list(WORKS)
    found: dict[str, list[tuple[float, float, float]]] = {work: [] for work in works}
    for _ in range(arguments.rounds):
        for work in works:
            found[work].append(_measure(work, arguments.seconds))
    print("| work | alone/s | beside the loop/s | kept | requests a batch | loop waits |")
    print("|---|---:|---:|---:|---:|---:|")
    for work, runs in found.items():
        alone, beside, waits = map(statistics.median, zip(*runs, strict=True))
        size = WORKS[work][2]
        requests = (size / beside - size / alone) / sys.getswitchinterval()
        print(
            f"| {work}, batch {size:,} | {alone:,.0f} | {beside:,.0f} | {beside / alone:.2f} | {requests:.1f} "
            f"| {waits:.1%} |"
        )


if __name__ == "__main__":
    main()
