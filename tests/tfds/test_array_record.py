"""TFDS directories in ArrayRecord, made by TFDS (data/tfds_array_record.tar.gz): the same values as
from TFRecord.

Covers per_process.
"""

import builtins
import gzip
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tfds_values import DATA, EXPECTED, assert_equal, assert_same, directory, leaf, paths
from torch.utils.data import DataLoader, Subset

import torch_tfrecord.tfds as ours
from torch_tfrecord import (
    CorruptRecordError,
    IndexMismatchError,
    LimitExceededError,
    ParseError,
    TFRecordDataset,
    TFRecordError,
    collate,
    per_process,
)
from torch_tfrecord.records import array_record as our_module

array_record = pytest.importorskip("array_record.python.array_record_module")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
RLDS = DATA.parent / "tfds_rlds"
STEPS = json.loads(gzip.decompress((RLDS / "expected.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """The directories that TFDS wrote; not to be changed."""
    folder = tmp_path_factory.mktemp("frozen")
    with tarfile.open(DATA.parent / "tfds_array_record.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def own(frozen, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(frozen, tmp_path / "own"))


def as_is(samples):
    return samples


def ids(ds):
    return [int(ds[position]["id"]) for position in range(len(ds))]


def shards(folder, split="train"):
    return sorted(folder.glob(f"*-{split}.array_record-*"))


def change(folder, **fields):
    path = folder / "dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def write(path, records, options="group_size:1"):
    writer = array_record.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


# Values.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split"), [(n, s) for n in ("drawings", "kinds") for s in EXPECTED[n]["examples"]]
)
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (1, "forkserver")])
def test_every_value_is_what_tfds_returned(frozen, name, split, workers, context):
    ds = ours.load(frozen / EXPECTED[name]["directory"], split, as_numpy_layout=True)
    loader = DataLoader(
        ds, 2, num_workers=workers, multiprocessing_context=context, collate_fn=as_is
    )
    found = [sample for batch in loader for sample in batch]
    assert isinstance(ds, TFRecordDataset)
    assert len(found) == len(ds) == len(EXPECTED[name]["examples"][split])
    for sample, expected in zip(found, EXPECTED[name]["examples"][split], strict=True):
        assert set(paths(sample)) == set(expected)
        for path, value in expected.items():
            if leaf(sample, path) is not None:  # an optional one
                assert_equal(leaf(sample, path), value, path)


@pytest.mark.parametrize("name", ["drawings", "kinds"])
def test_samples_and_batches_are_those_of_tfrecord(frozen, name):
    here = ours.load(frozen / EXPECTED[name]["directory"])
    there = ours.load(directory(name), index="memory")
    assert len(here) == len(there)
    for position in range(-1, len(here)):
        assert_same(here[position], there[position])
        assert len(here.raw(position)) == len(there.raw(position))
    order = [3, 1, 1, 4, 0]
    for one, two in zip(here.__getitems__(order), there.__getitems__(order), strict=True):
        assert_same(one, two)
    chosen = ["image", "label"] if name == "drawings" else ["int8", "ragged"]
    batches = [
        ours.load(folder, features=chosen, index="memory")[
            order[:1] if name == "drawings" else order
        ]
        for folder in (frozen / EXPECTED[name]["directory"], directory(name))
    ]
    assert_same(*batches)


def test_info_says_the_format(frozen):
    info = ours.info(frozen / "drawings")
    assert info.file_format == "array_record"
    assert ours.info(directory("drawings")).file_format == "tfrecord"
    assert info.files("test") == [*map(str, shards(Path(info.directory), "test"))]
    assert ours.load(info, "test").files == info.files("test")


# A map-style dataset like any other.


def test_slices_places_and_subsets(frozen):
    ds = ours.load(frozen / "counted", "train")
    files = [*map(str, shards(frozen / "counted" / "2.0.0"))]
    assert ids(ds[10:100:7]) == [*range(10, 100, 7)]
    assert [int(Subset(ds, [5, 128])[at]["id"]) for at in (0, 1)] == [5, 128]
    assert ds.locate(0) == (files[0], 0)
    assert ds.locate(31) == (files[0], 31)
    assert ds.locate(32) == (files[1], 0)
    assert ds.locate(-1) == (files[3], 31)
    assert repr(ds).startswith("TFRecordDataset(130 records in 4 files, ")
    with pytest.raises(IndexError, match="position 130 is out of range for 130 records"):
        ds[130]
    assert ids(pickle.loads(pickle.dumps(ds))) == [*range(130)]
    assert ids(ours.load(frozen / "counted", "train", index="require", verify_crc=False)) == [
        *range(130)
    ]


@pytest.mark.daily
@pytest.mark.parametrize(
    "context", ["fork", pytest.param("spawn", marks=pytest.mark.slow), "forkserver"]
)
@pytest.mark.parametrize("collate_fn", [None, collate])
def test_workers_after_this_process_has_read(frozen, context, collate_fn):
    ds = ours.load(frozen / "counted", "train")
    assert ds[[0, 129]]["id"].tolist() == [0, 129]
    loader = DataLoader(
        ds, 16, num_workers=2, multiprocessing_context=context, collate_fn=collate_fn
    )
    assert [int(value) for batch in loader for value in batch["id"]] == [*range(130)]


def reads_in_child(ds):
    if ids(ds) != [*range(130)] or ds[[3, 100]]["id"].tolist() != [3, 100]:
        os._exit(1)


@pytest.mark.daily
def test_children_forked_while_threads_read(frozen):
    ds = ours.load(frozen / "counted", "train")
    is_over = threading.Event()

    def read(seed):
        draw = random.Random(seed)
        while not is_over.is_set():
            chosen = [draw.randrange(130) for _ in range(8)]
            assert ds[chosen]["id"].tolist() == chosen

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=reads_in_child, args=(ds,)) for _ in range(8)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * len(children)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_threads_share_a_dataset(frozen):
    ds = ours.load(frozen / "counted", "train")
    problems = []

    def read(seed):
        draw = random.Random(seed)
        for _ in range(50):
            chosen = [draw.randrange(130) for _ in range(9)]
            if ds[chosen]["id"].tolist() != chosen or int(ds[chosen[0]]["id"]) != chosen[0]:
                problems.append(chosen)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_records_of_all_sizes_and_writers_options(tmp_path):
    draw = random.Random(0)
    records = [
        b"",
        b"a",
        draw.randbytes(70_000),
        b"b" * 300_000,
        b"",
        *(draw.randbytes(k) for k in range(50)),
    ]
    for options in (
        "group_size:1",
        "group_size:1,uncompressed",
        "group_size:7",
        "group_size:3,brotli",
        "",
    ):
        write(tmp_path / "x", records, options)
        ds = TFRecordDataset(tmp_path / "x")
        assert len(ds) == len(records)
        assert ds.__getitems__(range(len(records))) == records
        assert [ds[number] for number in (3, 0, 54)] == [records[number] for number in (3, 0, 54)]


# RLDS.


@pytest.mark.slow
def test_every_step_of_rlds(frozen, tmp_path):
    here = ours.RLDSDataset(
        frozen / "drawn_episodes", "train", window_size=2, action_horizon=3, index_dir=tmp_path
    )
    there = ours.RLDSDataset(
        RLDS / "drawn_episodes", "train", window_size=2, action_horizon=3, index="memory"
    )
    assert len(here) == len(there) == sum(len(episode["steps"]) for episode in STEPS["train"])
    for position in range(len(there)):
        assert_same(here[position], there[position])
        assert here.locate(position) == there.locate(position)
    for one, two in zip(
        here.__getitems__([9, 0, 9, 20]), there.__getitems__([9, 0, 9, 20]), strict=True
    ):
        assert_same(one, two)
    again = ours.RLDSDataset(
        frozen / "drawn_episodes",
        "train",
        features=["steps/tick"],
        index="require",
        index_dir=tmp_path,
    )
    assert again.num_steps.tolist() == [len(episode["steps"]) for episode in STEPS["train"]]
    loader = DataLoader(again, 5, num_workers=2, collate_fn=collate)
    assert torch.cat([batch["tick"] for batch in loader]).tolist() == [
        step["tick"]["values"] for episode in STEPS["train"] for step in episode["steps"]
    ]


def test_whole_episodes(frozen):
    here = ours.RLDSEpisodes(frozen / "drawn_episodes", "val", index="memory")
    there = ours.RLDSEpisodes(RLDS / "drawn_episodes", "val", index="memory")
    assert [len(here), len(there)] == [2, 2]
    for position in range(2):
        assert_same(here[position], there[position])


def test_errors_of_rlds_name_file_and_record(own):
    folder = own / "drawn_episodes" / "0.1.0"
    path = shards(folder)[0]
    ds = ours.RLDSDataset(folder, "train")
    damage_in_place(path, 5000)  # the fingerprint covers the bytes before
    with pytest.raises(
        CorruptRecordError,
        match=f"{re.escape(str(path))}: record 0: expected an intact ArrayRecord",
    ):
        [ds[position] for position in range(6)]
    with pytest.raises(
        CorruptRecordError,
        match=f"{re.escape(str(path))}: record 0: expected an intact ArrayRecord",
    ):
        ours.RLDSDataset(folder, "train", index="memory")


def damage_in_place(path, at):
    """Flip a bit, and keep the file's size and time."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# Formats.


def test_the_format_that_is_there_is_read(own, tmp_path):
    folder = own / "counted" / "2.0.0"
    records = [path.read_bytes() for path in sorted(directory("counted").glob("*.tfrecord-*"))]
    names = [path.name for path in sorted(directory("counted").glob("*.tfrecord-*"))]
    for formats in (("tfrecord", ["array_record"]), ("riegeli", ["parquet", "array_record"])):
        change(folder, fileFormat=formats[0], alternativeFileFormats=formats[1])
        assert ours.info(folder).file_format == "array_record"
        assert ids(ours.load(folder)) == [*range(130)]
    change(folder, fileFormat="array_record", alternativeFileFormats=["tfrecord"])
    for name, content in zip(names, records, strict=True):
        (folder / name).write_bytes(content)
    assert ours.info(folder).file_format == "array_record"  # both are there
    change(folder, fileFormat="tfrecord", alternativeFileFormats=["array_record"])
    assert ours.info(folder).file_format == "tfrecord"
    assert ids(ours.load(folder, index="memory")) == [*range(130)]
    for path in folder.glob("*record-*"):
        path.unlink()
    assert ours.info(folder).file_format == "tfrecord"  # none is there: the main one
    change(folder, alternativeFileFormats=[5])
    with pytest.raises(ParseError, match="alternativeFileFormats: expected a list of strings"):
        ours.info(folder)


def test_old_directories_without_shard_lengths(own):
    folder = own / "counted" / "2.0.0"
    info = json.loads((folder / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["numShards"] = len(split.pop("shardLengths"))
    change(folder, **info)
    assert ids(ours.load(folder, "train[:50%]")) == [*range(65)]


def test_tfrecorddataset_reads_the_same_records(frozen):
    files = shards(frozen / "counted" / "2.0.0")
    with_features, records = ours.load(frozen / "counted"), TFRecordDataset(files)
    assert [with_features.raw(i) for i in range(130)] == list(records)


def test_without_the_package(frozen, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    monkeypatch.setattr(per_process, "_loaded", {})
    with pytest.raises(
        ImportError,
        match=r"^reading ArrayRecord files needs .* in a clone pip install -e '\.\[arrayrecord\]'$",
    ):
        ours.load(frozen / "counted")
    assert ours.info(frozen / "counted").splits["train"].num_examples == 130


def test_where_no_copy_of_the_package_can_be_loaded(monkeypatch):
    def refuse(name):
        raise ImportError("already registered")

    monkeypatch.setattr(our_module, "compiled_copy", refuse)
    registered = {name: value for name, value in vars(builtins).items() if "pybind" in name}
    assert registered
    with pytest.raises(ImportError, match=r'forked after .* multiprocessing_context="forkserver"'):
        our_module._own_copy()
    assert {name: value for name, value in vars(builtins).items() if "pybind" in name} == registered


def test_a_copy_has_classes_of_its_own(tmp_path):
    write(tmp_path / "x", [b"one", b"two"])
    module = our_module._own_copy()
    assert module.ArrayRecordReader is not array_record.ArrayRecordReader
    assert sys.modules[array_record.__name__] is array_record
    assert module.ArrayRecordReader(str(tmp_path / "x")).read([1, 0]) == [b"two", b"one"]


def test_remote_directories_must_be_copied(frozen):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(frozen / "counted" / "2.0.0"), "/arrays/counted/2.0.0", recursive=True)
    try:
        assert ours.info("memory://arrays/counted").file_format == "array_record"
        with pytest.raises(ValueError, match=r"expected a local path, .* copy the files to a disk"):
            ours.load("memory://arrays/counted")
    finally:
        memory.rm("/arrays", recursive=True)


# Damage.


def test_a_missing_shard(own):
    folder = own / "counted" / "2.0.0"
    shards(folder)[2].unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"a shard of the dataset is missing: 1 of 4: counted-train\.array_record",
    ):
        ours.load(folder)
    assert ids(ours.load(folder, "train[:1shard]")) == [*range(32)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "at least 64KB"),
        (b"x" * 1000, "at least 64KB"),
        (bytes(131072), "hash mismatch"),
        (slice(65536), "no reason"),
        (slice(131071), "Invalid Riegeli/records file"),
    ],
)
def test_files_that_are_none(own, content, reason):
    path = shards(own / "counted" / "2.0.0")[1]
    path.write_bytes(path.read_bytes()[content] if isinstance(content, slice) else content)
    expected = f"^{re.escape(str(path))}: expected an intact ArrayRecord file, got an error of array-record: .*{reason}"
    with pytest.raises(CorruptRecordError, match=expected):
        ours.load(own / "counted")


def test_another_number_of_records(own):
    path = shards(own / "counted" / "2.0.0")[1]
    write(path, [b"one", b"two"])
    expected = rf"{re.escape(str(path))}: expected 33 records \(shardLengths in dataset_info.json\), got 2 in the shard"
    with pytest.raises(IndexMismatchError, match=expected):
        ours.load(own / "counted")


def test_a_file_that_changes_later(own):
    path = shards(own / "counted" / "2.0.0")[1]
    ds = ours.load(own / "counted", "train")
    write(path, [b"x" * 9] * 33)
    with pytest.raises(
        IndexMismatchError,
        match=f"{re.escape(str(path))}: .*the index is not of this file as it is now",
    ):
        ds[40]
    with pytest.raises(IndexMismatchError, match=re.escape(str(path))):
        ds.__getitems__([3, 40])
    path.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        pickle.loads(pickle.dumps(ds))[40]


def test_the_first_bad_record_of_a_batch_is_named(own):
    path = shards(own / "drawings" / "1.2.10")[0]
    damage_in_place(path, 150)
    ds = ours.load(own / "drawings", "train")
    intact = [position for position in range(5) if not _fails(ds, position)]
    bad = next(position for position in range(5) if position not in intact)
    with pytest.raises(
        CorruptRecordError, match=f"^{re.escape(str(path))}: record {bad}: expected an intact"
    ) as caught:
        ds.__getitems__([4, bad, 3])
    assert (caught.value.path, caught.value.position, caught.value.offset) == (str(path), bad, None)
    assert caught.value.__cause__ is not None
    for position in intact:  # the others are read as before
        ds[position]
    with pytest.raises(CorruptRecordError, match=f"record {bad}"):
        list(DataLoader(ds, 5, num_workers=1, collate_fn=as_is))


def _fails(ds, position):
    try:
        ds[position]
    except CorruptRecordError:
        return True
    return False


def test_a_record_that_does_not_fit_is_named(own):
    path = shards(own / "counted" / "2.0.0")[1]
    write(path, [b"\x0a\x03\x0a\x01x"] * 33)
    ds = ours.load(own / "counted", "train")
    for read in (lambda: ds[40], lambda: ds.__getitems__([2, 40, 41])):
        with pytest.raises(ParseError, match=f"^{re.escape(str(path))}: record 8: ") as caught:
            read()
        assert caught.value.offset is None


@pytest.mark.daily
def test_the_limit_of_a_batch_holds(frozen):
    ds = ours.load(frozen / "drawings", "train", max_batch_bytes=1000)
    with pytest.raises(LimitExceededError, match="max_batch_bytes"):
        ds.__getitems__([0, 1, 2])
    with pytest.raises(LimitExceededError, match="max_batch_bytes"):
        ds[4]


def read_all_damaged(path, content, records):
    """Write a damaged file and read it in every way: an error, or the right bytes."""
    path.write_bytes(content)
    found = []
    for read in (
        lambda ds: ds.__getitems__(range(len(records))),
        lambda ds: [*map(ds.__getitem__, range(len(records)))],
    ):
        try:
            ds = TFRecordDataset(path)
            if len(ds) != len(records):
                found.append("another number")
                continue
            assert read(ds) == records
            found.append("intact")
        except CorruptRecordError:
            found.append("refused")
    return found


@pytest.mark.parametrize("options", ["group_size:1", "group_size:3,uncompressed"])
def test_a_flipped_byte_anywhere_is_found(tmp_path, options):
    records = [random.Random(n).randbytes(n) + b"abc" * n for n in range(0, 40, 6)]
    write(tmp_path / "good", records, options)
    content = (tmp_path / "good").read_bytes()
    used = np.flatnonzero(np.frombuffer(content, np.uint8))
    counts = {"intact": 0, "refused": 0, "another number": 0}
    for at in used.tolist()[::9]:
        damaged = bytearray(content)
        damaged[at] ^= 0x41
        for outcome in read_all_damaged(tmp_path / "bad", damaged, records):
            counts[outcome] += 1
    assert counts["refused"] > 5 * counts["intact"]
    assert counts["another number"] == 0


# TFDS itself.


@pytest.mark.skipif(
    "TFDS_PYTHON" not in os.environ, reason="needs tensorflow-datasets: set TFDS_PYTHON"
)
def test_what_tfds_writes_now_reads_as_it_reads_it(tmp_path):
    for oracle in (["tfds/oracle.py", "make", "plain"], ["tfds_rlds/oracle.py", "rlds"]):
        (tmp_path / oracle[-1]).mkdir()
        command = [
            os.environ["TFDS_PYTHON"],
            str(DATA.parent / oracle[0]),
            *oracle[1:],
            "array_record",
        ]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=280)
    expected = json.loads(gzip.decompress((tmp_path / "plain" / "expected.json.gz").read_bytes()))
    for name in ("drawings", "kinds"):
        assert expected[name] == EXPECTED[name]
        for split, samples in expected[name]["examples"].items():
            ds = ours.load(
                tmp_path / "plain" / expected[name]["directory"], split, as_numpy_layout=True
            )
            assert ds.files[0].rpartition("/")[2].startswith(f"{name}-{split}.array_record-")
            for position, sample in enumerate(samples):
                for path, value in sample.items():
                    found = leaf(ds[position], path)
                    assert found is None or assert_equal(found, value, path) is None
    for split, found in expected["counted"]["splits"].items():
        if not isinstance(found, str):
            assert ids(ours.load(tmp_path / "plain" / "counted", split)) == found
    assert (
        json.loads(gzip.decompress((tmp_path / "rlds" / "expected.json.gz").read_bytes())) == STEPS
    )
    there = ours.RLDSDataset(RLDS / "drawn_episodes", "train", index="memory")
    here = ours.RLDSDataset(tmp_path / "rlds" / "drawn_episodes", "train")
    for position in range(len(there)):
        assert_same(here[position], there[position])


def test_every_error_is_one_of_ours(own):
    """Random damage in a real directory: the same values, or a TFRecordError."""
    folder = own / "kinds" / "all" / "0.1.0"
    path = shards(folder)[0]
    content = path.read_bytes()
    expected = [ours.load(folder).raw(position) for position in range(5)]
    used = np.flatnonzero(np.frombuffer(content, np.uint8))
    draw = random.Random(7)
    for _ in range(30):
        damaged = bytearray(content)
        at = int(draw.choice(used.tolist()))
        damaged[at : at + 4] = draw.randbytes(4)
        path.write_bytes(damaged)
        try:
            ds = ours.load(folder)
            assert [ds.raw(position) for position in range(5)] == expected
        except TFRecordError as error:
            assert str(path) in str(error)
