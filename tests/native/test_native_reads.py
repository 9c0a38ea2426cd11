"""What the compiled core does for batches of records, by itself; `test_read_batch` has it under the
reader.
"""

import os
import threading
import weakref
from itertools import pairwise

import numpy as np
import pytest
from helpers import framed, pure_python
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.files.checksum import crc32c
from torch_tfrecord.files.compression import InflatedSource
from torch_tfrecord.files.read_plan import plan_reads, reading_order
from torch_tfrecord.files.storage import LocalFile, open_file
from torch_tfrecord.records.local_reads import read_local_values

frames = pytest.importorskip("torch_tfrecord.native.frames")


@pytest.fixture(autouse=True)
def core():
    with pure_python(False):  # also where the environment forces the fallback
        yield


@given(seed=st.integers(0, 2**32), count=st.integers(0, 80))
def test_the_compiled_plan_is_that_of_python(seed, count):
    rng = np.random.default_rng(seed)
    files = rng.integers(0, 4, count)
    offsets, lengths = rng.integers(0, 3000, count), rng.integers(0, 200, count)
    gap, window = int(rng.integers(0, 300)), int(rng.integers(1, 2000))
    expected = plan_reads(files, offsets, lengths + 16, max_gap_bytes=gap, window_bytes=window)
    ranges, places = np.zeros((4, count), np.int64), np.zeros(count, np.int64)
    order = None if frames.in_order(files, offsets) else reading_order(files, offsets)
    num_ranges, num_bytes, numbers = frames.plan_reads(
        files, offsets, lengths, order, gap, window, ranges, places
    )
    assert num_bytes == expected.num_bytes
    assert [numbers[file] for file in ranges[0, :num_ranges]] == expected.files.tolist()
    assert ranges[1:, :num_ranges].tolist() == [
        expected.begins.tolist(),
        expected.sizes.tolist(),
        expected.starts.tolist(),
    ]
    assert (places - 12).tolist() == expected.places.tolist()
    if count > 1 and order is not None:  # it looks itself whether it was told the truth
        assert frames.plan_reads(files, offsets, lengths, None, gap, window, ranges, places) is None


def test_what_the_compiled_plan_does_not_take():

    def plan(files, offsets, lengths, order=None):
        arrays = [np.array(numbers, np.int64) for numbers in (files, offsets, lengths)]
        order = None if order is None else np.array(order, np.int64)
        ranges, places = np.zeros((4, len(files)), np.int64), np.zeros(len(files), np.int64)
        return frames.plan_reads(*arrays, order, 4096, 1 << 24, ranges, places)

    assert plan([0, 0], [0, 20], [4, 4]) == (1, 40, [0])
    assert plan([0, 0], [20, 0], [4, 4], [1, 0]) == (1, 40, [0])
    assert plan([], [], []) == (0, 0, [])
    for bad in (
        [[0], [-1], [4]],
        [[0], [0], [-1]],
        [[0], [0], [2**62]],
        [[0], [2**62], [0]],
        [[-1], [0], [4]],
        [[1, 0], [0, 0], [4, 4]],
        [[0, 0], [20, 0], [4, 4], [2, 0]],
        [[0, 0], [20, 0], [4, 4], [-1, 0]],
    ):
        assert plan(*bad) is None, bad
    with pytest.raises(ValueError, match="do not fit"):
        plan([0, 0], [0, 20], [4])
    with pytest.raises(ValueError, match="order does not fit"):
        plan([0, 0], [0, 20], [4, 4], [0])


def test_the_compiled_read_stays_inside_file_and_buffer(tmp_path):
    (tmp_path / "x").write_bytes(framed(b"abcd", b"efgh"))
    source = open_file(str(tmp_path / "x"))
    lengths = np.array([4, 4])

    def read(ranges, *, size=40, facts=None, places=(12, 32), first=0, last=None):
        buffer, ranges = np.zeros(size, np.uint8), np.array(ranges, np.int64).T.copy()
        facts = [(source.hold().number, source.file_size)] if facts is None else facts
        last = ranges.shape[1] if last is None else last
        return frames.read_records(
            facts, 0, ranges, first, last, buffer, np.array(places, np.int64), lengths, True
        )

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
        read([(0, 0, 40, 0)], facts=[(source.hold().number, 40)] * 9)


