"""Old files survive every failure of a writer, and a set of shards is replaced as a whole.

Covers files/atomic.
"""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from torch_tfrecord import (
    RecordIndex,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordWriter,
    build_index,
    find_files,
    read_records,
)

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
OPTIONS = [{"num_shards": 5}, {"max_shard_bytes": 200}]
NAMES = [f"x-{number:05d}-of-00005.tfrecord" for number in range(5)]
OLD, NEW = [b"old%07d" % n for n in range(35)], [b"new%07d" % n for n in range(35)]


def write(path, records, **options):
    with TFRecordWriter(path, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def write_set(folder, records, options, *, write_index=True):
    with ShardedTFRecordWriter(folder / "x", write_index=write_index, **options) as writer:
        for record in records:
            writer.write(record)
    assert [Path(path).name for path in writer.paths] == NAMES


def shards_of(records, options):
    """The records of each shard."""
    if "num_shards" in options:
        return {name: records[number::5] for number, name in enumerate(NAMES)}
    return {name: records[7 * number : 7 * number + 7] for number, name in enumerate(NAMES)}


def records_of(folder):
    return sorted(itertools.chain.from_iterable(map(read_records, find_files(folder / "x-*"))))


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".") and name != ".torch_index"]


@pytest.fixture
def fail(monkeypatch):
    """Let the n-th call of a function of os on a path that ends so fail."""

    def fail(name, ending, *, number=errno.EIO, at=0, times=1000):
        real, calls = getattr(os, name), []

        def call(*arguments, **options):
            path = (
                os.readlink(f"/proc/self/fd/{arguments[0]}")
                if name == "fsync"
                else str(arguments[-1])
            )
            if path.endswith(ending):
                calls.append(path)
                if at < len(calls) <= at + times:
                    raise OSError(number, os.strerror(number), path)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    return fail


# One file.


def save_index(path):
    build_index(write(path.parent / "data", [b"abc"])).save(path)


SAVERS = {"writer": lambda path: write(path, [b"new"]), "index": save_index}


@pytest.mark.parametrize("what", SAVERS)
def test_a_failed_sync_of_the_folder_keeps_a_whole_file(what, tmp_path, fail):
    folder = tmp_path / "d"
    folder.mkdir()
    write(folder / "data", [b"abc"])
    (folder / "x").write_bytes(b"old")
    fail("fsync", "/d")
    with pytest.raises(
        OSError,
        match=rf"Input/output error: '{folder / 'x'}'" if what == "writer" else "Input/output",
    ):
        SAVERS[what](folder / "x")
    if what == "writer":
        assert list(read_records(folder / "x")) == [b"new"]  # it has its name: whole
    else:
        assert (folder / "x").exists()
    assert hidden(folder) == []


def test_a_failed_sync_where_nothing_was_leaves_nothing(tmp_path, fail):
    fail("fsync", tmp_path.name)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path / "x", [b"new"])
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize("kind", ["file", "index", *map(str, OPTIONS)])
def test_a_folder_that_may_not_be_listed(kind):
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, 65534, 65534)
    try:
        for records in (OLD, NEW):
            folder.chmod(0o300)
            os.seteuid(65534)
            with pytest.raises(PermissionError):
                os.listdir(folder)
            if kind in ("file", "index"):
                write(folder / "x", records)
                RecordIndex([], [], 0).save(folder / "index")
            else:
                write_set(folder, records, OPTIONS[kind != str(OPTIONS[0])])
            os.seteuid(0)
            folder.chmod(0o700)
            paths = sorted(path for path in folder.glob("x*") if not path.name.endswith("index"))
            assert sorted(itertools.chain.from_iterable(map(read_records, paths))) == records
            assert hidden(folder) == []
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_what_a_killed_writer_left_is_cleared(tmp_path, monkeypatch):
    """Between the temporary name and the final one, which is there for a moment where a file is
    replaced.
    """
    write(tmp_path / "x", [b"old"])
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(
            Path, "replace", lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
        )
        with contextlib.suppress(BaseException):
            write(tmp_path / "x", [b"new"])
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(hidden(tmp_path)) == 1
    assert list(read_records(tmp_path / "x")) == [b"old"]
    with TFRecordWriter(tmp_path / "x"):
        assert hidden(tmp_path) == []


