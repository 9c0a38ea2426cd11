"""Batches of records by offset: equal to single reads, in both modes, and an error wherever a
single read has one.
"""

import os
import random

import numpy as np
import pytest
from helpers import compressed, framed, header, pure_python, random_payloads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_tfrecord import CorruptRecordError, IndexMismatchError, TFRecordError, build_index
from torch_tfrecord.compression import InflatedFiles
from torch_tfrecord.files import open_file
from torch_tfrecord.native import has_native
from torch_tfrecord.records import RecordReader

MODES = [True, False] if has_native() else [True]


@pytest.fixture(params=MODES, ids=["twin", "native"][: len(MODES)], autouse=True)
def pure(request):
    with pure_python(request.param):
        yield request.param


def inflated(file, kind, index):
    size = int((index.lengths + 16).sum())
    return InflatedFiles().open(file, kind, size, index._points)


class Files:
    """Some files with their payloads, offsets and lengths."""

    def __init__(self, folder, contents):
        self.payloads = contents
        self.paths, self.indexes = [], []
        for number, (payloads, kind) in enumerate(contents):
            path = folder / f"f{number}"
            path.write_bytes(compressed(framed(*payloads), kind))
            self.paths.append(str(path))
            self.indexes.append(build_index(path))
        self.opened = []

    def __call__(self, number):
        self.opened.append(number)
        file, index = open_file(self.paths[number]), self.indexes[number]
        return inflated(file, index.compression_type, index) if index.compression_type else file

    def places(self, rows):
        numbers, _ = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        offsets = [self.indexes[file].offsets[record] for file, record in rows]
        lengths = [self.indexes[file].lengths[record] for file, record in rows]
        return numbers, np.array(offsets, dtype=np.int64), np.array(lengths, dtype=np.int64)

    def read(self, rows, **options):
        records = RecordReader(**options).read_batch(self, *self.places(rows))
        records.read()
        return records


@pytest.fixture(
    params=[("", ""), ("", "GZIP"), ("ZLIB", "ZLIB")], ids=lambda kinds: "+".join(kinds)
)
def files(request, tmp_path):
    first, second = request.param
    return Files(
        tmp_path,
        [
            ([*random_payloads(40, 1), b"y" * 70_000], first),
            ([*random_payloads(30, 2, 5000), b""], second),
            ([b"only"], first),
        ],
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the files are only read
@given(seed=st.integers(0, 2**32), count=st.integers(0, 60))
def test_any_rows_in_any_order(files, seed, count):
    rng = random.Random(seed)
    rows = [
        (file, rng.randrange(len(files.payloads[file][0])))
        for file in rng.choices(range(3), k=count)
    ]
    expected = [files.payloads[file][0][record] for file, record in rows]
    records = files.read(rows)
    assert (len(records), records.tolist()) == (count, expected)
    assert [bytes(record) for record in records] == expected
    assert files.read(rows, verify_crc=False).tolist() == expected


@pytest.mark.parametrize("at", [0, 9, 12, 15])
@pytest.mark.parametrize("number", [0, 3, 9])
def test_damage_is_an_error_where_a_single_read_has_one(tmp_path, number, at):
    payloads = [bytes([n]) * 4 for n in range(10)]
    files = Files(tmp_path, [(payloads, "")])
    content = bytearray(framed(*payloads))
    content[20 * number + at] ^= 0x40
    (tmp_path / "f0").write_bytes(content)
    rows = [(0, n) for n in (4, number, 5, 4)]
    with pytest.raises(CorruptRecordError) as single:
        RecordReader().read(files(0), 20 * number, 4)
    with pytest.raises(CorruptRecordError) as batch:
        files.read(rows)
    assert str(batch.value) == str(single.value)
    assert (batch.value.path, batch.value.offset) == (files.paths[0], 20 * number)
    if at >= 12:
        assert len(files.read(rows, verify_crc=False)) == 4
    assert files.read([(0, (number + 1) % 10)]).tolist() == [payloads[(number + 1) % 10]]


@pytest.mark.parametrize("kind", ["", "GZIP"])
@pytest.mark.parametrize("length", [5, 2**20, 2**40, 2**61])
def test_an_index_that_lies_takes_no_memory(tmp_path, length, kind):
    (tmp_path / "x").write_bytes(compressed(framed(b"abc") + header(length) + b"abc", kind))
    file = open_file(str(tmp_path / "x"))
    source = InflatedFiles().open(file, kind, 50, None) if kind else file
    one = np.array([0])
    for offset, asked in [(0, length), (19, length), (-1, 3), (0, -1), (2**62, 3)]:
        with pytest.raises(TFRecordError):
            RecordReader().read_batch(
                lambda _: source, one, np.array([offset]), np.array([asked])
            ).read()
    with pytest.raises(
        IndexMismatchError, match=r"expected a record of 2 bytes \(by the index\), got one of 3"
    ):
        RecordReader().read_batch(lambda _: source, one, one, np.array([2])).read()


def test_a_file_that_was_cut_since(tmp_path):
    files = Files(tmp_path, [([b"abc"] * 10, "")])
    source = files(0)
    places = files.places([(0, n) for n in (9, 0)])
    (tmp_path / "f0").write_bytes(framed(*[b"abc"] * 5))
    with pytest.raises(CorruptRecordError, match=r"truncated file: expected 190 bytes, got "):
        RecordReader().read_batch(lambda _: source, *places).read()


def test_a_closed_descriptor_is_an_error_with_the_path(tmp_path):
    files = Files(tmp_path, [([b"abc"] * 3, "")])
    source = files(0)
    os.close(source.hold().number)
    with pytest.raises(OSError, match="f0"):
        RecordReader().read_batch(lambda _: source, *files.places([(0, 1)])).read()
    with pytest.raises(OSError, match="f0"):
        RecordReader().read(source, 0, 3)
    source._held.number = -1
