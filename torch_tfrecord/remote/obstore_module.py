"""The module `obstore` for this process, also in a child that was forked after its parent had read by it.

All of its requests run on threads that the module starts once, and which a fork does not copy: a child that used the
parent's module would wait for ever. A second copy of the compiled module has its own. So such a child loads one, from
memory, which takes 50 ms and 15 MB. (Measured: a new store in the child hangs, too.)
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import IO, Any

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
    compiled = _compiled_copy()
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "obstore"}
    sys.modules[_NAME] = compiled
    try:
        return importlib.import_module("obstore")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        sys.modules.update(before)


def _compiled_copy() -> ModuleType:
    """From a copy of the file: what is loaded from the same file is the same."""
    original = importlib.util.find_spec(_NAME)
    if original is None or original.origin is None:
        raise ImportError(f"no file of {_NAME}")
    content = Path(original.origin).read_bytes()
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("obstore"), "wb") as file:  # noqa: PTH123 - it has no path
            return _loaded_from(file, content, f"/proc/self/fd/{file.fileno()}")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        return _loaded_from(file, content, file.name)


def _loaded_from(file: IO[bytes], content: bytes, path: str) -> ModuleType:
    file.write(content)
    file.flush()
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"no module at {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
