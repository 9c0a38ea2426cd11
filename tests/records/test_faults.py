"""Writers and readers while the system fails: short reads and writes, EINTR, EIO, ENOSPC, kill -9
(faults/).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent / "faults"
MEMORY = Path("/dev/shm")  # without a disk a sync costs nothing

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", path, FAULTS / "faults.c", "-ldl"], check=True
    )
    return path


def run(library, *what):
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        done = subprocess.run(
            [sys.executable, FAULTS / "driver.py", folder, *map(str, what)],
            env={**os.environ, "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    return result["cases"]


@pytest.mark.daily
def test_writing_under_every_fault(library):
    """Old data whole, new data whole or absent, an error that names the path; the next run clears
    what is left.
    """
    assert run(library, "write") > 500


@pytest.mark.daily
def test_reading_under_every_fault(library):
    """The right records, or an error that names the path."""
    assert run(library, "read") > 300


@pytest.mark.daily
@pytest.mark.parametrize("way", ["kill", "moments"])
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(30, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.daily)],
)
def test_kill_9(rounds, way, library):
    """At random calls on files, and at random moments."""
    assert run(library, way, rounds) == rounds
