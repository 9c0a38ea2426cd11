"""Compressed files entered at seek points.

Covers compression/codecs, compression/seek_points, compression/deflate.

The oracle is Python's own gzip and zlib: what is read at random equals what they decompress.
"""

import gzip
import random
import zlib

import numpy as np
import pytest
from helpers import framed

from index_tools.main import main
from torch_tfrecord import (
    CompressionError,
    IndexMismatchError,
    RecordIndex,
    TFRecordDataset,
    TFRecordError,
    build_index,
)
from torch_tfrecord.compression import CODECS, InflatedFiles
from torch_tfrecord.files import open_file
from torch_tfrecord.native import optional_module
from torch_tfrecord.records import IndexKeeper

needs_inflate = pytest.mark.skipif(
    optional_module("inflate") is None, reason="built without zlib's headers"
)


def payloads(count=5000):
    rng = random.Random(0)
    words = [rng.randbytes(rng.randrange(2, 9)) for _ in range(500)]
    return [b"%d " % number + b"".join(rng.choices(words, k=40)) for number in range(count)]


RECORDS = payloads()
DATA = framed(*RECORDS)


def deflated(data, kind, level):
    packer = zlib.compressobj(level, zlib.DEFLATED, 31 if kind == "GZIP" else 15, 9)
    return packer.compress(data) + packer.flush()


def flushed(data, kind):
    packer = zlib.compressobj(6, zlib.DEFLATED, 31 if kind == "GZIP" else 15)
    parts = [data[at : at + 50_000] for at in range(0, len(data), 50_000)]
    modes = [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]
    packed = [packer.compress(part) + packer.flush(modes[n % 2]) for n, part in enumerate(parts)]
    return b"".join(packed) + packer.flush()


def members(data, size):
    return b"".join(
        gzip.compress(data[at : at + size], mtime=0) for at in range(0, len(data), size)
    )


WAYS = {
    **{
        f"{kind}{level}": deflated(DATA, kind, level)
        for kind, level in [("GZIP", 1), ("GZIP", 6), ("GZIP", 9), ("ZLIB", 6)]
    },
    "GZIP flushed": flushed(DATA, "GZIP"),
    "members": members(DATA, 70_000),
}


@pytest.fixture(autouse=True)
def close_points(monkeypatch):
    room = "torch_tfrecord.compression"
    # a block begins in few pieces
    monkeypatch.setattr(f"{room}.inflated._OUTPUT_BYTES", 1 << 14)
    monkeypatch.setattr(f"{room}.seek_points._BLOCK_SPACING", 1 << 15)
    monkeypatch.setattr(f"{room}.seek_points._MEMBER_SPACING", 1 << 14)
    monkeypatch.setattr(f"{room}.seek_points._LEAST_BYTES", 1 << 20)


@needs_inflate
def test_points_keep_to_their_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.compression.seek_points._LEAST_BYTES", 100_000)
    (tmp_path / "x").write_bytes(WAYS["GZIP9"])
    assert main(["index", str(tmp_path / "x"), "--index-bytes-ratio", "0"]) == 0
    points = RecordIndex.load(IndexKeeper.place(str(tmp_path / "x")))._seek_points()
    assert len(points) >= 2 and len(points.to_bytes()) <= 100_000


def points_of(table, windows, file_size):
    return CODECS.points_from(table.astype("<i8").tobytes() + windows, len(table), file_size)


