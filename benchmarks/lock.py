"""Samples a second of a training loop that computes in Python after each batch, beside the peers: its thread gives
Python's lock away only when it is asked to, after `sys.getswitchinterval()`.

    python benchmarks/lock.py                    # crops, tokens, 40 scalars
    python benchmarks/lock.py crops --rounds 5
    python benchmarks/lock.py --update-docs      # and write the table into docs/performance.md
    python benchmarks/lock.py --kept             # how much of its speed our loader keeps beside such a thread

Medians of rounds, in which all loaders take turns. With ``--kept`` one thread loads, and the main thread takes the
batches, alone and beside a third that counts and drops them, since a training loop does: dropping a tensor lets go of
the lock twice. "loop waits" is the share of its time in which the loop has no processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from corpus import Corpora
from environments import DEFAULT_FOLDER, Environments
from report import NAMES, grid, replace_block
from runner import start
from side import Job
from sides.ours import features_of
from workloads import CROP, TITLES, WORKLOADS

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    make_dataloader,
)

__all__ = ["CACHE", "WORKS", "loader_of"]


_CROPS = {
    "image": Image(crop=RandomResizedCrop(CROP, horizontal_flip=0.5)),
    "label": FixedLenFeature((), torch.int64),
}
# The file, its share that is written, the batch size, and what to read.
WORKS: dict[str, tuple[str, float, int, Any]] = {
    "40 scalars": ("tabular", 1, 1024, features_of("tabular")),
    "40 scalars, few rows": ("tabular", 1, 64, features_of("tabular")),
    "tokens": ("tokens", 0.25, 64, features_of("tokens")),
    "embeddings": ("embeddings", 1, 256, features_of("embeddings")),
    "crops": ("images", 1, 64, _CROPS),
    "texts": ("texts", 0.25, 64, features_of("texts")),
}
CACHE = Path("~/.cache/torch_tfrecord_benchmarks/lock").expanduser()
# Before the clock starts: what was made before counts for nobody.
_LEAD_IN = 4


def loader_of(work: str, share: float = 1.0, **options: Any) -> tuple[Any, int]:
    """A loader that never ends, of a share of the records, and its batch size."""
    corpus, fraction, size, features = WORKS[work]
    corpora = Corpora(CACHE, None, share * fraction)
    path, size = corpora.path(corpus), min(size, corpora.count(corpus))
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


_IN_COLUMNS = (
    *(("ours", "make_dataloader"), ("ours", "with_make_dataloader")),
    ("tensorflow", "parse_example"),
)
# The workload of workloads.py, and the sides with their variants.
_LOOPS = {
    "crops": (
        "doors-transforms",
        (
            *(("ours", "crop_threads"), ("ours", "crop_workers")),
            *(("tensorflow", "decode_and_crop"), ("dali", "2 threads")),
        ),
    ),
    "tokens": ("doors-tokens", _IN_COLUMNS),
    "40 scalars": ("doors-scalars", _IN_COLUMNS),
}
_PAUSES = (0.0, 0.04, 0.08)


def _rows(work: str, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """The table's rows of a kind of data."""
    environments = Environments(DEFAULT_FOLDER, dict(one.split("=", 1) for one in arguments.python))
    corpora = Corpora(CACHE, None)
    name, sides = _LOOPS[work]
    corpus, size = WORKLOADS[name].corpus, WORKLOADS[name].batch_size
    path, count, threads = str(corpora.path(corpus)), corpora.count(corpus), os.cpu_count() or 1
    processes = {
        TITLES[variant] if side == "ours" else NAMES[side]: start(
            python, Job(side, name, variant, path, count, threads)
        )
        for side, variant in sides
        if (python := environments.python(side))
    }
    ideal = [f"{size / pause:,.0f}" if pause else "" for pause in _PAUSES]
    yield [f"{work}, batch {size:,}", "never waited for", *ideal]
    found: dict[str, list[list[float]]] = {title: [[] for _ in _PAUSES] for title in processes}
    for _ in range(arguments.rounds):
        for number, pause in enumerate(_PAUSES):
            for title, process in processes.items():
                found[title][number].append(process.ask("loop", arguments.seconds, pause))
    for title, process in processes.items():
        process.close()
        yield ["", title, *(f"{statistics.median(each):,.0f}" for each in found[title])]


def _kept(work: str, arguments: argparse.Namespace) -> list[str]:
    """The row of a kind of data beside the loop."""
    runs = [_measure(work, arguments.seconds) for _ in range(arguments.rounds)]
    alone, beside, waits = map(statistics.median, zip(*runs, strict=True))
    rates = f"{alone:,.0f}", f"{beside:,.0f}", f"{beside / alone:.2f}"
    return [f"{work}, batch {WORKS[work][2]:,}", *rates, f"{waits:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", action="store_true", help="beside a thread that counts")
    parser.add_argument("--update-docs", action="store_true", help="write the table into docs/")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=INTERPRETER", help="one you have"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="at least, for a measurement")
    arguments = parser.parse_args()
    if arguments.kept:
        titles = ["work", "alone/s", "beside the loop/s", "kept", "loop waits"]
        print(grid(titles, (_kept(work, arguments) for work in arguments.works or WORKS)))
        return
    rows = [row for work in arguments.works or _LOOPS for row in _rows(work, arguments)]
    titles = ["work", "loader", *(f"{1000 * pause:.0f} ms" for pause in _PAUSES)]
    table = grid(titles, rows, texts=2)
    print(table)
    if arguments.update_docs:
        replace_block(Path(__file__).parents[1] / "docs" / "performance.md", "loop", table)


if __name__ == "__main__":
    main()
