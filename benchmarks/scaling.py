"""How the cost of a record grows with their number, with the features in one, and with its size."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import repeat_file, write_records
from environments import describe_machine

from torch_tfrecord import (
    FixedLenFeature,
    TFRecordDataset,
    build_index,
    encode_example,
    make_dataloader,
    read_records,
)
from torch_tfrecord.records.index_paths import remove_sidecar

__all__ = ["measure_scaling", "scaling_table"]

RECORDS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
FEATURES = (1, 2, 5, 10, 20, 50, 100, 200)
BATCHES = (16, 64, 256, 1_024, 4_096)
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)

# Bytes of the files for the curve of sizes, and of those for the curve of features.
_TOTAL_BYTES = 100_000_000
_BATCH = 1024
# A call is repeated until then.
_LEAST_SECONDS = 0.2

Calls = dict[str, Callable[[], Any]]


def measure_scaling(folder: Path, rounds: int, fraction: float) -> dict[str, Any]:
    """Seconds a record, medians: JSON with a curve for each of the three questions."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = {"machine": describe_machine()}
    for name, curve in {
        "records": _by_records,
        "features": _by_features,
        "size": _by_size,
        "batch": _by_batch,
    }.items():
        curves[name] = curve(folder, rounds, fraction)
        print(scaling_table({name: curves[name]}), flush=True)
    return curves


def _by_records(folder: Path, rounds: int, fraction: float) -> dict[str, Any]:
    """Records of a float and an integer, about 60 bytes in the file."""
    features = {"x": FixedLenFeature((), torch.float32), "y": FixedLenFeature((), torch.int64)}
    source = folder / "small.tfrecord"
    write_records(source, (encode_example({"x": n / 1000, "y": n}) for n in range(1000)))

    def calls(path: Path) -> Calls:
        return {
            "build the index": lambda: build_index(path),
            "open with an index": lambda: TFRecordDataset(path, features),
            "epoch in order": lambda: _drain(
                make_dataloader(path, _BATCH, features, shuffle=False)
            ),
            "epoch shuffled": lambda: _drain(make_dataloader(path, _BATCH, features, shuffle=True)),
        }

    found = []
    for count in _below(RECORDS, fraction):
        path = folder / f"records-{count}.tfrecord"
        repeat_file(source, path, count // 1000)
        # The longest take many seconds, of which a moment's noise is a small part.
        found.append(_medians(calls(path), count, min(rounds, 3) if count > 1_000_000 else rounds))
        path.unlink()
        remove_sidecar(str(path))
    return _curve("records", _below(RECORDS, fraction), found)


def _by_features(folder: Path, rounds: int, fraction: float) -> dict[str, Any]:
    """Scalars, floats and integers in turn, batches of 1,024."""
    found = []
    for width in FEATURES:
        path, count, features = _scalars(folder, width, fraction)
        loader = make_dataloader(path, _BATCH, features, shuffle=False)
        found.append(
            _medians({"epoch in order": lambda loader=loader: _drain(loader)}, count, rounds)
        )
        _remove(path)
    return _curve("features", FEATURES, found)


def _by_batch(folder: Path, rounds: int, fraction: float) -> dict[str, Any]:
    """40 scalars a record, in batches of several sizes."""
    path, count, features = _scalars(folder, 40, fraction)
    loaders = [make_dataloader(path, size, features, shuffle=False) for size in BATCHES]
    costs = _medians(
        {str(n): lambda loader=loader: _drain(loader) for n, loader in enumerate(loaders)},
        count,
        rounds,
    )
    _remove(path)
    return _curve("batch size", BATCHES, [{"40 scalars": cost} for cost in costs.values()])


def _scalars(
    folder: Path, width: int, fraction: float
) -> tuple[Path, int, dict[str, FixedLenFeature]]:
    """A file of whole batches, the number of its records, and what to read."""
    count = max(int(fraction * _TOTAL_BYTES / 8 / (20 * width)) // _BATCH, 1) * _BATCH
    path = folder / f"features-{width}.tfrecord"
    rows = np.random.default_rng(width).integers(0, 10_000, (_BATCH, width)).tolist()
    examples = [
        encode_example({f"c{n:03}": v if n % 2 else float(v) for n, v in enumerate(row)})
        for row in rows
    ]
    write_records(path, (examples[n % _BATCH] for n in range(count)))
    features = {
        f"c{n:03}": FixedLenFeature((), torch.int64 if n % 2 else torch.float32)
        for n in range(width)
    }
    return path, count, features


def _by_size(folder: Path, rounds: int, fraction: float) -> dict[str, Any]:
    """One list of floats a record, batches of about 1 MB."""
    found = []
    for size in SIZES:
        count = max(int(fraction * _TOTAL_BYTES) // size, 16)
        path = folder / f"size-{size}.tfrecord"
        record = encode_example(
            {"x": np.random.default_rng(size).standard_normal(size // 4, dtype=np.float32)}
        )
        write_records(path, (record for _ in range(count)))
        features = {"x": FixedLenFeature((size // 4,), torch.float32)}
        dataset = TFRecordDataset(path)
        positions = random.Random(size).choices(range(count), k=min(count, 20_000))
        loader = make_dataloader(path, max(1_000_000 // size, 4), features, shuffle=False)
        once: Calls = {
            "read in order, CRC": lambda path=path: deque(read_records(path), maxlen=0),
            "read in order, no CRC": lambda path=path: deque(
                read_records(path, verify_crc=False), maxlen=0
            ),
            "loader to tensors": lambda loader=loader: _drain(loader),
        }
        costs = _medians(once, count, rounds)
        costs |= _medians(
            {
                "ds.raw(i) at random, CRC": lambda raw=dataset.raw, at=positions: deque(
                    map(raw, at), 0
                )
            },
            len(positions),
            3,
        )
        found.append(costs)
        _remove(path)
    return _curve("bytes a record", SIZES, found)


def _drain(loader: Any) -> None:
    deque(loader, maxlen=0)


def _medians(calls: Calls, count: int, rounds: int) -> dict[str, float]:
    """Seconds a record of each call, all in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            done, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < _LEAST_SECONDS:
                call()
                done += count
            times[name].append((time.perf_counter() - begin) / done)
    return {name: statistics.median(values) for name, values in times.items()}


def _curve(label: str, at: tuple[int, ...], found: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "label": label,
        "at": list(at),
        "lines": {name: [one[name] for one in found] for name in found[0]},
    }


def _below(counts: tuple[int, ...], fraction: float) -> tuple[int, ...]:
    return tuple(count for count in counts if count <= max(counts) * fraction) or counts[:1]


def _remove(path: Path) -> None:
    remove_sidecar(str(path))
    for one in (path, path.with_suffix(".idx")):
        one.unlink()


def scaling_table(curves: dict[str, Any]) -> str:
    """A table for each curve, microseconds a record."""
    tables = []
    for curve in curves.values():
        if "lines" not in curve:
            continue
        lines = [f"| {curve['label']} | " + " | ".join(f"{at:,}" for at in curve["at"]) + " |"]
        lines.append("|---|" + "---|" * len(curve["at"]))
        for name, costs in curve["lines"].items():
            lines.append(f"| {name} | " + " | ".join(f"{1e6 * cost:.3g}" for cost in costs) + " |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)
