"""The measurements: the records, the ways to read them, and by how much we want to be ahead. Read by every side.

A row of a table is a variant. To add one, name it in its workload's `variants`, what it should reach in
`bars`, its words in `TITLES`, and write it in each of `sides/`. ``compare.py doors --rows ds_i,tokens``
takes the rows of that name in all workloads, and all rows of that workload; ``scalars.ds_i`` is one row.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

__all__ = [
    "COMPRESSED",
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
# "gzip-members" is as our writer writes it, "gzip-one" is one stream, as of other writers.
COMPRESSED = ("gzip-one", "gzip-members")

# The words for a variant.
TITLES = {
    "make_dataloader": "`make_dataloader(num_workers=0)`",
    "collate": "`DataLoader(TFRecordDataset, collate_fn=collate)`",
    "torch_collate": "`DataLoader(TFRecordDataset)`, torch's collate",
    "stream_collate": "`DataLoader(TFRecordIterableDataset, collate_fn=collate)`",
    "ds_i": "`ds[i]`",
    "padded": "`make_dataloader(collate_fn=PaddedCollate())`",
    "padded_plain": "`DataLoader(TFRecordDataset, collate_fn=PaddedCollate())`",
    "sequence_function": "`parse_sequence_example` of raw records",
    "v2_process": "v2 transforms, `DataLoader`, in process",
    "v2_threads": "v2 transforms, `make_dataloader(num_threads=2)`",
    "v2_workers": "v2 transforms, `make_dataloader(num_workers=2)`",
    "crop_process": "`Image(crop=...)`, `DataLoader`, in process",
    "crop_threads": "`Image(crop=...)`, `make_dataloader(num_threads=2)`",
    "crop_workers": "`Image(crop=...)`, `make_dataloader(num_workers=2)`",
    "with_collate": "`DataLoader(TFRecordDataset, num_workers=2, collate_fn=collate)`",
    "with_stream": "`DataLoader(TFRecordIterableDataset(batch_size=...), batch_size=None, num_workers=2)`",
    "with_make_dataloader": "`make_dataloader(num_workers=2)`",
    "handed_over": "`collate`'s batch",
    "by_torch": "the same tensors in a plain dict, by torch's own way",
    "raw": "`ds.raw(i)`",
    "example": "`ds[i]`, one feature of bytes",
    "raw_64": "64 raw records",
    "example_64": "64 parsed records",
    "stream": "`TFRecordIterableDataset(batch_size=1024)`",
    "read_records": "`read_records`",
    "in_order": "`make_dataloader(shuffle=False)`",
    "on_one_core": "`make_dataloader(shuffle=False)`, bound to one core",
    "in_blocks": '`make_dataloader(shuffle="blocks")`',
    "index": "`build_index`",
    "write": "`TFRecordWriter(...).write(row)`",
    "write_features": "`TFRecordWriter(..., features=features).write(row)`",
    "write_arrow": "`write_arrow(table)`",
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
        table: "whole", "doors" (every way into training), "random", "compressed" or "writing".
        corpus: Name of the files it reads.
        title: The table's text.
        batch_size: Records in a batch; 0 where there are none.
        variants: By side, the ways it is run.
        bars: What we want.
        random_columns: Outputs that are compared by their statistics, since each side draws its own crops.
    """

    name: str
    table: str
    corpus: str
    title: str
    batch_size: int
    variants: dict[str, tuple[str, ...]]
    bars: tuple[Bar, ...] = ()
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
_STREAMS = ("stream_collate",)
_IN_WORKERS = ("with_collate", "with_stream", "with_make_dataloader")
_TF_BATCHES = ("parse_example",)


def _numbers(
    name: str,
    corpus: str,
    title: str,
    size: int,
    wanted: tuple[float, float, float],
) -> Workload:
    """Columns of fixed shape; `wanted` of the loaders in one process, of streams, and in workers."""
    ours = ((_IN_COLUMNS, _STREAMS, _IN_WORKERS), wanted)
    variants = {"ours": sum(ours[0], ()), "tensorflow": _TF_BATCHES, "tfrecord": ("0 workers",)}
    bars = [
        bar for names, ratio in zip(*ours, strict=True) for bar in _each(ratio, names, _TF_BATCHES)
    ]
    return Workload(f"doors-{name}", "doors", corpus, title, size, variants, tuple(bars))


