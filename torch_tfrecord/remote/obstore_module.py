"""The module `obstore` for this process, also in a child that was forked after its parent had read by it.

All of its requests run on threads that the module starts once, and which a fork does not copy: a child that used the
parent's module would wait for ever. A second copy of the compiled module has its own. So such a child loads one, from
memory, which takes 50 ms and 15 MB. (Measured: a new store in the child hangs, too.)
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import threading
from types import ModuleType
from typing import Any

from torch_tfrecord.module_copy import compiled_copy

__all__ = ["obstore_module"]

_NAME = "obstore._obstore"


class _Loaded:
    """What a process has loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_tried = False
        self.module: ModuleType | None = None


_loaded: dict[int, _Loaded] = {}  # by number of the process; those of its forebears come along


def obstore_module() -> Any:
    """The module `obstore` of this process; None where it is not installed, or cannot be loaded."""
    loaded = _loaded.setdefault(os.getpid(), _Loaded())
    with loaded.lock:
        if not loaded.is_tried:
            # Whoever was forked from a process that has it imported cannot know whether it was used there.
            was_forked = multiprocessing.parent_process() is not None and _NAME in sys.modules
            is_first = len(_loaded) == 1 and not was_forked
            with contextlib.suppress(ImportError, OSError):
                loaded.module = importlib.import_module("obstore") if is_first else _own_copy()
            loaded.is_tried = True
        return loaded.module


def _own_copy() -> ModuleType:
    """The package once more, around another copy of what is compiled; what is imported stays as it is."""
    compiled = compiled_copy(_NAME)
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "obstore"}
    sys.modules[_NAME] = compiled
    try:
        return importlib.import_module("obstore")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        sys.modules.update(before)
