"""What a batch needs has a limit: a few bytes of records that stand for gigabytes are refused
before they have them.
"""

import io
import re
import textwrap

import numpy as np
import PIL.Image
import pytest
import torch
from helpers import pure_python, run_program

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    LimitExceededError,
    PaddedCollate,
    ParseError,
    RaggedFeature,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    encode_sequence_example,
    make_dataloader,
    parse_example,
    parse_sequence_example,
)

I64 = torch.int64


def tensor_of(*sizes):
    """A TensorProto of uint8 zeros that holds none of them."""

    def varint(value):
        low = bytes([value & 0x7F | 0x80]) if value > 0x7F else bytes([value])
        return low + (varint(value >> 7) if value > 0x7F else b"")

    dims = b"".join(
        b"\x12" + varint(len(dim)) + dim for dim in (b"\x08" + varint(size) for size in sizes)
    )
    return b"\x08\x04\x12" + varint(len(dims)) + dims


def png(height, width):
    out = io.BytesIO()
    PIL.Image.fromarray(np.zeros((height, width), np.uint8)).save(out, "png")
    return out.getvalue()


ROW_IDS = RaggedFeature(I64, value_key="x", partitions=[RaggedFeature.ValueRowIds("ids")])
TEXT_ROW_IDS = RaggedFeature(bytes, value_key="x", partitions=[RaggedFeature.ValueRowIds("ids")])
ROWS = FixedLenSequenceFeature((), I64, allow_missing=True)

