"""A thread decompresses the next pieces of a stream: what comes out, and the errors, are the same.

Covers compression/inflated, per_process.
"""

import contextlib
import gzip
import os
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest
from helpers import framed, open_descriptors

from torch_tfrecord import TFRecordError, TFRecordIterableDataset, read_records
from torch_tfrecord.compression import inflated
from torch_tfrecord.compression.inflated import InflatedSource
from torch_tfrecord.files import LocalFile
from torch_tfrecord.per_process import Ahead
from torch_tfrecord.streams import record_stream

RECORDS = [np.random.default_rng(n).integers(0, 9, 900, np.uint8).tobytes() for n in range(300)]
CONTENT = framed(*RECORDS)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(inflated, "_THREAD_BYTES", (1 << 12, 1 << 13))
    monkeypatch.setattr(record_stream, "num_processors", lambda: 2)


def some_files():
    one, half = gzip.compress(CONTENT), len(CONTENT) // 2
    two = gzip.compress(CONTENT[:half]) + gzip.compress(CONTENT[half:])
    middle = len(one) // 2
    return {
        "one.gz": one,
        "two.gz": two,
        "one.zlib": zlib.compress(CONTENT),
        "cut.gz": one[:middle],
        "cut in the end.gz": one[:-3],
        "changed.gz": one[:middle] + bytes(40) + one[middle + 40 :],
        "checksum.gz": one[:-8] + bytes(4) + one[-4:],
        "more.gz": one + b"more",
        "cut.zlib": zlib.compress(CONTENT)[:-2],
    }


def taken(records):
    found = []
    try:
        for record in records:
            found.append(record)
    except TFRecordError as error:
        return found, type(error), str(error)
    return found, None, ""


@pytest.mark.parametrize("name", some_files())
def test_records_and_errors_are_those_without(name, tmp_path, engine):
    path = tmp_path / name
    path.write_bytes(some_files()[name])
    found = taken(TFRecordIterableDataset(path))
    assert found == taken(read_records(path))
    if name in ("one.gz", "two.gz", "one.zlib"):
        assert found == (RECORDS, None, "")
    else:
        assert found[1] is not None
        assert found[0] == RECORDS[: len(found[0])]
        assert len(found[0]) > 100


def test_it_goes_back_and_on(tmp_path):
    path = tmp_path / "one.gz"
    path.write_bytes(gzip.compress(CONTENT))
    source = InflatedSource(LocalFile(str(path)), "GZIP")
    source.ahead()
    for offset in (0, 90_000, 20, 180_000, 179_999, len(CONTENT) - 9):
        assert source.read(50_000, offset) == CONTENT[offset : offset + 50_000]
    source.stop()
    source.stop()
    assert source.read(9, 0) == CONTENT[:9]  # from the beginning, by a new thread


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("name", ["one.gz", "two.gz"])
def test_a_fork_in_the_middle_goes_on_in_both_processes(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(some_files()[name])
    records = iter(TFRecordIterableDataset(path))
    assert [next(records) for _ in range(100)] == RECORDS[:100]
    pid = os.fork()
    if not pid:  # the child has no thread of the parent's
        code = 1
        with contextlib.suppress(Exception):
            code = int([*records] != RECORDS[100:])
        os._exit(code)
    assert [*records] == RECORDS[100:]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_dropped_iterator_has_no_thread_at_work_and_no_open_file(tmp_path, monkeypatch):
    path, before, inflate = tmp_path / "one.gz", open_descriptors(), InflatedSource._inflated
    path.write_bytes(gzip.compress(CONTENT * 20))

    def slow(self):
        time.sleep(0.1)
        return inflate(self)

    monkeypatch.setattr(inflated, "_THREAD_BYTES", (1 << 20, 1 << 20))
    monkeypatch.setattr(InflatedSource, "_inflated", slow)
    records = iter(TFRecordIterableDataset(path))
    assert next(records) == RECORDS[0]
    del records
    assert open_descriptors() == before


_PROGRAM = """
import sys, time
from torch_tfrecord import TFRecordIterableDataset
from torch_tfrecord.compression import inflated
inflate = inflated.InflatedSource._inflated
def slow(self):
    piece = inflate(self)
    time.sleep(0.3)
    return piece
inflated.InflatedSource._inflated, inflated._THREAD_BYTES = slow, (1 << 20, 1 << 20)
records = iter(TFRecordIterableDataset(sys.argv[1]))
print(len(next(records)))
"""


@pytest.mark.slow
def test_a_program_ends_in_the_middle(tmp_path):
    path = tmp_path / "one.gz"
    path.write_bytes(gzip.compress(CONTENT * 20))
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, path], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("900\n", "", 0)


def test_an_error_comes_in_its_turn():
    def results():
        yield 1
        yield 2
        raise OSError("no disk")

    ahead, made = Ahead(), results()
    assert [ahead.next(made.__next__), ahead.next(made.__next__)] == [1, 2]
    with pytest.raises(OSError, match="no disk"):
        ahead.next(made.__next__)


def test_at_most_two_are_made_ahead_one_at_a_time():
    made, running = [], threading.Lock()

    def make():
        assert running.acquire(blocking=False)
        made.append(len(made))
        running.release()
        return made[-1]

    ahead = Ahead()
    for number in range(300):
        assert ahead.next(make) == number
        assert len(made) <= number + 4
    ahead.stop()
    assert running.acquire(blocking=False)


def test_it_may_be_stopped_by_its_own_thread():
    """As where the garbage collector drops a stream there."""
    ahead = Ahead()

    def make():
        ahead.stop()
        return threading.current_thread()

    assert ahead.next(make) is not threading.current_thread()
    ahead.stop()


def test_where_no_thread_starts_it_is_called_here(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    ahead, numbers = Ahead(), iter(range(9))
    assert [ahead.next(numbers.__next__) for _ in range(5)] == [0, 1, 2, 3, 4]
