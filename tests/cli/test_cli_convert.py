"""`tfrecord convert`: what other libraries read of what it writes, and what comes back.

Covers index_tools/convert.
Covers index_tools/table_formats.
"""

import csv
import io
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset
from jobs import run_job

from index_tools import convert, table_formats
from index_tools.main import main
from index_tools.table_formats import read_tables, write_table
from torch_tfrecord import (
    LimitExceededError,
    TFRecordDataset,
    TFRecordWriter,
    decode_example,
    encode_image,
)

DATA = Path(__file__).parent.parent / "data"
JPEG = encode_image(torch.zeros(3, 4, 5, dtype=torch.uint8), "jpeg")
ROWS = [
    {"label": 1, "score": 0.1, "name": 'a,"b"\nc', "tokens": [1, 2]},
    {"label": -(2**62), "score": float("inf"), "name": "", "tokens": np.zeros(0, np.int64)},
    {"label": 3, "score": -0.0, "name": "2020-01-01", "tokens": [5]},
]


def write(path, rows):
    with TFRecordWriter(path) as writer:
        for row in rows:
            writer.write(row)


def records(paths):
    dataset = TFRecordDataset(paths, None)
    return [bytes(dataset.raw(number)) for number in range(len(dataset))]


def examples(paths):
    return [decode_example(record) for record in records(paths)]


def run(*arguments):
    assert main(["convert", *arguments]) == 0


def error(capsys, *arguments, status=2):
    before = {*os.listdir()}
    assert main(["convert", *arguments]) == status
    assert {*os.listdir()} - before <= {".torch_index"}
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tfrecord: ")
    assert err.count("\n") == 1
    return err.removeprefix("tfrecord: ").strip()


def hidden():
    return [
        name for name in os.listdir() if name.endswith((".parquet", ".tfrecord")) and name[0] == "."
    ]


# Records that TensorFlow wrote.


@pytest.mark.parametrize("name", ["imagenet", "table", "text"])
@pytest.mark.parametrize("ending", ["parquet", "tar", "jsonl"])
def test_records_of_tensorflow_come_back_byte_for_byte(name, ending, capsys):
    for path in (DATA / "ports").glob(f"{name}-*.tfrecord"):
        shutil.copy(path, ".")
    if (name, ending) == ("imagenet", "jsonl"):
        assert error(capsys, f"{name}-*", "out.jsonl") == (
            "feature 'image/encoded': text holds finite numbers and UTF-8: leave it out by --columns, or write Parquet"
        )
        return
    run(f"{name}-*", f"out.{ending}")
    run(f"out.{ending}", "back.tfrecord")
    assert records("back.tfrecord") == records(f"{name}-*")


def test_parquet_is_what_pandas_reads():
    write("a.tfrecord", ROWS)
    run("a.tfrecord", "a.parquet")
    frame = pd.read_parquet("a.parquet")
    assert frame["label"].tolist() == [1, -(2**62), 3]
    assert frame["name"].tolist() == ['a,"b"\nc', "", "2020-01-01"]
    np.testing.assert_array_equal(frame["score"], np.float32([0.1, np.inf, -0.0]))
    assert [row.tolist() for row in frame["tokens"]] == [[1, 2], [], [5]]
    run("a.parquet", "b.tfrecord")
    assert records("b.tfrecord") == records("a.tfrecord")


