"""What all readers share: the protocol, and the steps from a spec to a lookup and from lists to values.

A reader turns a record into a sample's value and several records into a batch's column. A record is the map of key to
Feature message; for the readers of ``step_columns`` it is a SequenceExample message. A new spec is a class in
``features`` or ``structured_features``, a reader in a module of its family, a row in ``readers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torchvision import tv_tensors

from torch_tfrecord.dtypes import INT64_LIST, DType, decode_text, dtype_name, list_kind
from torch_tfrecord.errors import TFRecordError
from torch_tfrecord.example import join_arrays
from torch_tfrecord.features import Feature
from torch_tfrecord.lookup import Lookup

__all__ = ["Reader", "join", "key_of", "labelled", "list_lookup", "stack", "strings", "torch_dtype"]


class Reader(Protocol):
    """Reads one feature."""

    def sample(self, record: Any) -> Any:
        """The value of one record."""

    def batch(self, records: Sequence[Any]) -> Any:
        """The column of several records."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype, which is known to be a torch dtype."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no tensor holds {dtype_name(dtype)}")
    return dtype


def key_of(name: str, spec: Feature) -> str:
    """Name in the record of an output's feature."""
    return name if spec.key is None else spec.key


def list_lookup(name: str, key: str, dtype: DType) -> Lookup:
    """The lookup of a list that holds a dtype."""
    kind = list_kind(dtype)
    if kind is None:
        raise TypeError(f"no list holds {dtype_name(dtype)}")
    return Lookup(name, key, kind, dtype_name(dtype))


def labelled(lookup: Lookup, convert: Callable[..., Any], *args: Any) -> Any:
    """Call ``convert``; its errors get the feature's label."""
    try:
        return convert(*args)
    except TFRecordError as error:
        raise lookup.labelled(error) from error.__cause__


def strings(lookup: Lookup, found: Any, dtype: DType) -> list[Any]:
    """The values of a BytesList message, as bytes or str."""
    if dtype is bytes:
        return list(found.value)
    return [labelled(lookup, decode_text, value) for value in found.value]


def join(found: Sequence[Any], dtype: torch.dtype) -> Any:
    """Join the values of several lists into one array, int64 or float32."""
    if not found:
        return np.zeros(0, np.int64 if list_kind(dtype) is INT64_LIST else np.float32)
    return join_arrays(found)


def stack(samples: list[Any]) -> Any:
    """Stack tensors of one shape and dtype; everything else stays a list."""
    first = samples[0] if samples else None
    if not isinstance(first, torch.Tensor):
        return samples
    if any(not isinstance(item, torch.Tensor) for item in samples):
        return samples
    if any(item.shape != first.shape or item.dtype != first.dtype for item in samples):
        return samples
    stacked = torch.stack(samples)
    return tv_tensors.wrap(stacked, like=first) if isinstance(first, tv_tensors.TVTensor) else stacked
