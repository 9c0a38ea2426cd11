"""Specs applied to Examples: every kind of spec, errors word for word; TensorFlow's results are in
test_golden.

Covers columns/lists, columns/one_value, columns/record_parsers, columns/parsers, columns/column_plan.
"""
# ruff: noqa: E501 - tables of whole texts read better in one line each.

import io

import numpy as np
import pytest
import torch
from helpers import pure_python
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from wire_examples import length_delimited

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    ImageDecodeError,
    LimitExceededError,
    ParseError,
    RawTensor,
    SerializedTensor,
    Text,
    TFRecordError,
    VarLenFeature,
    decode_example,
    encode_example,
    encode_image,
    parse_example,
    parse_single_example,
    serialize_tensor,
)
from torch_tfrecord.columns import Feature, make_parser

I64, F32 = torch.int64, torch.float32


def bits(values):
    return np.asarray(values).tobytes()


# --- numbers
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.bool, [0, 1]),
        (torch.uint8, [0, 255]),
        (torch.int8, [-128, 127]),
        (torch.int16, [-(1 << 15), (1 << 15) - 1]),
        (torch.uint16, [0, (1 << 16) - 1]),
        (torch.int32, [-(1 << 31), (1 << 31) - 1]),
        (torch.uint32, [0, (1 << 32) - 1]),
        (torch.int64, [-(1 << 63), (1 << 63) - 1]),
        (torch.uint64, [0, (1 << 63) - 1]),
        (torch.float16, [65504.0, float("-inf")]),
        (torch.bfloat16, [1.0, float("inf")]),
        (torch.float64, [0.5, -(2.0**100)]),
        (torch.float8_e5m2, [1.5, float("inf")]),
        (torch.float8_e4m3fn, [-448.0, 448.0]),
    ],
)
def test_dtypes_are_cast(dtype, value):
    record = encode_example({"a": value})
    for spec in (FixedLenFeature(2, dtype), VarLenFeature(dtype)):
        sample = parse_single_example(record, {"a": spec})["a"]
        assert sample.dtype == dtype
        assert [item.item() for item in sample] == value
        batch = parse_example([record, record], {"a": spec})["a"]
        assert batch.dtype == dtype
        assert [[item.item() for item in row] for row in batch.unbind()] == [value, value]


@pytest.mark.parametrize(
    ("dtype", "value", "limits"),
    [
        (torch.bool, 2, "0 to 1"),
        (torch.uint8, 256, "0 to 255"),
        (torch.uint8, -1, "0 to 255"),
        (torch.int32, 1 << 31, "-2147483648 to 2147483647"),
        (torch.uint64, -1, "0 to 9223372036854775807"),
        (torch.float16, 65505.0, "-65504.0 to 65504.0"),
        (torch.float8_e4m3fn, float("inf"), "-448.0 to 448.0"),
    ],
)
def test_a_cast_that_would_change_the_value_is_an_error(dtype, value, limits):
    good, bad = encode_example({"a": type(value)(0)}), encode_example({"a": value})
    name = str(dtype).removeprefix("torch.")
    text = f"feature 'a' ({name}): a value is outside the range of {name}, {limits}: the cast would change it"
    with pytest.raises(ParseError) as caught:
        parse_single_example(bad, {"a": FixedLenFeature((), dtype)})
    assert str(caught.value) == text
    with pytest.raises(ParseError) as caught:
        parse_example([good, bad, bad], {"a": VarLenFeature(dtype)})
    assert str(caught.value) == f"record 1: {text}"


