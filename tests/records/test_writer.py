"""Writers: bytes as TensorFlow writes them; a file that is complete or not there, whatever
happens.

Covers records/framing.
"""

import array
import base64
import contextlib
import errno
import gc
import gzip
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers import RECORDS, framed, open_descriptors, random_payloads, run_python

from torch_tfrecord import (
    RecordIndex,
    ShardedTFRecordWriter,
    TFRecordWriter,
    build_index,
    decode_example,
    find_files,
    read_records,
)
from torch_tfrecord.records import IndexKeeper

pytestmark = [
    pytest.mark.usefixtures("random_states_untouched"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]
GOLDEN = [
    json.loads((RECORDS / f"{name}.json").read_text())
    for name in (
        "plain.tfrecord",
        "gzip.tfrecord.gz",
        "zlib.tfrecord.zlib",
        "skewed_sizes.tfrecord",
        "empty.tfrecord",
        "empty_gzip.tfrecord.gz",
        "empty_zlib.tfrecord.zlib",
        "single_empty_record.tfrecord",
        "looks_like_tfrecord.tfrecord",
    )
]

FRAMES = json.loads((RECORDS / "framing.json").read_text())["framed"]


def write(path, payloads, **options):
    with TFRecordWriter(path, **options) as writer:
        for payload in payloads:
            writer.write(payload)


def write_shards(prefix, payloads, **options):
    with ShardedTFRecordWriter(prefix, **options) as writer:
        for payload in payloads:
            writer.write(payload)
    return writer


# Bytes.


@pytest.mark.parametrize("case", FRAMES, ids=lambda case: case["framed"][:24])
def test_golden_frames(case, tmp_path):  # robustness 3
    payload, bytes_ = base64.b64decode(case["payload"]), bytes.fromhex(case["framed"])
    write(tmp_path / "x", [payload])
    assert (tmp_path / "x").read_bytes() == bytes_
    assert framed(payload) == bytes_  # the tests' own framing is right, too


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["file"])
def test_bytes_are_those_of_tensorflow(golden, tmp_path):  # robustness 3, 22
    source, kind = RECORDS / golden["file"], golden["compression"]
    path = tmp_path / "x"
    write(path, read_records(source), compression_type=kind)
    content = path.read_bytes()
    if not kind:
        assert content == source.read_bytes()
        return
    decompress = {"GZIP": gzip.decompress, "ZLIB": zlib.decompress}[kind]
    assert decompress(content) == decompress(source.read_bytes())
    assert (
        content[:10] == source.read_bytes()[:10] if kind == "GZIP" else content[:2] == b"\x78\x9c"
    )


@pytest.mark.parametrize(
    ("name", "declared", "first_bytes"),
    [
        ("x.tfrecord", "auto", b""),
        ("x.tfrecord.gz", "auto", b"\x1f\x8b"),
        ("x.zlib", "auto", b"\x78\x9c"),
        ("x.gz", None, b""),
        ("x.gz", "", b""),
        ("x", "gzip", b"\x1f\x8b"),
        ("x.gz", "ZLIB", b"\x78\x9c"),
    ],
)
def test_compression_goes_by_the_name_unless_told(name, declared, first_bytes, tmp_path):
    write(tmp_path / name, [b"abc"], compression_type=declared)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(first_bytes)
    assert first_bytes or content == framed(b"abc")
    assert list(read_records(tmp_path / name)) == [b"abc"]


@pytest.mark.parametrize("level", [-2, 10, 100, True, "6", 2.5])
def test_levels_out_of_range(level, tmp_path):
    with pytest.raises(
        ValueError, match=re.escape(f"compression_level must be None or -1 to 9, got {level!r}")
    ):
        TFRecordWriter(tmp_path / "x.gz", compression_level=level)
    assert os.listdir(tmp_path) == []


PAYLOAD_TYPES = [
    (b"abc", b"abc"),
    (bytearray(b"abc"), b"abc"),
    (memoryview(b"xabcx")[1:4], b"abc"),
    (memoryview(b"axbxcx")[::2], b"abc"),
    (
        memoryview(np.array([[1, 2], [3, 4]], np.int32)),
        np.array([[1, 2], [3, 4]], np.int32).tobytes(),
    ),
    (
        memoryview(np.array([[1, 2], [3, 4]], np.int32).T),
        np.array([[1, 3], [2, 4]], np.int32).tobytes(),
    ),
    (memoryview(np.array([1.5], ">f4")), np.array([1.5], ">f4").tobytes()),
    (memoryview(np.zeros((0, 3))), b""),
    (memoryview(array.array("d", [2.0])), array.array("d", [2.0]).tobytes()),
    (np.bytes_(b"abc"), b"abc"),
    (b"", b""),
    (b"y" * 600_000, b"y" * 600_000),
]


