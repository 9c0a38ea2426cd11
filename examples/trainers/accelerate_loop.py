"""Train with Hugging Face Accelerate, stop in the middle of an epoch, and resume, also on other
numbers of processes.

    torchrun --nproc_per_node 2 examples/trainers/accelerate_loop.py FOLDER --stop-after 18
    torchrun --nproc_per_node 1 examples/trainers/accelerate_loop.py FOLDER

You can also use `accelerate launch`. FOLDER holds the data and the last checkpoint; both are
created if missing.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator

from torch_tfrecord import FixedLenFeature, ShardedTFRecordWriter, make_dataloader

FEATURES = {"x": FixedLenFeature((4,), torch.float32), "y": FixedLenFeature((), torch.float32)}
NUM_EPOCHS = 3


def write_records(folder):
    folder.mkdir(parents=True, exist_ok=True)
    values = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    for split, rows in (("train", values[:200]), ("test", values[200:])):
        with ShardedTFRecordWriter(f"{folder}/{split}", num_shards=3) as writer:
            for row in rows:
                writer.write({"x": row, "y": row.sum().reshape(1)})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, help="steps")
    arguments = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        if accelerator.is_main_process and not any(arguments.folder.glob("train*")):
            write_records(arguments.folder)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    # For training: do not prepare it. It splits records over the processes itself, prefetches with
    # threads, and keeps the state to resume from.
    train_loader = make_dataloader(f"{arguments.folder}/train*", 8, FEATURES, label_key="y", seed=0)
    accelerator.register_for_checkpointing(train_loader)
    # For evaluation: Accelerate splits, and gather_for_metrics drops the records that fill up the
    # last batches.
    test_loader = make_dataloader(
        f"{arguments.folder}/test*", 8, FEATURES, label_key="y", shuffle=False
    )
    model, optimizer, test_loader = accelerator.prepare(model, optimizer, test_loader)

    checkpoint = arguments.folder / "checkpoint"
    if checkpoint.exists():
        accelerator.load_state(checkpoint)
        accelerator.print(
            f"resuming in epoch {train_loader.epoch}, {len(train_loader)} batches left"
        )
    steps = 0
    for epoch in range(train_loader.epoch, NUM_EPOCHS):
        for features, label in train_loader:
            prediction = model(features["x"].to(accelerator.device))[:, 0]
            loss = (prediction - label.to(accelerator.device)).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps += 1
            if steps == arguments.stop_after:
                accelerator.save_state(checkpoint)
                accelerator.print(f"stopped in epoch {epoch}")
                accelerator.end_training()
                return
        errors = []
        with torch.no_grad():
            for features, label in test_loader:
                error = (model(features["x"])[:, 0] - label).square()
                errors.append(accelerator.gather_for_metrics(error))
        accelerator.print(
            f"epoch {epoch}: error {torch.cat(errors).mean():.6f} of {len(torch.cat(errors))} records"
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
