"""The module `obstore` for this process, also in a child that was forked after its parent had read
by it.

All of its requests run on threads that the module starts once, and which a fork does not copy: a
child that used the parent's module would wait for ever. A second copy of the compiled module has
its own. So such a child loads one, from memory, which takes 50 ms and 15 MB. (Measured: a new store
in the child hangs, too.)
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from torch_tfrecord.files.module_copy import compiled_copy, module_of_process

__all__ = ["obstore_module"]

_NAME = "obstore._obstore"


def obstore_module() -> Any:
    """The module `obstore` of this process; None where it is not installed, or cannot be loaded."""
    first = partial(importlib.import_module, "obstore")
    return module_of_process(_NAME, partial(_or_none, first), partial(_or_none, _own_copy))


def _or_none(load: Callable[[], ModuleType]) -> ModuleType | None:
    with contextlib.suppress(ImportError, OSError):
        return load()
    return None


def _own_copy() -> ModuleType:
    """The package once more, around another copy of what is compiled; what is imported stays as it
    is.
    """
    compiled = compiled_copy(_NAME)
    before = {
        name: sys.modules.pop(name)
        for name in [*sys.modules]
        if name.partition(".")[0] == "obstore"
    }
    sys.modules[_NAME] = compiled
    try:
        return importlib.import_module("obstore")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
            del sys.modules[name]
        sys.modules.update(before)
