"""Blocks of neighbours in random order, mixed within windows: complete, frozen, near on disk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.order import orders
from torch_tfrecord.order.orders import BlockShuffle, FileShuffle, block_starts, plan_lanes

pytestmark = pytest.mark.usefixtures("random_states_untouched")


def everything(order):
    return order.positions(np.arange(len(order)))


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


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 9), max_size=12),
    st.integers(1, 5),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_windows_hold_whole_blocks(sizes, window_blocks, seed, random):
    ends = np.cumsum([0, *sizes])
    starts, n = ends[:-1], int(ends[-1])
    order = BlockShuffle(starts, n, seed, 1, window_blocks=window_blocks)
    found = everything(order).tolist()
    assert len(order) == n
    assert sorted(found) == list(range(n))
    # The blocks, in the order in which their first records come; each window's positions are those
    # of its blocks.
    place = 0
    left = {block: set(range(starts[block], ends[block + 1])) for block in range(len(sizes))}
    while left:
        window = set()
        while len(window) < min(window_blocks, len(left)):
            size = sum(len(left[block]) for block in window) + 1
            window |= {block for block in left if left[block] & set(found[place : place + size])}
        size = sum(len(left[block]) for block in window)
        assert set(found[place : place + size]) == set().union(
            *(left.pop(block) for block in window)
        )
        place += size
    # Any places, in any order.
    places = [random.randrange(n) for _ in range(20)] if n else []
    assert order.positions(np.array(places, np.int64)).tolist() == [
        found[place] for place in places
    ]
    again = BlockShuffle(starts, n, seed, 1, window_blocks=window_blocks)
    assert [int(again.positions(np.array([place]))[0]) for place in places] == [
        found[place] for place in places
    ]


# Promised to users; a change breaks their runs.
FROZEN = [
    [0, 7, 8, 6, 2, 1, 4, 9, 3, 11, 10, 5],
    [11, 6, 7, 5, 3, 10, 4, 9, 8, 0, 2, 1],
    [6577473, 8664404, 6314841, 8220625],
]


def test_frozen():
    starts = np.array([0, 3, 6, 9])
    assert everything(BlockShuffle(starts, 12, 0, 0, window_blocks=2)).tolist() == FROZEN[0]
    assert everything(BlockShuffle(starts, 12, 0, 1, window_blocks=3)).tolist() == FROZEN[1]
    large = BlockShuffle(np.arange(0, 10**7, 1000), 10**7, 5, 0, window_blocks=100)
    assert large.positions(np.array([0, 1, 5_000_000, 10**7 - 1])).tolist() == FROZEN[2]


def test_one_window_mixes_everything_and_one_block_is_in_order_of_blocks():
    starts = np.arange(0, 1000, 10)
    mixed = everything(BlockShuffle(starts, 1000, 0, window_blocks=100))
    assert abs(np.corrcoef(mixed[1:], mixed[:-1])[0, 1]) < 0.15
    single = everything(BlockShuffle(starts, 1000, 0, window_blocks=1)).reshape(100, 10)
    assert (np.sort(single, 1) == np.sort(single, 1)[:, :1] + np.arange(10)).all()
    assert (single != np.sort(single, 1)).any()


def test_other_epochs_have_other_blocks_together():
    starts = np.arange(0, 10_000, 10)
    first, second = (
        everything(BlockShuffle(starts, 10_000, 0, epoch, window_blocks=10)) for epoch in (0, 1)
    )
    together = {
        tuple(sorted(set((first[begin : begin + 100] // 10).tolist())))
        for begin in range(0, 10_000, 100)
    }
    others = {
        tuple(sorted(set((second[begin : begin + 100] // 10).tolist())))
        for begin in range(0, 10_000, 100)
    }
    assert len(together) == len(others) == 100
    assert not together & others


# The order that reads compressed files forward. Blocks of 3 records: file f has so many.
BLOCKS = [4, 1, 7, 2, 5]
FILES = np.repeat(np.arange(len(BLOCKS)), BLOCKS)
STARTS = np.arange(len(FILES)) * 3
N = 3 * len(FILES)


def file_order(*seeds, num_lanes=2):
    made = FileShuffle(STARTS, N, *seeds, files=FILES, num_lanes=num_lanes)
    assert len(made) == N
    return made.positions(np.arange(N)).tolist()


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 5, 9])
def test_every_position_once_and_blocks_of_a_file_in_order(num_lanes):
    for seed in range(20):
        found = file_order(seed, num_lanes=num_lanes)
        assert sorted(found) == list(range(N))
        firsts = {}
        for place, position in enumerate(found):
            firsts.setdefault(position // 3, place)
        lasts = {position // 3: place for place, position in enumerate(found)}
        for block in range(len(FILES) - 1):
            if FILES[block] == FILES[block + 1]:
                assert lasts[block] < firsts[block + 1]


def test_so_many_files_at_a_time():
    for seed in range(20):
        files = FILES[np.array(file_order(seed, num_lanes=2)) // 3]
        open_at = [
            sum(
                (files[:place] == file).any() and (files[place:] == file).any() for file in range(5)
            )
            for place in range(N)
        ]
        assert max(open_at) == 2


def test_frozen_by_files():  # promised to users, as all orders
    made = FileShuffle(np.array([0, 3, 6, 9]), 12, 1, files=np.array([0, 0, 1, 2]), num_lanes=2)
    assert made.positions(np.arange(12)).tolist() == [11, 8, 9, 7, 10, 6, 2, 1, 0, 5, 4, 3]


def test_seeds_and_parts_by_files():
    assert file_order(0, 0) != file_order(0, 1)
    made = FileShuffle(STARTS, N, 3, files=FILES, num_lanes=2)
    places = np.array([50, 0, 7, 56, 7])
    assert made.positions(places).tolist() == [file_order(3)[place] for place in places]


def test_no_files():
    empty = np.empty(0, np.int64)
    assert len(FileShuffle(empty, 0, 0, files=empty, num_lanes=1)) == 0


@pytest.mark.parametrize(
    ("files", "records", "num_bytes", "window", "lanes"),
    [
        (1, 1000, 10**6, 10**4, (1, 10**4, 2 * 10**4)),
        (4, 10**5, 10**7, 10**6, (4, 250_000, 500_000)),
        (64, 10**6, 10**8, 10**6, (64, 15625, 31250)),
        (
            65,
            10**6,
            10**8,
            10**6,
            (33, 30303, 60606),
        ),  # two rounds of 33 and 32, not one of 64 and one of 1
        (
            1000,
            10**6,
            10**9,
            40_000,
            (10, 4000, 8000),
        ),  # few records fit: fewer files, four records of each
        (8, 100, 10**9, 10**6, (1, 10**6, 2 * 10**6)),
        (3, 100, 10**4, 10**6, (3, 10**4 + 1, 10**4)),  # all of it fits
        (1, 0, 0, 10**6, (1, 1, 0)),
    ],
)
def test_lanes(files, records, num_bytes, window, lanes):
    assert plan_lanes(files, records, num_bytes, window) == lanes


def test_windows_are_bounded(monkeypatch):
    assert plan_lanes(1, 10**6, 10**9, 1 << 40).run_bytes == orders.WINDOW_BYTES == 32 << 20
    monkeypatch.setattr(orders, "WINDOW_BYTES", 1000)
    assert plan_lanes(1, 10**6, 10**9).run_bytes == 1000
