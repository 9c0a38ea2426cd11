"""Programs with Accelerate for test_accelerate: each of two ranks writes what it received, case by
case.

    torchrun --nproc_per_node N tests/accelerate_job.py JOB FOLDER

FOLDER/JOB-N-RANK.json is a dict from the name of each case to what came of it: lists of numbers, or
an error's text.
"""

import functools
import json
import os
import sys
import traceback
import warnings

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from trainer_loaders import BATCH_SIZE, FEATURES, NAMES, Loaders, caught, ids, two_epochs

from torch_tfrecord import RecordSampler, TFRecordIterableDataset, collate, make_dataloader


def accelerator(**config):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))


CONFIGS = {
    "default": {},
    "dispatch": {"dispatch_batches": True},
    "no dispatch": {"dispatch_batches": False},
    "split": {"split_batches": True},
    "dispatch and split": {"dispatch_batches": True, "split_batches": True},
    "uneven": {"even_batches": False},
}


def prepared_epochs(here, loader):
    return two_epochs(here.prepare(loader))


def coverage(folder):
    """Two epochs of every loader under every setting; nothing prepared beside them."""
    loaders, found = Loaders(folder), {}
    for config, settings in CONFIGS.items():
        here = accelerator(**settings)
        for name in NAMES:
            found[f"{name}, {config}"] = caught(prepared_epochs, here, getattr(loaders, name)())
    for name in NAMES:
        found[f"{name}, not prepared"] = two_epochs(getattr(loaders, name)())
    return found


