"""What the figures were measured on."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["describe"]


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system, and how busy the machine was: JSON."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "date": now.isoformat(timespec="minutes"),
    }


def _first_value(path: str, key: str) -> str | None:
    if not Path(path).exists():
        return None
    lines = (line.split(":", 1) for line in Path(path).read_text().splitlines() if line.startswith(key))
    return next((parts[1].strip() for parts in lines), None)
