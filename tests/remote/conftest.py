"""Clients and times of the tests of remote files: only this file knows where the library has them."""

import pytest

from torch_tfrecord.per_process import PerProcess
from torch_tfrecord.remote import stores, transfers

PACKAGES = {"fsspec": "aiohttp"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Whatever fails is soon asked for again."""
    monkeypatch.setattr(transfers, "_FIRST_WAIT", 0.001)


@pytest.fixture
def take_client(monkeypatch):
    """Makes new clients: of obstore, or all by fsspec; skips the test where the package is missing."""

    def take(name):
        pytest.importorskip(PACKAGES.get(name, name))
        monkeypatch.setattr(stores, "_STORES", PerProcess(stores._Stores))
        if name != "obstore":
            monkeypatch.setattr(stores, "obstore_stores", lambda: None)

    return take


@pytest.fixture(params=["obstore", "fsspec"])
def client(request, take_client):
    """Each of both clients, new."""
    take_client(request.param)
    return request.param
