"""Read one dataset in several training processes: each record goes to exactly one of them, also
after resuming.

    python examples/distributed.py

This starts torchrun with two processes. Each rank reads its part, once as a stream and once by
position, and rank 0 compares what all ranks saw. Then they train with DistributedDataParallel and
stop in the middle of an epoch. A second torchrun, with four processes, resumes from the checkpoint;
together they train on each record once. To run it by hand:

    torchrun --nproc_per_node 2 examples/distributed.py FOLDER first
    torchrun --nproc_per_node 4 examples/distributed.py FOLDER second
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    RecordSampler,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordIterableDataset,
    collate,
    make_dataloader,
)

NUM_RECORDS = 120
FEATURES = {"position": FixedLenFeature((), torch.int64)}
STEPS_OF_THE_FIRST_RUN = 4


def write_records(folder):
    with ShardedTFRecordWriter(f"{folder}/train", num_shards=5, write_index=True) as writer:
        for position in range(NUM_RECORDS):
            writer.write({"position": position})


def read_stream(pattern, epoch):
    # The rank comes from torch.distributed, the worker from the DataLoader: pass no rank and no
    # sampler.
    stream = TFRecordIterableDataset(
        pattern, FEATURES, batch_size=10, shuffle=True, shuffle_buffer_size=20, seed=0
    )
    stream.set_epoch(epoch)  # a new stream begins with epoch 0; set the same on every rank
    # The dataset makes the batches in the workers, so the DataLoader must not.
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    return [position for batch in loader for position in batch["position"].tolist()]


def read_by_position(pattern, epoch):
    records = TFRecordDataset(pattern, FEATURES)
    # Gives every rank the same number of records; if they cannot be divided evenly, it repeats a
    # few (120 can).
    sampler = RecordSampler(records, shuffle=True, seed=0)
    sampler.set_epoch(epoch)
    loader = DataLoader(records, batch_size=10, sampler=sampler, num_workers=2, collate_fn=collate)
    return [position for batch in loader for position in batch["position"].tolist()]


def gathered(mine):
    """Gather every rank's list, on every rank."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def compare(name, epoch, mine):
    """Rank 0 prints whether the ranks' positions are disjoint and complete; every rank returns
    it.
    """
    parts = gathered(mine)
    right = sorted(position for part in parts for position in part) == list(range(NUM_RECORDS))
    counts = " + ".join(str(len(part)) for part in parts)
    verdict = "disjoint and complete" if right else "NOT disjoint and complete"
    say(f"{name}, epoch {epoch}: {counts} positions on {len(parts)} ranks, {verdict}")
    return right


def train(pattern, checkpoint, num_steps):
    """Train for one epoch, or `num_steps` steps of it; resume from the checkpoint if there is
    one.
    """
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = make_dataloader(pattern, 10, FEATURES, seed=0, num_workers=1)
    seen = []
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(state["model"])
        # one rank's state, on every rank; the world size may differ
        loader.load_state_dict(state["loader"])
        seen = state["seen"]
    for step, batch in enumerate(loader, 1):
        loss = model(batch["position"][:, None].float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += [position for part in gathered(batch["position"].tolist()) for position in part]
        if step == num_steps:
            break
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "loader": loader.state_dict(), "seen": seen}
        torch.save(state, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
    say(
        f"trained on {dist.get_world_size()} ranks: {len(seen)} records so far, {len(set(seen))} different ones"
    )
    return sorted(seen)


def main(folder, run):
    dist.init_process_group("gloo")
    try:
        pattern, checkpoint = f"{folder}/train-*", Path(folder) / "checkpoint.pt"
        right = True
        if run == "first":
            for epoch in range(2):
                right &= compare("TFRecordIterableDataset", epoch, read_stream(pattern, epoch))
                right &= compare(
                    "TFRecordDataset and RecordSampler", epoch, read_by_position(pattern, epoch)
                )
            train(pattern, checkpoint, STEPS_OF_THE_FIRST_RUN)
        else:
            right = train(pattern, checkpoint, None) == list(range(NUM_RECORDS))
            say("each record exactly once" if right else "NOT each record exactly once")
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    if "RANK" in os.environ:
        sys.exit(main(*sys.argv[1:]))
    with tempfile.TemporaryDirectory() as own_folder:
        write_records(own_folder)
        for num_ranks, name in ((2, "first"), (4, "second")):
            torchrun(
                ["--standalone", "--nproc_per_node", str(num_ranks), __file__, own_folder, name]
            )
