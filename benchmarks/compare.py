"""Measures torch_tfrecord beside its peers, each in a process of its own, in turn, on the same
files.

    pip install -e '.[dev,benchmarks]'
    python benchmarks/environments.py                    # the peers, each in a virtual environment of its own
    python benchmarks/compare.py all --photos PHOTOS     # or whole, doors, random, compressed, writing
    python benchmarks/compare.py all --photos PHOTOS --update-docs
    python benchmarks/compare.py doors --rows ds_i,tokens    # rows as workloads.py names them

Before the clock starts every side runs an epoch whose output is compared with ours: the same
values, dtypes, shapes; for random crops the same layout, mean and deviation. A peer that is not
installed is reported as missing. Results go to benchmarks/results.json, where each run replaces the
workloads that it measured.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from chart import draw_comparison
from corpus import Corpora
from environments import DEFAULT_FOLDER, Environments
from report import NAMES, provenance, replace_block, table
from runner import Pace, run_workload
from ways import way_table
from workloads import WORKLOADS, only_rows

_ROOT = Path(__file__).parent.parent
_TABLES = sorted({workload.table for workload in WORKLOADS.values()})
# The number changes with what drawn.py draws.
_CACHE = Path("~/.cache/torch_tfrecord_benchmarks/corpora-1").expanduser()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("tables", nargs="+", choices=[*_TABLES, "docs", "all"], metavar="TABLE")
    add("--photos", type=Path, help="folder of .jpg files for the images (default: drawn ones)")
    add("--cache", type=Path, default=_CACHE, help=f"where the files are kept (default {_CACHE})")
    add("--environments", type=Path, default=DEFAULT_FOLDER, help=f"default {DEFAULT_FOLDER}")
    add("--python", action="append", default=[], metavar="PEER=INTERPRETER", help="one you have")
    add("--results", type=Path, default=_ROOT / "benchmarks" / "results.json")
    add("--rounds", type=int, default=7, help="measurements of each side (default 7)")
    add("--seconds", type=float, default=1.0, help="at least, for a measurement (default 1)")
    add("--fraction", type=float, default=1.0, help="of the records, for trying it out (default 1)")
    add("--sides", nargs="+", choices=[*NAMES], default=[*NAMES], help="only these (default all)")
    add("--rows", type=lambda text: text.split(","), help="only these (see workloads.py)")
    add("--update-docs", action="store_true", help="write tables and chart into docs/")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    kept = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    results = {name: one for name, one in kept.items() if name in WORKLOADS}
    corpora = Corpora(arguments.cache, arguments.photos, arguments.fraction)
    environments = Environments(
        arguments.environments, dict(one.split("=", 1) for one in arguments.python)
    )
    pace = Pace(arguments.rounds, arguments.seconds, 4 * arguments.seconds, os.cpu_count() or 1)
    wanted = _TABLES if "all" in arguments.tables else arguments.tables
    for name, workload in WORKLOADS.items():
        chosen = only_rows(workload, arguments.rows) if arguments.rows else workload
        if workload.table not in wanted or chosen is None:
            continue
        print(f"\n== {name}", flush=True)
        result = run_workload(chosen, corpora, environments, pace, arguments.sides)
        print(table({name: result}, goals=True), flush=True)
        print(*(f"missing: {side}" for side in result["missing"]), sep="\n", flush=True)
        if not arguments.rows:  # a part of a table replaces none
            results[name] = result
            arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.update_docs or "docs" in arguments.tables:
        update_docs(results)


def update_docs(results: dict[str, Any]) -> None:
    """Rewrite the tables of docs/performance.md and the chart from the results."""
    docs = _ROOT / "docs"
    draw_comparison(results, docs / "comparison.png")
    replace_block(docs / "performance.md", "ways", way_table(results))
    for block in _TABLES:
        measured = {name: one for name, one in results.items() if WORKLOADS[name].table == block}
        if measured:
            replace_block(docs / "performance.md", block, table(measured))
    replace_block(docs / "performance.md", "measured", provenance(results))


if __name__ == "__main__":
    main()
