"""Lists read by their places in the index, against protobuf."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_examples import Example

from torch_tfrecord import (
    ParseError,
    TFRecordWriter,
    build_index,
    decode_example,
    encode_example,
    tfds,
)
from torch_tfrecord.columns import Want
from torch_tfrecord.files import open_file
from torch_tfrecord.rlds.episode_index import build_episode_index
from torch_tfrecord.rlds.episode_reader import EpisodeReader, Frames

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40).map(
    lambda values: np.array(values, np.int64)
)
NUMBERS = st.lists(st.floats(width=32, allow_nan=False), max_size=40).map(
    lambda values: np.array(values, np.float32)
)
STRINGS = st.lists(
    st.one_of(st.binary(max_size=6), st.just(b"x" * 200), st.just(b"y" * 20_000)),
    min_size=1,
    max_size=9,
)
EXAMPLES = st.dictionaries(st.text(max_size=20), st.one_of(INTEGERS, NUMBERS, STRINGS), max_size=6)
STEPS = {"the steps": 1}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "data.tfrecord")


def indexed(path, payload):
    """The record of a file of one."""
    with TFRecordWriter(path) as writer:
        writer.write(payload)
    records = build_index(path)
    index = build_episode_index(open_file(path), records, STEPS)
    return EpisodeReader([path], [records], [index]).record(0, 0)


def dtype_of(values):
    if isinstance(values, list):
        return bytes
    return torch.float32 if values.dtype == np.float32 else torch.int64


def assert_same(record, expected, keys=None):
    lists = record.lists([Want(key, key, dtype_of(expected[key]), "") for key in keys or expected])
    assert set(lists) == set(keys or expected)
    for key, found in lists.items():
        if isinstance(expected[key], list):
            assert (found.read(0, len(found)) if isinstance(found, Frames) else found) == expected[
                key
            ]
        else:
            assert found.dtype == expected[key].dtype
            assert found.tobytes() == expected[key].tobytes()


def with_steps(features):
    return encode_example({**features, "the steps": [7]})


@settings(suppress_health_check=list(HealthCheck))
@given(EXAMPLES, st.randoms(use_true_random=False))
def test_the_values_are_protobufs(path, features, rng):
    payload = with_steps(features)
    record, expected = indexed(path, payload), decode_example(payload)
    assert set(record.places()) == set(expected)
    assert_same(record, expected)
    assert_same(record, expected, rng.sample(sorted(expected), rng.randint(1, len(expected))))


@settings(suppress_health_check=list(HealthCheck))
@given(EXAMPLES, st.data())
def test_damage_is_an_error_or_what_protobuf_reads(path, features, data):
    payload = bytearray(with_steps(features) + b"\0")
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    try:
        record = indexed(path, bytes(payload))
    except ParseError:
        return
    assert_same(record, decode_example(bytes(payload)))


def test_large_lists_are_frames(path):
    record = indexed(path, with_steps({"a": [b"y" * 20_000] * 3, "b": [b""] * 20_000}))
    assert [key for key, place in record.places().items() if len(place) > 1] == ["a"]


def _entry(content):
    return b"\x0a" + bytes([len(content)]) + content


STEPS_ENTRY = _entry(b"\x0a\x09the steps\x12\x05\x1a\x03\x0a\x01\x07")
KEY = b"\x0a\x01a"
LIST = b"\x12\x07\x1a\x05\x0a\x03\x01\x02\x03"
FORMS = {
    "features twice": with_steps({"a": [1, 2], "b": [b"xy"]}) * 2,
    "numbers unpacked": _entry(STEPS_ENTRY + _entry(KEY + b"\x12\x06\x1a\x04\x08\x01\x08\x02")),
    "value first": _entry(STEPS_ENTRY + _entry(LIST + KEY)),
    "unknown field": _entry(STEPS_ENTRY + _entry(KEY + LIST + b"\x18\x07")),
    "length longer than needed": _entry(STEPS_ENTRY + _entry(b"\x0a\x81\x00a" + LIST)),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms(path, name):
    record, message = indexed(path, FORMS[name]), Example.FromString(FORMS[name])
    assert record.places() is None or name == "numbers unpacked"
    assert_same(record, decode_example(message.SerializeToString()))


@pytest.mark.parametrize("size", [1 << 14, (1 << 21) - 1, 1 << 21, 3 << 20])
def test_frames_of_all_lengths(path, size):
    """The length of a value takes three bytes, or four from 2 MiB on."""
    frames = [bytes([number]) * size for number in range(2)]
    record = indexed(path, with_steps({"a": frames}))
    assert len(record.places()["a"]) == 3
    assert_same(record, {"a": frames, "the steps": np.array([7])})


def test_lengths_of_frames_longer_than_needed(path):
    frame = b"\x0a\xa0\x9c\x81\x00" + b"y" * 20_000
    content = b"\x0a\x09the steps\x12" + _with_length(b"\x0a" + _with_length(frame))
    payload = b"\x0a" + _with_length(b"\x0a" + _with_length(content))
    record = indexed(path, payload)
    assert record.places() is None
    assert_same(record, {"the steps": [b"y" * 20_000]})


def _with_length(content):
    n = len(content)
    return bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14]) + content


def test_what_is_no_example(path):
    with pytest.raises(ParseError, match="Could not parse example input"):
        indexed(path, b"\xff\xff\xff")


def test_an_empty_example(path):
    with pytest.raises(ParseError, match="expected a feature that determines the number of steps"):
        indexed(path, encode_example({}))


@pytest.mark.parametrize("numbers", [b"\x01\x80", b"\x80" * 10 + b"\x01"])
def test_integers_cut_in_the_middle(path, numbers):
    packed = b"\x0a" + bytes([len(numbers)]) + numbers
    feature = b"\x1a" + bytes([len(packed)]) + packed
    with pytest.raises(ParseError, match="Could not parse example input"):
        indexed(path, _entry(_entry(KEY + b"\x12" + bytes([len(feature)]) + feature)))


def test_bytes_cut_in_the_middle(path):
    with pytest.raises(ParseError, match="Could not parse example input"):
        indexed(path, _entry(_entry(KEY + b"\x12\x05\x0a\x03\x0a\x05a")))


def test_long_texts_of_steps(tmp_path):
    """Lists of values as large as pictures, which a record holds apart from the short ones."""
    f = tfds.features
    features = {
        "steps": f.Dataset(
            {"language_instruction": f.Text(), "blob": f.Scalar("string"), "at": f.Scalar("int64")}
        )
    }
    steps = [
        {"language_instruction": f"step {at} " * 30, "blob": bytes([at]) * 200, "at": at}
        for at in range(150)
    ]
    tfds.write(tmp_path / "1.0.0", {"train": [{"steps": steps}]}, features, name="long")
    ds = tfds.RLDSDataset(tmp_path / "1.0.0")
    for at in (0, 149):
        assert ds[at]["language_instruction"] == ds[at]["task"]["language_instruction"]
        assert ds[at]["language_instruction"] == f"step {at} " * 30
        assert (ds[at]["blob"], ds[at]["at"].item()) == (bytes([at]) * 200, at)
    batch = ds[[2, 1]]
    assert batch["language_instruction"] == [f"step {at} " * 30 for at in (2, 1)]
    whole = tfds.RLDSEpisodes(tmp_path / "1.0.0")[0]["steps"]
    assert whole["language_instruction"] == [step["language_instruction"] for step in steps]
