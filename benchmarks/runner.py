"""Runs all sides of one workload in turn."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus import Corpora
from environments import Environments, versions_in
from machine import describe
from outputs import differences
from process import SideFailedError, SideProcess
from side import Job
from workloads import Workload

__all__ = ["Pace", "run_workload"]


# A slow side's warm-up epoch is compared as far as it gets by then.
_CHECK_SECONDS = 5.0


@dataclass(frozen=True)
class Pace:
    """How long to measure.

    Args:
        rounds: Of each side.
        least: Seconds of a round; epochs are repeated until then.
        most: Seconds after which an epoch is cut off.
        threads: For sides that are told a number of threads.
    """

    rounds: int = 7
    least: float = 1.0
    most: float = 4.0
    threads: int = 2


def run_workload(
    workload: Workload, corpora: Corpora, environments: Environments, pace: Pace, chosen: dict[str, int]
) -> dict[str, Any]:
    """Check that all sides give the same, then time them, round by round.

    Args:
        chosen: The sides that may run, and how many of their variants.

    Returns:
        JSON: the file, each side's rounds and median, and the peers that are missing.

    Raises:
        SideFailedError: A side failed, or gives another output than ours.
    """
    path = corpora.path(workload.corpus)
    _warm_cache(path)
    missing = [side for side in workload.variants if environments.python(side) is None]
    jobs = [
        Job(side, workload.name, variant, str(path), corpora.count(workload.corpus), pace.threads)
        for side, variants in workload.variants.items()
        if side not in missing
        for variant in variants[: chosen.get(side, 0)]
    ]
    with contextlib.ExitStack() as stack:
        sides = []
        for job in jobs:
            process = SideProcess(environments.python(job.side) or "", job)
            stack.callback(process.close)
            sides.append(process)
        checks = _check_all(sides)
        rounds: list[list[dict[str, Any]]] = [[] for _ in sides]
        for _ in range(pace.rounds):
            for process, found in zip(sides, rounds, strict=True):
                found.append(process.round(pace.least, pace.most))
        memory = [process.end() for process in sides]
    results = [
        _result(job, found, check, peak, versions_in(environments.python(job.side) or "", job.side))
        for job, found, check, peak in zip(jobs, rounds, checks, memory, strict=True)
    ]
    return {
        "records": corpora.count(workload.corpus),
        "file_bytes": path.stat().st_size,
        "machine": describe(),
        "missing": missing,
        "sides": results,
    }


def _check_all(sides: list[SideProcess]) -> list[dict[str, Any]]:
    """Run every side's warm-up epoch; all must give what the first one gives, which runs a whole epoch."""
    checks: list[dict[str, Any]] = []
    for process in sides:
        checks.append(process.check(_CHECK_SECONDS if checks else float("inf")))
        first, last = checks[0], checks[-1]
        found = differences(first, last, ordered=first["ordered_run"] and last["ordered_run"])
        if last["whole"] and first["count"] != last["count"]:
            found.append(f"count: {first['count']} and {last['count']}")
        if found:
            job = process.job
            raise SideFailedError(f"{job.side} ({job.variant}) on {job.workload_name} differs: {'; '.join(found)}")
    return [{**check, "ordered": check["ordered"][str(check["count"])]} for check in checks]


def _result(
    job: Job, rounds: list[dict[str, Any]], check: dict[str, Any], memory: dict[str, Any], versions: dict[str, str]
) -> dict[str, Any]:
    return {
        "side": job.side,
        "variant": job.variant,
        "per_second": statistics.median(one["records"] / one["seconds"] for one in rounds),
        "cpu_seconds_per_1000": statistics.median(1000 * one["cpu_seconds"] / one["records"] for one in rounds),
        **memory,
        "rounds": rounds,
        "compared": check,
        "versions": versions,
    }


def _warm_cache(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
