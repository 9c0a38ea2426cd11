"""Scan tasks: how a dataset is cut, and what any process reads of it."""

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers import for_each, run_program
from range_server import range_server

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    Image,
    IndexMismatchError,
    ParseError,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    build_manifest,
    tfds,
)

FEATURES = {"n": FixedLenFeature((), torch.int64), "x": VarLenFeature(torch.float32)}


def write(path, numbers, **options):
    with TFRecordWriter(path, **options) as writer:
        for n in numbers:
            writer.write({"n": n, **({"x": np.full(n % 5, 0.5, np.float32)} if n % 3 else {})})


@pytest.fixture
def folder(tmp_path):
    """A large file, and many small ones."""
    write(tmp_path / "a.tfrecord", range(1000))
    for k in range(20):
        write(tmp_path / f"b-{k:02d}.tfrecord", range(1000 + 5 * k, 1005 + 5 * k))
    return tmp_path


def read(tasks, columns=None):
    batches = [batch for task in tasks for batch in task.read(columns)]
    return pa.Table.from_batches(batches, tasks[0].schema(columns))


def test_a_large_file_gives_many_tasks_and_small_ones_one(folder):
    ds = TFRecordDataset(folder / "*.tfrecord", FEATURES)
    size = (folder / "a.tfrecord").stat().st_size
    tasks = ds.scan_tasks(size // 4)
    assert sum(task.num_rows for task in tasks) == 1100
    assert sum(task.num_bytes for task in tasks) == sum(
        path.stat().st_size for path in folder.glob("*.tfrecord")
    )
    assert 4 <= len(tasks) <= 6
    assert [len(task.files) for task in tasks[:3]] == [1, 1, 1]
    assert sum(len(task.files) for task in tasks) <= 21 + len(tasks)
    for task in tasks:
        assert task.num_rows == sum(one.num_rows for one in task.ranges)
        assert task.num_bytes == sum(one.end - one.begin for one in task.ranges)
        # neighbours in a file are one range
        assert len(task.ranges) == len(task.files)
    assert ds.scan_tasks() == [*ds.scan_tasks(1 << 40)]
    assert len(ds.scan_tasks()) == 1
    assert len(ds.scan_tasks(1)) == 1100


@for_each("target_bytes", [300, 5000, 1 << 20])
@for_each(
    "select", [slice(None), slice(37, 1050), slice(None, None, -3), slice(5, 900, 2), slice(3, 4)]
)
def test_tasks_read_what_the_dataset_has(folder, target_bytes, select):
    ds = TFRecordDataset(folder / "*.tfrecord", FEATURES)[select]
    wanted = ds.to_arrow()
    tasks = ds.scan_tasks(target_bytes)
    assert [*range(1100)][select] == wanted["n"].to_pylist()
    assert read(tasks).equals(wanted)
    assert sum(task.num_rows for task in tasks) == len(ds)
    assert read(tasks, ["x"]).equals(wanted.select(["x"]))


def test_an_empty_dataset(folder):
    ds = TFRecordDataset(folder / "a.tfrecord", FEATURES)[:0]
    assert ds.scan_tasks() == []
    assert ds.to_arrow().num_rows == 0
    assert [*ds.iter_arrow()] == []


def test_tasks_of_chosen_records(folder):
    for path in folder.glob("*.tfrecord"):
        build_index(path, columns=["n"])
    part = TFRecordDataset(folder / "*.tfrecord", FEATURES).where("n", [3, 5, 6, 7, 1001, 1002])
    runs = [run[1:3] for task in part.scan_tasks() for run in task.ranges]
    assert runs == [(3, 1), (5, 3), (1, 2)]
    assert read(part.scan_tasks())["n"].to_pylist() == [3, 5, 6, 7, 1001, 1002]


def test_tasks_are_small_and_need_no_index_where_they_are_read(folder):
    tasks = TFRecordDataset(folder / "*.tfrecord", FEATURES, index="memory").scan_tasks(20_000)
    assert len(pickle.dumps(tasks[0])) < 3000
    assert hash(tasks[0]) == hash(pickle.loads(pickle.dumps(tasks[0])))
    with pytest.raises(AttributeError):
        tasks[0].files = ()
    (folder / "tasks").write_bytes(pickle.dumps(tasks))
    before = {path.name for path in folder.iterdir()}
    program = (
        "import pickle, sys; tasks = pickle.load(open(sys.argv[1], 'rb'));"
        "print(sum(batch.num_rows for task in tasks for batch in task.read(['n'])))"
    )
    result = run_program(program, folder, folder / "tasks")
    assert (result.stdout, result.stderr, result.returncode) == ("1100\n", "", 0)
    assert {path.name for path in folder.iterdir()} == before | {"stdout", "stderr"}


@for_each("kind", ["GZIP", "ZLIB"])
def test_compressed_files(tmp_path, kind):
    for number in range(2):
        write(
            tmp_path / f"{number}.tfrecord",
            range(2000),
            compression_type=kind,
            member_bytes=1 << 14,
        )
    ds = TFRecordDataset(tmp_path / "*.tfrecord", FEATURES)
    tasks = ds.scan_tasks(10_000)
    assert len(tasks) > 5
    assert read(tasks).equals(ds.to_arrow())
    begin = sum(task.num_rows for task in tasks[:3])
    own = ds[begin : begin + tasks[3].num_rows]
    assert read(tasks[3:4]).equals(own.to_arrow())  # alone, from a seek point


def test_by_a_manifest(folder):
    build_manifest(folder / "*.tfrecord")
    ds = TFRecordDataset(folder / "*.tfrecord", FEATURES)
    assert read(ds.scan_tasks(5000)).equals(ds.to_arrow())


def test_a_damaged_record(folder):
    ds = TFRecordDataset(folder / "a.tfrecord", FEATURES)
    path, offset = ds.locate(500)
    data = bytearray((folder / "a.tfrecord").read_bytes())
    data[offset + 20] ^= 1
    tasks = ds.scan_tasks(10_000)
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(ds._record_files.table.facts(0).mtime_ns,) * 2)
    text = rf"a\.tfrecord: record 500 at byte {offset}: .*checksum"
    found = []
    with pytest.raises(CorruptRecordError, match=text):
        for task in tasks:
            for batch in task.read():
                found += batch["n"].to_pylist()
    assert found == [*range(len(found))]
    good = TFRecordDataset(folder / "a.tfrecord", FEATURES, on_error="skip", index="memory")
    left = [n for n in range(1000) if n != 500]
    with pytest.warns(UserWarning, match=r"skipped 1 \(CorruptRecordError: 1\)[\s\S]*record 500"):
        assert read(good.scan_tasks(10_000))["n"].to_pylist() == left
    assert good.to_arrow()["n"].to_pylist() == left  # told once