def test_levels_make_a_difference(tmp_path):
    for level in (None, -1, 0, 1, 9):
        write(tmp_path / f"{level}.gz", [b"a" * 100_000] * 5, compression_level=level)
    size = {path.name.removesuffix(".gz"): path.stat().st_size for path in tmp_path.iterdir()}
    assert size["0"] > 500_000 > size["1"] > size["9"]
    assert size["None"] == size["-1"]


@pytest.mark.parametrize(("record", "payload"), PAYLOAD_TYPES, ids=range(len(PAYLOAD_TYPES)))
@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_payload_types(record, payload, name, tmp_path):  # robustness 80
    write(tmp_path / name, [b"before", record, b"after"], write_index=True)
    assert list(read_records(tmp_path / name)) == [b"before", payload, b"after"]
    assert RecordIndex.load(IndexKeeper.place(str(tmp_path / name))) == build_index(tmp_path / name)


def test_a_bytearray_may_change_after_it_was_written(tmp_path):
    record = bytearray(b"abc")
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write(record)
        record[:] = b"XYZ"
        writer.write(record)
    assert list(read_records(tmp_path / "x")) == [b"abc", b"XYZ"]


@pytest.mark.parametrize("name", ["t.tfrecord", "t.tfrecord.gz"])
def test_threads_write_one_file(name, tmp_path):
    rng = np.random.default_rng(0)
    payloads = [rng.bytes(length) for length in rng.integers(0, 60_000, 60)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with TFRecordWriter(tmp_path / name, write_index=True) as writer:

            def write(thread):
                for number, payload in enumerate(payloads):
                    values = np.full(number * 50, thread * 1000 + number)
                    writer.write({"values": values, "payload": payload})
                    writer.write(payload)

            threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    rows, alone = [], []
    for record in read_records(tmp_path / name):
        if record in payloads:
            alone.append(record)
        else:
            row = decode_example(record)
            found = set(row["values"].tolist()) if len(row["values"]) else set()
            rows.append((row["payload"][0], len(row["values"]), found))
    assert sorted(alone) == sorted(4 * payloads)
    expected = [
        (payload, number * 50, {thread * 1000 + number} if number else set())
        for thread in range(4)
        for number, payload in enumerate(payloads)
    ]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert RecordIndex.load(IndexKeeper.place(str(tmp_path / name))) == build_index(tmp_path / name)


@pytest.mark.parametrize("record", ["text", 3, None, 2.5, [b"abc"], np.zeros(3), ...], ids=repr)
def test_wrong_payloads_write_nothing_and_the_writer_goes_on(record, tmp_path):
    text = f"a record must be bytes, bytearray, memoryview or a mapping of feature values, got {type(record).__name__}"
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write(b"before")
        with pytest.raises(TypeError, match=text):
            writer.write(record)
        writer.write(b"after")
    assert list(read_records(tmp_path / "x")) == [b"before", b"after"]


@pytest.mark.parametrize("bad", [{"a": [1, b"x"]}, {"a": ...}, {3: 4}, {"a": 2**70}], ids=repr)
def test_bad_mappings_write_nothing_and_the_writer_goes_on(bad, tmp_path):
    with ShardedTFRecordWriter(tmp_path / "x", num_shards=2) as writer:
        writer.write({"a": 1})
        with pytest.raises((TypeError, ValueError)):
            writer.write(bad)
        writer.write({"a": 2})
    records = [record for path in writer.paths for record in read_records(path)]
    assert [decode_example(record)["a"].tolist() for record in records] == [[1], [2]]


# Its life.


def test_nothing_is_there_before_close(tmp_path):
    writer = TFRecordWriter(tmp_path / "x", write_index=True)
    writer.write(b"a" * 1_000_000)
    writer.flush()
    assert os.listdir(tmp_path) == []
    writer.close()
    assert sorted(os.listdir(tmp_path)) == [".torch_index", "x"]
    assert RecordIndex.load(IndexKeeper.place(str(tmp_path / "x"))) == build_index(tmp_path / "x")


def test_after_close(tmp_path):  # robustness 78
    writer = TFRecordWriter(tmp_path / "x")
    writer.write(b"abc")
    writer.close()
    writer.close()
    for call in (lambda: writer.write(b"more"), writer.flush):
        with pytest.raises(ValueError, match=r"^Writer is closed\.$"):
            call()
    assert list(read_records(tmp_path / "x")) == [b"abc"]
    assert repr(writer) == f"TFRecordWriter({str(tmp_path / 'x')!r})"


@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_inside_with_leaves_nothing(kind, error, tmp_path):  # robustness 77
    with pytest.raises(error), _writer(kind, tmp_path / "x", write_index=True) as writer:
        for _ in range(100):
            writer.write(b"a" * 100)
        writer.flush()
        raise error
    assert os.listdir(tmp_path) == []
    writer.close()  # done with; the exception told
    with pytest.raises(ValueError, match="Writer is closed"):
        writer.write(b"")


def _writer(kind, path, **options):
    if kind == "single":
        return TFRecordWriter(path, **options)
    limits = {"num_shards": 3} if kind == "round robin" else {"max_shard_bytes": 1000}
    return ShardedTFRecordWriter(path, **limits, **options)


@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
def test_dropped_without_close(kind, tmp_path):
    gc.collect()
    before = open_descriptors()
    writer = _writer(kind, tmp_path / "x", write_index=True)
    for _ in range(30):
        writer.write(b"a" * 100)
    name = re.escape(str(tmp_path / "x") + ("" if kind == "single" else "-*.tfrecord"))
    text = (
        rf"^{name}: the writer was dropped without close\(\): its file is given up "
        rf"\(records lost: 30\)\. Write inside"
    )
    with pytest.warns(UserWarning, match=text) as caught:
        del writer
        gc.collect()
    assert [(warning.filename, warning.category) for warning in caught] == [(__file__, UserWarning)]
    assert os.listdir(tmp_path) == []
    assert open_descriptors() == before


# What a program says of a writer that it forgot, when it ends: in each case `x` is not there.
FORGOTTEN = {
    "a global": "writer = TFRecordWriter('x'); writer.write(b'a')",
    "known to a function": "def use(): return writer\nwriter = TFRecordWriter('x'); writer.write(b'a')",
    "in a cycle": "class A: pass\na = A(); a.a = a; a.writer = TFRecordWriter('x'); a.writer.write(b'a')",
    "sys.exit": "import sys; writer = TFRecordWriter('x'); writer.write(b'a'); sys.exit(0)",
    "an uncaught exception": "writer = TFRecordWriter('x'); writer.write(b'a'); raise ValueError('told')",
    "a generator": (
        "def generate():\n with TFRecordWriter('x') as writer:\n  while True: writer.write((yield))\n"
        "g = generate(); next(g); g.send(b'a')"
    ),
    "a global of a worker process": (
        "import multiprocessing\ndef work():\n global writer; writer = TFRecordWriter('x'); writer.write(b'a')\n"
        "p = multiprocessing.get_context('fork').Process(target=work); p.start(); p.join()"
    ),
}


def _run(code, folder):
    """A program with Python's own filters of warnings."""
    command = [sys.executable, "-c", f"from torch_tfrecord import TFRecordWriter\n{code}"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", FORGOTTEN)
def test_forgotten_until_the_program_ends(way, tmp_path):
    done = _run(FORGOTTEN[way], tmp_path)
    text = (
        "UserWarning: x: the writer was dropped without close(): its file is given up "
        "(records lost: 1). Write inside"
    )
    assert done.stderr.count(text) == 1, done.stderr
    assert (
        ("ValueError: told" in done.stderr)
        == (done.returncode != 0)
        == (way == "an uncaught exception")
    )
    assert os.listdir(tmp_path) == []


CLOSED_LATE = {
    "by atexit": (
        "import atexit\n@atexit.register\ndef end(): writer.close()\nwriter = TFRecordWriter('x'); writer.write(b'a')"
    ),
    "after a fork": (
        "import multiprocessing\nwriter = TFRecordWriter('x'); writer.write(b'a')\n"
        "p = multiprocessing.get_context('fork').Process(target=int); p.start(); p.join(); writer.close()"
    ),
    "after DataLoader workers": (
        "from torch.utils.data import DataLoader\nwriter = TFRecordWriter('x')\n"
        "for i in DataLoader([b'a'], num_workers=2, batch_size=None, multiprocessing_context='fork'): writer.write(i)\n"
        "writer.close()"
    ),
}


@pytest.mark.daily
@pytest.mark.parametrize("way", CLOSED_LATE)
def test_closed_late(way, tmp_path):
    """Neither a child's copy of the writer nor the end of the program speaks, or takes the file
    away.
    """
    done = _run(CLOSED_LATE[way], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(read_records(tmp_path / "x")) == [b"a"]


def test_a_writer_that_failed_says_so_once():
    writer = TFRecordWriter("/dev/full")
    writer.write(b"abc")
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del writer
        gc.collect()


@pytest.mark.filterwarnings("error")  # also of what cannot be raised
def test_wrong_use_of_a_writer_is_one_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        TFRecordWriter()


def test_the_file_is_readable_as_others_are(tmp_path):
    write(tmp_path / "x", [b"abc"], write_index=True)
    (tmp_path / "other").write_bytes(b"")
    mode = (tmp_path / "other").stat().st_mode
    assert {path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()} == {mode}
    assert (tmp_path / ".torch_index").stat().st_mode == tmp_path.stat().st_mode


# Paths. robustness 74, 81

WRONG_PATHS = [
    ("missing/x", FileNotFoundError),
    (".", IsADirectoryError),
    ("file/x", NotADirectoryError),
    ("n" * 300, OSError),
]


@pytest.mark.parametrize(
    ("name", "kind"), WRONG_PATHS, ids=[kind.__name__ for _, kind in WRONG_PATHS]
)
@pytest.mark.parametrize("when", ["single", "round robin", "by size"])
def test_paths_that_cannot_be_written(name, kind, when, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / name
    if when != "single" and name in ("missing/x", "."):
        return  # a set makes its folder, and no shard has the name of one
    with pytest.raises(kind) as caught, _writer(when, path) as writer:
        writer.write(b"")
    named = str(caught.value).split(": ", 1)[1]
    assert named == repr(str(path) if when == "single" else f"{path}-00000.tfrecord")
    assert caught.value.filename == named[1:-1]
    assert os.listdir(tmp_path) == ["file"]


def test_a_set_makes_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for prefix in ("new/folders/x", "new/folders/y", "z"):
        with ShardedTFRecordWriter(prefix, num_shards=2) as writer:
            writer.write(b"a")
        assert [path.rpartition("/")[0] for path in writer.paths] == [prefix[:-2]] * 2
        assert sum(len([*read_records(path)]) for path in writer.paths) == 1
    assert sorted(os.listdir("new/folders"))[::2] == [
        "x-00000-of-00002.tfrecord",
        "y-00000-of-00002.tfrecord",
    ]


@pytest.mark.parametrize(
    "name",
    ["with space", "new\nline", "#x", os.fsdecode(b"\xff\xfe"), "a" * 235, "é" * 110],
    ids=ascii,
)
@pytest.mark.parametrize("again", [False, True])
def test_odd_names(name, again, tmp_path):
    for _ in range(1 + again):  # the second time replaces a file, by way of a temporary name
        write(tmp_path / name, [b"abc"], write_index=len(os.fsencode(name)) < 200)
    assert list(read_records(tmp_path / name)) == [b"abc"]


def test_the_longest_name_has_an_index(tmp_path):
    write(tmp_path / ("n" * 255), [b"abc"], write_index=True)
    assert len(IndexKeeper("require").indexes([str(tmp_path / ("n" * 255))])[0]) == 1


@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
@pytest.mark.parametrize("what", ["file", "link"])
def test_no_place_for_the_index(what, kind, tmp_path):
    """What stands there is no folder of ours: it stays, and so does the data's name."""
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "data" / ".torch_index"
    elsewhere.mkdir()
    place.parent.mkdir()
    place.symlink_to(elsewhere) if what == "link" else place.write_bytes(b"mine")
    writer = _writer(kind, place.parent / "x", write_index=True)
    writer.write(b"abc")
    with pytest.raises(
        OSError, match="expected no symbolic link" if what == "link" else "Not a directory"
    ):
        writer.close()
    assert os.listdir(place.parent) == [".torch_index"]
    assert os.listdir(elsewhere) == []


# An existing file. robustness 67, 79


@pytest.mark.parametrize("fail", [False, True])
def test_an_existing_file_is_replaced_whole_or_kept(fail, tmp_path):
    path = tmp_path / "x"
    write(path, [b"old"] * 1000, write_index=True)
    records = read_records(path)
    read = [next(records)]
    inode = path.stat().st_ino
    with contextlib.suppress(RuntimeError), TFRecordWriter(path) as writer:
        writer.write(b"new")
        writer.flush()
        assert list(read_records(path)) == [b"old"] * 1000
        if fail:
            raise RuntimeError
    assert list(read_records(path)) == ([b"old"] * 1000 if fail else [b"new"])
    assert (path.stat().st_ino == inode) == fail
    assert [*read, *records] == [b"old"] * 1000  # who had it open reads on
    # The old file's index is gone with it.
    assert os.path.exists(IndexKeeper.place(str(path))) == fail


def test_a_file_that_vanishes_while_it_is_looked_at(tmp_path, monkeypatch):
    """Two builders at once: what one looks at the other replaces. It must not pass for a device,
    written in place.
    """
    path = tmp_path / "x"
    path.write_bytes(b"old")
    real = Path.stat

    def stat(self, **options):
        status = real(self, **options)
        if self == path:
            path.unlink()
        return status

    monkeypatch.setattr(Path, "stat", stat)
    writer = TFRecordWriter(path)
    monkeypatch.undo()
    assert writer._file.data.is_regular
    with writer:
        writer.write(b"new")
    assert list(read_records(path)) == [b"new"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "d").mkdir()
    target = tmp_path / "d" / "target"
    (tmp_path / "link").symlink_to(target)
    for payload in (b"first", b"second"):  # it points to nothing, then to a file
        write(tmp_path / "link", [payload])
        assert os.path.islink(tmp_path / "link")
        assert list(read_records(target)) == [payload]
    assert os.listdir(tmp_path / "d") == ["target"]


def test_a_link_to_itself_is_replaced(tmp_path):
    (tmp_path / "x").symlink_to(tmp_path / "x")
    write(tmp_path / "x", [b"abc"])
    assert list(read_records(tmp_path / "x")) == [b"abc"]


@pytest.mark.timeout(100)
def test_a_fifo(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # nobody reads: an error, no wait
    with pytest.raises(OSError, match="No such device or address") as caught:
        TFRecordWriter(fifo)
    assert caught.value.filename == str(fifo)
    copy = tmp_path / "copy"
    with copy.open("wb") as file, subprocess.Popen(["cat", fifo], stdout=file):
        deadline = time.monotonic() + 5
        while True:
            try:
                writer = TFRecordWriter(fifo)
                break
            except OSError:
                assert time.monotonic() < deadline
        with writer:
            for _ in range(3):
                writer.write(b"z" * 100_000)
    assert list(read_records(copy)) == [b"z" * 100_000] * 3
    copy.unlink()
    assert os.listdir(tmp_path) == ["fifo"]


def test_no_index_of_a_device():
    with pytest.raises(
        ValueError, match="write_index needs a regular file, got the device or pipe /dev/null"
    ):
        TFRecordWriter("/dev/null", write_index=True)
    write("/dev/null", [b"abc"])


def test_without_unnamed_files(tmp_path, monkeypatch):
    """A file system without O_TMPFILE: a hidden temporary name, then the same promises."""
    real = os.open

    def open_(path, flags, *rest, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", open_)
    with TFRecordWriter(tmp_path / "x") as writer:
        (hidden,) = os.listdir(tmp_path)
        # TensorFlow's `x*` and `*x*` do not match it
        assert re.fullmatch(r"\.[0-9a-f]{16}\.tmp", hidden)
        writer.write(b"abc")
    assert list(read_records(tmp_path / "x")) == [b"abc"]
    assert os.listdir(tmp_path) == ["x"]
    with pytest.raises(RuntimeError), TFRecordWriter(tmp_path / "y"):
        raise RuntimeError
    assert os.listdir(tmp_path) == ["x"]


# Full disks and other failures. robustness 75


@pytest.mark.parametrize("name", ["/dev/full"])
@pytest.mark.parametrize("options", [{}, {"compression_type": "GZIP"}], ids=["plain", "GZIP"])
@pytest.mark.parametrize("when", ["write", "flush", "close"])
def test_dev_full(name, options, when):
    writer = TFRecordWriter(name, **options)
    failing = {
        # a member of a gzip file is kept until it ends, after 1 MiB
        "write": lambda: [writer.write(random.Random(n).randbytes(300_000)) for n in range(9)],
        "flush": lambda: (writer.write(b"abc"), writer.flush()),
        "close": lambda: (writer.write(b"abc"), writer.close()),
    }[when]
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as first:
        failing()
    for again in (writer.close, writer.close, writer.flush, lambda: writer.write(b"x")):
        with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught:
            again()
        assert caught.value is first.value


@pytest.mark.parametrize("place", ["with", "close"])
def test_dev_full_inside_with(place):
    with pytest.raises(OSError, match="No space left"), TFRecordWriter("/dev/full") as writer:
        writer.write(b"a" * (1_000_000 if place == "with" else 1))


class _Failing:
    """Stands in for a function of os: the call with number `at` fails."""

    def __init__(self, real, at, number):
        self.real, self.at, self.number, self.calls = real, at, number, 0

    def __call__(self, *args, **options):
        self.calls += 1
        if self.calls - 1 == self.at:
            raise OSError(self.number, os.strerror(self.number))
        return self.real(*args, **options)

    def as_method(self):
        return lambda *args: self(*args)


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
@pytest.mark.parametrize("function", ["write", "fsync", "fstat", "link", "open", "replace"])
def test_every_call_may_fail_and_nothing_is_left(function, kind, existing, tmp_path, monkeypatch):
    payloads = [bytes([n]) * 100 for n in range(40)]

    def run():
        with _writer(kind, folder / "x", write_index=True) as writer:
            for payload in payloads:
                writer.write(payload)
            writer.flush()
        return writer

    failures, at = 0, 0
    owner, name = (Path, "replace") if function == "replace" else (os, function)
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        if existing:
            run()
        with monkeypatch.context() as patch:
            failing = _Failing(getattr(owner, name), at, errno.EIO)
            patch.setattr(owner, name, failing if owner is os else failing.as_method())
            try:
                run()
            except OSError as error:
                failures += 1
                assert error.errno == errno.EIO
                assert error.filename is not None
                assert str(folder) in str(error.filename)
                names = os.listdir(folder)
                assert not [
                    name for name in names if name.startswith(".") and name != ".torch_index"
                ], (at, names)
                assert not [
                    path for path in folder.glob(".torch_index/*") if path.name.startswith(".")
                ]
                if not existing:
                    assert names == [], (at, names)
                elif kind == "single":  # the old file or none; never half of one
                    assert all(
                        list(read_records(folder / n)) == payloads for n in names if n == "x"
                    )
            else:
                if failing.calls <= at:
                    break
        at += 1
    expected = {"single": 1, "round robin": 3, "by size": 5}[kind]
    if function in ("write", "fsync", "open"):
        assert failures >= expected
    elif function == "link":
        assert failures >= (0 if kind == "by size" else expected)


def _small_tmpfs(folder, size):
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {done.stderr.decode().strip()}")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    _small_tmpfs(folder, "256k")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
def test_a_full_disk(kind, small_disk):
    (small_disk / "other").write_bytes(b"kept")
    for size in (1, 1000, 100_000):
        payload = random.Random(size).randbytes(size)
        with (
            pytest.raises(OSError, match="No space left on device") as caught,
            _writer(kind, small_disk / "x", write_index=True) as writer,
        ):
            for _ in range(400_000 // (size + 16)):
                writer.write(payload)
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space left on device"):
            writer.close()
        del writer, caught
        gc.collect()
        assert os.listdir(small_disk) == ["other"]
    write(small_disk / "x", [b"a" * 200_000])  # the space is free again
    assert len(list(read_records(small_disk / "x"))) == 1


# Killed. robustness 76


def _kill_while_writing(folder, kind, rng):
    """Fork a child that writes, and kill it at a random moment."""
    child = os.fork()
    if child == 0:
        try:
            with _writer(kind, folder / "x", write_index=True) as writer:
                for number in range(3000):
                    writer.write(b"%06d" % number * 20)
        finally:
            os._exit(0)
    time.sleep(rng.random() * 0.06)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _check_after_kill(folder, kind):
    names = os.listdir(folder)
    payloads = [b"%06d" % number * 20 for number in range(3000)]
    visible = [name for name in names if not name.startswith(".")]
    data = sorted(name for name in visible if not name.endswith(".safetensors"))
    if kind == "single":
        assert data in ([], ["x"])
        assert set(names) - set(visible) <= {".torch_index"}
        if data:
            assert list(read_records(folder / "x")) == payloads
    for name in data:
        records = list(read_records(folder / name))
        assert set(records) <= set(payloads)
        if kind == "round robin":
            assert len(records) == 1000
    return len(data)


@pytest.mark.daily
@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
@pytest.mark.parametrize("rounds", [20, pytest.param(60, marks=pytest.mark.daily)])
def test_kill_9_at_random_moments(rounds, kind, tmp_path):
    rng = random.Random(rounds)
    for round_ in range(rounds):
        folder = tmp_path / str(round_)
        folder.mkdir()
        _kill_while_writing(folder, kind, rng)
        _check_after_kill(folder, kind)


@pytest.mark.daily
def test_kill_9_over_an_existing_file(tmp_path):
    rng = random.Random(7)
    payloads = [b"%06d" % number * 20 for number in range(3000)]
    for _ in range(10):
        write(tmp_path / "x", [b"old"])
        _kill_while_writing(tmp_path, "single", rng)
        assert list(read_records(tmp_path / "x")) in ([b"old"], payloads)


# Forks.


@pytest.mark.parametrize("way", ["exit", "drop", "close", "write", "with"])
@pytest.mark.parametrize("kind", ["single", "round robin", "by size"])
def test_a_forked_child_neither_publishes_nor_destroys(kind, way, tmp_path):
    writer = _writer(kind, tmp_path / "x", write_index=True)
    for number in range(20):
        writer.write(b"%03d" % number * 30)
    before = sorted(os.listdir(tmp_path))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            match way:
                case "exit":
                    code = 0
                case "drop":
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        del writer
                        gc.collect()
                    code = 0
                case "close" | "write" | "with":
                    try:
                        if way == "close":
                            writer.close()
                        elif way == "write":
                            writer.write(b"from the child")
                        else:
                            with writer:
                                pass
                    except ValueError as error:
                        code = (
                            0 if "a writer cannot be used in a forked process" in str(error) else 3
                        )
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(os.listdir(tmp_path)) == before
    for number in range(20, 30):
        writer.write(b"%03d" % number * 30)
    writer.close()
    paths = [writer.path] if kind == "single" else writer.paths
    records = sorted(record for path in paths for record in read_records(path))
    assert records == [b"%03d" % number * 30 for number in range(30)]


@pytest.mark.slow
def test_an_exiting_interpreter_leaves_nothing(tmp_path):
    code = "import sys; from torch_tfrecord import TFRecordWriter; w = TFRecordWriter(sys.argv[1]); w.write(b'abc')"
    done = run_python(code, tmp_path / "x")
    assert done.returncode == 0
    assert (
        "the writer was dropped without close(): its file is given up (records lost: 1)"
        in done.stderr
    )
    assert os.listdir(tmp_path) == []


# Shards.


def test_round_robin(tmp_path):
    payloads = [b"%d" % number for number in range(10)]
    writer = write_shards(tmp_path / "x", payloads, num_shards=4)
    assert [os.path.basename(path) for path in writer.paths] == [
        f"x-0000{n}-of-00004.tfrecord" for n in range(4)
    ]
    assert [list(read_records(path)) for path in writer.paths] == [payloads[n::4] for n in range(4)]
    assert find_files(tmp_path / "x@4") == writer.paths == find_files(str(tmp_path))


def test_shards_without_records(tmp_path):
    writer = write_shards(tmp_path / "x", [b"one"], num_shards=3, write_index=True)
    assert [list(read_records(path)) for path in writer.paths] == [[b"one"], [], []]
    assert len(IndexKeeper("require").indexes(writer.paths)) == 3
    empty = write_shards(tmp_path / "y", [], max_shard_bytes=10)
    assert [os.path.basename(path) for path in empty.paths] == ["y-00000-of-00001.tfrecord"]
    assert list(read_records(empty.paths[0])) == []


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([4, 4, 4, 4], 40, [[4, 4], [4, 4]]),
        ([4, 4, 4, 4], 39, [[4], [4], [4], [4]]),
        ([4, 4, 4], 60, [[4, 4, 4]]),
        ([100, 4, 100], 30, [[100], [4], [100]]),
        ([4, 100, 4], 30, [[4], [100], [4]]),
        ([0, 0, 0], 32, [[0, 0], [0]]),
        ([1, 1], 1, [[1], [1]]),
    ],
)
def test_shards_by_size(sizes, limit, expected, tmp_path):
    writer = write_shards(tmp_path / "x", [b"a" * size for size in sizes], max_shard_bytes=limit)
    assert [[len(record) for record in read_records(path)] for path in writer.paths] == expected
    total = len(expected)
    assert [os.path.basename(p) for p in writer.paths] == [
        f"x-{n:05d}-of-{total:05d}.tfrecord" for n in range(total)
    ]
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path) for path in writer.paths]


@pytest.mark.parametrize(
    "options", [{"num_shards": 3}, {"max_shard_bytes": 500}], ids=["round robin", "by size"]
)
@pytest.mark.parametrize("suffix", [".tfrecord", "", ".tfrecord.gz", ".zlib"])
def test_indexes_written_beside_shards_are_fresh(options, suffix, tmp_path, monkeypatch):
    payloads = random_payloads(60, 2)
    writer = write_shards(tmp_path / "x", payloads, suffix=suffix, write_index=True, **options)
    assert len(writer.paths) > 2
    with monkeypatch.context() as patch:  # nothing is built
        patch.setattr("torch_tfrecord.records.index_keeper.RecordIndex._build", None)
        indexes = IndexKeeper("require").indexes(writer.paths)
    assert indexes == [build_index(path) for path in writer.paths]
    assert {index.compression_type for index in indexes} == {
        {".tfrecord.gz": "GZIP", ".zlib": "ZLIB"}.get(suffix, "")
    }
    assert sorted(record for path in writer.paths for record in read_records(path)) == sorted(
        payloads
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of num_shards and max_shard_bytes must be given"),
        (
            {"num_shards": 2, "max_shard_bytes": 3},
            "exactly one of num_shards and max_shard_bytes must be given",
        ),
        ({"num_shards": 0}, "num_shards must be an integer of at least 1, got 0"),
        ({"num_shards": True}, "num_shards must be an integer of at least 1, got True"),
        ({"num_shards": 2.0}, "num_shards must be an integer of at least 1, got 2.0"),
        ({"max_shard_bytes": -1}, "max_shard_bytes must be an integer of at least 1, got -1"),
        (
            {"num_shards": 2, "compression_type": "LZ4"},
            "compression_type must be 'auto', None, '', 'GZIP' or 'ZLIB'",
        ),
    ],
)
def test_wrong_options_of_shards(options, text, tmp_path):
    kind = (
        TypeError if options.get("num_shards") in (True, 2.0) and len(options) == 1 else ValueError
    )
    with pytest.raises(kind, match=re.escape(text)):
        ShardedTFRecordWriter(tmp_path / "x", **options)
    assert os.listdir(tmp_path) == []


def test_more_shards_than_descriptors(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 20, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            ShardedTFRecordWriter(tmp_path / "x", num_shards=200)
        assert str(tmp_path / "x-0") in str(caught.value)
        del caught
        # By size any number of shards is written with few descriptors.
        writer = write_shards(tmp_path / "y", [b"abc"] * 60, max_shard_bytes=1, write_index=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(writer.paths) == 60
    assert len(os.listdir(tmp_path)) == 61
    assert len(os.listdir(tmp_path / ".torch_index")) == 60


def test_shards_replace_those_of_before(tmp_path):
    write_shards(tmp_path / "x", [b"old"] * 6, num_shards=3, write_index=True)
    writer = write_shards(tmp_path / "x", [b"new"] * 6, num_shards=3)
    assert [list(read_records(path)) for path in writer.paths] == [[b"new"] * 2] * 3
    assert len(os.listdir(tmp_path)) == 3  # the old indexes are gone


@pytest.mark.parametrize(
    "options", [{"num_shards": 5}, {"max_shard_bytes": 100}], ids=["round robin", "by size"]
)
@pytest.mark.parametrize("part", ["data", "index"])
def test_a_failure_in_the_middle_of_publishing_leaves_no_shard(
    options, part, tmp_path, monkeypatch
):
    real = os.replace
    indexes = []

    def replace(source, target):
        name = str(target)
        indexes.extend([name] if name.endswith(".safetensors") else [])
        if (len(indexes) == 3 and name == indexes[-1]) if part == "index" else "-00002-" in name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        real(source, target)

    writer = ShardedTFRecordWriter(tmp_path / "x", write_index=True, **options)
    for _ in range(20):
        writer.write(b"a" * 50)
    monkeypatch.setattr(os, "replace", replace)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            writer.close()
    assert os.listdir(tmp_path) == []
    assert writer.paths == []
