"""features_from_meta: samples, batches and loaders, and the text of errors. That the values are
those of MeshGraphNets' own program, test_recipes_science says.
"""

import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torch_tfrecord import (
    LimitExceededError,
    ParseError,
    RaggedTensor,
    RawTensor,
    TFRecordDataset,
    TFRecordWriter,
    collate,
    encode_example,
    features_from_meta,
    make_dataloader,
    parse_example,
)

STEPS = 3
FIELDS = {
    "cells": {"type": "static", "shape": [1, -1, 3], "dtype": "int32"},
    "position": {"type": "dynamic", "shape": [STEPS, -1, 2], "dtype": "float64"},
    "mesh": {"type": "dynamic_varlen", "shape": [-1, 2], "dtype": "int16"},
}
LENGTHS = [(1, 0, 2), (2, 2, 2), (0, 0, 0)]


def written(folder, **changes):
    meta = {"trajectory_length": STEPS, "field_names": [], "features": FIELDS} | changes
    path = folder / "meta.json"
    path.write_text(json.dumps({key: value for key, value in meta.items() if value is not None}))
    return path


def record(number, **changes):
    lengths = np.array(LENGTHS[number], np.int32)
    values = {
        "cells": np.arange(6, dtype=np.int32) + number,
        "position": np.arange(4.0 * STEPS) / (1 + number),
        "mesh": np.arange(2 * lengths.sum(), dtype=np.int16) - number,
        "length_mesh": lengths,
    }
    return encode_example({key: value.tobytes() for key, value in (values | changes).items()})


@pytest.fixture
def features(tmp_path):
    return features_from_meta(written(tmp_path))


@pytest.fixture
def ds(tmp_path, features):
    with TFRecordWriter(tmp_path / "train.tfrecord") as writer:
        for number in range(3):
            writer.write(record(number))
    return TFRecordDataset(tmp_path / "train.tfrecord", features)


def test_samples(ds):
    sample = ds[1]
    assert [*sample] == ["cells", "position", "mesh"]
    one = torch.arange(1, 7, dtype=torch.int32).view(1, 2, 3)
    assert torch.equal(sample["cells"], one.repeat(STEPS, 1, 1))
    assert torch.equal(sample["position"], torch.arange(12.0).double().view(3, 2, 2) / 2)
    assert [row.tolist() for row in sample["mesh"].unbind()] == [
        [[-1, 0], [1, 2]],
        [[3, 4], [5, 6]],
        [[7, 8], [9, 10]],
    ]
    assert sample["mesh"].dtype == torch.int16
    assert [row.shape for row in ds[2]["mesh"].unbind()] == [(0, 2)] * STEPS


def check_batch(batch):
    assert batch["cells"][:, :, 0, 0].tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert batch["position"].shape == (3, STEPS, 2, 2)
    assert isinstance(batch["mesh"], RaggedTensor)
    assert [list(map(len, each)) for each in batch["mesh"].to_list()] == [*map(list, LENGTHS)]
    batch["cells"] += 1  # of several, copies


def test_batches(ds, features):
    check_batch(parse_example([record(number) for number in range(3)], features))
    check_batch(next(iter(DataLoader(ds, 3, collate_fn=collate))))
    check_batch(next(iter(make_dataloader(ds, 3, shuffle=False))))
    assert parse_example([], features)["mesh"] == []


@pytest.mark.slow
def test_workers(ds):
    check_batch(next(iter(DataLoader(ds, 3, collate_fn=collate, num_workers=1))))
    check_batch(next(iter(make_dataloader(ds, 3, shuffle=False, num_workers=1))))
    (sample, *_) = DataLoader(ds, None, num_workers=1)
    assert sample["cells"].shape == (STEPS, 2, 3)
    assert sample["mesh"].offsets().tolist() == [0, 1, 1, 3]


def test_specs(features):
    assert features["position"] == RawTensor((STEPS, -1, 2), torch.float64)
    assert pickle.loads(pickle.dumps(features)) == features
    assert len({features["cells"], features["mesh"]}) == 2