@pytest.mark.parametrize("is_pure", [False, True])
def test_floats_are_rounded_to_bfloat16_as_by_torch(is_pure):
    # each bfloat16 but the largest, and what is just below, at and above the middle to the next
    upper = np.arange(1 << 16, dtype=np.uint32)
    upper = upper[(upper & 0x7FFF) < 0x7F7F] << 16
    values = (upper[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001], np.uint32)).view(np.float32)
    special = np.array([np.inf, -np.inf, np.nan, torch.finfo(torch.bfloat16).max], np.float32)
    values = np.append(values, special)
    bad = encode_example({"v": np.array([np.inf, 3.4e38], np.float32)})
    features = {"v": VarLenFeature(torch.bfloat16)}
    with pure_python(is_pure):
        got = parse_example([encode_example({"v": values})], features)["v"].values()
        with pytest.raises(ParseError, match="outside the range of bfloat16"):
            parse_example([bad], features)
    wanted = torch.from_numpy(values).to(torch.bfloat16)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("form", ["packed", "one by one", "with unknown fields"])
@pytest.mark.parametrize("tail", [b"", b"\x10\x01"])  # an unknown field, as no writer makes it
def test_signalling_nans_keep_their_bits_in_every_form(count, form, tail):
    patterns = np.resize(
        np.array([0x7F800001, 0xFF800001, 0x7FA00001, 0x7FC12345], np.uint32), count
    )
    payload = patterns.astype("<u4").tobytes()
    values = {
        "packed": length_delimited(1, payload),
        "one by one": b"".join(
            b"\x0d" + payload[place : place + 4] for place in range(0, len(payload), 4)
        ),
        "with unknown fields": b"\x10\x01" + length_delimited(1, payload) + b"\x18\x05",
    }[form]
    entry = length_delimited(1, b"v") + length_delimited(2, length_delimited(2, values))
    record = length_delimited(1, length_delimited(1, entry)) + tail
    fixed, var = {"v": FixedLenFeature(count, F32)}, {"v": VarLenFeature(F32)}
    for got in (
        parse_single_example(record, fixed)["v"],
        parse_single_example(record, var)["v"],
        parse_example([record, b""], {"v": FixedLenFeature(count, F32, [0.0] * count)})["v"][0],
        parse_example([record] * 2, var)["v"].values()[:count],
        decode_example(record)["v"],
    ):
        assert bits(got) == patterns.tobytes()


def test_defaults_are_not_shared_and_results_are_writable():
    spec = {
        "a": FixedLenFeature((2,), I64, [1, 2]),
        "b": FixedLenFeature((), F32),
        "c": FixedLenFeature((1,), bytes, b"x"),
    }
    parser, record = make_parser(spec), encode_example({"b": 1.0})
    first = parser.single(record)
    first["a"][0] = first["b"][...] = 9
    first["c"][0] = b"changed"
    assert parser.single(record)["a"].tolist() == [1, 2]
    assert parser.single(record)["c"] == [b"x"]
    batch = parser.batch([record, encode_example({"a": [5, 6], "b": 2.0}), record])
    assert batch["a"].tolist() == [[1, 2], [5, 6], [1, 2]]
    batch["a"][0, 0] = batch["b"][0] = 9
    assert batch["a"].tolist() == [[9, 2], [5, 6], [1, 2]]
    assert parser.batch([record])["a"].tolist() == [[1, 2]]


def test_a_default_may_be_what_no_list_holds():
    spec = {
        "a": FixedLenFeature((), torch.uint64, 2**64 - 1),
        "b": FixedLenFeature((), torch.float64, 0.1),
    }
    got = parse_example([b"", b""], spec)
    assert [item.item() for item in got["a"]] == [2**64 - 1] * 2
    assert got["b"].tolist() == [0.1, 0.1]


def test_an_empty_batch():
    spec = {"a": FixedLenFeature((2,), I64), "b": VarLenFeature(F32), "c": Text(), "d": Image()}
    got = parse_example([], spec)
    assert got["a"].shape == (0, 2)
    assert got["b"].layout is torch.jagged
    assert got["b"].shape[0] == 0
    assert (got["c"], got["d"]) == ([], [])


# --- strings, arrays, images
# ----------------------------------------------------------------------------------------


