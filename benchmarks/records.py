"""Reading records and building indexes, beside the package `tfrecord` (vahidk/tfrecord) in one run.

Both sides read the same generated files from the page cache, in turn, round by round; the table shows medians. Ours
checks both checksums of every record and hands out bytes that belong to the caller; `tfrecord` checks none and hands
out a memoryview of one reused buffer. Run it with nothing else on the machine:

    pip install -e '.[dev]'
    python benchmarks/records.py
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from torch_tfrecord import TFRecordDataset, TFRecordWriter, build_index, read_records

SIZES = {"100 B": 100, "650 B": 650, "4.1 KB": 4_100, "77 KB": 77_000}


def drain(records) -> None:
    for _ in records:
        pass


def write_file(path: Path, size: int, total_bytes: int) -> int:
    count = total_bytes // size
    generator = random.Random(size)
    payloads = [generator.randbytes(size) for _ in range(16)]
    with TFRecordWriter(path, write_index=True) as writer:
        for number in range(count):
            writer.write(payloads[number % 16])
    return count


def random_reads(dataset: TFRecordDataset, positions: list[int]) -> None:
    raw = dataset.raw
    for position in positions:
        raw(position)


def peer_calls(path: Path, index_path: Path) -> dict[str, Callable[[], object]]:
    try:
        from tfrecord.reader import tfrecord_iterator
        from tfrecord.tools.tfrecord2idx import create_index
    except ImportError:
        print("The package tfrecord is not installed; measuring our side alone.")
        return {}
    return {
        "sequential": lambda: drain(tfrecord_iterator(str(path))),
        "index": lambda: create_index(str(path), str(index_path)),
    }


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each call; all calls in turn, so that a slow moment of the machine hits every side."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def index_memory(path: Path) -> float:
    """Bytes that a dataset's index keeps for each record."""
    dataset = TFRecordDataset(path)
    del dataset  # first use allocates what has nothing to do with the index
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    dataset = TFRecordDataset(path)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / len(dataset)


def run(total_bytes: int, rounds: int, folder: Path) -> None:
    print(f"{total_bytes >> 20} MiB a file, medians of {rounds} rounds, {os.cpu_count()} processors\n")
    print(f"| {'work':34} | {'record':>6} | {'ours':>25} | {'tfrecord':>25} | ratio |")
    print(f"|{'-' * 36}|{'-' * 8}|{'-' * 27}|{'-' * 27}|{'-' * 7}|")
    for label, size in SIZES.items():
        path = folder / f"{size}.tfrecord"
        count = write_file(path, size, total_bytes)
        dataset = TFRecordDataset(path)
        positions = random.Random(0).choices(range(count), k=min(count, 100_000))
        peer = peer_calls(path, folder / "peer.idx")
        ours: dict[str, Callable[[], object]] = {
            "sequential, CRC": lambda path=path: drain(read_records(path)),
            "sequential, no CRC": lambda path=path: drain(read_records(path, verify_crc=False)),
            "index, CRC": lambda path=path: build_index(path),
            "index, no CRC": lambda path=path: build_index(path, verify_crc=False),
            "random ds.raw(i), CRC": lambda dataset=dataset, positions=positions: random_reads(dataset, positions),
        }
        medians = measure({**ours, **{f"peer {name}": call for name, call in peer.items()}}, rounds)
        for name in ours:
            done = len(positions) if name.startswith("random") else count
            beside = medians.get(f"peer {name.split(',')[0]}")
            cells = [rate(done, size, medians[name]), rate(done, size, beside) if beside else "-"]
            ratio = f"{beside / medians[name]:.2f}" if beside else "-"
            print(f"| {name:34} | {label:>6} | {cells[0]:>25} | {cells[1]:>25} | {ratio:>5} |")
        if size == min(SIZES.values()):
            memory = index_memory(path)
        path.unlink()
    print(f"\nIndex of a dataset: {memory:.2f} bytes a record.")


def rate(count: int, size: int, seconds: float) -> str:
    return f"{count / seconds:>11,.0f}/s {count * size / seconds / 1e9:5.2f} GB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-mib", type=int, default=256, help="size of each generated file (default 256)")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each side (default 7)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(arguments.total_mib << 20, arguments.rounds, Path(folder))


if __name__ == "__main__":
    main()
