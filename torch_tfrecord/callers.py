"""Whom a warning is for: the nearest caller outside this package."""

from __future__ import annotations

import os
import sys

__all__ = ["outer_level"]


def outer_level() -> int:
    """The `stacklevel`, for a warning of the calling function, of the nearest caller outside this package."""
    level, frame = 1, sys._getframe(1)
    folder = os.path.dirname(__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folder):
        level, frame = level + 1, frame.f_back
    return level