def test_strings():
    record = encode_example({"b": b"\xff\x00", "t": "é", "m": ["a", "b", "c", "d"]})
    spec = {
        "b": FixedLenFeature((), bytes),
        "t": Text(),
        "m": FixedLenFeature((2, 2), str),
        "v": VarLenFeature(str, key="m"),
        "d": FixedLenFeature((), str, "none"),
    }
    want = {
        "b": b"\xff\x00",
        "t": "é",
        "m": [["a", "b"], ["c", "d"]],
        "v": ["a", "b", "c", "d"],
        "d": "none",
    }
    assert parse_single_example(record, spec) == want
    assert parse_example([record] * 2, spec) == {name: [value] * 2 for name, value in want.items()}


def test_raw_tensors():
    array = np.arange(24, dtype="<u2").reshape(2, 3, 4)
    record = encode_example({"raw": array.tobytes(), "h": 2, "w": 3})
    for shape in ((2, 3, 4), ("h", "w", 4), (-1, "w", 4), ("h", "w", -1)):
        got = parse_single_example(record, {"raw": RawTensor(shape, torch.uint16)})["raw"]
        assert got.dtype == torch.uint16
        assert (got.numpy() == array).all()
        got.zero_()
    other = encode_example({"raw": array[:1].tobytes(), "h": 1, "w": 3})
    spec = {"x": RawTensor(("h", "w", 4), torch.uint16, key="raw")}
    assert parse_example([record, record], spec)["x"].shape == (2, 2, 3, 4)
    assert [item.shape for item in parse_example([record, other], spec)["x"]] == [
        (2, 3, 4),
        (1, 3, 4),
    ]
    complex_values = np.array([1 + 2j, -0.5j], dtype="<c8")
    got = parse_single_example(
        encode_example({"raw": complex_values.tobytes()}), {"raw": RawTensor(2, torch.complex64)}
    )
    assert got["raw"].tolist() == complex_values.tolist()
    got = parse_single_example(
        encode_example({"raw": b"", "n": 0}), {"raw": RawTensor(("n", 3), torch.float32)}
    )
    assert got["raw"].shape == (0, 3)


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        ((5,), torch.uint8, "feature 'x' (RawTensor, key 'r'): expected 5 bytes for shape [5] of uint8, got 6"),
        ((4, -1), torch.uint8, "feature 'x' (RawTensor, key 'r'): expected a multiple of 4 bytes for shape [4, -1] of uint8, got 6"),
        ((0, -1), torch.uint8, "feature 'x' (RawTensor, key 'r'): expected a multiple of 0 bytes for shape [0, -1] of uint8, got 6"),
        ((6,), torch.bool, "feature 'x' (RawTensor, key 'r'): expected bool bytes of 0 or 1, got another value"),
        (("n", 3), torch.uint8, "feature 'x' (size, key 'n'): expected a size, got -2"),
        (("big", "big"), torch.uint8, f"feature 'x' (RawTensor, key 'r'): expected {1 << 124} bytes for shape [{1 << 62}, {1 << 62}] of uint8, got 6"),
        (("gone",), torch.uint8, "feature 'x' (size, key 'gone'): key 'gone' is required but could not be found: the record has 'big', 'n', 'r', 'two'"),
        (("two",), torch.uint8, "feature 'x' (size, key 'two'): Number of int64 values != expected: got 2, expected 1 for shape []"),
        (("r",), torch.uint8, "feature 'x' (size, key 'r'): Data types don't match. Data type: string but expected type: int64"),
    ],
)  # fmt: skip
def test_raw_tensors_that_do_not_fit(shape, dtype, text):
    record = encode_example({"r": b"SECRET", "n": -2, "two": [1, 2], "big": 1 << 62})
    with pytest.raises(ParseError) as caught:
        parse_single_example(record, {"x": RawTensor(shape, dtype, key="r")})
    assert str(caught.value) == text


