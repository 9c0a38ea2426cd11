"""Where indexes are kept: beside the data, in a folder, in the cache, in memory; by several
processes at once.

Covers records/index_keeper.
"""

import errno
import multiprocessing
import os
import re
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from helpers import compressed, framed
from sidecars import flips

from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    IndexMismatchError,
    RecordIndex,
    TFRecordWriter,
    build_index,
)
from torch_tfrecord.files import AtomicFile
from torch_tfrecord.records import IndexKeeper

PAYLOADS = [b"abc", b"", b"x" * 30]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data" / "x"
    path.parent.mkdir()
    path.write_bytes(framed(*PAYLOADS))
    return str(path)


def _cache():
    return Path(os.environ["XDG_CACHE_HOME"], "torch_tfrecord")


@pytest.fixture
def builds(monkeypatch):
    """The paths for which an index was built."""
    built = []
    real = IndexKeeper._build

    def build(self, file):
        built.append(file.path)
        return real(self, file)

    monkeypatch.setattr(IndexKeeper, "_build", build)
    return built


@pytest.fixture
def read_only(monkeypatch):
    """Folders that cannot be written: root is not held back by permission bits, so the system's
    answer is made up.
    """
    folders = []
    real = os.open

    def open_(path, flags, *rest, **named):
        folder = (
            os.path.dirname(path) if os.path.basename(path).startswith(".") else os.fspath(path)
        )
        if flags & (os.O_WRONLY | os.O_RDWR) and any(
            os.path.samefile(folder, f) for f in folders if os.path.exists(f)
        ):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", open_)
    return folders


# The usual way.


def test_kept_beside_the_data_and_used_again(data, builds):
    (index,) = IndexKeeper().indexes([data])
    assert index == build_index(data)
    assert RecordIndex.load(IndexKeeper.place(data)) == index
    folder = Path(data).parent
    assert sorted(os.listdir(folder)) == [".torch_index", "x"]
    # sha256 of "x"
    assert os.listdir(folder / ".torch_index") == ["2d711642b726b044.index.safetensors"]
    assert IndexKeeper().indexes([data]) == [index]
    assert IndexKeeper("require").indexes([data]) == [index]
    assert builds == [data]


def test_require_never_builds(data, builds):
    with pytest.raises(IndexMismatchError) as caught:
        IndexKeeper("require").indexes([data])
    assert str(caught.value).startswith(
        f"{data}: expected an index at {IndexKeeper.place(data)} or {_cache()}/x."
    )
    assert str(caught.value).endswith(
        f" or {data}.index.safetensors, got none (build it with `tfrecord index`, or use index='auto')"
    )
    IndexKeeper().indexes([data])
    with open(data, "ab") as file:
        file.write(framed(b"more"))
    with pytest.raises(
        IndexMismatchError,
        match="the index is not of this file as it is now: expected a file of 81",
    ):
        IndexKeeper("require").indexes([data])
    assert builds == [data]


def test_unknown_policy():
    with pytest.raises(
        ValueError, match="index must be 'auto', 'require' or 'memory', got 'never'"
    ):
        IndexKeeper("never")


def test_a_damaged_data_file_leaves_no_index(data):
    content = bytearray(Path(data).read_bytes())
    content[-1] ^= 1
    Path(data).write_bytes(content)
    with pytest.raises(CorruptRecordError, match="record 2 at byte 35"):
        IndexKeeper().indexes([data])
    assert os.listdir(os.path.dirname(data)) == ["x"]
    (index,) = IndexKeeper(verify_crc=False).indexes([data])
    assert len(index) == 3


def test_a_declared_compression_is_held_against_the_index(data, builds):
    Path(data).write_bytes(compressed(framed(*PAYLOADS), "GZIP"))
    (index,) = IndexKeeper(compression_type="GZIP").indexes([data])
    assert index.compression_type == "GZIP"
    with pytest.raises(
        CompressionError, match=r"expected a zlib stream \(compression_type='ZLIB'\), got a gzip"
    ):
        IndexKeeper(compression_type="ZLIB").indexes([data])
    with pytest.raises(
        IndexMismatchError, match="expected compression '', got 'GZIP' in the index"
    ):
        IndexKeeper("require", compression_type="").indexes([data])


