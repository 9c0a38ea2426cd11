"""`tfrecord cache`: what a cache holds, and that it is gone."""

import json
import os
import re

import fsspec
import pytest

from index_tools.main import main
from torch_tfrecord.files import Access, open_file


def fill(folder, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.remote.disk_cache._LOOK_SECONDS", 0.0)
    fsspec.filesystem("memory").pipe("/cached", bytes(900_000))
    file = open_file("memory://cached", Access(cache_dir=folder, cache_bytes=64_000_000))
    for _ in range(4):
        assert file.read(900_000, 0) == bytes(900_000)
    return file


@pytest.mark.parametrize("is_default", [False, True])
def test_what_it_holds(tmp_path, capsys, monkeypatch, is_default):
    folder = (
        os.path.join(Access.user_cache(), "remote") if is_default else str(tmp_path / "cache\n")
    )
    arguments = ["cache"] if is_default else ["cache", folder]
    shown = folder.replace("\n", "\\n")
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{shown}: no cache\n"
    assert not os.path.exists(folder)
    cache = fill(folder, monkeypatch)
    assert main(arguments) == 0
    held, read = capsys.readouterr().out.splitlines()
    size = re.escape(shown) + r": 9\d\d\.\d KB on the disk, of 1 remote file, at most 64\.0 MB"
    assert re.fullmatch(size, held)
    assert read == "read through it: 3.6 MB, 75 % of it from the cache"
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["num_files"], facts["max_bytes"]) == (1, 64_000_000)
    assert facts["hit_bytes"] == 3 * facts["fetched_bytes"]
    assert main([*arguments, "--clear"]) == 0
    assert capsys.readouterr().out.startswith(f"{shown}: removed 9")
    assert os.listdir(folder) == []
    assert main([*arguments, "--clear"]) == 0
    assert capsys.readouterr().out == f"{shown}: no cache\n"
    del cache


def test_what_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_bytes(b"")
    assert main(["cache", str(tmp_path / "file")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/file: no cache\n"


def test_one_that_cannot_be_opened(tmp_path, capsys):
    (tmp_path / "torch_tfrecord.cache").mkdir()
    assert main(["cache", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"tfrecord: {tmp_path}/torch_tfrecord.cache: Is a directory\n"
