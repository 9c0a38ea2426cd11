"""Sizes and depths that no honest file has: errors of ours that name the file and the field, never
foreign or long.
"""

import json
import shutil

import pytest
import torch
from helpers import pure_python
from test_batch_budget import tensor_of
from tfds_values import directory

from torch_tfrecord import (
    LimitExceededError,
    ParseError,
    RawTensor,
    SerializedTensor,
    TFRecordError,
    collate,
    encode_example,
    parse_example,
    parse_tensor,
    tfds,
)
from torch_tfrecord.shown import shown_value

CORE = "tensorflow_datasets.core.features."
HUGE = (1 << 63) - 1


def features_dict(features):
    return {
        "pythonClassName": f"{CORE}features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def tensor(dimensions, **more):
    content = {"shape": {"dimensions": dimensions}, "dtype": "int64", **more}
    return {"pythonClassName": f"{CORE}tensor_feature.Tensor", "tensor": content}


def sequence(feature, length="-1"):
    content = {"feature": feature, "length": length}
    return {"pythonClassName": f"{CORE}sequence_feature.Sequence", "sequence": content}


def read_features(folder, features):
    """Read a data set whose feature "a" is this one."""
    copy = folder / "copy"
    shutil.copytree(directory("kinds"), copy)
    (copy / "features.json").write_text(json.dumps(features_dict({"a": features})))
    return tfds.info(copy)


def nested(depth, wrap):
    feature = tensor([])
    for _ in range(depth):
        feature = wrap(feature)
    return feature


@pytest.mark.parametrize(
    "size",
    [
        1.5,
        1.0,
        "1.5",
        10**400,
        "9" * 5000,
        -2,
        "-2",
        True,
        " 3",
        "1_0",
        "٣",
        [],
    ],
    ids=shown_value,
)
def test_a_dimension_is_an_integer(tmp_path, size):
    with pytest.raises(ParseError) as error:
        read_features(tmp_path, tensor([size]))
    text = str(error.value).removeprefix(f"{tmp_path}/copy/")
    assert text.startswith("features.json: feature 'a': shape: expected a list of sizes, got ")
    assert len(text) < 300


@pytest.mark.parametrize(
    "dimensions", [["0", str(1 << 62)], [str(1 << 62), "0"], [str(1 << 40), str(1 << 40)]]
)
def test_the_product_of_dimensions_is_bounded(tmp_path, dimensions):
    with pytest.raises(
        ParseError, match=r"features.json: feature 'a': shape has more than \d+ elements$"
    ):
        read_features(tmp_path, tensor(dimensions))


@pytest.mark.parametrize("value", [1.5, 10**400, "9" * 25, "x", True], ids=shown_value)
def test_a_length_is_an_int64(tmp_path, value):
    with pytest.raises(
        ParseError,
        match=r"features.json: feature 'a': length: expected an integer of at least -1, got ",
    ):
        read_features(tmp_path, sequence(tensor([]), value))


@pytest.mark.parametrize("value", [10**400, "x", [1]], ids=shown_value)
def test_a_minimum_is_a_float(tmp_path, value):
    with pytest.raises(
        ParseError, match=r"features.json: feature 'a': minimum: expected a number, got "
    ):
        read_features(tmp_path, tensor([], minimum=value))


@pytest.mark.parametrize("wrap", [sequence, lambda feature: features_dict({"a": feature})])
@pytest.mark.parametrize("depth", [65, 200, 300])
def test_features_nested_too_deeply(tmp_path, wrap, depth):
    with pytest.raises(
        ParseError,
        match=r"features.json: feature 'a.*: expected features nested at most 64 deep",
    ):
        read_features(tmp_path, nested(depth, wrap))


def test_json_nested_too_deeply(tmp_path):
    shutil.copytree(directory("kinds"), tmp_path / "copy")
    for file in ("dataset_info.json", "features.json"):
        path = tmp_path / "copy" / file
        whole = path.read_text()
        for text in ("[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}"):
            path.write_text(text)
            with pytest.raises(ParseError, match=f"{file}: expected JSON, got damaged text"):
                tfds.info(tmp_path / "copy")
        path.write_text(whole)


def changed_info(tmp_path, change):
    shutil.copytree(directory("kinds"), tmp_path / "copy")
    path = tmp_path / "copy" / "dataset_info.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return tmp_path / "copy"


def test_supervised_keys_nested_too_deeply(tmp_path):
    keys = {"featureKey": "a"}
    for _ in range(150):
        keys = {"tuple": {"items": [keys]}}
    folder = changed_info(tmp_path, lambda content: content.update(supervisedKeys=keys))
    with pytest.raises(
        ParseError, match="supervisedKeys: expected featureKey, tuple or dict, got "
    ):
        tfds.info(folder)


@pytest.mark.parametrize(
    "count", ["3000000", 100_001, "9" * 19, 10**400, "-1", "1.5", 2.5], ids=shown_value
)
def test_the_number_of_shards_is_bounded(tmp_path, count):
    def change(content):
        for split in content["splits"]:
            split.pop("shardLengths", None)
            split["numShards"] = count

    with pytest.raises(
        ParseError, match=r"dataset_info.json: splits\[0\].numShards: expected .*, got "
    ) as error:
        tfds.info(changed_info(tmp_path, change))
    assert len(str(error.value)) < 500


def test_shard_lengths_are_bounded(tmp_path):
    def change(content):
        content["splits"][0]["shardLengths"] = ["0"] * 100_001

    with pytest.raises(
        ParseError, match=r"splits\[0\].shardLengths: expected at most 100000 shards, got 100001"
    ):
        tfds.info(changed_info(tmp_path, change))


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize(
    "shape", [(1 << 62, 0), (HUGE, 0), (0, HUGE, HUGE), (0, HUGE), (1 << 41, 0)]
)
def test_tensors_of_nothing_and_too_much(shape, is_pure):
    record = encode_example({"x": tensor_of(*shape)})
    text = rf"^record 0: feature 'x' \(SerializedTensor\): .*shape \[{', '.join(map(str, shape))}\] is not possible"
    with pure_python(is_pure), pytest.raises(ParseError, match=text):
        parse_example([record] * 32, {"x": SerializedTensor()})


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("shape", [("n", "m", "m"), ("m", "m", "n"), ("m", "n"), ("n", "m")])
def test_named_sizes_of_nothing_and_too_much(shape, is_pure):
    record = encode_example({"x": b"", "n": 0, "m": HUGE})
    with (
        pure_python(is_pure),
        pytest.raises(ParseError, match=r"^record 0: feature 'x' \(RawTensor\): shape .* is not"),
    ):
        parse_example([record] * 32, {"x": RawTensor(shape, torch.float32)})


def test_tensors_of_nothing_are_read():
    assert parse_tensor(tensor_of(1 << 30, 0)).shape == (1 << 30, 0)
    record = encode_example({"x": tensor_of(1 << 30, 0)})
    assert parse_example([record] * 32, {"x": SerializedTensor()})["x"].shape == (32, 1 << 30, 0)


def test_no_error_is_long():
    error = ParseError("x" * 10**6 + "the end", path="/a", position=3, offset=40)
    assert len(str(error)) < 2048
    assert str(error).startswith("/a: record 3 at byte 40: xxx")
    assert str(error).endswith("the end")
    for path, text in [
        ("p" * 10**5, "m" * 10**5),
        ("ü" * 10**5, "\N{SNOWMAN}" * 10**5),
        ("\udcff" * 5000, "\udcff" * 5000),
    ]:
        long = LimitExceededError(text, path=path, position=3, offset=40)
        assert len(str(long).encode("utf-8", "surrogatepass")) <= 2048
        assert "record 3 at byte 40" in str(long)
    short = TFRecordError("m" * 1500, path="p" * 500)
    assert str(short) == f"{'p' * 500}: {'m' * 1500}"


def test_samples_of_many_keys_give_a_short_error():
    samples = [{f"key-{number}": 1 for number in range(5000)}, {"a": 1}]
    with pytest.raises(
        ValueError, match=r"and 4992 more\] in each, got \['a'\] in sample 1"
    ) as error:
        collate(samples)
    assert len(str(error.value)) < 2048


def test_content_of_another_size_is_told_before_what_it_would_need():
    record = encode_example({"x": tensor_of(1 << 40) + b"\x22\x01a"})
    with pytest.raises(ParseError, match=f"expected {1 << 40} bytes of content"):
        parse_example([record], {"x": SerializedTensor()})
    with pytest.raises(LimitExceededError, match="max_bytes of parse_tensor"):
        parse_example([encode_example({"x": tensor_of(1 << 40)})], {"x": SerializedTensor()})


@pytest.mark.parametrize("bound", ["9" * 400 + "%", "9" * 5000, "9" * 25], ids=shown_value)
def test_a_split_of_many_digits(bound):
    with pytest.raises(ValueError, match=r"^split 'train\[9+.*: cannot read 'train\[9") as error:
        tfds.load(directory("drawings"), f"train[{bound}:]", index="memory")
    assert len(str(error.value)) < 500
