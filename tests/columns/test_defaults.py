"""What a record that lacks a feature stands for: `default_value` of Text, Image and RawTensor, and
the hint to it.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import re
import zlib

import numpy as np
import pytest
import torch
from helpers import pure_python

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ListFeatures,
    NestedExample,
    ParseError,
    RandomResizedCrop,
    RawTensor,
    ResizedCenterCrop,
    Text,
    encode_example,
    encode_image,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)

UNSET = bytes.fromhex("0a070a050a01781200")  # "x", of a kind that is not set


def picture(value, height=4, width=6):
    return encode_image(torch.full((3, height, width), value, dtype=torch.uint8), "png")


STORED, DEFAULT = picture(9), picture(7)
FEATURES = {
    "text": Text(default_value="none"),
    "image": Image(default_value=DEFAULT),
    "crop": Image(key="image", crop=ResizedCenterCrop(2, 4), default_value=DEFAULT),
    "drawn": Image("L", key="image", crop=RandomResizedCrop(2), default_value=picture(3, 30, 20)),
    "raw": RawTensor((2, 2), torch.int16, default_value=np.int16([1, 2, 3, 4]).tobytes()),
    "any": RawTensor((-1,), torch.float32, default_value=np.float32([0.5]).tobytes()),
    "zipped": RawTensor((3,), torch.uint8, compression="zlib", default_value=zlib.compress(b"abc")),
}
FULL = encode_example(
    {
        "text": "one",
        "image": STORED,
        "raw": np.int16([5, 6, 7, 8]).tobytes(),
        "any": np.float32([1.5]).tobytes(),
        "zipped": zlib.compress(b"xyz"),
    }
)
EXPECTED = {
    FULL: ("one", 9, 9, 9, [[5, 6], [7, 8]], [1.5], [*b"xyz"]),
    b"": ("none", 7, 7, 3, [[1, 2], [3, 4]], [0.5], [*b"abc"]),
}


@pytest.fixture(autouse=True, params=[False, True], ids=["core", "fallback"])
def way(request):
    with pure_python(request.param):
        yield


def values(sample):
    pictures = (sample[name].unique().tolist() for name in ("image", "crop", "drawn"))
    pixels = [one for [one] in pictures]
    return (sample["text"], *pixels, *(sample[name].tolist() for name in ("raw", "any", "zipped")))


@pytest.mark.parametrize("records", [[FULL, b"", FULL, b""], [b""] * 3, [FULL] * 2, [b""]])
def test_examples(records):
    batch = parse_example(records, FEATURES)
    assert type(batch["image"]) is torch.Tensor
    assert batch["image"].shape == (len(records), 3, 4, 6)
    for number, record in enumerate(records):
        row = {name: column[number] for name, column in batch.items()}
        assert values(row) == values(parse_single_example(record, FEATURES)) == EXPECTED[record]


def test_a_kind_that_is_not_set_has_the_default_and_an_empty_list_has_not():
    features = {"x": Text(default_value="none")}
    assert parse_example([UNSET, b""], features) == {"x": ["none", "none"]}
    with pytest.raises(ParseError, match="Number of bytes values != expected: got 0, expected 1"):
        parse_single_example(encode_example({"x": np.zeros(0, "S1")}), features)
    raw = {"x": RawTensor((-1, 2), torch.uint8, default_value=b"ab")}
    assert parse_single_example(encode_example({"x": np.zeros(0, "S1")}), raw)["x"].shape == (0, 2)


def test_a_key_that_another_spec_requires_is_required():
    features = {"a": Text(key="x", default_value="none"), "b": FixedLenFeature((), bytes, key="x")}
    with pytest.raises(ParseError, match=r"feature 'b' \(bytes, key 'x'\): key 'x' is required"):
        parse_example([b""], features)


def test_contexts_nested_examples_and_lists_of_examples():
    features = {name: FEATURES[name] for name in ("text", "image", "raw")}
    context, _ = parse_single_sequence_example(b"", features, None)
    assert context["text"] == "none" and context["raw"].tolist() == [[1, 2], [3, 4]]
    assert parse_sequence_example([b"", b""], features)[0]["image"].shape == (2, 3, 4, 6)
    inner = parse_example([encode_example({"inner": b""})] * 2, {"inner": NestedExample(features)})[
        "inner"
    ]
    assert inner["text"] == ["none"] * 2 and inner["image"].shape == (2, 3, 4, 6)
    one = b"\x0a" + bytes([len(example := encode_example({"text": "one"}))]) + example  # of an ELWC
    spec = ListFeatures(None, {"text": FEATURES["text"], "raw": FEATURES["raw"]}, list_size=2)
    _, examples = parse_single_example(one, spec)
    assert examples["text"] == ["one", "none"] and examples["raw"].shape == (2, 2, 2)
    with pytest.raises(
        ValueError, match="default_value of 'x': a step of a feature list always has its value"
    ):
        parse_single_sequence_example(b"", None, {"x": Text(default_value="none")})


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Text(default_value=b"x"), TypeError, "default_value must be str or None, got bytes"),
        (lambda: Image(default_value=torch.zeros(3, 2, 2)), TypeError, "default_value must be bytes or None, got Tensor"),
        (lambda: Image(default_value=b""), ValueError, "default_value: expected a JPEG, PNG, GIF, BMP or WebP image, got 0"),
        (lambda: Image(default_value=DEFAULT[:-5]), ValueError, "default_value: expected a whole PNG image, got "),
        (lambda: Image(default_value=DEFAULT, max_pixels=23), ValueError, "default_value: expected at most 23 pixels"),
        (lambda: Image(default_value=DEFAULT, shape=(4, 5, 3)), ValueError, "default_value: expected an image of (height, "),
        (lambda: Image(default_value=DEFAULT, shape=("h", 6, 3)), ValueError, "default_value needs a shape without keys"),
        (lambda: Image(default_value=DEFAULT, several="list"), ValueError, "default_value needs several=None"),
        (lambda: RawTensor((2,), torch.uint8, default_value=[0, 0]), TypeError, "default_value must be bytes or None, got list"),
        (lambda: RawTensor((2,), torch.int16, default_value=b"abc"), ValueError, "default_value: expected 4 bytes for shape [2] of"),
        (lambda: RawTensor("size", torch.int16, default_value=b"ab"), ValueError, "default_value needs a shape without keys"),
    ],
)  # fmt: skip
def test_wrong_defaults(make, kind, text):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(text)


def test_the_name_of_a_feature_in_place_of_the_mode():
    text = "got 'image/encoded': did you mean key='image/encoded'?"
    with pytest.raises(ValueError, match=re.escape(text) + "$"):
        Image("image/encoded")
