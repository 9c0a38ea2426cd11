"""The order that reads compressed files forward."""

import numpy as np
import pytest

from torch_tfrecord.order import block_shuffle
from torch_tfrecord.order.block_shuffle import FileShuffle, plan_lanes

# Blocks of 3 records: file f has so many.
BLOCKS = [4, 1, 7, 2, 5]
FILES = np.repeat(np.arange(len(BLOCKS)), BLOCKS)
STARTS = np.arange(len(FILES)) * 3
N = 3 * len(FILES)


def order(*seeds, num_lanes=2):
    made = FileShuffle(STARTS, N, *seeds, files=FILES, num_lanes=num_lanes)
    assert len(made) == N
    return made.positions(np.arange(N)).tolist()


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 5, 9])
def test_every_position_once_and_blocks_of_a_file_in_order(num_lanes):
    for seed in range(20):
        found = order(seed, num_lanes=num_lanes)
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
        files = FILES[np.array(order(seed, num_lanes=2)) // 3]
        open_at = [
            sum((files[:place] == file).any() and (files[place:] == file).any() for file in range(5))
            for place in range(N)
        ]
        assert max(open_at) == 2


def test_frozen():  # promised to users, as all orders
    made = FileShuffle(np.array([0, 3, 6, 9]), 12, 1, files=np.array([0, 0, 1, 2]), num_lanes=2)
    assert made.positions(np.arange(12)).tolist() == [11, 8, 9, 7, 10, 6, 2, 1, 0, 5, 4, 3]


def test_seeds_and_parts():
    assert order(0, 0) != order(0, 1)
    made = FileShuffle(STARTS, N, 3, files=FILES, num_lanes=2)
    places = np.array([50, 0, 7, 56, 7])
    assert made.positions(places).tolist() == [order(3)[place] for place in places]


def test_no_blocks():
    empty = np.empty(0, np.int64)
    assert len(FileShuffle(empty, 0, 0, files=empty, num_lanes=1)) == 0


@pytest.mark.parametrize(
    ("files", "records", "num_bytes", "window", "lanes"),
    [
        (1, 1000, 10**6, 10**4, (1, 10**4, 2 * 10**4)),
        (4, 10**5, 10**7, 10**6, (4, 250_000, 500_000)),
        (64, 10**6, 10**8, 10**6, (64, 15625, 31250)),
        (65, 10**6, 10**8, 10**6, (33, 30303, 60606)),  # two rounds of 33 and 32, not one of 64 and one of 1
        (1000, 10**6, 10**9, 40_000, (10, 4000, 8000)),  # few records fit: fewer files, four records of each
        (8, 100, 10**9, 10**6, (1, 10**6, 2 * 10**6)),
        (3, 100, 10**4, 10**6, (3, 10**4 + 1, 10**4)),  # all of it fits
        (1, 0, 0, 10**6, (1, 1, 0)),
    ],
)
def test_lanes(files, records, num_bytes, window, lanes):
    assert plan_lanes(files, records, num_bytes, window) == lanes


def test_windows_are_bounded(monkeypatch):
    assert plan_lanes(1, 10**6, 10**9, 1 << 40).run_bytes == block_shuffle.WINDOW_BYTES == 32 << 20
    monkeypatch.setattr(block_shuffle, "WINDOW_BYTES", 1000)
    assert plan_lanes(1, 10**6, 10**9).run_bytes == 1000
