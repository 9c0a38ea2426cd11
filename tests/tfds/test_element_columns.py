"""TFDS datasets as columns: batches have the samples' values and errors, and the compiled core
reads them.

Covers tfds/leaves.
"""

import random
import shutil
import zlib

import numpy as np
import pytest
import torch
from helpers import pure_python
from nested_steps import LENGTHS, STEP, write_nested
from test_damage import change_value
from tfds_values import assert_same, directory, leaf, paths
from wire_examples import Example

from torch_tfrecord import (
    LimitExceededError,
    ParseError,
    RaggedTensor,
    TFRecordError,
    TFRecordWriter,
    collate,
    decode_example,
    encode_example,
    tfds,
)
from torch_tfrecord.columns import parsers
from torch_tfrecord.loading import ColumnBatch
from torch_tfrecord.native import has_native
from torch_tfrecord.tfds.parser import TFDSParser

NO_CORE = pytest.mark.skipif(not has_native(), reason="the compiled core is not there")


def load(name, **options):
    return tfds.load(directory(name), index="memory", **options)


def encodable(record):
    """A decoded record; an empty list of bytes has its kind."""
    return {
        key: value if len(value) or isinstance(value, np.ndarray) else np.zeros(0, "S1")
        for key, value in record.items()
    }


def batch_of(parser, records):
    """The samples of a batch that holds these records."""
    (batch,) = parser.batches(parsers.packed(records), None, (0, len(records)))
    return [*ColumnBatch(batch, len(records))]


