"""Batches by length: what planning an epoch takes, how much of the batches is padding, and tokens a
second: of the loader alone beside tf.data, and of a small transformer on the CPU.

    python benchmarks/lengths.py --tf-python tfvenv/bin/python     # all four tables
    python benchmarks/lengths.py --only plan padding

Lengths are log-normal, mu 6 and sigma 1, cut at 2,048: 594 tokens in the mean. Sides take turns; figures
are medians, after a round that does not count. A second's tokens are real ones, without padding.

- plan: until the first batch and the number of steps are known. Memory is the peak of its process above
  what it held with the lengths, an array. Then the same of files that are deleted.
- padding: also of the functions and classes of Python's own library, in words and signs. tf.data's
  `bucket_by_sequence_length` is computed, with the best 8 boundaries.
- loader: Examples of a list of int64 below 32,000. tf.data runs in a process that waits for its turn:
  `shuffle(10_000).map(parse, AUTOTUNE)`, the same 8 boundaries, `prefetch(AUTOTUNE)`.
- train: a causal language model of 2 layers, d_model 128, 4 heads, 1,024 ids, by one thread; in packs a
  mask keeps documents apart. Before, the losses of the same documents, padded and packed, are compared.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy, pad
from torch.nn.functional import scaled_dot_product_attention as attention
from tqdm import tqdm

from torch_tfrecord import (
    PackedCollate,
    PaddedCollate,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    make_dataloader,
)

_MOST, _BATCH, _BUDGET, _IDS = 2048, 32, 16_384, 1024
_FEATURES = {"tokens": VarLenFeature(torch.int64)}
_KINDS = ("padded", "batch_size", "max_tokens", "packs")
_PADDED, _FLAT = PaddedCollate(padding_values=-1), PackedCollate(_MOST)
_BLOCKS = PackedCollate(_MOST, layout="blocks", padding_values=-1, features=["tokens"])
_TENSORFLOW = """
import json, sys, time, tensorflow as tf
files, boundaries, sizes, batch = json.loads(sys.argv[1])
def parse(record):  # the fastest of RaggedFeature, VarLenFeature and FixedLenSequenceFeature
    return tf.io.parse_single_example(record, {"tokens": tf.io.RaggedFeature(tf.int64)})["tokens"]
for kind in map(str.strip, sys.stdin):
    data = tf.data.TFRecordDataset(files).shuffle(10_000).map(parse, tf.data.AUTOTUNE)
    if kind == "padded":
        data = data.padded_batch(batch, [None])
    else:
        each = sizes if kind == "max_tokens" else [batch] * len(sizes)
        data = data.bucket_by_sequence_length(tf.size, boundaries, each)
    start, used, padded = time.perf_counter(), time.process_time(), 0
    for one in data.prefetch(tf.data.AUTOTUNE):
        padded += one.shape[0] * one.shape[1]
    seconds = time.perf_counter() - start, time.process_time() - used
    print(json.dumps([*seconds, padded]), flush=True)
"""


def log_normal(number: int) -> np.ndarray:
    lengths = np.random.default_rng(0).lognormal(6, 1, number)
    return np.clip(lengths, 1, _MOST).astype(np.int32)


def python_code() -> np.ndarray:
    """Tokens of each function and class of Python's own library."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), []
    for path in tqdm(sorted(root.rglob("*.py")), leave=False):
        if "site-packages" not in path.parts:
            text = path.read_bytes().decode(errors="ignore")
            parts = re.split(r"\n\s*(?=def |class |async def |@)", text)
            found += [len(re.findall(r"\w+|[^\w\s]", part)) for part in parts]
    return np.clip(found, 1, _MOST).astype(np.int32)


