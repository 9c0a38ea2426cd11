"""``tfrecord stats``.

Covers index_tools/stats.
Covers index_tools/stats.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index_tools.main import main
from index_tools.stats import Distribution
from torch_tfrecord import (
    TFRecordWriter,
    encode_example,
    encode_image,
    encode_sequence_example,
)

DATA = Path(__file__).parents[1] / "data" / "records"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stats(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main(["stats", *arguments, "--json"]) == status
    out, err = capsys.readouterr()
    assert err == ""
    facts: dict[str, Any] = json.loads(out)
    facts["by_name"] = {row["feature"]: row for row in facts["features"]}
    return facts


def write(path: str, records: list[Any]) -> None:
    with TFRecordWriter(path) as writer:
        for record in records:
            # a writer would refuse a feature that changes its kind
            writer.write(encode_example(record) if isinstance(record, dict) else record)


def many_records(number: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    return [
        {
            "label": int(random.integers(10)),
            "weight": np.float32(random.normal(1e6, 1)),
            "tokens": random.integers(-5, 5000, size=random.integers(1, 9)),
            "name": ["cat", "dog", "été"][n % 3],
            **({"rare": n} if n % 4 == 0 else {}),
        }
        for n in range(number)
    ]


def check_numbers(row: dict[str, Any], values: np.ndarray) -> None:
    exact = values.astype(np.float64)
    assert row["values"] == len(values)
    assert (row["min"], row["max"]) == (exact.min(), exact.max())
    assert row["mean"] == pytest.approx(exact.mean(), rel=1e-12)
    assert row["std"] == pytest.approx(exact.std(), rel=1e-9)
    assert row["zeros"] == (values == 0).sum()


def test_numbers_equal_those_of_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    records = many_records(3000)
    write("a.tfrecord", records)
    found = stats(capsys, "a.tfrecord")["by_name"]
    labels = np.array([record["label"] for record in records])
    check_numbers(found["label"], labels)
    assert found["label"]["kind"] == "int64"
    assert [found["label"][key] for key in ("25%", "median", "75%")] == np.quantile(
        labels, (0.25, 0.5, 0.75)
    ).tolist()
    assert found["label"]["quartiles"] == "exact"
    counts = sorted(Counter(labels.tolist()).items(), key=lambda item: (-item[1], item[0]))
    assert found["label"]["top"] == [list(item) for item in counts]
    assert found["label"]["distinct"] == 10
    check_numbers(found["weight"], np.array([record["weight"] for record in records]))
    tokens = np.concatenate([record["tokens"] for record in records])
    lengths = [len(record["tokens"]) for record in records]
    check_numbers(found["tokens"], tokens)
    assert (found["tokens"]["shortest"], found["tokens"]["longest"]) == (min(lengths), max(lengths))
    assert (found["tokens"]["distinct"], found["tokens"]["top"]) == (None, [])
    assert (found["rare"]["records"], found["rare"]["missing"]) == (750, 2250)
    assert found["name"]["kind"] == "text"
    assert found["name"]["top"] == [["cat", 1000], ["dog", 1000], ["été", 1000]]
    assert (found["name"]["min"], found["name"]["max"]) == (3, 5)  # bytes


def test_sampled_quartiles_are_near(capsys: pytest.CaptureFixture[str]) -> None:
    records = many_records(4000)
    write("a.tfrecord", records)
    row = stats(capsys, "a.tfrecord")["by_name"]["tokens"]
    tokens = np.sort(np.concatenate([record["tokens"] for record in records]))
    assert row["quartiles"] == "sample"
    for key, share in (("25%", 0.25), ("median", 0.5), ("75%", 0.75)):
        # the standard deviation of a rank is 0.8 % for the median
        assert np.searchsorted(tokens, row[key]) / len(tokens) == pytest.approx(share, abs=0.03)


def test_nan_and_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.tfrecord", [{"x": [float("nan"), 1.0]}, {"x": [0.0, 3.0]}, {"y": [float("inf"), 1.0]}])
    found = stats(capsys, "a.tfrecord")["by_name"]
    row = found["x"]
    assert (row["values"], row["nan"], row["zeros"], row["missing"]) == (3, 1, 1, 1)
    assert (row["min"], row["max"]) == (0, 3)
    assert row["mean"] == pytest.approx(4 / 3)
    assert (found["y"]["min"], found["y"]["max"], found["y"]["std"]) == (1, None, None)


@pytest.mark.slow
@pytest.mark.daily
def test_jobs_do_not_change_the_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.tfrecord", many_records(6000))
    monkeypatch.setattr("index_tools.stats._TASK_BYTES", 1 << 16)
    one = stats(capsys, "a.tfrecord", "--jobs", "1")
    assert one == stats(capsys, "a.tfrecord", "--jobs", "2")
    monkeypatch.setattr("index_tools.stats._TASK_BYTES", 1 << 24)
    whole = stats(capsys, "a.tfrecord")
    for row, other in zip(one["features"], whole["features"], strict=True):
        for key in ("records", "missing", "values", "min", "max", "zeros", "distinct", "top"):
            assert row[key] == other[key], key
        assert row["mean"] == pytest.approx(other["mean"], rel=1e-12)
        assert row["std"] == pytest.approx(other["std"], rel=1e-9)


def test_sample_of_joined_parts_is_uniform() -> None:
    import pyarrow as pa

    found = Distribution()
    for task in range(10):
        part = Distribution()
        part.add(pa.array(np.arange(20_000) + 20_000 * task), task)
        found.merge(part)
    assert (found.count, found.low, found.high) == (200_000, 0, 199_999)
    values = found.sample[1]
    assert len({*values.tolist()}) == len(values) == 4096
    counts, _ = np.histogram(values, 10, (0, 200_000))
    assert (abs(counts - 409.6) < 5 * 20).all()


def test_changed_kinds_and_damage_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[Any] = [{"x": n} for n in range(20)]
    records[0] = {"x": 0.5}
    records[7] = {"x": "text"}
    write("a.tfrecord", records)
    data = bytearray(Path("a.tfrecord").read_bytes())
    data[-6] ^= 1
    Path("a.tfrecord").write_bytes(data)
    facts = stats(capsys, "a.tfrecord", status=1)
    assert facts["by_name"]["x"]["values"] == 17
    check_numbers(facts["by_name"]["x"], np.array([*range(1, 7), *range(8, 19)]))
    assert len(facts["bad"]) == 3
    texts = "\n".join(sorted(facts["bad"]))
    assert "a.tfrecord: record 0 at byte 0: feature 'x' (int64): Data types don't match" in texts
    assert "a.tfrecord: record 7 at byte" in texts
    assert "a.tfrecord: record 19 at byte" in texts
    assert main(["stats", "a.tfrecord"]) == 1
    assert "bad: a.tfrecord: record 7" in capsys.readouterr().out


def test_damaged_header(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.tfrecord", [{"x": n} for n in range(20)])
    data = bytearray(Path("a.tfrecord").read_bytes())
    data[len(data) // 20 * 5 + 2] ^= 1
    Path("a.tfrecord").write_bytes(data)
    facts = stats(capsys, "a.tfrecord", status=1)
    assert facts["by_name"]["x"]["values"] == 19
    assert "record 5" in facts["bad"][0]


def test_duplicates(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.tfrecord", [{"x": 1}, {"x": 2}, {"x": 1}])
    write("b.tfrecord", [{"x": 3}, {"x": 2}])
    facts = stats(capsys, "a.tfrecord", "b.tfrecord", "--duplicates")
    assert facts["duplicates"] == [
        ["a.tfrecord: record 0", "a.tfrecord: record 2"],
        ["a.tfrecord: record 1", "b.tfrecord: record 1"],
    ]


def test_equal_marks_are_confirmed_by_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a.tfrecord", [{"x": 1}, {"x": 2}, {"x": 1}])
    monkeypatch.setattr("index_tools.stats.crc32c", lambda payload: 5)
    facts = stats(capsys, "a.tfrecord", "--duplicates")
    assert facts["duplicates"] == [["a.tfrecord: record 0", "a.tfrecord: record 2"]]


def test_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [(4, 6), (8, 5), (4, 6)]
    pictures = [encode_image(torch.zeros(3, *size, dtype=torch.uint8), "png") for size in sizes]
    pictures.append(encode_image(torch.zeros(3, 9, 9, dtype=torch.uint8), "jpeg"))
    write("a.tfrecord", [{"image": picture} for picture in pictures])
    write("raw.tfrecord", pictures)
    for path, name in (("a.tfrecord", "image"), ("raw.tfrecord", "record")):
        row = stats(capsys, path)["by_name"][name]
        assert row["kind"] == "image"
        assert row["top"] == [["png", 3], ["jpeg", 1]]
        assert (row["height"]["min"], row["height"]["median"], row["height"]["max"]) == (4, 6, 9)
        assert (row["width"]["min"], row["width"]["max"]) == (5, 9)
        assert row["max"] == max(map(len, pictures))


@pytest.mark.slow
@pytest.mark.daily
def test_dask_gives_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed")
    write("a.tfrecord", many_records(500))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        address = f"dask={cluster.scheduler_address}"
        assert stats(capsys, "a.tfrecord", "--executor", address) == stats(capsys, "a.tfrecord")


def test_sequence_examples(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "a.tfrecord",
        [encode_sequence_example({"id": n}, {"frames": [[1.5, 2.5]] * (n + 1)}) for n in range(3)],
    )
    found = stats(capsys, "a.tfrecord")["by_name"]
    check_numbers(found["frames"], np.array([1.5, 2.5] * 6))
    assert (found["frames"]["shortest"], found["frames"]["longest"]) == (1, 3)
    check_numbers(found["id"], np.arange(3))


@pytest.mark.slow
@pytest.mark.daily
def test_plot(capsys: pytest.CaptureFixture[str]) -> None:
    records = many_records(200)
    for n, record in enumerate(records):
        record["$x_{a$ \x1b[31m"] = n % 3
        size = (3, 4 + n % 5, 6)
        record["image"] = encode_image(torch.zeros(size, dtype=torch.uint8), "png")
    write("a.tfrecord", records)
    assert main(["stats", "a.tfrecord", "--plot", "a.png"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert Path("a.png").read_bytes()[1:4] == b"PNG"
    assert main(["stats", "a.tfrecord", "--plot", "a.png"]) == 2
    assert capsys.readouterr().err == "tfrecord: a.png: it is there; --force writes over a file\n"
    assert main(["stats", "a.tfrecord", "--plot", "a.png", "--force"]) == 0


def test_wrong_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.tfrecord").touch()
    Path("a.png").write_bytes(encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png"))
    assert stats(capsys, "empty.tfrecord")["records"] == 0
    assert main(["stats", "empty.tfrecord"]) == 0
    assert main(["stats", "missing.tfrecord"]) == 2
    assert capsys.readouterr().err.startswith("tfrecord: missing.tfrecord: No such file")
    facts = stats(capsys, "a.png", status=1)
    assert "It looks like a PNG image" in facts["bad"][0]


def test_records_that_tensorflow_wrote(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes((DATA / "thousand_small.tfrecord").read_bytes())
    facts = stats(capsys, "a.tfrecord")
    check_numbers(facts["by_name"]["i"], np.arange(1000))
    assert (facts["records"], facts["bad"], facts["inferred_from"]) == (1000, [], 1000)
    assert facts["by_name"]["name"]["values"] == 1000
