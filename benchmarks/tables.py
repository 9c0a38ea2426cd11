"""Datasets as tables: speed beside `make_dataloader` and Ray's own reader, and the memory that each way
takes.

    python benchmarks/tables.py                            # rows a second and peak memory of each way
    python benchmarks/tables.py --ray-python tfvenv/bin/python  # and Ray's reader, by its TensorFlow

Each probe is a process of its own; peak memory is the most that it held, less what it held when its
packages were imported. Rounds alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_ROWS = 400_000
_MANY_ROWS = 10_000_000
_FILES = 8


def _write(folder: Path, rows: int) -> None:
    from torch_tfrecord import TFRecordWriter

    if (folder / f"forty-{_FILES - 1}.tfrecord").exists():
        return
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(_FILES):
        with TFRecordWriter(folder / f"forty-{file}.tfrecord", write_index=True) as writer:
            for _ in range(rows // _FILES):
                ints, floats = random.integers(1 << 20, size=20), random.random(20)
                row = {f"i{k:02d}": int(value) for k, value in enumerate(ints)}
                writer.write({**row, **{f"f{k:02d}": float(v) for k, v in enumerate(floats)}})


def _write_many(path: Path, rows: int) -> None:
    """As many records, of a thousand different ones, and an index that keeps their labels."""
    from torch_tfrecord import build_index, encode_example
    from torch_tfrecord.records.framing import frame

    if not path.exists():
        block = b"".join(frame(encode_example({"label": n, "x": n / 8})) for n in range(1000))
        with path.open("wb") as file:
            for _ in range(rows // 1000):
                file.write(block)
        build_index(path, columns=["label"])


# Probes: each returns a function that is timed, and gives the number of rows.


def _features() -> dict[str, object]:
    import torch

    from torch_tfrecord import FixedLenFeature

    ints = {f"i{k:02d}": FixedLenFeature((), torch.int64) for k in range(20)}
    return {**ints, **{f"f{k:02d}": FixedLenFeature((), torch.float32) for k in range(20)}}


def _dataset(folder: Path) -> object:
    from torch_tfrecord import TFRecordDataset

    return TFRecordDataset(folder / "forty-*.tfrecord", _features())


def make_dataloader(folder: Path) -> Callable[[], int]:
    from torch_tfrecord import make_dataloader

    ds = _dataset(folder)
    return lambda: sum(len(x["i00"]) for x in make_dataloader(ds, 1024, shuffle=False))


def to_arrow(folder: Path) -> Callable[[], int]:
    ds = _dataset(folder)
    return lambda: ds.to_arrow().num_rows


def iter_arrow(folder: Path) -> Callable[[], int]:
    ds = _dataset(folder)
    return lambda: sum(batch.num_rows for batch in ds.iter_arrow())


def select_1_of_40(folder: Path) -> Callable[[], int]:
    ds = _dataset(folder).select_columns(["i07"])
    return lambda: sum(batch.num_rows for batch in ds.iter_arrow())


def to_pandas(folder: Path) -> Callable[[], int]:
    ds = _dataset(folder)
    return lambda: len(ds.to_pandas())


def scan_tasks(folder: Path) -> Callable[[], int]:
    tasks = _dataset(folder).scan_tasks(16 << 20)
    return lambda: sum(batch.num_rows for task in tasks for batch in task.read())


def write_arrow(folder: Path) -> Callable[[], int]:
    from torch_tfrecord import write_arrow

    table = _dataset(folder).to_arrow(range(20_000))
    return lambda: len(write_arrow(table, folder / "written.out")) * len(table)


def polars_sum(folder: Path) -> Callable[[], int]:
    import polars

    from torch_tfrecord.engines.polars import scan_tfrecord

    lazy = scan_tfrecord(str(folder / "forty-*.tfrecord"), _features())
    query = lazy.select(polars.col("i00").sum(), polars.len().alias("n"))
    return lambda: query.collect(engine="streaming")["n"].item()


def dask_sum(folder: Path) -> Callable[[], int]:
    import dask

    from torch_tfrecord.engines.dask import to_dataframe

    frame = to_dataframe(str(folder / "forty-*.tfrecord"), _features(), target_bytes=16 << 20)

    def run() -> int:
        with dask.config.set(scheduler="threads"):
            return int(frame["i00"].count().compute())

    return run


def duckdb_10_million(folder: Path) -> Callable[[], int]:
    import duckdb
    import torch

    from torch_tfrecord import FixedLenFeature, TFRecordDataset

    features = {
        "label": FixedLenFeature((), torch.int64),
        "x": FixedLenFeature((), torch.float32),
    }
    ds = TFRecordDataset(folder / "many.tfrecord", features)
    query = "select label, count(*), sum(x) from ds group by 1"

    def run() -> int:
        assert ds is not None  # DuckDB finds it by its name among this function's variables
        return sum(count for _, count, _ in duckdb.sql(query).fetchall())

    return run


def where_10_million(folder: Path) -> Callable[[], int]:
    from torch_tfrecord import TFRecordDataset

    ds = TFRecordDataset(folder / "many.tfrecord")

    def run() -> int:
        assert len(ds.where("label", 3)) == _MANY_ROWS // 1000
        return _MANY_ROWS

    return run


def ray_ours(folder: Path) -> Callable[[], int]:
    from torch_tfrecord.engines.ray import read_tfrecords

    _start_ray()
    paths = str(folder / "forty-*.tfrecord")
    return lambda: _consumed(read_tfrecords(paths, _features(), override_num_blocks=_FILES))


def ray_own(folder: Path) -> Callable[[], int]:
    import ray

    _start_ray()
    paths = sorted(map(str, folder.glob("forty-*.tfrecord")))
    return lambda: _consumed(ray.data.read_tfrecords(paths, override_num_blocks=_FILES))


def _start_ray() -> None:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.range(4, override_num_blocks=2).map(lambda row: row).materialize()  # its workers


def _consumed(dataset: object) -> int:
    return sum(batch.num_rows for batch in dataset.iter_batches(batch_format="pyarrow"))


# A probe's process, and all of them.

PROBES = {
    probe.__name__: probe
    for probe in (
        make_dataloader,
        to_arrow,
        iter_arrow,
        select_1_of_40,
        to_pandas,
        scan_tasks,
        write_arrow,
        polars_sum,
        dask_sum,
        duckdb_10_million,
        where_10_million,
        ray_ours,
        ray_own,
    )
}


def probe(name: str, folder: Path) -> None:
    if "ray" not in name:
        _dataset(folder).to_arrow(range(1))  # imports what the ways need
    run = PROBES[name](folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    rows = run()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"rows": rows, "seconds": seconds, "mebibytes": peak / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "tables"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=_ROWS)
    parser.add_argument("--only", nargs="*", default=[*PROBES])
    parser.add_argument("--ray-python", default="", help="a Python with TensorFlow and Ray")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        return probe(given.probe, given.folder)
    _write(given.folder, given.rows)
    if any("10_million" in name for name in given.only):
        _write_many(given.folder / "many.tfrecord", _MANY_ROWS)
    names = [name for name in given.only if name != "ray_own" or given.ray_python]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name in names:
            python = given.ray_python if name == "ray_own" else sys.executable
            command = [python, __file__, "--probe", name, "--folder", str(given.folder)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[name].append(json.loads(out.splitlines()[-1]))
    for name, rounds in found.items():
        speed = statistics.median(one["rows"] / one["seconds"] for one in rounds)
        peak = statistics.median(one["mebibytes"] for one in rounds)
        print(f"{name:20} {speed:12,.0f} rows/s  {peak:7.0f} MiB", flush=True)
    return None


if __name__ == "__main__":
    main()
