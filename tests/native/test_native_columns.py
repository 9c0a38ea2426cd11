"""The compiled loops over Examples: their ways through long lists and many keys give what was written; what no caller
ours asks of them is refused. Any bytes at all: `tests/protobuf/test_wire.py` and `fuzz/`, also under the sanitizers.
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from helpers import for_each
from wire_examples import Example, length_delimited, varint

from torch_tfrecord import (
    FixedLenFeature,
    ParseError,
    VarLenFeature,
    encode_example,
    parse_example,
    parse_single_example,
)

core = pytest.importorskip(
    "torch_tfrecord.native.columns", reason="the compiled core was not built"
)
jobs = pytest.importorskip("torch_tfrecord.native.jobs")

HUGE = (1 << 63) - 1
EXTREMES = [0, 1, 127, 128, 1 << 21, 1 << 35, (1 << 56) - 1, 1 << 56, (1 << 63) - 1, -1, -(1 << 63)]


@for_each("count", [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 72, 73, 130, 2048])
@for_each("largest", [0, 1, 3, 8, 13, 56, 63, None])
def test_integers_of_every_length(count, largest):
    rng = np.random.default_rng(count)
    values = (
        rng.choice(EXTREMES, count)
        if largest is None
        else rng.integers(0, (1 << largest) - 1, count, endpoint=True)
    )
    rows = [values, values[::-1].copy()]
    records = [encode_example({"i": rows[0]}), encode_example({"x": 1, "i": rows[1]})]
    features = {
        "fixed": FixedLenFeature((count,), torch.int64, key="i"),
        "any": VarLenFeature(torch.int64, key="i"),
    }
    for column in parse_example(records, features).values():
        assert [row.tolist() for row in column.unbind()] == [row.tolist() for row in rows]
    with pytest.raises(ParseError):
        parse_example(records, {"i": FixedLenFeature((count + 1,), torch.int64)})


def test_keys_in_any_order_and_of_any_number():
    rng = np.random.default_rng(0)
    keys = [f"key{number}" for number in range(300)] + ["é" * 10, "long" * 30, ""]
    rows = []
    for _ in range(12):
        chosen = rng.permutation(keys)[: rng.integers(1, len(keys))].tolist()
        rows.append({key: int(rng.integers(0, 1 << 40)) for key in chosen})
    features = {key: FixedLenFeature((), torch.int64, -5) for key in keys[::3]}
    found = parse_example([encode_example(row) for row in rows], features)
    for key in features:
        assert found[key].tolist() == [row.get(key, -5) for row in rows]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_each_decoder_of_varints(level):
    rng = np.random.default_rng(level)
    for bits_of in (
        [7],
        [14],
        [16],
        [14, 21],
        [28],
        [7, 28],
        [29],
        [35, 7],
        [63, 7],
        [64],
        [56, 64, 7],
    ):
        for count in (1, 15, 16, 17, 40, 300):
            numbers = [
                int(rng.integers(0, 1 << 63)) * 2 >> (64 - bits_of[i % len(bits_of)])
                for i in range(count)
            ]
            for gap in (0, 1, count // 2):
                data = b"".join(
                    varint(n, 1 if gap and i % gap == 0 and n < 1 << 56 else 0)
                    for i, n in enumerate(numbers)
                )
                values = np.full(count, -9, np.int64)
                taken = core.varints(data, values, level)
                if taken is None:
                    pytest.skip("not on this processor")
                assert taken
                assert values.view(np.uint64).tolist() == numbers
    for bad in (
        b"\x80" * 10 + b"\x01",
        b"\xff" * 9 + b"\x02",
        b"\x01" * 100 + b"\x80" * 12 + b"\x00",
    ):
        assert (
            core.varints(bad, np.zeros(sum(byte < 0x80 for byte in bad), np.int64), level) is False
        )


@pytest.mark.parametrize(
    "text",
    [
        b"\xc2\x80",
        b"\xdf\xbf",
        b"\xe0\xa0\x80",
        b"\xed\x9f\xbf",
        b"\xee\x80\x80",
        b"\xf0\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xc2",
        b"\xe1\x80",
        b"\xf1\x80\x80",
        b"\xe1\x80\xc0",
        b"\xc2\xc0",
        b"a\xfe",
    ],
)
def test_keys_are_strict_utf_8(text):
    entry = length_delimited(1, text) + length_delimited(2, b"")
    record = length_delimited(1, length_delimited(1, entry))
    features = {"i": VarLenFeature(torch.int64)}
    try:
        Example.FromString(record)
    except DecodeError:
        with pytest.raises(ParseError):
            parse_single_example(record, features)
    else:
        assert len(parse_single_example(record, features)["i"]) == 0


OUTSIDE = [(-1, 1), (0, -1), (0, 5), (5, 0), (4, 1)]
OUTSIDE += [(HUGE, HUGE), (1, HUGE), (HUGE, 1), (-HUGE, HUGE)]


def test_arguments_that_do_not_fit():
    plan = core.Plan([(b"i", 3, 1, True)])
    buffer, block, offsets, missing = (
        np.zeros(4, np.uint8),
        np.zeros(8, np.uint8),
        np.zeros((0, 2), int),
        np.zeros((1, 1), np.uint8),
    )

    def parse(starts, lengths, block=block, offsets=offsets, missing=missing):
        arrays = np.array(starts), np.array(lengths), block, offsets, missing
        return core.ParseJob(plan, buffer, *arrays).finish()

    for start, length in OUTSIDE:
        with pytest.raises(ValueError, match="record 0 lies outside the buffer of 4 bytes"):
            parse([start], [length])
    with pytest.raises(ValueError, match="as many lengths as starts"):
        parse([0], [0, 0])
    with pytest.raises(ValueError, match="expected a block of 8 bytes, got 7"):
        parse([0], [0], block=np.zeros(7, np.uint8))
    for change in ({"offsets": np.zeros((1, 2), int)}, {"missing": np.zeros((1, 2), np.uint8)}):
        with pytest.raises(ValueError, match="the shape of offsets or missing"):
            parse([0], [0], **change)
    unaligned = np.zeros(16, np.uint8)[1:9]
    with pytest.raises(ValueError, match="at an address that eight divides"):
        parse([0], [0], block=unaligned)
    for slot in ((b"i", 0, 1, True), (b"i", 4, 1, True), (b"i", 3, -2, True)):
        with pytest.raises(
            ValueError, match="expected a kind from 1 to 3 and a count of at least -1"
        ):
            core.Plan([slot])
    with pytest.raises(ValueError, match="float columns of a number must come last"):
        core.Plan([(b"f", 2, 1, True), (b"i", 3, 1, True)])
    with pytest.raises(ValueError, match="a key occurs twice"):
        core.Plan([(b"i", 3, 1, True), (b"i", 3, 2, True)])
    for spans in ([0, 5], [-1, 1], [0, -1], [4, 1], [HUGE, HUGE]):
        for read in (core.copies, core.texts):
            with pytest.raises(ValueError, match="a value lies outside the buffer"):
                read(buffer, np.array(spans))
    with pytest.raises(UnicodeDecodeError):
        core.texts(b"a\xff", np.array([0, 1, 0, 2]))
    text = encode_example({"t": "ä"})
    block, _, _ = core.Plan([(b"t", 1, 1, True)]).parse_one(text)
    with pytest.raises(UnicodeDecodeError):
        core.string_at(text[:-1] + b"a", block, 0, True)
    with pytest.raises(
        ValueError, match=f"a value lies outside the buffer of {len(text) - 1} bytes"
    ):
        core.string_at(text[:-1], block, 0, False)
    for place in (-1, 1, HUGE):
        with pytest.raises(ValueError, match="a span lies outside the block of 16 bytes"):
            core.string_at(text, block, place, False)
    text = encode_example({"t": ["ä", ""]})
    _, [spans], _ = core.Plan([(b"t", 1, -1, True)]).parse_one(text)
    with pytest.raises(ValueError, match="a value lies outside the buffer of 5 bytes"):
        core.strings_in(text[:5], spans, False)
    with pytest.raises(UnicodeDecodeError):
        core.strings_in(text.replace("ä".encode(), b"\xc3a"), spans, True)
    spans = np.array([0, 1, 1, 3, 2, 0])
    for ends in ([-1, 1], [0, 4], [2, 1], [0, HUGE], [-HUGE, 0]):
        with pytest.raises(ValueError, match="list 0 lies outside the 3 values"):
            core.copies(b"abcd", spans, np.array(ends))


def test_many_bytes_are_copied_like_few():
    buffer = np.random.default_rng(0).bytes(1 << 20)
    cuts = np.array([0, 0, 1, 2, 70_000, 70_001, 1 << 20, 1 << 20])
    spans = np.stack([cuts[:-1], np.diff(cuts)], 1).reshape(-1)
    values = [buffer[begin:end] for begin, end in pairwise(cuts.tolist())]
    assert core.copies(buffer, spans) == values
    # from the second value on, with a list of none
    assert core.copies(buffer, spans, np.array([1, 4, 4, 6])) == [values[1:4], [], values[4:6]]
    with pytest.raises(ValueError, match="a value lies outside the buffer of 1048576 bytes"):
        core.copies(buffer, np.append(spans, [1, 1 << 20]))
    with pytest.raises(ValueError, match="list 1 lies outside the 7 values"):
        core.copies(buffer, spans, np.array([0, 3, 8]))


def test_arguments_of_sequences_that_do_not_fit():
    plan = core.SequencePlan([(b"i", 3)])
    buffer = np.zeros(4, np.uint8)

    def parse(starts, lengths, contexts=(1, 2), borders=(1, 2), missing=(1, 1)):
        arrays = (
            np.zeros(contexts, np.int64),
            np.zeros(borders, np.int64),
            np.zeros(missing, np.uint8),
        )
        return plan.parse(buffer, np.array(starts), np.array(lengths), *arrays)

    for start, length in OUTSIDE:
        with pytest.raises(ValueError, match="record 0 lies outside the buffer of 4 bytes"):
            parse([start], [length])
    with pytest.raises(ValueError, match="as many lengths as starts"):
        parse([0], [0, 0])
    for name in ("contexts", "missing", "borders"):
        for shape in ((1, 3), (2, 2)):
            with pytest.raises(ValueError, match=f"the shape of .*{name}"):
                parse([0], [0], **{name: shape})
    for slots, text in (
        ([(b"i", 3), (b"i", 2)], "a key occurs twice"),
        ([(b"i", 4)], "expected a kind from 1 to 3"),
    ):
        with pytest.raises(ValueError, match=text):
            core.SequencePlan(slots)


def test_what_is_no_job_is_an_error():
    assert jobs.run([]) == 0
    with pytest.raises(TypeError):
        jobs.run([print])
    with pytest.raises(ValueError, match=r"expected a job that was prepared, got Job\(\)"):
        jobs.run([jobs.Job()])


class Adding(bytes):
    """A key that adds other slots to a list when its bytes are asked for."""

    slots = None

    def __bytes__(self):
        self.slots += [(b"more %d" % number, 3, 1, True) for number in range(20)]
        return b"key"


def test_slots_that_add_to_their_own_list_are_those_at_the_call():
    key = Adding(b"key")
    key.slots = slots = [(key, 3, 1, True)]
    plan = core.Plan(slots)
    assert len(slots) == 21
    one, block = np.array([0], np.int64), np.zeros(8, np.uint8)
    record = encode_example({"key": 7})
    missing, offsets = np.zeros((1, 1), np.uint8), np.zeros((0, 2), np.int64)
    job = core.ParseJob(plan, record, one, one + len(record), block, offsets, missing)
    assert job.finish() == ([], None, [])
    assert block.view(np.int64).tolist() == [7]


def test_lists_of_strings_are_hidden_until_they_are_shown():
    spans, splits = np.array([0, 1, 1, 2]), np.array([0, 1, 1, 2])
    assert gc.is_tracked(core.copies(b"abc", spans, splits)[0])
    core.hide(True)
    try:
        rows, texts = core.copies(b"abc", spans, splits), core.texts(b"abc", spans)
        with ThreadPoolExecutor(1) as other:  # only in this thread
            assert gc.is_tracked(other.submit(core.texts, b"abc", spans).result())
    finally:
        core.hide(False)
    assert gc.is_tracked(core.texts(b"abc", spans))
    assert [gc.is_tracked(values) for values in (*rows, texts)] == [False] * 4
    for _ in range(2):
        core.show(rows)
        core.show(texts)
        core.show([])
        assert all(gc.is_tracked(values) for values in (*rows, texts))
    assert (rows, texts) == ([[b"a"], [], [b"bc"]], ["a", "bc"])
