"""Blocks of lengths in few bits: the same numbers come back, in as few bytes as the kinds of data
allow.
"""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.records.length_blocks import BLOCK_RECORDS, pack_lengths, unpack_lengths

LENGTHS = st.one_of(
    st.integers(0, 300),
    st.integers(0, 1 << 20),
    st.integers(0, (1 << 62) - 1),
    st.just(0),
    st.just((1 << 62) - 1),
)


@given(st.lists(LENGTHS, min_size=1, max_size=40))
def test_lengths_come_back(lengths):
    block = pack_lengths(np.array(lengths, np.int64))
    assert unpack_lengths(block, len(lengths)).tolist() == lengths


def kinds():
    rng = np.random.default_rng(0)
    jpegs = np.minimum(rng.lognormal(np.log(95_000), 0.55, BLOCK_RECORDS), 15e6).astype(np.int64)
    return {
        "images of 100 KB": (jpegs, 3),
        "2,048 tokens": (rng.integers(3900, 4200, BLOCK_RECORDS), 1.3),
        "scalars": (np.full(BLOCK_RECORDS, 400), 0.01),
        "one long record among equal ones": (np.r_[1 << 40, np.full(BLOCK_RECORDS - 1, 400)], 0.02),
    }


@pytest.mark.parametrize("kind", kinds())
def test_bytes_of_a_record(kind):
    lengths, most = kinds()[kind]
    block = pack_lengths(lengths)
    assert len(block) < most * len(lengths)
    np.testing.assert_array_equal(unpack_lengths(block, len(lengths)), lengths)


@pytest.mark.parametrize(
    ("block", "count", "text"),
    [
        (b"", 1, "a block's head with at most 56 bits, got 0 bytes"),
        (bytes(8) + b"\x39\0\0", 0, "a block's head with at most 56 bits, got 11 bytes"),
        (bytes(11), 3, None),
        (bytes(12), 3, "a block of 11 bytes, got 12"),
        (bytes(8) + b"\x08\0\0" + bytes(2), 3, "a block of 14 bytes, got 13"),
        (bytes(9) + b"\x01\0" + bytes(9), 3, "a block of 21 bytes, got 20"),
        (
            bytes(9) + b"\x01\0" + b"\x03\0" + bytes(8),
            3,
            "exceptions among 3 records, got number 3",
        ),
    ],
)
def test_other_bytes_are_refused(block, count, text):
    if text is None:
        assert unpack_lengths(block, count).tolist() == [0] * count
    else:
        with pytest.raises(ValueError, match=text):
            unpack_lengths(block, count)


@given(st.binary(max_size=60), st.integers(1, 30))
def test_any_bytes_are_numbers_or_refused(block, count):
    with contextlib.suppress(ValueError):
        assert unpack_lengths(block, count).shape == (count,)
