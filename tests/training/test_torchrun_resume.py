"""Jobs of several ranks, killed in the middle and started again with another number of ranks."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from jobs import torchrun

from torch_tfrecord import ShardedTFRecordWriter

SCRIPT = Path(__file__).parent / "train_job.py"
N = 240  # what is left can be divided evenly at every step, so that nothing is repeated


def logged(folder, run):
    lines = [line for path in folder.glob(f"log-{run}-*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


# Ranks, which one is killed, after which step.
UP = [(2, 1, 10), (3, -1, 0)]
DOWN = [(4, 2, 8), (2, -1, 0)]
UP_AND_DOWN = [(2, 1, 10), (3, 2, 8), (2, -1, 0)]
LATE = [(2, 0, 31), (4, 3, 5), (2, -1, 0)]  # in the second epoch; then once more


@pytest.mark.daily
@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        pytest.param(UP_AND_DOWN, "position", marks=pytest.mark.slow, id="2 to 3 to 2"),
        pytest.param(UP, "stream", marks=pytest.mark.slow, id="stream, 2 to 3"),
        pytest.param(DOWN, "stream", marks=pytest.mark.daily, id="stream, 4 to 2"),
        pytest.param(LATE, "position", marks=pytest.mark.daily, id="late, 2 to 4 to 2"),
        pytest.param(LATE, "stream", marks=pytest.mark.daily, id="stream, late, 2 to 4 to 2"),
    ],
)
def test_killed_and_started_with_other_ranks(tmp_path, runs, kind):
    with ShardedTFRecordWriter(tmp_path / "train", num_shards=5, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number})
    trained = Counter()
    for run, (num_ranks, killed_rank, kill_after) in enumerate(runs):
        done = torchrun(num_ranks, SCRIPT, tmp_path, run, kind, killed_rank, kill_after)
        steps = logged(tmp_path, run)
        assert len({path.name for path in tmp_path.glob(f"log-{run}-*")}) == num_ranks
        if killed_rank >= 0:
            assert done.returncode != 0 and "SIGKILL" in done.stderr
            checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
            assert checkpoint["run"] == str(run)  # as given on the command line
            # What was done after the last checkpoint is lost with the weights, and done again.
            assert checkpoint["step"] == kill_after // 3 * 3
            steps = [line for line in steps if line[1] <= checkpoint["step"]]
        else:
            assert done.returncode == 0, done.stderr
        trained.update((epoch, number) for epoch, _, ids in steps for number in ids)
    assert trained == Counter((epoch, number) for epoch in range(2) for number in range(N))
