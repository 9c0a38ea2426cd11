"""Trainings by Lightning's Trainer for test_lightning, many in one process; each rank logs what it
was given.

    [torchrun --nproc_per_node N] tests/lightning_job.py FOLDER RANKS FITS

FITS is a file of JSON: a list of the arguments of `fit` or `fabric`. Each writes to
FOLDER/NAME-RANK lines of JSON: the stage ("train", "validate", ...), the trainer's epoch, the ids
of the batch.
"""

import json
import re
import sys
import textwrap
import warnings
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from torch_tfrecord import (
    FixedLenFeature,
    RecordSampler,
    TFRecordDataset,
    TFRecordIterableDataset,
    collate,
    make_dataloader,
)
from torch_tfrecord.loading import ReadAheadLoader

warnings.simplefilter("ignore")  # Lightning's, torchdata's
FEATURES = {"id": FixedLenFeature((), torch.int64)}
BATCH_SIZE = 8


def make_loader(files, kind, num_workers=0, shuffle=True, **options):
    common = {"num_workers": num_workers}
    if kind == "make_dataloader":
        return make_dataloader(
            files, BATCH_SIZE, FEATURES, seed=3, shuffle=shuffle, **common, **options
        )
    cls = StatefulDataLoader if kind.startswith("stateful ") else DataLoader
    if kind.endswith("stream"):
        stream = TFRecordIterableDataset(
            files, FEATURES, batch_size=BATCH_SIZE, shuffle=shuffle, seed=3
        )
        return cls(stream, batch_size=None, **common)
    dataset, common["collate_fn"] = TFRecordDataset(files, FEATURES), collate
    if kind.endswith("batch_sampler"):
        batches = make_dataloader(
            dataset, BATCH_SIZE, seed=3, shuffle=shuffle, **options
        ).batch_sampler
        return cls(dataset, batch_sampler=batches, **common)
    if kind.endswith("distributed"):
        return DataLoader(dataset, BATCH_SIZE, sampler=DistributedSampler(dataset), **common)
    if kind.endswith("sampler"):
        sampler = RecordSampler(dataset, seed=3, shuffle=shuffle, **options)
        return cls(dataset, BATCH_SIZE, sampler=sampler, **common)
    cls = ReadAheadLoader if kind == "read ahead" else DataLoader
    return cls(dataset, batch_size=BATCH_SIZE, shuffle=shuffle, **common)


class Model(LightningModule):
    """Logs its batches."""

    def __init__(self, log, loaders, schedule):
        super().__init__()
        self.layer, self.log_file, self.schedule = torch.nn.Linear(1, 1), log, schedule
        for hook, make in loaders.items():  # "train_dataloader", ... where the fit asks for hooks
            setattr(self, hook, make)

    def note(self, stage, batch):
        self.log_file.write(json.dumps([stage, self.current_epoch, batch["id"].tolist()]) + "\n")
        self.log_file.flush()
        return self.layer(batch["id"][:, None].float() / 1000).mean()

    def training_step(self, batch, batch_idx):
        return self.note("train", batch)

    def validation_step(self, batch, batch_idx):
        self.note("sanity" if self.trainer.sanity_checking else "validate", batch)

    def test_step(self, batch, batch_idx):
        self.note("test", batch)

    def predict_step(self, batch, batch_idx):
        self.note("predict", batch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
        if not self.schedule:
            return optimizer
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def count_anew():
    """The callback of docs/trainers.md."""
    text = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
    block = re.search(
        r"```python\n( +from lightning.pytorch import Callback\n.*?) +```", text, re.S
    )[1]
    names = {}
    exec(textwrap.dedent(block), names)
    return names["CountAnew"]()


def fit(
    folder,
    ranks,
    name,
    kind,
    *,
    run="fit",
    validate=None,
    hooks=False,
    checkpoints=None,
    resume=None,
    schedule=False,
    **more,
):
    """One Trainer; `loader`, `validate`: arguments of `make_loader`; `checkpoints`: of
    ModelCheckpoint; `schedule`: of the learning rate, which asks for the number of steps.
    """
    loader, anew = more.pop("loader", {}), more.pop("anew", False)
    options = {
        "accelerator": "cpu",
        "devices": ranks,
        "strategy": "ddp" if ranks > 1 else "auto",
        "max_epochs": 2,
    }
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    callbacks = [count_anew()] if anew else []
    if checkpoints:
        callbacks.append(
            ModelCheckpoint(f"{folder}/{name}", "{step}", save_top_k=-1, **checkpoints)
        )
    options |= quiet | {"enable_checkpointing": bool(checkpoints), "callbacks": callbacks} | more
    trainer = Trainer(**options)
    files = f"{folder}/train-*"
    loaders = {
        "train_dataloader" if run == "fit" else f"{run}_dataloader": lambda: make_loader(
            files, kind, **loader
        )
    }
    if validate is not None:
        loaders["val_dataloader"] = lambda: make_loader(
            files, kind, **{"shuffle": False, **validate}
        )
    with open(f"{folder}/{name}-{trainer.global_rank}", "w", encoding="utf-8") as log:
        model = Model(log, loaders if hooks else {}, schedule)
        given = [] if hooks else [make() for make in loaders.values()]
        checkpoint = {} if resume is None else {"ckpt_path": f"{folder}/{resume}.ckpt"}
        getattr(trainer, run)(model, *given, **checkpoint)


def fabric(folder, ranks, name, kind, *, stop=None, resume=None, **options):
    """Three epochs, or up to a number of steps, by Fabric."""
    here = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    here.launch()
    loader = make_loader(f"{folder}/train-*", kind, **options)
    batches = here.setup_dataloaders(loader)
    if resume is not None:
        here.load(f"{folder}/{resume}.ckpt", {"loader": loader})
    step = 0
    with open(f"{folder}/{name}-{here.global_rank}", "w", encoding="utf-8") as log:
        for epoch in range(getattr(loader, "epoch", 0), 3):
            for batch in batches:
                log.write(json.dumps(["train", epoch, batch["id"].tolist()]) + "\n")
                step += 1
                if step == stop:
                    here.save(f"{folder}/{name}.ckpt", {"loader": loader})
                    return


def main(folder, ranks, fits):
    for arguments in json.loads(Path(fits).read_text(encoding="utf-8")):
        (fabric if arguments.pop("fabric", False) else fit)(folder, int(ranks), **arguments)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
