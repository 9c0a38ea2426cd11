"""A training of several ranks for test_torchrun_resume: goes on from the last checkpoint of
torch.distributed.checkpoint, if there is one, and saves one.

    torchrun --nproc_per_node N tests/training/checkpoint_job.py FOLDER RUN NUM_BATCHES

Each rank writes the ids of each batch, a line each, to FOLDER/log-RUN-RANK.
"""

import json
import sys
from itertools import islice

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from torch_tfrecord import FixedLenFeature, make_dataloader


def main(folder, run, num_batches):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    features = {"id": FixedLenFeature((), torch.int64)}
    loader = make_dataloader(f"{folder}/train-*", 4, features, seed=7)
    state = {"model": model.module.state_dict(), "loader": loader}
    if int(run):
        dcp.load(state, checkpoint_id=f"{folder}/{int(run) - 1}")
    with open(f"{folder}/log-{run}-{dist.get_rank()}", "w", encoding="utf-8") as log:
        for batch in islice(loader, int(num_batches)):
            model(batch["id"][:, None].float()).sum().backward()
            log.write(json.dumps(batch["id"].tolist()) + "\n")
    dcp.save(state, checkpoint_id=f"{folder}/{run}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
