"""What orders are worth and what they cost: figures of docs/order.md.

Quality, of orders of one million records: how far a record moves (mean |place - position| / N; 1/3
where every place is as likely as any), and how much the next record's position follows from this
one's (the correlation of neighbours, and the share of neighbours that were less than 100 positions
apart; 0 and 200 / N for a random order). tf.data's shuffle buffer is simulated by its algorithm:
fill a buffer, give out a random one, put the next in its place; NumPy draws.

Cost: nanoseconds for a position and bytes held, for 10^3 to 10^10 records.

    python benchmarks/order.py
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import torch

from torch_tfrecord import RecordSampler
from torch_tfrecord.order.orders import BlockShuffle, Permutation
from torch_tfrecord.order.random_stream import RandomStream
from torch_tfrecord.records.packed_records import PackedRecords
from torch_tfrecord.records.scan import Block
from torch_tfrecord.streams.record_stream import RecordStream
from torch_tfrecord.streams.stream_pieces import Piece

CHUNK = 1 << 16


def positions(order, count: int) -> np.ndarray:
    parts = [
        order.positions(np.arange(begin, min(begin + CHUNK, count)))
        for begin in range(0, count, CHUNK)
    ]
    return np.concatenate(parts)


def blocks(count: int, block: int, window: int, seed: int) -> BlockShuffle:
    return BlockShuffle(np.arange(0, count, block), count, seed, 0, window_blocks=window)


def tf_buffer(count: int, size: int, seed: int) -> np.ndarray:
    """tf.data's ShuffleDataset, simulated."""
    draws = np.random.default_rng(seed).integers(0, size, count)
    buffer, found = list(range(min(size, count))), []
    for item, chosen in zip(range(size, count), draws.tolist(), strict=False):
        found.append(buffer[chosen])
        buffer[chosen] = item
    return np.array(found + np.random.default_rng(seed + 1).permutation(buffer).tolist())


def our_buffer(count: int, size: int, seed: int) -> np.ndarray:
    """TFRecordIterableDataset's, over a file of empty records."""

    def blocks(_: int):
        zeros = np.zeros(count, np.int64)
        yield Block(0, np.arange(count), zeros, PackedRecords(b"", zeros, zeros))

    stream = RecordStream(
        [Piece(0)],
        blocks,
        cycle_length=1,
        block_length=1,
        buffer_size=size,
        random=RandomStream(seed),
    )
    return np.array([record[3] for record in stream.records()])


def quality(order: np.ndarray) -> tuple[float, float, float]:
    count = len(order)
    moved = np.abs(order - np.arange(count)).mean() / count
    correlation = np.corrcoef(order[:-1], order[1:])[0, 1]
    near = (np.abs(np.diff(order)) < 100).mean()
    return float(moved), float(correlation), float(near)


def print_quality(count: int, seeds: int) -> None:
    makers: dict[str, Callable[[int], np.ndarray]] = {
        "torch.randperm": lambda s: torch.randperm(
            count, generator=torch.Generator().manual_seed(s)
        ).numpy(),
        "shuffle=True": lambda s: positions(Permutation(count, s, 0), count),
        '"blocks", 40 records, 64 a window (4 MiB blocks of 100 KB records)': lambda s: positions(
            blocks(count, 40, 64, s), count
        ),
        '"blocks", 4,000 records, 64 a window (4 MiB blocks of 1 KB records)': lambda s: positions(
            blocks(count, 4000, 64, s), count
        ),
        "stream's buffer of 10,000": lambda s: our_buffer(count, 10_000, s),
        "tf.data's buffer of 10,000 (simulated)": lambda s: tf_buffer(count, 10_000, s),
        "tf.data's buffer of 100,000 (simulated)": lambda s: tf_buffer(count, 100_000, s),
        "no shuffle": lambda s: np.arange(count),
    }
    print(
        f"| order of {count:,} records | mean move / N | correlation of neighbours | neighbours less than 100 apart |"
    )
    print("|---|---|---|---|")
    for name, make in makers.items():
        figures = [quality(make(seed)) for seed in range(seeds)]
        moved, correlation, near = (
            statistics.mean(column) for column in zip(*figures, strict=True)
        )
        print(f"| {name} | {moved:.4f} | {correlation:+.4f} | {near:.3%} |")


def seconds(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def print_beside_torch(largest: int, rounds: int) -> None:
    """All positions of an epoch as an array, in turn with torch.randperm's."""
    print("\n| N | ns per position: shuffle=True | torch.randperm |")
    print("|---" * 3 + "|")
    for exponent in range(3, min(largest, 7) + 1):
        count, ours, theirs = 10**exponent, [], []
        for _ in range(rounds):
            ours.append(seconds(lambda: positions(Permutation(count, 0, 0), count), 1))  # noqa: B023
            theirs.append(seconds(lambda: torch.randperm(count).numpy(), 1))  # noqa: B023
        medians = [statistics.median(times) / count * 1e9 for times in (ours, theirs)]
        print(f"| 10^{exponent} | {medians[0]:.0f} | {medians[1]:.0f} |")


def held_bytes(make: Callable[[], object]) -> int:
    make()  # first use allocates what has nothing to do with it
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = make()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del kept
    return held


def sampled(count: int) -> int:
    """Positions handed out one by one, as to DataLoader, at most 100,000 of them."""
    taken = 0
    for _ in zip(range(min(count, 100_000)), RecordSampler(range(count)), strict=False):
        taken += 1
    return taken


def print_cost(largest: int, rounds: int) -> None:
    columns = (
        "N",
        "µs to start an epoch",
        "ns per position, in chunks",
        "ns per position, sampler",
        "bytes held",
    )
    print(f"\n| {' | '.join(columns)} | torch.randperm(N), bytes |")
    print("|---" * 6 + "|")
    for exponent in range(3, largest + 1):
        count = 10**exponent
        part = min(count, 10**6)
        order = Permutation(count, 0, 0)
        begin = seconds(lambda: Permutation(count, 0, 0), rounds)  # noqa: B023
        chunks = seconds(lambda: positions(order, part), rounds) / part  # noqa: B023
        single = seconds(lambda: sampled(count), rounds) / min(count, 100_000)  # noqa: B023
        held = held_bytes(lambda: Permutation(count, 0, 0))  # noqa: B023
        figures = (
            f"{begin * 1e6:.0f}",
            f"{chunks * 1e9:.0f}",
            f"{single * 1e9:.0f}",
            f"{held:,}",
            f"{8 * count:,}",
        )
        print(f"| 10^{exponent} | {' | '.join(figures)} |")
    held = held_bytes(lambda: blocks(10**9, 1000, 64, 0)) / 10**6
    print(f'\n"blocks": {held:.0f} bytes held for each block')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--largest", type=int, default=10, help="power of ten")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print_quality(arguments.records, arguments.seeds)
    print_cost(arguments.largest, arguments.rounds)
    print_beside_torch(arguments.largest, arguments.rounds)


if __name__ == "__main__":
    main()