def test_a_batch_of_copies_has_a_limit(tmp_path, ds):
    features = features_from_meta(written(tmp_path, trajectory_length=10**15))
    assert TFRecordDataset(ds.files, {"cells": features["cells"]})[0]["cells"].stride(0) == 0
    with pytest.raises(
        LimitExceededError, match=r"^feature 'cells' \(RawTensor\): expected a batch of at most"
    ):
        parse_example([record(0), record(1)], {"cells": features["cells"]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"mesh": np.zeros(8, np.int16)},
            "feature 'mesh' (RawTensor, key 'length_mesh'): the rows and the values do not form a "
            "valid RaggedTensor: expected rows that end at 4, got 3",
        ),
        (
            {"length_mesh": np.array([5, -2, 0], np.int32)},
            "feature 'mesh' (RawTensor, key 'length_mesh'): the rows and the values do not form a "
            "valid RaggedTensor: expected row ends that never decrease, got a row of negative "
            "length",
        ),
        (
            {"length_mesh": np.zeros(5, np.int8)},
            "feature 'mesh' (RawTensor, key 'length_mesh'): expected a multiple of 4 bytes for "
            "shape [-1] of int32, got 5",
        ),
        (
            {"cells": np.zeros(7, np.int32)},
            "feature 'cells' (RawTensor): expected a multiple of 12 bytes for shape [1, -1, 3] of "
            "int32, got 28",
        ),
    ],
)
def test_records_that_do_not_fit(features, changes, said):
    with pytest.raises(ParseError) as caught:
        parse_example([record(0), record(0, **changes)], features)
    assert str(caught.value) == f"record 1: {said}"


def test_a_record_without_lengths(features):
    mesh = encode_example({"mesh": b""})
    with pytest.raises(ParseError, match=r"key 'length_mesh' is required .* the record has 'mesh'"):
        parse_example([mesh], {"mesh": features["mesh"]})


WRONG = (
    "expected a 'type' of 'static', 'dynamic' or 'dynamic_varlen', a 'shape' of integers, which "
    "begins with 1 if static, and a 'dtype' such as 'float32', got "
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"type": "moving"}, WRONG + "{'dtype': 'int32', 'shape': [1, -1, 3], 'type': 'moving'}"),
        ({"shape": [2, 3]}, WRONG + "{'dtype': 'int32', 'shape': [2, 3], 'type': 'static'}"),
        ({"shape": "n"}, WRONG + "{'dtype': 'int32', 'shape': 'n', 'type': 'static'}"),
        (
            # as in the published flag_dynamic_sizing
            {"dtype": "<dtype: 'float32'>"},
            """dtype must be a torch dtype, bytes or str, got "<dtype: 'float32'>\"""",
        ),
        ({"shape": [1, -1, -1]}, "shape must have at most one -1, got (1, -1, -1)"),
        ({"shape": [1, "n"]}, WRONG + "{'dtype': 'int32', 'shape': [1, 'n'], 'type': 'static'}"),
        ({"shape": []}, WRONG + "{'dtype': 'int32', 'shape': [], 'type': 'static'}"),
        (
            {"shape": [1, 1 << 80]},
            "shape (1, 1208925819614629174706176) has more elements than an int64 counts",
        ),
    ],
)
def test_features_that_are_wrong(tmp_path, change, said):
    path = written(tmp_path, features={"a": FIELDS["mesh"], "cells": FIELDS["cells"] | change})
    with pytest.raises(ParseError) as caught:
        features_from_meta(path)
    assert str(caught.value) == f"{path}: feature 'cells': {said}"


@pytest.mark.parametrize("number", [None, 0, -1, 1.5, "600"])
def test_a_wrong_number_of_steps(tmp_path, number):
    path = written(tmp_path, trajectory_length=number)
    with pytest.raises(ParseError) as caught:
        features_from_meta(path)
    said = f"{path}: expected an object with 'features' and a 'trajectory_length' of at least 1, got {{"
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b"[1, 2]",
            "expected an object with 'features' and a 'trajectory_length' of at least 1, got [1, 2]",
        ),
        (b"{", "expected JSON, got something else at character 1"),
        (b"\xff", "expected UTF-8 text, got an invalid byte at 0 of 1"),
        (
            b"[" * 5000,
            "expected JSON of at most 200 levels, got lists or objects nested more deeply",
        ),
    ],
)
def test_files_that_are_no_meta(tmp_path, text, said):
    path = tmp_path / "meta.json"
    path.write_bytes(text)
    with pytest.raises(ParseError) as caught:
        features_from_meta(str(path))
    assert str(caught.value) == f"{path}: {said}"
    with pytest.raises(FileNotFoundError):
        features_from_meta(tmp_path / "other.json")
