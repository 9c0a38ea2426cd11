"""Blocks of remote files in memory: each is fetched once, whatever is read of it and by whom."""

from pkgutil import resolve_name

import fsspec
import numpy as np
import pytest
from helpers import framed

from torch_tfrecord import RecordIndex, build_index
from torch_tfrecord.files import open_file, read_pieces
from torch_tfrecord.records import RecordTable
from torch_tfrecord.remote import STORAGES

BLOCK = 1000
LENGTHS = [[100, 50, 3000, 7, 900, 900, 0, 0, 5000, 20], [10] * 300, [2500]]


@pytest.fixture
def files():
    """Files, their table, and the ranges that are fetched."""
    filesystem = fsspec.filesystem("memory")
    contents = [
        framed(*(bytes([number % 251]) * length for number, length in enumerate(each)))
        for each in LENGTHS
    ]
    paths = [f"memory://blocks/{number}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        filesystem.pipe(path.removeprefix("memory:/"), content)
    yield (
        contents,
        [open_file(path) for path in paths],
        RecordTable(paths, [build_index(path) for path in paths]),
    )
    filesystem.rm("/blocks", recursive=True)


@pytest.fixture
def fetched(monkeypatch):
    ranges, started = [], "torch_tfrecord.remote.remote_file.Started.__init__"
    begin = resolve_name(started)

    def note(self, wanted, access):
        ranges.extend((one.file.path[-1], one.begin, one.end) for one in wanted)
        begin(self, wanted, access)

    monkeypatch.setattr(started, note)
    return ranges


def read(memory, sources, table, positions):
    files, offsets, lengths = table.find(np.array(positions))
    buffer, places = read_pieces(sources.__getitem__, files, offsets, lengths + 16, memory)
    return [
        bytes(buffer[place : place + length + 16])
        for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
    ]


def expected(contents, table, positions):
    return [
        contents[file][offset : offset + length + 16]
        for file, offset, length in zip(
            *(column.tolist() for column in table.find(np.array(positions))), strict=True
        )
    ]


def test_what_was_used_last_is_kept(files, fetched):
    _, sources, table = files
    memory = STORAGES.by_blocks(table.block_extent, BLOCK, most_bytes=4000)
    for position in (10, 11, 200, 10):
        read(memory, sources, table, [position])
    assert len(fetched) == 2
    read(memory, sources, table, [310])  # 2.5 KB
    read(memory, sources, table, [8])  # 5 KB: the others go
    read(memory, sources, table, [10])
    assert len(fetched) == 5


def test_a_block_that_could_not_be_fetched_is_asked_for_again(files, monkeypatch):
    contents, sources, table = files
    memory = STORAGES.by_blocks(table.block_extent, BLOCK)
    filesystem = fsspec.filesystem("memory")
    filesystem.mv("/blocks/1", "/blocks/away")
    with pytest.raises(FileNotFoundError):
        read(memory, sources, table, [20])
    filesystem.mv("/blocks/away", "/blocks/1")
    assert read(memory, sources, table, [20]) == expected(contents, table, [20])


def test_an_extent_of_every_record():
    index = RecordIndex([0, 116, 1132], [100, 1000, 5], 1153)
    table = RecordTable(["a", "b"], [index, index])
    for file in (0, 1):
        assert [
            table.block_extent(file, offset, 1000)
            for offset in (0, 50, 116, 999, 1000, 1131, 1132, 1152)
        ] == [
            *[(0, 1132)] * 4,
            *[(116, 1153)] * 2,
            *[(1132, 1153)] * 2,
        ]
