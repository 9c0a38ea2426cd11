"""Programs end without a word, whatever they have at module level: program_ends_job.py."""

import importlib.util
import os
from pathlib import Path

import pytest
from jobs import run_job
from range_server import range_server

JOB = Path(__file__).with_name("program_ends_job.py")
LOST = (
    "UserWarning: {}: the writer was dropped without close(): its file is given up (records "
    "lost: {}). Write inside `with`, or call close()."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        pytest.param("", marks=pytest.mark.daily),
        pytest.param("a forked child", marks=pytest.mark.daily),
        "fork",
        pytest.param("spawn", marks=pytest.mark.daily),
        pytest.param("forkserver", marks=pytest.mark.daily),
    ],
)
def test_everything_at_module_level(method, tmp_path):
    """In the program and its workers; of the writers that are open, each says so once."""
    has_obstore = importlib.util.find_spec("obstore") is not None
    with range_server(tmp_path) as url:
        done = run_job(
            *("-X", "dev", "-W", "error::ResourceWarning", JOB),
            *(tmp_path, method, *([url] if has_obstore else [])),
        )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    told = [line.partition(" ")[2] for line in lines if "DataLoader will create" not in line]
    writers = {"open": 0, "shards-*.tfrecord": 1, "inside": 1}
    wanted = sorted(LOST.format(tmp_path / name, lost) for name, lost in writers.items())
    assert (sorted(told), done.returncode) == (wanted, 0), done.stderr
    num_streams = 5 if has_obstore else 4
    assert done.stdout.split()[:num_streams] == ["0"] * num_streams
    assert not [name for name in os.listdir(tmp_path) if "open" in name or "inside" in name]