def test_csv_is_what_csv_and_pandas_read(capsys):
    write("a.tfrecord", [*ROWS, {"label": 4, "score": float("nan"), "name": "NA"}])
    message = error(capsys, "a.tfrecord", "a.csv")
    assert message == (
        "feature 'tokens': CSV holds one value in each record: leave it out by --columns, or write Parquet"
    )
    run("a.tfrecord", "a.csv", "--columns", "label,name,score")
    with open("a.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["label", "name", "score"]
    assert [line[1] for line in lines] == ['a,"b"\nc', "", "2020-01-01", "NA"]
    assert [np.float32(line[2]) for line in lines[:3]] == [np.float32(0.1), np.inf, 0]
    frame = pd.read_csv("a.csv", keep_default_na=False)
    assert frame["label"].tolist() == [1, -(2**62), 3, 4]
    run("a.csv", "b.tfrecord")
    expected = [{k: v for k, v in row.items() if k != "tokens"} for row in examples("a.tfrecord")]
    assert repr(examples("b.tfrecord")) == repr(expected)


def test_csv_tells_a_missing_value_from_empty_text():
    write("a.tfrecord", [{"name": "x", "n": 1}, {"name": "", "n": 2}, {"n": 3}, {"name": "z"}])
    run("a.tfrecord", "a.csv")
    assert Path("a.csv").read_text() == '"n","name"\n1,"x"\n2,""\n3,\n,"z"\n'
    run("a.csv", "b.tfrecord")
    assert records("b.tfrecord") == records("a.tfrecord")
    write("c.tfrecord", [{"n": 1}, {}, {"n": 3}])  # an empty line
    run("c.tfrecord", "c.csv")
    run("c.csv", "d.tfrecord")
    assert records("d.tfrecord") == records("c.tfrecord")


def test_text_of_digits_comes_back_by_the_features_that_were_printed(capsys):
    write("a.tfrecord", [{"code": "007", "n": 1}, {"code": "12", "n": 2}])
    run("a.tfrecord", "a.csv")
    Path("features.py").write_text(capsys.readouterr().out)
    run("a.csv", "plain.tfrecord")
    assert examples("plain.tfrecord")[0]["code"].tolist() == [7]
    run("a.csv", "b.tfrecord", "--features", "features.py")
    assert records("b.tfrecord") == records("a.tfrecord")


def test_json_lines_are_what_json_reads(capsys):
    rows = [
        {**ROWS[0], "rgb": [0.5, 1.5, 2.5]},
        {"label": 7, "name": "é", "rgb": [1.0, 2.0, 3.0], "score": 2.0},
    ]
    write("a.tfrecord", rows)
    run("a.tfrecord", "a.jsonl")
    found = [*map(json.loads, Path("a.jsonl").read_text().splitlines())]
    assert found == [
        {
            "label": 1,
            "name": 'a,"b"\nc',
            "rgb": [0.5, 1.5, 2.5],
            "score": float(np.float32(0.1)),
            "tokens": [1, 2],
        },
        {"label": 7, "name": "é", "rgb": [1.0, 2.0, 3.0], "score": 2.0},
    ]
    run("a.jsonl", "b.tfrecord")
    assert records("b.tfrecord") == records("a.tfrecord")
    write("nan.tfrecord", [{"x": float("nan")}])
    capsys.readouterr()
    assert error(capsys, "nan.tfrecord", "nan.jsonl").startswith(
        "feature 'x': text holds finite numbers"
    )


# WebDataset.


def csv_cell(value):
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return "" if value is None else repr(value)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_each_row_of_a_text_file_is_what_python_writes_of_it(kind):
    random = np.random.default_rng(7)
    alphabet = [
        "a",
        '"',
        "\n",
        "\r",
        "\t",
        ",",
        "\\",
        "\0",
        "\x7f",
        "é",
        "𝄞",
        "\u2028",
        "null",
        "{}",
        " ",
        "",
    ]
    exponents = 10.0 ** random.integers(-40, 39, 4000)

    def texts():
        return ["".join(random.choice(alphabet, random.integers(5))) for _ in range(2000)]

    floats = random.standard_normal(4000) * exponents
    floats[::7] = np.rint(random.standard_normal(572) * 10.0 ** random.integers(0, 20, 572))
    floats[:6] = 0.0, -0.0, 1e-4, 9.9e-5, 1e10, 1e16
    columns = {
        "int": random.integers(-(1 << 63), (1 << 63) - 1, 2000),
        "bool": random.integers(0, 2, 2000) == 1,
        "single": floats[:2000].astype(np.float32),
        'a "double"': floats[2000:],
        "text": texts(),
        "bytes": [text.encode() for text in texts()],
        "é": [[*random.integers(9, size=random.integers(2))] for _ in range(2000)],
    }
    if kind == "json":
        columns["lists"] = [[*random.random(random.integers(4))] for _ in range(2000)]
        columns["words"] = [[text[:2], text[2:]] for text in texts()]
    else:
        columns["single"][6:9] = np.nan, np.inf, -np.inf
    lacking = random.random((len(columns), 2000)) < 0.1
    types = {"bytes": pa.binary(), "single": pa.float32(), 'a "double"': pa.float64()}
    arrays = [
        pa.array(
            [None if lacks else value for value, lacks in zip(column, mask, strict=True)],
            types.get(name),
        )
        for (name, column), mask in zip(columns.items(), lacking, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, [*columns])
    parts = (batch.slice(begin, 300) for begin in range(0, 2000, 300))
    write_table(kind, batch.schema, parts, "rows")
    lines = [",".join(map(csv_cell, columns))] * (kind == "csv")
    for row in batch.to_pylist():
        if kind == "csv":
            lines.append(",".join(map(csv_cell, row.values())))
            continue
        there = {name: value for name, value in row.items() if value is not None}
        text = json.dumps(there, ensure_ascii=False, default=bytes.decode)
        lines.append(text.replace('"é":', '"\\u00e9":'))
    assert Path("rows").read_bytes() == "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), b"\xff", b"\xed\xa0\x80"])
def test_what_a_text_file_cannot_store_is_refused_by_name(kind, value):
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [None, value]})
    if kind == "csv" and isinstance(value, float):
        write_table(kind, batch.schema, iter([batch]), "rows")
        assert Path("rows").read_text() == f'"a","b"\n1,\n2,{value}\n'
        return
    text = "feature 'b': text holds finite numbers and UTF-8: leave it out by --columns, or write Parquet"
    with pytest.raises(ValueError, match=re.escape(text)):
        write_table(kind, batch.schema, iter([batch]), "rows")
    assert not os.path.exists("rows")


