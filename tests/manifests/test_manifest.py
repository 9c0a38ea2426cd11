"""The manifest: a dataset opens from it alone, reads what it needs, and believes nothing that is
damaged or stale.

Covers manifests/manifest_building, manifests/manifest_table, records/record_table.
"""

import multiprocessing
import os
import pickle
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from helpers import compressed, framed
from sidecars import changed, flipped_in_place, taken_apart

from torch_tfrecord import (
    IndexMismatchError,
    RecordIndex,
    RecordSampler,
    TFRecordDataset,
    TFRecordIterableDataset,
    build_index,
    build_manifest,
    find_files,
)
from torch_tfrecord.manifests import write_manifest
from torch_tfrecord.records import IndexKeeper, RecordTable

COUNTS = [3, 0, 5000, 2048, 1, 4096, 700]


def payloads(shard, count):
    return [b"%d/%d" % (shard, number) * (number % 7 + shard) for number in range(count)]


WANTED = [payload for shard, count in enumerate(COUNTS) for payload in payloads(shard, count)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of shards with its manifest and no other index; to be copied, not changed."""
    folder = tmp_path_factory.mktemp("manifest") / "data"
    folder.mkdir()
    for shard, count in enumerate(COUNTS):
        (folder / f"x-{shard:05d}-of-00007").write_bytes(framed(*payloads(shard, count)))
    path = build_manifest(f"{folder}/x-*")
    assert path == f"{folder}/.torch_index/manifest.safetensors"
    for index in (folder / ".torch_index").glob("*.index.*"):
        index.unlink()
    return folder


@pytest.fixture
def data(written, tmp_path):
    shutil.copytree(written, tmp_path / "data")  # with the times
    return tmp_path / "data"


def manifest_of(folder):
    return folder / ".torch_index" / "manifest.safetensors"


@pytest.fixture(params=["all blocks", "few blocks"])
def kept(request, monkeypatch):
    """With room for all blocks, and for three."""
    if request.param == "few blocks":
        module = "torch_tfrecord.manifests.manifest_table"
        monkeypatch.setattr(f"{module}._KEPT_BLOCKS", 3)
        monkeypatch.setattr(f"{module}._BLOCKS_AT_ONCE", 2)


@pytest.fixture
def no_builds(monkeypatch):
    """Fails where an index is built or a kept one is looked for."""

    def refuse(self, *arguments):
        raise AssertionError("not opened from the manifest")

    monkeypatch.setattr(IndexKeeper, "find", refuse)


# Values.


@pytest.mark.slow
def test_a_dataset_finds_it_and_opens_from_it_alone(data, kept, no_builds):
    for paths in (
        f"{data}/x-*",
        str(data),
        f"{data}/x@7",
        str(manifest_of(data)),
        [manifest_of(data)],
    ):
        for policy in ("auto", "require"):
            ds = TFRecordDataset(paths, index=policy)
            assert ds.files == [f"{data}/x-{shard:05d}-of-00007" for shard in range(7)]
            assert len(ds) == len(WANTED)
            assert list(ds.__getitems__(list(range(len(ds))))) == WANTED


@pytest.mark.slow
def test_every_look_up_is_that_of_the_indexes(data, kept):
    ds, plain = TFRecordDataset(f"{data}/x-*"), TFRecordDataset(f"{data}/x-*", index="memory")
    table, other = ds._record_files.table, plain._record_files.table
    assert type(other) is RecordTable
    assert ds._record_files.extent == plain._record_files.extent
    for positions in (
        np.arange(len(ds)),
        np.random.default_rng(0).permutation(len(ds)),
        np.empty(0, np.int64),
    ):
        for one, expected in zip(table.find(positions), other.find(positions), strict=True):
            np.testing.assert_array_equal(one, expected)
    assert list(map(table.find_one, range(len(ds)))) == list(map(other.find_one, range(len(ds))))
    assert [ds.locate(position) for position in (0, 3, -1)] == [
        plain.locate(position) for position in (0, 3, -1)
    ]
    np.testing.assert_array_equal(ds._block_starts(3000), plain._block_starts(3000))
    places = other.find(np.arange(0, len(ds), 13))
    for block_bytes in (1, 100, 30_000, 1 << 20):
        found = [
            [
                each.block_extent(file, offset, block_bytes)
                for file, offset in zip(*places[:2], strict=True)
            ]
            for each in (table, other)
        ]
        assert found[0] == found[1]
    for shuffle in (True, "blocks"):
        assert list(RecordSampler(ds, shuffle=shuffle)) == list(
            RecordSampler(plain, shuffle=shuffle)
        )


def test_some_of_its_shards(data, kept, no_builds):
    ds = TFRecordDataset([f"{data}/x-0000{shard}-of-00007" for shard in (6, 2, 1)])
    assert ds[:].__getitems__(range(len(ds))) == [
        p for shard in (1, 2, 6) for p in payloads(shard, COUNTS[shard])
    ]
    assert pickle.loads(pickle.dumps(ds)).files == ds.files


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_compressed_shards(tmp_path, kept, kind):
    records = [payloads(2, 5000), payloads(1, 30)]
    for shard, of_shard in enumerate(records):
        (tmp_path / f"x-{shard}").write_bytes(compressed(framed(*of_shard), kind))
    build_manifest(f"{tmp_path}/x-*")
    ds = TFRecordDataset(f"{tmp_path}/x-*", index="require")
    ds._record_files.has_warned = True
    assert ds._record_files.first_compressed == f"{tmp_path}/x-0"
    assert [ds[position] for position in range(len(ds))] == [*records[0], *records[1]]
    with (
        pytest.warns(
            UserWarning,
            match=f"x-0: the manifest at .* expected compression '', got '{kind}': it is not",
        ),
        pytest.raises(
            IndexMismatchError, match=f"expected compression '', got '{kind}' in the index"
        ),
    ):
        TFRecordDataset(f"{tmp_path}/x-*", index="require", compression_type=None)


def test_the_stream_and_find_files_take_it(data):
    path = str(manifest_of(data))
    assert find_files(path) == find_files(f"{data}/x-*")
    assert find_files([path, __file__]) == sorted([*find_files(path), __file__])
    assert list(TFRecordIterableDataset(path)) == WANTED


def test_no_pattern_takes_it_for_data(data):
    shutil.copy(manifest_of(data), data / "x-manifest.safetensors")
    files = [f"{data}/x-{shard:05d}-of-00007" for shard in range(7)]
    assert find_files(f"{data}/*") == find_files(f"{data}/x*") == find_files(str(data)) == files


def test_relative_paths(data, monkeypatch, no_builds):
    monkeypatch.chdir(data)
    for paths in ("x-*", "./x-*", "../data/x-*", ".torch_index/manifest.safetensors"):
        ds = TFRecordDataset(paths)
        assert ds[-1] == WANTED[-1]
        assert ds.files[0].endswith("x-00000-of-00007")


def test_shards_of_several_folders(tmp_path):
    for name in ("a/x", "a/b/x", "c/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(framed(name.encode()))
    assert build_manifest(f"{tmp_path}/**/x") == f"{tmp_path}/.torch_index/manifest.safetensors"
    for index in tmp_path.glob("**/*.index.*"):
        index.unlink()
    assert list(TFRecordDataset(f"{tmp_path}/**/x", index="require")) == [b"a/b/x", b"a/x", b"c/x"]


def test_a_manifest_elsewhere(data, tmp_path):
    manifest_of(data).unlink()
    (tmp_path / "other").mkdir()
    out = tmp_path / "other" / "all.safetensors"
    assert build_manifest(data, out) == str(out)
    shutil.rmtree(data / ".torch_index")
    ds = TFRecordDataset(out, index="require")
    assert ds.files == find_files(str(data))
    assert list(ds.__getitems__(range(len(ds)))) == WANTED


def test_index_dir(data, tmp_path):
    shutil.rmtree(data / ".torch_index")
    assert (
        write_manifest(data, index_dir=str(tmp_path / "kept")).path
        == f"{tmp_path}/kept/manifest.safetensors"
    )
    for index in (tmp_path / "kept").glob("*.index.*"):
        index.unlink()
    ds = TFRecordDataset(data, index="require", index_dir=tmp_path / "kept")
    assert ds[-1] == WANTED[-1]


# Building.


def test_rows_of_shards_that_did_not_change_are_taken_over(data):
    (data / "x-00004-of-00007").write_bytes(framed(b"new"))
    (data / "y").write_bytes(framed(b"y"))
    written = write_manifest(f"{data}/y")
    # x is not of `paths`, and its changed shard is no longer of the manifest.
    assert (written.num_files, written.num_built, written.num_records) == (7, 1, len(WANTED))
    written = write_manifest(str(data / "x-00004-of-00007"))
    assert (written.num_files, written.num_built) == (8, 1)
    written = write_manifest(f"{data}/y", again=True)
    assert (written.num_files, written.num_built) == (8, 1)
    (data / "x-00000-of-00007").unlink()
    assert write_manifest(f"{data}/y").num_files == 7
    assert TFRecordDataset(str(data / "y"), index="require")[0] == b"y"


def test_what_is_refused_while_building(data):
    before = manifest_of(data).read_bytes()
    with pytest.raises(
        ValueError,
        match=r"out must end with '.safetensors', and not as an index does, got '.*/m.json'",
    ):
        build_manifest(data, data / "m.json")
    with pytest.raises(ValueError, match=r"out must end with '.safetensors'"):
        build_manifest(data, data / "m.index.safetensors")
    with pytest.raises(FileNotFoundError):
        build_manifest(data, data / "none" / "m.safetensors")
    (data / "x-00006-of-00007").write_bytes(framed(b"abc")[:-1])
    with pytest.raises(Exception, match=r"x-00006-of-00007.*truncated"):
        build_manifest(data)
    assert manifest_of(data).read_bytes() == before


def test_nothing_of_others_is_overwritten(data):
    manifest_of(data).write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        build_manifest(data)
    assert manifest_of(data).read_bytes() == b"mine"


def index_of(lengths, **facts):
    offsets = np.cumsum(lengths + 16) - lengths - 16
    return RecordIndex(offsets, lengths, int((lengths + 16).sum()), **facts)


def hole(path, lengths, **facts):
    """A file with a hole in place of records, and the index that it would have."""
    with path.open("wb") as file:
        file.truncate(int((lengths + 16).sum()))
    index = index_of(lengths, mtime_ns=path.stat().st_mtime_ns, **facts)
    IndexKeeper.write(IndexKeeper.place(str(path)), index.to_bytes())


def test_its_size_for_records_of_one_kind(tmp_path):
    lengths = np.maximum(np.random.default_rng(0).normal(100_000, 30_000, 2_000_000), 100)
    hole(tmp_path / "x", lengths.astype(np.int64))
    path = build_manifest(tmp_path / "x")
    assert os.stat(path).st_size < 4.01 * len(lengths)


# What it is held against.


def test_a_copy_with_other_times_is_good(written, tmp_path, kept, no_builds):
    shutil.copytree(written, tmp_path / "copy", copy_function=shutil.copyfile)
    ds = TFRecordDataset(str(tmp_path / "copy"), index="require")
    assert pickle.loads(pickle.dumps(ds)).__getitems__(range(len(ds))) == WANTED


def another_size(folder):
    (folder / "x-00004-of-00007").write_bytes(framed(b"another"))
    return "x-00004-of-00007: the manifest at .* is not of this file as it is now: expected 28 bytes, got 23"


def another_content(folder):
    path = folder / "x-00004-of-00007"
    content = framed(payloads(4, 1)[0].replace(b"4", b"9"))
    assert len(content) == path.stat().st_size
    path.write_bytes(content)
    return (
        "x-00004-of-00007: the manifest at .* expected fingerprint 0x[0-9a-f]{8}, got 0x[0-9a-f]{8}"
    )


@pytest.mark.parametrize("change", [another_size, another_content])
def test_a_changed_shard(data, change):
    text = change(data)
    with pytest.raises(IndexMismatchError, match=text):
        TFRecordDataset(manifest_of(data))
    with pytest.warns(
        UserWarning,
        match=f"{text}: it is not used; build it again with `tfrecord index --manifest`",
    ):
        ds = TFRecordDataset(str(data))
    assert len(ds) == len(WANTED)
    assert ds.raw(sum(COUNTS[:4])) != WANTED[sum(COUNTS[:4])]


def test_a_missing_shard(data):
    (data / "x-00004-of-00007").unlink()
    (data / "x-00005-of-00007").unlink()
    (data / "x-00005-of-00007").symlink_to("nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"2 of 7 shards of the manifest are missing.*x-00004-of-00007"
    ):
        TFRecordDataset(manifest_of(data))
    rest = [str(data / f"x-0000{shard}-of-00007") for shard in (0, 1, 2, 3, 6)]
    assert len(TFRecordDataset(rest, index="require")) == len(WANTED) - 4097


def test_a_shard_that_it_does_not_name(data):
    (data / "y").write_bytes(framed(b"y"))
    with pytest.warns(
        UserWarning,
        match="data/y: the manifest at .* expected all 8 files in it, got 1 that it does not",
    ):
        assert TFRecordDataset(f"{data}/*")[-1] == b"y"
    assert list(TFRecordDataset(f"{data}/y")) == [b"y"]  # it is of others


def test_a_shard_that_changes_while_it_is_used(data):
    ds = TFRecordDataset(str(data))
    another_size(data)
    assert ds[0] == WANTED[0]
    with pytest.raises(
        IndexMismatchError,
        match="x-00004-of-00007: record 0: the index is not of this file as it is now",
    ):
        ds.raw(sum(COUNTS[:4]))


def test_a_manifest_that_changes_while_it_is_used(data, monkeypatch):
    pickled = pickle.dumps(TFRecordDataset(str(data)))
    (data / "x-00004-of-00007").write_bytes(framed(b"new"))
    build_manifest(data)
    with pytest.raises(
        IndexMismatchError,
        match=r"expected the manifest with checksum [0-9a-f]{8} that was opened, got",
    ):
        pickle.loads(pickled)


# Damage.


@pytest.mark.slow
@pytest.mark.parametrize("bits", [[5], pytest.param(range(8), marks=pytest.mark.slow)])
def test_any_flipped_byte_is_noticed(tmp_path, monkeypatch, bits):
    """In the head when it is opened, in a block when one of its records is looked up."""
    (tmp_path / "x").write_bytes(framed(*payloads(3, 40)))
    path = Path(build_manifest(tmp_path, tmp_path / "m.safetensors"))
    for _ in flipped_in_place(
        path, [8 * byte + bit for byte in range(path.stat().st_size) for bit in bits]
    ):
        with pytest.raises(IndexMismatchError):
            TFRecordDataset(path)[0]


@pytest.mark.parametrize(
    "part", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: c[:300], lambda c: b""]
)
def test_a_cut_manifest(data, part):
    content = manifest_of(data).read_bytes()
    manifest_of(data).write_bytes(part(content))
    with pytest.raises(IndexMismatchError, match=r"manifest.safetensors: expected a manifest"):
        TFRecordDataset(manifest_of(data))
    with pytest.warns(
        UserWarning, match=r"manifest.safetensors: expected a manifest .*: it is not used"
    ):
        assert len(TFRecordDataset(str(data))) == len(WANTED)


def test_another_file_in_its_place(data):
    build_index(data / "x-00000-of-00007").save(data / "m.safetensors")
    with pytest.raises(
        IndexMismatchError, match=r"expected a manifest written by torch_tfrecord, .* got another"
    ):
        TFRecordDataset(data / "m.safetensors")


def arrays_with(name, change):
    def lie(content):
        _, arrays = taken_apart(content)
        array = arrays[name].copy()
        return changed_head(content, {name: change(array)})

    return lie


def changed_head(content, arrays=None, **metadata):
    """A manifest with other arrays and metadata, and checksums as they need to be."""
    return changed(content, arrays, lazy="lengths", **metadata)


def plus(number, at=0):
    def change(array):
        array[at] += number
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "num_records",
            plus(1),
            "expected 41 lengths, got 40",
        ),
        (
            "num_records",
            plus(-1),
            "expected 39 lengths, got 40",
        ),
        ("num_records", plus(1 << 40), "numbers of a TFRecord file, got others in row 0"),
        ("file_sizes", plus(1), "numbers of a TFRecord file, got others in row 0"),
        ("stream_sizes", plus(-(1 << 63) + 5), "numbers of a TFRecord file, got others in row 0"),
        ("compression", plus(7), "numbers of a TFRecord file, got others in row 0"),
        ("fingerprints", plus(1 << 40), "numbers of a TFRecord file, got others in row 0"),
        (
            "mtimes_ns",
            lambda array: array[:0],
            r"expected a row for each shard in each column, got \[0, 1\]",
        ),
        ("block_offsets", plus(16), "records one behind the other from byte 16 to byte"),
        ("lengths", lambda array: array[:-1], "expected 40 lengths, got 39"),
        ("lengths", lambda array: array.astype(np.int64), "of uint32 uint64, got others"),
        (
            "block_crcs",
            lambda array: array[:0],
            r"expected 1 blocks, by the numbers of records, got \[0, 1\]",
        ),
        (
            "block_crcs",
            plus(1),
            "expected block 0 with checksum [0-9a-f]{8}, got [0-9a-f]{8}: it is damaged",
        ),
        ("names", lambda array: array[:-1], "expected a text for each of 1 shards, got"),
        (
            "names",
            lambda array: np.frombuffer(b"none", np.uint8),
            "expected a text for each of 1 shards, got",
        ),
    ],
)
def test_a_manifest_that_lies(tmp_path, name, change, text):
    (tmp_path / "x").write_bytes(framed(*payloads(3, 40)))
    path = Path(build_manifest(tmp_path, tmp_path / "m.safetensors"))
    path.write_bytes(arrays_with(name, change)(path.read_bytes()))
    with pytest.raises(IndexMismatchError, match=text):
        TFRecordDataset(path)[0]


def test_lengths_that_lie(tmp_path):
    """Whatever lengths a block names, with all checksums right: refused, unless they are the file's
    own.
    """
    content = framed(*payloads(3, 40))
    (tmp_path / "x").write_bytes(content)
    index, rng = build_index(tmp_path / "x"), np.random.default_rng(0)
    honest = Path(build_manifest(tmp_path, tmp_path / "m.safetensors")).read_bytes()
    for number in range(50):
        dtype = (np.uint32, np.uint64)[number % 2]
        lengths = index.lengths.astype(dtype)
        most = np.iinfo(dtype).max
        lengths[rng.integers(40, size=4)] = rng.choice(np.array([0, 7, most // 2, most], dtype), 4)
        crcs = np.array([crc32c(lengths)], np.uint32)
        (tmp_path / "m.safetensors").write_bytes(
            changed_head(honest, {"lengths": lengths, "block_crcs": crcs})
        )
        with pytest.raises(
            IndexMismatchError, match="block 0: expected records one behind the other from byte 0"
        ):
            TFRecordDataset(tmp_path / "m.safetensors")[0]


def test_a_swapped_pair_of_lengths_is_noticed_when_it_is_read(tmp_path):
    (tmp_path / "x").write_bytes(framed(b"a", b"bb"))
    index = build_index(tmp_path / "x")
    lie = index_of(index.lengths[::-1], mtime_ns=index.mtime_ns, fingerprint=index.fingerprint)
    IndexKeeper.write(IndexKeeper.place(str(tmp_path / "x")), lie.to_bytes())
    build_manifest(tmp_path, tmp_path / "m.safetensors")
    with pytest.raises(
        IndexMismatchError,
        match=r"x: record 0 at byte 0: expected a record of 2 bytes \(by the index\)",
    ):
        TFRecordDataset(tmp_path / "m.safetensors")[0]


@pytest.mark.daily
@pytest.mark.parametrize("shards", [1, 50])
@pytest.mark.parametrize("field", ["names", "etags"])
@pytest.mark.parametrize("text", [b"\0", b"\xff"], ids=["many", "long"])
@pytest.mark.parametrize("num_bytes", [60_000, 1 << 26])
def test_texts_are_bounded_by_the_number_of_shards(tmp_path, shards, field, text, num_bytes):
    for shard in range(shards):
        (tmp_path / f"x{shard}").write_bytes(framed(b"a"))
    path = Path(build_manifest(tmp_path, tmp_path / "m.safetensors"))
    packed = np.frombuffer(zlib.compress(text * num_bytes), np.uint8)
    path.write_bytes(
        changed_head(path.read_bytes(), {field: packed}, **{f"{field}_bytes": str(num_bytes)})
    )
    tracemalloc.start()
    try:
        with pytest.raises(
            IndexMismatchError, match=f"expected a text for each of {shards} shards, got [0-9]+ "
        ):
            TFRecordDataset(path)
        # the first MiB of the file is read at once
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_sizes_that_no_file_has_are_not_allocated(tmp_path):
    (tmp_path / "x").write_bytes(framed(b"a"))
    path = Path(build_manifest(tmp_path, tmp_path / "m.safetensors"))
    content = path.read_bytes()
    path.write_bytes(changed_head(content, names_bytes=str(1 << 62)))
    with pytest.raises(
        IndexMismatchError, match=f"expected a text for each of 1 shards, got {1 << 62} bytes"
    ):
        TFRecordDataset(path)
    with open(path, "wb") as file:  # a hole of 2^40 bytes in the file
        head = content[8 : 8 + struct.unpack("<Q", content[:8])[0]]
        header = head.replace(b'"shape":[1]', b'"shape":[%d]' % (1 << 37), 1)
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(1 << 40)
    with pytest.raises(IndexMismatchError):
        TFRecordDataset(path)


# Names.


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("memory://bucket/m.safetensors", "../other/x"),
        ("memory://bucket/m.safetensors", "memory://other/x"),
        ("memory://bucket/m.safetensors", "/etc/passwd"),
        ("memory://bucket/m.safetensors", "file:///etc/passwd"),
        ("memory://bucket/a/m.safetensors", "b/../../../x"),
        ("m.safetensors", "/etc/passwd"),
        ("m.safetensors", "file:/etc/passwd"),
        ("m.safetensors", "a/../../x"),
        ("m.safetensors", "a/"),
        ("m.safetensors", ".."),
        ("m.safetensors", ""),
    ],
)
def test_names_that_lead_elsewhere(tmp_path, monkeypatch, path, name):
    (tmp_path / "x").write_bytes(framed(b"a"))
    honest = Path(build_manifest(tmp_path, tmp_path / "m.safetensors")).read_bytes()
    text = name.encode() + b"\0"
    names = np.frombuffer(zlib.compress(text), np.uint8)
    content = changed_head(honest, {"names": names}, names_bytes=str(len(text)))
    monkeypatch.chdir(tmp_path)
    with pytest.importorskip("fsspec").open(path, "wb") as file:
        file.write(content)
    with pytest.raises(
        IndexMismatchError,
        match=r"expected (names relative to the manifest's folder|a manifest that)",
    ):
        find_files(path)


def test_names_in_another_storage(memory, data):
    for paths in ("memory:///manifest/data/x-*", f"{data}/x-*"):
        with pytest.raises(ValueError, match="out must be in the storage of the data"):
            build_manifest(paths, "memory://other/m.safetensors")


# Processes and threads.


def read_in_child(ds, queue):
    queue.put([ds[position] for position in range(0, len(ds), 97)])


def check_other_process(data, method):
    ds = TFRecordDataset(str(data))
    expected = [ds[position] for position in range(0, len(ds), 97)]  # the parent has read before
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=read_in_child, args=(ds, queue))
    child.start()
    assert queue.get(timeout=100) == expected
    child.join()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_other_processes(data, kept, method):
    check_other_process(data, method)


@pytest.mark.daily
def test_a_spawned_process(data, monkeypatch):
    check_other_process(data, "spawn")


def test_it_pickles_small(data, monkeypatch):
    ds = TFRecordDataset(str(data))
    pickled = pickle.dumps(ds)
    assert not any(name.encode() in pickled for name in ds.files)
    assert len(pickled) < 3000


@pytest.mark.daily
def test_thousands_of_shards(tmp_path):
    """By their rows alone, which is what a manifest of holes has."""
    rng, count = np.random.default_rng(0), 2000
    lengths = rng.integers(90_000, 110_000, 3000)
    for shard in range(count):
        hole(tmp_path / f"x-{shard:05d}-of-{count:05d}", lengths)
    path = Path(build_manifest(tmp_path))
    assert path.stat().st_size < 4.05 * 3000 * count
    ds = TFRecordDataset(path)
    assert len(ds) == 3000 * count
    offsets = np.r_[0, np.cumsum(lengths + 16)]
    positions = rng.integers(0, len(ds), 1000)
    files, found, sizes = ds._record_files.table.find(positions)
    np.testing.assert_array_equal(files, positions // 3000)
    np.testing.assert_array_equal(found, offsets[positions % 3000])
    np.testing.assert_array_equal(sizes, lengths[positions % 3000])
    assert len(pickle.dumps(ds)) < 3000


# Remote files.


@pytest.fixture
def memory(data):
    """The folder as fsspec's memory file system has it."""
    fsspec = pytest.importorskip("fsspec")
    storage = fsspec.filesystem("memory")
    for path in [*data.glob("x-*"), manifest_of(data)]:
        storage.pipe_file(f"/manifest/data/{path.relative_to(data)}", path.read_bytes())
    yield storage
    storage.rm("/manifest", recursive=True)


def test_a_local_manifest_uploaded_with_its_data(memory, kept, no_builds):
    for paths in (
        "memory:///manifest/data/x-*",
        "memory:///manifest/data/.torch_index/manifest.safetensors",
    ):
        ds = TFRecordDataset(paths, index="require")
        assert ds.files == [f"memory:///manifest/data/x-{shard:05d}-of-00007" for shard in range(7)]
        order = np.random.default_rng(0).permutation(len(ds)).tolist()
        assert list(ds.__getitems__(order)) == [WANTED[position] for position in order]
        assert pickle.loads(pickle.dumps(ds))[-1] == WANTED[-1]


@pytest.mark.slow
def test_a_local_manifest_of_remote_files(memory, tmp_path):
    out = tmp_path / "m.safetensors"
    memory.rm("/manifest/data/.torch_index", recursive=True)
    assert build_manifest("memory:///manifest/data/x-*", out) == str(out)
    shutil.rmtree(os.environ["XDG_CACHE_HOME"])
    ds = TFRecordDataset(out, index="require")
    assert ds.files[1] == "memory:///manifest/data/x-00001-of-00007"
    assert list(ds.__getitems__(range(len(ds)))) == WANTED
    for _ in range(2):  # the second takes the rows of the first
        place = build_manifest("memory:///manifest/data/x-*")
        assert place == "memory:///manifest/data/.torch_index/manifest.safetensors"
        ds = TFRecordDataset("memory:///manifest/data/x-*", index="require")
        assert list(ds.__getitems__(range(len(ds)))) == WANTED
    assert list(TFRecordDataset(place).__getitems__([0])) == WANTED[:1]


@pytest.mark.parametrize(
    "content", [framed(b"another"), framed(payloads(4, 1)[0].replace(b"4", b"9"))]
)
def test_a_remote_shard_that_changed(memory, content):
    path = "/manifest/data/x-00004-of-00007"
    has_size = memory.size(path) == len(content)
    memory.pipe_file(path, content)
    manifest = "memory:///manifest/data/.torch_index/manifest.safetensors"
    ds = TFRecordDataset(manifest)  # nothing is asked about shards
    assert ds[0] == WANTED[0]
    text = (
        "x-00004-of-00007: record 0: the index is not of this file as it is now: expected a file "
    )
    with pytest.raises(
        IndexMismatchError, match=text + ("with fingerprint" if has_size else "of 28 bytes, got 23")
    ):
        ds.raw(sum(COUNTS[:4]))
    if not has_size:  # the listing says it
        with pytest.warns(
            UserWarning,
            match="x-00004-of-00007: the manifest at .* expected 28 bytes, got 23: it is not",
        ):
            assert len(TFRecordDataset("memory:///manifest/data/x-*")) == len(WANTED)
