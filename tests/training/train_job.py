"""A training of several ranks for test_torchrun_resume: logs what it trained on, saves checkpoints,
is killed.

    torchrun --nproc_per_node N tests/train_job.py FOLDER RUN KIND KILLED_RANK KILL_AFTER

Each rank appends a line (epoch, step, ids) to FOLDER/log-RUN-RANK after each step. Every third step
all ranks wait for each other and rank 0 writes the checkpoint with the loader's state and the
number of the step.
"""

import json
import os
import signal
import sys
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from torch_tfrecord import FixedLenFeature, TFRecordIterableDataset, make_dataloader

FEATURES = {"id": FixedLenFeature((), torch.int64)}
NUM_EPOCHS = 2
BATCH_SIZE = 4


def by_position(folder, state):
    loader = make_dataloader(f"{folder}/train-*", BATCH_SIZE, FEATURES, seed=7, num_workers=1)
    if state is not None:
        loader.load_state_dict(state[0])
    for epoch in range(loader.epoch, NUM_EPOCHS):
        for batch in loader:
            yield epoch, batch, loader.state_dict


def by_stream(folder, state):
    """Without workers: the dataset's own state; every rank's is saved. The ranks' numbers of
    batches can differ.
    """
    stream = TFRecordIterableDataset(
        f"{folder}/train-*",
        FEATURES,
        batch_size=BATCH_SIZE,
        shuffle=True,
        shuffle_buffer_size=13,
        seed=7,
    )
    if state is not None:
        stream.load_state_dict(state)
    for epoch in range(int(stream.state_dict()["epoch"]), NUM_EPOCHS):
        stream.set_epoch(epoch)
        loader = iter(DataLoader(stream, batch_size=None))
        while True:
            batch = next(loader, None)
            if not any_rank(batch is not None):
                break
            yield (
                epoch,
                {"id": torch.empty(0, dtype=torch.int64)} if batch is None else batch,
                stream.state_dict,
            )


def any_rank(value):
    flag = torch.tensor(int(value))
    dist.all_reduce(flag)
    return bool(flag)


def main(folder, run, kind, killed_rank, kill_after):
    dist.init_process_group("gloo")
    rank, checkpoint = dist.get_rank(), f"{folder}/checkpoint.pt"
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    state = (
        torch.load(checkpoint, weights_only=True)["states"] if os.path.exists(checkpoint) else None
    )
    batches = {"position": by_position, "stream": by_stream}[kind](folder, state)
    with open(f"{folder}/log-{run}-{rank}", "a", encoding="utf-8") as log:
        for step, (epoch, batch, state_dict) in enumerate(islice(batches, 10**6), 1):
            model(batch["id"][:, None].float()).sum().backward()
            log.write(json.dumps([epoch, step, batch["id"].tolist()]) + "\n")
            log.flush()
            if step % 3 == 0:
                states = [None] * dist.get_world_size()
                dist.all_gather_object(states, state_dict())  # all ranks have logged this step
                if rank == 0:
                    torch.save({"states": states, "run": run, "step": step}, f"{checkpoint}.tmp")
                    os.replace(f"{checkpoint}.tmp", checkpoint)
            if (rank, step) == (int(killed_rank), int(kill_after)):
                os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
