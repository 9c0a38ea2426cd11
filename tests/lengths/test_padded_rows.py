"""pad_rows, compiled and its Python fallback: rows at their places, the padding behind them, bits
as they were.
"""

import numpy as np
import pytest
import torch
from helpers import pure_python
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.batch_memory import as_array, as_tensor, pad_rows, splits_of
from torch_tfrecord.native import optional_module

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.uint32,
    torch.float32,
    torch.int64,
    torch.complex128,
]
DTYPES += [torch.bfloat16, torch.float8_e5m2]


def loop(values, lengths, longest, fill):
    """The same, row by row."""
    padded = fill.expand(len(lengths), longest, *values.shape[1:]).clone(
        memory_format=torch.contiguous_format
    )
    for row, part in enumerate(values.split(lengths)):
        padded[row, : len(part)] = part
    return padded


@pytest.mark.slow
@pytest.mark.parametrize("is_pure", [False, True])
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    more=st.integers(0, 3),
    inner=st.sampled_from([(), (1,), (3,), (2, 5), (0,), (2, 0)]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_equals_a_loop(is_pure, lengths, more, inner, dtype, seed):
    drawn = np.random.default_rng(seed).integers(
        0, 2, (sum(lengths) + 1, *inner, dtype.itemsize), dtype=np.uint8
    )
    bits = (
        torch.from_numpy(drawn).reshape(-1, dtype.itemsize)
        if 0 not in inner
        else torch.zeros(0, dtype.itemsize)
    )
    values = bits.to(torch.uint8).view(dtype).reshape(sum(lengths) + 1, *inner)[:-1]
    fill = torch.tensor(seed % 2, dtype=dtype)
    with pure_python(is_pure):
        ends = splits_of(lengths)
        found = pad_rows(as_array(values), ends, max(lengths) + more, as_array(fill))
        padded = as_tensor(found, dtype)
    expected = loop(values, lengths, max(lengths) + more, fill)
    assert (padded.dtype, padded.shape) == (expected.dtype, expected.shape)
    assert (
        padded.reshape(-1).view(torch.uint8).tolist()
        == expected.reshape(-1).view(torch.uint8).tolist()
    )


@pytest.mark.parametrize(
    ("offsets", "itemsize", "fill", "message"),
    [
        ([0, 2], 1, 1, "expected 3 offsets, fill and itemsize, got 2, 1, 1"),
        ([0, 1, 2], 1, 0, "expected 3 offsets, fill and itemsize, got 3, 0, 1"),
        ([0, 1, 2], -1, 1, "expected 3 offsets, fill and itemsize, got 3, 1, -1"),
        ([0, 2, 1], 1, 1, "expected offsets that ascend within the values, got 2 to 1 of row 1"),
        ([-1, 0, 1], 1, 1, "expected offsets that ascend within the values, got -1 to 0 of row 0"),
        ([0, 1, 9], 1, 1, "expected offsets that ascend within the values, got 1 to 9 of row 1"),
        (
            [0, 1, 2**62],
            4,
            4,
            "expected offsets that ascend within the values, got 1 to 4611686018427387904 of row 1",
        ),
        (
            [0, 1, 6],
            1,
            1,
            "expected rows of at most 4 bytes and whole fills, got another one, row 1",
        ),
        (
            [0, 1, 2],
            1,
            2,
            "expected rows of at most 4 bytes and whole fills, got another one, row 0",
        ),
        (
            [0, 0, 2**62],
            0,
            8,
            "expected rows of at most 4 bytes and whole fills, got another one, row 0",
        ),
    ],
)
def test_the_core_checks_every_place(offsets, itemsize, fill, message):
    native = optional_module("memory")
    if native is None:
        pytest.skip("the compiled core was not built")
    out = np.full((2, 4), 7, np.uint8)
    with pytest.raises(ValueError, match=f"^{message}$"):
        native.pad(
            np.zeros(8, np.uint8), np.array(offsets), itemsize, np.zeros(fill, np.uint8), out
        )
    assert (out == 7).all()
