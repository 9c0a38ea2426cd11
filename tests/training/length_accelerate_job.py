"""`accelerate_job` with batches by length, for test_length_batches.

torchrun --nproc_per_node N tests/length_accelerate_job.py JOB FOLDER
"""

import json
import sys
import traceback
from functools import partial

import accelerate_job
from length_loaders import LengthLoaders, rows

# Accelerate documents that batches of unequal sizes need it.
accelerator = partial(accelerate_job.accelerator, even_batches=False)
NAMES = ("padded", "packed", "sampler")
CASES = [
    *(("padded", way, 0) for way in ("registered", "skip", "stateful", "sampler")),
    *(("packed", way, 0) for way in ("registered", "skip", "stateful", "sampler")),
    *(("sampler", way, 0) for way in ("skip", "stateful", "sampler")),
    ("padded", "registered", 2),
]


def every_record(folder):
    """Two epochs of every loader, prepared or not."""
    loaders, here, found = LengthLoaders(folder), accelerator(), {}
    for name in NAMES:
        prepared = here.prepare(getattr(loaders, name)())
        found[f"{name}, prepared"] = [rows(prepared) for _ in range(2)]
        own = getattr(loaders, name)()
        found[f"{name}, not prepared"] = []
        for epoch in range(2):
            if name == "sampler":
                own.batch_sampler.set_epoch(epoch)  # nobody else does
            found[f"{name}, not prepared"].append(rows(own))
    return found


def resume(folder):
    """Two epochs, and what was left after some batches of them."""
    found = {}
    for name, way, num_workers in CASES:
        case, made = (
            f"{name}, {way}, {num_workers}",
            partial(accelerate_job.Received, folder, name, way, num_workers),
        )
        whole = made().train(save=True)
        found[case] = {"all": whole}
        an_epoch = len(whole) // 2
        for place in ((0, 1), (0, 7), (0, an_epoch), (1, 2), (1, an_epoch - 1)):
            found[case][json.dumps(place)] = made().train(*place)
    return found


def elsewhere(folder):
    """What was left, on other ranks than those that stopped."""
    found = {}
    for name, way in (("padded", "registered"), ("padded", "sampler"), ("packed", "registered")):
        for place in ((0, 7), (1, 2)):
            received = accelerate_job.Received(folder, name, way, 0)
            found[f"{name}, {way}, {json.dumps(place)}"] = received.train(*place)
    return found


if __name__ == "__main__":
    accelerate_job.Loaders, accelerate_job.accelerator = LengthLoaders, accelerator
    accelerate_job.JOBS = {job.__name__: job for job in (every_record, resume, elsewhere)}
    try:
        accelerate_job.main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
