"""ArrayRecord files that are in no TFDS directory, written and read by the package array-record: they
are recognised by their content.

Covers records/array_record.
"""

import io
import json
import pickle
import random
import re
import struct
from pathlib import Path

import pytest
import torch
from helpers import collect, slow_masked

from index_tools.main import main
from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    IndexMismatchError,
    LengthBatchSampler,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    encode_example,
    find_files,
    make_dataloader,
    read_records,
)

array_record = pytest.importorskip("array_record.python.array_record_module")
pytestmark = pytest.mark.slow

FEATURES = {"id": FixedLenFeature((), torch.int64), "text": FixedLenFeature((), bytes)}
OPTIONS = [
    "group_size:1,uncompressed",
    "group_size:7,uncompressed",
    "group_size:1,brotli:6",
    "group_size:1,zstd:3",
    "group_size:100,snappy",
    "",  # its default: groups of 65,536, brotli
]
DRAWN = random.Random(0)
RECORDS = [
    encode_example({"id": number, "text": DRAWN.randbytes(DRAWN.randrange(200))})
    for number in range(300)
]


def write(path, records=RECORDS, options="group_size:1"):
    writer = array_record.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def original(path):
    reader = array_record.ArrayRecordReader(path)
    return reader.read_all() if reader.num_records() else []


@pytest.mark.parametrize("options", OPTIONS)
def test_records_are_those_of_the_original(tmp_path, options):
    path = write(tmp_path / "named_anyhow.bin", options=options)
    expected = original(path)
    assert expected == RECORDS
    ds = TFRecordDataset(path, FEATURES)
    assert [ds.raw(number) for number in range(len(ds))] == expected
    assert [sample["id"].item() for sample in ds] == [*range(300)]
    assert ds[7]["text"] == ds[[250, 7]]["text"][1] and ds.locate(7) == (path, 7)
    assert [*read_records(path)] == expected
    assert [*TFRecordIterableDataset(path)] == expected
    assert not (tmp_path / ".torch_index").exists()  # it has its own index


@pytest.mark.parametrize("length", [0, 1, (1 << 19) - 16, (1 << 19) - 15, 3 << 19])
def test_lengths(tmp_path, length):
    records = [bytes(3), bytes([7]) * length, b"last", b""]
    path = write(tmp_path / "x", records)
    assert [*read_records(path)] == original(path) == records
    assert pickle.loads(pickle.dumps(TFRecordDataset(path))).raw(1) == records[1]


