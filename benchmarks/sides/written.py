"""How a side writes rows: to a file in memory where there is such a folder, which it then reads itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace

from side import Job, Side

__all__ = ["side_that_writes"]


def side_that_writes(job: Job, write: Callable[[str], object], read: Callable[[Job], Side]) -> Side:
    """Writes all rows again and again; what is compared is what the side reads from them.

    Args:
        job: What to run.
        write: Makes the file of this path.
        read: Opens the side that reads a job's file.
    """
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = os.path.join(name, "rows.tfrecord")
        write(path)
        side = read(replace(job, path=path))
        columns = [side.columns(item) for item in side.items()]
    file = tempfile.NamedTemporaryFile(dir=folder, suffix=".tfrecord")  # noqa: SIM115 - goes with the process
    return Side(lambda: columns, lambda one: one, drain=lambda: write(file.name))