def test_serialized_tensors():
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    record = encode_example({"t": serialize_tensor(tensor), "s": serialize_tensor(["a", "b"])})
    spec = {"t": SerializedTensor(), "s": SerializedTensor()}
    got = parse_example([record, record], spec)
    assert torch.equal(got["t"], torch.stack([tensor, tensor]))
    assert got["s"] == [[b"a", b"b"]] * 2
    other = encode_example({"t": serialize_tensor(tensor.float()), "s": serialize_tensor("a")})
    assert [item.dtype for item in parse_example([record, other], spec)["t"]] == [
        torch.bfloat16,
        F32,
    ]
    with pytest.raises(
        ParseError,
        match=r"^feature 't' \(SerializedTensor\): Could not parse `serialized` as TensorProto",
    ):
        parse_single_example(encode_example({"t": "\x08"}), {"t": SerializedTensor()})
    bomb = bytes.fromhex("08011208120608808080800" + "1")  # 2**28 floats and no values
    with pytest.raises(LimitExceededError, match=r"^feature 't'"):
        parse_single_example(encode_example({"t": bomb}), {"t": SerializedTensor()})


def picture(height, width, channels=3):
    return (
        torch.arange(channels * height * width)
        .reshape(channels, height, width)
        .remainder(251)
        .to(torch.uint8)
    )


def image_record(height, width, **more):
    return encode_example(
        {"image": encode_image(picture(height, width), "png"), "h": height, "w": width, **more}
    )


def test_images_that_do_not_fit():
    with pytest.raises(ParseError) as caught:
        parse_single_example(image_record(4, 5), {"image": Image(shape=("w", "h", 3))})
    assert str(caught.value) == (
        "feature 'image' (Image): expected an image of (height, width, channels) (5, 4, 3), got (4, 5, 3)"
    )
    with pytest.raises(ImageDecodeError, match=r"^record 1: feature 'image' \(Image\): "):
        parse_example(
            [image_record(4, 5), encode_example({"image": b"no image"})], {"image": Image()}
        )
    with pytest.raises(ParseError, match="key 'image' is required but could not be found"):
        parse_single_example(b"", {"image": Image()})


# --- errors
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (FixedLenFeature((), I64, key="two"), "feature 'x' (int64, key 'two'): Number of int64 values != expected: got 2, expected 1 for shape []"),
        (FixedLenFeature((3,), F32, key="f"), "feature 'x' (float32, key 'f'): Number of float values != expected: got 1, expected 3 for shape [3]"),
        (FixedLenFeature((), bytes, key="two"), "feature 'x' (bytes, key 'two'): Data types don't match. Data type: int64 but expected type: string; the record holds int64: read torch.int64, then convert"),
        (VarLenFeature(F32, key="two"), "feature 'x' (float32, key 'two'): Data types don't match. Data type: int64 but expected type: float; the record holds int64: read torch.int64, then convert"),
        (FixedLenFeature((), I64), "feature 'x' (int64): key 'x' is required but could not be found: the record has 'f', 'text', 'two', 'unset'; to read records that lack it, take VarLenFeature, or a spec with default_value="),
        (FixedLenFeature((), I64, key="unset"), "feature 'x' (int64, key 'unset'): key 'unset' is required but could not be found: it is there without a value; to read records that lack it, take VarLenFeature, or a spec with default_value="),
        (Text(key="text"), "feature 'x' (Text, key 'text'): expected UTF-8 text, got an invalid byte at 6 of 7"),
        (VarLenFeature(str, key="text"), "feature 'x' (str, key 'text'): expected UTF-8 text, got an invalid byte at 6 of 7"),
        (FixedLenFeature((2,), bytes, key="text"), "feature 'x' (bytes, key 'text'): Number of bytes values != expected: got 1, expected 2 for shape [2]"),
    ],
)  # fmt: skip
def test_error_texts(spec, text):
    record = encode_example({"two": [1, 2], "f": 1.0, "text": b"SECRET\xff"}) + bytes.fromhex(
        "0a0b0a090a05756e7365741200"
    )
    for parse in (
        lambda: parse_single_example(record, {"x": spec}),
        lambda: parse_example([record], {"x": spec}),
    ):
        with pytest.raises(ParseError) as caught:
            parse()
        assert caught.value.args[0] == text
        assert "SECRET" not in str(caught.value)


