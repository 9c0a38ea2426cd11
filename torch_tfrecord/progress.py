"""The progress bar for long work."""

from __future__ import annotations

import threading
from typing import Any

from tqdm import tqdm

__all__ = ["ProgressBar"]


class ProgressBar(tqdm):  # type: ignore[type-arg]
    """tqdm, shown only on a terminal, and removed when the work is done.

    It has its own lock in each process. tqdm shares one lock between all processes, even if no bar
    is shown: if a worker is killed while it has that lock, every other process waits forever.

    Args:
        args, kwargs: As for tqdm.
    """

    _lock = threading.RLock()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"disable": None, "leave": False, **kwargs})
