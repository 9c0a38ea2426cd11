"""Hugging Face's Trainer for test_hf_trainer: each rank writes which records its model saw.

    torchrun --nproc_per_node N tests/hf_trainer_job.py FOLDER some|all

FOLDER/hf_trainer-N-RANK.json is a dict from the name of each case to what came of it.
"""

import json
import shutil
import sys
import warnings

import torch
import transformers
from transformers import Trainer, TrainingArguments

from torch_tfrecord import (
    FixedLenFeature,
    TFRecordDataset,
    TFRecordIterableDataset,
    make_dataloader,
)

FEATURES = {"id": FixedLenFeature((), torch.int64)}
NUM_STEPS = 14  # two epochs of 103 records on two ranks


class Logged(torch.nn.Module):
    """Notes the records of each batch."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, id):
        if self.training:
            self.seen.append(id.tolist())
        return {"loss": (self.scale * id).mean() + self.scale**2, "id": id}


class OwnLoader(Trainer):
    """A Trainer with our loader."""

    def get_train_dataloader(self):
        return self.accelerator.prepare(self.train_dataset)


def train(
    folder, data, run, resume=None, trainer=Trainer, evaluated=None, steps=NUM_STEPS, **options
):
    arguments = TrainingArguments(
        f"{folder}/{run}",
        use_cpu=True,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_steps=steps,
        save_steps=1,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
        label_names=["id"],
        **options,
    )
    model = Logged()
    job = trainer(model, arguments, train_dataset=data, eval_dataset=evaluated)
    if evaluated is not None:
        return job.predict(evaluated).predictions.tolist()
    job.train(resume_from_checkpoint=resume)
    return model.seen


def resumed(folder, make, name, steps, **options):
    """The whole training, and what follows each of its checkpoints."""
    found = {"all": train(folder, make(), name, **options)}
    for step in steps:
        found[str(step)] = train(
            folder, make(), f"{name}-resumed", f"{folder}/{name}/checkpoint-{step}", **options
        )
        shutil.rmtree(f"{folder}/{name}-resumed", ignore_errors=True)
    return found


def caught(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(folder, how_many):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    paths = f"{folder}/train-*"

    def dataset():
        return TFRecordDataset(paths, FEATURES)

    def stream():
        return TFRecordIterableDataset(
            paths, FEATURES, shuffle=True, shuffle_buffer_size=10, seed=3
        )

    def loader():
        return make_dataloader(paths, 8, FEATURES, seed=3)

    each_reads = {"accelerator_config": {"dispatch_batches": False}}
    every, some = range(1, NUM_STEPS), range(3, NUM_STEPS, 6)
    found = {
        "dataset": resumed(folder, dataset, "dataset", every),
        "stream": resumed(folder, stream, "stream", every if how_many == "all" else ()),
        "loader": resumed(
            folder, loader, "loader", every if how_many == "all" else some, trainer=OwnLoader
        ),
    }
    if how_many == "all":
        both = {"steps": 16, "dataloader_num_workers": 2, **each_reads}
        found |= {
            "stream, each reads": resumed(folder, stream, "each", (3,), **each_reads),
            "two workers": caught(train, folder, stream(), "workers", dataloader_num_workers=2),
            "two workers, each reads": train(folder, stream(), "both", **both),
        }
    for name, make in (("dataset", dataset), ("stream", stream)):
        found[f"{name}, evaluated"] = train(folder, make(), f"{name}-evaluated", evaluated=make())
    rank, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    with open(f"{folder}/hf_trainer-{count}-{rank}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