# Records, the spec of "x", and the sum in bytes that the batch needs, column and what it is put
# together from.
BOMBS = {
    "padded numbers": (
        [encode_example({"x": [1] * 1000} if number == 3 else {}) for number in range(50)],
        ROWS,
        50 * 1000 * 8,
        "record 3: feature 'x' (int64)",
    ),
    "padded strings": (
        [encode_example({"x": [b"a"] * 1000} if number == 3 else {}) for number in range(50)],
        FixedLenSequenceFeature((), bytes, allow_missing=True),
        50 * 1000 * 8,
        "record 3: feature 'x' (bytes)",
    ),
    "row ids": (
        [encode_example({"x": [1], "ids": [9_999]})] * 10,
        ROW_IDS,
        10 * (10_001 * 8) + 10 * (10_000 * 8 + 8),
        "feature 'x' (int64)",
    ),
    "row ids of strings": (
        [encode_example({"x": [b"a"], "ids": [9_999]})] * 10,
        TEXT_ROW_IDS,
        10 * (10_001 * 8) + 10 * (10_001 * 112),
        "feature 'x' (bytes)",
    ),
    "serialized tensors": (
        [encode_example({"x": tensor_of(100, 100)})] * 10,
        SerializedTensor(),
        2 * 10 * 10_000,
        "feature 'x' (SerializedTensor)",
    ),
    "images": (
        [encode_example({"x": png(100, 200)})] * 10,
        Image(),
        10 * 100 * 200 * 3,
        "feature 'x' (Image)",
    ),
    "normalized images": (
        [encode_example({"x": png(100, 200)})] * 10,
        Image(normalize=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
        10 * 100 * 200 * 3 * 4,
        "feature 'x' (Image)",
    ),
    "defaults": (
        [encode_example({})] * 100,
        FixedLenFeature((1000,), torch.float32, default_value=[0.5] * 1000),
        100 * 1000 * 4,
        "feature 'x' (float32)",
    ),
    "numbers": (
        [encode_example({"x": [1] * 100})] * 100,
        FixedLenFeature((100,), I64),
        80_000,
        "feature 'x' (int64)",
    ),
    "var-length": (
        [encode_example({"x": [1] * 100})] * 100,
        VarLenFeature(I64),
        80_000,
        "feature 'x' (int64)",
    ),
    "raw tensors": (
        [encode_example({"x": bytes(1000)})] * 10,
        RawTensor((1000,), torch.uint8),
        10_000,
        "feature 'x' (RawTensor)",
    ),
}


@pytest.mark.parametrize("is_pure", [False, True])
@pytest.mark.parametrize("name", BOMBS)
def test_a_batch_needs_at_most_its_budget(name, is_pure):
    records, spec, needed, place = BOMBS[name]
    with pure_python(is_pure):
        parse_example(records, {"x": spec}, max_batch_bytes=needed)
        with pytest.raises(LimitExceededError) as error:
            parse_example(records, {"x": spec}, max_batch_bytes=needed - 1)
    text = f"expected a batch of at most {needed - 1} bytes (max_batch_bytes), got one that needs {needed}"
    assert str(error.value).endswith(text)
    assert place in str(error.value)


@pytest.mark.daily
@pytest.mark.parametrize("is_pure", [False, True])
def test_a_default_that_is_far_larger_than_the_records(is_pure):
    records = [encode_example({})] * 100
    spec = FixedLenFeature((1 << 17,), torch.int8, default_value=[7] * (1 << 17))
    with pure_python(is_pure):
        assert parse_example(records, {"x": spec})["x"].sum().item() == 700 << 17
        text = (
            r"^feature 'x' \(int8\): expected a batch of at most 50000000 bytes .* needs 104857600$"
        )
        with pytest.raises(LimitExceededError, match=text):
            parse_example(records, {"x": spec}, max_batch_bytes=50_000_000)
        wrong = [*records, encode_example({"x": 5})]
        with pytest.raises(
            ParseError, match=r"^record 100: feature 'x' \(int8\): Number of int64 values"
        ):
            parse_example(wrong, {"x": spec})


def test_defaults_of_a_context_count():
    spec = {"x": FixedLenFeature((1000,), torch.float32, default_value=[0.5] * 1000)}
    records = [encode_sequence_example({}, {})] * 100
    parse_sequence_example(records, spec, max_batch_bytes=400_000)
    with pytest.raises(LimitExceededError, match=r"^feature 'x' \(float32\): .* needs 400000$"):
        parse_sequence_example(records, spec, max_batch_bytes=399_999)


def test_the_sum_over_columns_counts():
    records = [encode_example({"x": [1] * 10, "y": [1] * 10})] * 10
    specs = {"x": ROWS, "y": ROWS}
    parse_example(records, specs, max_batch_bytes=1600)
    with pytest.raises(LimitExceededError, match=r"feature 'y' .* got one that needs 1600$"):
        parse_example(records, specs, max_batch_bytes=1599)


def test_an_error_of_a_record_comes_before_one_of_the_batch():
    records = [*BOMBS["padded numbers"][0], encode_example({"x": b"text"})]
    with pytest.raises(ParseError, match=r"^record 50: feature 'x'"):
        parse_example(records, {"x": ROWS}, max_batch_bytes=1000)


def test_sequence_examples():
    long = encode_sequence_example({}, {"x": [[1]] * 1000})
    short = encode_sequence_example({}, {"x": [[1]]})
    specs = {"x": FixedLenSequenceFeature((1,), I64)}
    parse_sequence_example([short, long] * 10, None, specs, max_batch_bytes=160_000)
    with pytest.raises(
        LimitExceededError, match=r"^record 1: feature 'x' \(int64\): .* at most 159999 bytes"
    ):
        parse_sequence_example([short, long] * 10, None, specs, max_batch_bytes=159_999)
    ragged = encode_sequence_example({}, {"x": [[1]], "ids": [[9_999]]})
    with pytest.raises(LimitExceededError, match="max_batch_bytes"):
        parse_sequence_example([ragged] * 10, None, {"x": ROW_IDS}, max_batch_bytes=1_000_000)


@pytest.fixture
def bombs(tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for _ in range(20):
            writer.write(encode_example({"x": tensor_of(100, 100)}))
    return str(path)


TENSORS = {"x": SerializedTensor()}


@pytest.mark.parametrize("transform", [None, dict])
def test_datasets(bombs, transform):
    ds = TFRecordDataset(bombs, TENSORS, transform=transform, max_batch_bytes=50_000)
    assert collate(ds.__getitems__([1, 2]))["x"].shape == (2, 100, 100)
    text = f"^{re.escape(bombs)}: record 7 at byte .*: feature 'x' .*: expected a batch of at most 50000 bytes"
    with pytest.raises(LimitExceededError, match=text):
        ds.__getitems__([2, 3, 4, 5, 6, 7, 8])
    with pytest.raises(
        LimitExceededError, match=f"^{re.escape(bombs)}: record 3 at byte .*: feature 'x'"
    ):
        TFRecordDataset(bombs, TENSORS, transform=transform, max_batch_bytes=9_999)[3]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_make_dataloader(bombs, num_threads):
    arguments = {"shuffle": False, "num_threads": num_threads}
    loader = make_dataloader(bombs, 2, TENSORS, max_batch_bytes=50_000, **arguments)
    assert [len(batch["x"]) for batch in loader] == [2] * 10
    with pytest.raises(LimitExceededError, match=r"record 5 at byte .*: feature 'x'"):
        next(iter(make_dataloader(bombs, 10, TENSORS, max_batch_bytes=50_000, **arguments)))
    with pytest.raises(ValueError, match="max_batch_bytes cannot be given with a dataset"):
        make_dataloader(TFRecordDataset(bombs), 10, max_batch_bytes=50_000)


def test_batches_read_together_count_each_alone(bombs):
    ds = TFRecordDataset(bombs, TENSORS, max_batch_bytes=50_000)
    assert [len(batch) for batch in ds._load_batches([[0, 1], [2, 3], [4, 5]])] == [2, 2, 2]
    ds = TFRecordDataset(bombs, TENSORS, transform=dict, max_batch_bytes=50_000)
    batches = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [len(ds.__getitems__(batch)) for batch in batches] == [3, 3, 3]


def test_padded_collate():
    samples = [{"x": torch.zeros(1000 if number == 3 else 0, 2)} for number in range(50)]
    assert PaddedCollate(max_batch_bytes=400_000)(samples)["x"].shape == (50, 1000, 2)
    text = (
        "['x']: expected a batch of at most 399999 bytes (max_batch_bytes), got one that needs 400000; its largest is "
        "sample 3"
    )
    with pytest.raises(LimitExceededError, match=f"^{re.escape(text)}$"):
        PaddedCollate(max_batch_bytes=399_999)(samples)
    words = [{"w": [b"a"] * (1000 if number == 3 else 0)} for number in range(50)]
    with pytest.raises(
        LimitExceededError, match=r"^\['w'\]: .* needs 400000; its largest is sample 3$"
    ):
        PaddedCollate(max_batch_bytes=399_999)(words)


def test_padded_collate_names_the_record(tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for number in range(10):
            writer.write(encode_example({"x": [1] * (1000 if number == 3 else 1)}))
    ds = TFRecordDataset(path, {"x": VarLenFeature(I64)})
    with pytest.raises(
        LimitExceededError,
        match=rf"its largest is sample 1: {re.escape(str(path))}: record 3 at byte",
    ):
        PaddedCollate(max_batch_bytes=10_000)(ds.__getitems__([2, 3, 4]))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4GiB", None, True])
def test_arguments(bombs, wrong):
    calls = [
        lambda: TFRecordDataset(bombs, TENSORS, max_batch_bytes=wrong),
        lambda: TFRecordDataset(bombs, max_batch_bytes=wrong),
        lambda: TFRecordIterableDataset(bombs, max_batch_bytes=wrong),
        lambda: make_dataloader(bombs, 1, max_batch_bytes=wrong),
        lambda: parse_example([], TENSORS, max_batch_bytes=wrong),
        lambda: PaddedCollate(max_batch_bytes=wrong),
    ]
    for call in calls:
        with pytest.raises(
            ValueError if type(wrong) is int else TypeError,
            match=r"^max_batch_bytes must be an integer of at least 1, got",
        ):
            call()


@pytest.mark.daily
def test_nothing_is_allocated_for_what_is_refused(tmp_path):
    """The figures of an attack, with the budget that nobody chose: memory stays as it was."""
    program = """
        import resource, sys
        import torch
        from torch_tfrecord import *

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        empty, large = encode_example({}), encode_example({"x": [1] * (1 << 20)})
        rows = FixedLenSequenceFeature((), torch.int64, allow_missing=True)
        samples = [torch.zeros(0)] * 511 + [torch.zeros(1 << 22)]
        parse_example([empty, large], {"x": rows})
        before = peak()
        for call in (
            lambda: parse_example([large] + [empty] * 600, {"x": rows}),
            lambda: PaddedCollate()(samples),
        ):
            try:
                call()
            except LimitExceededError as error:
                print(error)
        print(peak() - before < 200, file=sys.stderr)
    """
    found = run_program(textwrap.dedent(program), tmp_path)
    assert found.stderr.strip() == "True"
    first, second = found.stdout.splitlines()
    assert first == (
        "record 0: feature 'x' (int64): expected a batch of at most 4294967296 bytes (max_batch_bytes), got one that "
        f"needs {601 * 8 << 20}"
    )
    assert second.endswith(f"got one that needs {512 * 4 << 22}; its largest is sample 511")


def test_features_of_sequence_examples_in_a_dataset(tmp_path):
    path = tmp_path / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for _ in range(4):
            writer.write(encode_sequence_example({}, {"x": [png(100, 200)] * 3}))
    ds = TFRecordDataset(path, SequenceFeatures(None, {"x": Image()}), max_batch_bytes=500_000)
    assert ds[0][1]["x"].shape == (3, 3, 100, 200)
    with pytest.raises(LimitExceededError, match=r"record 2 at byte .*: feature 'x' \(Image\)"):
        ds.__getitems__([0, 1, 2, 3])
