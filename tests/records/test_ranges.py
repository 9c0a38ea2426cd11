"""The plan of a batch's reads, without files: what is merged, and where each piece lies."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.files.read import plan_reads


def plan(pieces, gap=0, window=1 << 40):
    files, offsets, sizes = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return plan_reads(files, offsets, sizes, max_gap_bytes=gap, window_bytes=window)


def ranges(made):
    return list(zip(made.files.tolist(), made.begins.tolist(), made.sizes.tolist(), strict=True))


NEIGHBOURS = [(0, 0, 10), (0, 10, 5), (0, 20, 5), (0, 100, 1)]


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (0, [(0, 0, 15), (0, 20, 5), (0, 100, 1)]),
        (4, [(0, 0, 15), (0, 20, 5), (0, 100, 1)]),
        (5, [(0, 0, 25), (0, 100, 1)]),
        (74, [(0, 0, 25), (0, 100, 1)]),
        (75, [(0, 0, 101)]),
    ],
)
def test_gaps(gap, expected):
    assert ranges(plan(NEIGHBOURS, gap)) == expected
    made = plan(NEIGHBOURS[::-1], gap)
    assert ranges(made) == expected
    assert made.num_bytes == sum(size for _, _, size in expected)


def test_files_are_never_merged():
    assert ranges(plan([(0, 0, 10), (1, 10, 10)], gap=100)) == [(0, 0, 10), (1, 10, 10)]


def test_a_window_bounds_a_range():
    pieces = [(0, at, 10) for at in range(0, 100, 10)]
    assert ranges(plan(pieces, window=30)) == [(0, 0, 30), (0, 30, 30), (0, 60, 30), (0, 90, 10)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 40)), max_size=30),
    st.integers(0, 50),
    st.sampled_from([1, 7, 64, 1 << 30]),
)
def test_every_piece_lies_where_the_plan_says(pieces, gap, window):
    content = [bytes((17 * n + 91 * file) % 251 for n in range(400)) for file in range(3)]
    made = plan(pieces, gap, window)
    buffer = bytearray(made.num_bytes)
    for (file, begin, size), start in zip(ranges(made), made.starts.tolist(), strict=True):
        buffer[start : start + size] = content[file][begin : begin + size]
    for (file, offset, size), place in zip(pieces, made.places.tolist(), strict=True):
        assert bytes(buffer[place : place + size]) == content[file][offset : offset + size]
    # In order, and no more than asked for but the gaps.
    assert [r[:2] for r in ranges(made)] == sorted(r[:2] for r in ranges(made))
    assert made.num_bytes <= sum(size + gap for _, _, size in pieces)
    assert len(made.sizes) <= len(pieces)
