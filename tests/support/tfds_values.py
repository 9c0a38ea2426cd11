"""Compares samples with the values that TFDS read, as `data/tfds/oracle.py` wrote them down."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import torch

from torch_tfrecord import RaggedTensor

DATA = Path(__file__).parents[1] / "data" / "tfds"
EXPECTED = json.loads(gzip.decompress((DATA / "expected.json.gz").read_bytes()))


def directory(name):
    return DATA / EXPECTED[name]["directory"]


def leaf(sample, path):
    """The value under a path; a name may itself hold a slash."""
    if path in sample:
        return sample[path]
    for name in sample:
        if path.startswith(f"{name}/"):
            return leaf(sample[name], path[len(name) + 1 :])
    raise KeyError(path)


def paths(sample, prefix=""):
    for name, value in sample.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}/")
        else:
            yield prefix + name


def assert_equal(found, expected, where):
    """A value of our own, in TFDS's layout, against one of the oracle's."""
    if "flat" in expected:
        assert_ragged(found, expected, where)
    elif expected["dtype"] == "string":
        assert strings(found) == [bytes.fromhex(item) for item in expected["values"]], where
    else:
        array = found.as_subclass(torch.Tensor).contiguous().numpy()
        assert (str(array.dtype), list(array.shape)) == (expected["dtype"], expected["shape"]), (
            where
        )
        if "sha256" in expected:
            assert hashlib.sha256(array.tobytes()).hexdigest() == expected["sha256"], where
        elif array.dtype.kind == "f":
            bits = b"".join(bytes.fromhex(item)[::-1] for item in expected["values"])
            assert array.tobytes() == bits, where
        else:
            assert array.ravel().tolist() == expected["values"], where


def assert_ragged(found, expected, where):
    if isinstance(found, list):
        splits = np.cumsum([0, *map(len, found)]).tolist()
        assert splits == expected["splits"][0], where
        assert strings(found) == [bytes.fromhex(item) for item in expected["flat"]["values"]], where
        return
    flat = found.flat_values if isinstance(found, RaggedTensor) else found.values()
    splits = found.row_splits if isinstance(found, RaggedTensor) else [found.offsets()]
    assert [part.tolist() for part in splits] == expected["splits"], where
    assert_equal(flat, expected["flat"], where)


def strings(value):
    if isinstance(value, (str, bytes)):
        return [value.encode() if isinstance(value, str) else value]
    return [item for inner in value for item in strings(inner)]


def assert_same(one, two, where=""):
    """Two samples of our own, to the last bit."""
    if isinstance(one, dict):  # a sample of a batch is one of its own kind
        assert isinstance(two, dict), where
        assert one.keys() == two.keys(), where
        for name in one:
            assert_same(one[name], two[name], f"{where}/{name}")
        return
    assert type(one) is type(two), where
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two), where
        for left, right in zip(one, two, strict=True):
            assert_same(left, right, where)
    elif isinstance(one, RaggedTensor):
        assert_same([one.flat_values, *one.row_splits], [two.flat_values, *two.row_splits], where)
    elif isinstance(one, torch.Tensor) and one.is_nested:
        assert_same([one.values(), one.offsets()], [two.values(), two.offsets()], where)
    elif isinstance(one, torch.Tensor):
        left, right = (item.as_subclass(torch.Tensor).contiguous().numpy() for item in (one, two))
        assert (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        ), where
    else:
        assert one == two, where
