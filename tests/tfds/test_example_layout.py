"""Places of lists, against protobuf."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord import ParseError, decode_example, encode_example
from torch_tfrecord.protobuf.messages import Example
from torch_tfrecord.tfds.example_layout import (
    BYTES,
    FLOATS,
    UNSET,
    canonical,
    decode_integers,
    find_entries,
    split_values,
    value_head_bytes,
    value_starts,
)

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


def find_lists(payload):
    """Without the keys whose kind is not set, which protobuf's readers leave out."""
    entries = find_entries(payload)
    return entries and {key: found for key, found in entries.items() if found.kind != UNSET}


def values_at(payload, place):
    content = payload[place.start : place.start + place.num_bytes]
    if place.kind == BYTES:
        lengths = np.array(place.lengths, np.int64)
        starts = value_starts(place.start, lengths, value_head_bytes(lengths)).tolist()
        values = [
            payload[start : start + length]
            for start, length in zip(starts, place.lengths, strict=True)
        ]
        assert split_values(content) == values
        return values
    return np.frombuffer(content, "<f4") if place.kind == FLOATS else decode_integers(content)


def assert_same(payload, lists):
    expected = decode_example(payload)
    assert set(lists) == set(expected)
    for key, place in lists.items():
        found = values_at(payload, place)
        assert place.num_values == len(expected[key]) == len(found)
        if place.kind == BYTES:
            assert found == expected[key]
        else:
            assert found.tobytes() == expected[key].tobytes()


@given(EXAMPLES)
def test_the_values_are_protobufs(features):
    payload = encode_example(features)
    assert_same(payload, find_entries(payload))


@given(EXAMPLES, st.data())
def test_damage_is_no_crash_and_no_place_outside(features, data):
    payload = bytearray(encode_example(features) + b"\0")
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    for key, place in (find_entries(bytes(payload)) or {}).items():
        assert isinstance(key, str)
        assert 0 <= place.start <= place.start + place.num_bytes <= len(payload)


def other_forms():
    usual = encode_example({"a": [1, 2], "b": [b"xy"]})
    extra = Example.FromString(usual)
    twice = usual + usual
    unpacked = _unpacked()
    reversed_entry = _entry(b"\x12\x07\x1a\x05\x0a\x03\x01\x02\x03" + b"\x0a\x01a")
    unknown = _entry(b"\x0a\x01a\x12\x07\x1a\x05\x0a\x03\x01\x02\x03" + b"\x18\x07")
    long_length = _entry(b"\x0a\x81\x00a\x12\x07\x1a\x05\x0a\x03\x01\x02\x03")
    assert extra.SerializeToString(deterministic=True) == usual
    return {
        "features twice": twice,
        "numbers unpacked": unpacked,
        "value first": reversed_entry,
        "unknown field": unknown,
        "length longer than needed": long_length,
    }


def _entry(content):
    entry = b"\x0a" + bytes([len(content)]) + content
    return b"\x0a" + bytes([len(entry)]) + entry


def _unpacked():
    return _entry(b"\x0a\x01a\x12\x06\x1a\x04\x08\x01\x08\x02")


@pytest.mark.parametrize("name", list(other_forms()))
def test_other_forms_are_left_to_protobuf(name):
    payload = other_forms()[name]
    assert find_entries(payload) is None
    usual = canonical(payload)
    assert_same(usual, find_entries(usual))
    found, expected = decode_example(usual), decode_example(payload)
    assert {key: list(values) for key, values in found.items()} == {
        key: list(values) for key, values in expected.items()
    }


def test_what_is_no_example():
    with pytest.raises(ParseError, match="Could not parse example input"):
        canonical(b"\xff\xff\xff")


def test_an_empty_example():
    assert find_entries(encode_example({})) == {}
    assert find_entries(canonical(b"")) == {}


def test_integers_cut_in_the_middle():
    with pytest.raises(ParseError, match="expected packed integers, got 2 bytes"):
        decode_integers(b"\x01\x80")
    with pytest.raises(ParseError, match="expected packed integers, got 11 bytes"):
        decode_integers(b"\x80" * 10 + b"\x01")


def test_bytes_cut_in_the_middle():
    with pytest.raises(ParseError, match="expected a list of bytes, got 3 bytes"):
        split_values(b"\x0a\x05a")
