"""The measurements: the records, the ways to read them, and by how much we want to be ahead. Read by every side.

A row of a table is a variant. To add one, name it in its workload's `variants`, what it should reach in
`bars`, its words in `TITLES`, and write it in each of `sides/`. ``compare.py doors --rows ds_i,tokens``
takes the rows of that name in all workloads, and all rows of that workload; ``scalars.ds_i`` is one row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

__all__ = [
    "COMPRESSION_TYPES",
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
RANDOM_SIZES = {"100B": 100, "4KB": 4096, "100KB": 100_000}
# By file. "gzip-members" is as our writer writes it, the others are one stream, as of other writers.
COMPRESSION_TYPES = {
    "gzip-one": "GZIP",
    "gzip-members": "GZIP",
    "zlib": "ZLIB",
    "gzip-large": "GZIP",
}

# The words for a variant.
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
    "read_records": "`read_records`",
    "in_order": "`make_dataloader(shuffle=False)`",
    "in_blocks": '`make_dataloader(shuffle="blocks")`',
    "index": "`build_index`",
    "index_of_headers": "`build_index(verify_crc=False)`",
}


@dataclass(frozen=True)
class Bar:
    """How fast variants of ours should be beside variants of a side, which may be ours, too.

    Args:
        ours: Variants of "ours", of which the fastest counts.
        side: Whom they are compared with.
        variants: Of that side; the fastest counts.
        ratio: The least (records a second of ours) / (records a second of the other).
    """

    ours: tuple[str, ...]
    side: str
    variants: tuple[str, ...]
    ratio: float


@dataclass(frozen=True)
class Workload:
    """Rows that read the same file.

    Args:
        name: What ``compare.py`` calls it, after its table.
        table: "whole", "doors" (every way into training), "workers", "random" or "compressed".
        corpus: Name of the files it reads.
        title: The table's text.
        batch_size: Records in a batch; 0 where there are none.
        variants: By side, the ways it is run.
        bars: What we want.
        milliseconds_bar: The most that we want of the median of what is timed one by one, or 0.
        random_columns: Outputs that are compared by their statistics, since each side draws its own crops.
    """

    name: str
    table: str
    corpus: str
    title: str
    batch_size: int
    variants: dict[str, tuple[str, ...]]
    bars: tuple[Bar, ...] = ()
    milliseconds_bar: float = 0
    random_columns: tuple[str, ...] = ()

    def kind(self, variant: str) -> str:
        """Variants of one kind hand out the same values: raw records are another than what is
        parsed from them, and than an index.
        """
        if self.table == "compressed":
            return "index" if variant.startswith("index") else "records"
        return variant.partition("_")[0] if self.table == "random" else ""


def _each(
    ratio: float, ours: tuple[str, ...], variants: tuple[str, ...], side: str = "tensorflow"
) -> tuple[Bar, ...]:
    return tuple(Bar((name,), side, variants, ratio) for name in ours)


# Raw records and indexes of whole files.

_WHOLE = (
    Workload(
        "raw",
        "whole",
        "tabular",
        "raw records of the tabular file, CRC",
        0,
        {
            "ours": ("read_records",),
            "tensorflow": ("batches of 1,024",),
            "tfrecord": ("no CRC, reused buffer",),
        },
        (
            Bar(("read_records",), "tensorflow", ("batches of 1,024",), 3),
            Bar(("read_records",), "tfrecord", ("no CRC, reused buffer",), 2),
        ),
    ),
    *(
        Workload(
            f"index-{corpus}",
            "whole",
            corpus,
            f"index of the {corpus} file, every CRC",
            0,
            {"ours": ("index",), "tfrecord": ("create_index",)},
            (Bar(("index",), "tfrecord", ("create_index",), 10),),
        )
        for corpus in ("tabular", "embeddings", "images")
    ),
)

# Every way into training, in one process and with two workers, on two cores.

_IN_COLUMNS = ("make_dataloader", "collate", "torch_collate")
_STREAMS = ("stream_collate", "stream_torch")
_IN_WORKERS = ("with_collate", "with_torch_collate", "with_stream", "with_make_dataloader")
_TF_BATCHES = ("parse_example",)
_TF_SINGLES = ("parse_single_example", "parse_single_example, batched")


def _numbers(
    name: str, corpus: str, title: str, size: int, bars: tuple[Bar, ...], *more: str
) -> tuple[Workload, Workload]:
    ours = (*_IN_COLUMNS, *_STREAMS, "ds_i", *more)
    doors = {"ours": ours, "tensorflow": (*_TF_BATCHES, *_TF_SINGLES), "tfrecord": ("0 workers",)}
    workers = {"ours": ("with_none", *_IN_WORKERS), "tensorflow": _TF_BATCHES}
    return (
        Workload(f"doors-{name}", "doors", corpus, title, size, doors, bars),
        Workload(
            f"workers-{name}",
            "workers",
            corpus,
            title,
            size,
            workers,
            _each(3, _IN_WORKERS, _TF_BATCHES),
        ),
    )


def _hand_over(megabytes: int, ratio: float) -> Workload:
    """A worker does nothing but to send the same batch again and again."""
    title = f"ready batches of {megabytes} MB, two workers"
    variants = {"ours": ("handed_over", "by_torch")}
    bars = _each(ratio, ("handed_over",), ("by_torch",), "ours")
    return Workload(f"workers-{megabytes}MB", "workers", "embeddings", title, 1, variants, bars)


_CROPS = ("crop_process", "crop_threads", "crop_workers")
_PICTURES = "images: random resized crop, flip, float32 [3, 224, 224], batches of 64"
_DOORS = (
    *_numbers(
        "scalars",
        "tabular",
        "40 scalars, batches of 1,024",
        1024,
        (
            *_each(5, _IN_COLUMNS, _TF_BATCHES),
            *_each(1.2, _STREAMS, _TF_BATCHES),
            Bar(("ds_i",), "ours", ("its_tensors",), 1 / 1.5),
            Bar(("ds_i",), "tensorflow", _TF_SINGLES, 0.7),
        ),
        "its_tensors",
    ),
    *_numbers(
        "tokens",
        "tokens",
        "2,048 tokens, batches of 256",
        256,
        (*_each(3, _IN_COLUMNS, _TF_BATCHES), *_each(2, _STREAMS, _TF_BATCHES)),
    ),
    *_numbers(
        "floats",
        "embeddings",
        "1,024 floats, batches of 256",
        256,
        _each(4, _IN_COLUMNS, _TF_BATCHES),
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
        _each(3, ("padded", "padded_plain"), ("padded_batch",)),
    ),
    Workload(
        "doors-texts",
        "doors",
        "texts",
        "0 to 19 words as bytes, as many numbers, a text, batches of 256",
        256,
        {"ours": (*_IN_COLUMNS, "ds_i"), "tensorflow": ("ragged", "sparse", "ragged, to Python")},
        _each(3, _IN_COLUMNS, ("ragged", "sparse")),
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
        (
            *_each(
                2, ("make_dataloader", "collate", "sequence_function"), ("parse_sequence_example",)
            ),
            *_each(2, ("ds_i",), ("parse_single_sequence_example",)),
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
        (
            *_each(2, ("make_dataloader", "collate", "ds_i"), ("as_numpy",)),
            *_each(2, ("make_dataloader", "collate"), ("as_numpy, ragged_batch",)),
        ),
        random_columns=("bbox", "image"),
    ),
    Workload(
        "doors-transforms",
        "doors",
        "images",
        _PICTURES,
        64,
        {
            "ours": ("v2_process", "v2_threads", "v2_workers", *_CROPS),
            "dali": ("2 threads",),
            "tensorflow": ("decode_and_crop",),
            "tfrecord": ("0 workers",),
        },
        (
            Bar(("v2_process",), "ours", ("crop_process",), 0.7),
            Bar(("v2_threads",), "ours", ("crop_threads",), 0.7),
            Bar(("v2_workers", "v2_threads"), "dali", ("2 threads",), 1.2),
        ),
        random_columns=("image",),
    ),
    Workload(
        "workers-images",
        "workers",
        "images",
        _PICTURES,
        64,
        {"ours": _CROPS},
        (Bar(("crop_workers",), "ours", ("crop_threads",), 0.95),),
        random_columns=("image",),
    ),
    _hand_over(1, 10),
    _hand_over(38, 3),
)


def _random(name: str) -> Workload:
    raw, parsed = ("raw", "raw_64", "raw_1024"), ("example", "example_64", "example_1024")
    peers = {"tfr_reader": (*raw, *parsed), "tfd_utils": parsed, "array_record": raw}
    title = f"records of {name.replace('B', ' B').replace('K ', ' K')}, at random"
    variants = {"ours": (*raw, *parsed), **peers}
    bars = tuple(Bar((one,), side, (one,), 1) for side, ours in peers.items() for one in ours)
    return Workload(f"random-{name}", "random", f"random-{name}", title, 0, variants, bars)


# Raw records of gzip and zlib files.

_TF_STREAM, _TF_SHUFFLED = ("batches",), ("shuffle buffer of 10,000",)


def _compressed(name: str, corpus: str, title: str, *more: Bar) -> Workload:
    title = f"{title}, records of 2.4 KB, batches of 1,024"
    ours = ("stream", "read_records", "in_order", "in_blocks", "index", "index_of_headers")
    variants = {"ours": ours, "tensorflow": (*_TF_STREAM, *_TF_SHUFFLED)}
    bars = (
        *_each(2, ("stream", "read_records"), _TF_STREAM),
        Bar(("in_blocks",), "ours", ("in_order",), 0.5),
        *_each(1.5, ("index", "index_of_headers"), _TF_STREAM),
        *more,
    )
    return Workload(f"compressed-{name}", "compressed", corpus, title, 1024, variants, bars)


_COMPRESSED = (
    _compressed("one", "gzip-one", "gzip, one member"),
    _compressed(
        "members",
        "gzip-members",
        "gzip by `TFRecordWriter`",
        Bar(("in_blocks",), "tensorflow", _TF_SHUFFLED, 3),
    ),
    _compressed("zlib", "zlib", "zlib, one stream"),
    Workload(
        "compressed-large",
        "compressed",
        "gzip-large",
        "gzip, one member of 1 GB, records of 23 KB, at random",
        0,
        {"ours": ("ds_i",), "tensorflow": ("a pass that keeps 1,024",)},
        milliseconds_bar=5,
    ),
)

WORKLOADS = {one.name: one for one in (*_WHOLE, *_DOORS, *map(_random, RANDOM_SIZES), *_COMPRESSED)}


def columns_of(corpus: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By feature: "float", "int" or "byte", and its shape."""
    return {
        "tabular": {f"f{n:02}": ("float", ()) for n in range(13)}
        | {f"i{n:02}": ("int", ()) for n in range(27)},
        "tokens": {"tokens": ("int", (2048,))},
        "embeddings": {"id": ("int", ()), "embedding": ("float", (1024,))},
        "images": {"image": ("byte", ()), "label": ("int", ())},
    }[corpus]


def only_rows(workload: Workload, rows: Collection[str]) -> Workload | None:
    """The workload with the rows of these names, and what they are compared with; None where there is no such row."""
    short = workload.name.removeprefix(f"{workload.table}-")
    if {short, workload.name} & {*rows}:
        return workload
    wanted = {name for name in workload.variants["ours"] if {name, f"{short}.{name}"} & {*rows}}
    bars = tuple(bar for bar in workload.bars if wanted & {*bar.ours})
    needed = {("ours", name) for name in wanted} | {
        (side, name)
        for bar in bars
        for side, names in (("ours", bar.ours), (bar.side, bar.variants))
        for name in names
    }
    variants = {
        side: tuple(name for name in names if (side, name) in needed)
        for side, names in workload.variants.items()
    }
    return replace(workload, variants=variants, bars=bars) if wanted else None
