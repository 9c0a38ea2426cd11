"""Blocks of neighbours in random order, mixed within windows: complete, frozen, near on disk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import RecordSampler
from torch_tfrecord.order import block_starts

pytestmark = pytest.mark.usefixtures("random_states_untouched")


class Blocks:
    """A dataset that says where blocks begin."""

    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def _block_starts(self, block_bytes):
        return np.arange(0, self.n, self.size)


def slow_starts(files, offsets, block_bytes):
    """Block by block, in plain Python."""
    starts, last = [], None
    for position, (file, offset) in enumerate(zip(files, offsets, strict=True)):
        if (file, offset // block_bytes) != last:
            starts.append(position)
            last = (file, offset // block_bytes)
    return starts


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(16, 400), max_size=8), max_size=5), st.integers(1, 1000))
def test_blocks_are_within_a_file_and_its_stretches_of_bytes(lengths, block_bytes):
    files = np.repeat(np.arange(len(lengths)), [len(mine) for mine in lengths])
    offsets = np.array([sum(mine[:n]) for mine in lengths for n in range(len(mine))], np.int64)
    found = block_starts(files, offsets, block_bytes)
    assert found.dtype == np.int64
    assert found.tolist() == slow_starts(files.tolist(), offsets.tolist(), block_bytes)


# Promised to users; a change breaks their runs.
FROZEN = [
    [0, 7, 8, 6, 2, 1, 4, 9, 3, 11, 10, 5],
    [11, 6, 7, 5, 3, 10, 4, 9, 8, 0, 2, 1],
    [6577473, 8664404, 6314841, 8220625],
]


def test_frozen():
    small = [
        RecordSampler(Blocks(12, 3), shuffle="blocks", window_blocks=blocks) for blocks in (2, 3)
    ]
    small[1].set_epoch(1)
    assert [list(sampler) for sampler in small] == FROZEN[:2]
    large = RecordSampler(Blocks(10**7, 1000), shuffle="blocks", seed=5, window_blocks=100)
    found = []
    for place in (0, 1, 5_000_000, 10**7 - 1):
        large.load_state_dict({**large.state_dict(), "epoch": 0, "consumed": place})
        found.append(next(iter(large)))
    assert found == FROZEN[2]
