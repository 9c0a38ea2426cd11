"""Train with the Trainer of Hugging Face's transformers; when you run it again, it resumes from the
last checkpoint.

    torchrun --nproc_per_node 2 examples/trainers/hf_trainer.py FOLDER 10
    torchrun --nproc_per_node 2 examples/trainers/hf_trainer.py FOLDER 26

The number is the step after which it stops. FOLDER holds the data and the checkpoints;
it is created if missing.
"""

import argparse
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from torch_tfrecord import FixedLenFeature, ShardedTFRecordWriter, TFRecordDataset, collate

# The names are those of the arguments of the model's `forward`.
FEATURES = {"x": FixedLenFeature((4,), torch.float32), "labels": FixedLenFeature((), torch.float32)}


class Model(torch.nn.Module):
    """The sum of four numbers, to be learned."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        """Return the loss first, as the Trainer expects."""
        prediction = self.linear(x)[:, 0]
        return {"loss": (prediction - labels).square().mean(), "prediction": prediction}


def write_records(folder):
    folder.mkdir(parents=True, exist_ok=True)
    values = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    for split, rows in (("train", values[:200]), ("test", values[200:])):
        with ShardedTFRecordWriter(f"{folder}/{split}", num_shards=3) as writer:
            for row in rows:
                writer.write({"x": row, "labels": row.sum().reshape(1)})


def main(folder, max_steps):
    arguments = TrainingArguments(
        f"{folder}/run",
        use_cpu=True,
        max_steps=max_steps,
        save_steps=10,
        per_device_train_batch_size=8,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        # All features are arguments of `forward`, so there is no column to remove.
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to=[],
    )
    with arguments.main_process_first(local=False):
        if arguments.process_index == 0 and not any(folder.glob("train*")):
            write_records(folder)
    set_seed(0)
    trainer = Trainer(
        Model(),
        arguments,
        data_collator=collate,
        train_dataset=TFRecordDataset(f"{folder}/train*", FEATURES),
        eval_dataset=TFRecordDataset(f"{folder}/test*", FEATURES),
    )
    last = (
        get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).is_dir() else None
    )
    trainer.train(resume_from_checkpoint=last)
    found = trainer.predict(trainer.eval_dataset)
    if trainer.is_world_process_zero():
        print(f"from {last and Path(last).name} to step {trainer.state.global_step}")
        print(f"error {found.metrics['test_loss']:.6f} of {len(found.label_ids)} records")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else its threads may still run when Python ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("max_steps", type=int)
    main(**vars(parser.parse_args()))
