"""Runs all sides of one workload in turn, each in a process of its own, in the environment it is
installed in.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corpus import Corpora
from environments import Environments, describe_machine, versions_in
from outputs import differences
from side import Job
from workloads import Workload

__all__ = ["Pace", "SideFailedError", "SideProcess", "run_workload"]

_FOLDER = Path(__file__).parent
# A slow side's warm-up epoch is compared as far as it gets by then.
_CHECK_SECONDS = 5.0
# Where each variant of ours is a row, of which all but the first one of a kind are cut off.
_DOOR_CHECK_SECONDS = 1.0


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
    workload: Workload,
    corpora: Corpora,
    environments: Environments,
    pace: Pace,
    chosen: dict[str, int],
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
        failed: dict[str, str] = {}
        checks = _check_doors(sides, failed) if workload.has_doors else _check_all(sides)
        rounds: list[list[dict[str, Any]]] = [[] for _ in sides]
        for _ in range(pace.rounds):
            for process, found in zip(sides, rounds, strict=True):
                found.append(process.round(pace.least, pace.most))
        memory = [process.end() for process in sides]
    results = [
        _result(job, found, check, peak, versions_in(environments.python(job.side) or "", job.side))
        for job, found, check, peak in zip(
            [side.job for side in sides], rounds, checks, memory, strict=True
        )
    ]
    return {
        "records": corpora.count(workload.corpus),
        "index_bytes": corpora.index_bytes(workload.corpus),
        "file_bytes": sum(file.stat().st_size for file in _files(path)),
        "machine": describe_machine(),
        "missing": missing,
        "failed": failed,
        "sides": results,
    }


class SideFailedError(Exception):
    """A side's process ended with an error; the text has the end of what it printed."""


class SideProcess:
    """Talks to `serve.py`; one command at a time, and it is idle in between."""

    def __init__(self, python: str, job: Job) -> None:
        self.job = job
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [python, str(_FOLDER / "serve.py"), json.dumps(asdict(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=_FOLDER,
        )
        self._answer()

    def check(self, most: float) -> dict[str, Any]:
        """Run the warm-up epoch, for at most about `most` seconds if it can be cut off, and sum up
        its outputs.
        """
        return self._ask(f"check {most}")

    def round(self, least: float, most: float) -> dict[str, Any]:
        """Run epochs for at least `least` seconds and at most about `most`."""
        return self._ask(f"round {least} {most}")

    def loop(self, least: float, work: float) -> float:
        """Records a second of a loop with `work` seconds of Python a batch, for at least `least`
        seconds.
        """
        found: float = self._ask(f"loop {least} {work}")["per_second"]
        return found

    def end(self) -> dict[str, Any]:
        """Stop; gives the peak memory."""
        memory = self._ask("end")
        self.close()
        return memory

    def close(self) -> None:
        """Make sure that the process is gone."""
        if self._process.poll() is None:
            try:
                self._process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        self._log.close()

    def _ask(self, command: str) -> dict[str, Any]:
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(f"{command}\n")
            stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            self._process.wait()
            self._log.seek(0)
            text = self._log.read()[-3000:]
            raise SideFailedError(
                f"{self.job.side} ({self.job.variant}) on {self.job.workload_name}:\n{text}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def _check_all(sides: list[SideProcess]) -> list[dict[str, Any]]:
    """Run every side's warm-up epoch; all must give what the first one gives, which runs a whole
    epoch.
    """
    checks: list[dict[str, Any]] = []
    for process in sides:
        checks.append(process.check(_CHECK_SECONDS if checks else float("inf")))
        _compare(checks[0], checks[-1], process)
    return [*map(_short, checks)]


def _check_doors(sides: list[SideProcess], failed: dict[str, str]) -> list[dict[str, Any]]:
    """The same in less time; what fails, or gives something else, is noted, and taken out of
    `sides`.
    """
    checks: list[dict[str, Any]] = []
    firsts: dict[str, dict[str, Any]] = {}
    for process in [*sides]:
        job = process.job
        kind = job.workload.kind(job.variant)
        try:
            check = process.check(_DOOR_CHECK_SECONDS if kind in firsts else float("inf"))
            _compare(firsts.setdefault(kind, check), check, process)
            checks.append(check)
        except SideFailedError as error:
            print(error, flush=True)
            failed[f"{job.side}, {job.variant}"] = str(error).strip().splitlines()[-1]
            sides.remove(process)
    return [*map(_short, checks)]


def _compare(first: dict[str, Any], last: dict[str, Any], process: SideProcess) -> None:
    found = differences(first, last, ordered=first["ordered_run"] and last["ordered_run"])
    if last["whole"] and first["whole"] and first["count"] != last["count"]:
        found.append(f"count: {first['count']} and {last['count']}")
    if found:
        job = process.job
        raise SideFailedError(
            f"{job.side} ({job.variant}) on {job.workload_name} differs: {'; '.join(found)}"
        )


def _short(check: dict[str, Any]) -> dict[str, Any]:
    return {**check, "ordered": check["ordered"][str(check["count"])]}


def _result(
    job: Job,
    rounds: list[dict[str, Any]],
    check: dict[str, Any],
    memory: dict[str, Any],
    versions: dict[str, str],
) -> dict[str, Any]:
    each = [one["median_seconds"] for one in rounds if "median_seconds" in one]
    return {
        "side": job.side,
        "variant": job.variant,
        "per_second": statistics.median(one["records"] / one["seconds"] for one in rounds),
        "cpu_seconds_per_1000": statistics.median(
            1000 * one["cpu_seconds"] / one["records"] for one in rounds
        ),
        **({"median_ms": 1000 * statistics.median(each)} if each else {}),
        **memory,
        "rounds": rounds,
        "compared": check,
        "versions": versions,
    }


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _warm_cache(path: Path) -> None:
    for each in _files(path):
        with each.open("rb") as file:
            while file.read(1 << 24):
                pass
