"""All ways to a DataLoader under torchrun without a process group, for test_torchrun.

    torchrun --nproc_per_node N tests/torchrun_job.py FOLDER

FOLDER/torchrun-N-RANK.json is a dict from the name of each case to the numbers of the records,
batch by batch.
"""

import json
import os
import sys
import warnings

import torch
from trainer_loaders import NAMES, Loaders, two_epochs


def main(folder):
    warnings.simplefilter("ignore")  # about workers and processors
    loaders = Loaders(folder)
    found = {}
    for num_workers in (0, 2):
        for name in NAMES:
            found[f"{name}, {num_workers}"] = two_epochs(
                getattr(loaders, name)(num_workers=num_workers)
            )
    assert not torch.distributed.is_initialized()
    with open(
        f"{folder}/torchrun-{os.environ['WORLD_SIZE']}-{os.environ['RANK']}.json",
        "w",
        encoding="utf-8",
    ) as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
