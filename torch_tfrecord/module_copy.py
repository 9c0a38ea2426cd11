"""A second copy of a compiled module, with variables of its own.

A fork copies the locks of a module, but not its threads, so that a child may have to use a copy.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import IO

__all__ = ["compiled_copy"]


def compiled_copy(name: str) -> ModuleType:
    """Load a compiled module once more, from a copy of its file: what is loaded from the same file is the same.

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
            return _loaded_from(name, file, content, f"/proc/{os.getpid()}/fd/{file.fileno()}")  # new in each process
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
