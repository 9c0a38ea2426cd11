"""http by fsspec: its file system calls every failure a missing file, and asks for no version; ours
do better.

Covers remote/fsspec_store.
"""

import os

import pytest
from range_server import Fault, range_server

from torch_tfrecord import CorruptRecordError, RemoteError, TFRecordDataset, TFRecordWriter

pytest.importorskip("aiohttp")


@pytest.fixture
def server(tmp_path, take_client):
    take_client("fsspec")
    write(tmp_path, b"old")
    with range_server(tmp_path) as url:
        yield url


def write(folder, payload):
    with TFRecordWriter(folder / "a.tfrecord", write_index=True) as writer:
        for _ in range(3):
            writer.write(payload * 50_000)


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("500", RemoteError, r"a\.tfrecord: its size: status 500 \(6 attempts\)"),
        (
            "closed",
            RemoteError,
            r"a\.tfrecord: its size: ServerDisconnectedError: .* \(6 attempts\)",
        ),
        ("403", PermissionError, r"the storage forbids it \(its size, status 403\): .*a\.tfrecord"),
        ("404", FileNotFoundError, r"No such file or directory: .*a\.tfrecord"),
    ],
)
def test_failures_are_told_from_missing_files(server, kind, error, text):
    server.reset([Fault(kind, 0, times=1000)])
    with pytest.raises(error, match=text):
        TFRecordDataset(f"{server}/a.tfrecord")


def test_a_changed_file_is_told(server, tmp_path):
    dataset = TFRecordDataset(f"{server}/a.tfrecord")
    assert dataset[1] == b"old" * 50_000
    (tmp_path / "next").mkdir()
    write(tmp_path / "next", b"new")
    os.replace(tmp_path / "next" / "a.tfrecord", tmp_path / "a.tfrecord")
    with pytest.raises(
        CorruptRecordError,
        match=r"a\.tfrecord: .*expected the file that was opened, got another one",
    ):
        dataset[1]
