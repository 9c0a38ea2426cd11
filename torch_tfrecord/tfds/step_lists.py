"""One step's part of the lists of an episode, and what tells the number of steps: pure, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import torch_tfrecord.tfds.features as f
from torch_tfrecord.protobuf.example import encode_example, parse_message
from torch_tfrecord.tfds.leaf_table import LeafPlace, make_element

__all__ = ["as_record", "list_keys", "one_step", "values_per_step"]


def values_per_step(leaves: Sequence[LeafPlace]) -> dict[str, int]:
    """Key of each feature of the steps -> values of one step in its list; 0 where the list alone does not tell it."""
    return {leaf.path: _per_step(leaf) for leaf in leaves}


def _per_step(leaf: LeafPlace) -> int:
    if len(leaf.lengths) > 1 or isinstance(leaf.feature, f.UnknownFeature):
        return 0
    return make_element(leaf).count or 0


def list_keys(leaf: LeafPlace) -> list[str]:
    """All keys of a record that may hold a feature of the steps."""
    rows = [f"{leaf.path}/ragged_row_lengths_{level}" for level in range(len(leaf.lengths) - 1)]
    return [leaf.path, f"{leaf.path}/ragged_flat_values", *rows, f"{leaf.path}/shape", f"{leaf.path}/value"]


def one_step(leaf: LeafPlace, lists: Mapping[str, Any], step: int, num_steps: int) -> dict[str, Any]:
    """The lists that a record would have that held this step alone, without the sequence of steps around it."""
    path = leaf.path
    if path in lists:
        return {path: _share(lists[path], step, step + 1, num_steps)}
    if f"{path}/ragged_row_lengths_0" in lists:
        return _ragged_step(leaf, lists, step)
    names = (f"{path}/shape", f"{path}/value")
    return {name: _share(lists[name], step, step + 1, num_steps) for name in names if name in lists}


def _ragged_step(leaf: LeafPlace, lists: Mapping[str, Any], step: int) -> dict[str, Any]:
    path = leaf.path
    found: dict[str, Any] = {}
    first, stop, total = step, step + 1, 0
    for level in range(len(leaf.lengths) - 1):
        rows = np.asarray(lists[f"{path}/ragged_row_lengths_{level}"])
        if level:
            found[f"{path}/ragged_row_lengths_{level - 1}"] = rows[first:stop]
        ends = np.concatenate([[0], np.cumsum(rows)])
        first, stop, total = int(ends[first]), int(ends[stop]), int(ends[-1])
    flat = _share(lists[f"{path}/ragged_flat_values"], first, stop, total)
    return {**found, (f"{path}/ragged_flat_values" if found else path): flat}


def _share(values: Any, first: int, stop: int, total: int) -> Any:
    """Of a list that holds `total` rows of equally many values those of some rows."""
    per_row = len(values) // total if total else 0
    cut = slice(first * per_row, stop * per_row)
    return values.read(cut.start, cut.stop) if hasattr(values, "read") else values[cut]


def as_record(lists: Mapping[str, Any]) -> Any:
    """Lists as the map of key to Feature message that leaves read; an empty list of bytes has its kind."""
    typed = {
        key: np.zeros(0, "S1") if isinstance(values, list) and not values else values for key, values in lists.items()
    }
    return parse_message(encode_example(typed)).features.feature
