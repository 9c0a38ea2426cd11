"""Ranges of remote files through the cache: what it has is not asked for, and what it is told apart
by.
"""

import random
import re

import pytest
from range_server import range_server

from torch_tfrecord.files import Access, open_file

CONTENT = random.Random(1).randbytes(20_000_000)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.bin").write_bytes(CONTENT[:300_000])
    with range_server(tmp_path / "data") as url:
        yield url


@pytest.fixture
def access(tmp_path):
    return Access(cache_dir=tmp_path / "cache", cache_bytes=64_000_000)


def asked(url):
    """The requests for bytes since the last time."""
    found = [re.findall(r"\d+", header) for method, _, header, _ in url.requests() if header]
    url.reset()
    return [(int(first), int(last) + 1) for first, last in found]


def test_no_request_is_too_long_and_no_byte_is_asked_for_twice(tmp_path, server, access):
    """What the cache lacks is joined, and asked for in pieces of at most 12 MiB."""
    (tmp_path / "data" / "1.bin").write_bytes(CONTENT)
    file = open_file(f"{server}/1.bin", access)
    assert file.read(100, 15_000_000) == CONTENT[15_000_000:15_000_100]
    assert file.read(20_000_000, 0) == CONTENT
    found = asked(server)
    assert sum(end - begin for begin, end in found) == 20_000_000
    assert max(end - begin for begin, end in found) <= 12 << 20
    assert file.read(1_000_000, 50_000) == CONTENT[50_000:1_050_000]
    assert asked(server) == []


def test_forget(server, access):
    file = open_file(f"{server}/0.bin", access)
    assert file.forget(0, 300_000) is False
    file.read(300_000, 0)
    assert file.forget(0, 300_000) is True
    assert file.forget(0, 300_000) is False
    server.reset()
    assert file.read(300_000, 0) == CONTENT[:300_000]
    assert len(asked(server)) > 0
    assert open_file(f"{server}/0.bin").forget(0, 300_000) is False


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("http://me:secret@HOST/0.bin", "http://HOST/0.bin", True),
        ("http://HOST/0.bin?X-Amz-Signature=1&X-Amz-Date=2&id=3", "http://HOST/0.bin?id=3", True),
        ("http://HOST/0.bin?sv=1&sig=secret%2B&se=2", "http://HOST/0.bin", True),
        ("http://HOST/0.bin?GoogleAccessId=1&Expires=2&Signature=3", "http://HOST/0.bin", True),
        ("http://HOST/0.bin?id=1", "http://HOST/0.bin?id=2", False),
    ],
)
def test_what_signs_a_path_is_none_of_its_name(tmp_path, server, access, one, other, are_one):
    pytest.importorskip("aiohttp")
    host = server.removeprefix("http://")
    for path in (one, other):
        server.reset()
        file = open_file(path.replace("HOST", host), access)
        assert file.read(10, 5) == CONTENT[5:15]
    assert (not asked(server)) == are_one
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert b"secret" not in b"".join(path.read_bytes() for path in files)


def test_storages_with_equal_paths_are_told_apart():
    options = [
        {},
        {"endpoint_url": "https://minio"},
        {"client_kwargs": {"endpoint_url": "https://x"}},
        {"account_name": "one"},
        {"account_name": "two"},
    ]
    assert len({Access(each).endpoint for each in options}) == len(options)


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
