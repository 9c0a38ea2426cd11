"""The stored results of TensorFlow's parsers, and their specs as ours."""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import torch

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)

CASES = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "data" / "example_cases.json.gz").read_bytes())
)["cases"]


def unbase64(text):
    return base64.b64decode(text)


def golden_values(array):
    """A stored array as numpy array (bit for bit) or list of bytes, flat."""
    if array["dtype"] == "string":
        return [unbase64(value) for value in array["values"]]
    if array["dtype"] == "float32":
        return np.array([int(value, 16) for value in array["values"]], dtype=np.uint32).view(
            np.float32
        )
    return np.array(array["values"], dtype=array["dtype"])


def golden_dtype(name):
    return None if name is None else bytes if name == "string" else getattr(torch, name)


def golden_default(default):
    if default is None:
        return None
    values = list(golden_values(default))
    return values if default["shape"] else values[0]


def golden_spec(spec, **more):
    kind, dtype = spec["kind"], golden_dtype(spec["dtype"])
    if kind == "VarLen":
        return VarLenFeature(dtype)
    if kind == "FixedLen":
        return FixedLenFeature(spec["shape"], dtype, golden_default(spec["default"]))
    if kind == "FixedLenSequence":
        return FixedLenSequenceFeature(
            spec["shape"], dtype, spec["allow_missing"], golden_default(spec["default"])
        )
    if kind == "Sparse":
        return SparseFeature(
            spec["index_key"],
            spec["value_key"],
            dtype,
            spec["size"],
            spec["already_sorted"],
            **more,
        )
    partitions = [
        getattr(RaggedFeature, part["kind"])(part["length" if "length" in part else "key"])
        for part in spec["partitions"]
    ]
    validate = more.get("validate", spec["validate"])
    return RaggedFeature(
        dtype, spec["value_key"], partitions, golden_dtype(spec["row_splits_dtype"]), validate
    )


def golden_specs(case, name, **more):
    specs = case[name]
    return (
        None if specs is None else {key: golden_spec(spec, **more) for key, spec in specs.items()}
    )
