"""Records of many, and what each is: spread over files and over each of them, at a cost that does not grow with
the files.
"""

import numpy as np
import pytest
from helpers import framed

from torch_tfrecord import CorruptRecordError, TFRecordWriter
from torch_tfrecord.files import LocalFile
from torch_tfrecord.tables import Survey

FOUND = "torch_tfrecord.tables.found_records"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Most tests here are of what is done with large files."""
    monkeypatch.setattr(f"{FOUND}._SMALL_FILES", 1)


def payload(number: int, length: int = 0) -> bytes:
    return b"%08d" % number + bytes(length)


def write(path, payloads, **options) -> str:
    with TFRecordWriter(path, **options) as writer:
        for record in payloads:
            writer.write(record)
    return str(path)


def spread_records(paths, num_records):
    return Survey(paths, num_records=num_records).records


def numbers(records) -> list[int]:
    return [int(record.payload[:8]) for record in records]


@pytest.fixture
def num_read(monkeypatch):
    counts = []
    read = LocalFile.read

    def counting(self, num_bytes, offset):
        data = read(self, num_bytes, offset)
        counts.append(len(data))
        return data

    monkeypatch.setattr(LocalFile, "read", counting)
    return counts


@pytest.mark.parametrize(
    "options",
    [{}, {"write_index": True}, {"compression_type": "GZIP"}, {"compression_type": "ZLIB"}],
)
# of a small file, and of one that is not read as a whole
@pytest.mark.parametrize("length", [0, 500])
def test_one_file(options, length, tmp_path):
    path = write(tmp_path / "a", [payload(number, length) for number in range(5000)], **options)
    records = spread_records([path], 51)
    found = numbers(records)
    assert found[0] == 0 and found[-1] > 4700 and len(found) == 51
    assert max(np.diff(found)) <= 200  # equal distances are of 100
    assert [record.offset for record in records] == [(length + 24) * number for number in found]
    assert all(
        record.position in (None, number) for record, number in zip(records, found, strict=True)
    )


def test_many_files_are_all_looked_at_and_each_elsewhere(tmp_path):
    paths = [
        write(tmp_path / f"{name:03}", [payload(100 * name + at) for at in range(100)])
        for name in range(40)
    ]
    found = np.array(numbers(spread_records(paths, 120)))
    assert np.bincount(found // 100, minlength=40).tolist() == [3] * 40
    assert len(set((found % 100 // 10).tolist())) == 10
    few = np.array(numbers(spread_records(paths, 5)))
    assert (few // 100).tolist() == [0, 10, 20, 29, 39]
    assert (few % 100).tolist() == [0, 20, 40, 60, 80]


def test_later_files_make_up_for_short_ones(tmp_path):
    paths = [
        write(tmp_path / str(name), [payload(name)] * size) for name, size in enumerate((1, 0, 50))
    ]
    assert numbers(spread_records(paths, 12)) == [0] + [2] * 11
    # Where all files that were chosen are empty, others are looked at.
    paths = [write(tmp_path / f"e{name}", [payload(name)] * (name == 2)) for name in range(5)]
    assert numbers(spread_records([paths[0], paths[2], paths[1], paths[3], paths[4]], 2)) == [2]


@pytest.mark.daily
@pytest.mark.parametrize("length", [100, 100_000])
def test_the_cost_does_not_grow_with_the_file(length, tmp_path, num_read):
    path = write(
        tmp_path / "a", [payload(number, length) for number in range(20_000_000 // length)]
    )
    assert len(spread_records([path], 20)) == 20
    assert sum(num_read) < 20 * (length + (1 << 15)) + 200 * (1 << 12)


@pytest.mark.parametrize("length", [100, 2_000_000])
def test_each_file_gives_a_record_where_the_limit_is_used_up(length, tmp_path, monkeypatch):
    paths = [write(tmp_path / str(name), [payload(name, length)] * 3) for name in range(4)]
    for limit in (1, length, 3 * length):
        monkeypatch.setattr(f"{FOUND}._MOST_BYTES", limit)
        assert {int(record.payload[:8]) for record in spread_records(paths, 8)} == {0, 1, 2, 3}


def test_of_a_compressed_file_only_what_the_limit_reaches(tmp_path, monkeypatch):
    path = write(tmp_path / "a.gz", [payload(number, 1000) for number in range(5000)])
    monkeypatch.setattr(f"{FOUND}._MOST_BYTES", 1_000_000)
    found = numbers(spread_records([path], 10))
    assert len(found) == 10 and found[0] == 0 and 800 < found[-1] < 1100


@pytest.mark.daily
def test_damage(tmp_path):
    good = b"".join(framed(payload(number)) for number in range(4))
    path = tmp_path / "a"
    path.write_bytes(good + b"\xff" * 40)
    survey = Survey([str(path)], num_records=100, until_damage=True)
    assert numbers(survey.records) == [0, 1, 2, 3]
    assert "record 4 at byte 96" in str(survey.damage)
    path.write_bytes(b"<!DOCTYPE html>" + bytes(2 << 20))
    with pytest.raises(CorruptRecordError, match="It looks like an HTML page"):
        spread_records([str(path)], 100)
    content = bytearray(b"".join(framed(payload(number, 1000)) for number in range(5000)))
    content[1 << 20 : 2 << 20] = bytes(1 << 20)
    path.write_bytes(content)
    found = numbers(spread_records([str(path)], 100))  # places between are passed over
    assert found[0] == 0 and found[-1] > 4700 and len(found) > 70
    content[15] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match="record 0 at byte 0"):
        spread_records([str(path)], 100)