def test_a_tar_is_what_tarfile_and_webdataset_read():
    write(
        "a.tfrecord",
        [{"image/encoded": JPEG, "label": 3, "text": "é", "x": [0.5, 1.5], "raw": b"\xff"}] * 2,
    )
    run("a.tfrecord", "a.tar")
    with tarfile.open("a.tar") as tar:
        members = tar.getmembers()
        assert [member.name for member in members[:5]] == [
            "000000000.image%2Fencoded.jpg",
            "000000000.label.cls",
            "000000000.raw.bin",
            "000000000.text.txt",
            "000000000.x.npy",
        ]
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in members} == {
            (0, 0, 0, "")
        }
        assert tar.extractfile(members[0]).read() == JPEG
    with open("a.tar", "rb") as stream:  # WebDataset itself leaves the file open
        items = [
            {**item, "__url__": ""} for item in webdataset.tariterators.tar_file_iterator(stream)
        ]
    sample, _ = map(webdataset.autodecode.Decoder([]), webdataset.tariterators.group_by_keys(items))
    assert sample["__key__"] == "000000000"
    assert (sample["label.cls"], sample["text.txt"], sample["raw.bin"]) == (3, "é", b"\xff")
    np.testing.assert_array_equal(sample["x.npy"], [0.5, 1.5])


def test_a_tar_that_webdataset_wrote():
    with webdataset.TarWriter("a.tar") as tar:
        for number in range(3):
            tar.write(
                {
                    "__key__": f"set/photo_{number}",
                    "jpg": JPEG,
                    "cls": number,
                    "txt": "a cat",
                    "json": {"width": number, "tags": ["x"]},
                    "emb.npy": np.float32([number, 0.5]),
                    "seg.png": b"\x89PNG",
                }
            )
    run("a.tar", "b.tfrecord")
    example = examples("b.tfrecord")[2]
    assert {key: list(value) for key, value in example.items()} == {
        "__key__": [b"set/photo_2"],
        "cls": [2],
        "emb": [2.0, 0.5],
        "jpg": [JPEG],
        "json.tags": [b"x"],
        "json.width": [2],
        "seg": [b"\x89PNG"],
        "txt": [b"a cat"],
    }


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("1.x.npy", b""),
        ("1.x.npy", b"\x93NUMPY\x01\x00"),
        ("1.x.cls", b"x"),
        ("1.x.txt", b"\xff"),
        ("1.x.json", b"{"),
    ],
)
def test_a_damaged_member(name, data, capsys):
    with tarfile.open("a.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    assert error(capsys, "a.tar", "b.tfrecord", status=1).startswith("a.tar: ")


def test_a_pickle_in_a_tar_is_bytes_or_refused(capsys):
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], object), allow_pickle=True)
    with tarfile.open("a.tar", "w") as tar:
        member = tarfile.TarInfo("1.x.npy")
        member.size = len(buffer.getvalue())
        tar.addfile(member, io.BytesIO(buffer.getvalue()))
    assert "allow_pickle=False" in error(capsys, "a.tar", "b.tfrecord", status=1)


