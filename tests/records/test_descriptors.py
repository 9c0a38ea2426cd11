"""Few descriptors for any number of shards and threads: each program runs in a process that may
open 32 files.

Covers files/local_file.
"""

import errno
import gc
import os
import threading
import time

import pytest
from helpers import run_program

from torch_tfrecord import CorruptRecordError, TFRecordWriter
from torch_tfrecord.files import LocalFile, open_path

MODULE = "torch_tfrecord.files.local_file"
NUM_SHARDS = 300

PROGRAM = """
import os, resource, sys, threading, warnings
import torch
import torch_tfrecord as tfr

def most_open():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

warnings.simplefilter("ignore")
folder, how = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
features = {"id": tfr.FixedLenFeature((), torch.int64)}
ids = []
if how.startswith("loader"):
    loader = tfr.make_dataloader(folder, 64, features, num_threads=int(how.split("-")[1]), index="memory")
    ids = [number for batch in loader for number in batch["id"].tolist()]
elif how == "random":
    ds = tfr.TFRecordDataset(folder, features, index="memory")
    positions = torch.randperm(len(ds), generator=torch.Generator().manual_seed(0)).tolist()
    parts, errors = [[] for _ in range(8)], []
    def read(number):
        try:
            mine = positions[number::8]
            for begin in range(0, len(mine), 16):
                parts[number] += [int(sample["id"]) for sample in ds.__getitems__(mine[begin : begin + 16])]
        except Exception as error:
            errors.append(error)
    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors, errors
    ids = sum(parts, [])
else:
    ds = tfr.TFRecordIterableDataset(folder, features, cycle_length=200, shuffle_buffer_size=10, batch_size=50)
    ids = [number for batch in ds for number in batch["id"].tolist()]
    assert ids != sorted(ids)
assert sorted(ids) == list(range(900)), len(ids)
"""