@pytest.mark.filterwarnings("ignore:no file has a record")
def test_no_records(tmp_path):
    path = write(tmp_path / "x.array_record", [])
    assert len(TFRecordDataset(path)) == 0 and [*read_records(path)] == []
    assert find_files(tmp_path) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders(tmp_path, workers):
    paths = [write(tmp_path / "a", RECORDS[:100], "zstd"), write(tmp_path / "b", RECORDS[100:])]
    loader = make_dataloader(paths, 32, FEATURES, seed=3, num_workers=workers)
    epochs = [[i for batch in loader for i in batch["id"].tolist()] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [*range(300)] and epochs[0] != epochs[1]
    stream = TFRecordIterableDataset(paths, FEATURES, batch_size=32)
    batches = torch.utils.data.DataLoader(stream, None, num_workers=workers)
    assert sorted(i for batch in batches for i in batch["id"].tolist()) == [*range(300)]


@pytest.mark.parametrize("options", OPTIONS[1:5:3])
def test_scan_tasks(tmp_path, options):
    pytest.importorskip("pyarrow")
    write(tmp_path / "a", RECORDS[:120], options)
    write(tmp_path / "b", RECORDS[120:], options)
    ds = TFRecordDataset([tmp_path / "a", tmp_path / "b"], FEATURES)
    tasks = pickle.loads(pickle.dumps(ds[5:].scan_tasks(9_000)))
    assert len(tasks) > 2 and sum(task.num_rows for task in tasks) == 295
    rows = [row for task in tasks for batch in task.read() for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [*range(5, 300)]
    assert [row["text"] for row in rows] == [ds[number]["text"] for number in range(5, 300)]


def test_tools(tmp_path, capsys):
    path = write(tmp_path / "x.array_record")
    assert main(["show", path, "-n", "1", "--position", "-1", "--json"]) == 0
    shown = capsys.readouterr().out
    line = json.loads(shown.splitlines()[0])
    sizes = [len(record) + 16 for record in RECORDS]  # as they would lie in a TFRecord file
    expected = 299, sum(sizes[:-1]), sizes[-1] - 16
    assert (line["position"], line["offset"], line["length"]) == expected
    assert "FixedLenFeature((), torch.int64)" in shown
    assert main(["verify", str(tmp_path)]) == 0
    assert "1 file, 300 records" in capsys.readouterr().out
    assert main(["index", path]) == 1
    assert "has its own index" in capsys.readouterr().err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.array_record"]


def test_files_of_both_kinds(tmp_path):
    arrays = write(tmp_path / "a")
    with TFRecordWriter(tmp_path / "b") as writer:
        writer.write(RECORDS[0])
    with pytest.raises(
        CorruptRecordError, match=r"/b: expected an intact ArrayRecord file, got an"
    ):
        TFRecordDataset(tmp_path / "[ab]")
    text = (
        "a: expected a TFRecord file, got an ArrayRecord file, which has its own index: a dataset"
    )
    (tmp_path / "0").write_bytes((tmp_path / "b").read_bytes())
    for read, what in ((TFRecordDataset, tmp_path / "[0a]"), (build_index, arrays)):
        with pytest.raises(IndexMismatchError, match=text):
            read(what)
    assert len([*TFRecordIterableDataset(tmp_path / "[ab]")]) == 301  # a stream takes both


def damaged(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)


def test_a_damaged_record(tmp_path, capsys):
    path = tmp_path / "x"
    write(path, [bytes([number]) * 1000 for number in range(200)], "group_size:1,uncompressed")
    damaged(path, path.read_bytes().index(bytes([150]) * 1000) + 500)
    error = f"^{re.escape(str(path))}: record 150.*: expected an intact ArrayRecord record, got an"
    ds = TFRecordDataset(path)
    with pytest.raises(CorruptRecordError, match=error):
        ds[150]
    assert ds.raw(149)[0] == 149 and ds.raw(151)[0] == 151
    with pytest.raises(CorruptRecordError, match=error):
        ds.__getitems__([149, 150, 151])
    for stream in (read_records(path), iter(TFRecordIterableDataset(path))):
        found, raised = collect(stream, CorruptRecordError)
        assert [record[0] for record in found] == [*range(150)]  # those before it came
        assert re.search(error, str(raised))
    skipping = TFRecordDataset(path, on_error="skip")
    with pytest.warns(UserWarning, match="on_error='skip': skipped 1 .Corrupt"):
        assert [record[0] for record in skipping.__getitems__([149, 150, 151])] == [149, 151]
    assert skipping.report.num_errors == 1
    assert main(["verify", str(path)]) == 1
    assert "record 150" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize("size", [0, 8, 1000, 65536, 100_000])
def test_truncated_files(tmp_path, size):
    path = tmp_path / "x"
    content = Path(write(path)).read_bytes()
    assert size < len(content)
    path.write_bytes(content[:size])
    if size == 0:
        assert len(TFRecordDataset(path)) == 0  # as every empty file
        return
    error = (
        f"^{re.escape(str(path))}: expected an intact ArrayRecord file, got an error of array-rec"
    )
    for read in (TFRecordDataset, lambda path: [*read_records(path)]):
        with pytest.raises(CorruptRecordError, match=error):
            read(path)


def test_what_array_record_cannot_read(tmp_path):
    content = Path(write(tmp_path / "x")).read_bytes()
    with pytest.raises(
        ValueError, match="<stream>: expected the path of an ArrayRecord file, got a"
    ):
        next(read_records(io.BytesIO(content)))
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/arrays/x", content)
    try:
        for read in (lambda path: [*read_records(path)], TFRecordDataset):
            with pytest.raises(ValueError, match="memory://arrays/x: expected a local path, since"):
                read("memory://arrays/x")
    finally:
        memory.rm("/arrays", recursive=True)


def test_another_declared_compression(tmp_path):
    path = write(tmp_path / "x")
    assert len(TFRecordDataset(path, compression_type=None)) == 300
    with pytest.raises(Exception, match=r"expected a gzip stream \(compression_type='GZIP'\)"):
        TFRecordDataset(path, compression_type="GZIP")


def test_a_long_record_is_not_an_array_record_file(tmp_path):
    # A length whose four low bytes are ArrayRecord's first four: 3.5 GB of a sparse file.
    length = 0xD170AF83
    header = struct.pack("<Q", length)
    with open(tmp_path / "x.tfrecord", "wb") as file:
        file.write(header + struct.pack("<I", slow_masked(header)))
        file.truncate(length + 16)
    dataset = TFRecordDataset(tmp_path / "x.tfrecord", index="memory", verify_crc=False)
    assert (len(dataset), dataset.locate(0)[1]) == (1, 0)


def test_what_their_own_index_does_not_know(tmp_path):
    dataset = TFRecordDataset(write(tmp_path / "x"), FEATURES)
    no_columns = r"x: expected a TFRecord file, whose index can keep the column '(len\()?id\)?', got an ArrayRecord"
    for ask in (
        lambda: dataset.column("id"),
        lambda: LengthBatchSampler(dataset, lengths="id", max_tokens=99),
    ):
        with pytest.raises(IndexMismatchError, match=no_columns):
            ask()
    with pytest.raises(TypeError, match="do not say how long their records are: give lengths="):
        LengthBatchSampler(dataset, max_tokens=99)
    batches = [*LengthBatchSampler(dataset, lengths=[1] * len(dataset), max_tokens=50)]
    assert sorted(position for batch in batches for position in batch) == [*range(len(dataset))]