# Sets.


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("call", "ending"),
    [
        ("replace", "x-00002-of-00005.tfrecord"),
        ("link", "3.old"),
        ("fsync", "/d"),
        ("replace", ".safetensors"),
    ],
)
def test_a_set_that_cannot_be_published_keeps_the_old_one(
    call, ending, options, existing, tmp_path, monkeypatch, fail
):
    folder = tmp_path / "d"
    folder.mkdir()
    if existing:
        write_set(folder, OLD, options)
        before = {name: (folder / name).stat() for name in NAMES}
    fail(
        call,
        ending,
        at=2 if ending == ".safetensors" else 0,
        times=1 + 99 * (call == "link"),
    )
    if call == "link" and not existing:
        write_set(folder, NEW, options)  # nothing to keep
        return
    with pytest.raises(OSError, match="Input/output error") as caught:
        write_set(folder, NEW, options)
    monkeypatch.undo()
    assert str(folder) in caught.value.filename
    assert hidden(folder) == []
    if not existing:
        assert os.listdir(folder) == []
        return
    assert {name: (folder / name).stat().st_ino for name in NAMES} == {
        n: s.st_ino for n, s in before.items()
    }
    assert records_of(folder) == OLD
    assert len(TFRecordDataset(folder / "x-*", index="require", transform=bytes)) == 35


@pytest.mark.daily
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=[pytest.mark.slow] * (at % 7 > 0)) for at in range(35)]
)
def test_a_set_whose_writer_is_killed(at, options, existing, tmp_path, monkeypatch):
    if existing:
        write_set(tmp_path, OLD, options)
    writer = os.fork()
    if writer == 0:
        steps = itertools.count()

        def killing(real):
            def call(*arguments, **keywords):
                if next(steps) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **keywords)

            return call

        def beside(self):  # asked before the first file gets its name
            for function in ("replace", "link", "fsync", "unlink"):
                monkeypatch.setattr(os, function, killing(getattr(os, function)))
            return ()

        ShardedTFRecordWriter.beside = property(beside)
        with contextlib.suppress(BaseException):
            write_set(tmp_path, NEW, options)
        os._exit(0)
    os.waitpid(writer, 0)
    there = sorted(set(NAMES) & set(os.listdir(tmp_path)))
    old_shards, new_shards = shards_of(OLD, options), shards_of(NEW, options)
    for name in there:  # each is whole, the old one or the new one
        wanted = [new_shards[name], *([old_shards[name]] if existing else [])]
        assert list(read_records(tmp_path / name)) in wanted
    if existing:
        assert there == NAMES
    elif 0 < len(there) < 5:
        with pytest.raises(FileNotFoundError, match="of 5 shards missing"):
            find_files(f"{tmp_path}/x-*")
    with contextlib.suppress(RuntimeError), ShardedTFRecordWriter(tmp_path / "x", **options):
        raise RuntimeError
    assert hidden(tmp_path) == []
    write_set(tmp_path, NEW, options)
    assert records_of(tmp_path) == NEW
    assert hidden(tmp_path) == []


def test_a_file_system_without_hard_links(tmp_path, fail, monkeypatch):
    write_set(tmp_path, OLD, OPTIONS[0])
    real = os.link

    def link(source, target, **options):
        if str(target).endswith(".old"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), target)
        real(source, target, **options)

    monkeypatch.setattr(os, "link", link)
    fail("replace", NAMES[3], times=1)
    with pytest.raises(OSError, match="Input/output error"):
        write_set(tmp_path, NEW, OPTIONS[0])
    monkeypatch.undo()
    assert records_of(tmp_path) == OLD
    assert hidden(tmp_path) == []


def test_a_writer_that_is_alive_keeps_its_temporaries(tmp_path):
    first = ShardedTFRecordWriter(tmp_path / "x", max_shard_bytes=20)
    for record in (b"first", b"second"):
        first.write(record)
    with ShardedTFRecordWriter(tmp_path / "x", max_shard_bytes=20) as second:
        for record in (b"1", b"2", b"3"):
            second.write(record)
        assert len(hidden(tmp_path)) == 2
    first.close()
    assert [list(read_records(path)) for path in (*second.paths, *first.paths)] == [
        [b"1"], [b"2"], [b"3"], [b"first"], [b"second"]
    ]  # fmt: skip
    assert hidden(tmp_path) == []
