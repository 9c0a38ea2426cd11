"""How a loader scales with threads and with worker processes: samples a second with 1, 2, 4, ... of them, up to one
for each processor of this process.

    python benchmarks/threads.py                        # pictures and numbers
    python benchmarks/threads.py crops --rounds 5

Medians of rounds, in which all numbers of threads and workers take turns. The main thread only takes the batches.
"""

from __future__ import annotations

import argparse
import itertools
import statistics

from lock import WORKS, loader_of, per_second
from report import grid

from torch_tfrecord.per_process import num_processors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="at least, for a measurement")
    parser.add_argument("--most", type=int, default=num_processors(), help="threads or workers")
    arguments = parser.parse_args()
    # 1, 2, 4, ... below the most, and that.
    numbers = [*(1 << n for n in range(20) if 1 << n < arguments.most), arguments.most]
    print(grid(["samples a second", *numbers]))
    kinds = ("num_threads", "num_workers")
    for work in arguments.works or WORKS:
        rates: dict[tuple[str, int], list[float]] = {}
        for _ in range(arguments.rounds):
            for number, kind in itertools.product(numbers, kinds):
                loader, size = loader_of(work, **{kind: number})
                batches = iter(loader)
                rate = per_second(batches, size, arguments.seconds)
                rates.setdefault((kind, number), []).append(rate)
                del batches, loader  # its threads or workers end
        for kind in kinds:
            cells = (f"{statistics.median(rates[kind, number]):,.0f}" for number in numbers)
            print(f"| {work}, `{kind}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