def test_a_record_without_values_is_no_sample(capsys):
    write("a.tfrecord", [{"n": 1}, {}])
    assert error(capsys, "a.tfrecord", "a.tar") == (
        "record 1: a tar has no sample without values: leave it out by --columns, or write Parquet"
    )


# Hugging Face.


# In a process of its own: once imported, datasets has pyarrow read some types as its own.
HUGGING_FACE = """
import datasets
from index_tools.main import main
from index_tools.table_formats import read_tables

images = [{"bytes": %r, "path": None}] * 3
table = datasets.Dataset.from_dict(
    {"image": images, "label": [0, 1, 0], "text": ["a", None, "c"]}
)
datasets.DatasetDict({"train": table, "test": table.select([1])}).save_to_disk("hf")
assert main(["convert", "hf", "a.tfrecord"]) == 0
assert main(["convert", "hf", "b.tfrecord", "--split", "test", "--columns", "label"]) == 0
assert main(["convert", "hf", "c.tfrecord", "--split", "no"]) == 2
"""


@pytest.mark.slow
def test_hugging_face_datasets():
    pytest.importorskip("datasets")
    done = run_job("-c", HUGGING_FACE % JPEG)
    assert done.returncode == 0, done.stderr
    assert "no" in done.stderr
    assert [row["label"].tolist() for row in examples("a.tfrecord")] == [[0], [1], [0]]
    assert examples("a.tfrecord")[0] == {"image.bytes": [JPEG], "label": [0], "text": [b"a"]}
    assert "text" not in examples("a.tfrecord")[1]
    assert examples("b.tfrecord") == [{"label": [1]}]


# Types.


def test_dates_decimals_and_structs_are_refused_by_name(capsys):
    for name, column in {
        "when": pa.array([0], pa.timestamp("s")),
        "price": pa.array([1]).cast(pa.decimal128(20)),
        "deep": pa.array([[[1]]]),
    }.items():
        pq.write_table(pa.table({name: column, "n": [1]}), "a.parquet")
        message = error(capsys, "a.parquet", "a.tfrecord")
        assert message.startswith(f"column {name!r}: no list of an Example holds ")
        assert "--columns" in message
        run("a.parquet", "a.tfrecord", "--columns", "n", "--force")
        os.unlink("a.tfrecord")
        capsys.readouterr()


def test_rounded_floats_are_named(capsys):
    Path("a.csv").write_text("x,y\n0.1,0.5\n")
    run("a.csv", "a.tfrecord")
    assert (
        "warning: float64 columns were rounded to float32, the floats of TFRecord files: x;"
        in capsys.readouterr().err
    )


def test_features_widen_check_and_leave_out(capsys):
    Path("features.py").write_text(
        "import torch\nfrom torch_tfrecord import FixedLenFeature, VarLenFeature\n"
        "features = {'x': FixedLenFeature((), torch.float32), 'n': VarLenFeature(torch.int64)}\n"
    )
    Path("a.jsonl").write_text('{"x": 1, "n": 2, "other": 1}\n{"x": 0.5}\n')
    run("a.jsonl", "a.tfrecord", "--features", "features.py")
    assert examples("a.tfrecord") == [{"n": [2], "x": [1.0]}, {"x": [0.5]}]
    assert capsys.readouterr().out == "# wrote a.tfrecord\n"
    Path("a.jsonl").write_text('{"n": 2}\n')
    assert "feature 'x' (float32): expected a value, got None" in error(
        capsys, "a.jsonl", "b.tfrecord", "--features", "features.py"
    )


def test_files_of_other_types_are_refused_before_they_appear(capsys):
    Path("a-0.csv").write_text("x\n1\n")
    Path("a-1.csv").write_text("x\n0.5\n")
    message = error(capsys, "a-*.csv", "out", status=1)
    assert message == "feature 'x': Data types don't match: float32 and int64 in different records"


# Sets of files.


