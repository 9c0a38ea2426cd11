"""What a loader's thread asks of torch: each of torch's own methods lets go of Python's lock, and beside
a thread that computes in Python the loader may wait 5 ms for it.

Covers loading/collating, lengths/padding, lengths/packing.
"""

import sys

import numpy as np
import pytest
import torch
from batches import assert_same

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    PackedCollate,
    PaddedCollate,
    RaggedFeature,
    RawTensor,
    Source,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
)

ROWS = [
    {
        "number": n,
        "vector": np.arange(n, n + 6),
        "floats": np.linspace(-n, n, 6, dtype=np.float32),
        "many": np.arange(n % 4),
        "rows": np.arange(2 * (n % 3), dtype=np.float32),
        "raw": np.arange(n, n + 4, dtype=np.int16).tobytes(),
    }
    for n in range(8)
]
ROWS[0]["default"] = [7, 8]
FEATURES = {
    "one": FixedLenFeature((), torch.int64, key="number"),
    "row": FixedLenFeature((1,), torch.int64, key="number"),
    "matrix": FixedLenFeature((2, 3), torch.float32, key="floats"),
    "int32": FixedLenFeature((6,), torch.int32, key="vector"),
    "uint8": FixedLenFeature((3, 2), torch.uint8, key="vector"),
    "float16": FixedLenFeature((6,), torch.float16, key="floats"),
    "float64": FixedLenFeature((6,), torch.float64, key="floats"),
    "default": FixedLenFeature((2,), torch.int16, (3, -4)),
    "text": FixedLenFeature((), bytes, key="raw"),
    "raw": RawTensor((2, 2), torch.int16),
    "source": Source("position"),
}
RAGGED = {
    "many": VarLenFeature(torch.int64),
    "short": VarLenFeature(torch.int16, key="many"),
    "rows": FixedLenSequenceFeature((2,), torch.float32, allow_missing=True),
    "ragged": RaggedFeature(torch.int64, "many"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("lock") / "data.tfrecord"
    with TFRecordWriter(path) as writer:
        for row in ROWS:
            writer.write(encode_example(row))
    return path


def torch_calls(function):
    """The result, and the names of torch's methods and functions that were called."""
    called = set()

    def note(frame, event, argument):
        if event == "c_call":
            owner = getattr(argument, "__self__", None)
            if isinstance(owner, torch.Tensor) or getattr(owner, "__module__", "") == "torch._C":
                called.add(argument.__name__)

    sys.setprofile(note)
    try:
        found = function()
    finally:
        sys.setprofile(None)
    return found, called


# Of a tensor's own memory: microseconds, and no wait was seen beside a busy thread.
HARMLESS = {
    "contiguous",
    "dim",
    "is_conj",
    "is_neg",
    "numpy",
    "stride",
    "tolist",
    "untyped_storage",
}


TOKENS = {name: RAGGED[name] for name in ("many", "short")}


@pytest.mark.parametrize(
    ("features", "collate_fn", "others"),
    [
        (FEATURES, collate, HARMLESS),
        (FEATURES, PaddedCollate(), HARMLESS),
        (RAGGED, PaddedCollate(padding_values=-1, multiple_of=8), set()),
        (TOKENS, PackedCollate(8, features=[*TOKENS]), set()),
        (TOKENS, PackedCollate(8, layout="blocks", features=[*TOKENS]), set()),
    ],
    ids=["columns", "padded", "ragged", "packed", "blocks"],
)
def test_torch_makes_tensors_of_arrays_and_nothing_else(path, features, collate_fn, others):
    def load():
        return [collate_fn(batch) for batch in dataset._load_batches([[5, 1, 6], [0, 7]])]

    dataset = TFRecordDataset(path, features)
    load()  # what is looked up once
    batches, called = torch_calls(load)
    assert called - others <= {"from_numpy", "_make_wrapper_subclass"}
    for batch, positions in zip(batches, ([5, 1, 6], [0, 7]), strict=True):
        assert_same(batch, collate_fn([dict(dataset[position]) for position in positions]))
