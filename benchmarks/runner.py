"""Runs all sides of one workload in turn, each in a process of its own, in the environment it is
installed in.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from child import Child, ChildFailedError
from corpus import Corpora
from environments import Environments, describe_machine, versions_in
from outputs import differences
from side import Job
from workloads import Workload

__all__ = ["Pace", "run_workload", "start"]

# The first variant of a kind runs a whole epoch before the clock starts; the others are compared
# as far as they get.
_CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class Pace:
    """How long to measure.

    Args:
        rounds: How many of each side.
        least: Seconds of a round; epochs are repeated until then.
        most: Seconds after which an epoch is cut off.
        threads: For sides that are told a number of threads.
    """

    rounds: int = 7
    least: float = 1.0
    most: float = 4.0
    threads: int = 2


def start(python: str, job: Job) -> Child:
    """The process of a side: `serve.py` says what it can be asked."""
    name = f"{job.side} ({job.variant}) on {job.workload_name}"
    return Child(name, python, "serve.py", json.dumps(asdict(job)))


def run_workload(
    workload: Workload,
    corpora: Corpora,
    environments: Environments,
    pace: Pace,
    chosen: Collection[str],
) -> dict[str, Any]:
    """Check that all sides give the same, then time them, round by round.

    Args:
        chosen: The sides that may run.

    Returns:
        JSON: the file, each side's rounds and median, the peers that are missing, and the variants that failed or gave
        another output than the first of their kind.
    """
    path, count = corpora.path(workload.corpus), corpora.count(workload.corpus)
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    _warm_cache(files)
    pythons = {side: environments.python(side) for side in workload.variants}
    failed: dict[str, str] = {}
    sides: list[tuple[Job, Child, dict[str, Any]]] = []
    firsts: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for side, variants in workload.variants.items():
            for variant in variants if side in chosen else ():
                if (python := pythons[side]) is None:
                    continue
                job = Job(side, workload.name, variant, str(path), count, pace.threads)
                try:
                    process = start(python, job)
                    stack.callback(process.close)
                    sides.append((job, process, _checked(job, process, firsts)))
                except ChildFailedError as error:
                    print(error, flush=True)
                    failed[f"{side}, {variant}"] = str(error).strip().splitlines()[-1]
        rounds: list[list[dict[str, Any]]] = [[] for _ in sides]
        for _ in range(pace.rounds):
            for (_, process, _), found in zip(sides, rounds, strict=True):
                found.append(process.ask("round", pace.least, pace.most))
    return {
        "records": count,
        "file_bytes": sum(file.stat().st_size for file in files),
        "machine": describe_machine(),
        "missing": [side for side, python in pythons.items() if python is None],
        "failed": failed,
        "sides": [
            _result(job, found, check, versions_in(pythons[job.side] or "", job.side))
            for (job, _, check), found in zip(sides, rounds, strict=True)
        ],
    }


def _checked(job: Job, process: Child, firsts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The output of the warm-up epoch, if it is what the first of its kind gave."""
    kind = job.workload.kind(job.variant)
    check = process.ask("check", _CHECK_SECONDS if kind in firsts else float("inf"))
    first = firsts.setdefault(kind, check)
    found = differences(first, check, ordered=first["ordered_run"] and check["ordered_run"])
    if check["whole"] and first["whole"] and first["count"] != check["count"]:
        found.append(f"count: {first['count']} and {check['count']}")
    if found:
        raise ChildFailedError(
            f"{job.side} ({job.variant}) on {job.workload_name} differs: {'; '.join(found)}"
        )
    return {**check, "ordered": check["ordered"][str(check["count"])]}


def _result(
    job: Job, rounds: list[dict[str, Any]], check: dict[str, Any], versions: dict[str, str]
) -> dict[str, Any]:
    return {
        "side": job.side,
        "variant": job.variant,
        "per_second": statistics.median(one["records"] / one["seconds"] for one in rounds),
        "cpu_seconds_per_1000": statistics.median(
            1000 * one["cpu_seconds"] / one["records"] for one in rounds
        ),
        "rounds": rounds,
        "compared": check,
        "versions": versions,
    }


def _warm_cache(files: list[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
