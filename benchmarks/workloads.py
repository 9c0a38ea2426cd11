"""What is measured: the records, the batch, and by how much we want to be ahead. Read by every side."""

from __future__ import annotations

from doors import DOORS
from workload import Workload

__all__ = ["CROP", "MEAN", "PEERS", "STD", "WORKLOADS", "Workload", "columns_of"]

# ImageNet's, for pixels in 0..1; the side of the square that is cut out.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
CROP = 224

PEERS = ("tensorflow", "dali", "tfrecord", "random")


_LOADERS = {
    "ours": ("in process", "2 workers", "shuffled", "shuffled, 2 workers"),
    "tensorflow": ("map, prefetch",),
    "tfrecord": ("0 workers", "1 worker", "2 workers"),
}
_IMAGES = {
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
    return Workload(f"index-{corpus}", "index", corpus, title, 0, _INDEXES, {"tfrecord": 10}, gigabytes_bar)


_ALL = (
    Workload("tabular", "tabular", "tabular", "tabular: 40 scalars, batch 1,024", 1024, _LOADERS, {"best": 5}),
    Workload("tokens", "tokens", "tokens", "tokens: 2,048 int64, batch 64", 64, _LOADERS, {"best": 3}),
    Workload(
        "embeddings", "embeddings", "embeddings", "embeddings: 1,024 float32, batch 256", 256, _LOADERS, {"best": 5}
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
        {**_IMAGES, "tensorflow": ("decode_and_crop",), "tfrecord": ("0 workers", "1 worker", "2 workers")},
        {"dali": 1.5, "tensorflow": 2},
        random_columns=("image",),
    ),
    Workload(
        "images-uint8",
        "images-uint8",
        "images",
        "images: the same, uint8 [3, 224, 224]",
        64,
        _IMAGES,
        {"dali": 2},
        random_columns=("image",),
    ),
)
WORKLOADS = {workload.name: workload for workload in (*_ALL, *DOORS)}


def columns_of(corpus: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By feature: "float", "int" or "byte", and its shape."""
    if corpus == "tabular":
        return {f"f{n:02}": ("float", ()) for n in range(13)} | {f"i{n:02}": ("int", ()) for n in range(27)}
    if corpus in ("tokens", "many-tokens"):
        return {"tokens": ("int", (2048,))}
    if corpus == "embeddings":
        return {"id": ("int", ()), "embedding": ("float", (1024,))}
    if corpus in ("images", "few-images"):
        return {"image": ("byte", ()), "label": ("int", ())}
    raise ValueError(f"no corpus {corpus!r}")
