"""`tfrecord stats` beside TensorFlow Data Validation on the same files and pandas on the same columns,
and whether its memory grows with the data.

    python benchmarks/stats.py            # a million rows of forty features, and a tenth of them
    python benchmarks/stats.py --tfdv-python TFDV/bin/python --rounds 1

TFDV 1.16 needs Python 3.11 at most, and an environment of its own (`uv pip install
tensorflow-data-validation==1.16.1 dill`; pip does not find its versions). It runs as its guide says:
`generate_statistics_from_tfrecord`. Pandas computes `describe()` and `value_counts()` of each column
from a Parquet file. Each probe is a process of its own, timed from the moment when its packages are
imported; peak memory is the most that it held, without its workers, from the start of Python. Rounds
alternate; figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tables


def write_parquet(folder: Path) -> None:
    import pyarrow.parquet

    if not (folder / "forty.parquet").exists():
        table = tables._dataset(folder).to_arrow()
        pyarrow.parquet.write_table(table, folder / "forty.parquet")


def stats(folder: Path, jobs: int) -> None:
    from index_tools.main import main

    paths = [*map(str, sorted(folder.glob("forty-*.tfrecord")))]
    with contextlib.redirect_stdout(io.StringIO()):
        if main(["stats", *paths, "--json", "--jobs", str(jobs)]):
            raise SystemExit("stats failed")


def pandas(folder: Path) -> None:
    import pandas

    frame = pandas.read_parquet(folder / "forty.parquet")
    frame.describe()
    for name in frame:
        frame[name].value_counts()


PROBES = {
    "stats --jobs 1": lambda folder: stats(folder, 1),
    "stats --jobs 2": lambda folder: stats(folder, 2),
    "pandas": pandas,
}


def tfdv(python: str, folder: Path) -> dict[str, float]:
    """Seconds, without those of importing, and the means by feature."""
    code = (
        "import sys, time, json; import tensorflow_data_validation as t; s = time.perf_counter()\n"
        "r = t.generate_statistics_from_tfrecord(sys.argv[1]); s = time.perf_counter() - s\n"
        "print(json.dumps({'seconds': s, 'mebibytes': 0, 'mean': {'.'.join(f.path.step): f.num_stats.mean "
        "for f in r.datasets[0].features}}))"
    )
    command = [python, "-c", code, str(folder / "forty-*.tfrecord")]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def probe(name: str, folder: Path) -> None:
    if name == "pandas":
        import pandas.api  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    else:
        import index_tools.stats  # noqa: F401
    start = time.perf_counter()
    PROBES[name](folder)
    seconds = time.perf_counter() - start
    # not getrusage: a new program begins with the peak of the one that started it
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(json.dumps({"seconds": seconds, "mebibytes": int(status["VmHWM"].split()[0]) / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "stats"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tfdv-python", help="Python of an environment with TFDV")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        probe(given.probe, given.folder)
        return
    for rows in (given.rows // 10, given.rows):
        folder = given.folder / str(rows)
        tables._write(folder, rows)
        write_parquet(folder)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in PROBES}
        sides = {"TFDV": list[dict[str, float]]()} if given.tfdv_python else {}
        for _ in range(given.rounds):
            if sides:
                sides["TFDV"].append(tfdv(given.tfdv_python, folder))
            for name, rounds in found.items():
                command = [sys.executable, __file__, "--probe", name, "--folder", str(folder)]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rounds.append(json.loads(out.splitlines()[-1]))
        for name, rounds in (found | sides).items():
            seconds, peak = (
                statistics.median(one[key] for one in rounds) for key in ("seconds", "mebibytes")
            )
            speed = rows / seconds
            print(
                f"{rows:9,} rows  {name:14} {seconds:6.2f} s  {speed:9,.0f} rows/s  {peak:5.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