def test_the_lowest_failing_position_is_reported():
    good, no_b, no_a = (
        encode_example({"a": 1, "b": 1}),
        encode_example({"a": 1}),
        encode_example({"b": 1}),
    )
    spec = {"a": FixedLenFeature((), I64), "b": FixedLenFeature((), I64)}
    for rows, position, key in (
        ([good, no_b, no_a], 1, "b"),
        ([good, no_a, no_b], 1, "a"),
        ([no_b, b"\xff", no_a], 0, "b"),
    ):
        with pytest.raises(ParseError, match=f"record {position}: feature '{key}'") as caught:
            parse_example(rows, spec)
        assert caught.value.position == position
    with pytest.raises(ParseError) as caught:
        parse_example([good, b"SECRET"], spec)
    assert str(caught.value) == (
        "record 1: Could not parse example input: expected one Example message, got 6 bytes that are not one"
    )


def test_keys_in_errors_are_shortened():
    record = encode_example({f"key{n}": n for n in range(12)} | {"k" * 200: 1})
    with pytest.raises(ParseError) as caught:
        parse_single_example(record, {"x": Text()})
    assert len(str(caught.value)) < 300
    assert str(caught.value).endswith(
        " and 5 more; to read records that lack it, take VarLenFeature, or a spec with default_value="
    )


def test_wrong_arguments():
    class Unknown(Feature):
        pass

    spec = {"a": VarLenFeature(I64)}
    for features in (None, {}):
        with pytest.raises(ValueError, match="Argument `features` cannot be None or empty"):
            parse_single_example(b"", features)
    for features in ({"a": torch.int64}, {"a": VarLenFeature}, {"a": Unknown()}):
        with pytest.raises(
            TypeError,
            match=r"Unsupported .* expected one of Audio, FixedLenFeature, FixedLenSequenceFeature, Image, Json, NestedExample, Proto, Ragged",
        ):
            parse_single_example(b"", features)
    with pytest.raises(TypeError, match="a name in features must be str, got int"):
        parse_single_example(b"", {1: VarLenFeature(I64)})
    with pytest.raises(TypeError, match="features must be a mapping"):
        parse_single_example(b"", [VarLenFeature(I64)])
    for serialized in ("text", [b""], 5, None, np.zeros(3)):
        with pytest.raises(TypeError, match=r"Input serialized must be a scalar"):
            parse_single_example(serialized, spec)
    for serialized in ("text", np.array([b"a"])):
        with pytest.raises(TypeError, match="serialized must be a list of the records' bytes"):
            parse_example(serialized, spec)
    with pytest.raises(TypeError, match="a list of bytes, got str at 1"):
        parse_example([b"", "x"], spec)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_likes(kind):
    record, spec = kind(encode_example({"a": 1})), {"a": FixedLenFeature((), I64)}
    assert parse_single_example(record, spec)["a"].tolist() == 1
    assert parse_example([record], spec)["a"].tolist() == [1]
    # as TensorFlow: a scalar parses as by parse_single_example
    assert parse_example(record, spec)["a"].tolist() == 1


def test_a_view_of_other_items_is_its_bytes():
    record = encode_example({"a": [1, 2], "t": "xx"})
    assert len(record) % 2 == 0
    spec = {"a": VarLenFeature(I64), "t": Text()}
    for view in (
        memoryview(record).cast("H"),
        memoryview(np.repeat(np.frombuffer(record, np.uint8), 2))[::2],
    ):
        got = parse_single_example(view, spec)
        assert (got["a"].tolist(), got["t"]) == ([1, 2], "xx")


# --- properties
# ----------------------------------------------------------------------------------------------------

