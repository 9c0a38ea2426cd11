"""The process of one side: answers "check", "round" and "loop". Started by `runner.py`."""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from child import answer
from outputs import MARK, Columns, Outputs
from side import Job, Side

__all__: list[str] = []

_BLOCK = 256


def check(side: Side, job: Job, most: float) -> dict[str, Any]:
    """The warm-up epoch: its outputs summed up; cut off after `most` seconds where the order makes
    that comparable.
    """
    outputs = Outputs(job.workload.random_columns)
    cut_off = time.perf_counter() + (
        most if side.ordered and not job.workload.random_columns else float("inf")
    )
    whole = True
    items = map(side.columns, side.items())
    for columns in _in_blocks(items) if side.is_single else items:
        outputs.add(columns)
        # before, there may be nothing to compare
        if time.perf_counter() > cut_off and outputs.count >= MARK:
            whole = False
            break
    return {**outputs.summary(), "ordered_run": side.ordered, "whole": whole}


def _in_blocks(samples: Iterable[Columns]) -> Iterator[Columns]:
    """Samples joined: hashing them one by one takes longer."""
    samples = iter(samples)
    while block := [*itertools.islice(samples, _BLOCK)]:
        yield _joined(block)


def _joined(parts: list[Columns]) -> Columns:
    columns = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: np.concatenate(each)
        if isinstance(each[0], np.ndarray)
        else [*itertools.chain.from_iterable(each)]
        for name, each in columns.items()
    }


def timed_round(side: Side, job: Job, least: float, most: float) -> dict[str, float]:
    """Whole epochs until `least` seconds have passed; cut off after `most` seconds, for the
    slow.
    """
    side.prepare()
    cpu_before, begin = _cpu_seconds(), time.perf_counter()
    records = 0
    while time.perf_counter() - begin < least:
        if side.drain is not None:
            side.drain()
            records += job.count
            continue
        for item in side.items():
            records += 1 if side.is_single else side.size(item)
            if time.perf_counter() - begin > most:
                break
    seconds = time.perf_counter() - begin
    return {"records": records, "seconds": seconds, "cpu_seconds": _cpu_seconds() - cpu_before}


def looped(side: Side, least: float, work: float) -> float:
    """Records a second of a training loop that computes in Python for `work` seconds after each
    batch, one epoch after another.
    """
    side.prepare()
    batches = itertools.chain.from_iterable(side.items() for _ in itertools.count())
    records, begin, lead_in = 0, 0.0, 4
    for number, batch in enumerate(batches):
        if number == lead_in:
            records, begin = 0, time.perf_counter()
        records += side.size(batch)
        end = time.thread_time() + work  # the processor's, since a step has so much to do
        while time.thread_time() < end:
            pass
        if number > lead_in and time.perf_counter() - begin > least:
            break
    return records / (time.perf_counter() - begin)


def _cpu_seconds() -> float:
    """Seconds of this process, its workers that ended, and its workers that live."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    stats = (Path(f"/proc/{one.pid}/stat").read_text() for one in multiprocessing.active_children())
    ticks = sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats)
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return seconds + ticks / os.sysconf("SC_CLK_TCK")


def functions() -> dict[str, Any]:
    job = Job(**json.loads(sys.argv[1]))
    side: Side = importlib.import_module(f"sides.{job.side}").open_side(job)
    return {
        "check": partial(check, side, job),
        "round": partial(timed_round, side, job),
        "loop": partial(looped, side),
    }


if __name__ == "__main__":
    answer(functions)
