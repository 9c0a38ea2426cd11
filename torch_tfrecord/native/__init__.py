"""The optional compiled core: each of its functions has a Python fallback with the same results.

The compiled parts are loops over bytes: frames and checksums (`frames`), Examples to columns
(`columns`). They work on bytes, numbers and arrays, and know nothing of file names, features or
torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType

from torch_tfrecord.errors import optional_import, warn_once

__all__ = [
    "PURE_PYTHON",
    "fallback_reason",
    "has_native",
    "how_to_install",
    "native_module",
    "optional_module",
]

_FOLDER = Path(__file__).parents[2]

# Any value but "" and "0" forces the Python fallback.
PURE_PYTHON = "TORCH_TFRECORD_PURE_PYTHON"


def has_native() -> bool:
    """Whether the compiled core is used: it was built, and TORCH_TFRECORD_PURE_PYTHON is not set.

    Without it, the Python fallback gives the same results, but slower; a warning says how to get
    it. The environment is read at the first call.

    Example:
        >>> isinstance(has_native(), bool)
        True
    """
    return native_module("frames") is not None and native_module("columns") is not None


@cache
def native_module(name: str) -> ModuleType | None:
    """A compiled module by name, or None for the Python fallback; warns once if the core was never
    built.

    Called at first use, not at import: importing the package reads no environment and does not
    warn.
    """
    if _is_forced_off():
        return None
    module = _load(name)
    if module is None:
        warn_once(
            f"torch_tfrecord, imported from {_FOLDER}, runs without its compiled core: everything works, but slower. "
            f"Install a C compiler, then {how_to_install()}; or set {PURE_PYTHON}=1 to silence this warning."
        )
    return module


@cache
def optional_module(name: str) -> ModuleType | None:
    """`native_module` without a warning, for modules that need more than a compiler: `jpeg` needs
    libjpeg-turbo.
    """
    return None if _is_forced_off() else _load(name)


def fallback_reason(name: str) -> str | None:
    """Why a compiled module is not used, as readable text; None if it is used."""
    if _is_forced_off():
        return f"{PURE_PYTHON} is set"
    if _load(name) is not None:
        return None
    full_name = f"{__name__}.{name}"
    if importlib.util.find_spec(full_name) is None:
        return "not built"
    try:  # once more, to get the error
        importlib.import_module(full_name)
    except ImportError as error:
        return f"built, but does not load ({error})"
    return "built, but did not load before"


def how_to_install() -> str:
    """The command that compiles the package: in its source folder, if Python has found it there."""
    if (_FOLDER / "setup.py").is_file():
        return f"pip install -e {shlex.quote(str(_FOLDER))}"
    return "pip install --force-reinstall --no-deps --no-binary torch-tfrecord torch-tfrecord"


@cache
def _is_forced_off() -> bool:
    return os.environ.get(PURE_PYTHON, "") not in ("", "0")


@cache
def _load(name: str) -> ModuleType | None:
    return optional_import(f"torch_tfrecord.native.{name}", "its Python fallback is slower")
