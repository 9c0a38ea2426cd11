"""The split of an epoch over ranks, as torch's DistributedSampler does it, also from the middle
on.

Covers order/steps.
"""

from collections import Counter

import pytest
from helpers import for_each
from torch.utils.data import DistributedSampler

from torch_tfrecord import RecordSampler

pytestmark = pytest.mark.usefixtures("random_states_untouched")
SIZES = [0, 1, 2, 3, 7, 10, 1000, 10_007]


def share_of(n, rank, world_size, *, start=0, **options):
    """One rank's positions of an epoch, of which some places were taken before."""
    sampler = RecordSampler(range(n), rank=rank, world_size=world_size, **options)
    if start:
        sampler.load_state_dict({**sampler.state_dict(), "consumed": start})
    found = len(sampler), list(sampler)
    assert found[0] == len(found[1])
    return found[1]


@for_each("drop_last", [False, True])
@for_each("world_size", [1, 2, 3, 4, 5, 8])
@for_each("n", SIZES)
def test_a_whole_epoch_is_split_as_torch_does(n, world_size, drop_last):
    for rank in range(world_size):
        mine = share_of(n, rank, world_size, shuffle=False, drop_last=drop_last)
        if drop_last and n < world_size:
            assert mine == []  # torch computes a length of 1 - n / world_size here, and fails
            continue
        peer = DistributedSampler(range(n), world_size, rank, shuffle=False, drop_last=drop_last)
        assert mine == (list(peer) if n else [])


@for_each("drop_last", [False, True])
@for_each("world_size", [1, 2, 3, 5])
@for_each("n", [0, 1, 7, 1000])
def test_what_is_left_of_an_epoch(n, world_size, drop_last):
    everything = share_of(n, 0, 1, seed=1)
    for start in {0, 1, n // 2, max(n - 2, 0), n}:
        if start > n:
            continue
        shares = [
            share_of(n, rank, world_size, seed=1, start=start, drop_last=drop_last)
            for rank in range(world_size)
        ]
        assert len({len(share) for share in shares}) == 1
        taken = [share[step] for step in range(len(shares[0])) for share in shares]
        left = everything[start:]
        if drop_last:
            assert taken == left[: len(left) // world_size * world_size]
        else:
            assert taken[: len(left)] == left
            assert len(taken) - len(left) < world_size
            assert taken[len(left) :] == [
                everything[place % n] for place in range(len(taken) - len(left))
            ]


# Promised to users; a change breaks their runs.
FROZEN = [[5, 6, 4], [2, 0, 5], [3, 1, 2]]


def test_frozen():
    shares = [share_of(7, rank, 3) for rank in range(3)]
    assert shares == FROZEN
    assert Counter(position for share in shares for position in share).most_common(2)[0][1] == 2
