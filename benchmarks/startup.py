"""What comes before the first batch, and memory over many epochs; each probe in a fresh process."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from corpus import Corpora, write_records
from environments import describe_machine

from torch_tfrecord import build_index, encode_example
from torch_tfrecord.records.index_paths import sidecar_path, write_sidecar

__all__ = ["measure_startup", "startup_table"]

_SHARDS = 1_000
_RECORDS_A_SHARD = 10_000
_EPOCHS = 20


def measure_startup(folder: Path, rounds: int, fraction: float) -> dict[str, Any]:
    """Import, opening 1,000 shards of 10,000 records with ready indexes, memory over 20 epochs in
    workers: JSON.
    """
    shards = _shards(folder, max(int(_SHARDS * fraction), 2))
    embeddings = Corpora(folder, None, fraction).path("embeddings")
    found = {
        "machine": describe_machine(),
        "import": _median([_probe("import") for _ in range(rounds)]),
        "open": _median([_probe("open", str(shards)) for _ in range(rounds)]),
        "epochs": _probe("epochs", str(embeddings), str(_EPOCHS)),
    }
    print(startup_table(found), flush=True)
    return found


def _probe(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).parent / "probe.py"), *arguments]
    result: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return result


def _median(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def _shards(folder: Path, count: int) -> Path:
    """A folder of shards with the same records, each with its own index."""
    place = folder / f"shards-{count}"
    place.mkdir(parents=True, exist_ok=True)
    source = folder / "shard.tfrecord"
    write_records(source, (encode_example({"y": n}) for n in range(_RECORDS_A_SHARD)))
    content = source.read_bytes()
    for number in range(count):
        path = place / f"train-{number:05}-of-{count:05}.tfrecord"
        if not Path(sidecar_path(str(path))).exists():
            path.write_bytes(content)
            write_sidecar(sidecar_path(str(path)), build_index(path).to_bytes())
    return place


def startup_table(found: dict[str, Any], *, goals: bool = True) -> str:
    """The figures, with goals beside what we want."""
    opened, epochs = found["open"], found["epochs"]
    own, workers = epochs["own_mib"], epochs["workers_mib"]
    rows = [
        (
            "`import torch_tfrecord`, after torch and torchvision",
            f"{1000 * found['import']['seconds']:.0f} ms",
            "100 ms",
        ),
        ("the same, with all its names", f"{1000 * found['import']['all_seconds']:.0f} ms", "-"),
        ("memory of it", f"{found['import']['mib']:.0f} MiB", "-"),
        (
            f"opening {opened['shards']:,.0f} shards, {opened['records']:,.0f} records, indexes ready",
            f"{opened['seconds']:.2f} s",
            "1 s",
        ),
        ("memory of it", f"{opened['mib']:.0f} MiB", "200 MiB"),
        ("first record read from it", f"{1000 * opened['first_read_seconds']:.2f} ms", "-"),
        (
            f"two workers together, after epoch 2 and {len(workers)}",
            f"{workers[1]:.0f} and {workers[-1]:.0f} MiB",
            "flat",
        ),
        (
            f"the training process, after epoch 2 and {len(own)}",
            f"{own[1]:.0f} and {own[-1]:.0f} MiB",
            "flat",
        ),
    ]
    table = [("what", "measured", "wanted below"), ("---",) * 3, *rows]
    return "\n".join(f"| {' | '.join(row if goals else row[:2])} |" for row in table)