# Stale and foreign ones are built again. robustness 55, 59, 63


def _stale(place, data):
    with open(data, "ab") as file:
        file.write(framed(b"more"))


def _same_size_and_time(place, data):
    before = os.stat(data)
    Path(data).write_bytes(framed(b"", b"abc", b"y" * 30))
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))


def _of_another_file(place, data):
    other = place.parent / "other"
    other.write_bytes(framed(b"", b"abc", b"y" * 30))
    build_index(other).save(place)
    other.unlink()


def _empty(place, data):
    place.write_bytes(b"")


def _cut(place, data):
    place.write_bytes(place.read_bytes()[:-5])


def _damaged(place, data):
    content = bytearray(place.read_bytes())
    content[-5] ^= 1
    place.write_bytes(content)


def _newer_version(place, data):
    content = place.read_bytes()
    assert content.count(b'"version":"7"') == 1
    place.write_bytes(content.replace(b'"version":"7"', b'"version":"8"'))


def _older_version(place, data):
    """As it was written before, by safetensors, with the metadata in any order."""
    index = build_index(data)
    metadata = {"version": "1", "file_size": str(index.file_size), "format": "torch_tfrecord.index"}
    arrays = {"offsets": index.offsets, "lengths": index.lengths}
    place.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))


@pytest.mark.parametrize(
    "change",
    [
        _stale,
        _same_size_and_time,
        _of_another_file,
        _empty,
        _cut,
        _damaged,
        _newer_version,
        _older_version,
    ],
    ids=lambda change: change.__name__[1:],
)
def test_what_is_stale_or_foreign_is_built_again(change, data, builds):
    place = Path(IndexKeeper.place(data))
    IndexKeeper().indexes([data])
    change(place, data)
    with pytest.raises(IndexMismatchError, match=f"^{data}: "):
        IndexKeeper("require").indexes([data])
    (index,) = IndexKeeper().indexes([data])
    assert index == build_index(data)
    assert RecordIndex.load(place) == index
    assert builds == [data, data]


# What is not ours is neither used nor replaced.


def _own_tensors(place):
    place.write_bytes(safetensors.numpy.save({"weights": np.arange(9)}, metadata={"format": "pt"}))


def _own_json(place):
    place.write_text('{"my": "notes", "on": {"__metadata__": {"format": "none"}}}')


def _own_text(place):
    place.write_text("0 19\n19 16\n35 46\n")


def _own_long(place):
    place.write_bytes(bytes(100_000))


@pytest.mark.parametrize(
    "make", [_own_tensors, _own_json, _own_text, _own_long], ids=lambda make: make.__name__[1:]
)
def test_a_file_that_is_no_index_is_left_alone(make, data, builds):
    place = Path(IndexKeeper.place(data))
    place.parent.mkdir()
    make(place)
    before = place.read_bytes(), place.stat()
    with pytest.raises(
        IndexMismatchError,
        match=f"^{data}: index at {place}: expected an index written by torch_tfr",
    ):
        IndexKeeper("require").indexes([data])
    with pytest.warns(
        UserWarning, match=re.escape(f"{data}: a file that is no index lies where its index would")
    ):
        (index,) = IndexKeeper().indexes([data])
    assert index == build_index(data)
    assert IndexKeeper("require").indexes([data]) == [index]
    assert builds == [data]
    with pytest.raises(
        FileExistsError, match="expected nothing or an index at the place of the index"
    ):
        IndexKeeper.write(str(place), index.to_bytes())
    IndexKeeper.remove(data)
    assert (place.read_bytes(), place.stat()) == before
    assert os.listdir(place.parent) == [place.name]


def test_a_writer_leaves_what_is_no_index_alone(data):
    old = Path(f"{data}.index.safetensors")
    _own_tensors(old)
    before = old.read_bytes()
    for write_index in (False, True):
        with TFRecordWriter(data, write_index=write_index) as writer:
            writer.write(b"new")
        assert old.read_bytes() == before
    place = Path(IndexKeeper.place(data))
    _own_tensors(place)
    with pytest.raises(FileExistsError, match="expected nothing or an index"):
        TFRecordWriter(data, write_index=True).close()
    assert place.read_bytes() == before
    assert len(build_index(data)) == 1  # the data that were there