@pytest.fixture(scope="module", params=["plain", "gzip"])
def shards(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    for shard in range(NUM_SHARDS):
        suffix, compression = ("", None) if request.param == "plain" else (".gz", "GZIP")
        name = f"part-{shard:05d}-of-{NUM_SHARDS:05d}.tfrecord{suffix}"
        with TFRecordWriter(folder / name, compression_type=compression) as writer:
            for number in range(3):
                writer.write({"id": 3 * shard + number})
    return folder


@pytest.mark.daily
@pytest.mark.parametrize(
    "how",
    [
        "loader-8",
        *(pytest.param(how, marks=pytest.mark.slow) for how in ("loader-0", "random", "stream")),
    ],
)
def test_32_descriptors_are_enough(shards, how, tmp_path):
    done = run_program(PROGRAM, tmp_path, shards, how)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def files(tmp_path, monkeypatch):
    gc.collect()
    monkeypatch.setattr(f"{MODULE}._most_open", lambda: 4)
    for number in range(40):
        (tmp_path / str(number)).write_bytes(b"%04d" % number * 3)
    return [LocalFile(str(tmp_path / str(number))) for number in range(40)]


def close_all():
    """Have all files closed that nobody reads, as when too many are open."""
    answers = iter([OSError(errno.EMFILE, "too many"), None])

    def open_(path):
        answer = next(answers)
        if answer is not None:
            raise answer

    open_path(open_, "x")


def num_open(folder):
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except OSError:
            continue
    return found


def test_what_is_read_is_not_closed(files, tmp_path):
    held = files[7].hold()
    for file in files:
        file.read(1, 0)
    assert os.pread(held.number, 4, 0) == b"0007"
    assert num_open(tmp_path) <= 4
    number = held.number
    del held
    for file in files[20:]:
        file.read(1, 0)
    assert files[7].hold().number >= 0
    assert number >= 0


def test_who_holds_some_does_not_wait(files):
    held = []
    for file in files:
        one = file.hold_if_free()
        if one is None:
            break
        held.append(one)
    assert len(held) == 4


def test_who_holds_none_waits_for_a_reader(files):
    held = [file.hold() for file in files[:4]]
    threading.Timer(0.05, held.clear).start()
    assert files[30].read(4, 0) == b"0030"
    assert not held


def test_what_is_never_given_back_does_not_stop_others(files, monkeypatch):
    monkeypatch.setattr(f"{MODULE}._MOST_WAITS", 3)
    held = [file.hold() for file in files[:4]]
    assert files[30].read(4, 0) == b"0030"
    assert len(held) == 4


def test_a_relative_path_after_a_change_of_folder(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = LocalFile("3")
    close_all()
    monkeypatch.chdir("/")
    assert source.read(4, 0) == b"0003"


def test_another_file_in_its_place(files, tmp_path):
    close_all()
    time.sleep(0.01)
    (tmp_path / "new").write_bytes(b"another file")
    os.replace(tmp_path / "new", tmp_path / "5")
    os.unlink(tmp_path / "6")
    with pytest.raises(
        CorruptRecordError,
        match="5: expected the file that was opened, got another one in its place",
    ):
        files[5].read(4, 0)
    with pytest.raises(FileNotFoundError, match=r"No such file.*/6'"):
        files[6].read(4, 0)


def test_open_files_of_others_are_let_go_first(tmp_path):
    for number in range(9):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    program = """
import os, resource, sys
from torch_tfrecord.files import LocalFile
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
files = [LocalFile(f"{sys.argv[1]}/{number}") for number in range(4)]
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
files += [LocalFile(f"{sys.argv[1]}/{number}") for number in range(4, 9)]
print([file.read(1, 0) for file in files] == [b"%d" % number for number in range(9)])
"""
    done = run_program(program, tmp_path, tmp_path)
    assert done.stdout == "True\n", done.stderr


ELSEWHERE = """
import os, resource, sys, warnings
import torch, torch_tfrecord as tfr
from torch_tfrecord import tfds
from torch_tfrecord.files import LocalFile
warnings.simplefilter("ignore")
folder = sys.argv[1]
def write_one(name):
    with tfr.TFRecordWriter(f"{folder}/{name}") as writer:
        writer.write({"a": 1})
def write_set(name):
    with tfr.ShardedTFRecordWriter(f"{folder}/{name}-set", num_shards=2) as writer:
        writer.write({"a": 1})
def write_tfds(name):
    tfds.write(f"{folder}/{name}-tfds/1.0.0", {"train": [{"a": 1}]}, {"a": tfds.features.Scalar("int64")}, name="toy")
actions = {
    "reader": lambda name: LocalFile(f"{folder}/data/one.tfrecord"),
    "writer": write_one,
    "shards": write_set,
    "index": lambda name: index.save(f"{folder}/{name}-index"),
    "folder": lambda name: tfr.TFRecordIterableDataset(f"{folder}/data"),
    "glob": lambda name: tfr.TFRecordIterableDataset(f"{folder}/data/*.tfrecord"),
    "tfds.write": write_tfds,
    "tfds.info": lambda name: tfds.info(f"{folder}/toy-tfds"),
}
os.mkdir(f"{folder}/data")
write_one("data/one.tfrecord")
write_tfds("toy")
index = tfr.build_index(f"{folder}/data/one.tfrecord")
for action in actions.values():  # what they import is imported
    action("before")
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
found = {}
for name, action in actions.items():
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        action("after")
        found[name] = "no error"
    except OSError as error:
        found[name] = str(error)
    finally:
        [os.close(number) for number in taken]
for name, text in found.items():
    print(name, text)
print(sorted(os.listdir(folder)))
"""


def test_who_reads_writes_or_lists_names_the_limit(tmp_path, tmp_path_factory):
    done = run_program(ELSEWHERE, tmp_path_factory.mktemp("printed"), tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, left = done.stdout.splitlines()
    limit = "[Errno 24] Too many open files (this process may open 32: RLIMIT_NOFILE, `ulimit -n`, up to 32)"
    assert [line.split()[0] for line in lines] == [
        "reader", "writer", "shards", "index", "folder", "glob", "tfds.write", "tfds.info",
    ]  # fmt: skip
    for line in lines:
        name, text = line.split(" ", 1)
        assert text.startswith(f"{limit}: '{tmp_path}"), (name, text)
    assert "after" not in left.replace("'after-tfds'", "")  # its folder, empty


RLDS = """
import resource, sys, threading
import numpy as np, torch
from torch_tfrecord import tfds
from torch_tfrecord.loading.read_ahead import ReadAheadLoader
f = tfds.features
features = {"steps": f.Dataset({"number": f.Scalar("int64"), "frame": f.Tensor((200,), "uint8", encoding="bytes")})}
def episode(number):
    frames = np.full((100, 200), number, np.uint8)
    return {"steps": {"number": np.arange(100) + 100 * number, "frame": frames}}
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
samples = {"train": (episode(number) for number in range(80))}
tfds.write(sys.argv[1] + "/toy/1.0.0", samples, features, name="toy", num_shards=80)
ds = tfds.RLDSDataset(sys.argv[1] + "/toy", "train", episode_bytes=0)
loader = ReadAheadLoader(ds, batch_size=64, shuffle=True, num_threads=8)
found = {}
for batch in loader:
    for number, frame in zip(batch["number"].tolist(), batch["frame"]):
        assert (frame == number // 100).all()
        found[number] = True
assert len(found) == 8000, len(found)
"""


@pytest.mark.daily
def test_32_descriptors_are_enough_for_episodes(tmp_path):
    done = run_program(RLDS, tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
