"""`tfrecord bench` names what was planted; what it prints, and its errors.

Covers index_tools/bench, index_tools/_features.
"""

import io
import json
import re
import time

import numpy as np
import pytest
from crc32c import crc32c
from helpers import pure_python
from PIL import Image as Picture
from range_server import range_server

from index_tools import bench
from index_tools.main import main
from torch_tfrecord import TFRecordWriter, encode_example

HEAD = "import time, torch\nfrom torch_tfrecord import *\n"
INTEGERS = HEAD + "features = {'x': FixedLenFeature((), torch.int64)}\n"
NUMBERS = HEAD + "features = {'x': FixedLenFeature((), torch.float32)}\n"


def write(records, path="a.tfrecord", compression_type=None):
    with TFRecordWriter(path, compression_type=compression_type, write_index=True) as writer:
        for record in records:
            writer.write(record)


def assert_names(expected, capsys, code, *arguments, paths="a.tfrecord"):
    """Other processes may take the processor for longer than a short run: then take more time."""
    with open("f.py", "w") as file:
        file.write(code)
    for seconds in ("0.4", "1", "4"):
        options = ["--features", "f.py", "--seconds", seconds, *arguments]
        assert main(["bench", paths, *options]) == 0
        rates, bound = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"[\d,]+ samples/s, [\d,]+\.\d MB/s, waiting \d+%", rates)
        name, advice = re.fullmatch(r"bound by (\w+): (.+)", bound).groups()
        assert advice and {*advice.split("; or ")} <= {*bench._ADVICE[name]}
        if name == expected:
            return
    assert name == expected


def numbers(count=2000):
    return ({"x": float(number)} for number in range(count))


def jpeg(seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (100, 150, 3), np.uint8).repeat(10, 0).repeat(10, 1)
    file = io.BytesIO()
    Picture.fromarray(pixels).save(file, "jpeg")
    return file.getvalue()


# What was planted.


def test_a_slow_disk(folder, capsys):
    write({"x": bytes(20_000)} for _ in range(64))
    code = HEAD + "features = {'x': RawTensor((20_000,), torch.uint8)}"
    with range_server(folder, latency=0.01, bytes_per_second=20e6) as url:
        assert_names("network", capsys, code, "--batch-size", "8", paths=f"{url}/a.tfrecord")


def test_slow_checksums(folder, capsys, monkeypatch):
    def slow(payload):
        time.sleep(len(payload) * 1e-6)
        return crc32c(payload)

    write([{"x": bytes(20_000)}] * 40)
    code = HEAD + "features = {'x': RawTensor((20_000,), torch.uint8)}"
    monkeypatch.setattr("torch_tfrecord.records.framing.crc32c", slow)
    monkeypatch.setattr(bench, "crc32c", slow)
    with pure_python():
        assert_names("checksums", capsys, code, "--batch-size", "4")


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_slow_transform(folder, capsys, num_workers):
    write(numbers())
    code = NUMBERS + "def transform(sample):\n    time.sleep(0.002)\n    return sample"
    assert_names("transform", capsys, code, "--num-workers", f"{num_workers}")


def test_large_pictures(folder, capsys):
    write({"image": jpeg(seed)} for seed in range(8))
    code = HEAD + "features = {'image': Image()}"
    assert_names("decode", capsys, code, "--batch-size", "4")


def test_too_many_workers(folder, capsys):
    write(numbers(5000))
    assert_names("transport", capsys, NUMBERS, "--num-workers", "2")


def test_gzip(folder, capsys):
    values = np.random.default_rng(0).integers(0, 16, (200, 50_000), np.uint8)
    records = ({"x": number, "unread": row.tobytes()} for number, row in enumerate(values))
    write(records, "a.tfrecord.gz", "GZIP")
    assert_names("decompression", capsys, INTEGERS, paths="a.tfrecord.gz")


