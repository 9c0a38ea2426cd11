"""Measures torch_tfrecord beside its peers, each in a process of its own, in turn, on the same
files.

    pip install -e '.[dev,benchmarks]'
    python benchmarks/environments.py                    # the peers, each in a virtual environment of its own
    python benchmarks/compare.py all --photos PHOTOS     # or one of the tables: tabular, tokens, embeddings, raw, ...
    python benchmarks/compare.py all --photos PHOTOS --update-docs
    python benchmarks/compare.py doors --rows ds_i,tokens    # every way into training; rows as workloads.py names them

Before the clock starts every side runs an epoch whose output is compared with ours: the same
values, dtypes, shapes; for random crops the same layout, mean and deviation. A peer that is not
installed is reported as missing. Results go to benchmarks/results.json, where each run replaces the
tables that it measured.
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
from report import (
    NAMES,
    cpu_table,
    door_table,
    provenance,
    replace_block,
    side_table,
    summary_table,
)
from runner import Pace, run_workload
from ways import way_table
from workloads import WORKLOADS, Workload, only_rows

_ROOT = Path(__file__).parent.parent
_TABLES = sorted({workload.table for workload in WORKLOADS.values()})
# The number changes with what drawn.py draws.
_CACHE = Path("~/.cache/torch_tfrecord_benchmarks/corpora-1").expanduser()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables",
        nargs="+",
        choices=[*_TABLES, "docs", "all"],
        metavar="TABLE",
    )
    parser.add_argument(
        "--photos", type=Path, help="folder of .jpg files for the images (default: drawn ones)"
    )
    parser.add_argument(
        "--cache", type=Path, default=_CACHE, help=f"where the files are kept (default {_CACHE})"
    )
    parser.add_argument(
        "--environments", type=Path, default=DEFAULT_FOLDER, help=f"default {DEFAULT_FOLDER}"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=INTERPRETER",
        help="a peer that you have",
    )
    parser.add_argument("--results", type=Path, default=_ROOT / "benchmarks" / "results.json")
    parser.add_argument(
        "--rounds", type=int, default=7, help="measurements of each side (default 7)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="at least, for a measurement (default 1)"
    )
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="of the records, for trying it out (default 1)"
    )
    parser.add_argument(
        "--sides", nargs="+", choices=[*NAMES], default=[*NAMES], help="only these (default all)"
    )
    parser.add_argument(
        "--variants", type=int, default=99, help="only the first of each side (default all)"
    )
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        help="of doors, random and compressed: only these (see workloads.py)",
    )
    parser.add_argument(
        "--update-docs", action="store_true", help="write tables and charts into docs/"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    wanted = {*_TABLES} if "all" in arguments.tables else set(arguments.tables)
    corpora = Corpora(arguments.cache, arguments.photos, arguments.fraction)
    environments = Environments(
        arguments.environments, dict(one.split("=", 1) for one in arguments.python)
    )
    pace = Pace(arguments.rounds, arguments.seconds, 4 * arguments.seconds, os.cpu_count() or 1)
    chosen = dict.fromkeys(arguments.sides, arguments.variants)
    for name, workload in chosen_workloads(wanted, arguments.rows).items():
        print(f"\n== {name}", flush=True)
        result = run_workload(workload, corpora, environments, pace, chosen)
        summary = (
            door_table({name: result})
            if workload.has_doors
            else f"{summary_table({name: result})}\n\n{cpu_table({name: result})}"
        )
        print(summary, side_table({name: result}), sep="\n\n", flush=True)
        if arguments.rows and workload.has_doors:  # a part of a table replaces none
            continue
        results[name] = result
        save(arguments.results, results)
    if arguments.update_docs or "docs" in wanted:
        update_docs(results)


def chosen_workloads(wanted: set[str], rows: list[str] | None) -> dict[str, Workload]:
    """The workloads of the tables, of those with rows of their own only the rows that were asked
    for.
    """
    workloads = {name: workload for name, workload in WORKLOADS.items() if workload.table in wanted}
    if rows is None:
        return workloads
    found = {
        name: only_rows(one, rows) if one.has_doors else one for name, one in workloads.items()
    }
    if not any(found.values()):
        raise SystemExit(
            f"--rows: expected rows or workloads of workloads.py, got {', '.join(rows)}"
        )
    return {name: workload for name, workload in found.items() if workload is not None}


def save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def has_doors(name: str) -> bool:
    return name in WORKLOADS and WORKLOADS[name].has_doors


def is_of(table: str, name: str) -> bool:
    return name in WORKLOADS and WORKLOADS[name].table == table


def update_docs(results: dict[str, Any]) -> None:
    """Rewrite the tables of docs/performance.md and the chart from the results."""
    docs = _ROOT / "docs"
    page = docs / "performance.md"
    others = {name: one for name, one in results.items() if not has_doors(name)}
    compressed = {name: one for name, one in results.items() if is_of("compressed", name)}
    doors = {name: one for name, one in results.items() if name not in compressed}
    draw_comparison(results, docs / "comparison.png")
    replace_block(page, "ways", way_table(results))
    replace_block(page, "summary", f"{summary_table(others, goals=False)}\n\n{provenance(others)}")
    replace_block(page, "cpu", cpu_table(others))
    replace_block(page, "sides", side_table(others))
    for block, measured in {"doors": doors, "compressed": compressed}.items():
        if any(map(has_doors, measured)):
            tables = door_table(measured, goals=False)
            replace_block(page, block, f"{tables}\n\n{provenance(measured, doors=True)}")


if __name__ == "__main__":
    main()
