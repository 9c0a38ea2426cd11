"""What is measured: the records, the ways to read them, and by how much we want to be ahead. Read
by every side.

Of the tables "doors" (every way into training), "workers", "random" and "compressed" a row is a
variant of ours.
``compare.py doors --rows ds_i,tokens`` takes the rows of that name in all workloads, and all rows
of that workload; ``scalars.ds_i`` is one row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from compressed import COMPRESSED
from workload import Bar, Workload

__all__ = [
    "CROP",
    "MEAN",
    "PEERS",
    "RANDOM_SIZES",
    "STD",
    "TITLES",
    "WORKLOADS",
    "Bar",
    "Workload",
    "columns_of",
    "only_rows",
]

# ImageNet's, for pixels in 0..1; the side of the square that is cut out.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP = 224

PEERS = ("tensorflow", "dali", "tfrecord", "random")

# What a variant's name stands for.
TITLES = {
    "in process": "`make_dataloader`",
    "fused crop, in process": "`make_dataloader`, `Image(crop=...)`",
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
    "with_none": "`DataLoader(TFRecordDataset, collate_fn=collate)`, in process",
    "with_collate": "`DataLoader(TFRecordDataset, num_workers=2, collate_fn=collate)`",
    "with_torch_collate": "`DataLoader(TFRecordDataset, num_workers=2)`, torch's collate",
    "with_stream": "`DataLoader(TFRecordIterableDataset(batch_size=...), batch_size=None, num_workers=2)`",
    "with_make_dataloader": "`make_dataloader(num_workers=2)`",
    "handed_over": "`collate`'s batch",
    "by_torch": "the same tensors in a plain dict, by torch's own way",
    "raw": "`ds.raw(i)`",
    "example": "`ds[i]`, one feature of bytes",
    "raw_64": "64 raw records",
    "raw_1024": "1,024 raw records",
    "example_64": "64 parsed records",
    "example_1024": "1,024 parsed records",
    "stream": "`TFRecordIterableDataset(batch_size=1024)`",
    "one_by_one": "`read_records`",
    "in_order": "`make_dataloader(shuffle=False)`",
    "in_blocks": '`make_dataloader(shuffle="blocks")`',
    "index": "`build_index`",
    "index_of_headers": "`build_index(verify_crc=False)`",
}
RANDOM_SIZES = {"100B": 100, "4KB": 4096, "100KB": 100_000}


_LOADERS = {
    "ours": ("in process", "2 workers", "shuffled", "shuffled, 2 workers"),
    "tensorflow": ("map, prefetch",),
    "tfrecord": ("0 workers", "1 worker", "2 workers"),
}
_IMAGE_SIDES = {
    "ours": (
        "fused crop, in process",
        "fused crop, 2 workers",
        "v2 transforms, in process",
        "v2 transforms, 2 workers",
    ),
    "dali": ("2 threads",),
}
_INDEXES = {"ours": ("build_index",), "tfrecord": ("create_index",)}


def _index(corpus: str, gigabytes_bar: float = 0) -> Workload:
    title = f"index of the {corpus} file, every CRC"
    return Workload(
        f"index-{corpus}", "index", corpus, title, 0, _INDEXES, {"tfrecord": 10}, gigabytes_bar
    )


_SUMMARY = (
    Workload(
        "tabular",
        "tabular",
        "tabular",
        "tabular: 40 scalars, batch 1,024",
        1024,
        _LOADERS,
        {"best": 5},
    ),
    Workload(
        "tokens", "tokens", "tokens", "tokens: 2,048 int64, batch 64", 64, _LOADERS, {"best": 3}
    ),
    Workload(
        "embeddings",
        "embeddings",
        "embeddings",
        "embeddings: 1,024 float32, batch 256",
        256,
        _LOADERS,
        {"best": 5},
    ),
    Workload(
        "raw",
        "raw",
        "tabular",
        "raw records of the tabular file, CRC",
        0,
        {
            "ours": ("read_records",),
            "tensorflow": ("batches of 1,024",),
            "tfrecord": ("no CRC, reused buffer",),
        },
        {"tensorflow": 3, "tfrecord": 2},
    ),
    _index("tabular"),
    _index("embeddings"),
    _index("images", 5),
    Workload(
        "images",
        "images",
        "images",
        "images: random resized crop, flip, float32 [3, 224, 224], batch 64",
        64,
        {
            **_IMAGE_SIDES,
            "tensorflow": ("decode_and_crop",),
            "tfrecord": ("0 workers", "1 worker", "2 workers"),
        },
        {"dali": 1.5, "tensorflow": 2},
        random_columns=("image",),
    ),
    Workload(
        "images-uint8",
        "images-uint8",
        "images",
        "images: the same, uint8 [3, 224, 224]",
        64,
        _IMAGE_SIDES,
        {"dali": 2},
        random_columns=("image",),
    ),
)

_IN_COLUMNS = ("make_dataloader", "collate", "torch_collate")
_STREAMS = ("stream_collate", "stream_torch")
_WAYS = (*_IN_COLUMNS, *_STREAMS, "ds_i")
_TF_BATCHES = ("parse_example",)
_TF_SINGLES = ("parse_single_example", "parse_single_example, batched")


def _each(
    names: tuple[str, ...], side: str, variants: tuple[str, ...], ratio: float
) -> tuple[Bar, ...]:
    return tuple(Bar((name,), side, variants, ratio) for name in names)


def _numbers(
    name: str, corpus: str, title: str, size: int, doors: tuple[Bar, ...], more: str = ""
) -> Workload:
    variants = {"ours": (*_WAYS, *more.split()), "tensorflow": (*_TF_BATCHES, *_TF_SINGLES)}
    return Workload(f"doors-{name}", "doors", corpus, title, size, variants, doors=doors)


_SCALARS = (
    *_each(_IN_COLUMNS, "tensorflow", _TF_BATCHES, 5),
    *_each(_STREAMS, "tensorflow", _TF_BATCHES, 1.2),
    Bar(("ds_i",), "ours", ("its_tensors",), 1 / 1.5, as_limit=True),
    *_each(("ds_i",), "tensorflow", _TF_SINGLES, 0.7),
)
_TOKENS = (
    *_each(_IN_COLUMNS, "tensorflow", _TF_BATCHES, 3),
    *_each(_STREAMS, "tensorflow", _TF_BATCHES, 2),
)
_IMAGES = {
    "ours": (
        "v2_process",
        "v2_threads",
        "v2_workers",
        "crop_process",
        "crop_threads",
        "crop_workers",
    ),
    "dali": ("2 threads",),
}
_DOORS = (
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
        {
            "ours": ("padded", "padded_plain", "jagged"),
            "tensorflow": ("padded_batch", "parse_example, padded"),
        },
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
            *_each(
                ("make_dataloader", "collate", "sequence_function"),
                "tensorflow",
                ("parse_sequence_example",),
                2,
            ),
            *_each(("ds_i",), "tensorflow", ("parse_single_sequence_example",), 2),
        ),
    ),
    Workload(
        "doors-tfds",
        "doors",
        "tfds",
        "TFDS: nested features, boxes, texts, a JPEG of 64 x 64, batches of 32",
        32,
        {
            "ours": ("make_dataloader", "collate", "ds_i"),
            "tensorflow": ("as_numpy", "as_numpy, ragged_batch"),
        },
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
        "tfd_utils": tuple(
            variant for variant in (*singles, *batches) if variant.startswith("example")
        ),
        "array_record": tuple(
            variant for variant in (*singles, *batches) if variant.startswith("raw")
        ),
    }
    doors = (
        Bar((variant,), side, (variant,), 1)
        for side, variants in peers.items()
        for variant in variants
    )
    return Workload(
        f"random-{name}",
        "random",
        f"random-{name}",
        f"records of {name.replace('B', ' B').replace('K ', ' K')}, at random",
        0,
        {"ours": (*singles, *batches), **peers},
        doors=tuple(doors),
    )


_IN_WORKERS = ("with_collate", "with_torch_collate", "with_stream", "with_make_dataloader")


def _workers(name: str, corpus: str, title: str, size: int) -> Workload:
    """With two workers, on two cores."""
    variants = {"ours": ("with_none", *_IN_WORKERS), "tensorflow": _TF_BATCHES}
    bars = _each(_IN_WORKERS, "tensorflow", _TF_BATCHES, 3)
    return Workload(f"workers-{name}", "workers", corpus, title, size, variants, doors=bars)


def _hand_over(megabytes: int, ratio: float) -> Workload:
    """A worker does nothing but to send the same batch again and again."""
    title = f"ready batches of {megabytes} MB, two workers"
    variants = {"ours": ("handed_over", "by_torch")}
    bars = _each(("handed_over",), "ours", ("by_torch",), ratio)
    return Workload(
        f"workers-{megabytes}MB", "workers", "embeddings", title, 1, variants, doors=bars
    )


_WORKERS = (
    _workers("scalars", "tabular", "40 scalars, batches of 1,024", 1024),
    _workers("tokens", "many-tokens", "2,048 tokens, batches of 256", 256),
    _workers("floats", "embeddings", "1,024 floats, batches of 256", 256),
    Workload(
        "workers-images",
        "workers",
        "few-images",
        "images: random resized crop, flip, float32 [3, 224, 224], batches of 64",
        64,
        {"ours": ("crop_process", "crop_threads", "crop_workers")},
        random_columns=("image",),
        doors=(Bar(("crop_workers",), "ours", ("crop_threads",), 0.95),),
    ),
    _hand_over(1, 10),
    _hand_over(38, 3),
)

WORKLOADS = {
    one.name: one
    for one in (*_SUMMARY, *_DOORS, *_WORKERS, *map(_random, RANDOM_SIZES), *COMPRESSED)
}


def columns_of(corpus: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By feature: "float", "int" or "byte", and its shape."""
    if corpus == "tabular":
        return {f"f{n:02}": ("float", ()) for n in range(13)} | {
            f"i{n:02}": ("int", ()) for n in range(27)
        }
    if corpus in ("tokens", "many-tokens"):
        return {"tokens": ("int", (2048,))}
    if corpus == "embeddings":
        return {"id": ("int", ()), "embedding": ("float", (1024,))}
    if corpus in ("images", "few-images"):
        return {"image": ("byte", ()), "label": ("int", ())}
    raise ValueError(f"no corpus {corpus!r}")


def only_rows(workload: Workload, rows: Collection[str]) -> Workload | None:
    """The workload with the rows of these names, and what they are held against; None where there
    is no such row.
    """
    short = workload.name
    for prefix in ("doors-", "workers-", "compressed-"):
        short = short.removeprefix(prefix)
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
