"""Opening and reading files: odd ones, failing ones, changing ones, many at once."""

import errno
import gc
import os
import socket
from pathlib import Path

import fsspec
import pytest
from helpers import FaultyRead, collect, compressed, framed, open_descriptors, random_payloads

from torch_tfrecord import (
    CorruptRecordError,
    IndexMismatchError,
    RecordIndex,
    TFRecordError,
    build_index,
    find_files,
    read_records,
)
from torch_tfrecord.files import LocalFile, open_file
from torch_tfrecord.records import IndexKeeper, RecordReader, RecordScanner, open_stream

# What is no regular file. robustness 74


def _missing(path):
    pass


def _fifo(path):
    os.mkfifo(path)


def _dangling(path):
    path.symlink_to(path.parent / "nothing")


def _loop(path):
    path.symlink_to(path)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _device(path):
    path.symlink_to("/dev/zero")


ODD = [
    (_missing, FileNotFoundError, "No such file or directory"),
    (Path.mkdir, IsADirectoryError, "Is a directory"),
    (_fifo, OSError, "expected a regular file, got a pipe, socket or device"),
    (_device, OSError, "expected a regular file, got a pipe, socket or device"),
    (_dangling, FileNotFoundError, "No such file or directory"),
    (_loop, OSError, "Too many levels of symbolic links"),
    (_socket, OSError, "No such device or address"),
]


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("make", "kind", "text"), ODD, ids=[make.__name__ for make, *_ in ODD])
def test_what_is_no_file_names_its_path_and_does_not_hang(make, kind, text, tmp_path):
    path = tmp_path / "x"
    make(path)
    gc.collect()  # what earlier tests left
    before = open_descriptors()
    # A directory is read as the files in it.
    readers = () if make is Path.mkdir else (lambda p: list(read_records(p)), build_index)
    for call in (open_file, RecordIndex.load, *readers):
        with pytest.raises(kind, match=text) as caught:
            call(str(path))
        assert caught.value.filename == str(path)
        assert str(path) in str(caught.value)
        del caught  # its traceback holds the file
    assert open_descriptors() == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO])
def test_errors_of_open_name_the_path(number, monkeypatch, tmp_path):
    """As root permission bits do not bite, so the answer of the system is made up."""

    def refuse(path, *_):
        raise OSError(number, os.strerror(number), path)

    (tmp_path / "x").touch()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        list(read_records(tmp_path / "x"))
    assert caught.value.filename == str(tmp_path / "x")


