"""Pieces of many files by one call: local and remote ones, in any order, and what ends too early.

Covers files/local_file.
"""

import fsspec
import numpy as np
import pytest

from torch_tfrecord import CorruptRecordError
from torch_tfrecord.files import LocalFile, open_file, read_pieces

NUM_FILES, NUM_BYTES = 12, 5000


@pytest.fixture(params=["local", "remote", "both"])
def files(request, tmp_path):
    """Contents, and a source for each."""
    contents = [np.random.default_rng(seed).bytes(NUM_BYTES) for seed in range(NUM_FILES)]
    filesystem = fsspec.filesystem("memory")
    paths = []
    for number, content in enumerate(contents):
        if request.param == "remote" or (request.param == "both" and number % 2):
            filesystem.pipe(f"/pieces/{number}", content)
            paths.append(f"memory://pieces/{number}")
        else:
            (tmp_path / str(number)).write_bytes(content)
            paths.append(str(tmp_path / str(number)))
    yield contents, [open_file(path) for path in paths]
    if filesystem.exists("/pieces"):
        filesystem.rm("/pieces", recursive=True)


def read(sources, pieces):
    files, offsets, sizes = np.array(pieces, np.int64).reshape(-1, 3).T
    buffer, places = read_pieces(sources.__getitem__, files, offsets, sizes)
    return [
        bytes(buffer[place : place + size])
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True)
    ]


def test_any_pieces_in_any_order(files):
    contents, sources = files
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 40, 300):
        pieces = [
            (int(rng.integers(NUM_FILES)), int(begin), int(rng.integers(0, NUM_BYTES - begin + 1)))
            for begin in rng.integers(0, NUM_BYTES, count)
        ]
        assert read(sources, pieces) == [
            contents[file][begin : begin + size] for file, begin, size in pieces
        ]


@pytest.mark.parametrize(
    "piece", [(3, 4000, 1001), (3, 5001, 0), (3, -1, 5), (3, 0, 1 << 61), (3, 1 << 61, 1 << 61)]
)
def test_what_is_not_in_the_file_takes_no_memory(files, piece):
    _, sources = files
    with pytest.raises(CorruptRecordError, match=r"truncated file: expected .* bytes, got 5000"):
        read(sources, [(2, 0, 10), piece, (3, 0, 10)])


def test_a_file_that_was_cut_since(tmp_path):
    (tmp_path / "x").write_bytes(bytes(100))
    source = open_file(str(tmp_path / "x"))
    (tmp_path / "x").write_bytes(bytes(60))
    with pytest.raises(CorruptRecordError, match="truncated file: expected 90 bytes, got 60"):
        read([source], [(0, 0, 10), (0, 50, 40)])


def test_many_files_share_few_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.files.local_file._most_open", lambda: 4)
    for number in range(30):
        (tmp_path / str(number)).write_bytes(b"%04d" % number * 3)
    files = np.random.default_rng(1).integers(0, 30, 100)
    sources = [LocalFile(str(tmp_path / str(number))) for number in range(30)]
    found = read(sources, [(file, 4, 8) for file in files.tolist()])
    assert found == [b"%04d" % file * 2 for file in files.tolist()]
