"""Whom a warning is for: the nearest caller outside this package, and outside the loader that calls it."""

from __future__ import annotations

import os
import sys

__all__ = ["outer_level"]


_TORCH_LOADER = os.path.join(os.sep, "torch", "utils", "data", "")


def outer_level() -> int:
    """The `stacklevel`, for a warning of the calling function, of the nearest caller outside this package.

    Frames of torch's DataLoader and Subset are passed over, too: nobody can change those.
    """
    level, frame = 1, sys._getframe(1)
    folder = os.path.dirname(__file__)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename, folder):
        level, frame = level + 1, frame.f_back
    return level


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(folder) or _TORCH_LOADER in path
