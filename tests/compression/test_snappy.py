"""Files that TensorFlow wrote with Snappy: all ways to read them, cut, damaged, and with claims
that are not true.
"""

import io
import runpy
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from helpers import collect, framed
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    FixedLenFeature,
    RecordIndex,
    TFRecordDataset,
    TFRecordError,
    TFRecordIterableDataset,
    build_index,
    encode_example,
    find_files,
    infer_features,
    make_dataloader,
    read_records,
)

cramjam = pytest.importorskip("cramjam")
FOLDER = Path(__file__).parents[1] / "data/snappy"
CONTENTS = runpy.run_path(str(FOLDER / "oracle.py"))["contents"]()


def blocks(stream: bytes, size: int) -> bytes:
    """A stream in blocks of a size, as TensorFlow writes it."""
    raw = [
        bytes(cramjam.snappy.compress_raw(stream[at : at + size]))
        for at in range(0, len(stream), size)
    ]
    return b"".join(len(block).to_bytes(4, "big") + block for block in raw)


@pytest.mark.filterwarnings("ignore:no file has a record")
@pytest.mark.parametrize("declared", ["auto", "SNAPPY", "snappy"])
@pytest.mark.parametrize("name", CONTENTS)
def test_files_of_tensorflow(name, declared, tmp_path):
    path, records = FOLDER / f"{name}.tfrecord", CONTENTS[name]
    assert list(read_records(path, compression_type=declared)) == records
    assert list(read_records(io.BytesIO(path.read_bytes()), compression_type=declared)) == records
    assert list(TFRecordIterableDataset(path, compression_type=declared)) == records
    index = build_index(path, compression_type=declared)
    assert index.compression_type == ("SNAPPY" if records or declared != "auto" else "")
    index.save(tmp_path / "index.safetensors")
    assert RecordIndex.load(tmp_path / "index.safetensors").lengths.tolist() == [
        len(record) for record in records
    ]
    dataset = TFRecordDataset(path, compression_type=declared, index="memory")
    assert [dataset[number] for number in range(len(dataset))] == records


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders(num_workers, tmp_path):
    features = {"n": FixedLenFeature((), torch.int64)}
    for shard in range(2):
        stream = framed(*(encode_example({"n": 50 * shard + number}) for number in range(50)))
        (tmp_path / f"a-0000{shard}-of-00002.tfrecord").write_bytes(blocks(stream, 300))
    assert len(find_files(tmp_path)) == 2
    assert infer_features(tmp_path) == features
    shuffled = make_dataloader(tmp_path, 7, features, shuffle="blocks", num_workers=num_workers)
    assert sorted(torch.cat([batch["n"] for batch in shuffled]).tolist()) == [*range(100)]
    dataset = TFRecordDataset(tmp_path, features, index_dir=tmp_path / "kept")
    assert [
        sample["n"].item() for sample in DataLoader(dataset, None, num_workers=num_workers)
    ] == [*range(100)]
    again = TFRecordDataset(tmp_path, features, index="require", index_dir=tmp_path / "kept")
    assert [again[number]["n"].item() for number in (99, 0, 51)] == [99, 0, 51]
    assert (
        len(
            [
                *DataLoader(
                    TFRecordIterableDataset(tmp_path, features), None, num_workers=num_workers
                )
            ]
        )
        == 100
    )


PAYLOADS = [b"abc", b"", b"defg" * 50, b"0123456789" * 3]


# the first block holds at least the first header
@pytest.mark.parametrize("size", [12, 13, 30, 1000])
def test_records_across_blocks(size, tmp_path):
    (tmp_path / "a").write_bytes(blocks(framed(*PAYLOADS), size))
    for declared in ("auto", "SNAPPY"):
        assert list(read_records(tmp_path / "a", compression_type=declared)) == PAYLOADS


def read(path, content: bytes) -> tuple[list[bytes], TFRecordError | None]:
    path.write_bytes(content)
    return collect(read_records(path, compression_type="SNAPPY"), TFRecordError)


