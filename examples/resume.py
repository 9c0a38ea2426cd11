"""Resume a training run that was killed, with exactly the samples that it had not seen.

    python examples/resume.py

Trains a small model three times, each in its own process: once without interruption, once until it
kills itself in the middle of an epoch, and then from the last checkpoint, with another number of
workers. The interrupted run gets the same samples, in the same order, and the same weights as the
uninterrupted one.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from torch_tfrecord import FixedLenFeature, ShardedTFRecordWriter, make_dataloader

FEATURES = {"id": FixedLenFeature((), torch.int64), "x": FixedLenFeature((4,), torch.float32)}
NUM_EPOCHS = 3
STEPS_BETWEEN_CHECKPOINTS = 3


def write_records(folder):
    values = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    with ShardedTFRecordWriter(f"{folder}/train", num_shards=3, write_index=True) as writer:
        for number, row in enumerate(values):
            writer.write({"id": number, "x": row})


def save(path, **state):
    # First under another name, so that a checkpoint is either complete or not there.
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


def train(folder, checkpoint, num_workers, kill_after):
    """Resume from the checkpoint if there is one; kill this process after `kill_after` steps."""
    model = torch.nn.Linear(4, 1)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = make_dataloader(f"{folder}/train-*", 8, FEATURES, seed=0, num_workers=num_workers)
    ids = []
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])  # all you need to resume the data
        ids = state["ids"]

    steps = 0
    for _ in range(loader.epoch, NUM_EPOCHS):
        for batch in loader:
            loss = (model(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids += batch["id"].tolist()
            steps += 1
            if steps % STEPS_BETWEEN_CHECKPOINTS == 0:
                # The state counts the batches received here, not those that workers have
                # prefetched.
                save(checkpoint, model=model.state_dict(), loader=loader.state_dict(), ids=ids)
            if steps == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
    save(checkpoint, model=model.state_dict(), loader=loader.state_dict(), ids=ids)


def run(folder, checkpoint, num_workers, kill_after):
    command = [sys.executable, __file__, folder, checkpoint, str(num_workers), str(kill_after)]
    return subprocess.run(command, check=False).returncode


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_records(folder)
        straight, killed = f"{folder}/straight.pt", f"{folder}/killed.pt"
        assert run(folder, straight, num_workers=1, kill_after=-1) == 0
        print(
            f"killed after 20 steps: exit status {run(folder, killed, num_workers=2, kill_after=20)}"
        )
        before = len(torch.load(killed, weights_only=True)["ids"])
        assert run(folder, killed, num_workers=0, kill_after=-1) == 0
        one, two = (torch.load(path, weights_only=True) for path in (straight, killed))
    print(
        f"samples up to the last checkpoint: {before}, after the restart: {len(two['ids']) - before}"
    )
    print(f"the last six without a break: {one['ids'][-6:]}")
    print(f"the last six, interrupted:    {two['ids'][-6:]}")
    same = one["ids"] == two["ids"] and torch.equal(one["model"]["weight"], two["model"]["weight"])
    print("equal samples and equal weights" if same else "NOT equal")
    return 0 if same else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
