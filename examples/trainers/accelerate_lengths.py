"""Train with Hugging Face Accelerate on batches of texts of about the same length: all processes
have the same number of steps, each of about the same length.

    torchrun --nproc_per_node 2 examples/trainers/accelerate_lengths.py FOLDER --stop-after 20
    torchrun --nproc_per_node 1 examples/trainers/accelerate_lengths.py FOLDER
    torchrun --nproc_per_node 2 examples/trainers/accelerate_lengths.py FOLDER --prepare

The first two stop in the middle of an epoch, and resume, also on another number of processes. The
third lets Accelerate deal out the batches. FOLDER holds the data and the last checkpoint; both are
created if missing.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, gather_object

from torch_tfrecord import (
    FixedLenFeature,
    PaddedCollate,
    ShardedTFRecordWriter,
    VarLenFeature,
    build_index,
    make_dataloader,
)

FEATURES = {"id": FixedLenFeature((), torch.int64), "tokens": VarLenFeature(torch.int64)}
NUM_TEXTS, NUM_EPOCHS = 503, 2


def write_texts(folder):
    folder.mkdir(parents=True, exist_ok=True)
    lengths = torch.randint(5, 100, (NUM_TEXTS,), generator=torch.Generator().manual_seed(0))
    with ShardedTFRecordWriter(folder / "train", num_shards=3) as writer:
        for number, length in enumerate(lengths.tolist()):
            writer.write({"id": number, "tokens": torch.arange(1, length + 1)})
    build_index(f"{folder}/train-*", columns=["len(tokens)"])  # keeps the lengths


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stop-after", type=int, help="steps")
    parser.add_argument("--prepare", action="store_true", help="let Accelerate split the batches")
    arguments = parser.parse_args()

    # Only a loader that Accelerate prepares needs it: it would fill up batches of unequal sizes.
    config = DataLoaderConfiguration(even_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    with accelerator.main_process_first():
        if accelerator.is_main_process and not any(arguments.folder.glob("train*")):
            write_texts(arguments.folder)
    model = torch.nn.Embedding(100, 1, padding_idx=0)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    batches = loader = make_dataloader(
        f"{arguments.folder}/train-*",
        features=FEATURES,
        lengths="tokens",
        max_tokens=512,
        collate_fn=PaddedCollate(),
    )
    checkpoint = arguments.folder / "checkpoint"
    if arguments.prepare:
        # The batches of a step then follow each other, and each process gets the next one.
        batches = accelerator.prepare(loader)
    else:  # better: threads read ahead, and the state is exact on any number of processes
        accelerator.register_for_checkpointing(loader)
        if checkpoint.exists():
            accelerator.load_state(checkpoint)
            accelerator.print(f"resuming in epoch {loader.epoch}, {len(loader)} batches left")
    for epoch in range(loader.epoch, NUM_EPOCHS):
        steps = []
        for batch in batches:
            tokens = batch["tokens"].to(accelerator.device)
            lengths = (tokens > 0).sum(1)  # 0 is padding
            mean = model(tokens).sum((1, 2)) / lengths
            loss = (mean - tokens.sum(1) / lengths / 100).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps.append(batch["id"].tolist())
            if len(steps) == arguments.stop_after:
                accelerator.save_state(checkpoint)
                break
        counts = gather_object([len(steps)])
        texts = gather_object([number for ids in steps for number in ids])
        accelerator.print(
            f"epoch {epoch}: {counts} steps on the processes, {len(texts)} texts, {len(set(texts))} different ones"
        )
        if len(steps) == arguments.stop_after:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
