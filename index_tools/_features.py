"""The option ``--features``: the specs that a verb reads records with."""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Sequence
from typing import Any

from torch_tfrecord import infer_features
from torch_tfrecord.columns import RecordFeatures
from torch_tfrecord.shown import shown_value

__all__ = ["add_features", "load_code", "load_features"]


def add_features(parser: argparse.ArgumentParser) -> None:
    """Add the option --features."""
    parser.add_argument(
        "--features",
        metavar="FILE.py",
        help="Python code that assigns `features`, such as `tfrecord show` prints; it is run "
        "(default: inferred from some records)",
    )


def load_features(source: str | None, paths: Sequence[str], num_records: int = 100) -> Any:
    """The features of an option, or those inferred from some records: see `load_code`."""
    return load_code(source, paths, num_records)["features"]


def load_code(source: str | None, paths: Sequence[str], num_records: int = 100) -> dict[str, Any]:
    """The names that an option's code assigns; `features` alone where there is no code.

    Args:
        source: A file of Python code, or None.
        paths: The files whose records are looked at.
        num_records: How many of large files.

    Raises:
        ValueError: The code fails, or does not assign features.
    """
    if source is None:
        return {"features": infer_features(list(paths), num_records=num_records)}
    try:
        code = runpy.run_path(source)
    except OSError:
        raise
    except Exception as error:  # whatever the code does
        raise ValueError(f"{source}: {type(error).__name__}: {error}") from error
    found = code.get("features")
    if not isinstance(found, RecordFeatures):
        raise ValueError(
            f"{source}: expected code that assigns `features`, a dict of specs, got {shown_value(found)}"
        )
    return code
