"""Lists read by their places in the index, against protobuf."""

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_examples import Example

from torch_tfrecord import (
    ParseError,
    TFRecordError,
    TFRecordWriter,
    decode_example,
    encode_example,
    tfds,
)

f = tfds.features
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
KEYS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=20).filter(
    lambda key: key not in ("steps", "_len", "_traj_index")
)
EXAMPLES = st.dictionaries(KEYS, st.one_of(INTEGERS, NUMBERS, STRINGS), max_size=6)
STEP = "steps/at"


def directory(tmp_path, payload, expected):
    """A directory of one episode of this record, whose features are those lists."""
    shutil.rmtree(tmp_path / "lists", ignore_errors=True)
    features = {"steps": f.Dataset({"at": f.Scalar("int64")})}
    for key, values in expected.items():
        dtype = "string" if isinstance(values, list) else values.dtype.name
        features[key] = f.Sequence(f.Scalar(dtype))
    sample = {"steps": [{"at": 7}], **{key: [] for key in expected}}
    tfds.write(tmp_path / "lists" / "1.0.0", {"train": [sample]}, features, name="lists")
    [path] = (tmp_path / "lists" / "1.0.0").glob("*.tfrecord*")
    with TFRecordWriter(path) as writer:
        writer.write(payload)
    return tmp_path / "lists" / "1.0.0"


def assert_same(tmp_path, payload, expected, chosen=None):
    folder = directory(tmp_path, payload, expected)
    features = None if chosen is None else [STEP, *chosen]
    episode = tfds.RLDSEpisodes(folder, features=features)[0]
    for key in expected if chosen is None else chosen:
        values, found = expected[key], episode[key]
        if isinstance(values, list):
            assert found == values
        else:
            assert found.numpy().dtype == values.dtype
            assert found.numpy().tobytes() == values.tobytes()


def with_steps(features):
    return encode_example({**features, STEP: [7]})


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(EXAMPLES, st.randoms(use_true_random=False))
def test_the_values_are_protobufs(tmp_path, features, rng):
    payload = with_steps(features)
    expected = decode_example(payload)
    del expected[STEP]
    assert_same(tmp_path, payload, expected)
    assert_same(tmp_path, payload, expected, [key for key in expected if rng.random() < 0.5])


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(EXAMPLES, st.data())
def test_damage_is_an_error_or_what_protobuf_reads(tmp_path, features, data):
    payload = bytearray(with_steps(features) + b"\0")
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    folder = directory(tmp_path, bytes(payload), features)
    try:
        episode = tfds.RLDSEpisodes(folder)[0]
    except TFRecordError:
        return
    expected = decode_example(bytes(payload))
    for key in features:
        found = episode[key] if isinstance(episode[key], list) else episode[key].numpy()
        assert len(found) == len(expected.get(key, ()))
        assert np.array_equal(
            found, expected.get(key, found), equal_nan=not isinstance(found, list)
        )


def _entry(content):
    return b"\x0a" + bytes([len(content)]) + content


STEPS_ENTRY = _entry(b"\x0a\x08steps/at\x12\x05\x1a\x03\x0a\x01\x07")
KEY = b"\x0a\x01a"
LIST = b"\x12\x07\x1a\x05\x0a\x03\x01\x02\x03"
FORMS = {
    "features twice": with_steps({"a": [1, 2], "b": [b"xy"]}) * 2,
    "numbers unpacked": _entry(STEPS_ENTRY + _entry(KEY + b"\x12\x06\x1a\x04\x08\x01\x08\x02")),
    "value first": _entry(STEPS_ENTRY + _entry(LIST + KEY)),
    "a key twice": _entry(STEPS_ENTRY + _entry(KEY + LIST) * 2),
    "unknown field": _entry(STEPS_ENTRY + _entry(KEY + LIST + b"\x18\x07")),
    "length longer than needed": _entry(STEPS_ENTRY + _entry(b"\x0a\x81\x00a" + LIST)),
}


@pytest.mark.parametrize("name", FORMS)
def test_other_forms(tmp_path, name):
    expected = decode_example(Example.FromString(FORMS[name]).SerializeToString())
    del expected[STEP]
    assert_same(tmp_path, FORMS[name], expected)


@pytest.mark.parametrize("size", [1 << 14, (1 << 21) - 1, 1 << 21, 3 << 20])
def test_frames_of_all_lengths(tmp_path, size):
    """The length of a value takes three bytes, or four from 2 MiB on."""
    frames = {"a": [bytes([number]) * size for number in range(2)], "b": [b""] * 20_000}
    assert_same(tmp_path, with_steps(frames), frames)


def test_lengths_of_frames_longer_than_needed(tmp_path):
    frame = b"\x0a\xa0\x9c\x81\x00" + b"y" * 20_000
    content = b"\x0a\x01a\x12" + _with_length(b"\x0a" + _with_length(frame))
    payload = b"\x0a" + _with_length(STEPS_ENTRY + b"\x0a" + _with_length(content))
    assert_same(tmp_path, payload, {"a": [b"y" * 20_000]})


def _with_length(content):
    n = len(content)
    return bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14]) + content


def _integers(packed):
    feature = b"\x1a" + _entry(_entry(packed))[1:]
    return _entry(_entry(KEY + b"\x12" + bytes([len(feature)]) + feature))


NO_EXAMPLES = {
    "no message": b"\xff\xff\xff",
    "an integer cut": _integers(b"\x01\x80"),
    "an integer too long": _integers(b"\x80" * 10 + b"\x01"),
    "bytes cut": _entry(_entry(KEY + b"\x12\x05\x0a\x03\x0a\x05a")),
}


@pytest.mark.parametrize("name", NO_EXAMPLES)
def test_what_is_no_example(tmp_path, name):
    folder = directory(tmp_path, NO_EXAMPLES[name], {})
    with pytest.raises(ParseError, match="Could not parse example input"):
        tfds.RLDSEpisodes(folder)


def test_an_empty_example(tmp_path):
    folder = directory(tmp_path, encode_example({}), {})
    with pytest.raises(ParseError, match="expected a feature that determines the number of steps"):
        tfds.RLDSEpisodes(folder)


def test_long_texts_of_steps(tmp_path):
    """Lists of values as large as pictures, which a record holds apart from the short ones."""
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