def test_shards_parallel_equal_to_serial(capsys):
    write("a.tfrecord", [{"n": number} for number in range(1000)])
    run("a.tfrecord", "a.parquet", "--num-shards", "3")
    names = [f"a-0000{number}-of-00003.parquet" for number in range(3)]
    assert sorted(Path().glob("*.parquet")) == [*map(Path, names)]
    assert pq.read_table(names[0])["n"].to_pylist() == list(range(333))
    run("a-*.parquet", "b/x")
    assert len(os.listdir("b")) == 3
    assert records("b/x-*") == records("a.tfrecord")
    run("a-*.parquet", "c.tfrecord")
    assert records("c.tfrecord") == records("a.tfrecord")
    run("c.tfrecord", "d.jsonl", "--num-shards", "2", "--jobs", "2")
    assert sum(len(path.read_text().splitlines()) for path in Path().glob("d-*.jsonl")) == 1000
    run("a-*.parquet", "e.tfrecord.gz", "--num-shards", "2")
    assert sorted(records("e-*.tfrecord.gz")) == sorted(records("a.tfrecord"))


def test_rows_are_dealt_in_one_reading(monkeypatch, capsys):
    rows = [{"n": number} for number in range(1000)]
    for row in rows[256:512]:  # other columns than those before
        row["text"] = str(row["n"])
    Path("a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    original, read = table_formats._json_rows, []

    def counted(path):
        read.append(path)
        return original(path)

    monkeypatch.setattr(table_formats, "_json_rows", counted)
    run("a.jsonl", "b", "--num-shards", "3")
    assert read == ["a.jsonl"]
    for number, dealt in enumerate((rows[:256] + rows[768:], rows[256:512], rows[512:768])):
        found = examples(f"b-0000{number}-of-00003.tfrecord")
        assert found == [
            {"n": [row["n"]], **({"text": [row["text"].encode()]} if "text" in row else {})}
            for row in dealt
        ]
    run("a.jsonl", "c", "--num-shards", "3", "--jobs", "2")
    run("a.jsonl", "d", "--num-shards", "5")
    assert read == ["a.jsonl"] * 3
    assert records("c-*") == records("b-*")
    assert Path("d-00004-of-00005.tfrecord").read_bytes() == b""
    assert hidden() == []


def test_interrupted_dealing_goes_on(monkeypatch, capsys):
    rows = [{"n": number} for number in range(1000)]
    Path("a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    original, written = convert._write_part, []

    def interrupted(write, pair, advance):
        if len(written) == 2:
            raise KeyboardInterrupt
        original(write, pair, advance)
        written.append(pair[1])

    monkeypatch.setattr(convert, "_write_part", interrupted)
    assert main(["convert", "a.jsonl", "a", "--num-shards", "4"]) == 130
    assert sorted(hidden()) == sorted(written)
    assert len(written) == 2
    monkeypatch.setattr(convert, "_write_part", original)
    run("a.jsonl", "a", "--num-shards", "4")
    assert [row["n"].tolist() for row in examples("a-*")] == [[number] for number in range(1000)]
    assert hidden() == []


def test_an_interrupted_conversion_goes_on(monkeypatch, capsys):
    write("a.tfrecord", [{"n": number} for number in range(9)])
    original, done = convert._write_part, []

    def go_on(write, pair, advance):
        original(write, pair, advance)
        done.append(pair[1])

    def interrupted(write, pair, advance):
        if len(done) == 2:
            raise KeyboardInterrupt
        go_on(write, pair, advance)

    arguments = ["a.tfrecord", "a.parquet", "--num-shards", "3"]
    monkeypatch.setattr(convert, "_write_part", interrupted)
    assert main(["convert", *arguments]) == 130
    assert len(hidden()) == len(done) == 2
    assert not list(Path().glob("a-*"))
    monkeypatch.setattr(convert, "_write_part", go_on)
    run(*arguments)
    assert len({*done}) == len(done) == 3
    assert hidden() == []
    assert pq.read_table(sorted(Path().glob("a-*.parquet")))["n"].to_pylist() == list(range(9))
    # other data is another request
    write("a.tfrecord", [{"n": number} for number in range(8)])
    run(*arguments, "--force")
    assert len({*done}) == len(done) == 6


def test_nothing_is_written_over(capsys):
    write("a.tfrecord", ROWS)
    Path("a.parquet").write_text("mine")
    message = error(capsys, "a.tfrecord", "a.parquet")
    assert message == "a.parquet: it is there; --force writes over a file"
    assert Path("a.parquet").read_text() == "mine"
    run("a.tfrecord", "a.parquet", "--force")
    assert pq.read_table("a.parquet").num_rows == 3


# Wrong use.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv", "a.tfrecord"], "missing.csv: No such file or directory"),
        (["a.csv", "a.parquet"], "expected TFRecord on one side, got csv to parquet"),
        (["a.csv", "a.png"], "a.png: expected a name that ends in .tfrecord"),
        (["t.tfrecord", "a.xlsx"], "a.xlsx: expected a name that ends in .tfrecord"),
        (["t.tfrecord", "memory://b/a.csv"], "memory://b/a.csv: expected a name that ends in"),
        (["a.csv", "out", "--image-format", "png"], "--image-format is not for csv to TFRecord"),
        (["mixed", "out"], "mixed: expected files of one kind, got csv and json"),
        (
            ["a.csv", "a.tfrecord", "--columns", "no"],
            "a.csv: expected rows with values in the columns, got none",
        ),
        (["empty.csv", "a.tfrecord"], "empty.csv: expected rows with values"),
    ],
)
def test_wrong_use(arguments, message, capsys, folder):
    Path("a.csv").write_text("x\n1\n")
    write("t.tfrecord", ROWS)
    Path("empty.csv").write_text("x\n")
    Path("mixed").mkdir()
    for name in ("a.csv", "b.jsonl"):
        (folder / "mixed" / name).touch()
    assert error(capsys, *arguments).startswith(message)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "tar", "parquet", "tfrecord"])
