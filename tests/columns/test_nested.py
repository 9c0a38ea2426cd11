"""Examples inside Examples, as bytes and as JSON.

Covers json_text, protobuf/json_examples.
"""

import base64
import json
import pickle
from pathlib import Path

import pytest
import torch
from helpers import for_each
from refusals import check_refusals
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    NestedExample,
    PaddedCollate,
    ParseError,
    RandomResizedCrop,
    SparseFeature,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    decode_example,
    encode_example,
    encode_image,
    encode_sequence_example,
    make_dataloader,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)
from torch_tfrecord.protobuf import example_of_json

JSON = json.loads(
    (Path(__file__).parents[1] / "data" / "ranking" / "json_examples.json").read_text()
)

# What TensorFlow takes and we do not; and a float below the least normal one, of which TensorFlow
# makes 0.
STRICTER = {
    "float lower nan",
    "null item",
    "value no list",
    "features twice",
    "trailing comma",
    "trailing comma object",
    "single quotes",
    "bare names",
    "control in text",
}
INNER = {
    "n": FixedLenFeature((), torch.int64),
    "v": VarLenFeature(torch.float32),
    "s": VarLenFeature(bytes),
}
FEATURES = {
    "id": Text(),
    "inner": NestedExample({**INNER, "deep": NestedExample({"t": Text()}, key="d")}),
}


def inner(number):
    deep = encode_example({"t": f"t{number}"})
    return encode_example(
        {"n": number, "v": [1.0] * (number + 1), "s": [b"x"] * (number + 1), "d": deep}
    )


RECORDS = [encode_example({"id": f"i{number}", "inner": inner(number)}) for number in range(4)]


@pytest.fixture
def path(tmp_path):
    with TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for record in RECORDS:
            writer.write(record)
    return tmp_path / "x.tfrecord"


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, torch.Tensor):
        return [row.tolist() for row in value.unbind()] if value.is_nested else value.tolist()
    return value


BATCH = {
    "id": ["i0", "i1", "i2", "i3"],
    "inner": {
        "n": [0, 1, 2, 3],
        "v": [[1.0] * count for count in range(1, 5)],
        "s": [[b"x"] * count for count in range(1, 5)],
        "deep": {"t": ["t0", "t1", "t2", "t3"]},
    },
}


@pytest.mark.slow
def test_every_way_in(path):
    ds = TFRecordDataset(path, FEATURES)
    sample = ds[2]
    wanted = {"n": 2, "v": [1.0] * 3, "s": [b"x"] * 3, "deep": {"t": "t2"}}
    assert plain(dict(sample)) == {"id": "i2", "inner": wanted}
    assert type(sample["inner"]) is dict
    assert plain(parse_single_example(RECORDS[2], FEATURES)) == plain(dict(sample))
    stream = TFRecordIterableDataset(path, FEATURES)
    for loader in (
        DataLoader(ds, 4),
        DataLoader(ds, 4, collate_fn=collate),
        DataLoader(ds, 4, num_workers=1),
        DataLoader(pickle.loads(pickle.dumps(ds)), 4, collate_fn=collate),
        DataLoader(stream, 4),
        DataLoader(stream, 4, num_workers=1),
        DataLoader(TFRecordIterableDataset(path, FEATURES, batch_size=4), batch_size=None),
        make_dataloader(path, 4, FEATURES, shuffle=False),
        make_dataloader(path, 4, FEATURES, shuffle=False, num_workers=2),
        [collate([ds[number] for number in range(4)])],
        [collate([dict(each) for each in stream])],
        [parse_example(RECORDS, FEATURES)],
    ):
        [batch] = loader
        assert plain(batch) == BATCH
        assert batch["inner"]["v"].is_nested
    padded = PaddedCollate()([ds[0], ds[1]])
    assert padded["inner"]["v"].tolist() == [[1.0, 0.0], [1.0, 1.0]]
    rows = ds.__getitems__([1, 3])
    assert plain(dict(rows[1])["inner"])["n"] == 3
    assert [plain(row["inner"]["v"]) for row in rows] == [[1.0] * 2, [1.0] * 4]


