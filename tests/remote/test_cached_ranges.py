"""Ranges of remote files through the cache: what it has is not asked for, and what it is told apart
by.
"""

import os
import random
import re
from types import SimpleNamespace

import pytest
from range_server import range_server

from torch_tfrecord.files import Access
from torch_tfrecord.remote.storages import infos_if_there
from torch_tfrecord.remote.store import FileRange, RemotePart
from torch_tfrecord.remote.transfers import (
    Started,
    begin_range,
    fetch,
    forget,
)

SIZES = [300_000, 200_000, 70_001]


@pytest.fixture(scope="module")
def contents():
    return [random.Random(size).randbytes(size) for size in SIZES]


@pytest.fixture
def server(tmp_path, contents):
    (tmp_path / "data").mkdir()
    for number, content in enumerate(contents):
        (tmp_path / "data" / f"{number}.bin").write_bytes(content)
    with range_server(tmp_path / "data") as url:
        yield url


def parts(url, access=None):
    paths = [f"{url}/{number}.bin" for number in range(len(SIZES))]
    found = infos_if_there(paths, access or Access())
    return [
        RemotePart(path, info.size, info.etag, info.mtime_ns)
        for path, info in zip(paths, found, strict=True)
    ]


def check(data, ranges, files, contents):
    assert list(map(bytes, data)) == [
        contents[files.index(one.file)][one.begin : one.end] for one in ranges
    ]


def whole(files):
    return [FileRange(file, 0, file.size) for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("begin", [Started, lambda ranges, access: begin_range(ranges[0], access)])
def test_no_request_is_too_long_and_no_byte_is_asked_for_twice(tmp_path, begin):
    """What the cache lacks is joined, and asked for in pieces of at most 12 MiB."""
    content = random.Random(1).randbytes(20_000_000)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.bin").write_bytes(content)
    with range_server(tmp_path / "data") as url:
        access = Access(cache_dir=tmp_path / "cache", cache_bytes=64_000_000)
        (info,) = infos_if_there([f"{url}/0.bin"], access)
        file = RemotePart(f"{url}/0.bin", info.size, info.etag, info.mtime_ns)
        url.reset()
        fetch([FileRange(file, 15_000_000, 15_000_100)], access)
        ranges = [
            FileRange(file, 0, 20_000_000),
            FileRange(file, 1_000_001, 19_999_999),
            FileRange(file, 50_000, 1_100_000),
        ]
        found = begin(ranges, access).answers()
        check(found, ranges[: len(found)], [file], [content])
        asked = [re.findall(r"\d+", header) for _, _, header, _ in url.requests()]
        sizes = [int(last) + 1 - int(first) for first, last in asked]
        assert sum(sizes) == 20_000_000 and max(sizes) <= 12 << 20


def test_what_says_no_version_is_not_kept(server, tmp_path):
    access = Access(cache_dir=tmp_path / "cache", cache_bytes=1_000_000)
    files = [RemotePart(file.path, file.size) for file in parts(server)]
    for _ in range(2):
        server.reset()
        fetch(whole(files), access)
        assert server.stats()["requests"] >= 3
    assert not os.path.exists(tmp_path / "cache")
    assert forget(whole(files), access) is False


def test_forget(server, tmp_path):
    access = Access(cache_dir=tmp_path / "cache", cache_bytes=1_000_000)
    files = parts(server)
    assert forget(whole(files), access) is False
    fetch(whole(files), access)
    assert forget(whole(files)[:1], access) is True
    assert forget(whole(files)[:1], access) is False
    server.reset()
    fetch(whole(files), access)
    assert {name for _, name, *_ in server.requests()} == {"/0.bin"}
    assert forget(whole(files), Access()) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://me:secret@host/a", "https://host/a"),
        ("https://host/a?X-Amz-Signature=1&X-Amz-Date=2&id=3", "https://host/a?id=3"),
        (
            "https://acc.blob.core.windows.net/c/a?sv=1&sig=x%2B&se=2",
            "https://acc.blob.core.windows.net/c/a",
        ),
        ("https://host/a?GoogleAccessId=1&Expires=2&Signature=3", "https://host/a"),
    ],
)
def test_what_signs_a_path_is_none_of_its_name(tmp_path, monkeypatch, one, other):
    access = Access(cache_dir=tmp_path / "cache", cache_bytes=1_000_000)
    monkeypatch.setattr(
        "torch_tfrecord.remote.transfers.Transfer",
        lambda jobs, _: SimpleNamespace(answers=lambda: [b"x" * 10 for _ in jobs]),
    )
    fetch([FileRange(RemotePart(one, 10, "e"), 0, 10)], access)
    monkeypatch.undo()
    assert fetch([FileRange(RemotePart(other, 10, "e"), 0, 10)], access) == [b"x" * 10]
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert b"secret" not in b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("https://host/a?id=1", {}), ("https://host/a?id=2", {})),
        (("s3://b/a", {}), ("s3://b/a", {"endpoint_url": "https://minio"})),
        (
            ("s3://b/a", {"client_kwargs": {"endpoint_url": "https://x"}}),
            ("s3://b/a", {"endpoint_url": "https://y"}),
        ),
        (("az://c/a", {"account_name": "one"}), ("az://c/a", {"account_name": "two"})),
        (
            ("abfss://c@one.dfs.core.windows.net/a", {}),
            ("abfss://c@two.dfs.core.windows.net/a", {}),
        ),
    ],
)
def test_what_tells_files_apart(tmp_path, monkeypatch, one, other):
    for content, (path, options) in ((b"x" * 10, one), (b"y" * 10, other)):
        access = Access(options, tmp_path / "cache", 1_000_000)
        monkeypatch.setattr(
            "torch_tfrecord.remote.transfers.Transfer",
            lambda jobs, _, content=content: SimpleNamespace(answers=lambda: [content]),
        )
        assert fetch([FileRange(RemotePart(path, 10, "e"), 0, 10)], access) == [content]


# The arguments.


def test_wrong_arguments(tmp_path):
    with pytest.raises(
        ValueError, match="cache_bytes must be an integer of at least 16384, got 100"
    ):
        Access(cache_dir=tmp_path, cache_bytes=100)
    with pytest.raises(
        TypeError, match="cache_bytes must be an integer of at least 16384, got '1 GB'"
    ):
        Access(cache_bytes="1 GB")
    with pytest.raises(
        TypeError, match=r"cache_dir must be str, os.PathLike\[str\] or None, got int"
    ):
        Access(cache_dir=3)


def test_a_data_set_is_a_group(tmp_path):
    access = Access({"key": "abcd"}, tmp_path)
    groups = {
        access.for_files(paths).cache._own
        for paths in (
            ["s3://b/x/train-1", "s3://b/x/train-0"],
            ["s3://b/x/train-1"],
            ["s3://b/x/day=1/0", "s3://b/x/day=2/0", "s3://b/x/day=1/1"],
        )
    }
    assert len(groups) == 1
    assert access.for_files(["s3://b/y/1"]).cache._own not in groups
    assert access.for_files(["s3://b/y/1"]) == access and hash(
        access.for_files(["s3://b/y/1"])
    ) == hash(access)
    assert Access().for_files(["s3://b/y/1"]).cache is None
    assert access.without_cache().cache is None and access.without_cache().storage_options == {
        "key": "abcd"
    }