@pytest.mark.parametrize("kind", ["many features", "long lists"])
def test_parsing(folder, capsys, kind):
    record = {"x": [*range(128)] * 100}
    code = HEAD + "features = {'x': VarLenFeature(torch.int64)}"
    if kind == "many features":
        record = {f"x{number}": number for number in range(1000)}
        code = HEAD + f"features = {{x: FixedLenFeature((), torch.int64) for x in {[*record]}}}"
    write([encode_example(record)] * 2000)
    assert_names("parse", capsys, code)


# What it prints, and what it does not take.


def test_json(folder, capsys):
    write(numbers())
    arguments = ["--batch-size", "16", "--num-threads", "1", "--seconds", "0.05", "--json"]
    assert main(["bench", "a.tfrecord", *arguments]) == 0  # the features are inferred
    found = json.loads(capsys.readouterr().out)
    assert {*found["advice"].split("; or ")} <= {*bench._ADVICE[found["bound_by"]]}
    assert found["samples"] == 16 * found["batches"] <= 2000
    assert found["samples_per_second"] == pytest.approx(found["samples"] / found["seconds"])
    num_bytes = found["bytes"] * found["batches"] / found["seconds"]
    assert found["megabytes_per_second"] == pytest.approx(num_bytes / 1e6)
    assert 0 < found["waiting"] <= 1
    assert {"wait", "read", "parse", "decode", "transform", "collate", "queue"} <= found.keys()


@pytest.mark.parametrize("num_workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_pictures_of_several_sizes_as_convert_wrote_them(folder, capsys, num_workers):
    (folder / "photos").mkdir()
    for number in range(12):
        Picture.new("RGB", (40 + number, 30)).save(folder / "photos" / f"{number}.jpg")
    (folder / "labels.csv").write_text(
        "".join(f"{number}.jpg,{number % 2}\n" for number in range(12))
    )
    assert main(["convert", "photos", "out.tfrecord", "--labels-csv", "labels.csv"]) == 0
    capsys.readouterr()
    arguments = ["--batch-size", "4", "--seconds", "0.05", "--num-workers", num_workers, "--json"]
    assert main(["bench", "out.tfrecord", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == f"{bench._SEVERAL_SIZES}\n"
    found = json.loads(out)
    assert 4 <= found["samples"] <= 12 and found["bytes"] > 0
    # what a user writes is not changed in silence
    (folder / "f.py").write_text(HEAD + "features = {'image/encoded': Image()}")
    assert main(["bench", "out.tfrecord", "--features", "f.py", *arguments]) == 2
    assert "cannot batch tensors with different shapes" in capsys.readouterr().err


def test_records_that_are_one_value(folder, capsys):
    write([json.dumps([{"a": [1, 2, "word"], "b": {"c": None}}] * 50).encode()] * 2000)
    assert_names("python", capsys, HEAD + "features = Json()")


@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent.tfrecord"], "absent.tfrecord"),
        (["empty.tfrecord", "--features", "f.py"], "expected records to read, got none"),
        (["a.tfrecord", "--features", "bad.py"], "bad.py: ZeroDivisionError: division by zero"),
        (["a.tfrecord", "--features", "no.py"], "no.py: expected code that assigns `features`"),
        (["a.tfrecord", "--batch-size", "0"], "greater than zero, got 0"),
        (
            ["a.tfrecord", "--num-threads", "-1"],
            "num_threads must be an integer of at least 0, got -1",
        ),
        (["a.tfrecord", "--seconds", "long"], "invalid float value: 'long'"),
        (["a.tfrecord.idx"], "expected data files, got only index files"),
    ],
    ids=repr,
)
def test_wrong_use(folder, capsys, arguments, told):
    write(numbers(3))
    write([], "empty.tfrecord")
    for name, code in {"f.py": NUMBERS, "bad.py": "1 / 0", "no.py": "features = 3"}.items():
        (folder / name).write_text(code)
    assert main(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_damaged_data(folder, capsys):
    write(numbers(3))
    with open("a.tfrecord", "r+b") as file:
        file.seek(14)
        file.write(b"!!!")
    (folder / "f.py").write_text(NUMBERS)
    assert main(["bench", "a.tfrecord", "--features", "f.py"]) == 1
    assert "a.tfrecord: record 0 at byte 0" in capsys.readouterr().err
