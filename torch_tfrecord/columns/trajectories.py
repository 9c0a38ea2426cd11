"""The features of trajectories by their meta.json, as MeshGraphNets' data sets have it.

Source: ``meshgraphnets/dataset.py`` of github.com/google-deepmind/deepmind-research.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_tfrecord.columns.containers import Nested, join_nested
from torch_tfrecord.columns.dtypes import Value
from torch_tfrecord.columns.feature import Feature
from torch_tfrecord.columns.ragged import RowLengths
from torch_tfrecord.columns.raw_tensor import RawTensor
from torch_tfrecord.columns.reading import Column, labelled
from torch_tfrecord.columns.stacking import rows_of, stack
from torch_tfrecord.errors import ParseError
from torch_tfrecord.files.storage import local_path, open_file
from torch_tfrecord.protobuf.json_text import parse_json
from torch_tfrecord.shown import shown_value

__all__ = ["features_from_meta"]


def features_from_meta(path: str | os.PathLike[str]) -> dict[str, Feature]:
    """The features of a data set of trajectories, as its meta.json describes them.

    That is the file of MeshGraphNets' data sets. Each record is a trajectory of T steps
    (``trajectory_length``); its features hold the bytes of arrays in the file's ``shape`` and
    ``dtype``, and a sample has the values, shapes and dtypes of the original's ``_parse``:

    * ``dynamic``: [T, ...], a `RawTensor`.
    * ``static``: stored once as [1, ...], repeated to [T, ...]. A sample is a view of the one copy:
      clone it before you write into it. A batch of several has copies.
    * ``dynamic_varlen``: a jagged nested tensor [T, *, ...], whose T row lengths are the int32s of
      the feature ``length_<name>``; in a batch a :class:`RaggedTensor`.

    Args:
        path: The meta.json: a local path, or a URL that needs no options.

    Raises:
        OSError: The file cannot be read.
        ParseError: It is not such a file; names the file, the feature, what was expected and found.

    Example:
        >>> ds = TFRecordDataset("train.tfrecord", features_from_meta("meta.json"))  # doctest: +SKIP
        >>> ds[0]["velocity"].shape  # doctest: +SKIP
        torch.Size([600, 1876, 2])
    """
    where, path = "", local_path(path)
    source, features = open_file(path), dict[str, Feature]()
    try:
        match parse_json(source.read(source.file_size, 0)):
            case {"features": dict(fields), "trajectory_length": int(num_steps)} if num_steps > 0:
                for name, field in fields.items():
                    where = f"feature {name!r}: "
                    features[name] = _spec(field, num_steps)
                return features
            case other:
                raise ParseError(
                    "expected an object with 'features' and a 'trajectory_length' of at least 1, "
                    f"got {shown_value(other)}"
                )
    except (TypeError, ValueError, ParseError) as error:
        raise ParseError(f"{where}{error}", path=path) from error


def _spec(field: object, num_steps: int) -> Feature:
    match field:
        case {
            "type": "static" | "dynamic" | "dynamic_varlen" as kind,
            "shape": list(shape),
            "dtype": str(name),
        } if {*map(type, shape)} == {int} and (kind != "static" or shape[0] == 1):
            # What torch does not have by this name, RawTensor refuses.
            values = RawTensor(shape, getattr(torch, name, name))  # type: ignore[arg-type]
            return (
                values if kind == "dynamic" else _Trajectory(values, num_steps * (kind == "static"))
            )
    raise ParseError(
        "expected a 'type' of 'static', 'dynamic' or 'dynamic_varlen', a 'shape' of integers, which "
        f"begins with 1 if static, and a 'dtype' such as 'float32', got {shown_value(field)}"
    )


@dataclass(frozen=True, repr=False)
class _Trajectory(Feature):
    """An array that is repeated for each step; for 0 steps, the rows of all steps."""

    values: RawTensor
    num_steps: int

    def reader(self, name: str, *, pads: bool = False) -> _TrajectoryReader:
        return _TrajectoryReader(name, self)


class _TrajectoryReader:
    """Reads the array and the row lengths, each by its own reader."""

    def __init__(self, name: str, spec: _Trajectory) -> None:
        specs = [spec.values, RawTensor((-1,), torch.int32, key=f"length_{name}")]
        self._num_steps = spec.num_steps
        self._readers = [one.reader(name) for one in specs[: 1 + (not spec.num_steps)]]
        self.wants = tuple(reader.wants[0] for reader in self._readers)

    def read(self, columns: Sequence[Column]) -> Value:
        """The batch's column."""
        values, *lengths = [
            rows_of(reader.read([column]))
            for reader, column in zip(self._readers, columns, strict=True)
        ]
        if self._num_steps:
            return labelled(
                self.wants[0],
                stack,
                [array.expand(self._num_steps, *array.shape[1:]) for array in values],
            )
        parts = []
        for rows, counts in zip(values, *lengths, strict=True):
            splits = labelled(
                self.wants[1], RowLengths("").row_splits, counts.numpy(), len(rows), True
            )
            parts.append(Nested(rows, (torch.from_numpy(splits),)))
        return join_nested(parts, parts[0]) if parts else parts