def test_parse_example_pads_rows_inside_as_outside():
    features = {"rows": FixedLenSequenceFeature((), torch.float32, allow_missing=True, key="v")}
    records = [encode_example({"inner": inner(number)}) for number in range(2)]
    outer = {"inner": NestedExample(features)}
    assert parse_example(records, outer)["inner"]["rows"].tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert parse_single_example(records[1], outer)["inner"]["rows"].tolist() == [1.0, 1.0]


def test_a_sparse_feature_inside():
    features = {"x": SparseFeature("i", "v", torch.float32, 4)}
    records = [
        encode_example({"inner": encode_example({"i": [number, number + 1], "v": [1.0, 2.0]})})
        for number in (0, 2)
    ]
    batch = parse_example(records, {"inner": NestedExample(features)})
    assert batch["inner"]["x"].to_dense().tolist() == [[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0]]
    sample = parse_single_example(records[1], {"inner": NestedExample(features)})
    assert sample["inner"]["x"].to_dense().tolist() == [0.0, 0.0, 1.0, 2.0]


def test_random_crops_inside(tmp_path):
    image = encode_image(
        torch.arange(32 * 32 * 3, dtype=torch.int64).to(torch.uint8).reshape(3, 32, 32), "png"
    )
    with TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        writer.write(encode_example({"image": image, "inner": encode_example({"image": image})}))
    spec = Image(crop=RandomResizedCrop(8))
    ds = TFRecordDataset(
        tmp_path / "x.tfrecord", {"image": spec, "inner": NestedExample({"image": spec})}
    )
    seen = []
    for epoch in range(2):
        ds.set_epoch(epoch)
        sample = ds[0]
        assert sample["inner"]["image"].equal(sample["image"])
        assert ds.__getitems__([0])[0]["inner"]["image"].equal(sample["image"])
        seen.append(sample["image"])
    assert not seen[0].equal(seen[1])


def test_in_the_context_of_a_sequence_example():
    record = encode_sequence_example({"inner": inner(1)}, {"x": [[1]]})
    context, _ = parse_single_sequence_example(record, {"inner": NestedExample(INNER)}, None)
    assert plain(context) == {"inner": {"n": 1, "v": [1.0] * 2, "s": [b"x"] * 2}}
    with pytest.raises(
        ValueError, match="Unsupported NestedExample for key 'inner' of a feature list"
    ):
        parse_single_sequence_example(record, None, {"inner": NestedExample(INNER)})
    with pytest.raises(ValueError, match="a SequenceExample has no random crops"):
        parse_single_sequence_example(
            record, {"i": NestedExample({"x": Image(crop=RandomResizedCrop(8))})}, None
        )


def test_errors_name_the_record_and_both_features(tmp_path):
    told = {
        encode_example(
            {"id": "x"}
        ): "feature 'inner' (NestedExample): key 'inner' is required but could not be found: "
        "the record has 'id'; "
        "to read records that lack it, take VarLenFeature, or a spec with default_value=",
        encode_example(
            {"id": "x", "inner": b"\x0a\x7f"}
        ): "feature 'inner' (NestedExample): Could not parse example input: "
        "expected one Example message, got 2 bytes that are not one",
        encode_example(
            {"id": "x", "inner": encode_example({"m": 1})}
        ): "feature 'inner' (NestedExample): feature 'n' (int64): "
        "key 'n' is required but could not be found: the record has 'm'; "
        "to read records that lack it, take VarLenFeature, or a spec with default_value=",
        encode_example(
            {"id": "x", "inner": encode_example({"n": 1.5})}
        ): "feature 'inner' (NestedExample): feature 'n' (int64): "
        "Data types don't match. Data type: float but expected type: int64; the record holds float32: read "
        "torch.float32, then convert",
        encode_example(
            {"id": "x", "inner": encode_example({"n": 1, "d": b"\xff"})}
        ): "feature 'inner' (NestedExample): "
        "feature 'deep' (NestedExample, key 'd'): Could not parse example input: expected one Example "
        "message, got 1 bytes that are not one",
    }
    check_refusals(FEATURES, RECORDS[0], told, tmp_path)


