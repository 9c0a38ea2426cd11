"""Train on texts of unequal lengths, on several ranks, with little padding.

    python examples/text_lengths.py

This starts torchrun with two processes. Each batch has texts of about the same length, at most
1,024 tokens with padding; all ranks have the same number of steps, and in each step batches of the
same bucket of lengths, so that none waits for a longer one. They stop in the middle of an epoch. A
second torchrun, with three processes, resumes, leaves out a span of steps, as you would do where
the loss jumped, and says which texts these were. A third one packs texts into rows of 512 tokens
instead, with no padding to speak of. To run it by hand:

    torchrun --nproc_per_node 2 examples/text_lengths.py FOLDER stop
    torchrun --nproc_per_node 3 examples/text_lengths.py FOLDER resume
    torchrun --nproc_per_node 2 examples/text_lengths.py FOLDER pack
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_tfrecord import (
    FixedLenFeature,
    PackedCollate,
    PaddedCollate,
    ShardedTFRecordWriter,
    VarLenFeature,
    build_index,
    make_dataloader,
)

NUM_TEXTS, NUM_TOKENS, LONGEST = 3000, 50, 512
FEATURES = {"id": FixedLenFeature((), torch.int64), "tokens": VarLenFeature(torch.int64)}
STOP_AFTER, SKIPPED = 50, range(50, 55)  # steps


def write_texts(folder):
    """Texts that count: 7, 8, 9, ..."""
    draws = torch.Generator().manual_seed(0)
    lengths = torch.empty(NUM_TEXTS).log_normal_(4, 0.8, generator=draws).int().clamp(3, LONGEST)
    with ShardedTFRecordWriter(f"{folder}/train", num_shards=3) as writer:
        for number, length in enumerate(lengths.tolist()):
            tokens = (number + torch.arange(length)) % (NUM_TOKENS - 1) + 1  # 0 is padding
            writer.write({"id": number, "tokens": tokens})
    # The index keeps the lengths: planning an epoch reads no text. By the command line:
    # tfrecord index FOLDER/train-* --columns 'len(tokens)'
    build_index(f"{folder}/train-*", columns=["len(tokens)"])


class Model(torch.nn.Module):
    """One layer of attention, in which each token sees what comes before it in its document."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(NUM_TOKENS, 16)
        self.positions = torch.nn.Embedding(LONGEST, 16)
        self.mix, self.head = torch.nn.Linear(16, 48), torch.nn.Linear(16, NUM_TOKENS)

    def forward(self, tokens, positions, documents):
        """The loss for the next token; all [B, L]. Each row of a padded batch is one document."""
        x = self.tokens(tokens) + self.positions(positions)
        seen = (documents[:, :, None] == documents[:, None]).tril()
        x = x + functional.scaled_dot_product_attention(*self.mix(x).chunk(3, -1), attn_mask=seen)
        follows = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return functional.cross_entropy(self.head(x[:, :-1])[follows], tokens[:, 1:][follows])


def loss_of(model, batch):
    tokens = batch["tokens"]
    if "document_ids" in batch:  # packed
        return model(tokens, batch["position_ids"], batch["document_ids"])
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return model(tokens, positions, torch.where(tokens == 0, -1, 0))


def gathered(mine):
    """Every rank's object, on every rank."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def train(model, loader, num_steps=None):
    """Train for the rest of an epoch, or some steps of it; return the ids that all ranks had."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    steps = []
    for step, batch in enumerate(loader, 1):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append((batch["id"].tolist(), [*batch["tokens"].shape]))
        if step == num_steps:
            break
    ranks = gathered(steps)
    counts = [len(each) for each in ranks]
    assert len(set(counts)) == 1, counts
    lengths = [[shape[1] for _, shape in step] for step in zip(*ranks, strict=True)]
    most = max(rows * length for each in ranks for _, (rows, length) in each)
    apart = max(max(each) - min(each) for each in lengths)
    say(
        f"{len(ranks)} ranks, {counts[0]} steps each: rows of {min(map(min, lengths))} to {max(map(max, lengths))} "
        f"tokens, in a step at most {apart} apart; batches of up to {most} tokens"
    )
    return [number for each in ranks for ids, _ in each for number in ids]


def make_loader(folder):
    # Pass no rank and no sampler: each rank computes its own batches from the lengths.
    return make_dataloader(
        f"{folder}/train-*",
        features=FEATURES,
        lengths="tokens",
        max_tokens=1024,
        collate_fn=PaddedCollate(multiple_of=8),
    )


def stop(folder, checkpoint):
    model, loader = DistributedDataParallel(Model()), make_loader(folder)
    say(f"padded: {loader.padding_report()['fill']:.1%} of the batches is text")
    seen = train(model, loader, STOP_AFTER)
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "loader": loader.state_dict(), "seen": seen}
        torch.save(state, checkpoint)


def resume(folder, checkpoint):
    model, loader = Model(), make_loader(folder)
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    # One rank's state, on every rank, also of another number of them; then the same on each.
    loader.load_state_dict(state["loader"])
    loader.skip_to(SKIPPED.stop)
    left_out = [record for step in SKIPPED for record in loader.records_of(step)]
    path, offset, _ = left_out[0]
    skipped = {loader.dataset[position]["id"].item() for *_, position in left_out}
    say(f"skipped {len(skipped)} texts, the first at byte {offset} of {Path(path).name}")
    seen = state["seen"] + train(DistributedDataParallel(model), loader)
    right = skipped.isdisjoint(seen) and skipped.union(seen) == set(range(NUM_TEXTS))
    # A bucket of which fewer texts are left than there are ranks gives each rank one all the same.
    say(f"{len(set(seen))} other texts were trained on, {len(seen) - len(set(seen))} of them twice")
    assert right


def pack(folder, _):
    # Which texts share a row is known from their lengths alone; each row is full but for a few
    # tokens. The default layout "flat" is what FlashAttention wants: cu_seqlens instead of rows.
    loader = make_dataloader(
        f"{folder}/train-*",
        2,  # rows
        FEATURES,
        lengths="tokens",
        collate_fn=PackedCollate(LONGEST, layout="blocks"),
    )
    say(f"packed: {loader.padding_report()['fill']:.1%} of the rows is text")
    seen = train(DistributedDataParallel(Model()), loader)
    assert set(seen) == set(range(NUM_TEXTS))


def main(folder, run):
    dist.init_process_group("gloo")
    try:
        {"stop": stop, "resume": resume, "pack": pack}[run](folder, Path(folder) / "checkpoint.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as own_folder:
            write_texts(own_folder)
            for num_ranks, name in ((2, "stop"), (3, "resume"), (2, "pack")):
                torchrun(
                    ["--standalone", "--nproc_per_node", str(num_ranks), __file__, own_folder, name]
                )
