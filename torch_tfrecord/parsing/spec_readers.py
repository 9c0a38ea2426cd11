"""The tables from spec to reader: for an Example, for the context and for the feature lists of a SequenceExample."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from torch_tfrecord.features.spec_checks import spec_hint
from torch_tfrecord.features.specs import (
    Feature,
    FixedLenFeature,
    Image,
    RawTensor,
    SerializedTensor,
    Text,
    VarLenFeature,
)
from torch_tfrecord.features.structured_specs import FixedLenSequenceFeature, RaggedFeature, SparseFeature
from torch_tfrecord.parsing.columns import Column, Reader
from torch_tfrecord.parsing.image_columns import ImageReader
from torch_tfrecord.parsing.padded_columns import RowNumbers, RowStrings
from torch_tfrecord.parsing.plain_columns import FixedNumbers, FixedStrings, VarLenNumbers, VarLenStrings
from torch_tfrecord.parsing.ragged_columns import RaggedNumbers, RaggedStrings
from torch_tfrecord.parsing.sparse_columns import SparseReader
from torch_tfrecord.parsing.step_columns import RaggedSteps, RowSteps, StepReader, ValueSteps, VarLenSteps
from torch_tfrecord.parsing.value_columns import RawTensorReader, SerializedTensorReader, TextReader
from torch_tfrecord.parsing.wants import Want

__all__ = ["make_context_reader", "make_reader", "make_step_reader"]

_R = TypeVar("_R")
_Table: TypeAlias = Mapping[type[Feature], Callable[[str, Any], Reader]]


def _fixed_len(name: str, spec: FixedLenFeature) -> Reader:
    return FixedNumbers(name, spec) if isinstance(spec.dtype, torch.dtype) else FixedStrings(name, spec)


def _var_len(name: str, spec: VarLenFeature) -> Reader:
    return VarLenNumbers(name, spec) if isinstance(spec.dtype, torch.dtype) else VarLenStrings(name, spec)


def _rows(name: str, spec: FixedLenSequenceFeature, *, pads: bool = False) -> Reader:
    kind = RowNumbers if isinstance(spec.dtype, torch.dtype) else RowStrings
    return kind(name, spec, pads=pads)


def _ragged(name: str, spec: RaggedFeature) -> Reader:
    return RaggedNumbers(name, spec) if isinstance(spec.dtype, torch.dtype) else RaggedStrings(name, spec)


_VALUES: _Table = {
    Image: ImageReader,
    RawTensor: RawTensorReader,
    SerializedTensor: SerializedTensorReader,
    Text: TextReader,
}
_EXAMPLE: _Table = {
    **_VALUES,
    FixedLenFeature: _fixed_len,
    FixedLenSequenceFeature: _rows,
    RaggedFeature: _ragged,
    SparseFeature: SparseReader,
    VarLenFeature: _var_len,
}
_PADDED: _Table = {**_EXAMPLE, FixedLenSequenceFeature: functools.partial(_rows, pads=True)}


class _ContextFixedLen:
    """A FixedLenFeature of a context: a feature whose kind is not set is an error, also where there is a default."""

    def __init__(self, name: str, spec: FixedLenFeature) -> None:
        self._reader = _fixed_len(name, spec)
        [want] = self._reader.wants
        self.row_bytes = getattr(self._reader, "row_bytes", 0)
        self.is_plain, self.is_text = (getattr(self._reader, name, False) for name in ("is_plain", "is_text"))
        self._is_required = want.is_required
        want.is_required = False
        self.wants: tuple[Want, ...] = (want,)

    def read(self, columns: Sequence[Column]) -> Any:
        missing = columns[0].missing
        if missing is not None and (missing == 2).any():
            raise self.wants[0].error("Unexpected number of elements: the feature is there without a value")
        if missing is not None and self._is_required:
            raise self.wants[0].lacking()
        return self._reader.read(columns)


def _step_ragged(name: str, spec: RaggedFeature) -> StepReader:
    return RaggedSteps(name, spec) if spec.partitions else VarLenSteps(name, spec)


def _fixed_image(name: str, spec: Image) -> Reader:
    if spec.crop is not None and spec.crop.is_random:
        raise ValueError(
            f"crop of {name!r}: images of a SequenceExample have no random crop (all steps would need the same); "
            "crop them in the transform"
        )
    return ImageReader(name, spec)


def _step_value(name: str, spec: Feature, *, pads: bool = False) -> StepReader:
    reader = _build({**_VALUES, Image: _fixed_image}, name, spec, "the feature list")
    return ValueSteps(name, spec, reader, pads=pads)


_CONTEXT: _Table = {
    **_VALUES,
    Image: _fixed_image,
    FixedLenFeature: _ContextFixedLen,
    RaggedFeature: _ragged,
    VarLenFeature: _var_len,
}
_STEPS: Mapping[type[Feature], Callable[[str, Any], StepReader]] = {
    **dict.fromkeys(_VALUES, _step_value),
    FixedLenSequenceFeature: functools.partial(RowSteps, pads=False),
    RaggedFeature: _step_ragged,
    VarLenFeature: VarLenSteps,
}
_PADDED_STEPS: Mapping[type[Feature], Callable[[str, Any], StepReader]] = {
    **_STEPS,
    **dict.fromkeys(_VALUES, functools.partial(_step_value, pads=True)),
    FixedLenSequenceFeature: functools.partial(RowSteps, pads=True),
}


def make_reader(name: str, spec: Feature, *, pads: bool = False) -> Reader:
    """Build the reader of one output of an Example.

    Args:
        name: Of the output.
        spec: What to read.
        pads: Whether the rows of a FixedLenSequenceFeature are padded in a batch; else they are jagged.

    Raises:
        TypeError: The name is not str, or the spec is none of the known ones.
        ValueError: A spec that no Example can have.
    """
    return _build(_PADDED if pads else _EXAMPLE, name, spec, "an Example")


def make_context_reader(name: str, spec: Feature) -> Reader:
    """As :func:`make_reader`, for the context of a SequenceExample; other specs are a ValueError."""
    return _build(_CONTEXT, name, spec, "a context")


def make_step_reader(name: str, spec: Feature, *, pads: bool = False) -> StepReader:
    """As :func:`make_reader`, for a feature list of a SequenceExample; other specs are a ValueError."""
    return _build(_PADDED_STEPS if pads else _STEPS, name, spec, "a feature list")


def _build(table: Mapping[type[Feature], Callable[[str, Any], _R]], name: str, spec: Feature, where: str) -> _R:
    if not isinstance(name, str):
        raise TypeError(f"a name in features must be str, got {type(name).__name__}")
    build = next((table[kind] for kind in type(spec).__mro__ if kind in table), None)
    if build is None:
        allowed = ", ".join(sorted(kind.__name__ for kind in table))
        hint = "" if isinstance(spec, Feature) else spec_hint(spec)
        text = f"Unsupported {type(spec).__name__} for key {name!r} of {where}: expected one of {allowed}{hint}"
        raise (ValueError if any(kind in _EXAMPLE for kind in type(spec).__mro__) else TypeError)(text)
    return build(name, spec)
