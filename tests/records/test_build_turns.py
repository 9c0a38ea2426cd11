"""Several processes that need the same indexes: each is built once, whoever is killed, and nobody
waits for ever.

Covers records/index_keeper.
"""

import errno
import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from helpers import framed
from jobs import torchrun

from torch_tfrecord import CorruptRecordError, build_index
from torch_tfrecord.files import AtomicFile
from torch_tfrecord.records import IndexKeeper

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def files(tmp_path):
    paths = [str(tmp_path / f"x-{number}") for number in range(6)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(framed(b"%d" % number, b"abc"))
    return paths


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A file with a line for each index that is built, by whichever process; building takes a
    while.
    """
    path = tmp_path / "log"
    path.touch()
    real = IndexKeeper._build

    def build(self, file):
        with open(path, "a") as lines:
            lines.write(f"{os.getpid()} {file.path}\n")
        time.sleep(0.05)
        return real(self, file)

    monkeypatch.setattr(IndexKeeper, "_build", build)
    return path


def in_processes(count, function, *arguments):
    children = [FORK.Process(target=function, args=(number, *arguments)) for number in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * count


def check_indexes(number, files):
    assert [len(index) for index in IndexKeeper().each(files)] == [2] * len(files)


@pytest.mark.slow
def test_each_index_is_built_once(files, log):
    in_processes(3, check_indexes, files)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sorted(path for _, path in lines) == files
    assert len({pid for pid, _ in lines}) > 1  # they share the work
    folder = Path(IndexKeeper.place(files[0])).parent
    assert sorted(os.listdir(folder)) == sorted(
        Path(IndexKeeper.place(path)).name for path in files
    )


@pytest.mark.daily
def test_a_killed_builder_keeps_nobody_waiting(files, log, monkeypatch):
    ready = FORK.Event()

    def build_for_ever(self, file):
        ready.set()
        time.sleep(1000)

    def child():
        IndexKeeper._build = build_for_ever
        list(IndexKeeper().each(files[:1]))

    builder = FORK.Process(target=child)
    builder.start()
    assert ready.wait(30)
    waiter = FORK.Process(target=check_indexes, args=(0, files[:1]))
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive()
    os.kill(builder.pid, signal.SIGKILL)
    waiter.join(200)
    assert waiter.exitcode == 0
    assert [line.split()[1] for line in log.read_text().splitlines()] == files[:1]
    assert os.listdir(Path(IndexKeeper.place(files[0])).parent) == [
        Path(IndexKeeper.place(files[0])).name
    ]


def test_who_waits_says_so_and_not_for_ever(files, monkeypatch):
    module = "torch_tfrecord.records.index_keeper."
    monkeypatch.setattr(f"{module}_SILENT_SECONDS", 0)
    monkeypatch.setattr(f"{module}_MOST_SECONDS", 0.1)
    with IndexKeeper()._building_alone(files[0]) as is_alone:
        assert is_alone
        with pytest.warns(
            UserWarning, match="x-0: another process builds its index; waiting for it"
        ):
            (index,) = IndexKeeper().indexes(files[:1])
    assert index == build_index(files[0])


@pytest.mark.slow
def test_meanwhile_others_are_built(files, log):
    with IndexKeeper()._building_alone(files[0]):
        child = FORK.Process(target=check_indexes, args=(0, files))
        child.start()
        end = time.monotonic() + 30
        while len(log.read_text().splitlines()) < 5 and time.monotonic() < end:
            time.sleep(0.01)
        assert [line.split()[1] for line in log.read_text().splitlines()] == files[1:]
    child.join(200)
    assert child.exitcode == 0


@pytest.mark.daily
def test_a_damaged_file_is_reported_in_its_turn(files):
    Path(files[3]).write_bytes(framed(b"abc")[:-1])
    with IndexKeeper()._building_alone(files[1]):
        child = FORK.Process(target=fail_at, args=(files, 3))
        child.start()
        child.join(0.5)
    child.join(200)
    assert child.exitcode == 0


def fail_at(files, number):
    found = []
    with pytest.raises(CorruptRecordError, match=files[number]):
        found.extend(IndexKeeper().each(files))
    assert len(files) > number


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(files, monkeypatch, number):
    def flock(descriptor, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert len(IndexKeeper().indexes(files)) == 6
    assert len(os.listdir(Path(IndexKeeper.place(files[0])).parent)) == 6


def test_a_lock_that_was_removed_by_its_owner_is_none(tmp_path):
    """Who opened it before it was removed must not take it for the one that others see."""
    keeper, path = IndexKeeper(), str(tmp_path / "x")
    place = Path(keeper.place(path))
    lock = place.parent / AtomicFile.hidden_name(place.name, "lock")
    with keeper._building_alone(path) as is_alone:
        assert is_alone and lock.exists()
        with keeper._building_alone(path) as other:
            assert not other
        lock.unlink()
        with keeper._building_alone(path) as other:
            assert other
    assert not lock.exists()


JOB = """
import os, sys, time
from torch_tfrecord import TFRecordDataset
from torch_tfrecord.records import RecordIndex

real = RecordIndex._build
def index_source(file, **options):
    with open(sys.argv[1] + "/log", "a") as lines:
        lines.write(os.environ["RANK"] + " " + file.path + "\\n")
    time.sleep(0.2)
    return real(file, **options)
RecordIndex._build = index_source

ds = TFRecordDataset(sys.argv[1] + "/x-*")
assert len(ds) == 12 and ds[11] == b"abc"
"""


@pytest.mark.daily
def test_torchrun(files, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"}
    done = torchrun(2, tmp_path / "job.py", tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(path for _, path in lines) == files  # each once, by whichever rank
