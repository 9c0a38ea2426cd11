"""What the compiled core does for batches of records, by itself; `test_read_batch` has it under the
reader.
"""

import threading

import numpy as np
import pytest
from helpers import framed, pure_python
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.files import open_file

frames = pytest.importorskip("torch_tfrecord.native.frames")
jobs = pytest.importorskip("torch_tfrecord.native.jobs")


@pytest.fixture(autouse=True)
def core():
    with pure_python(False):  # also where the environment forces the fallback
        yield


def plan(pieces, gap=0, window=1 << 40, header=0, footer=0):
    """The ranges of a plan (file, begin, size, place in the buffer), its bytes, and where the pieces are."""
    files, offsets, sizes = np.array(pieces, np.int64).reshape(-1, 3).T
    ranges, places = np.zeros((4, len(files)), np.int64), np.zeros(len(files), np.int64)
    count, num_bytes, numbers = frames.plan_reads(
        files, offsets, sizes, header, footer, gap, window, ranges, places
    )
    found = ranges[:, :count].T.tolist()
    return [(numbers[file], *rest) for file, *rest in found], num_bytes, places.tolist()


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (4, [(0, 0, 15, 0), (0, 20, 5, 15), (0, 100, 1, 20)]),
        (5, [(0, 0, 25, 0), (0, 100, 1, 25)]),
        (74, [(0, 0, 25, 0), (0, 100, 1, 25)]),
        (75, [(0, 0, 101, 0)]),
    ],
)
def test_gaps(gap, expected):
    neighbours = [(0, 0, 10), (0, 10, 5), (0, 20, 5), (0, 100, 1)]
    for pieces in (neighbours, neighbours[::-1]):
        assert plan(pieces, gap)[0] == expected


def test_a_window_bounds_a_range_and_files_are_never_merged():
    pieces = [(0, at, 10) for at in range(0, 100, 10)] + [(1, 100, 10)]
    found = [row[:3] for row in plan(pieces, 100, window=30)[0]]
    assert found == [(0, 0, 30), (0, 30, 30), (0, 60, 30), (0, 90, 10), (1, 100, 10)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 40)), max_size=30),
    st.integers(0, 50),
    st.sampled_from([1, 7, 64, 1 << 30]),
    st.sampled_from([(0, 0), (12, 4)]),
)
def test_every_piece_is_where_the_plan_says(pieces, gap, window, around):
    content = [bytes((17 * n + 91 * file) % 251 for n in range(400)) for file in range(3)]
    ranges, num_bytes, places = plan(pieces, gap, window, *around)
    buffer = bytearray(num_bytes)
    for file, begin, size, start in ranges:
        buffer[start : start + size] = content[file][begin : begin + size]
    for (file, offset, size), place in zip(pieces, places, strict=True):
        begin = offset + around[0]
        assert bytes(buffer[place : place + size]) == content[file][begin : begin + size]
    # In order, and no more than asked for but the gaps.
    assert [row[:2] for row in ranges] == sorted(row[:2] for row in ranges)
    assert num_bytes <= sum(size + sum(around) + gap for _, _, size in pieces)
    assert len(ranges) <= len(pieces)


def test_what_the_compiled_plan_does_not_take():
    def plan(files, offsets, lengths):
        arrays = [np.array(numbers, np.int64) for numbers in (files, offsets, lengths)]
        ranges, places = np.zeros((4, len(files)), np.int64), np.zeros(len(files), np.int64)
        return frames.plan_reads(*arrays, 12, 4, 4096, 1 << 24, ranges, places)

    assert plan([0, 0], [0, 20], [4, 4]) == (1, 40, [0])
    assert plan([0, 0], [20, 0], [4, 4]) == (1, 40, [0])
    assert plan([], [], []) == (0, 0, [])
    for bad in (
        [[0], [-1], [4]],
        [[0], [0], [-1]],
        [[0], [0], [2**62]],
        [[0], [2**62], [0]],
        [[0], [2**43], [0]],
        [[-1], [0], [4]],
        [[2**18], [0], [4]],
    ):
        assert plan(*bad) is None, bad
    with pytest.raises(ValueError, match="do not fit"):
        plan([0, 0], [0, 20], [4])


