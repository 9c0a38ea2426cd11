"""Compiled modules that do not survive a fork: a child gets a second copy, with variables of its
own.

A fork copies the locks of a module, but not its threads.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from torch_tfrecord.files.per_process import PerProcess

__all__ = ["compiled_copy", "module_of_process"]


class _Loaded:
    """What a process has loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.modules: list[Any] = []  # one, once it was loaded


_loaded: dict[str, PerProcess[_Loaded]] = {}  # by name


def module_of_process(name: str, first: Callable[[], Any], own_copy: Callable[[], Any]) -> Any:
    """What this process uses of a compiled module; loaded once, unless that raises.

    Args:
        name: Name of the module.
        first: Loads it where no other process can have used it.
        own_copy: Loads it in a child that was forked from a process that may have used it.
    """
    processes = _loaded.setdefault(name, PerProcess(_Loaded, keeps_parents=True))
    loaded = processes.get()
    with loaded.lock:
        if not loaded.modules:
            # Whoever was forked from a process that has it imported cannot know whether it was used
            # there.
            was_forked = multiprocessing.parent_process() is not None and name in sys.modules
            loaded.modules.append(own_copy() if was_forked or processes.was_forked else first())
        return loaded.modules[0]


def compiled_copy(name: str) -> ModuleType:
    """Load a compiled module once more, from a copy of its file: what is loaded from the same file
    is the same.

    `sys.modules` is not changed.

    Raises:
        ImportError: There is no such module, or it cannot be loaded twice.
    """
    original = importlib.util.find_spec(name)
    if original is None or original.origin is None:
        raise ImportError(f"no file of {name}")
    content = Path(original.origin).read_bytes()
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create(name), "wb") as file:  # noqa: PTH123 - it has no path
            # new in each process
            return _loaded_from(name, file, content, f"/proc/{os.getpid()}/fd/{file.fileno()}")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        return _loaded_from(name, file, content, file.name)


def _loaded_from(name: str, file: IO[bytes], content: bytes, path: str) -> ModuleType:
    file.write(content)
    file.flush()
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"no module at {path}")
    before = {key: sys.modules[key] for key in (name,) if key in sys.modules}
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    finally:  # some modules register themselves
        sys.modules.pop(name, None)
        sys.modules.update(before)
    return module