_PICTURES = "images: random resized crop, flip, float32 [3, 224, 224], batches of 64"
_LISTS = "3 features of 1 to 59 numbers, batches of 256"
_DOORS = (
    _numbers("scalars", "tabular", "40 scalars, batches of 1,024", 1024, (5, 1.2, 3)),
    _numbers("tokens", "tokens", "2,048 tokens, batches of 256", 256, (3, 3.5, 3)),
    _numbers("floats", "embeddings", "1,024 floats, batches of 256", 256, (4, 4, 3)),
    Workload(
        "doors-samples",
        "doors",
        "tabular",
        "40 scalars, a sample at a time",
        1024,
        {"ours": ("ds_i",), "tensorflow": ("parse_single_example, batched",)},
        _each(0.7, ("ds_i",), ("parse_single_example, batched",)),
    ),
    Workload(
        "doors-ragged",
        "doors",
        "ragged",
        f"{_LISTS}, ragged",
        256,
        {"ours": ("make_dataloader", "collate"), "tensorflow": ("ragged",)},
        _each(2.5, ("make_dataloader", "collate"), ("ragged",)),
    ),
    Workload(
        "doors-padded",
        "doors",
        "ragged",
        f"{_LISTS}, padded",
        256,
        {
            "ours": ("padded", "padded_plain"),
            "tensorflow": ("padded_batch", "parse_example, padded"),
        },
        _each(2.5, ("padded", "padded_plain"), ("padded_batch", "parse_example, padded")),
    ),
    Workload(
        "doors-texts",
        "doors",
        "texts",
        "0 to 19 words as bytes, as many numbers, a text, batches of 256",
        256,
        {"ours": _IN_COLUMNS, "tensorflow": ("ragged", "sparse")},
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
                3, ("make_dataloader", "collate", "sequence_function"), ("parse_sequence_example",)
            ),
            *_each(3, ("ds_i",), ("parse_single_sequence_example",)),
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
            *_each(3, ("make_dataloader", "collate"), ("as_numpy, ragged_batch",)),
            *_each(1, ("ds_i",), ("as_numpy",)),
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
            "ours": tuple(
                f"{kind}_{way}"
                for kind in ("v2", "crop")
                for way in ("process", "threads", "workers")
            ),
            "dali": ("2 threads",),
            "tensorflow": ("decode_and_crop",),
            "tfrecord": ("0 workers",),
        },
        (
            Bar(("v2_process",), "ours", ("crop_process",), 0.7),
            Bar(("v2_threads",), "ours", ("crop_threads",), 0.7),
            Bar(("crop_workers",), "ours", ("crop_threads",), 0.95),
            Bar(("v2_workers", "v2_threads"), "dali", ("2 threads",), 1.2),
        ),
        random_columns=("image",),
    ),
    # A worker does nothing but to send the same batch again and again.
    Workload(
        "doors-1MB",
        "doors",
        "embeddings",
        "ready batches of 1 MB, two workers",
        1,
        {"ours": ("handed_over", "by_torch")},
        _each(10, ("handed_over",), ("by_torch",), "ours"),
    ),
)


def _random(name: str) -> Workload:
    raw, parsed = ("raw", "raw_64"), ("example", "example_64")
    peers = {"tfr_reader": (*raw, *parsed), "tfd_utils": parsed, "array_record": raw}
    title = name.replace("B", " B").replace("K ", " K")
    variants = {"ours": (*raw, *parsed), **peers}
    bars = tuple(Bar((one,), side, (one,), 1) for side, ours in peers.items() for one in ours)
    return Workload(f"random-{name}", "random", f"random-{name}", title, 0, variants, bars)


# Raw records of gzip files.

_TF_STREAM, _TF_SHUFFLED = ("batches",), ("shuffle buffer of 10,000",)


def _compressed(name: str, title: str, shuffled: float, *more: str) -> Workload:
    """`shuffled` is wanted of an epoch in blocks; `more` variants are beside `in_order`."""
    ours = ("stream", "in_order", *more, "in_blocks", "index")
    variants = {"ours": ours, "tensorflow": (*_TF_STREAM, *_TF_SHUFFLED)}
    bars = (
        *_each(2.5, ("stream", "in_order"), _TF_STREAM),
        *(Bar(("in_order",), "ours", (one,), 1.8) for one in more),
        *_each(0.8, ("in_blocks",), ("in_order",), "ours"),
        *_each(shuffled, ("in_blocks",), _TF_SHUFFLED),
        *_each(1.5, ("index",), _TF_STREAM),
    )
    return Workload(f"compressed-{name}", "compressed", f"gzip-{name}", title, 1024, variants, bars)


_COMPRESSED = (
    _compressed("one", "gzip, one member", 1),
    _compressed("members", "gzip by `TFRecordWriter`", 3, "on_one_core"),
)

# Rows that are in memory, to a file in memory.


def _writing(name: str, corpus: str, title: str, wanted: dict[str, float], *peers: str) -> Workload:
    variants = {"ours": (*wanted,), **dict.fromkeys(("tensorflow", *peers), ("TFRecordWriter",))}
    bars = tuple(Bar((one,), "tensorflow", ("TFRecordWriter",), wanted[one]) for one in wanted)
    return Workload(f"writing-{name}", "writing", corpus, title, 256, variants, bars)


_WRITING = (
    _writing(
        "scalars",
        "rows",
        "40 scalars a row",
        {"write": 5, "write_features": 4, "write_arrow": 50},
        "tfrecord",
    ),
    _writing(
        "tokens", "few-tokens", "2,048 tokens, an array", {"write": 5, "write_arrow": 5}, "tfrecord"
    ),
    _writing("pictures", "images", "JPEGs of 70 KB", {"write": 1.2}),
)

WORKLOADS = {
    one.name: one
    for one in (*_WHOLE, *_DOORS, *map(_random, RANDOM_SIZES), *_COMPRESSED, *_WRITING)
}


def columns_of(corpus: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By feature: "float", "int" or "byte", and its shape."""
    scalars = {f"f{n:02}": "float" for n in range(13)} | {f"i{n:02}": "int" for n in range(27)}
    tabular, tokens = {name: (kind, ()) for name, kind in scalars.items()}, ("int", (2048,))
    return {
        "tabular": tabular,
        "rows": tabular,
        "tokens": {"tokens": tokens},
        "few-tokens": {"tokens": tokens},
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