def _flipped_everywhere(data, bits):
    place = Path(IndexKeeper.place(data))
    IndexKeeper().indexes([data])
    expected, content = build_index(data), place.read_bytes()
    points = RecordIndex.load(place)._seek_points()
    rest = len(content) - (len(points.to_bytes()) if points else 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a flipped mark is somebody else's file
        for damaged in flips(content, bits(content)):
            place.write_bytes(damaged)
            if damaged[:rest] == content[:rest]:  # points are read when they are needed
                (found,) = IndexKeeper("require").indexes([data])
                assert (found, found._seek_points()) == (expected, None)
                continue
            with pytest.raises(
                IndexMismatchError, match=f"^{data}: (index at {place}|the index .*): expected "
            ):
                IndexKeeper("require").indexes([data])
            assert IndexKeeper().indexes([data]) == [expected]
            shutil.rmtree(_cache(), ignore_errors=True)


@pytest.mark.daily
def test_flipped_bits_are_refused_or_built_again(data):
    _flipped_everywhere(data, lambda content: range(0, 8 * len(content), 7))


@pytest.mark.daily
@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_every_flipped_bit_is_refused_or_built_again(data, kind):
    Path(data).write_bytes(compressed(framed(*PAYLOADS), kind))
    _flipped_everywhere(data, lambda content: range(8 * len(content)))


# Odd things at its place. robustness 65


def _directory(place):
    place.mkdir()


def _fifo(place):
    os.mkfifo(place)


def _dangling(place):
    place.symlink_to(place.parent / "missing" / "x")


def _link(place):
    place.symlink_to(place.parent.parent.parent / "elsewhere")


def _link_to_itself(place):
    place.symlink_to(place)


def _folder_as_link(place):
    (place.parent.parent.parent / "elsewhere").mkdir()
    place.parent.rmdir()
    place.parent.symlink_to(place.parent.parent.parent / "elsewhere")


def _folder_as_file(place):
    place.parent.rmdir()
    place.parent.write_bytes(b"mine")


ODD = [_directory, _fifo, _dangling, _link, _link_to_itself, _folder_as_link, _folder_as_file]


@pytest.mark.timeout(100)
@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__[1:])
def test_what_is_no_file_at_the_place_of_the_index(make, data, builds):
    Path(IndexKeeper.place(data)).parent.mkdir()
    make(Path(IndexKeeper.place(data)))
    with pytest.warns(
        UserWarning, match="the folder cannot be written: its index is kept at "
    ) as caught:
        (index,) = IndexKeeper().indexes([data])
    assert len(caught) == 1
    assert index == build_index(data)
    assert IndexKeeper().indexes([data]) == [index]
    assert builds == [data]
    assert len(list(_cache().iterdir())) == 1
    elsewhere = Path(data).parent.parent / "elsewhere"  # what a link names is not written
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []


def test_an_index_behind_a_link_is_read(data, tmp_path, builds):
    build_index(data).save(tmp_path / "elsewhere")
    Path(IndexKeeper.place(data)).parent.mkdir()
    Path(IndexKeeper.place(data)).symlink_to(tmp_path / "elsewhere")
    assert IndexKeeper("require").indexes([data]) == [build_index(data)]


# The order of looking.


@pytest.mark.parametrize("options", [{}, {"index_dir": "kept"}], ids=["beside", "index_dir"])
def test_a_fresh_index_is_found_at_every_place(options, data, builds):
    options = {
        name: os.path.join(os.path.dirname(data), "..", value) for name, value in options.items()
    }
    with pytest.raises(IndexMismatchError) as caught:
        IndexKeeper("require", **options).indexes([data])
    looked_at = re.search("an index at (.*), got none", str(caught.value))[1].split(" or ")
    assert looked_at[0] == IndexKeeper.place(data, **options)
    assert looked_at[-1] == f"{data}.index.safetensors"
    assert set(looked_at[1:-1]) == {
        IndexKeeper.place(data, str(_cache())),
        IndexKeeper.place(data),
    } - {looked_at[0]}
    for place in looked_at:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        build_index(data).save(place)
        assert IndexKeeper("require", **options).indexes([data]) == [build_index(data)]
        assert IndexKeeper(**options).indexes([data]) == [build_index(data)]
        os.unlink(place)
    assert builds == []


