"""What the original programs of docs/recipes read of the files in tests/data/recipes."""

from pathlib import Path

import numpy as np
import pytest
import torch

__all__ = ["DATA", "NEEDS_DOCS", "assert_equal", "expected", "strings"]

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data" / "recipes"
NEEDS_DOCS = pytest.mark.skipif(
    not (TESTS.parent / "docs").is_dir(), reason="not beside an installed package"
)


def expected(name):
    with np.load(DATA / name / "expected.npz") as stored:
        return dict(stored)


def strings(array):
    return [value.decode() for value in np.ravel(array).tolist()]


def assert_equal(found, array):
    """The same values, shape and dtype."""
    if isinstance(found, list):
        assert found == strings(array)
        return
    wanted = torch.from_numpy(array)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found.as_subclass(torch.Tensor), wanted)
