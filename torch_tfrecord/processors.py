"""How many processors this process may use."""

from __future__ import annotations

import os

__all__ = ["num_processors"]


def num_processors() -> int:
    """Those that the system lets this process use, where it says so (Linux), else all of the
    machine.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