NAMES = [
    "with space",
    "new\nline",
    "a#b?c",
    "ünï",
    "*[x]",
    "-dash",
    "~",
    "a" * 255,
    os.fsdecode(b"\xff\xfe\x80"),
    "x@3",
    "%41",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_odd_names(name, tmp_path):  # robustness 81
    path = tmp_path / name
    path.write_bytes(framed(b"abc"))
    for form in (str(path), path):
        assert list(read_records(form)) == [b"abc"]
        assert find_files(form) == [str(path)]
        (index,) = IndexKeeper(index_dir=tmp_path / "index").indexes([str(path)])
        assert len(index) == 1
    assert RecordReader().read(open_file(str(path)), 0, 3) == b"abc"
    path.write_bytes(b"broken")
    with pytest.raises(CorruptRecordError) as caught:
        list(read_records(path))
    assert caught.value.path == str(path)


# Failing reads. robustness 16, 72, 73

FAULTS = ["short", "EIO", "EINTR", "ESTALE", "memory"]
PAYLOADS = [*random_payloads(20, 4), b"y" * 500]


@pytest.fixture(params=["", "GZIP"])
def data(request, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(compressed(framed(*PAYLOADS), request.param))
    return str(path), build_index(path)


def _count_calls(monkeypatch, action):
    counter = FaultyRead("none", -1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", counter)
        action()
    return counter.calls


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_call_of_a_scan_then_going_on(data, fault, monkeypatch):
    path, _ = data
    monkeypatch.setattr(LocalFile, "chunk_bytes", 64)
    monkeypatch.setattr("torch_tfrecord.compression.inflated._INPUT_BYTES", 50)

    def scan_with_retry():
        stream, _ = open_stream(open_file(path), "auto")
        scanner = RecordScanner(stream)
        read, faults = [], []
        while True:
            blocks, error = collect(scanner, (OSError, MemoryError))
            read += [payload for block in blocks for payload in block.payloads]
            if error is None:
                return read, faults
            faults.append(error)

    calls = _count_calls(monkeypatch, scan_with_retry)
    assert calls >= 5
    for at in range(1, calls):  # the first read is that of open_stream
        with monkeypatch.context() as patch:
            faulty = FaultyRead(fault, at)
            patch.setattr(os, "preadv", faulty)
            read, faults = scan_with_retry()
        assert faulty.calls > at
        assert read == PAYLOADS, at
        assert len(faults) == (fault != "short")
        if faults and fault != "memory":
            assert faults[0].errno == getattr(errno, fault)
            assert faults[0].filename == path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_call_of_single_reads_then_again(data, fault, monkeypatch):
    path, index = data
    monkeypatch.setattr("torch_tfrecord.records.reader._LONG_BYTES", 100)
    source, _ = open_stream(open_file(path), index.compression_type)
    reader = RecordReader()
    for number in (3, 20, 0):
        place = int(index.offsets[number]), int(index.lengths[number])
        for at in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(os, "preadv", FaultyRead(fault, at))
                for _ in range(3):
                    try:
                        assert reader.read(source, *place) == PAYLOADS[number]
                    except (OSError, MemoryError):
                        assert fault != "short"
            assert reader.read(source, *place) == PAYLOADS[number]


@pytest.mark.parametrize("fault", ["EIO", "memory"])
def test_a_fault_while_building_leaves_no_index(data, fault, monkeypatch):  # robustness 64
    path, _ = data
    calls = _count_calls(monkeypatch, lambda: build_index(path))
    for at in range(calls):
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", FaultyRead(fault, at))
            with pytest.raises((OSError, MemoryError)):
                IndexKeeper().indexes([path])
    assert os.listdir(os.path.dirname(path)) == ["x"]
    assert not os.path.exists(os.environ["XDG_CACHE_HOME"])


# Files that change while they are open. robustness 66, 67


@pytest.mark.parametrize("change", ["cut", "cut at a border", "grow", "replace", "delete"])
def test_files_that_change_while_they_are_read(change, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalFile, "chunk_bytes", 64)
    path = tmp_path / "x"
    payloads = [bytes([n]) * 30 for n in range(20)]
    path.write_bytes(framed(*payloads))
    records = read_records(path)
    read = [next(records)]
    if change.startswith("cut"):
        os.truncate(path, 46 * 10 + 5 * (change == "cut"))
    elif change == "grow":
        with path.open("ab") as file:
            file.write(framed(b"new") + b"half")
    elif change == "replace":
        (tmp_path / "y").write_bytes(framed(*[b"other"] * 20))
        os.replace(tmp_path / "y", path)
    else:
        path.unlink()
    more, error = collect(records, TFRecordError)
    read += more
    if change.startswith("cut"):
        assert read == payloads[:10]
        assert type(error) is CorruptRecordError
        text = "truncated file: expected 920 bytes, got "
        assert f"{path}: record 10 at byte 460: {text}{460 + 5 * (change == 'cut')}" in str(error)
    else:
        assert (read, error) == (payloads, None)


# Many files.


@pytest.fixture
def shards(tmp_path):
    paths = []
    for number in range(50):
        path = tmp_path / f"s{number}"
        path.write_bytes(framed(f"record of {number}".encode()))
        paths.append(str(path))
    return paths


# Remote files.


@pytest.fixture
def remote():
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.rm("/bucket", recursive=True)


def test_remote_problems(remote):
    remote.pipe("/bucket/d/x", framed(b"abc")[:-1])
    with pytest.raises(FileNotFoundError):
        list(read_records("memory://bucket/d/missing"))
    for path in ("memory://bucket/d/x", "memory://bucket/d"):
        with pytest.raises(
            CorruptRecordError, match=r"^memory://bucket/d/x: record 0 at byte 0: truncated record"
        ):
            list(read_records(path))


def test_remote_names(remote):
    for name in (
        "t-00000-of-00002",
        "t-00001-of-00002",
        "t-00000-of-00002.index.safetensors",
        "README",
        ".hidden",
    ):
        remote.pipe(f"/bucket/d/{name}", framed(b"abc") if name.startswith("t") else b"text")
    shards = [f"memory://bucket/d/t-0000{n}-of-00002" for n in range(2)]
    for paths in (
        "memory://bucket/d",
        "memory://bucket/d/t-*",
        "memory://bucket/d/t@2",
        "memory://bucket/d/t@*",
    ):
        assert find_files(paths) == shards, paths
    assert find_files("memory://bucket/d/[!t]*") == ["memory://bucket/d/README"]
    assert all(list(read_records(path)) == [b"abc"] for path in shards)
    remote.rm("/bucket/d/t-00001-of-00002")
    for paths in (
        "memory://bucket/d",
        "memory://bucket/d/t-*",
        "memory://bucket/d/t@2",
        "memory://bucket/d/t@*",
    ):
        with pytest.raises(FileNotFoundError, match=r"1 of 2 shards missing: .*t-00001-of-00002"):
            find_files(paths)
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        find_files("memory://bucket/d/u-*")


def test_the_index_of_a_remote_file(remote, recwarn):
    remote.pipe("/bucket/x", framed(b"abc", b"d"))
    path = "memory://bucket/x"
    (index,) = IndexKeeper().indexes([path])
    assert index.lengths.tolist() == [3, 1]
    (kept,) = Path(os.environ["XDG_CACHE_HOME"], "torch_tfrecord").iterdir()
    assert RecordIndex.load(kept) == index
    assert IndexKeeper("require").indexes([path]) == [index]
    kept.unlink()
    with pytest.raises(
        IndexMismatchError,
        match=r"expected an index at /.* or memory://bucket/\.torch_index/.* or ",
    ):
        IndexKeeper("require").indexes([path])
    # One that lies beside the data is used, where it lay before, too.
    for place in (IndexKeeper.place(path), f"{path}.index.safetensors"):
        remote.pipe(place.removeprefix("memory:/"), index.to_bytes())
        assert IndexKeeper("require").indexes([path]) == [index]
        assert find_files("memory://bucket/*") == ["memory://bucket/x"]
        remote.rm(place.removeprefix("memory:/"))
    assert not recwarn.list