def test_a_png_with_another_name(ending, capsys):
    Path(f"a.{ending}").write_bytes(encode_image(torch.zeros(3, 4, 5, dtype=torch.uint8), "png"))
    out = "b.csv" if ending == "tfrecord" else "b.tfrecord"
    assert f"a.{ending}" in error(capsys, f"a.{ending}", out, status=1)


def test_a_damaged_record_is_named(capsys):
    write("a.tfrecord", ROWS)
    data = bytearray(Path("a.tfrecord").read_bytes())
    data[-10] ^= 1
    Path("a.tfrecord").write_bytes(data)
    assert "a.tfrecord: record 2 at byte " in error(capsys, "a.tfrecord", "a.parquet", status=1)


def test_a_missing_package(monkeypatch, capsys):
    write("a.tfrecord", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "index_tools.table_formats", raising=False)
    assert error(capsys, "a.tfrecord", "a.csv") == (
        "this conversion needs the package pyarrow: pip install pyarrow, or all of its extra: pip install "
        "'torch-tfrecord[arrow]', in a clone pip install -e '.[arrow]'"
    )


def test_a_missing_package_of_no_extra(monkeypatch, capsys):
    Path("saved").mkdir()
    Path("saved/state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert (
        error(capsys, "saved", "a.tfrecord")
        == "this conversion needs the package datasets: pip install datasets"
    )


# Images, RLDS.


@pytest.mark.parametrize("header", ["", "id,label\n"])
def test_a_flat_folder_with_labels(header, capsys):
    Path("photos").mkdir()
    for name in ("a", "b", "c"):
        Path(f"photos/{name}.jpg").write_bytes(JPEG)
    Path("photos/other.txt").touch()
    Path("labels.csv").write_text(f"{header}a,10\nb.jpg,9\nc,10\n")
    run("photos", "out", "--labels-csv", "labels.csv", "--no-shuffle")
    found = examples("out-*")
    assert [row["image/filename"] for row in found] == [[b"a.jpg"], [b"b.jpg"], [b"c.jpg"]]
    assert [row["image/class/text"] for row in found] == [[b"10"], [b"9"], [b"10"]]
    assert [row["image/class/label"].tolist() for row in found] == [[1], [0], [1]]
    assert Path("labels-out.txt").read_text() == "9\n10\n"
    out, err = capsys.readouterr()
    assert "header" not in out
    assert ("header of labels.csv: id, label\n" in err) == bool(header)
    assert "skipped 1 file" in err


@pytest.mark.parametrize("text", ["a,1\na,2\n", "a,1\nz,2\n", "a\n", ""])
def test_wrong_labels(text, capsys):
    Path("photos").mkdir()
    Path("photos/a.jpg").write_bytes(JPEG)
    Path("labels.csv").write_text(text)
    assert error(capsys, "photos", "out", "--labels-csv", "labels.csv").startswith("labels.csv: ")


