"""Datasets as tables: some features, records by the columns of the index, what reads Arrow.

Covers tables/kept_columns, tables/index_columns, tables/record_dataset.
"""

import dataclasses
import pickle

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from helpers import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sidecars import flips

from torch_tfrecord import (
    FixedLenFeature,
    IndexMismatchError,
    ParseError,
    RecordIndex,
    SequenceFeatures,
    Text,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    balanced_weights,
    build_index,
    build_manifest,
    encode_example,
    make_dataloader,
)
from torch_tfrecord.tables import StoredColumns

FEATURES = {
    "label": FixedLenFeature((), torch.int64),
    "split": Text(),
    "score": FixedLenFeature((), torch.float32),
    "tokens": VarLenFeature(torch.int64),
}
COLUMNS = ["label", "split", "score", "len(tokens)", "id"]
NUM = 300


def row(n):
    found = {
        "label": n % 7,
        "split": ["train", "val", "é"][n % 3],
        "score": n / 4,
        "tokens": np.arange(n % 5),
    }
    return found if n % 2 else {**found, "id": f"key-{n}".encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for file in range(3):
        path = folder / f"x-{file}.tfrecord"
        with TFRecordWriter(path) as writer:
            for n in range(NUM // 3 * file, NUM // 3 * (file + 1)):
                writer.write(row(n))
        build_index(path, columns=COLUMNS).save(f"{path}.index.safetensors")
    return folder


@pytest.fixture
def ds(folder):
    return TFRecordDataset(folder / "x-*.tfrecord", FEATURES, index="require")


@pytest.fixture
def bare(folder):
    """The same, without kept columns."""
    return TFRecordDataset(folder / "x-*.tfrecord", FEATURES, index="memory")


# Some features.


def test_select_columns(ds):
    part = ds.select_columns(["score", "label"])
    assert part[5] == {"score": torch.tensor(1.25), "label": torch.tensor(5)}
    assert [*part.features] == ["score", "label"]
    assert [*part[3:][0]] == ["score", "label"]
    assert ds.features == FEATURES
    batch = next(iter(make_dataloader(part, 4, shuffle=False)))
    assert batch["label"].tolist() == [0, 1, 2, 3]


ROWS = {
    "a list": [5, 3, 3, -1],
    "a range": range(290, 10, -7),
    "an array": np.array([7, 250], np.int32),
    "positions": np.array([7, 250]),
    "a tensor": torch.tensor([0, 299]),
    "a generator's list": [*(n for n in range(0, 300, 50))],
    "none": [],
    "no positions": np.empty(0, np.int64),
}


@for_each("what", ROWS)
def test_select(ds, what):
    rows = [int(n) for n in ROWS[what]]
    chosen, part = ds.select(ROWS[what]), ds[100:200].select([n % 100 for n in rows])
    assert [sample["score"] for sample in chosen] == [n % NUM / 4 for n in rows]
    assert [sample["score"] for sample in part] == [25 + n % 100 / 4 for n in rows]
    assert chosen.to_arrow()["score"].to_pylist() == [n % NUM / 4 for n in rows]
    assert chosen.column("label").tolist() == [n % NUM % 7 for n in rows]
    again = chosen[::-1].select(range(len(rows))[1:])
    assert [sample["score"] for sample in again] == [n % NUM / 4 for n in rows[::-1][1:]]


def test_wrong_rows(ds):
    for wrong in ("label", ["label"], [0.5], [True, False], np.ones(NUM, bool), [None]):
        with pytest.raises(TypeError, match=r"integer, got .*ds\.select_columns\(\[name\]\)"):
            ds.select(wrong)
    for wrong in ([NUM], [-NUM - 1], np.array([0, NUM])):
        with pytest.raises(IndexError, match="out of range for 300 records"):
            ds.select(wrong)


def test_select_keeps_the_transform(folder):
    double = TFRecordDataset(
        folder / "x-*", FEATURES, transform=lambda sample: {"twice": 2 * sample["label"]}
    )
    assert double.select_columns(["label"])[3] == {"twice": torch.tensor(6)}
    assert double.to_arrow(range(2)).column_names == [*FEATURES]  # of the features


def test_select_of_sequences(tmp_path):
    features = SequenceFeatures({"a": VarLenFeature(torch.int64), "b": Text()}, {"s": Text()})
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write(encode_example({"a": 1}))
    ds = TFRecordDataset(tmp_path / "x", features)
    context, steps = ds.select_columns(["a"])[0]
    assert (context["a"].tolist(), steps) == ([1], {})


# Columns in the index.


def test_columns_of_an_index(folder):
    index = RecordIndex.load(folder / "x-1.tfrecord.index.safetensors")
    numbers = [*range(100, 200)]
    assert index.columns["label"].tolist() == [n % 7 for n in numbers]
    assert index.columns["label"].dtype == np.int64
    assert index.columns["score"].tolist() == [n / 4 for n in numbers]
    assert index.columns["score"].dtype == np.float32
    assert index.columns["split"].tolist() == [["train", "val", "é"][n % 3] for n in numbers]
    assert index.columns["len(tokens)"].tolist() == [n % 5 for n in numbers]
    ids = index.columns["id"]
    assert ids.mask.tolist() == [n % 2 == 1 for n in numbers]
    assert ids.compressed().tolist() == [f"key-{n}" for n in numbers if n % 2 == 0]
    built = build_index(folder / "x-1.tfrecord", columns=COLUMNS)
    assert built == index
    assert {name: column.tolist() for name, column in built.columns.items()} == {
        name: column.tolist() for name, column in index.columns.items()
    }
    assert build_index(folder / "x-1.tfrecord").columns == {}


SEARCHES = {
    "a number": ("label", 3, lambda r: r["label"] == 3),
    "a tensor's number": ("label", np.int64(3), lambda r: r["label"] == 3),
    "several": ("label", [1, 4, 99], lambda r: r["label"] in (1, 4)),
    "a range": ("label", range(2, 5), lambda r: 2 <= r["label"] < 5),
    "a wide range": ("label", range(1, 10**12, 3), lambda r: r["label"] in (1, 4)),
    "an array": ("label", np.array([0, 6]), lambda r: r["label"] in (0, 6)),
    "none": ("label", [], lambda r: False),
    "a text": ("split", "é", lambda r: r["split"] == "é"),
    "bytes": ("split", b"val", lambda r: r["split"] == "val"),
    "texts": ("split", ["val", "train", "other"], lambda r: r["split"] in ("val", "train")),
    "no such text": ("split", "other", lambda r: False),
    "a float": ("score", 2.5, lambda r: r["score"] == 2.5),
    "a function": ("score", lambda c: c > 50, lambda r: r["score"] > 50),
    "a function of texts": ("split", lambda c: c == "val", lambda r: r["split"] == "val"),
    "a length": ("len(tokens)", 4, lambda r: len(r["tokens"]) == 4),
    "a key": ("id", "key-20", lambda r: r.get("id") == b"key-20"),
    "a function of what is missing": (
        "id",
        lambda c: c != "key-20",
        lambda r: r.get("id", b"key-20") != b"key-20",
    ),
}


@for_each("what", SEARCHES)
@pytest.mark.parametrize("way", ["ds", "bare"])
def test_where_and_find(way, what, request):
    ds = request.getfixturevalue(way)
    name, value, fits = SEARCHES[what]
    wanted = [n for n in range(NUM) if fits(row(n))]
    assert ds.find(name, value).tolist() == wanted
    assert ds.where(name, value).to_arrow()["score"].to_pylist() == [n / 4 for n in wanted]
    part = ds[40:200:3]
    wanted = [k for k, n in enumerate(range(40, 200, 3)) if fits(row(n))]
    assert part.find(name, value).tolist() == wanted
    chosen = part.where(name, value)
    assert len(chosen) == len(wanted)
    assert [sample["score"].item() for sample in chosen] == [(40 + 3 * k) / 4 for k in wanted]


def test_where_of_a_where(ds):
    part = ds[::-1].where("split", "val").where("label", lambda label: label > 3)
    assert [s["score"].item() * 4 for s in part] == [
        n for n in reversed(range(NUM)) if n % 3 == 1 and n % 7 > 3
    ]
    assert part.column("label").tolist() == [s["label"].item() for s in part]


def test_where_reads_no_record(ds, monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(ds._record_files, "read_batch", refuse)
    monkeypatch.setattr(ds._record_files, "read", refuse)
    assert len(ds.where("label", 3)) == len([n for n in range(NUM) if n % 7 == 3])
    weights = balanced_weights(ds.column("label"))
    assert len(weights) == NUM
    assert weights[ds.find("label", 6)].sum() == pytest.approx(1)


def test_what_was_read_is_remembered(bare, monkeypatch):
    threes = [n for n in range(NUM) if n % 7 == 3]
    assert bare.find("label", 3).tolist() == threes
    monkeypatch.setattr(bare._record_files, "read_batch", None)
    assert len(bare.where("label", [3, 4])) == len([n for n in range(NUM) if n % 7 in (3, 4)])
    monkeypatch.undo()
    assert pickle.loads(pickle.dumps(bare)).find("label", 3).tolist() == threes
    part = bare[50:].where("score", lambda scores: scores < 20)
    assert part.find("label", 3).tolist() == [n - 50 for n in range(50, 80) if n % 7 == 3]


def test_where_by_the_name_of_a_feature(folder):
    features = {"cls": FixedLenFeature((), torch.int64, key="label")}
    for index in ("memory", "require"):
        ds = TFRecordDataset(folder / "x-*.tfrecord", features, index=index)
        assert ds.find("cls", 3).tolist() == [n for n in range(NUM) if n % 7 == 3]
        assert ds.find("label", 3).tolist() == ds.find("cls", 3).tolist()


EDGES = {
    "n": [2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0, 1, 3],
    "x": [0.1, 0.2, 0.5, 2.0**24, float("inf"), float("nan"), 1.0],
    "b": [True, False, True, True, True, True, True],
    "s": [b"a", b"", "é".encode(), b"\xff", b"a\0", b"b", b"c"],
}
EXACT = [
    ("n", [2**53 + 1, 0.5], [1]),
    ("n", 2.0**53, [0]),
    ("n", np.array([2**53 + 1, 5]), [1]),
    ("n", torch.tensor([2**53 + 1, 3]), [1, 6]),
    ("n", torch.tensor(3), [6]),
    ("n", [torch.tensor(3), np.int8(1)], [5, 6]),
    ("n", {0, 1}, [4, 5]),
    ("n", 2**63, []),
    ("n", [2.0**63, -(2**63) - 1, 10**400], []),
    ("n", np.array([2**63 - 1, 2**63], np.uint64), [2]),
    ("n", -(2.0**63), [3]),
    ("n", [float("nan"), float("inf"), 0.5], []),
    ("n", True, [5]),
    ("n", np.array([True, False]), [4, 5]),
    ("n", np.bool_(False), [4]),
    ("n", range(-(2**64), 2**64, 2**62), [3, 4]),
    ("n", range(2**53 + 1, -5, -(2**53)), [1, 5]),
    ("n", range(2**63, 2**70), []),
    ("n", range(0, 2**70, 2**63), [4]),
    ("n", range(5, 5), []),
    ("x", 0.1, [0]),
    ("x", [0.1, 0.2], [0, 1]),
    ("x", np.array([0.1, 0.2]), [0, 1]),
    ("x", np.float16(0.5), [2]),
    ("x", torch.tensor([0.1, 7]), [0]),
    ("x", 2**24, [3]),
    ("x", [2**24 + 1, 10**400], []),
    ("x", [1e300, -1e300, 2**128], []),
    ("x", float("inf"), [4]),
    ("x", [float("nan"), 1], [6]),
    ("x", range(0, 100_000), [6]),
    ("x", range(0, 10**40), [3, 6]),
    ("x", range(2**24 + 1, 2**24 + 9), []),
    ("x", [], []),
    ("x", np.array([]), []),
    ("b", True, [0, 2, 3, 4, 5, 6]),
    ("b", [False], [1]),
    ("s", ["a", b"\xff"], [0, 3]),
    ("s", np.array(["é", "a"]), [0, 2]),
    ("s", np.array([b"b"]), [5]),
    ("s", "\ud800", []),
    ("s", [], []),
]


@pytest.fixture(scope="module")
def edges(tmp_path_factory):
    """The rows of `EDGES` in three files; the second is empty."""
    folder = tmp_path_factory.mktemp("edges")
    for number, rows in enumerate((range(4), (), range(4, 7))):
        with TFRecordWriter(folder / f"x-{number}") as writer:
            for n in rows:
                writer.write({name: values[n] for name, values in EDGES.items()})
    indexes = build_index(folder / "x-*", columns=[*EDGES])
    assert [*map(len, indexes)] == [4, 0, 3]
    return folder


@for_each(["name", "value", "wanted"], EXACT)
@pytest.mark.parametrize("index", ["require", "memory"])
def test_exact_searches(edges, index, name, value, wanted):
    ds = TFRecordDataset(edges / "x-*", index=index)
    assert ds.find(name, value).tolist() == wanted
    # some of the rows alone: a column whose type is narrow, and one of a single record
    for rows in (range(4, 7), range(5, 6)):
        found = ds[rows.start : rows.stop].find(name, value)
        assert [rows[n] for n in found] == [n for n in wanted if n in rows]


def test_a_column_is_of_all_its_files(edges):
    ds = TFRecordDataset(edges / "x-*", index="require")
    np.testing.assert_array_equal(ds.column("x"), np.float32(EDGES["x"]))
    assert ds.column("s").tolist() == EDGES["s"]  # one is not UTF-8


# Where indexes are kept.


def test_a_kept_index_is_found(folder, tmp_path, monkeypatch):
    for path in folder.glob("x-*.tfrecord"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    paths = [tmp_path / f"x-{number}.tfrecord" for number in range(3)]
    one = build_index(paths[0], ["label"], save=False)
    assert isinstance(one, RecordIndex) and one.columns["label"].tolist() == [
        n % 7 for n in range(100)
    ]
    assert sorted(tmp_path.iterdir()) == paths
    for given_paths, files in (
        (paths, 3),
        ([paths[1]], 1),
        (tmp_path / "x-[12].*", 2),
        (tmp_path, 3),
    ):
        found = build_index(given_paths, columns=["label"], save=False)
        assert found == [build_index(path) for path in paths[-files:]] or files == 1
        assert len(found) == files
    build_index(tmp_path / "x-*", columns=["label", "score"])
    build_index(paths, columns=["split"])  # the others stay
    build_index(paths, save=True)
    ds = TFRecordDataset(tmp_path / "x-*", FEATURES, index="require")
    monkeypatch.setattr(ds._record_files, "read_batch", None)
    assert ds.find("label", 3).tolist() == [n for n in range(NUM) if n % 7 == 3]
    assert ds.find("score", 2.5).tolist() == [10]
    assert ds.find("split", "é").tolist() == [*range(2, NUM, 3)]


def test_a_kept_index_in_a_folder(folder, tmp_path):
    paths = folder / "x-*.tfrecord"
    build_index(paths, columns=["label"], index_dir=tmp_path)
    ds = TFRecordDataset(paths, index="require", index_dir=tmp_path)
    assert ds.column("label").tolist() == [n % 7 for n in range(NUM)]
    assert len([*tmp_path.iterdir()]) == 3


UNKNOWN = (
    r"expected columns that a record has, got \['lable'\], which none of the records has; the first has "
    r"\['id', 'label', 'score', 'split', 'tokens'\]"
)


def test_a_column_that_no_record_has(folder, tmp_path, bare, ds):
    for names in (["lable"], ["label", "lable"]):
        with pytest.raises(ValueError, match=UNKNOWN):
            build_index(folder / "x-*.tfrecord", columns=names, index_dir=tmp_path)
    with pytest.raises(ValueError, match=r"got \['len\(lable\)'\]"):
        build_index(folder / "x-*.tfrecord", columns=["len(lable)"], index_dir=tmp_path)
    assert not [*tmp_path.iterdir()]
    for search in (bare.find, ds.find, bare.where):
        with pytest.raises(ValueError, match=UNKNOWN):
            search("lable", 3)
    assert len(bare[:0].where("lable", 3)) == 0


def test_where_leaves_out_what_is_damaged(tmp_path):
    with TFRecordWriter(tmp_path / "x") as writer:
        for n in range(20):
            writer.write(b"\xff\xff" if n == 19 else {"label": n % 2})
    content = bytearray((tmp_path / "x").read_bytes())
    content[TFRecordDataset(tmp_path / "x", index="memory").locate(3)[1] + 12] ^= 1
    (tmp_path / "x").write_bytes(content)
    ds = TFRecordDataset(tmp_path / "x", index="memory", on_error="skip")[:-1]
    with pytest.warns(UserWarning, match="skipped 1 "):
        found = ds.find("label", 1)
    assert found.tolist() == [n for n in range(1, 19, 2) if n != 3]
    assert ds.report.counts == {"CorruptRecordError": 1}
    raising = TFRecordDataset(tmp_path / "x", index="memory", verify_crc=False)
    for part, number in ((raising, 3), (raising[5:], 19)):
        with pytest.raises(ParseError, match=f"/x: record {number} at byte"):
            part.find("label", 1)


def test_where_reads_many_parts_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.tables.record_dataset._BATCH_ROWS", 7)
    with TFRecordWriter(tmp_path / "x") as writer:
        for n in range(500):
            writer.write({"label": n * n % 11})
    ds = TFRecordDataset(tmp_path / "x", index="memory")
    assert ds.find("label", 5).tolist() == [n for n in range(500) if n * n % 11 == 5]
    odd = ds[1::2]
    assert odd.find("label", 5).tolist() == [n for n in range(250) if (2 * n + 1) ** 2 % 11 == 5]


def test_columns_do_not_travel_to_workers(ds):
    before = len(pickle.dumps(ds))
    assert len(ds.column("label")) == NUM
    again = pickle.loads(pickle.dumps(ds))
    assert len(pickle.dumps(ds)) == before
    assert again.find("label", 3).tolist() == ds.find("label", 3).tolist()


WRONG = {
    "several values": (
        "tokens",
        3,
        ParseError,
        r"x-0\.tfrecord: record 2 at byte \d+: column 'tokens': expected at most one value in a record, got 2",
    ),
    "text for numbers": (
        "label",
        "3",
        TypeError,
        "column 'label' holds integers, got str to look for",
    ),
    "number for texts": ("split", [3], TypeError, "column 'split' holds strings, got int"),
    "text for floats": ("score", ["a"], TypeError, "column 'score' holds floats, got str"),
    "no mask": (
        "label",
        lambda column: 3,
        TypeError,
        "expected a bool for each of 300 records from the callable, got int",
    ),
    "a mask of ints": ("label", lambda column: column, TypeError, "expected a bool .*, got int64"),
    "a short mask": (
        "label",
        lambda column: column[1:] > 2,
        TypeError,
        "expected a bool for each of 300 records",
    ),
}


@for_each("kind", WRONG)
def test_wrong_searches(ds, kind):
    name, value, error, text = WRONG[kind]
    for search in (ds.where, ds.find):
        with pytest.raises(error, match=text):
            search(name, value)


def test_a_column_that_is_not_kept(ds):
    with pytest.raises(
        IndexMismatchError,
        match=r"x-0\.tfrecord: expected an index with the column 'tokens', got one with \['id', 'label', "
        r"'len\(tokens\)', 'score', 'split'\]: build it with `tfrecord index --columns tokens PATHS`, or "
        r"build_index\(paths, columns=\['tokens'\]\)",
    ):
        ds.column("tokens")


def test_by_a_manifest(folder, tmp_path):
    for path in folder.glob("x-*.tfrecord"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    build_index(tmp_path, columns=["label"])
    build_manifest(tmp_path / "x-*.tfrecord")
    ds = TFRecordDataset(tmp_path / "x-*.tfrecord", FEATURES)
    assert type(ds._record_files.table).__name__ == "ManifestTable"
    assert ds.find("label", 3).tolist() == [n for n in range(NUM) if n % 7 == 3]


def test_a_stale_index_is_not_believed(tmp_path):
    path = tmp_path / "x.tfrecord"
    with TFRecordWriter(path) as writer:
        writer.write({"label": 1})
    build_index(path, columns=["label"])
    assert TFRecordDataset(path).column("label").tolist() == [1]
    content = path.read_bytes()
    path.write_bytes(content + content)
    with pytest.raises(IndexMismatchError, match="the index is not of this file as it is now"):
        TFRecordDataset(path, index="require")
    with pytest.raises(
        IndexMismatchError, match="expected an index with the column 'label', got one with none"
    ):
        TFRecordDataset(path).column("label")


def test_a_damaged_column(folder, tmp_path):
    index = build_index(folder / "x-0.tfrecord", columns=["label", "split", "id"])
    content = index.to_bytes()
    wanted = {name: column.tolist() for name, column in index.columns.items()}
    num_bytes = len(StoredColumns.pack(index._kept)[1])
    seen = set()
    bits = range(8 * (len(content) - num_bytes), 8 * len(content), 5)
    for damaged in flips(content, bits):
        loaded = RecordIndex.load(save(tmp_path / "i", damaged))
        for name in loaded._kept:  # read when they are asked for
            try:
                assert loaded._kept[name].array().tolist() == wanted[name]
            except IndexMismatchError as error:
                assert str(error) == f"{tmp_path / 'i'}: the column {name!r} is damaged"
                seen.add(name)
    assert seen == {*wanted}


def save(path, content):
    path.write_bytes(content)
    return path


def test_files_of_several_kinds(tmp_path):
    for number, value in enumerate((1, "a")):
        path = tmp_path / f"x-{number}"
        with TFRecordWriter(path) as writer:
            writer.write({"label": value})
        build_index(path, columns=["label"]).save(f"{path}.index.safetensors")
    ds = TFRecordDataset([tmp_path / "x-0", tmp_path / "x-1"])
    with pytest.raises(
        IndexMismatchError,
        match="column 'label': expected values of one kind in all files, got integers and strings",
    ):
        ds.where("label", 1)


def test_a_file_without_values_fits_any_kind(tmp_path):
    for number, rows in enumerate(([{}], [{"s": "b"}, {}], [{"s": "a"}])):
        path = tmp_path / f"x-{number}"
        with TFRecordWriter(path) as writer:
            for one in rows:
                writer.write(one)
    build_index(tmp_path / "x-?", columns=["s"])
    ds = TFRecordDataset(tmp_path / "x-?", index="require")
    assert ds.column("s").tolist() == [None, "b", None, "a"]
    assert ds.find("s", ["a", "b"]).tolist() == [1, 3]


def test_values_that_come_late(tmp_path):
    """Kinds are known from the first value, in whatever block that is."""
    rows = [{"pad": b"x" * 3000} for _ in range(600)] + [
        {"late": 0.5, "words": ["a", "b"]},
        {"late": 1.5},
    ]
    with TFRecordWriter(tmp_path / "x") as writer:
        for one in rows:
            writer.write(one)
    index = build_index(tmp_path / "x", columns=["late", "len(words)"])
    assert index.columns["late"].tolist() == [None] * 600 + [0.5, 1.5]
    assert index.columns["len(words)"].tolist() == [0] * 600 + [2, 0]


REFUSED = {
    "several values": (
        [{"n": 1}, {"n": [1, 2]}],
        ["n"],
        "record 1 at byte 30: column 'n': expected at most one value in a record, got 2: keep their "
        r"number, by 'len\(n\)'",
    ),
    "another kind": (
        [{"n": 1}, {"n": "a"}],
        ["n"],
        "record 1 at byte 30: feature 'n' .*Data types don't match",
    ),
    "no Example": ([{"n": 1}, b"\xff\xff"], ["n"], "record 1 at byte 30"),
}


@for_each("kind", REFUSED)
def test_records_without_such_a_column(tmp_path, kind):
    rows, columns, text = REFUSED[kind]
    with open(tmp_path / "x", "wb"):
        pass
    with TFRecordWriter(tmp_path / "x") as writer:
        for one in rows:
            writer.write(one if isinstance(one, bytes) else encode_example(one))
    with pytest.raises(ParseError, match=rf"/x: {text}"):
        build_index(tmp_path / "x", columns=columns)


def test_wrong_names(folder):
    with pytest.raises(TypeError, match="columns must be a list of names, got the str 'label'"):
        build_index(folder / "x-0.tfrecord", columns="label")
    for names in (["a", "a"], [""], ["len()"]):
        with pytest.raises(ValueError, match="columns must be different names"):
            build_index(folder / "x-0.tfrecord", columns=names)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=30),
            st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=30),
            st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=30),
        ),
        max_size=4,
    )
)
def test_any_columns_are_packed_and_read_again(tmp_path, columns):
    wanted = {}
    for number, values in enumerate(columns):
        if any(value is not None for value in values):
            wanted[f"c{number}"] = (values * 30)[:30]
    with TFRecordWriter(tmp_path / "x") as writer:
        for row in zip(*wanted.values(), strict=True):
            given = zip(wanted, row, strict=True)
            writer.write({name: [value] for name, value in given if value is not None})
    index = build_index(tmp_path / "x", columns=[*wanted], save=False)
    again = RecordIndex.load(save(tmp_path / "i", index.to_bytes())).columns
    assert [*again] == [*wanted]
    for name, values in wanted.items():
        missing = np.ma.getmaskarray(again[name])
        assert missing.tolist() == [value is None for value in values]
        for found, value in zip(np.ma.getdata(again[name]), values, strict=True):
            if value is not None:
                own = found.encode() if isinstance(found, str) else found
                assert own == value or value != value  # NaN


