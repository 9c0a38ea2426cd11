"""Fixtures that every test of the command gets."""

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    return tmp_path