@needs_inflate
def test_a_point_that_lies_is_an_error(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(WAYS["GZIP6"])
    points, rng = build_index(path, save=True)._points, random.Random(0)
    offsets = np.cumsum([0, *(len(record) + 16 for record in RECORDS)])
    wrong = 0
    for _ in range(100):
        table = points._table.copy()
        row = rng.randrange(1, len(table))
        table[row, rng.choice([0, 1])] += rng.choice([-9, -8, -1, 1, 3, 8, 64])
        lying = points_of(table, points._windows, len(WAYS["GZIP6"]))
        file = CODECS.inflated_files().open(open_file(str(path)), "GZIP", len(DATA), lying)
        number = int(np.searchsorted(offsets, points.offsets[row]))
        ds = TFRecordDataset(path, index="require")
        ds._record_files._sources.find(0, lambda _, file=file: file)
        try:
            assert ds[number] == RECORDS[number]
        except TFRecordError:
            wrong += 1
    assert wrong > 50


@pytest.mark.parametrize(
    "table",
    [
        [(-8, 0, 0, 0)],
        [(0, 1, 0, 0)],
        [(0, 0, 2, 0)],
        [(0, 0, 0, 0), (0, 5, 0, 0)],
        [(0, 0, 0, 0), (8, 0, 0, 0)],
        [(0, 0, 0, 0), (9, 5, 0, 0)],  # a header in the midst of a byte
        [(0, 0, 0, 0), (800, 5, 0, 0)],
        [(0, 0, 0, 0), (8, 1 << 62, 0, 0)],
        [(0, 0, 0, 0), (1 << 62, 5, 0, 0), (-(1 << 62) - 8, 9, 0, 0)],  # the difference overflows
        [(0, 0, 0, 3), (8, 5, 0, 2)],
        [(0, 0, 0, 0), (8, 5, 0, 2)],
    ],
)
def test_points_that_cannot_be(table):
    with pytest.raises(IndexMismatchError, match="expected ascending seek points"):
        points_of(np.array(table, np.int64).reshape(-1, 4), b"", 100)


@pytest.mark.parametrize("kept", [1, 1 << 28], ids=["one kept", "all kept"])
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB", "members"])
def test_ranges_of_many_stretches_at_once(tmp_path, monkeypatch, kind, kept):
    monkeypatch.setattr("torch_tfrecord.compression.seek_points._BLOCK_SPACING", 30_000)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(members(DATA, 70_000) if kind == "members" else deflated(DATA, kind, 6))
    index, file = build_index(path), open_file(str(path))
    points = index._seek_points()
    kind = "ZLIB" if kind == "ZLIB" else "GZIP"
    inflated = InflatedFiles(kept).open(file, kind, len(DATA), points, 0)
    rng = random.Random(1)
    for _ in range(20):
        places = sorted(rng.randrange(len(DATA)) for _ in range(rng.randrange(1, 60)))
        sizes = [min(rng.choice([0, 1, 300, 200_000]), len(DATA) - place) for place in places]
        starts = np.cumsum([0, *sizes]).tolist()
        buffer = bytearray(starts[-1])
        inflated.read_ranges(np.array([places, sizes, starts[:-1]]), memoryview(buffer))
        rows = zip(places, sizes, strict=True)
        assert buffer == b"".join(DATA[place : place + size] for place, size in rows)


def test_ranges_of_a_damaged_stretch_come_up_to_the_damage(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content := members(DATA, 70_000))
    index = build_index(path)
    points = index._seek_points()
    damaged = points.byte(5) + 500
    path.write_bytes(content[:damaged] + b"\xff" * 200 + content[damaged + 200 :])
    inflated = InflatedFiles().open(open_file(str(path)), "GZIP", len(DATA), points, 0)
    begin = points.offsets[5]
    buffer = bytearray(begin)
    ranges = [(at, 1000, at) for at in range(0, begin - 1000, 2000)]
    inflated.read_ranges(np.array(ranges).T, memoryview(buffer))
    assert all(buffer[at : at + 1000] == DATA[at : at + 1000] for at, _, _ in ranges)
    with pytest.raises(CompressionError, match=r"gzip: .*near compressed byte"):
        more = np.array([*ranges, (begin, 60_000, 0)]).T
        inflated.read_ranges(more, memoryview(bytearray(begin)))


def test_ranges_are_copied_only_from_what_is_there():
    frames = pytest.importorskip("torch_tfrecord.native.frames")
    source, target = bytes(range(10)), bytearray(6)
    assert frames.copy(source, 100, np.array([[108, 100], [2, 3], [0, 3]]), target)
    assert target == bytes([8, 9, 0, 0, 1, 2])
    most = 2**63 - 1
    for begin, size, place in (
        [99, 1, 0],
        [109, 2, 0],
        [111, 1, 0],
        [100, -1, 0],
        [100, 1, -1],
        [100, 4, 3],
        [100, 1, 7],
        [most, most, most],
        [-most - 1, 1, 0],
        [100, most, 0],
        [100, 1, most],
    ):
        assert not frames.copy(source, 100, np.array([[begin], [size], [place]]), target)
    assert not frames.copy(source, 100, np.ones((2, 1), np.int64), target)
    assert not frames.copy(source, -1, np.array([[0], [1], [0]]), target)