DESCRIBED = [
    '[["c", "<i8", false, -1, 10, 0]]',  # fewer bytes than records need
    '[["c", "<f8", false, -1, 999, 0]]',
    '[["c", "|O", false, -1, 999, 0]]',
    '[["c", "<i8"]]',
    "[5]",
    "{}{",
    '[["c", "<i1", false, 1000000, 999, 0]]',
]


@for_each("described", DESCRIBED)
def test_descriptions_that_lie(described):
    with pytest.raises((ValueError, TypeError)):
        StoredColumns(described, 30, 0, lambda begin, size: b"")


# What reads Arrow.


def test_in_batches(ds):
    batches = [*ds.iter_arrow(90)]
    assert [batch.num_rows for batch in batches] == [90, 90, 90, 30]
    assert pa.Table.from_batches(batches).equals(ds.to_arrow())
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        next(ds.iter_arrow(0))


def test_some_positions(ds):
    assert ds.to_arrow([5, 1, 5, -1])["label"].to_pylist() == [5, 1, 5, (NUM - 1) % 7]
    assert ds[10:].to_arrow(np.array([0, 2]))["score"].to_pylist() == [2.5, 3.0]
    assert ds.to_arrow([]).num_rows == 0
    with pytest.raises(IndexError, match="position 300 is out of range for 300 records"):
        ds.to_arrow([300])