def workers(folder):
    """Two workers, forked; spawned ones, that persist, where they must be told who splits."""
    loaders, found = Loaders(folder), {}
    for config in ("default", "no dispatch"):
        here = accelerator(**CONFIGS[config])
        for name in NAMES:
            loader = getattr(loaders, name)(num_workers=2, multiprocessing_context="fork")
            found[f"{name}, {config}, fork"] = caught(prepared_epochs, here, loader)
    loader = loaders.stream(num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    found["stream, no dispatch, spawn"] = caught(prepared_epochs, here, loader)
    return found


def settings(folder):
    """gather_for_metrics, skip_first_batches, set_epoch, and what is refused."""
    loaders, found = Loaders(folder), {}
    for config in ("default", "dispatch", "split"):
        here = accelerator(**CONFIGS[config])
        for name in NAMES:
            if name == "batched_stream" and config == "split":
                continue
            found[f"{name}, {config}, gather"] = gathered(here, getattr(loaders, name)())
            found[f"{name}, {config}, skip"] = skipped(here, getattr(loaders, name)())
    here = accelerator()
    found["make_dataloader, default, gather, drop_last"] = gathered(
        here, loaders.make_dataloader(drop_last=True)
    )
    found["len"] = [len(here.prepare(getattr(loaders, name)())) for name in NAMES[:3]]
    for name in NAMES[:3]:
        prepared = here.prepare(getattr(loaders, name)())
        prepared.set_epoch(1)
        found[f"{name}, set_epoch"] = two_epochs(prepared)
    found["two loaders"] = nested(here, loaders)
    found["epochs"] = caught(ids, here.prepare(loaders.make_dataloader(num_epochs=2)))
    found["epochs, drop_last"] = ids(
        here.prepare(loaders.make_dataloader(num_epochs=2, drop_last=True))
    )
    found["rank"] = caught(
        ids, here.prepare(loaders.make_dataloader(rank=here.process_index, world_size=2))
    )
    stream = TFRecordIterableDataset(loaders.paths, FEATURES, rank=here.process_index, world_size=2)
    found["rank of a stream"] = caught(ids, here.prepare(DataLoader(stream, BATCH_SIZE)))
    found["state"] = caught(state_in_loop, here, loaders.make_dataloader())
    found["loaded"] = caught(loaded_elsewhere, here, loaders)
    return found


def gathered(here, loader):
    prepared = here.prepare(loader)
    return [
        number for batch in prepared for number in here.gather_for_metrics(batch["id"]).tolist()
    ]


def skipped(here, loader):
    """An epoch, and the same from its fourth batch on; then the next one, of which nothing is
    skipped.
    """
    prepared = here.prepare(loader)
    whole = ids(prepared)
    prepared.set_epoch(0)
    rest = ids(here.skip_first_batches(prepared, 3))
    prepared.set_epoch(1)
    return [whole, rest, ids(prepared)]


def nested(here, loaders):
    """A loader of one's own within the loop of a prepared one, over the same dataset."""
    dataset = loaders.dataset()
    batches = make_dataloader(dataset, BATCH_SIZE, seed=3).batch_sampler
    prepared = here.prepare(DataLoader(dataset, batch_sampler=batches, collate_fn=collate))
    own = DataLoader(
        dataset,
        batch_sampler=make_dataloader(dataset, BATCH_SIZE, seed=3).batch_sampler,
        collate_fn=collate,
    )
    outer = []
    for batch in prepared:
        outer.append(batch["id"].tolist())
        inner = ids(own)
    return [outer, inner]


def state_in_loop(here, loader):
    for _ in here.prepare(loader):
        loader.state_dict()


def loaded_elsewhere(here, loaders):
    """A state of epoch 1, where Accelerate counts from 0."""
    first, second = loaders.sampler(), loaders.sampler()
    first.sampler.set_epoch(1)
    next(iter(first))
    second.sampler.load_state_dict(first.sampler.state_dict())
    return ids(here.prepare(second))


class Received:
    """How a training says where it is, and continues from there: four ways."""

    def __init__(self, folder, name, way, num_workers):
        self.way, self.folder = way, f"{folder}/{name}-{way}-{num_workers}"
        self.here = accelerator(use_stateful_dataloader=way == "stateful")
        options = {
            "num_workers": num_workers,
            "multiprocessing_context": "fork" if num_workers else None,
        }
        self.loader = getattr(Loaders(folder), name)(**options)
        if way == "registered":
            self.here.register_for_checkpointing(self.loader)
            self.prepared = self.loader
        else:
            self.prepared = self.here.prepare(self.loader)

    def sampler(self):
        sampler = self.loader.sampler
        return sampler if isinstance(sampler, RecordSampler) else self.loader.batch_sampler

    def save(self, epoch, step):
        if self.way in ("registered", "stateful"):
            self.here.save_state(f"{self.folder}-{epoch}-{step}")
        if self.way == "sampler":
            size = BATCH_SIZE if isinstance(self.sampler(), RecordSampler) else 1
            state = self.sampler().state_dict(num_received=step * size)
            self.here.save(state, f"{self.folder}-{epoch}-{step}")
        self.here.wait_for_everyone()

    def load(self, epoch, step):
        """The epoch, and the loader for what is left of it."""
        if self.way in ("registered", "stateful"):
            self.here.load_state(f"{self.folder}-{epoch}-{step}")
        if self.way == "stateful" and step == len(self.prepared):
            # torchdata's state says that the epoch is over: the next iteration is the next one
            epoch = epoch + 1
        if self.way == "sampler":
            self.sampler().load_state_dict(
                torch.load(f"{self.folder}-{epoch}-{step}", weights_only=True)
            )
        self.prepared.set_epoch(epoch)
        return epoch, self.here.skip_first_batches(
            self.prepared, step
        ) if self.way == "skip" else self.prepared

    def train(self, epoch=0, step=0, save=False):
        """What is left of two epochs: rows (epoch, ids)."""
        epoch, loader = self.load(epoch, step) if epoch or step else (0, self.prepared)
        rows = []
        for now in range(epoch, 2):
            if loader is not self.loader:
                self.prepared.set_epoch(now)
            for number, batch in enumerate(loader, 1):
                rows.append([now, *batch["id"].tolist()])
                if save:
                    self.save(now, number)
            loader = self.prepared
        return rows


WAYS = {
    "make_dataloader": ("registered", "skip", "stateful", "sampler"),
    "sampler": ("skip", "stateful", "sampler"),
    "stream": ("skip",),
}
CASES = [(name, way, workers) for name, ways in WAYS.items() for way in ways for workers in (0, 2)]


def places(rows, num_workers):
    """After which batches (epoch, number in it) to resume: all; with workers some."""
    found = []
    for epoch, *_ in rows:
        found.append((epoch, sum(other == epoch for other, _ in found) + 1))
    return found if not num_workers else found[1::5]


def resume(folder, cases=CASES):
    """Two epochs, and what was left after each batch of them."""
    found = {}
    for name, way, num_workers in cases:
        if num_workers and (
            name == "stream" or (way != "stateful" and accelerator().num_processes == 1)
        ):
            continue  # refused; the same as with two processes
        made = functools.partial(Received, folder, name, way, num_workers)
        rows = made().train(save=True)
        found[f"{name}, {way}, {num_workers}"] = {"all": rows}
        for place in places(rows, num_workers):
            left = caught(lambda place=place, made=made: made().train(*place))
            found[f"{name}, {way}, {num_workers}"][json.dumps(place)] = left
    return found


def resume_first(folder):
    """The first case of them."""
    return resume(folder, CASES[:1])


def other_ranks(folder):
    """What is left after what so many ranks as before received, on as many as now."""
    found = {}
    for name, way in (
        ("make_dataloader", "registered"),
        ("make_dataloader", "sampler"),
        ("sampler", "sampler"),
    ):
        if not os.path.exists(f"{folder}/{name}-{way}-0-1-2"):
            continue  # not one of the cases that were run
        for place in ((0, 3), (1, 2)):
            found[f"{name}, {way}, {json.dumps(place)}"] = Received(folder, name, way, 0).train(
                *place
            )
    return found


JOBS = {
    job.__name__: job for job in (coverage, workers, settings, resume, resume_first, other_ranks)
}


def main(names, folder):
    warnings.simplefilter("ignore")
    for name in names.split(","):
        found = JOBS[name](folder)
        here = accelerator()
        with open(
            f"{folder}/{name}-{here.num_processes}-{here.process_index}.json", "w", encoding="utf-8"
        ) as file:
            json.dump(found, file)
    here.wait_for_everyone()
    here.end_training()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        raise