def test_the_compiled_read_stays_inside_file_and_buffer(tmp_path):
    (tmp_path / "x").write_bytes(framed(b"abcd", b"efgh"))
    source = open_file(str(tmp_path / "x"))
    lengths = np.array([4, 4])

    def read(ranges, *, size=40, facts=None, places=(12, 32), first=0, last=None):
        buffer, ranges = np.zeros(size, np.uint8), np.array(ranges, np.int64).T.copy()
        facts = [(source.hold().number, source.file_size)] if facts is None else facts
        last = ranges.shape[1] if last is None else last
        places = np.array(places, np.int64)
        job = frames.ReadJob(facts, 0, ranges, first, last, buffer, places, lengths, True)
        return jobs.run([job]) == 1

    assert read([(0, 0, 40, 0)])
    assert read([(0, 0, 20, 0), (0, 20, 20, 20)])
    assert not read([(0, 0, 40, 0)], places=(12, 31))  # no record there
    assert not read([(0, 0, 40, 0)], places=(11, 12))  # would begin before the buffer
    assert not read([(0, 0, 20, 0)], facts=[(source.hold().number, 19)], places=())
    for outside in [
        (0, 0, 41, 0),
        (0, 1, 40, 0),
        (0, -1, 10, 0),
        (0, 0, -1, 0),
        (0, 0, 20, 21),
        (0, 0, 20, -1),
        (1, 0, 20, 0),
        (-1, 0, 20, 0),
        (0, 2**62, 20, 0),
        (0, 0, 2**62, 0),
    ]:
        assert not read([outside], places=()), outside
    with pytest.raises(ValueError, match="do not fit"):
        read([(0, 0, 40, 0)], last=2)
    with pytest.raises(ValueError, match="do not fit"):
        read([(0, 0, 40, 0)], facts=[(source.hold().number, 40)] * 65)


def test_a_file_is_opened_and_read_by_one_call(tmp_path):
    (tmp_path / "x").write_bytes(b"abcdefgh")
    path, buffer = bytes(tmp_path / "x"), bytearray(12)
    assert frames.read_file(path, 2, memoryview(buffer)[4:9])
    assert buffer == bytes(4) + b"cdefg" + bytes(3)
    assert not frames.read_file(path, 4, memoryview(buffer)[:5])  # one more than there are
    assert not frames.read_file(path, -1, memoryview(buffer)[:5])
    assert not frames.read_file(path + b"y", 0, memoryview(buffer)[:5])
    assert not frames.read_file(bytes(tmp_path), 0, memoryview(buffer)[:5])
    assert buffer[5:] == b"defg" + bytes(3)


def test_finding_needs_arrays_that_fit():
    ends, borders = np.array([2]), np.array([0, 20, 40])
    for arrays in ((ends, borders, (2, 1)), (ends, borders, (3, 2)), (ends, borders[:2], (3, 1))):
        with pytest.raises(ValueError, match="do not fit"):
            frames.find(np.array([0]), *arrays[:2], np.zeros(arrays[2], np.int64))


def test_integers():
    class Positions(list):
        pass

    out = np.full(3, -9)
    assert frames.integers([4, 0, 2**40], 2**41, out) and out.tolist() == [4, 0, 2**40]
    assert frames.integers(Positions([1, 2, 3]), 4, out) and out.tolist() == [1, 2, 3]
    assert frames.integers([], 0, np.zeros(0, np.int64))
    for doubt in (
        [1, 2],
        [1, 2, 3, 4],
        (1, 2, 3),
        [1, 2, 4],
        [1, 2, -1],
        [1, True, 2],
        [1, 2.0, 3],
        [1, np.int64(2), 3],
        [1, 2, 2**64],
        [1, 2, -(2**64)],
        [1, None, 3],
    ):
        assert not frames.integers(doubt, 4, out), doubt


# Lists that change while they are read


class Emptying:
    """A number that empties a list when it is converted."""

    def __init__(self, emptied):
        self._emptied = emptied

    def __int__(self):
        self._emptied.clear()
        return 0


def test_sources_that_empty_their_own_list_are_read_as_they_were():
    no_numbers, sources = np.zeros(0, np.int64), []
    sources += [(0, Emptying(sources)), (0, 0)]
    ranges = np.zeros((4, 0), np.int64)
    buffer = np.zeros(8, np.uint8)
    job = frames.ReadJob(sources, 0, ranges, 0, 0, buffer, no_numbers, no_numbers, True)
    assert sources == []
    assert jobs.run([job]) == 1


def test_positions_that_change_meanwhile_are_copied_or_refused():
    numbers, out = [1, 2, 3] * 50, np.zeros(150, np.int64)
    is_done = threading.Event()

    def change():
        while not is_done.is_set():
            numbers.clear()
            numbers.extend([1, 2, 3] * 50)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3000):
            if frames.integers(numbers, 4, out):
                assert out.tolist() == [1, 2, 3] * 50
    finally:
        is_done.set()
        thread.join()
