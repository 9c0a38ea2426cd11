"""The progress bar of long work."""

from __future__ import annotations

import threading
from typing import Any

from tqdm import tqdm

__all__ = ["ProgressBar"]


class ProgressBar(tqdm):  # type: ignore[type-arg]
    """tqdm, on a terminal alone, and gone when the work is done.

    Its lock is this process' own. tqdm's is one for all processes, also where no bar is shown: a worker that is killed
    while it holds that one would leave every other process waiting for ever.

    Args:
        args, kwargs: As of tqdm.
    """

    _lock = threading.RLock()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"disable": None, "leave": False, **kwargs})
