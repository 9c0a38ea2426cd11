"""Feature values as short text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import torch

from index_tools._text import counted, escape, format_size
from torch_tfrecord.columns.inference import decode_record, looks_like, read_text
from torch_tfrecord.columns.tensors import parse_tensor
from torch_tfrecord.errors import ImageDecodeError, ParseError, TFRecordError
from torch_tfrecord.images.codec import image_format, image_size
from torch_tfrecord.protobuf.example import Values

__all__ = ["describe_bytes", "describe_record"]

_Row: TypeAlias = tuple[str, str, int, str]  # name, kind, count, values

_MAX_NUMBERS = 8
_MAX_STRINGS = 3
_MAX_STEPS = 4
_MAX_TEXT = 60  # characters
_MAX_HEX_BYTES = 12
_MAX_NAME_WIDTH = 40  # of the column; longer names overflow it


def describe_record(record: bytes) -> tuple[str, list[str]]:
    """What a record is, and its lines of text, one per feature."""
    try:
        context, feature_lists = decode_record(record)
    except ParseError:
        return f"looks like {looks_like(record)[0]}", [f"  {describe_bytes(record)}"]
    if not feature_lists:
        return f"Example, {counted(len(context), 'feature')}", _aligned(_feature_rows(context))
    lines = _aligned([*_feature_rows(context, "context "), *_step_rows(feature_lists)])
    kind = f"SequenceExample, {counted(len(context), 'context feature')}"
    return f"{kind}, {counted(len(feature_lists), 'feature list')}", lines


def describe_bytes(value: bytes) -> str:
    """A bytes value: text as text, an image as format, width x height and size, a TensorProto as
    dtype and shape.
    """
    image = image_format(value)
    if image is not None:
        return f"{image} {_image_size(value)}, {format_size(len(value))}"
    with suppress(ParseError):
        text = read_text(value)
        shown = escape(text[:_MAX_TEXT], escape_backslash=True).replace('"', '\\"')
        return (
            f'"{shown}"' if len(text) <= _MAX_TEXT else f'"{shown}..." ({format_size(len(value))})'
        )
    tensor = _tensor_of(value)
    if tensor is not None:
        return f"TensorProto {tensor}, {format_size(len(value))}"
    more = "..." if len(value) > _MAX_HEX_BYTES else ""
    return f"0x{value[:_MAX_HEX_BYTES].hex()}{more} ({format_size(len(value))})"


def _image_size(value: bytes) -> str:
    try:
        height, width = image_size(value)
    except ImageDecodeError:
        return "(damaged)"
    return f"{width}x{height}"


def _tensor_of(value: bytes) -> str | None:
    try:
        tensor = parse_tensor(value)
    except TFRecordError:
        return None
    if isinstance(tensor, torch.Tensor):
        return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    shape = []
    while isinstance(tensor, list):
        shape.append(len(tensor))
        tensor = tensor[0] if tensor else b""
    return f"string {shape}"


def _feature_rows(features: Mapping[str, Values], what: str = "") -> list[_Row]:
    return [
        (f"{what}{name}", _kind(values), len(values), _shown(values))
        for name, values in features.items()
    ]


def _step_rows(feature_lists: Mapping[str, Sequence[Values]]) -> list[_Row]:
    rows = []
    for name, steps in feature_lists.items():
        kinds = sorted({_kind(step) for step in steps if len(step)}) or ["-"]
        shown = [f"[{_shown(step)}]" for step in steps[:_MAX_STEPS]]
        rows.append((f"list {name}", "/".join(kinds), len(steps), _joined(shown, len(steps))))
    return rows


def _aligned(rows: Sequence[_Row]) -> list[str]:
    """Rows as lines with aligned columns."""
    names = [escape(row[0]) for row in rows]
    name_width = min(max(map(len, names), default=0), _MAX_NAME_WIDTH)
    kind_width = max((len(row[1]) for row in rows), default=0)
    count_width = max((len(str(row[2])) for row in rows), default=0)
    return [
        f"  {name:<{name_width}}  {kind:<{kind_width}}  {count:>{count_width}}  {shown}".rstrip()
        for name, (_, kind, count, shown) in zip(names, rows, strict=True)
    ]


def _kind(values: Values) -> str:
    if isinstance(values, np.ndarray):
        return str(values.dtype)
    return "bytes" if values else "-"  # an empty list may be of bytes or have no kind


def _shown(values: Values) -> str:
    if isinstance(values, np.ndarray):
        return _joined([_number(value) for value in values[:_MAX_NUMBERS].tolist()], len(values))
    return _joined(
        [describe_bytes(value) for value in itertools.islice(values, _MAX_STRINGS)], len(values)
    )


def _number(value: float) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _joined(shown: Sequence[str], count: int) -> str:
    return ", ".join([*shown, *(["..."] if count > len(shown) else [])])