@pytest.mark.parametrize(
    ("out", "options", "written"),
    [
        ("out.tfrecord", [], ["out.tfrecord"]),
        ("out.tfrecord.gz", [], ["out.tfrecord.gz"]),
        ("out.tfrecord.zlib", ["--compression", "zlib"], ["out.tfrecord.zlib"]),
        ("out.tfrecord", ["--num-shards", "2"], [f"out-{n:05d}-of-00002.tfrecord" for n in (0, 1)]),
        ("out", [], ["out-00000-of-00001.tfrecord"]),
    ],
)
def test_photos_become_the_file_that_is_named(out, options, written, capsys):
    for name in "ab":
        Path("photos", name).mkdir(parents=True)
        for number in range(3):
            Path("photos", name, f"{number}.jpg").write_bytes(JPEG)
    run("photos", out, *options)
    names = {*os.listdir()} - {"photos", ".torch_index"}
    assert names == {*written, "labels-out.txt"}
    assert f"shard{'s' * (len(written) > 1)}: {written[0]}" in capsys.readouterr().out
    found = examples(written)
    assert sorted(each["image/filename"][0] for each in found) == sorted(
        f"{number}.jpg".encode() for number in (0, 1, 2) * 2
    )
    assert {bytes(each["image/encoded"][0]) for each in found} == {JPEG}
    compression = {"gz": b"\x1f\x8b", "zlib": b"\x78"}.get(out.rpartition(".")[2], b"")
    assert Path(written[0]).read_bytes().startswith(compression)
    if out in written:
        assert error(capsys, "photos", out) == f"{out}: it is there; --force writes over a file"
        run("photos", out, "--force")
        assert examples(written) == found


def test_photos_to_a_name_of_another_compression(capsys):
    Path("photos/a").mkdir(parents=True)
    Path("photos/a/1.jpg").write_bytes(JPEG)
    assert error(capsys, "photos", "out.tfrecord", "--compression", "GZIP") == (
        "out.tfrecord: the name says NONE, got --compression GZIP"
    )
    assert error(capsys, "photos", "memory://b/out") == (
        "memory://b/out: expected a path of this machine: copy what is written there"
    )


# Integers of CSV.


@pytest.mark.parametrize(
    ("cells", "row"),
    [
        (["1", f"{2**63}", "2"], 2),
        (["1.5", "", "-9223372036854775809"], 3),
        (["9" * 400], 1),
        ([*map(str, range(6000)), f"{2**64}"], 6001),  # after the first MiB, which decides the type
    ],
)
def test_integers_beyond_int64_are_refused(cells, row, capsys):
    Path("a.csv").write_text("".join(f'"{"k" * 200}\n",{cell}\n' for cell in ["n", *cells]))
    digits = len(cells[row - 1].lstrip("-"))
    assert error(capsys, "a.csv", "a.tfrecord", status=1) == (
        f"a.csv: row {row}, column 'n': expected an integer from -2^63 to 2^63 - 1, got one of {digits} "
        "digits; as a float it needs a point, or --features"
    )


def test_large_floats_and_the_ends_of_int64(capsys):
    Path("a.csv").write_text(f"n,x\n{2**63 - 1},1e20\n-{2**63},{2**64}.0\n0{2**63 - 1},-inf\n")
    run("a.csv", "a.tfrecord")
    found = examples("a.tfrecord")
    assert [int(each["n"][0]) for each in found] == [2**63 - 1, -(2**63), 2**63 - 1]
    assert [float(each["x"][0]) for each in found] == [
        float(np.float32(1e20)), float(np.float32(2**64)), -float("inf"),
    ]  # fmt: skip
    Path("b.csv").write_text(f"x\n{2**64}\n")
    Path("f.py").write_text(
        "import torch\nfrom torch_tfrecord import FixedLenFeature\n"
        "features = {'x': FixedLenFeature((), torch.float32)}\n"
    )
    run("b.csv", "b.tfrecord", "--features", "f.py")
    assert float(examples("b.tfrecord")[0]["x"][0]) == 2.0**64


# Members of a tar that are no plain files, and what they claim.