ROW = st.fixed_dictionaries(
    {"i": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=2, max_size=2)},
    optional={
        "v": st.lists(st.integers(-9, 9), min_size=1, max_size=40),
        "f": st.floats(width=32),
        "t": st.text(max_size=5),
        "r": st.binary(max_size=8),
    },
)
SPEC = {
    "i": FixedLenFeature(2, I64),
    "v": VarLenFeature(torch.int8),
    "f": FixedLenFeature((), F32, -1),
    "t": FixedLenFeature((), str, ""),
    "r": VarLenFeature(bytes),
}


@pytest.mark.daily
@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=6))
def test_a_batch_is_its_samples(rows):
    records = [encode_example(row) for row in rows]
    samples = [parse_single_example(record, SPEC) for record in records]
    batch = parse_example(records, SPEC)
    for name in SPEC:
        column = batch[name] if isinstance(batch[name], list) else list(batch[name].unbind())
        assert len(column) == len(samples)
        for one, sample in zip(column, samples, strict=True):
            same = (
                bits(one) == bits(sample[name])
                if isinstance(one, torch.Tensor)
                else one == sample[name]
            )
            assert same


@pytest.mark.daily
@settings(max_examples=150, deadline=None)
@given(ROW, st.data())
def test_damaged_records_raise_only_our_errors(row, data):
    record = bytearray(
        encode_example(row | {"raw": b"123456", "t2": serialize_tensor(torch.arange(3)), "n": 3})
    )
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    spec = SPEC | {
        "raw": RawTensor(("n", -1), torch.uint8),
        "t2": SerializedTensor(),
        "img": Image(key="raw"),
    }
    for name, one in spec.items():
        try:
            parse_single_example(bytes(record), {name: one})
        except TFRecordError as error:
            assert str(error)


def test_image_orientation_is_applied_only_when_asked_for():
    # A picture of two pixels, red then blue, stored with EXIF orientation 6: turn it right by 90
    # degrees.
    picture = PillowImage.frombytes("RGB", (2, 1), bytes([255, 0, 0, 0, 0, 255]))
    tags = PillowImage.Exif()
    tags[0x0112] = 6
    file = io.BytesIO()
    picture.save(file, "PNG", exif=tags)
    record = encode_example({"image": file.getvalue()})
    stored = parse_single_example(record, {"image": Image()})["image"]
    turned = parse_single_example(record, {"image": Image(apply_orientation=True)})["image"]
    assert stored.tolist() == [[[255, 0]], [[0, 0]], [[0, 255]]]
    assert turned.tolist() == [[[255], [0]], [[0], [0]], [[0], [255]]]
    assert repr(Image(apply_orientation=True)) == "Image(apply_orientation=True)"


# Parsers are kept between calls.


def test_specs_that_changed_between_calls_count():
    record = encode_example({"a": [1, 2], "b": [3]})
    features = {"a": VarLenFeature(torch.int64)}
    assert parse_single_example(record, features)["a"].tolist() == [1, 2]
    features["b"] = FixedLenFeature((), torch.int32)
    assert list(parse_single_example(record, features)) == ["a", "b"]
    features["a"] = FixedLenFeature((2,), torch.int32)
    assert parse_single_example(record, features)["a"].dtype == torch.int32
    other_order = {"b": features["b"], "a": features["a"]}
    assert list(parse_single_example(record, other_order)) == ["b", "a"]
    assert parse_example([record], features, max_batch_bytes=100)["b"].tolist() == [3]
    with pytest.raises(LimitExceededError):
        parse_example([record], features, max_batch_bytes=1)
    with pytest.raises(TypeError, match="max_batch_bytes"):
        parse_example([record], features, max_batch_bytes=True)


def test_a_default_of_strings_is_nested_in_lists():
    spec = {"s": FixedLenFeature((2, 1), bytes, [b"a", b"b"])}
    assert parse_single_example(b"", spec) == {"s": [[b"a"], [b"b"]]}
    assert parse_example([b""], spec) == {"s": [[[b"a"], [b"b"]]]}
