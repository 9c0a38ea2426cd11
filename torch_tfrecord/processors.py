"""How many processors this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["num_allowed", "num_processors"]


_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # a container's: microseconds in each so many, or "max"


def num_processors() -> int:
    """Those that the system lets this process use, where it says so (Linux), else all of the
    machine; in a container no more than its limit of processor time.
    """
    found = num_allowed()
    with suppress(OSError, ValueError):
        time, period = map(int, _LIMIT.read_text().split())
        found = min(found, -(-time // period))
    return found


def num_allowed(process: int = 0) -> int:
    """Those that a process, or this one, is bound to, where the system says so (Linux), else all."""
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(process))
    return os.cpu_count() or 1