def write_tar(*members):
    """Write a.tar of names with bytes, or with what else a member is."""
    with tarfile.open("a.tar", "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                for key, value in content.items():
                    setattr(member, key, value)
                tar.addfile(member)


def link(to, kind=tarfile.LNKTYPE):
    return {"type": kind, "linkname": to}


def test_hard_links_and_folders_of_a_tar():
    write_tar(
        ("photos", {"type": tarfile.DIRTYPE}),
        ("photos/0.bin", b"one"),
        ("photos/0.txt", b"text"),
        ("photos/1.bin", link("photos/0.bin")),
        ("photos/2.bin", link("photos/1.bin")),
        ("photos/2.old", {"type": tarfile.AREGTYPE}),
    )
    with tarfile.open("a.tar") as tar:  # as tarfile itself gives them
        wanted = {one.name: tar.extractfile(one).read() for one in tar if not one.isdir()}
    run("a.tar", "a.tfrecord")
    found = examples("a.tfrecord")
    assert [bytes(each["bin"][0]) for each in found] == [b"one"] * 3
    assert [wanted[f"photos/{number}.bin"] for number in range(3)] == [b"one"] * 3
    assert [{*each} for each in found] == [{"bin", "txt"}, {"bin"}, {"bin", "old"}]


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (link("0.bin", tarfile.SYMTYPE), "a link to '0.bin'"),
        (link("../x"), "a link to '../x'"),
        ({"type": tarfile.CHRTYPE}, "type b'3'"),
        ({"type": tarfile.FIFOTYPE}, "type b'6'"),
    ],
)
def test_links_and_devices_of_a_tar_are_refused(member, told, capsys):
    write_tar(("0.bin", b"one"), ("1.bin", member))
    assert error(capsys, "a.tar", "a.tfrecord", status=1) == (
        f"a.tar: member '1.bin': expected a file, or a hard link to a file before it, got {told}"
    )


@pytest.mark.parametrize(
    ("descr", "shape"),
    # Items without bytes and rows without items are Python objects, too.
    [("<f8", (10**6, 125_000)), ("|S0", (10**12,)), ("<f8", (125 * 10**9, 0))],
)
def test_claims_of_a_trillion_values(descr, shape, capsys):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    head = header.getvalue()
    write_tar(("0.x.npy", head))
    assert error(capsys, "a.tar", "a.tfrecord", status=1) == (
        f"a.tar: member '0.x.npy': expected an array of at most the {len(head)} bytes that are there, got {10**12}"
    )


def test_a_member_that_claims_a_trillion_bytes(capsys):
    claim = tarfile.TarInfo("0.x.bin")
    claim.size = 10**12
    Path("b.tar").write_bytes(claim.tobuf() + bytes(1024))
    assert error(capsys, "b.tar", "b.tfrecord", status=1) == (
        f"b.tar: member '0.x.bin': expected at most {2**31 - 1} bytes, as a record has, got {10**12}"
    )
    with pytest.raises(LimitExceededError):
        [*read_tables("tar", ["b.tar"], names=None, specs=None, split="train")]


NAMES = [
    *[
        "a",
        "a.b",
        "a/b",
        "/a",
        "a/",
        ".a",
        "a.",
        "..",
        "a..b",
        "%41",
        "100%",
        "a\nb",
        "é",
        "A",
        "0",
    ],
    *["txt", "a.txt", "json", "x.json", "cls", "__key__", "__url__", "a" * 300, " ", "000000000"],
]


@pytest.mark.parametrize("value", [1, 0.5, "text", b"\xff\0", [1, 2], ["a", "b"]], ids=repr)
def test_names_come_back_from_a_tar(value, capsys):
    write("a.tfrecord", [dict.fromkeys(NAMES, value), dict.fromkeys(reversed(NAMES), value)])
    run("a.tfrecord", "a.tar")
    run("a.tar", "b.tfrecord")
    assert records("b.tfrecord") == records("a.tfrecord")


@pytest.mark.parametrize("name", ["", "\0", "a\0b"])
def test_names_that_a_tar_does_not_bring_back_are_refused(name, capsys):
    write("a.tfrecord", [{name: 1, "x": 2}])
    assert error(capsys, "a.tfrecord", "a.tar") == (
        f"feature {name!r}: a tar has no value of that name: leave it out by --columns, or write Parquet"
    )
