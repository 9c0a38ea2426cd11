"""Fixtures of the tests of compressed files."""

import zlib

import pytest


@pytest.fixture(params=["isal", "zlib"])
def engine(request, monkeypatch):
    """What decompresses: its name."""
    if request.param == "zlib":
        for module in ("inflated", "gzip_members"):
            monkeypatch.setattr(f"torch_tfrecord.compression.{module}.fastest", lambda: zlib)
    else:
        pytest.importorskip("isal")
    return request.param
