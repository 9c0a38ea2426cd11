"""Parsing by a call, as tf.io has it: one record to a sample, several records to a batch of columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any, TypeAlias

import torch

from torch_tfrecord.batch_memory import MAX_BATCH_BYTES
from torch_tfrecord.features.feature import Feature
from torch_tfrecord.parsing.parsers import ExampleParser, SequenceExampleParser

__all__ = [
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
]

_Bytes: TypeAlias = bytes | bytearray | memoryview
_Specs: TypeAlias = tuple[Mapping[str, Feature] | None, ...]

# The parsers built last: people call these functions for each record, with the same specs.
_kept: deque[tuple[Any, _Specs, int, Any]] = deque(maxlen=8)


def _parser(kind: Any, specs: _Specs, max_batch_bytes: int) -> Any:
    """The parser of some specs; again the same one for the same specs, which cannot change."""
    for known, others, limit, parser in tuple(_kept):
        is_same = known is kind and type(limit) is type(max_batch_bytes) and limit == max_batch_bytes
        if is_same and all(map(_are_same, specs, others)):
            return parser
    parser = kind(*specs, max_batch_bytes=max_batch_bytes)
    copies = tuple(None if each is None else dict(each) for each in specs)
    _kept.append((kind, copies, max_batch_bytes, parser))
    return parser


def _are_same(specs: Mapping[str, Feature] | None, others: Mapping[str, Feature] | None) -> bool:
    """Whether these are the same objects by the same names, in one order."""
    if not isinstance(specs, Mapping) or others is None:
        return specs is others
    return list(specs) == list(others) and all(map(is_, specs.values(), others.values()))


def parse_single_example(serialized: _Bytes, features: Mapping[str, Feature]) -> dict[str, Any]:
    """Parse one serialized tf.train.Example by a mapping of specs, as ``tf.io.parse_single_example`` does.

    Specs are prepared at their first use: call it with the same spec objects for each record.

    Args:
        serialized: The record's bytes.
        features: Name of the output -> spec.

    Returns:
        Name -> value, in the order of ``features``. The type is the spec's: a tensor, str, bytes or list.

    Raises:
        ImageDecodeError: An image that cannot be decoded.
        LimitExceededError: A serialized tensor that stands for far more bytes than it has.
        ParseError: The bytes are no Example, or do not fit the specs.
        TypeError: ``serialized`` is not bytes-like, or a spec is none.
        ValueError: ``features`` is empty or None.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features.lists import VarLenFeature
        >>> parse_single_example(bytes.fromhex("0a0c0a0a0a016112051a030a0105"), {"a": VarLenFeature(torch.int64)})
        {'a': tensor([5])}
    """
    parser: ExampleParser = _parser(ExampleParser, (features,), MAX_BATCH_BYTES)
    return parser.single(serialized)


def parse_example(
    serialized_list: Iterable[_Bytes] | _Bytes,
    features: Mapping[str, Feature],
    *,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> dict[str, Any]:
    """Parse several serialized tf.train.Examples into a batch, as ``tf.io.parse_example`` does.

    Args:
        serialized_list: The records' bytes. One record's bytes alone parse as by :func:`parse_single_example`.
        features: Name of the output -> spec.
        max_batch_bytes: The most bytes that the batch's values may need: what its columns hold, and what they are put
            together from. Strings count with the places in their lists only; their bytes are in the records.

    Returns:
        Name -> column of B values: fixed numbers are one tensor [B, ...], rows of one shape padded to the longest;
        numbers of varying length a jagged nested tensor, with more ragged dimensions a RaggedTensor; sparse ones
        ``torch.sparse_coo``; images and arrays one stacked tensor where all shapes are equal, else a list; bytes and
        str a list.

    Raises:
        LimitExceededError: A batch that needs more than ``max_batch_bytes``; raised before it has them.
        TFRecordError: As :func:`parse_single_example`; ``position`` is the lowest one that fails.
        TypeError: As :func:`parse_single_example`, or ``serialized_list`` is no list of bytes.
        ValueError: ``features`` is empty or None.
    """
    parser: ExampleParser = _parser(ExampleParser, (features,), max_batch_bytes)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.single(serialized_list)
    batch: dict[str, Any] = parser.batch(serialized_list)
    return batch


def parse_single_sequence_example(
    serialized: _Bytes,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse one serialized tf.train.SequenceExample, as ``tf.io.parse_single_sequence_example`` does.

    Specs are prepared at their first use: call it with the same spec objects for each record.

    Args:
        serialized: The record's bytes.
        context_features: Name of the output -> FixedLenFeature, VarLenFeature, RaggedFeature, Image, RawTensor,
            SerializedTensor or Text.
        sequence_features: Name of the output -> FixedLenSequenceFeature, VarLenFeature, RaggedFeature, Image, RawTensor
            (an entry of its shape may name a feature list or a feature of the context), SerializedTensor or Text.

    Returns:
        ``(context, sequences)``, in the order of the specs. Of T steps a FixedLenSequenceFeature is a tensor
        [T, *shape]; a VarLenFeature a jagged nested tensor [T, *], with strings a list of T lists; images are one
        ``tv_tensors.Video`` [T, C, H, W], and arrays one tensor [T, ...], where all steps are alike, else a list; text
        is a list of str.

    Raises:
        ImageDecodeError: An image that cannot be decoded.
        LimitExceededError: A serialized tensor that stands for far more bytes than it has.
        ParseError: The bytes are no SequenceExample, or do not fit the specs.
        TypeError: ``serialized`` is not bytes-like, or a spec is none.
        ValueError: Both mappings are None or empty, or a spec that no context or feature list can have.

    Example:
        >>> import torch
        >>> from torch_tfrecord.features.rows import FixedLenSequenceFeature
        >>> record = bytes.fromhex("120e0a0c0a017812070a051a030a0105")
        >>> parse_single_sequence_example(record, None, {"x": FixedLenSequenceFeature((), torch.int64)})
        ({}, {'x': tensor([5])})
    """
    specs = context_features, sequence_features
    parser: SequenceExampleParser = _parser(SequenceExampleParser, specs, MAX_BATCH_BYTES)
    return parser.single(serialized)