def loaders(paths: object, packed: PackedCollate = _FLAT, **options: object) -> dict[str, object]:
    """A loader of each kind of batches."""
    by_length, pads = {"lengths": "tokens", **options}, {"collate_fn": _PADDED}
    every = (
        make_dataloader(paths, _BATCH, **options, **pads),
        make_dataloader(paths, _BATCH, **by_length, **pads),
        make_dataloader(paths, max_tokens=_BUDGET, **by_length, **pads),
        make_dataloader(paths, _BUDGET // _MOST, collate_fn=packed, **by_length),
    )
    return dict(zip(_KINDS, every, strict=True))


def write(folder: Path, lengths: np.ndarray) -> list[str]:
    """Four files of lists of random ids; their indexes keep the lists' lengths."""
    folder.mkdir()
    draw, paths = np.random.default_rng(1), [str(folder / f"{n}.tfrecord") for n in range(4)]
    for path, part in zip(paths, np.array_split(lengths, 4), strict=True):
        with TFRecordWriter(path) as writer:
            for length in part.tolist():
                writer.write({"tokens": draw.integers(32_000, size=length)})
        build_index(path, columns=["len(tokens)"])
    return paths


def in_turns(sides: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, list[float]]:
    """The medians of what each side gives."""
    found: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in tqdm(range(rounds + 1), leave=False):
        for name, side in sides.items():
            found[name].append(side())
    return {name: np.median(each[1:], axis=0).tolist() for name, each in found.items()}


def table(title: str, *rows: tuple[str, ...]) -> None:
    titles = title.split(", ")
    for row in (titles, ["---"] * len(titles), *rows):
        print(f"| {' | '.join(row)} |", flush=True)
    print()


# Planning.


def probe(kind: str, folder: Path) -> None:
    """Plan in this process."""

    def memory(name: str) -> float:
        return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1.024e-3

    lengths = np.load(folder / "lengths.npy")
    next(iter(loaders(range(100), lengths=lengths[:100])[kind].batch_sampler))  # imports
    options = {"batch_size": _BUDGET // _MOST, "collate_fn": _FLAT}
    options = options if kind == "packs" else {"max_tokens": _BUDGET}
    before, start = memory("VmRSS"), time.perf_counter()
    batches = make_dataloader(range(len(lengths)), lengths=lengths, **options).batch_sampler
    steps, _ = len(batches), next(iter(batches))
    seconds = time.perf_counter() - start
    print(json.dumps([seconds, memory("VmHWM") - before, steps]))


def plan(folder: Path, given: argparse.Namespace) -> None:
    np.save(folder / "lengths.npy", log_normal(given.planned))

    def planned(kind: str) -> list[float]:
        command = [sys.executable, __file__, "--probe", kind, "--folder", str(folder)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    found = in_turns({kind: partial(planned, kind) for kind in _KINDS[2:]}, given.rounds)
    rows = [(kind, f"{n:,.0f}", f"{s:.2f}", f"{mb:.0f}") for kind, (s, mb, n) in found.items()]
    table(f"planning of {given.planned:_} records, steps, seconds, MB", *rows)
    paths = write(folder / "deleted", log_normal(1000))
    data = TFRecordDataset(paths, _FEATURES)
    for path in paths:
        Path(path).unlink()
    for kind, loader in loaders(data).items():
        first = next(iter(loader.batch_sampler))
        print(f"files deleted, {kind}: {len(loader)} steps, {len(first)} records in the first")
    try:
        data[0]
    except FileNotFoundError:
        print()
    else:
        raise AssertionError("a file was open")


# Padding.


def of_tf(lengths: np.ndarray) -> tuple[list[int], list[int]]:
    """The best 8 boundaries, by dynamic programming, and the batch sizes of `max_tokens`."""
    sums = np.cumsum(np.bincount(lengths))
    ends = np.arange(len(sums))
    # Of a bucket's records with padding, from behind one length to another.
    cost = np.where(ends[:, None] < ends, ends * (sums - sums[:, None]), np.inf)
    totals, choices = cost[0], []
    for _ in range(8):
        every = totals[:, None] + cost
        totals, choices = every.min(axis=0), [every.argmin(axis=0), *choices]
    found = [len(sums)]
    for choice in choices:
        found.insert(0, int(choice[found[0] - 1]) + 1)
    return found[:-1], [_BUDGET // (each - 1) for each in found]


def padded(lengths: np.ndarray, size: int) -> int:
    """Tokens of batches, each padded to its longest."""
    batches = np.split(lengths, range(size, len(lengths), size))
    return sum(len(batch) * int(batch.max(initial=0)) for batch in batches)


def padded_by_tf(shuffled: np.ndarray, kind: str) -> int:
    boundaries, sizes = of_tf(shuffled)
    if kind == "batch_size":
        sizes = [_BATCH] * len(sizes)
    buckets = np.searchsorted(boundaries, shuffled, side="right")
    return sum(padded(shuffled[buckets == bucket], size) for bucket, size in enumerate(sizes))


def padding(_folder: Path, given: argparse.Namespace) -> None:
    rows = []
    for name, lengths in (("log-normal", log_normal(given.records)), ("Python", python_code())):
        plans, tokens = loaders(range(len(lengths)), lengths=lengths), int(lengths.sum())
        shuffled = np.random.default_rng(0).permutation(lengths)
        every = [padded(shuffled, _BATCH)]
        for kind in _KINDS[1:3]:
            ours = [lengths[batch] for batch in plans[kind].batch_sampler]
            every += [padded_by_tf(shuffled, kind), sum(padded(each, len(each)) for each in ours)]
        every.append(len(plans["packs"]) * _BUDGET)
        mean = f"{len(lengths):,}", f"{lengths.mean():.0f}"
        rows.append((name, *mean, *(f"{1 - tokens / each:.2%}" for each in every)))
    titles = "padding, records, tokens each, padded, tf.data batch_size, batch_size"
    table(f"{titles}, tf.data max_tokens, max_tokens, packs", *rows)


# The loader alone.


def tensorflow(python: str, *given: object) -> Callable[[str], list[float]]:
    """A function that makes tf.data take its turn."""
    command = [python, "-c", _TENSORFLOW, json.dumps([*given, _BATCH])]
    process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-3, text=True)

    def turn(kind: str) -> list[float]:
        print(kind, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    return turn


def epoch(loader: object) -> list[float]:
    """Seconds, those of the processor, and tokens with padding."""
    start, used = time.perf_counter(), time.process_time()
    size = sum(batch["tokens"].numel() for batch in loader)
    return [time.perf_counter() - start, time.process_time() - used, size]


def load(folder: Path, given: argparse.Namespace) -> None:
    lengths = log_normal(given.records)
    paths, tokens = write(folder / "loaded", lengths), int(lengths.sum())
    every = loaders(paths, features=_FEATURES)
    sides = {f"ours, {kind}": partial(epoch, loader) for kind, loader in every.items()}
    if given.tf_python:
        turn = tensorflow(given.tf_python, paths, *of_tf(lengths))
        sides |= {f"tf.data, {kind}": partial(turn, kind) for kind in _KINDS[:3]}
    rows = [
        (
            name,
            f"{tokens / s / 1e6:.1f}",
            f"{used / tokens * 1e9:.0f}",
            f"{1 - tokens / size:.2%}",
        )
        for name, (s, used, size) in in_turns(sides, given.rounds).items()
    ]
    table("the loader alone, million tokens a second, CPU ns a token, padding", *rows)


# Training.


class Model(torch.nn.Module):
    """A causal language model; gives its loss for a padded batch, or for packs as blocks."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.ids, self.places = (torch.nn.Embedding(n, width) for n in (_IDS, _MOST))
        sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        layers = [torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes) for _ in range(2)]
        self.layers = torch.nn.ModuleList(layers)
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, _IDS)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        ids, documents = batch["tokens"], batch.get("document_ids")
        places, mask, targets = torch.arange(ids.shape[1]), None, pad(ids[:, 1:], (0, 1), value=-1)
        if documents is not None:
            places, same = batch["position_ids"], documents[:, :, None] == documents[:, None]
            mask = same.tril()[:, None]
            targets[documents != pad(documents[:, 1:], (0, 1), value=-1)] = -1
        found = self.ids(ids.clamp(min=0) % _IDS) + self.places(places)
        for to_heads, from_heads, up, down in self.layers:
            parts = to_heads(self.norm(found)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            seen = attention(*parts, attn_mask=mask, is_causal=mask is None)
            found = found + from_heads(seen.transpose(1, 2).flatten(2))
            found = found + down(torch.relu(up(self.norm(found))))
        targets = torch.where(targets < 0, targets, targets % _IDS).flatten()
        return cross_entropy(self.head(found).flatten(0, 1), targets, ignore_index=-1)


def train(folder: Path, given: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # those of a busy machine wait for each other
    model = Model()
    samples = [{"tokens": torch.arange(3 * n, 4 * n)} for n in (5, 1, 900, 70, 1500)]
    torch.testing.assert_close(model(_PADDED(samples)), model(_BLOCKS(samples)))
    optimizer = torch.optim.AdamW(model.parameters())

    def some_steps(batches: Iterator[dict[str, torch.Tensor]]) -> list[float]:
        start, used, done = time.perf_counter(), time.process_time(), 0
        while done < given.trained:
            batch = next(batches)
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            done += int((batch["tokens"] >= 0).sum())
        used = time.process_time() - used
        return [done / (time.perf_counter() - start), used / done * 1e6]

    paths = write(folder / "trained", log_normal(given.records))
    every = loaders(paths, _BLOCKS, features=_FEATURES, num_epochs=None)
    sides = {kind: partial(some_steps, iter(loader)) for kind, loader in every.items()}
    found = in_turns(sides, given.rounds)
    rows = [
        (kind, f"{rate:,.0f}", f"{rate / found['padded'][0]:.1f}", f"{used:.0f}")
        for kind, (rate, used) in found.items()
    ]
    table("training, tokens a second, times padded, CPU us a token", *rows)


PARTS = {"plan": plan, "padding": padding, "loader": load, "train": train}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--folder", type=Path, help="where temporary files are written")
    parser.add_argument(
        "--records", type=int, default=40_000, help="written, and batched for padding"
    )
    parser.add_argument("--planned", type=int, default=10_000_000)
    parser.add_argument("--trained", type=int, default=50_000, help="tokens of a side in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tf-python", help="Python of an environment with TensorFlow")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        return probe(given.probe, given.folder)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for part in given.only:
            PARTS[part](Path(name), given)
    return None


if __name__ == "__main__":
    main()