def test_a_stale_index_at_one_place_does_not_hide_a_fresh_one_at_another(data, builds):
    both = [IndexKeeper.place(data), f"{data}.index.safetensors"]
    fresh = build_index(data).to_bytes()
    other = Path(data).parent / "other"
    other.write_bytes(framed(b"more"))
    stale = build_index(other).to_bytes()
    Path(both[0]).parent.mkdir()
    for contents in ([stale, fresh], [fresh, stale], [fresh, fresh]):
        for place, content in zip(both, contents, strict=True):
            Path(place).write_bytes(content)
        assert IndexKeeper("require").indexes([data]) == [build_index(data)]
        assert IndexKeeper().indexes([data]) == [build_index(data)]
        assert [Path(place).read_bytes() for place in both] == contents
    assert builds == []
    for place in both:
        Path(place).write_bytes(stale)
    with pytest.raises(
        IndexMismatchError,
        match="the index is not of this file as it is now: expected a file of 20 bytes",
    ):
        IndexKeeper("require").indexes([data])
    IndexKeeper().indexes([data])
    assert RecordIndex.load(both[0]) == build_index(data)
    assert Path(both[1]).read_bytes() == stale  # what lies at the old place is left alone
    assert builds == [data]


def test_a_folder_is_copied_with_its_indexes(data, tmp_path, builds, monkeypatch):
    index = IndexKeeper().indexes([data])
    shutil.copytree(Path(data).parent, tmp_path / "copy")
    assert IndexKeeper("require").indexes([str(tmp_path / "copy" / "x")]) == index
    monkeypatch.chdir(tmp_path / "copy")
    assert IndexKeeper("require").indexes(["x"]) == index
    assert builds == [data]


def test_an_empty_folder_that_another_process_removes(data, monkeypatch):
    place, calls, save = IndexKeeper.place(data), [], AtomicFile.save

    def remove_and_save(path, content):
        calls.append(path)
        if len(calls) == 1:
            os.rmdir(os.path.dirname(path))
        save(path, content)

    monkeypatch.setattr(AtomicFile, "save", remove_and_save)
    IndexKeeper.write(place, build_index(data).to_bytes())
    assert calls == [place] * 2
    assert IndexKeeper("require").indexes([data]) == [build_index(data)]


def test_who_may_add_data_may_add_its_index(data):
    Path(data).parent.chmod(0o2775)
    IndexKeeper().indexes([data])
    assert Path(IndexKeeper.place(data)).parent.stat().st_mode & 0o7777 == 0o2775


# Folders that cannot be written. robustness 62


def test_a_read_only_folder_uses_the_cache_and_says_so_once(data, read_only, builds):
    second = f"{data}2"
    shutil.copy(data, second)
    read_only.append(os.path.dirname(data))
    with pytest.warns(UserWarning) as caught:
        indexes = IndexKeeper().indexes([data, second])
    assert len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith(
        f"{data}: the folder cannot be written: its index is kept at {_cache()}/x."
    )
    assert (
        "(2 such files). Give index_dir= to choose a place, or index='memory' (build_index: save=False) if none is "
        "wanted." in text
    )
    assert len(list(_cache().iterdir())) == 2
    assert IndexKeeper().indexes([data, second]) == indexes
    assert IndexKeeper("require").indexes([data, second]) == indexes
    assert builds == [data, second]


def test_nowhere_to_keep_it(data, read_only, monkeypatch):
    blocked = Path(os.path.dirname(data), "file")
    blocked.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    read_only.append(os.path.dirname(data))
    with pytest.warns(
        UserWarning, match=r"no index could be kept, it is built again each time \(1 such files\)"
    ):
        (index,) = IndexKeeper().indexes([data])
    assert index == build_index(data)