def test_a_record_that_does_not_fit(tmp_path):
    with TFRecordWriter(tmp_path / "x") as writer:
        for n in range(10):
            writer.write(
                {"n": n} if n != 7 else b"\x0a\x0c\x0a\x0a\x0a\x01n\x12\x05\x0a\x03\x0a\x01z"
            )
    ds = TFRecordDataset(tmp_path / "x", FEATURES)
    for reading in (lambda ds: read(ds.scan_tasks()), lambda ds: ds.to_arrow()):
        with pytest.raises(ParseError, match=r"x: record 7 at byte \d+: feature 'n' .*Data types"):
            reading(ds)
        skipping = TFRecordDataset(tmp_path / "x", FEATURES, on_error="skip")
        with pytest.warns(UserWarning, match="skipped 1"):
            assert reading(skipping)["n"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        assert skipping.report.counts == {"ParseError": 1}


def test_all_records_are_left_out(tmp_path):
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write({"m": 1})
    ds = TFRecordDataset(tmp_path / "x", FEATURES, on_error="skip")
    with pytest.warns(UserWarning, match="skipped 1"):
        assert ds.to_arrow().num_rows == 0
    assert [*ds.scan_tasks()[0].read()] == []
    assert ds.report.num_errors == 1


def test_a_file_that_changed(folder):
    (task,) = TFRecordDataset(folder / "a.tfrecord", FEATURES).scan_tasks()
    write(folder / "a.tfrecord", range(999))
    with pytest.raises(
        IndexMismatchError, match=r"a\.tfrecord: the index is not of this file as it is now"
    ):
        next(task.read())
    (folder / "a.tfrecord").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.tfrecord"):
        next(task.read())


def test_a_task_asks_a_server_for_its_own_bytes_only(tmp_path):
    with TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for n in range(200):
            writer.write({"n": n, "data": np.random.default_rng(n).bytes(100_000)})
    with range_server(tmp_path) as url:
        ds = TFRecordDataset(
            f"{url}/x.tfrecord", {"n": FixedLenFeature((), torch.int64)}, index_dir=tmp_path / "i"
        )
        tasks = ds.scan_tasks(4 << 20)
        assert len(tasks) >= 4
        url.reset()
        assert read(tasks[1:2])["n"].to_pylist() == [
            *range(tasks[0].num_rows, tasks[0].num_rows + tasks[1].num_rows)
        ]
        assert url.stats()["bytes_sent"] < tasks[1].num_bytes + 20_000


def test_names_and_wrong_arguments(folder):
    ds = TFRecordDataset(folder / "a.tfrecord", FEATURES)
    with pytest.raises(ValueError, match="target_bytes must be an integer of at least 1, got 0"):
        ds.scan_tasks(0)
    with pytest.raises(ValueError, match=r"expected one of the features \['n', 'x'\], got 'y'"):
        next(ds.scan_tasks()[0].read(["y"]))
    with pytest.raises(
        TypeError, match=r"expected a list of names, got the str 'n': write \['n'\]"
    ):
        ds.select_columns("n")
    with pytest.raises(ValueError, match="expected the name of at least one feature"):
        ds.select_columns([])
    with pytest.raises(TypeError, match="expected features with names to select from"):
        TFRecordDataset(folder / "a.tfrecord").select_columns(["n"])
    with pytest.raises(TypeError, match="expected features with names"):
        TFRecordDataset(folder / "a.tfrecord", Image()).select_columns(["n"])


def test_what_has_no_tasks():
    data = Path(__file__).parents[1] / "data" / "tfds" / "drawings" / "1.2.10"
    tree = tfds.load(data, "train", index="memory")
    with pytest.raises(TypeError, match=r"expected features by specs, got those of a TFDS tree"):
        tree.scan_tasks()