def outcome(function):
    try:
        return function()
    except (TFRecordError, TypeError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.slow
@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("as_numpy_layout", [False, True])
@pytest.mark.parametrize("name", ["drawings", "kinds"])
def test_a_batch_is_what_collate_makes_of_the_samples(name, as_numpy_layout, is_pure):
    with pure_python(is_pure):
        ds = load(name, as_numpy_layout=as_numpy_layout)
        for path in paths(ds[0]):
            own = load(name, as_numpy_layout=as_numpy_layout, features=[path])
            for positions in ([*range(len(own))], [2, 2, 2], [1], [4, 0, 4]):
                samples = [own[position] for position in positions]
                batch = own.__getitems__(positions)
                assert isinstance(batch, ColumnBatch)
                found = outcome(lambda batch=batch: collate(batch))
                expected = outcome(lambda samples=samples: collate(samples))
                if isinstance(expected, tuple):  # the batch knows the records, too
                    assert found[1].startswith(expected[1])
                else:
                    assert_same(found, expected, path)
                assert_same([*own.__getitems__(positions)], samples, path)


@NO_CORE
def test_a_record_in_another_form_is_read_beside_plain_ones():
    parser = TFDSParser(tfds.info(directory("kinds")).features)
    records = [load("kinds").raw(position) for position in range(4)]
    halves = []
    for key, feature in Example.FromString(records[2]).features.feature.items():
        half = Example()
        half.features.feature[key].CopyFrom(feature)
        halves.append(half.SerializeToString())
    odd = [*records[:2], b"".join(halves), records[3]]
    assert_same(batch_of(parser, odd), batch_of(parser, records))
    assert_same(parser.single(odd[2]), parser.single(records[2]))


@pytest.mark.daily
@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("name", ["drawings", "kinds"])
def test_a_batch_fails_where_a_record_of_it_does(name, is_pure, capfd):
    with pure_python(is_pure):
        parser = TFDSParser(tfds.info(directory(name)).features)
        ds, draw, errors = load(name), random.Random(name), 0
        records = [ds.raw(position) for position in range(3)]
        for _ in range(60):
            decoded = (decode_example(draw.choice(records)) for _ in range(2))
            changed = [encode_example(change_value(draw, dict(record))) for record in decoded]
            rows = [records[0], changed[0], records[1], changed[1], records[2]]
            alone = [outcome(lambda row=row: parser.single(row)) for row in rows]
            found = outcome(lambda rows=rows: batch_of(parser, rows))
            if not any(isinstance(one, tuple) for one in alone):
                assert_same(found, alone)
            else:
                errors += 1
                assert isinstance(found, tuple) and issubclass(found[0], TFRecordError)
        assert errors > 10
    capfd.readouterr()  # libjpeg's own words


def test_records_that_hold_a_feature_in_different_ways():
    f = tfds.features
    tree = f.FeaturesDict(
        {
            "rows": f.Sequence(f.Sequence(f.Scalar("int64"), length=2)),
            "opt": f.Tensor((2,), "int8", optional=True),
        }
    )
    parser = TFDSParser(tree)
    records = [
        encode_example({"rows": [1, 2, 3, 4], "opt": [5, 6]}),
        encode_example({"rows/ragged_flat_values": [7, 8], "rows/ragged_row_lengths_0": [2]}),
        encode_example({}),
    ]
    samples = batch_of(parser, records[:2])
    assert collate([{"rows": sample["rows"]} for sample in samples])["rows"].to_list() == [
        [[1, 2], [3, 4]],
        [[7, 8]],
    ]
    assert samples[0]["opt"].tolist() == [5, 6]
    assert samples[1]["opt"] is None
    assert [len(sample["rows"]) for sample in batch_of(parser, records)] == [2, 1, 0]
    wrong = encode_example({"rows/ragged_flat_values": [7, 8, 9], "rows/ragged_row_lengths_0": [2]})
    with pytest.raises(
        TFRecordError,
        match=r"^feature 'rows' \(int64\): expected row lengths of level 0 that",
    ):
        batch_of(parser, [records[0], wrong, records[1]])


def test_boxes_of_records_with_and_without_an_image():
    f = tfds.features
    info = tfds.info(directory("drawings"))
    image = decode_example(load("drawings").raw(0))["image"]
    tree = f.FeaturesDict(
        {"image": info.features["image"], "box": f.BBoxFeature(), "pixels": f.BBoxFeature("XYXY")}
    )
    boxes = {"box": [0.25, 0.5, 0.75, 1.0], "pixels": [1.0, 2.0, 3.0, 4.0]}
    parser = TFDSParser(tree, ["box", "pixels"])
    records = [
        encode_example({**boxes, "image": image}),
        encode_example(boxes),
        encode_example({**boxes, "image": image * 2}),
    ]
    samples = batch_of(parser, records)
    assert [sample["box"].canvas_size for sample in samples] == [(10, 12), (1, 1), (1, 1)]
    assert [sample["box"].tolist() for sample in samples] == [
        [[6, 2.5, 12, 7.5]],
        *[[[0.5, 0.25, 1, 0.75]]] * 2,
    ]
    assert [type(sample["pixels"]) is torch.Tensor for sample in samples] == [False, True, True]
    assert_same(samples, [parser.single(record) for record in records])


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    return write_nested(tmp_path_factory.mktemp("nested") / "nested" / "1.0.0")


def as_lists(value):
    if isinstance(value, RaggedTensor):
        return value.to_list()
    if isinstance(value, torch.Tensor):
        return [row.tolist() for row in value.unbind()] if value.is_nested else value.tolist()
    return [as_lists(item) for item in value] if isinstance(value, list) else value


def test_nested_features_of_steps(nested):
    """As `tfds.load` reads them, which knows nothing of steps; there boxes in boxes stay as they
    are stored.
    """
    whole, episodes = tfds.load(nested, index="memory"), tfds.RLDSEpisodes(nested, index="memory")
    ds = tfds.RLDSDataset(nested, index="memory")
    samples = iter([*ds.__getitems__(range(len(ds)))])
    for number, length in enumerate(LENGTHS):
        steps, episode = whole[number]["steps"], episodes[number]["steps"]
        assert set(paths(steps)) == set(paths(episode)) >= set(STEP) - {"objects"}
        for at in range(length):
            sample = next(samples)
            assert_same(sample, ds[sum(LENGTHS[:number]) + at])
            assert sample["action"].tolist() == [[number, at]]
            for path in set(paths(steps)) - {"action"}:
                expected = as_lists(leaf(steps, path)[at])
                if path == "objects/box":
                    expected = [[x1, y1, x2, y2] for y1, x1, y2, x2 in expected]
                assert as_lists(leaf(sample, path)) == expected, (path, number, at)
                assert as_lists(leaf(episode, path)[at]) == expected, (path, number, at)
        assert_same(episodes[number]["about"], whole[number]["about"])
        assert torch.equal(episodes[number]["goal"], whole[number]["goal"])
        assert episodes[number]["box"].tolist() == [1, 2, 3, 4]


DAMAGES = {
    "steps/numbers/ragged_row_lengths_0": (
        lambda value: [value[0] + 1, *value[1:]],
        "feature 'steps/numbers': expected a multiple of 4 values, got 3",
    ),
    "steps/deep/ragged_row_lengths_1": (
        lambda value: [-1, *value[1:]],
        "feature 'steps/deep': expected 5 row lengths of level 1, of at least 0, got 5 with -1",
    ),
    "steps/words/ragged_flat_values": (
        lambda value: [1, 2, 3],
        "feature 'steps/words' (Text, key 'steps/words/ragged_flat_values'): "
        "Data types don't match. Data type: int64 but",
    ),
    "steps/phrases/ragged_flat_values": (
        lambda value: [value[0], b"\xff", *value[2:]],
        "feature 'steps/phrases', step 2: feature 'steps/phrases' (Text): expected UTF-8 text, got an invalid byte",
    ),
    "about/rows/ragged_row_lengths_0": (
        lambda value: [value[0] + 1, *value[1:]],
        "feature 'about/rows' (int32): expected row lengths of level 0 that sum to 2, got 3",
    ),
    "about/name": (
        lambda value: [1.5],
        "feature 'about/name' (Text): Data types don't match. Data type: float but expected type: string",
    ),
    "box": (
        lambda value: None,
        "feature 'box' (float32): key 'box' is required but could not be found: the record has ",
    ),
}


@pytest.mark.parametrize("key", DAMAGES)
def test_damaged_nested_features_of_episodes(nested, tmp_path, key):
    change, text = DAMAGES[key]
    shutil.copytree(nested, tmp_path / "own" / "1.0.0")
    [shard] = (tmp_path / "own" / "1.0.0").glob("*.tfrecord-*")
    whole = tfds.load(nested, index="memory")
    records = [decode_example(whole.raw(position)) for position in range(len(whole))]
    changed = change(list(records[0][key]))
    del records[0][key]
    records[0] |= {} if changed is None else {key: changed}
    with TFRecordWriter(shard) as writer:
        for record in records:
            writer.write(encode_example(encodable(record)))
    ds = tfds.RLDSDataset(tmp_path / "own" / "1.0.0", index="memory")
    with pytest.raises(ParseError) as caught:
        [*ds.__getitems__(range(4))]
    assert str(caught.value).startswith(f"{shard}: record 0 at byte 0: {text}")
    assert ds[4]["about"]["name"] == "episode 1"


def test_a_batch_too_large_names_the_record_though_another_lacks_the_sequence():
    f = tfds.features
    tree = f.FeaturesDict({"x": f.Sequence(f.Tensor((None,), "int16", encoding="zlib"))})
    parser = TFDSParser(tree, max_batch_bytes=6000)
    small = encode_example({"x": [zlib.compress(bytes(64))]})
    large = encode_example({"x": [zlib.compress(bytes(2400))]})
    records = [encode_example({}), small, large, large]
    assert [len(sample["x"]) for sample in batch_of(parser, records[:3])] == [0, 1, 1]
    with pytest.raises(LimitExceededError, match=r"^record 3: feature 'x' \(int16, zlib\): "):
        batch_of(parser, records)
