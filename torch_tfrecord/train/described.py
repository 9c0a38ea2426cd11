"""A dataset as JSON values in a loader's state, to open it again where the program is not at hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from torch_tfrecord.files import is_remote, local_path
from torch_tfrecord.mixing import Mixture
from torch_tfrecord.shown import without_secrets
from torch_tfrecord.tables import TFRecordDataset

__all__ = ["Description", "describe", "open_described"]

Description: TypeAlias = Mapping[str, Any]

_MOST_PATHS = 1000  # of a list; a glob stands for any number


def describe(dataset: object) -> Description | None:
    """What `open_described` needs; None if a dataset cannot be told in a few JSON values.

    That is a `TFRecordDataset` of paths, a slice of one, or a `Mixture` of these by weights.
    """
    if isinstance(dataset, Mixture):
        parts = [describe(part) for part in dataset.datasets]
        arguments = dataset._arguments()
        return None if None in parts or arguments is None else {"datasets": parts, **arguments}
    if type(dataset) is not TFRecordDataset or not isinstance(dataset._positions, range):
        return None
    paths, index_dir = _texts(dataset._paths), _texts(dataset._index_dir or ())
    if paths is None or index_dir is None:
        return None
    part = dataset._positions
    return {"paths": paths, "index_dir": index_dir, "part": [part.start, part.stop, part.step]}


def _texts(paths: object) -> list[str] | None:
    """Paths as text that is the same in any folder."""
    each = paths if isinstance(paths, (list, tuple)) else [paths]
    texts = [local_path(path) for path in each if isinstance(path, (str, os.PathLike))]
    if len(texts) < len(each) or len(texts) > _MOST_PATHS:
        return None
    return [without_secrets(text) if is_remote(text) else os.path.abspath(text) for text in texts]


def open_described(description: Description) -> TFRecordDataset | Mixture:
    """The dataset of a description: its records' bytes.

    Raises:
        FileNotFoundError: The files are no longer there.
    """
    if "datasets" in description:
        arguments = {key: value for key, value in description.items() if key != "datasets"}
        return Mixture([*map(open_described, description["datasets"])], **arguments)
    index_dir = next(iter(description["index_dir"]), None)
    dataset = TFRecordDataset(description["paths"], index_dir=index_dir)
    dataset._positions = range(*description["part"])
    return dataset
