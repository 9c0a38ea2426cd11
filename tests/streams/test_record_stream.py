"""Streams of any files: interleaved as tf.data does it, every record dealt out once, and going on
from every place, by the same or by other consumers.
"""

import json
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from helpers import for_each, framed
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord import TFRecordIterableDataset

pytestmark = [
    pytest.mark.usefixtures("random_states_untouched"),
    pytest.mark.filterwarnings("ignore:no file has a record"),
]


def write(folder, sizes):
    """Files of so many records, each with its name as payload."""
    for file, size in enumerate(sizes):
        records = [b"%d.%d" % (file, number) for number in range(size)]
        (Path(folder) / f"{file:02}").write_bytes(framed(*records))
    return Counter(b"%d.%d" % (file, n) for file, size in enumerate(sizes) for n in range(size))


def stream(folder, consumer=0, num_consumers=1, **options):
    paths = f"{folder}/*" if Path(folder).is_dir() else folder  # with empty files
    return TFRecordIterableDataset(paths, rank=consumer, world_size=num_consumers, **options)


FILES = {"a": 5, "b": 3, "c": 1, "e": 4}
INTERLEAVED = [  # robustness 84: TensorFlow's order
    (1, 1, "a0 a1 a2 a3 a4 b0 b1 b2 c0 e0 e1 e2 e3"),
    (2, 1, "a0 b0 a1 b1 a2 b2 a3 a4 c0 e0 e1 e2 e3"),
    (3, 1, "a0 b0 c0 a1 b1 a2 b2 e0 a3 e1 a4 e2 e3"),
    (4, 1, "a0 b0 c0 e0 a1 b1 e1 a2 b2 e2 a3 e3 a4"),
    (8, 1, "a0 b0 c0 e0 a1 b1 e1 a2 b2 e2 a3 e3 a4"),
    (2, 2, "a0 a1 b0 b1 a2 a3 b2 a4 c0 e0 e1 e2 e3"),
    (3, 3, "a0 a1 a2 b0 b1 b2 c0 a3 a4 e0 e1 e2 e3"),
]


@pytest.mark.parametrize(("cycle_length", "block_length", "order"), INTERLEAVED)
def test_interleave_as_tensorflow(tmp_path, cycle_length, block_length, order):
    for name, size in FILES.items():
        records = [f"{name}{n}".encode() for n in range(size)]
        (tmp_path / name).write_bytes(framed(*records))
    found = stream(tmp_path, cycle_length=cycle_length, block_length=block_length)
    assert b" ".join(found).decode() == order


OPTIONS = st.fixed_dictionaries(
    {
        "cycle_length": st.integers(1, 4),
        "block_length": st.integers(1, 3),
        "shuffle_buffer_size": st.sampled_from([0, 1, 2, 5, 30]),
        "seed": st.integers(0, 3),
    }
)
SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@pytest.mark.daily
@given(SIZES, OPTIONS)
@settings(max_examples=60)
def test_going_on_from_every_place(sizes, options):
    with tempfile.TemporaryDirectory() as folder:
        write(folder, sizes)
        whole = [*stream(folder, **options)]
        for count in range(len(whole) + 1):
            state, middle = None, (count + len(whole)) // 2
            for begin, end in ((0, count), (count, middle), (middle, None)):
                found = stream(folder, **options)
                if state is not None:
                    found.load_state_dict(state)
                    assert found.state_dict() == state
                if begin != end:
                    size = None if end is None else end - begin
                    assert [*islice(iter(found), size)] == whole[begin:end]
                state = json.loads(json.dumps(found.state_dict()))


@given(SIZES, OPTIONS, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_consumers(sizes, options, counts, data):
    """Each takes some of its part; what they left is dealt out to the next ones; the last ones take
    all.
    """
    with tempfile.TemporaryDirectory() as folder:
        every, states, seen = write(folder, sizes), None, []
        for generation, count in enumerate(counts):
            streams = [stream(folder, consumer, count, **options) for consumer in range(count)]
            for each in streams:
                if states is not None:
                    each.load_state_dict(states)
                is_last = generation == len(counts) - 1
                seen += islice(iter(each), None if is_last else data.draw(st.integers(0, 9)))
            states = json.loads(json.dumps([each.state_dict() for each in streams]))
        assert Counter(seen) == every


def test_a_record_that_is_there_no_more(tmp_path):
    write(tmp_path, [9])
    first = stream(tmp_path, shuffle_buffer_size=4)
    next(iter(first))
    state = first.state_dict()
    write(tmp_path, [2])
    changed = stream(tmp_path, shuffle_buffer_size=4)
    changed.load_state_dict(state)
    with pytest.raises(ValueError, match="file 0 no longer has record"):
        next(iter(changed))


@for_each("num_consumers", range(1, 13))
@for_each("num_files", range(1, 13))
def test_every_record_is_dealt_out_once(tmp_path, num_files, num_consumers):
    folder = tmp_path / str(num_files)
    folder.mkdir(exist_ok=True)
    every = write(folder, [7 * file % 12 for file in range(num_files)])
    shares = [[*stream(folder, number, num_consumers)] for number in range(num_consumers)]
    assert Counter(record for share in shares for record in share) == every


def test_dealing_out_frozen(tmp_path):
    """Whole files, the same number to each; the others record by record."""
    write(tmp_path, [4] * 5)
    shares = [b" ".join(stream(tmp_path, number, 4)).decode() for number in range(4)]
    assert shares == [f"{n}.0 {n}.1 {n}.2 {n}.3 4.{n}" for n in range(4)]
    shares = [b" ".join(stream(tmp_path / "0[01]", number, 5)).decode() for number in range(5)]
    assert shares == ["0.0 0.3", "1.0 1.2", "0.1", "1.1 1.3", "0.2"]
