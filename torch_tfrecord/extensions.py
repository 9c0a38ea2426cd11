"""The objects that extensions attach to the core, looked up by name, so that the core imports none of them."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

__all__ = ["attached", "is_there"]


@cache
def attached(room: str, name: str) -> Any:
    """An object that an extension attaches at one of the core's seams; the caller's room defines
    its Protocol.

    Args:
        room: Folder of the extension.
        name: The object's name at its door.

    Raises:
        ImportError: The extension is not there.

    Example:
        >>> from torch_tfrecord.extensions import attached
        >>> attached("media", "Image").__name__
        'Image'
    """
    door = f"torch_tfrecord.{room}"
    try:
        return getattr(importlib.import_module(door), name)
    except ModuleNotFoundError as error:
        if error.name != door:
            raise
        raise ImportError(
            f"expected the extension {door}, which is not installed", name=door
        ) from None


@cache
def is_there(room: str) -> bool:
    """Whether an extension is there, for what is only quicker or more with it."""
    return importlib.util.find_spec(f"torch_tfrecord.{room}") is not None