def test_every_cut_is_noticed_but_at_the_end_of_a_record(tmp_path):
    stream, silent = framed(*PAYLOADS), []
    content = blocks(stream, 40)
    ends = [
        sum(len(payload) + 16 for payload in PAYLOADS[:number]) for number in range(len(PAYLOADS))
    ]
    for cut in range(20, len(content)):
        records, error = read(tmp_path / "a", content[:cut])
        assert records == PAYLOADS[: len(records)]
        assert isinstance(error, (CompressionError, CorruptRecordError)) or error is None
        silent += [len(records)] if error is None else []
    # a border of blocks, too: nothing marks the end
    assert all(ends[number] % 40 == 0 for number in silent)


@pytest.mark.slow
def test_every_changed_byte_is_noticed(tmp_path):
    content = blocks(framed(*PAYLOADS), 100)
    for at in range(len(content)):
        for change in (1, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[at] ^= change
            records, error = read(tmp_path / "a", bytes(damaged))
            assert records == PAYLOADS[: len(records)]
            # Some bytes of Snappy mean the same: a copy of what is equal in two places.
            assert (error is None) == (len(records) == len(PAYLOADS))
            assert error is None or isinstance(error, (CompressionError, CorruptRecordError))


def test_what_is_before_the_damage_is_read_and_the_error_says_where(tmp_path):
    content = blocks(framed(*PAYLOADS), 16 + 3)
    records, error = read(tmp_path / "a", content[:-1])
    assert records == PAYLOADS[:3]
    assert str(error).startswith(f"{tmp_path}/a: record 3 at byte ")
    assert (
        "snappy: the stream is truncated: expected the rest of a block, got the end of the file"
        in str(error)
    )
    first = content[: 4 + int.from_bytes(content[:4], "big")]
    records, error = read(tmp_path / "a", first + b"\0\0\0\3\x05\xff\xff")
    assert records == PAYLOADS[:1]
    assert "the stream is damaged: expected a Snappy block, got other bytes" in str(error)
    assert f"(near compressed byte {len(first)})" in str(error)


def test_claims_are_checked_before_memory_is_taken(tmp_path):
    good = blocks(framed(b"abc"), 100)
    claimed = "expected a block of at most 176 bytes, got a length of 4294967295"
    claims = {
        b"\xff\xff\xff\xf0" + bytes(100): "truncated",
        b"\0\0\0\x08" + b"\xff\xff\xff\xff\x0f" + bytes(3): claimed,
        b"\0\0\0\0": "damaged",
    }
    for claim, text in claims.items():
        tracemalloc.start()
        try:
            records, error = read(tmp_path / "a", good + claim)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        assert records == [b"abc"] and isinstance(error, CompressionError) and text in str(error)


def test_other_files_are_not_taken_for_snappy(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(framed(b"abc"))
    with pytest.raises(
        CompressionError, match=r"expected a Snappy stream .*, got an uncompressed TFRecord file"
    ):
        list(read_records(path, compression_type="SNAPPY"))
    path.write_bytes(blocks(framed(b"abc"), 100))
    with pytest.raises(CompressionError, match=r"expected a gzip stream .*, got a Snappy stream"):
        list(read_records(path, compression_type="GZIP"))
    path.write_bytes(blocks(b"no record at all", 100))
    with pytest.raises(
        CompressionError,
        match=r"expected a Snappy stream .*, got neither gzip nor zlib nor a record",
    ):
        list(read_records(path, compression_type="SNAPPY"))


def test_without_cramjam_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cramjam", None)
    text = (
        r"compressed with Snappy needs the package cramjam: pip install cramjam, or .*\[snappy\]'$"
    )
    for declared in ("auto", "SNAPPY"):
        with pytest.raises(ImportError, match=text):
            list(read_records(FOLDER / "short.tfrecord", compression_type=declared))
