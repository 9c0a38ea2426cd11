"""Shared by the tests of batches: equality of everything that a batch may hold."""

import torch

from torch_tfrecord import RaggedTensor, SparseList, TFRecordError
from torch_tfrecord.columns import Nested, as_plain
from torch_tfrecord.samples import is_ragged


def assert_same(one, two):
    """Equal values, dtypes, kinds and layouts, all the way down."""
    if isinstance(one, dict):
        assert isinstance(two, dict)
        assert list(one) == list(two)
        for key in one:
            assert_same(one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert type(one) is type(two)
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert (type(one), one.dtype, one.layout) == (type(two), two.dtype, two.layout)
        assert is_ragged(one) == is_ragged(two)
        if one.layout == torch.jagged:
            assert_same(one.values(), two.values())
            assert_same(one.offsets(), two.offsets())
        elif one.layout == torch.sparse_coo:
            assert (one.shape, one.is_coalesced()) == (two.shape, two.is_coalesced())
            assert_same(one._indices(), two._indices())
            assert_same(one._values(), two._values())
        else:
            assert one.shape == two.shape
            assert torch.equal(one, two)
    else:
        assert type(one) is type(two)
        assert one == two


def bits(value):
    """A value as something that compares by type, shape, dtype and bits."""
    if isinstance(value, dict):
        return {name: bits(item) for name, item in value.items()}
    if isinstance(value, Nested):
        value = as_plain(value)
    if isinstance(value, (list, tuple)):
        return type(value), [bits(item) for item in value]
    if isinstance(value, RaggedTensor):
        return RaggedTensor, bits(value.flat_values), bits(value.row_splits)
    if isinstance(value, SparseList):
        return SparseList, bits(value.indices), value.values, value.shape
    if isinstance(value, torch.Tensor):
        if value.layout == torch.jagged:
            return "jagged", bits(value.values()), bits(value.offsets())
        if value.layout == torch.sparse_coo:
            return (
                "sparse",
                bits(value._indices()),
                bits(value._values()),
                tuple(value.shape),
                value.is_coalesced(),
            )
        plain = value.as_subclass(torch.Tensor).contiguous()
        return (
            type(value),
            value.dtype,
            tuple(value.shape),
            is_ragged(value),
            bytes(plain.flatten().view(torch.uint8).numpy()) if plain.numel() else b"",
        )
    return type(value), value


def outcome(function):
    """What it returns as bits, or its error."""
    try:
        return bits(function())
    except TFRecordError as error:
        return type(error), str(error), error.position
