"""The workloads of the table "compressed": raw records of gzip and zlib files, beside tf.data."""

from __future__ import annotations

from workload import Bar, Workload

__all__ = ["COMPRESSED", "COMPRESSION_TYPES"]

# By file. "gzip-members" is as our writer writes it, the others are one stream, as of other
# writers.
COMPRESSION_TYPES = {
    "gzip-one": "GZIP",
    "gzip-members": "GZIP",
    "zlib": "ZLIB",
    "gzip-large": "GZIP",
}

_VARIANTS = {
    "ours": ("stream", "one_by_one", "in_order", "in_blocks", "index", "index_of_headers"),
    "tensorflow": ("batches", "shuffle buffer of 10,000"),
}
_BATCHES, _SHUFFLED = (_VARIANTS["tensorflow"][:1], _VARIANTS["tensorflow"][1:])
_BARS = (
    Bar(("stream",), "tensorflow", _BATCHES, 2),
    Bar(("one_by_one",), "tensorflow", _BATCHES, 2),
    Bar(("in_blocks",), "ours", ("in_order",), 0.5),
    Bar(("index",), "tensorflow", _BATCHES, 1.5),
    Bar(("index_of_headers",), "tensorflow", _BATCHES, 1.5),
)
_SHUFFLED_BAR = Bar(("in_blocks",), "tensorflow", _SHUFFLED, 3)


def _whole(name: str, corpus: str, title: str, bars: tuple[Bar, ...]) -> Workload:
    title = f"{title}, records of 2.4 KB, batches of 1,024"
    return Workload(f"compressed-{name}", "compressed", corpus, title, 1024, _VARIANTS, doors=bars)


COMPRESSED = (
    _whole("one", "gzip-one", "gzip, one member", _BARS),
    _whole("members", "gzip-members", "gzip by `TFRecordWriter`", (*_BARS, _SHUFFLED_BAR)),
    _whole("zlib", "zlib", "zlib, one stream", _BARS),
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
