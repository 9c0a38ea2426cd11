"""Reading from a bucket: ours beside a bare client, fsspec, obstore, WebDataset and
s3torchconnector.

The bucket is the tests' range server in a process of its own: 20 ms a request and 60 MB/s a
connection, the same for all. It has eight files of 200 records of 100 KB ("photos") and eight of
5,000 records of 4 KB ("tokens"), 160 MB each, their indexes beside them, and tars of the same
payloads. Measured are

- open: a dataset of the eight files;
- batch: 64 records drawn at random;
- epoch: all records in random order, in batches of 64; blocks: shuffled in blocks; stream: in the
  files' order;

each with the number of requests, and the most of them at once. Every side runs in a process of its
own, in turn, rounds times; the tables have medians. An epoch is ended after a few seconds. "bare
client" is what the server and this machine give: threads over sockets that look at nothing of what
they receive. tf.data is not among them: TensorFlow 2.21 reads neither http nor s3 itself, and
cannot load tensorflow-io 0.37, the newest, which does.

    pip install -e '.[dev]' aiohttp obstore
    python -m venv /tmp/peers && /tmp/peers/bin/pip install webdataset s3torchconnector
    python benchmarks/remote.py --peers-python /tmp/peers/bin/python --update-docs
    python benchmarks/remote.py --sides torch_tfrecord,bare --data photos --json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from child import Child, ChildFailedError  # noqa: E402
from range_server import RangeServer, range_server  # noqa: E402
from remote_sides import SIDES, TASKS  # noqa: E402
from report import grid, replace_block  # noqa: E402

LATENCY, BANDWIDTH = 0.02, 60e6
# files, records of each, bytes of a record
DATA = {"photos": (8, 200, 100_000), "tokens": (8, 5_000, 4_096)}
OWN_VENV = {"WebDataset", "WebDataset, 4 workers", "s3torchconnector"}
HEADS = {
    "open": "open",
    "batch": "64 at random",
    "epoch": "shuffled epoch",
    "blocks": "in blocks",
    "stream": "stream",
}


def write_set(root: Path, name: str, fraction: float) -> dict[str, Any]:
    """The files of a data set with indexes and tars; what sides want to know of them."""
    from torch_tfrecord import TFRecordDataset, TFRecordWriter

    num_files, num_records, size = DATA[name]
    num_records = max(int(num_records * fraction), 16)
    folder, tars = root / name, root / f"{name}-tar"
    paths = [folder / f"{name}-{i:05d}-of-{num_files:05d}.tfrecord" for i in range(num_files)]
    for number, path in enumerate(paths):
        payloads = [*payloads_of(number, num_records, size)]
        if len([*folder.glob("*.tfrecord")]) < num_files:
            folder.mkdir(exist_ok=True)
            tars.mkdir(exist_ok=True)
            with TFRecordWriter(path, write_index=True) as writer:
                for payload in payloads:
                    writer.write(payload)
            write_tar(tars / f"{path.stem}.tar", payloads, number * num_records)
    files = [
        {
            "name": path.name,
            "size": path.stat().st_size,
            "starts": [TFRecordDataset(path).locate(i)[1] + 12 for i in range(num_records)],
            "lengths": [size] * num_records,
        }
        for path in paths
    ]
    indexes = [str(path.relative_to(folder)) for path in folder.rglob("*.safetensors")]
    return {
        "folder": name,
        "files": files,
        "indexes": indexes,
        "tars": sorted(tar.name for tar in tars.iterdir()),
    }


def payloads_of(file: int, count: int, size: int) -> Any:
    """The record's number, then random bytes."""
    generator = np.random.default_rng(file)
    for number in range(file * count, (file + 1) * count):
        yield number.to_bytes(8, "little") + generator.bytes(size - 8)


def write_tar(path: Path, payloads: list[bytes], first: int) -> None:
    with tarfile.open(path, "w") as tar:
        for number, payload in enumerate(payloads, first):
            entry = tarfile.TarInfo(f"{number:08d}.bin")
            entry.size = len(payload)
            tar.addfile(entry, io.BytesIO(payload))


