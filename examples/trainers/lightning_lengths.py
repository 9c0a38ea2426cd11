"""Lightning's Trainer on two processes, with batches of texts of about the same length; stopped in
the middle of an epoch and resumed from its checkpoint.

    pip install lightning
    python examples/trainers/lightning_lengths.py

Lightning's defaults are enough: the loader splits the texts over the ranks; all ranks have the same
number of steps. Each rank logs its batches: at the end every text was seen once per epoch.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from torch_tfrecord import (
    FixedLenFeature,
    PaddedCollate,
    ShardedTFRecordWriter,
    VarLenFeature,
    build_index,
    make_dataloader,
)

FEATURES = {"id": FixedLenFeature((), torch.int64), "tokens": VarLenFeature(torch.int64)}
NUM_TEXTS, NUM_EPOCHS, NUM_RANKS = 503, 2, 2


def write_texts(folder):
    lengths = torch.randint(5, 100, (NUM_TEXTS,), generator=torch.Generator().manual_seed(0))
    with ShardedTFRecordWriter(f"{folder}/train", num_shards=3) as writer:
        for number, length in enumerate(lengths.tolist()):
            writer.write({"id": number, "tokens": torch.arange(1, length + 1)})
    build_index(f"{folder}/train-*", columns=["len(tokens)"])  # keeps the lengths


class Mean(LightningModule):
    """Learn a text's mean token; 0 is padding."""

    def __init__(self, log):
        super().__init__()
        self.tokens, self.log_path = torch.nn.Embedding(100, 1, padding_idx=0), log

    def training_step(self, batch, batch_idx):
        """Log the batch, and return its loss."""
        ids, tokens = batch["id"].tolist(), batch["tokens"]
        with open(f"{self.log_path}-{self.global_rank}", "a", encoding="utf-8") as log:
            log.write(json.dumps([self.current_epoch, ids, tokens.shape[1]]) + "\n")
        lengths = (tokens > 0).sum(1)
        mean = self.tokens(tokens).sum((1, 2)) / lengths
        return (mean - tokens.sum(1) / lengths / 100).square().mean()

    def configure_optimizers(self):
        """Use plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(folder, max_steps):
    """Resume from the last checkpoint if there is one."""
    loader = make_dataloader(
        f"{folder}/train-*",
        features=FEATURES,
        lengths="tokens",
        max_tokens=512,
        collate_fn=PaddedCollate(),
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=NUM_RANKS,
        strategy="ddp",
        max_epochs=NUM_EPOCHS,
        max_steps=max_steps,
        callbacks=[ModelCheckpoint(folder, save_last=True, every_n_train_steps=10)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = Path(folder) / "last.ckpt"
    trainer.fit(Mean(f"{folder}/log"), loader, ckpt_path=last if last.exists() else None)


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_texts(folder)
        for max_steps in (20, -1):  # stopped in the first epoch; then the rest
            subprocess.run([sys.executable, __file__, folder, str(max_steps)], check=True)
        logs = [Path(f"{folder}/log-{rank}").read_text("utf-8") for rank in range(NUM_RANKS)]
        ranks = [[*map(json.loads, log.splitlines())] for log in logs]
        for epoch in range(NUM_EPOCHS):
            each = [[step for step in steps if step[0] == epoch] for steps in ranks]
            texts = sorted(number for steps in each for _, ids, _ in steps for number in ids)
            once = "each text once" if texts == list(range(NUM_TEXTS)) else "NOT each text once"
            print(f"epoch {epoch}: {[len(steps) for steps in each]} steps on the ranks, {once}")
        most = max(len(ids) * length for steps in ranks for _, ids, length in steps)
        print(f"batches of up to {most} tokens")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:  # in each process of the training
        train(sys.argv[1], int(sys.argv[2]))
