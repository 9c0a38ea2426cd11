"""However a worker or its trainer ends, nothing stays of the memory that they shared:
worker_ends_job.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("worker_ends_job.py")


def files_left():
    """What ended processes left; tests that run at the same time have files, too."""
    ended = [
        name
        for name in os.listdir("/dev/shm")
        if re.match("torch_[0-9]", name) and not is_alive(name)
    ]
    # not those removed since they were listed
    return {name for name in ended if os.path.exists(f"/dev/shm/{name}")}


def is_alive(name):
    """torch's names begin with the process that made the file."""
    return os.path.exists(f"/proc/{name.split('_')[1]}")


@pytest.mark.daily
@pytest.mark.timeout(900)  # 200 rounds take minutes
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
@pytest.mark.parametrize("what", ["workers", "trainers", "epochs"])
@pytest.mark.parametrize(
    "rounds",
    [pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.daily)],
)
def test_nothing_stays(what, rounds):
    before = files_left()
    ran = subprocess.run(
        [sys.executable, JOB, what, str(rounds)], capture_output=True, text=True, timeout=3000
    )
    assert ran.returncode == 0, ran.stderr
    assert files_left() <= before


@pytest.mark.daily
def test_a_small_folder_for_shared_memory():
    command = (
        f"mount -t tmpfs -o size=64m tmpfs /dev/shm && exec '{sys.executable}' '{JOB}' large 12"
    )
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("may not make a namespace for mounts")
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
