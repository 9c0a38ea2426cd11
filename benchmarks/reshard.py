"""`tfrecord reshard --shuffle` of data larger than memory: time, memory, and what interruptions
leave.

    python benchmarks/reshard.py                          # 4 GB with 1 GB of address space, and 50 interruptions
    python benchmarks/reshard.py --tensorflow PYTHON      # also tf.data, reading and writing in order

The full shuffle runs in a process whose address space is limited to 1 GB. Beside it, in the same run:
`cat` of the files into one, synced, which is what any copy needs. Then smaller data is shuffled again and
again, each time interrupted at a random moment by SIGINT, SIGTERM or SIGKILL: the inputs must be
unchanged, and there must be all outputs or none, and no temporary file.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# without torch, whose memory a child would be counted with
from torch_tfrecord.order.orders import Permutation
from torch_tfrecord.records.reader import read_records
from torch_tfrecord.records.writer import TFRecordWriter

LIMIT = 1 << 30
COPY_BY_TENSORFLOW = """
import sys, tensorflow as tf
out, *paths = sys.argv[1:]
with tf.io.TFRecordWriter(out) as writer:
    for record in tf.data.TFRecordDataset(paths):
        writer.write(record.numpy())
"""


def make_files(folder: Path, num_records: int, record_bytes: int) -> list[str]:
    """Eight files of random records, each of which begins with its number."""
    filler = random.Random(0).randbytes(4 * record_bytes)
    paths = [str(folder / f"in-{number:05d}-of-00008.tfrecord") for number in range(8)]
    for number, path in enumerate(paths):
        with TFRecordWriter(path) as writer:
            for record in range(number * num_records // 8, (number + 1) * num_records // 8):
                begin = record % len(filler) // 2
                payload = record.to_bytes(8, "little") + filler[begin : begin + record_bytes]
                writer.write(payload)
    return paths


def command(paths: list[str], out: str, num_shards: int) -> list[str]:
    """Shuffle all records."""
    verb = [sys.executable, "-m", "index_tools", "reshard", *paths, out]
    return [*verb, "--num-shards", str(num_shards), "--shuffle", "--seed", "7", "--json"]


def limit_memory() -> None:
    """In the child, before it begins."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))


def shuffle(folder: Path, num_records: int, record_bytes: int, tensorflow: str | None) -> None:
    """Time and memory of the full shuffle; its order."""
    paths = make_files(folder, num_records, record_bytes)
    size = sum(map(os.path.getsize, paths))
    gigabytes = size / 1e9
    begin = time.perf_counter()
    with open(folder / "cat", "wb") as file:
        subprocess.run(["cat", *paths], stdout=file, check=True)
        os.fsync(file.fileno())
    print(f"cat:       {time.perf_counter() - begin:6.1f} s for {gigabytes:.2f} GB")
    os.unlink(folder / "cat")
    begin = time.perf_counter()
    out = str(folder / "out")
    subprocess.run(
        command(paths, out, 16), check=True, preexec_fn=limit_memory, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(f"reshard:   {seconds:6.1f} s, {gigabytes / seconds:.2f} GB/s, at most {peak:.0f} MB")
    shards = sorted(folder.glob("out-*"))
    numbers = [
        int.from_bytes(record[:8], "little") for path in shards for record in read_records(path)
    ]
    expected = Permutation(num_records, 7, 0).positions(np.arange(num_records))
    assert numbers == expected.tolist()
    if tensorflow:
        begin = time.perf_counter()
        subprocess.run(
            [tensorflow, "-c", COPY_BY_TENSORFLOW, str(folder / "tf"), *paths],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        print(f"tf.data:   {time.perf_counter() - begin:6.1f} s, in order, into one file")


def state(paths: list[str]) -> list[tuple[str, int]]:
    """What the inputs are."""
    return [
        (hashlib.sha256(Path(path).read_bytes()).hexdigest(), os.stat(path).st_mtime_ns)
        for path in paths
    ]


def interrupt(folder: Path, times: int, seed: int) -> None:
    """End the command at random moments."""
    draw = random.Random(seed)
    paths = make_files(folder, 20_000, 10_000)
    before, names = state(paths), {os.path.basename(path) for path in paths}
    (folder / "out").mkdir()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        subprocess.run(command(paths, f"{folder}/out/x", 16), check=True, stdout=-3)
        seconds.append(time.perf_counter() - begin)
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
    whole = statistics.median(seconds)
    counts = {"before the end": 0, "complete": 0, "hidden folder after SIGKILL": 0}
    for number in range(times):
        kind = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3]
        # half of the moments near the end, where the files get their names
        low, high = (0.0, 1.1) if number % 2 else (0.75, 1.15)
        process = subprocess.Popen(command(paths, f"{folder}/out/x", 16), stdout=-3, stderr=-3)
        time.sleep(draw.uniform(low, high) * whole)
        process.send_signal(kind)
        process.wait()
        left = sorted(path.name for path in (folder / "out").iterdir())
        shards = [name for name in left if name.startswith("x-")]
        hidden = [name for name in left if name not in shards and name != ".torch_index"]
        assert state(paths) == before and names == {path.name for path in folder.glob("in-*")}
        assert not list(folder.glob(".*")), list(folder.glob(".*"))
        assert len(shards) in (0, 16) or kind == signal.SIGKILL, (kind, left)
        assert not hidden or kind == signal.SIGKILL, (kind, left)
        counts["complete" if len(shards) == 16 else "before the end"] += 1
        counts["hidden folder after SIGKILL"] += bool(hidden)
        if len(shards) == 16:
            assert sum(1 for name in shards for _ in read_records(folder / "out" / name)) == 20_000
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
    print(f"{times} interruptions of {whole:.1f} s: {json.dumps(counts)}; inputs unchanged")


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--record-bytes", type=int, default=10_000)
    parser.add_argument("--interruptions", type=int, default=50)
    parser.add_argument("--tensorflow", metavar="PYTHON")
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.records:
            shuffle(Path(folder), options.records, options.record_bytes, options.tensorflow)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.interruptions:
            interrupt(Path(folder), options.interruptions, 0)


if __name__ == "__main__":
    main()
