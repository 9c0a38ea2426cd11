"""Fixtures that every test gets."""

import gc
import itertools
import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
from contract import contract_tests
from hypothesis import settings

# The same cases each time: a change fails for what it changed. HYPOTHESIS_PROFILE=explore looks for
# new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
_CACHES = itertools.count()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


# A forked server's processes know nothing of this one, as spawned ones do not; but torch is
# imported once for them all. `torch_tfrecord` alone would import nothing.
multiprocessing.set_forkserver_preload(
    ["torchvision", "torch_tfrecord.loading", "torch_tfrecord.tfds", "pytest"]
)


def pytest_collection_modifyitems(config, items):
    """Mark the contract suite, where it is asked for: it takes a second to find."""
    if "contract" in config.option.markexpr:
        for item in items:
            if item.originalname in contract_tests(item.path):
                item.add_marker(pytest.mark.contract)


def pytest_collection_finish():
    """What is imported stays: collections need not look at it, nor do forked workers then copy its
    pages.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # or nanobind names what is left at the end of the process


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """Files appear complete or not at all without it, too, as long as the machine runs; each waits
    10 ms with it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an error where it is no file, as fsync's
        yield


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path_factory, monkeypatch):
    """Indexes that cannot lie beside their data must not end up in the real user's cache; few tests
    make the folder.
    """
    monkeypatch.setenv(
        "XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{next(_CACHES)}")
    )


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch):
    """A test says itself which rank it is."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def random_states_untouched():
    """Fails a test after which Python's, NumPy's or torch's global random state is another one."""

    def states():
        kind, keys, *rest = np.random.get_state()
        return (
            random.getstate(),
            (kind, keys.tobytes(), *rest),
            bytes(torch.get_rng_state().tolist()),
        )

    before = states()
    yield
    assert states() == before