def test_wrong_arguments():
    for features, kind in (
        ({}, ValueError),
        (None, ValueError),
        ([1], TypeError),
        ({"a": torch.int64}, TypeError),
    ):
        with pytest.raises(kind):
            NestedExample(features)
    with pytest.raises(ValueError, match="format must be 'proto' or 'json', got 'text'"):
        NestedExample(INNER, format="text")


def test_specs_pickle_compare_and_print():
    spec = NestedExample(INNER, format="json", key="k")
    assert (
        pickle.loads(pickle.dumps(spec))
        == spec
        == NestedExample(dict(INNER), format="json", key="k")
    )
    assert hash(spec) == hash(NestedExample(dict(INNER), format="json", key="k"))
    assert spec != NestedExample(INNER, key="k")
    assert eval(repr(spec)) == spec


# JSON


@for_each("name", list(JSON))
def test_the_examples_of_decode_json_example(name):
    text, example = base64.b64decode(JSON[name]["json"]), JSON[name]["example"]
    if example is None or name in STRICTER:
        assert name not in STRICTER or example is not None
        with pytest.raises(ParseError, match="expected"):
            example_of_json(text)
    elif name == "float subnormal":
        assert decode_example(base64.b64decode(example))["a"].tolist()[0] == 0
        assert decode_example(example_of_json(text))["a"].tolist()[0] > 0
    else:
        assert example_of_json(text) == base64.b64decode(example)


@pytest.mark.parametrize(
    "text", ["dGV4dA=", "dGVd4dA==", "/w/A=", "abcd=", "abcd====", "=", "====", "ab==abcd", "a"]
)
def test_damaged_base64_is_refused(text):
    # TensorFlow refuses each of these, too: padding is there as it must be, or not at all.
    with pytest.raises(ParseError, match=r"^expected bytes in base64, got other text$"):
        example_of_json(
            b'{"features":{"feature":{"b":{"bytesList":{"value":["%s"]}}}}}' % text.encode()
        )


def test_json_records_and_features(tmp_path):
    texts = [
        json.dumps({"features": {"feature": {"n": {"int64List": {"value": [number] * number}}}}})
        for number in range(3)
    ]
    spec = NestedExample({"n": VarLenFeature(torch.int64)}, format="json")
    assert plain(parse_example([text.encode() for text in texts], spec)) == {"n": [[], [1], [2, 2]]}
    assert plain(parse_single_example(texts[2].encode(), spec)) == {"n": [2, 2]}
    examples = [encode_example({"j": text}) for text in texts]
    assert plain(parse_example(examples, {"j": spec})) == {"j": {"n": [[], [1], [2, 2]]}}
    with TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for text in (*texts, "{]"):
            writer.write(text.encode())
    ds = TFRecordDataset(tmp_path / "x.tfrecord", spec)
    assert plain(ds[2]) == {"n": [2, 2]}
    [batch] = DataLoader(ds[:3], 3)
    assert plain(batch) == {"n": [[], [1], [2, 2]]}
    for read in (lambda: ds[3], lambda: ds.__getitems__([1, 3])):
        with pytest.raises(ParseError) as caught:
            read()
        place = f"{tmp_path / 'x.tfrecord'}: record 3 at byte {ds.locate(3)[1]}"
        assert (
            str(caught.value)
            == f"{place}: NestedExample: expected JSON, got something else at character 1"
        )


def test_errors_of_json_hold_nothing_of_the_text():
    texts = [
        b'{"secret": 1}',
        b'{"features": {"feature": {"secret": {"int64List": {"value": ["secret"]}}}}}',
        b'{"features": {"feature": {"secret": {"secret": 1}}}}',
        b'{"features": {"feature": {"secret": {"int64List": {"value": [99999999999999999999]}}}}}',
        b'{"features": {"feature": {"secret": {"bytesList": {"value": ["secret!"]}}}}}',
        b'{"features": {"feature": {"secret": {"floatList": {"value": [1' + b"0" * 500 + b"]}}}}}",
    ]
    for text in texts:
        with pytest.raises(ParseError) as caught:
            example_of_json(text)
        assert "secret" not in str(caught.value)
        assert "999" not in str(caught.value)
