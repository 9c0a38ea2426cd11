"""Several training processes read one data set: each record goes to exactly one of them.

    torchrun --nproc_per_node 2 examples/distributed.py

Started by plain `python` it starts itself again in that way. Each rank reads its part, once as a stream and once by
position; then rank 0 compares what all ranks saw.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun
from torch.utils.data import DataLoader, DistributedSampler

from torch_tfrecord import FixedLenFeature, ShardedTFRecordWriter, TFRecordDataset, TFRecordIterableDataset

NUM_RECORDS = 100
FEATURES = {"position": FixedLenFeature((), torch.int64)}


def write_records(folder):
    with ShardedTFRecordWriter(f"{folder}/train", num_shards=5, write_index=True) as writer:
        for position in range(NUM_RECORDS):
            writer.write({"position": position})


def read_stream(pattern, epoch):
    # The rank comes from torch.distributed, the worker from the DataLoader; nothing to pass on, no sampler.
    stream = TFRecordIterableDataset(pattern, FEATURES, batch_size=10, shuffle=True, shuffle_buffer_size=20, seed=0)
    stream.set_epoch(epoch)  # another order in each epoch, the same on every rank
    # The dataset makes the batches, in the workers; so the DataLoader must not.
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    return [position for batch in loader for position in batch["position"].tolist()]


def read_by_position(pattern, epoch):
    records = TFRecordDataset(pattern, FEATURES)
    # Gives every rank the same number of records; where they cannot be divided evenly it repeats a few (100 can).
    sampler = DistributedSampler(records, shuffle=True, seed=0)
    sampler.set_epoch(epoch)
    loader = DataLoader(records, batch_size=10, sampler=sampler, num_workers=2)
    return [position for batch in loader for position in batch["position"].tolist()]


def compare(name, epoch, mine):
    """Rank 0 prints whether the ranks' positions are disjoint and complete; every rank returns it."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    together = sorted(position for part in parts for position in part)
    right = together == list(range(NUM_RECORDS))
    if dist.get_rank() == 0:
        counts = " + ".join(str(len(part)) for part in parts)
        verdict = "disjoint and complete" if right else "NOT disjoint and complete"
        print(f"{name}, epoch {epoch}: {counts} positions on {len(parts)} ranks, {verdict}", flush=True)
    return right


def main():
    dist.init_process_group("gloo")
    try:
        with tempfile.TemporaryDirectory() as own_folder:
            folder = [own_folder]
            dist.broadcast_object_list(folder, src=0)  # the ranks of one machine share rank 0's folder
            if dist.get_rank() == 0:
                write_records(folder[0])
            dist.barrier()
            pattern = f"{folder[0]}/train-*"
            right = True
            for epoch in range(2):
                right &= compare("TFRecordIterableDataset", epoch, read_stream(pattern, epoch))
                right &= compare("TFRecordDataset and DistributedSampler", epoch, read_by_position(pattern, epoch))
            dist.barrier()  # rank 0 removes the folder
    finally:
        dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    if "RANK" in os.environ:
        sys.exit(main())
    torchrun(["--standalone", "--nproc_per_node", "2", __file__])