def test_files_of_one_name_do_not_meet_in_an_index_dir(tmp_path):
    paths = []
    for number in range(3):
        path = tmp_path / str(number) / "x"
        path.parent.mkdir()
        path.write_bytes(framed(*[b"a"] * number))
        paths.append(str(path))
    keeper = IndexKeeper(index_dir=tmp_path / "indexes")
    assert list(map(len, keeper.indexes(paths))) == [0, 1, 2]
    assert len(os.listdir(tmp_path / "indexes")) == 3
    # The same file by another way of writing its path is the same.
    (tmp_path / "link").symlink_to(tmp_path / "2")
    relative = os.path.relpath(paths[1])
    indexes = IndexKeeper("require", index_dir=tmp_path / "indexes").indexes(
        [str(tmp_path / "link" / "x"), relative]
    )
    assert list(map(len, indexes)) == [2, 1]


def test_a_full_disk_leaves_the_old_index(data, monkeypatch):
    IndexKeeper().indexes([data])
    place = Path(IndexKeeper.place(data))
    before = place.read_bytes()
    with open(data, "ab") as file:
        file.write(framed(b"more"))

    def write(fd, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.warns(UserWarning, match="no index could be kept"):
            (index,) = IndexKeeper().indexes([data])
    assert len(index) == 4
    assert place.read_bytes() == before
    assert os.listdir(place.parent) == [place.name]


# Several processes. robustness 61, 64


def _build_often(path, count, queue):
    try:
        for _ in range(count):
            os.unlink(IndexKeeper.place(path)) if os.path.exists(IndexKeeper.place(path)) else None
            (index,) = IndexKeeper().indexes([path])
            assert len(index) == 2000
    except FileNotFoundError as error:
        queue.put(
            None if error.filename == IndexKeeper.place(path) else repr(error)
        )  # both deleted it
    except BaseException as error:
        queue.put(repr(error))
    else:
        queue.put(None)


def _build_always(path, count, queue):
    try:
        for _ in range(count):
            build_index(path).save(IndexKeeper.place(path))
    except BaseException as error:
        queue.put(repr(error))
    else:
        queue.put(None)


def _load_often(path, count, queue):
    try:
        for _ in range(count):
            assert len(RecordIndex.load(IndexKeeper.place(path))) == 2000
    except BaseException as error:
        queue.put(repr(error))
    else:
        queue.put(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [[_build_often, _build_often], [_build_always, _build_always, _load_often]]
)
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_processes_at_once(data, workers):
    Path(data).write_bytes(framed(b"ab") * 2000)
    IndexKeeper().indexes([data])
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = [context.Process(target=work, args=(data, 40, queue)) for work in workers]
    for process in processes:
        process.start()
    outcomes = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    assert outcomes == [None] * len(processes)
    assert set(os.listdir(os.path.dirname(data))) == {"x", ".torch_index"}
    assert set(os.listdir(os.path.dirname(IndexKeeper.place(data)))) <= {
        os.path.basename(IndexKeeper.place(data))
    }
    assert len(IndexKeeper().indexes([data])[0]) == 2000


def _build_until_killed(path, folder, started):
    """In a forked child: builds the index and deletes it, again and again."""
    try:
        os.write(started, b".")
        while True:
            IndexKeeper(index_dir=folder).indexes([path])
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
    finally:
        os._exit(1)


@pytest.mark.daily
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_killed_build_leaves_nothing_or_all(data, tmp_path):
    Path(data).write_bytes(framed(b"ab") * 3000)
    folder = tmp_path / "indexes"
    for round_ in range(10):
        seen, started = os.pipe()
        child = os.fork()
        if child == 0:
            _build_until_killed(data, folder, started)
        assert os.read(seen, 1) == b"."
        time.sleep(0.003 * round_)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        os.close(seen)
        os.close(started)
        # Beside its lock, which is empty and which the next one that builds removes.
        names = (
            [name for name in os.listdir(folder) if not name.endswith(".lock")]
            if folder.exists()
            else []
        )
        assert len(names) <= 1
        assert all(len(RecordIndex.load(folder / name)) == 3000 for name in names)
