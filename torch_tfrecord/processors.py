"""How many processors this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["num_processors"]


_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds in each so many, or "max"


def num_processors() -> int:
    """Those that the system lets this process use, where it says so (Linux), else all of the
    machine; in a container no more than its limit of processor time.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(OSError, ValueError):
        time, period = map(int, _LIMIT.read_text().split())
        found = min(found or 1, -(-time // period))
    return found or 1
