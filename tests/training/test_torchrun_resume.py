"""Jobs of several ranks, killed in the middle and started again with another number of ranks; and
torch.distributed.checkpoint.
"""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from jobs import torchrun

from torch_tfrecord import FixedLenFeature, ShardedTFRecordWriter, make_dataloader

SCRIPT = Path(__file__).parent / "train_job.py"
FEATURES = {"id": FixedLenFeature((), torch.int64)}
N = 240  # what is left can be divided evenly at every step, so that nothing is repeated


def write_records(folder):
    with ShardedTFRecordWriter(folder / "train", num_shards=5, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number})


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
    write_records(tmp_path)
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


def ids_of(loader, num_batches=None):
    return [number for batch in islice(loader, num_batches) for number in batch["id"].tolist()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoints_of_loaders(tmp_path):
    """Of 2 ranks, in mid-epoch; loaded on 1, which saves again, and on 3."""
    write_records(tmp_path)
    seen = []

    def train(world_size, load=None, save=None, num_batches=None):
        for rank in range(world_size):
            options = {"seed": 7, "rank": rank, "world_size": world_size}
            loader = make_dataloader(f"{tmp_path}/train-*", 4, FEATURES, **options)
            if load:
                dcp.load({"loader": loader}, checkpoint_id=tmp_path / load)
            seen.extend(ids_of(loader, num_batches))
            if save and rank == 0:
                dcp.save({"loader": loader}, checkpoint_id=tmp_path / save)

    train(2, save="a", num_batches=6)
    train(1, "a", "b", num_batches=6)
    train(3, "b")
    assert sorted(seen) == list(range(N))
    del seen[48:]
    train(3, "a")
    assert sorted(seen) == list(range(N))


@pytest.mark.daily
@pytest.mark.parametrize("ranks", [(2, 1, 3), (2, 3)], ids=str)
def test_distributed_checkpoints(tmp_path, ranks):
    """The same by ranks that are processes."""
    write_records(tmp_path)
    for run, num_ranks in enumerate(ranks):
        num_batches = 6 if run + 1 < len(ranks) else 1000
        done = torchrun(
            num_ranks, SCRIPT.with_name("checkpoint_job.py"), tmp_path, run, num_batches
        )
        assert done.returncode == 0, done.stderr
        assert len([*tmp_path.glob(f"log-{run}-*")]) == num_ranks
    seen = [number for run in range(len(ranks)) for ids in logged(tmp_path, run) for number in ids]
    assert sorted(seen) == list(range(N))
