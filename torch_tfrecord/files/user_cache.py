"""The folder of the user's cache: indexes that cannot lie beside their data, copies of
remote files.
"""

from __future__ import annotations

import os

__all__ = ["cache_dir", "remote_folder"]


def cache_dir() -> str:
    """The folder of the user's cache that indexes go to where the data's own cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "torch_tfrecord")


def remote_folder() -> str:
    """The folder that copies of remote files go to where the user named none."""
    return os.path.join(cache_dir(), "remote")
