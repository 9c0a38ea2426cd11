"""Lightning's Trainer on two processes, stopped in the middle of an epoch and resumed from its
checkpoint.

    pip install lightning
    python examples/trainers/lightning_fit.py

Lightning's defaults are enough: the loader splits the records over the ranks, and the checkpoint
contains the loader's state. Each rank logs the records that it was trained on; at the end every
record was seen once per epoch, except for the one that is repeated to even out the ranks.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from torch_tfrecord import FixedLenFeature, ShardedTFRecordWriter, make_dataloader

FEATURES = {"id": FixedLenFeature((), torch.int64), "x": FixedLenFeature((4,), torch.float32)}
NUM_RECORDS, NUM_EPOCHS, NUM_RANKS, BATCH_SIZE = 103, 2, 2, 8


class Regression(LightningModule):
    """Learn the sum of four numbers with a linear layer."""

    def __init__(self, log):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.log_path = log

    def training_step(self, batch, batch_idx):
        """Log the records of the batch, and return its loss."""
        with open(f"{self.log_path}-{self.global_rank}", "a", encoding="utf-8") as log:
            log.write(f"{self.current_epoch} {' '.join(map(str, batch['id'].tolist()))}\n")
        return (self.layer(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        """Use plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(folder, max_steps):
    """Resume from the last checkpoint if there is one."""
    loader = make_dataloader(f"{folder}/train-*", BATCH_SIZE, FEATURES, seed=0)
    trainer = Trainer(
        accelerator="cpu",
        devices=NUM_RANKS,
        strategy="ddp",
        max_epochs=NUM_EPOCHS,
        max_steps=max_steps,
        callbacks=[ModelCheckpoint(folder, save_last=True, every_n_train_steps=1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = Path(folder) / "last.ckpt"
    trainer.fit(Regression(f"{folder}/log"), loader, ckpt_path=last if last.exists() else None)


def logged(folder, rank):
    """(epoch, ids) of each step of a rank."""
    lines = Path(f"{folder}/log-{rank}").read_text(encoding="utf-8").splitlines()
    return [(int(epoch), ids) for epoch, *ids in map(str.split, lines)]


def main():
    with tempfile.TemporaryDirectory() as folder:
        values = torch.randn(NUM_RECORDS, 4, generator=torch.Generator().manual_seed(0))
        with ShardedTFRecordWriter(f"{folder}/train", num_shards=3, write_index=True) as writer:
            for number, row in enumerate(values):
                writer.write({"id": number, "x": row})
        for max_steps in (9, -1):  # stopped in the second epoch; then the rest
            subprocess.run([sys.executable, __file__, folder, str(max_steps)], check=True)
            print(f"steps so far: {len(logged(folder, 0))}")
        for epoch in range(NUM_EPOCHS):
            each = [
                [i for e, ids in logged(folder, rank) if e == epoch for i in ids]
                for rank in range(NUM_RANKS)
            ]
            different = len(set().union(*each))
            print(
                f"epoch {epoch}: {different} records, {[len(ids) for ids in each]} samples on the ranks"
            )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:  # in each process of the training
        train(sys.argv[1], int(sys.argv[2]))