@pytest.mark.parametrize("sizes", [[5], [0, 3, 0, 0, 2], [0], [], [0, 0, 4]])
def test_finding_records(sizes):
    ends = np.cumsum(sizes, dtype=np.int64)
    borders, expected = [], []
    for file, size in enumerate(sizes):
        of_file = [7 * file + 100 * number * number for number in range(size + 1)]
        borders += of_file
        expected += [(file, begin, end - begin - 16) for begin, end in pairwise(of_file)]
    rng = np.random.default_rng(0)
    for positions in (
        np.arange(len(expected)),
        rng.permutation(len(expected)),
        rng.permutation(len(expected))[::2],
    ):
        places = np.zeros((3, len(positions)), np.int64)
        found = frames.find(
            np.ascontiguousarray(positions), ends, np.array(borders, np.int64), places
        )
        assert found and [tuple(row) for row in places.T.tolist()] == [
            expected[n] for n in positions.tolist()
        ]
    for wrong in (-1, len(expected), 2**62, -(2**62)):
        places = np.zeros((3, 1), np.int64)
        assert not frames.find(np.array([wrong]), ends, np.array(borders, np.int64), places)


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


# Values: parts of files with a checksum each.


def write_files(directory, count, num_bytes=1 << 19, seed=0):
    """Files of noise, and their bytes."""
    rng = np.random.default_rng(seed)
    contents = [rng.bytes(num_bytes) for _ in range(count)]
    for number, content in enumerate(contents):
        (directory / str(number)).write_bytes(content)
    return contents


def places_of(content, spans):
    rows = [(begin, size, crc32c(content[begin : begin + size])) for begin, size in spans]
    return np.array(rows, np.int64).reshape(-1, 3)


def test_values_are_the_bytes_of_the_files(tmp_path):
    contents = write_files(tmp_path, 3)
    sources = [open_file(str(tmp_path / str(number))) for number in range(3)]
    spans = [
        [
            (5, 1),
            (0, 0),
            (7, 300_000),
            (1 << 19, 0),
            (0, 1 << 19),
        ],  # some longer than what is read in one piece
        [],
        [(9, 20_000), (3, 17), (9, 20_000), (1, 1 << 18), (1, (1 << 18) + 1), ((1 << 19) - 4, 4)],
    ]
    places = np.concatenate(
        [places_of(content, own) for content, own in zip(contents, spans, strict=True)]
    )
    facts = [
        (source.hold().number, source.file_size, len(own))
        for source, own in zip(sources, spans, strict=True)
    ]
    expected = [
        content[begin : begin + size]
        for content, own in zip(contents, spans, strict=True)
        for begin, size in own
    ]
    found = frames.read_values(facts, places)
    assert found == expected
    assert all(type(value) is bytes for value in found)
    assert frames.read_values(facts, np.asfortranarray(places)) == expected
    assert frames.read_values([], places[:0]) == []
    assert frames.read_values([facts[1]], places[:0]) == []


def test_values_in_any_doubt(tmp_path):
    (content,) = write_files(tmp_path, 1, 1000)
    source = open_file(str(tmp_path / "0"))
    good = places_of(content, [(0, 400), (400, 600), (1000, 0)])

    own = source.hold().number

    def read(places, *, fd=own, file_size=1000):
        return frames.read_values([(fd, file_size, len(places))], places)

    def changed(row, field, value):
        places = good.copy()
        places[row, field] = value
        return places

    assert read(good) == [content[:400], content[400:], b""]
    for row in range(3):
        expected = int(good[row, 2])
        for crc in (
            expected ^ 1,
            expected ^ 1 << 31,
            expected + (1 << 32),
            expected - (1 << 32),
            -1,
        ):
            assert read(changed(row, 2, crc)) is None
    for field, wrong in [
        (0, -1),
        (0, 401),
        (0, 2**62),
        (0, -(2**62)),
        (1, 601),
        (1, -1),
        (1, 2**62),
        (1, -(2**62)),
    ]:
        assert read(changed(1, field, wrong)) is None, (field, wrong)
    for outside in (1001, -1, -(2**63)):  # of no bytes
        assert read(changed(2, 0, outside)) is None
    assert read(good, file_size=999) is None  # more than the file has, by what was said of it
    assert read(good, fd=-1) is None
    closed = os.dup(source.hold().number)
    os.close(closed)
    assert read(good, fd=closed) is None
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read(good, fd=folder) is None
    os.close(folder)


