"""Every way into training beside the peers on the same files: the tables "doors" and "random".

A row is a variant of ours. ``compare.py doors --rows ds_i,tokens`` takes the rows of that name in all workloads, and
all rows of that workload; ``scalars.ds_i`` is one row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from workload import Bar, Workload

__all__ = ["DOORS", "RANDOM_SIZES", "TITLES", "only_rows"]

# What a variant's name stands for.
TITLES = {
    "make_dataloader": "`make_dataloader(num_workers=0)`",
    "collate": "`DataLoader(TFRecordDataset, collate_fn=collate)`",
    "torch_collate": "`DataLoader(TFRecordDataset)`, torch's collate",
    "stream_collate": "`DataLoader(TFRecordIterableDataset, collate_fn=collate)`",
    "stream_torch": "`DataLoader(TFRecordIterableDataset)`, torch's collate",
    "ds_i": "`ds[i]`",
    "its_tensors": "only making the tensors of `ds[i]`",
    "jagged": "`make_dataloader`, a jagged batch",
    "padded": "`make_dataloader(collate_fn=PaddedCollate())`",
    "padded_plain": "`DataLoader(TFRecordDataset, collate_fn=PaddedCollate())`",
    "sequence_function": "`parse_sequence_example` of raw records",
    "v2_process": "v2 transforms, `DataLoader`, in process",
    "v2_threads": "v2 transforms, `make_dataloader(num_threads=2)`",
    "v2_workers": "v2 transforms, `make_dataloader(num_workers=2)`",
    "crop_process": "`Image(crop=...)`, `DataLoader`, in process",
    "crop_threads": "`Image(crop=...)`, `make_dataloader(num_threads=2)`",
    "crop_workers": "`Image(crop=...)`, `make_dataloader(num_workers=2)`",
    "raw": "`ds.raw(i)`",
    "example": "`ds[i]`, one feature of bytes",
    "raw_64": "64 raw records",
    "raw_1024": "1,024 raw records",
    "example_64": "64 parsed records",
    "example_1024": "1,024 parsed records",
}
RANDOM_SIZES = {"100B": 100, "4KB": 4096, "100KB": 100_000}

_IN_COLUMNS = ("make_dataloader", "collate", "torch_collate")
_STREAMS = ("stream_collate", "stream_torch")
_WAYS = (*_IN_COLUMNS, *_STREAMS, "ds_i")
_TF_BATCHES = ("parse_example",)
_TF_SINGLES = ("parse_single_example", "parse_single_example, batched")


def _each(names: tuple[str, ...], side: str, variants: tuple[str, ...], ratio: float) -> tuple[Bar, ...]:
    return tuple(Bar((name,), side, variants, ratio) for name in names)


def _numbers(name: str, corpus: str, title: str, size: int, doors: tuple[Bar, ...], more: str = "") -> Workload:
    variants = {"ours": (*_WAYS, *more.split()), "tensorflow": (*_TF_BATCHES, *_TF_SINGLES)}
    return Workload(f"doors-{name}", "doors", corpus, title, size, variants, doors=doors)


_SCALARS = (
    *_each(_IN_COLUMNS, "tensorflow", _TF_BATCHES, 5),
    *_each(_STREAMS, "tensorflow", _TF_BATCHES, 1.2),
    Bar(("ds_i",), "ours", ("its_tensors",), 1 / 1.5, as_limit=True),
    *_each(("ds_i",), "tensorflow", _TF_SINGLES, 0.7),
)
_TOKENS = (*_each(_IN_COLUMNS, "tensorflow", _TF_BATCHES, 3), *_each(_STREAMS, "tensorflow", _TF_BATCHES, 2))
_IMAGES = {
    "ours": ("v2_process", "v2_threads", "v2_workers", "crop_process", "crop_threads", "crop_workers"),
    "dali": ("2 threads",),
}
_ALL = (
    _numbers("scalars", "tabular", "40 scalars, batches of 1,024", 1024, _SCALARS, "its_tensors"),
    _numbers("tokens", "many-tokens", "2,048 tokens, batches of 256", 256, _TOKENS),
    _numbers(
        "floats",
        "embeddings",
        "1,024 floats, batches of 256",
        256,
        _each(_IN_COLUMNS, "tensorflow", _TF_BATCHES, 4),
    ),
    Workload(
        "doors-padded",
        "doors",
        "ragged",
        "3 features of 1 to 59 numbers, padded batches of 256",
        256,
        {"ours": ("padded", "padded_plain", "jagged"), "tensorflow": ("padded_batch", "parse_example, padded")},
        doors=_each(("padded", "padded_plain"), "tensorflow", ("padded_batch",), 3),
    ),
    Workload(
        "doors-texts",
        "doors",
        "texts",
        "0 to 19 words as bytes, as many numbers, a text, batches of 256",
        256,
        {"ours": (*_IN_COLUMNS, "ds_i"), "tensorflow": ("ragged", "sparse", "ragged, to Python")},
        doors=_each(_IN_COLUMNS, "tensorflow", ("ragged", "sparse"), 3),
    ),
    Workload(
        "doors-sequences",
        "doors",
        "sequences",
        "SequenceExamples of 20 to 100 frames of 1,024 bytes and 32 floats, batches of 32",
        32,
        {
            "ours": ("make_dataloader", "collate", "sequence_function", "ds_i"),
            "tensorflow": ("parse_sequence_example", "parse_single_sequence_example"),
        },
        doors=(
            *_each(("make_dataloader", "collate", "sequence_function"), "tensorflow", ("parse_sequence_example",), 2),
            *_each(("ds_i",), "tensorflow", ("parse_single_sequence_example",), 2),
        ),
    ),
    Workload(
        "doors-tfds",
        "doors",
        "tfds",
        "TFDS: nested features, boxes, texts, a JPEG of 64 x 64, batches of 32",
        32,
        {"ours": ("make_dataloader", "collate", "ds_i"), "tensorflow": ("as_numpy", "as_numpy, ragged_batch")},
        random_columns=("bbox", "image"),
        doors=(
            *_each(("make_dataloader", "collate", "ds_i"), "tensorflow", ("as_numpy",), 2),
            *_each(("make_dataloader", "collate"), "tensorflow", ("as_numpy, ragged_batch",), 2),
        ),
    ),
    Workload(
        "doors-transforms",
        "doors",
        "few-images",
        "images: random resized crop, flip, float32 [3, 224, 224], batches of 64",
        64,
        _IMAGES,
        random_columns=("image",),
        doors=(
            Bar(("v2_process",), "ours", ("crop_process",), 0.7),
            Bar(("v2_threads",), "ours", ("crop_threads",), 0.7),
            Bar(("v2_workers", "v2_threads"), "dali", ("2 threads",), 1.2),
        ),
    ),
)


def _random(name: str) -> Workload:
    singles, batches = ("raw", "example"), ("raw_64", "raw_1024", "example_64", "example_1024")
    peers = {
        "tfr_reader": (*singles, *batches),
        "tfd_utils": tuple(variant for variant in (*singles, *batches) if variant.startswith("example")),
        "array_record": tuple(variant for variant in (*singles, *batches) if variant.startswith("raw")),
    }
    doors = (Bar((variant,), side, (variant,), 1) for side, variants in peers.items() for variant in variants)
    return Workload(
        f"random-{name}",
        "random",
        f"random-{name}",
        f"records of {name.replace('B', ' B').replace('K ', ' K')}, at random",
        0,
        {"ours": (*singles, *batches), **peers},
        doors=tuple(doors),
    )


DOORS = (*_ALL, *map(_random, RANDOM_SIZES))


def only_rows(workload: Workload, rows: Collection[str]) -> Workload | None:
    """The workload with the rows of these names, and what they are held against; None where there is no such row."""
    short = workload.name.removeprefix("doors-")
    if short in rows:
        return workload
    wanted = [name for name in workload.variants["ours"] if {name, f"{short}.{name}"} & {*rows}]
    if not wanted:
        return None
    doors = tuple(bar for bar in workload.doors if {*bar.ours} & {*wanted})
    needed = {"ours": {*wanted}}
    for bar in doors:
        needed["ours"].update(bar.ours)
        needed.setdefault(bar.side, set()).update(bar.variants)
    variants = {
        side: tuple(name for name in names if name in needed[side])
        for side, names in workload.variants.items()
        if side in needed
    }
    return replace(workload, variants=variants, doors=doors)
