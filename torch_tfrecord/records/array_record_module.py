"""The compiled module of `array-record` for this process, also in a child that was forked after its
parent had used it.

A thread of the module (Riegeli's BackgroundCleaner) waits for a lock. A fork copies the lock, but
not the thread: a child that reads by the parent's module follows a pointer into a stack that
another thread may have by now, and crashes. (DataLoader's workers do, also with new readers.) A
second copy of the module has its own.
"""

from __future__ import annotations

import builtins
import importlib
from typing import Any

from torch_tfrecord.files.module_copy import compiled_copy, module_of_process

__all__ = ["array_record_module"]

_NAME = "array_record.python.array_record_module"
_PYBIND = "__pybind11_internals"  # where the classes of all modules that were made with pybind11 are registered


def array_record_module() -> Any:
    """The module for this process.

    Raises:
        ImportError: The package is missing, or cannot be loaded twice.
    """
    return module_of_process(_NAME, _first, _own_copy)


def _first() -> Any:
    try:
        return importlib.import_module(_NAME)
    except ImportError as error:
        raise ImportError(
            "ArrayRecord files need the package array-record: pip install 'torch-tfrecord[arrayrecord]'"
        ) from error


def _own_copy() -> Any:
    hidden = {name: value for name, value in vars(builtins).items() if name.startswith(_PYBIND)}
    for name in hidden:  # else it refuses to register a class again
        delattr(builtins, name)
    try:
        return compiled_copy(_NAME)
    except ImportError as error:
        raise ImportError(
            "array-record cannot be used in a process that was forked after its parent had used it: set "
            'multiprocessing_context="forkserver" of the DataLoader'
        ) from error
    finally:
        vars(builtins).update(hidden)
