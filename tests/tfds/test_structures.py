"""Every structure of features.json that was found in public, with random examples written and read
by TFDS.

`tests/data/README.md` says where they come from. Covers tfds/features_json, tfds/parser.
"""

import base64
import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from tfds_values import assert_equal, assert_same
from torchvision import tv_tensors

from torch_tfrecord import TFRecordWriter, tfds
from torch_tfrecord.columns import rows_of
from torch_tfrecord.tfds.encoding import SampleEncoder
from torch_tfrecord.tfds.features_json import features_from_json, features_to_json
from torch_tfrecord.tfds.parser import Decoding, TFDSParser

DATA = Path(__file__).parent.parent / "data" / "tfds_structures"
STRUCTURES = json.loads(gzip.decompress((DATA / "structures.json.gz").read_bytes()))
READ = [row for row in STRUCTURES if "records" in row]


def origins(rows):
    return [row["origin"] for row in rows]


def directory(folder, features, records):
    """A directory as TFDS writes it."""
    with TFRecordWriter(folder / "one-train.tfrecord-00000-of-00001") as writer:
        for record in records:
            writer.write(record)
    info = {
        "name": "one",
        "version": "1.0.0",
        "splits": [{"name": "train", "shardLengths": [str(len(records))]}],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(features))
    return folder


def assert_as_tfds(found, expected, where="sample"):
    """A sample against what TFDS returned: dicts, steps of a Dataset, and values."""
    if expected is None:
        assert found is None, where
    elif "dict" in expected:
        assert found.keys() == expected["dict"].keys(), where
        for name, item in expected["dict"].items():
            assert_as_tfds(found[name], item, f"{where}/{name}")
    elif "steps" in expected:
        for number, step in enumerate(expected["steps"]):
            assert_as_tfds(
                step_of(found, number, len(expected["steps"]), where), step, f"{where}[{number}]"
            )
    else:
        assert_equal(found, expected, where)


def step_of(found, number, num_steps, where):
    if isinstance(found, dict):
        return {
            name: step_of(item, number, num_steps, f"{where}/{name}")
            for name, item in found.items()
        }
    rows = rows_of(found)
    assert len(rows) == num_steps, where
    return rows[number]


def assert_read(folder, row):
    """Each example alone, both as a batch, and written again."""
    records = [base64.b64decode(record) for record in row["records"]]
    ds = tfds.load(
        directory(folder, row["features"], records), index="memory", as_numpy_layout=True
    )
    samples = [ds[position] for position in range(len(records))]
    for sample, expected in zip(samples, row["expected"], strict=True):
        assert_as_tfds(sample, expected)
    for alone, together in zip(samples, ds.__getitems__([0, 1]), strict=True):
        assert_same(alone, together)
    encoder = SampleEncoder(tfds.info(folder).features, as_numpy_layout=True)
    if "jpeg" in json.dumps(row["features"]):  # written anew, they change
        return
    parser = TFDSParser(tfds.info(folder).features, decoding=Decoding(as_numpy_layout=True))
    for sample in samples:
        assert_same(parser.single(encoder.encode(sample)), sample)


def test_there_are_all_kinds():
    assert len(STRUCTURES) > 300
    assert sum(row["count"] for row in STRUCTURES) > 1000
    text = json.dumps(STRUCTURES)
    for name in tfds.features.__all__:
        known = getattr(tfds.features, name)
        if isinstance(known, type) and name not in ("FeatureConnector", "UnknownFeature"):
            assert f".{name}" in text, name


@pytest.mark.slow
@pytest.mark.parametrize("row", STRUCTURES, ids=origins(STRUCTURES))
def test_every_structure_is_understood(row):
    tree = features_from_json(row["features"], "features.json")
    assert features_from_json(features_to_json(tree), "features.json") == tree
    assert eval(repr(tree), vars(tfds.features)) == tree
    inner = tree
    while isinstance(inner, tfds.features.Sequence):
        inner = inner.feature
    assert {leaf.names[0] for leaf in TFDSParser(tree).leaves} == set(inner)
    assert SampleEncoder(tree)


def is_rlds(row):
    tree = features_from_json(row["features"], "features.json")
    steps = tree.get("steps") if isinstance(tree, tfds.features.FeaturesDict) else None
    return isinstance(steps, tfds.features.Dataset) and isinstance(
        steps.feature, tfds.features.FeaturesDict
    )


EPISODES = [row for row in READ if is_rlds(row)]


@pytest.mark.daily
@pytest.mark.parametrize("row", EPISODES, ids=origins(EPISODES))
def test_steps_are_those_of_the_whole_record(row, tmp_path):
    folder = directory(
        tmp_path, row["features"], [base64.b64decode(record) for record in row["records"]]
    )
    whole, episodes = tfds.load(folder, index="memory"), tfds.RLDSEpisodes(folder, index="memory")
    for number, num_steps in enumerate(episodes.num_steps.tolist()):
        for step in range(num_steps):
            found = step_of(episodes[number]["steps"], step, num_steps, "steps")
            assert_same(
                plain(found), plain(step_of(whole[number]["steps"], step, num_steps, "steps"))
            )
    steps = tfds.RLDSDataset(folder, index="memory", window_size=2)
    assert len(steps) == sum(episodes.num_steps.tolist())
    assert_same([*steps], list(steps.__getitems__(range(len(steps)))))


def plain(value):
    """Frames of a video are those of images."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.as_subclass(torch.Tensor) if isinstance(value, tv_tensors.TVTensor) else value


@pytest.mark.daily
@pytest.mark.parametrize("row", READ, ids=origins(READ))
def test_values_are_what_tfds_returned(row, tmp_path):
    assert_read(tmp_path, row)


@pytest.mark.slow
@pytest.mark.skipif(
    "TFDS_PYTHON" not in os.environ, reason="TFDS_PYTHON names no Python with tensorflow-datasets"
)
def test_other_values_are_what_tfds_returns(tmp_path):
    command = [
        os.environ["TFDS_PYTHON"],
        str(DATA / "structures.py"),
        "values",
        os.environ.get("SEED", "other"),
    ]
    bare = json.dumps([{"features": row["features"], "origin": row["origin"]} for row in READ])
    rows = json.loads(
        subprocess.run(command, input=bare, capture_output=True, text=True, check=True).stdout
    )
    assert len(rows) == len(READ)
    for number, row in enumerate(rows):
        (tmp_path / str(number)).mkdir()
        assert_read(tmp_path / str(number), row)
