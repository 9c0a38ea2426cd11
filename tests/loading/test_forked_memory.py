"""What docs/slow_loader.md says of copy on write: a forked worker copies nothing of the index.

Covers loading/map_dataset.
"""

import multiprocessing
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from torch_tfrecord import TFRecordDataset, TFRecordWriter

RECORDS, BATCH = 150_000, 256


def own_bytes():
    """Memory of this process that no other one has."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(found) for found in re.findall(r"Private_\w+: +(\d+) kB", text))


def grown(read, results):
    before = own_bytes()
    read()
    results.put(own_bytes() - before)


def in_a_fork(read):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=grown, args=(read, results))
    process.start()
    found = results.get()
    process.join()
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_forked_worker_copies_no_index(tmp_path):
    with TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for _ in range(RECORDS):
            writer.write(b"")
    ds = TFRecordDataset(tmp_path / "a.tfrecord", index="memory")
    objects = [f"{number:040d}" for number in range(RECORDS)]  # what a list of paths is

    def look_at(step):
        for begin in range(0, RECORDS - BATCH, BATCH):
            first = begin * step
            assert not any(map(len, ds.__getitems__(range(first, first + BATCH))))

    def look_at_objects():
        for value in objects:
            assert value

    assert in_a_fork(look_at_objects) > RECORDS * 40  # the pages of all strings
    everywhere, at_the_beginning = (in_a_fork(partial(look_at, step)) for step in (1, 0))
    assert everywhere - at_the_beginning < RECORDS * 8 / 2  # the index would be 8 bytes a record