SCORES = sum(n / 4 for n in range(NUM))


@pytest.mark.slow
def test_polars(ds):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ds)
    assert frame.schema == {
        "label": polars.Int64,
        "split": polars.String,
        "score": polars.Float32,
        "tokens": polars.List(polars.Int64),
    }
    assert frame["score"].sum() == SCORES


def test_pandas(ds):
    for frame in (ds.to_pandas(), pandas.DataFrame.from_arrow(ds)):
        assert frame["score"].sum() == SCORES
        assert frame["label"].dtype == np.int64
        assert frame["split"].value_counts().to_dict() == {"train": 100, "val": 100, "é": 100}
    assert ds.to_pandas([3])["tokens"].iloc[0].tolist() == [0, 1, 2]


def test_a_table_of_what_features_infer(folder):
    from torch_tfrecord import infer_features

    ds = TFRecordDataset(folder / "x-*.tfrecord", infer_features(folder / "x-*.tfrecord"))
    frame = ds.to_pandas()
    assert sorted(frame.columns) == ["id", "label", "score", "split", "tokens"]
    assert frame["id"].isna().sum() == NUM // 2


def test_an_index_holds_its_columns_by_value(folder):
    index = build_index(folder / "x-0.tfrecord", columns=["label"])
    other = dataclasses.replace(index)
    assert other.columns["label"].tolist() == index.columns["label"].tolist()
    assert (
        pickle.loads(pickle.dumps(index)).columns["label"].tolist()
        == index.columns["label"].tolist()
    )
