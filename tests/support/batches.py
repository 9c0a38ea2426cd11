"""Shared by the tests of batches: equality of everything that a batch may hold."""

import torch

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
