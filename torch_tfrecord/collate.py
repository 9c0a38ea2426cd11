"""From samples to batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torchvision import tv_tensors

from torch_tfrecord.features import is_ragged

__all__ = ["collate", "keep_type"]


def collate(samples: Sequence[Any]) -> Any:
    """Make a batch of samples, as torch's ``default_collate`` does, with what TFRecord data needs beside.

    - bytes and str become lists;
    - tensors of equal shape are stacked to [B, ...]; ``tv_tensors`` keep their type, but for boxes, which it cannot
      hold in batches;
    - var-length features become a jagged nested tensor [B, *], always, so that its kind does not depend on the lengths
      that happen to meet; 1-D tensors of unequal length do, too;
    - mappings, tuples and lists are taken apart, each part made a batch; None stays a list.

    Args:
        samples: What a dataset returned for each position; at least one.

    Returns:
        The batch, nested as the samples are.

    Raises:
        ValueError: samples with different keys, or tensors of shapes that cannot be stacked; names the feature.

    Example:
        >>> collate([{"x": torch.zeros(2), "name": b"a"}, {"x": torch.ones(2), "name": b"b"}])
        {'x': tensor([[0., 0.],
                [1., 1.]]), 'name': [b'a', b'b']}
    """
    if not samples:
        raise ValueError("a batch needs at least one sample, got none")
    return _collate(list(samples), "")


def _collate(values: list[Any], name: str) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        return _stack(values, name)
    if isinstance(first, Mapping):
        _check_keys(values, name)
        return {key: _collate([value[key] for value in values], f"{name}[{key!r}]") for key in first}
    if isinstance(first, (bytes, str)) or first is None:
        return values
    if isinstance(first, (tuple, list)) and not _is_bytes_list(first):
        return _sequence(values, name)
    if isinstance(first, (tuple, list)):
        return values
    return default_collate(values)


def _is_bytes_list(value: Sequence[Any]) -> bool:
    """A var-length feature of bytes: its length differs from sample to sample and must not be taken apart."""
    return isinstance(value, list) and all(isinstance(item, (bytes, str)) for item in value)


def _sequence(values: list[Any], name: str) -> Any:
    first = values[0]
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        raise ValueError(f"{name or 'samples'}: expected sequences of one length, got lengths {sorted(lengths)}")
    parts = [_collate(list(part), f"{name}[{number}]") for number, part in enumerate(zip(*values, strict=True))]
    if isinstance(first, tuple):
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return parts


def _check_keys(values: list[Any], name: str) -> None:
    expected = set(values[0])
    for number, value in enumerate(values):
        if set(value) != expected:
            raise ValueError(
                f"{name or 'samples'}: expected the keys {sorted(map(str, expected))} in each, "
                f"got {sorted(map(str, value))} in sample {number}"
            )


def _stack(values: list[Any], name: str) -> torch.Tensor:
    shapes = [tuple(value.shape) for value in values]
    if is_ragged(values[0]) or (len(set(shapes)) > 1 and all(len(shape) == 1 for shape in shapes)):
        return torch.nested.nested_tensor([value.as_subclass(torch.Tensor) for value in values], layout=torch.jagged)
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"{name or 'samples'}: cannot batch tensors with different shapes: {list(shapes[0])} in sample 0, "
                f"{list(shape)} in sample {number} (resize or pad them in a transform)"
            )
    batch: torch.Tensor = default_collate([value.as_subclass(torch.Tensor) for value in values])
    return keep_type(batch, values[0])


def keep_type(batch: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """The batch as the tv_tensor that its samples are; of boxes, of which tv_tensors has no batch, a plain tensor."""
    if not isinstance(sample, tv_tensors.TVTensor) or isinstance(sample, tv_tensors.BoundingBoxes):
        return batch
    wrapped: torch.Tensor = tv_tensors.wrap(batch, like=sample)
    return wrapped