def test_values_of_a_file_that_was_cut_or_changed_meanwhile(tmp_path):
    (content,) = write_files(tmp_path, 1, 400_000)
    path = tmp_path / "0"
    source = open_file(str(path))
    places = places_of(content, [(0, 100), (100, 399_900)])
    facts = [(source.hold().number, source.file_size, 2)]
    assert frames.read_values(facts, places) == [content[:100], content[100:]]
    os.truncate(path, 399_999)
    assert frames.read_values(facts, places) is None
    os.truncate(path, 400_000)  # the last byte is 0 now
    assert content[-1] != 0 and frames.read_values(facts, places) is None
    with open(path, "r+b") as file:
        file.write(b"\0" * 400_000)
    assert frames.read_values(facts, places) is None


def test_values_need_arrays_that_fit(tmp_path):
    (content,) = write_files(tmp_path, 1, 1000)
    source = open_file(str(tmp_path / "0"))
    places = places_of(content, [(0, 400), (400, 600)])
    fact = (source.hold().number, 1000)
    for counts in ([], [1], [3], [-1, 3], [3, -1], [1, 1, 1], [2**62], [-(2**62)]):
        with pytest.raises(ValueError, match="expected sources of 2 parts in all"):
            frames.read_values([(*fact, count) for count in counts], places)
    with pytest.raises(ValueError, match="do not fit"):
        frames.read_values([(*fact, 2)], places[:, :2])
    most = frames.MOST_SOURCES
    assert frames.read_values([(*fact, 2)] + [(*fact, 0)] * (most - 1), places) == [
        content[:400],
        content[400:],
    ]
    with pytest.raises(ValueError, match="do not fit"):
        frames.read_values([(*fact, 2)] + [(*fact, 0)] * most, places)


def test_values_of_many_files_hold_few_of_them_open(tmp_path):
    contents = write_files(tmp_path, 30, 100)
    rng = np.random.default_rng(1)
    files = [int(file) for file in rng.integers(0, 30, 50)]
    counts = [int(count) for count in rng.integers(0, 4, 50)]
    spans = [[(int(begin), 30) for begin in rng.integers(0, 71, count)] for count in counts]
    places = np.concatenate(
        [places_of(contents[file], own) for file, own in zip(files, spans, strict=True)]
    )
    expected = [
        contents[file][begin : begin + size]
        for file, own in zip(files, spans, strict=True)
        for begin, size in own
    ]
    opened = []
    most_open = 0

    def source_of(file):
        nonlocal most_open
        source = LocalFile(str(tmp_path / str(file)))
        opened.append(weakref.ref(source))
        most_open = max(most_open, sum(item() is not None for item in opened))
        return source

    assert read_local_values(source_of, files, counts, places) == expected
    assert most_open == frames.MOST_SOURCES
    assert not any(item() is not None for item in opened)
    assert read_local_values(source_of, [], [], places[:0]) == []


def test_values_of_what_is_no_local_file_and_of_a_damaged_one(tmp_path):
    contents = write_files(tmp_path, 20, 100)
    places = np.concatenate([places_of(content, [(3, 50)]) for content in contents])
    sources = [open_file(str(tmp_path / str(number))) for number in range(20)]
    assert read_local_values(sources.__getitem__, range(20), [1] * 20, places) == [
        item[3:53] for item in contents
    ]
    for odd in (0, 8, 19):
        others = list(sources)
        others[odd] = InflatedSource(sources[odd], "GZIP")
        assert read_local_values(others.__getitem__, range(20), [1] * 20, places) is None
        damaged = places.copy()
        damaged[odd, 2] ^= 1 << 7
        assert read_local_values(sources.__getitem__, range(20), [1] * 20, damaged) is None


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
    assert frames.read_records(
        sources, 0, ranges, 0, 0, np.zeros(8, np.uint8), no_numbers, no_numbers, True
    )
    assert sources == []
    sources += [(0, Emptying(sources), 0), (0, 0, 0)]
    assert frames.read_values(sources, np.zeros((0, 3), np.int64)) == []
    assert sources == []


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