def parse_sequence_example(
    serialized_list: Iterable[_Bytes] | _Bytes,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
    *,
    max_batch_bytes: int = MAX_BATCH_BYTES,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]:
    """Parse several serialized tf.train.SequenceExamples into a batch, as ``tf.io.parse_sequence_example`` does.

    Args:
        serialized_list: The records' bytes. One record's bytes alone give values without the batch dimension.
        context_features: As :func:`parse_single_sequence_example`.
        sequence_features: As :func:`parse_single_sequence_example`.
        max_batch_bytes: As :func:`parse_example`.

    Returns:
        ``(context, sequences, lengths)``. The context is as by :func:`parse_example`. Of sequences a
        FixedLenSequenceFeature is a tensor [B, longest T, *shape], padded at the end with 0, ``b""`` or ``""``, and
        ``lengths`` has its numbers of steps, int64 [B]; a VarLenFeature is a :class:`RaggedTensor` [B, *, *]; the rest
        is stacked where all samples are alike, else a list.

    Raises:
        LimitExceededError: As :func:`parse_example`.
        TFRecordError: As :func:`parse_single_sequence_example`; ``position`` is the lowest one that fails.
        TypeError: As there, or ``serialized_list`` is no list of bytes.
        ValueError: As there.
    """
    specs = context_features, sequence_features
    parser: SequenceExampleParser = _parser(SequenceExampleParser, specs, max_batch_bytes)
    if isinstance(serialized_list, (bytes, bytearray, memoryview)):
        return parser.scalar(serialized_list)
    batch: tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]] = parser.batch(serialized_list)
    return batch