def measure(
    arguments: argparse.Namespace, server: RangeServer, spec: Path, name: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A round of all tasks of one side; a first, untimed batch or stream makes its connections."""
    python = arguments.peers_python if name in OWN_VENV else sys.executable
    try:
        with contextlib.closing(
            Child(name, python, "remote_sides.py", name, server, str(spec))
        ) as side:
            for data in arguments.data:
                tasks = side.ask("tasks", data)
                first = "batch" if "batch" in tasks else "stream"
                for number, task in enumerate([first, *tasks]):
                    side.ask("prepare", data, task)
                    server.reset()
                    round_ = side.ask("run", data, task, arguments.most if number else 0.5)
                    if number:
                        yield data, task, round_ | server.stats()
    except ChildFailedError as error:
        print(error, file=sys.stderr)


def summary(rounds: list[dict[str, Any]], task: str, total: int) -> dict[str, Any]:
    """Medians of the rounds; requests for the whole where an epoch was ended early."""
    share = [
        each["bytes"] / total if task not in ("open", "batch") and not each["whole"] else 1
        for each in rounds
    ]
    return {
        "seconds": statistics.median(each["seconds"] for each in rounds),
        "mb_per_second": statistics.median(
            each["bytes"] / each["seconds"] / 1e6 for each in rounds
        ),
        "requests": round(
            statistics.median(each["requests"] / s for each, s in zip(rounds, share, strict=True))
        ),
        "most_at_once": round(statistics.median(each["most_at_once"] for each in rounds)),
        "whole": all(each["whole"] for each in rounds),
        "rounds": rounds,
    }


def table(sides: dict[str, Any]) -> str:
    rows = (
        [name, *(cell(tasks.get(task), task) for task in TASKS)] for name, tasks in sides.items()
    )
    return grid(["", *HEADS.values()], rows)


def cell(result: dict[str, Any] | None, task: str) -> str:
    if result is None:
        return ""
    requests = f"{result['requests']:,}, {result['most_at_once']}"
    if task in ("open", "batch"):
        return f"{result['seconds']:.2f} s ({requests})"
    speed = result["mb_per_second"]
    shown = f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
    return f"{shown} MB/s ({'' if result['whole'] else 'about '}{requests})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, several = parser.add_argument, partial(str.split, sep=",")
    folder = Path(tempfile.gettempdir()) / "torch_tfrecord_remote"
    add("--directory", type=Path, default=folder)
    add("--sides", type=several, default=[""], help="names, or how they begin: torch,bare")
    add("--data", type=several, default=[*DATA], help="photos,tokens")
    add("--peers-python", help="the interpreter that has webdataset and s3torchconnector")
    add("--rounds", type=int, default=5)
    add("--most", type=float, default=5, help="seconds after which an epoch is ended")
    add("--fraction", type=float, default=1, help="of the records, for a look at the script")
    add("--json", action="store_true", help="print all rounds as JSON in place of the tables")
    add("--update-docs", action="store_true", help="write the tables into docs/remote.md")
    arguments = parser.parse_args()
    names = [name for name in SIDES if any(map(name.startswith, arguments.sides))]
    names = [name for name in names if arguments.peers_python or name not in OWN_VENV]
    root = arguments.directory / f"{arguments.fraction:g}"
    root.mkdir(parents=True, exist_ok=True)
    described = {data: write_set(root, data, arguments.fraction) for data in arguments.data}
    spec = arguments.directory / f"{arguments.fraction:g}.json"
    spec.write_text(json.dumps(described))
    rounds: dict[str, Any] = {data: {name: {} for name in names} for data in arguments.data}
    with range_server(root, latency=LATENCY, bytes_per_second=BANDWIDTH) as server:
        for _ in range(arguments.rounds):
            for name in names:
                for data, task, round_ in measure(arguments, server, spec, name):
                    rounds[data][name].setdefault(task, []).append(round_)
    results = {}
    for data, sides in rounds.items():
        total = sum(sum(file["lengths"]) for file in described[data]["files"])
        results[data] = {
            name: {task: summary(each, task, total) for task, each in tasks.items()}
            for name, tasks in sides.items()
        }
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    for data, sides in results.items():
        print(f"{data}\n\n{table(sides)}\n")
        if arguments.update_docs:
            replace_block(ROOT / "docs" / "remote.md", data, table(sides))


if __name__ == "__main__":
    main()
