"""Lists of Examples as TF-Ranking reads them: its own values, and every way in.

Covers columns/example_lists, columns/record_parsers.
"""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import for_each
from refusals import check_refusals
from torch.utils.data import DataLoader
from wire_examples import length_delimited

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Image,
    ListFeatures,
    NestedExample,
    PaddedCollate,
    ParseError,
    RaggedFeature,
    RandomResizedCrop,
    SparseFeature,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    encode_image,
    make_dataloader,
    parse_example,
    parse_single_example,
    read_records,
)

DATA = Path(__file__).parents[1] / "data" / "ranking"
CASES = json.loads((DATA / "lists.json").read_text())
CONTEXT = {"query": FixedLenFeature((), str, ""), "length": FixedLenFeature((1,), torch.int64, [0])}
EXAMPLES = {
    "words": VarLenFeature(str),
    "ids": VarLenFeature(torch.int64),
    "score": FixedLenFeature((), torch.float32, -1.0),
    "pair": FixedLenFeature((2,), torch.float32, [0.0, 8.0]),
    "id": FixedLenFeature((1,), torch.int64, [-7]),
    "name": FixedLenFeature((), str, "?"),
    "rows": RaggedFeature(torch.int64),
    "padded": FixedLenSequenceFeature((), torch.int64, allow_missing=True),
}
REQUIRED = {"score": FixedLenFeature((), torch.float32)}
NAMES = {"size_feature_name": "size", "mask_feature_name": "mask"}
SPEC = ListFeatures(CONTEXT, EXAMPLES, **NAMES)
DENSE = ("score", "pair", "id", "mask", "padded", "length", "size")


def plain(value):
    """Any value as nested lists."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [plain(row) for row in value.unbind()]
    if isinstance(value, list):
        return value
    return value.tolist() if isinstance(value, torch.Tensor) else value.to_list()


def flat(batch):
    """One dict, as in TF-Ranking."""
    context, examples = batch
    return {name: plain(value) for name, value in {**context, **examples}.items()}


def record(context, *examples):
    return elwc(*map(encode_example, examples)) + length_delimited(2, encode_example(context))


def elwc(*examples):
    return b"".join(length_delimited(1, each) for each in examples)


@pytest.fixture(params=["elwc", "eie"])
def kind(request):
    return request.param


@for_each("case", [case for case in CASES if "values" in case])
def test_the_values_of_tf_ranking(case):
    records = list(read_records(DATA / f"{case['format']}.tfrecord"))
    examples = REQUIRED if case["required"] else EXAMPLES
    spec = ListFeatures(
        CONTEXT, examples, list_size=case["list_size"], format=case["format"], **NAMES
    )
    context, found = batch = parse_example([records[row] for row in case["rows"]], spec)
    assert flat(batch) == {name: value["values"] for name, value in case["values"].items()}
    for name, value in {**context, **found}.items():
        if name in DENSE:
            wanted = case["values"][name]["dtype"]
            assert str(value.dtype) == f"torch.{'int64' if name == 'size' else wanted}", name


@for_each("case", [case for case in CASES if "error" in case])
def test_what_tf_ranking_refuses(case):
    records = list(read_records(DATA / f"{case['format']}.tfrecord"))
    spec = ListFeatures(CONTEXT, REQUIRED, list_size=case["list_size"], format=case["format"])
    with pytest.raises(
        ParseError,
        match=r"'score' is required but could not be found|expected a default_value to pad",
    ):
        parse_example([records[row] for row in case["rows"]], spec)


def equal(one, two):
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[name], two[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == two.dtype and one.is_nested == two.is_nested and plain(one) == plain(two)
        )
    return one == two


@pytest.mark.slow
@pytest.mark.parametrize("list_size", [None, 2])
def test_every_way_in(kind, list_size, tmp_path):
    path = shutil.copy(DATA / f"{kind}.tfrecord", tmp_path)
    spec = replace(SPEC, format=kind, list_size=list_size)
    ds = TFRecordDataset(path, spec)
    samples = [ds[number] for number in range(5)]
    wanted = collate(samples)
    assert equal(
        tuple(parse_single_example(ds.raw(1), replace(spec, list_size=1))),
        TFRecordDataset(path, replace(spec, list_size=1))[1],
    )
    assert type(wanted) is tuple
    assert wanted[1]["score"].is_nested == (list_size is None)
    assert plain(wanted[1]["size"]) == [2, 1, 0, 4, 3]
    stream = TFRecordIterableDataset(path, spec)
    blocks = TFRecordIterableDataset(path, spec, batch_size=5)
    loaders = [
        DataLoader(ds, 5, collate_fn=collate),
        DataLoader(ds, 5),
        DataLoader(ds, 5, num_workers=2),
        DataLoader(stream, 5, collate_fn=collate),
        DataLoader(blocks, batch_size=None),
        make_dataloader(path, 5, spec, shuffle=False),
        make_dataloader(path, 5, spec, shuffle=False, num_workers=2),
        DataLoader(pickle.loads(pickle.dumps(ds)), 5, collate_fn=collate),
        [ds.__getitems__([*range(5)])],
    ]
    for number, loader in enumerate(loaders):
        [batch] = loader
        batch = collate(batch) if number == len(loaders) - 1 else batch
        assert equal(tuple(batch), wanted), number
    assert equal(collate([*stream]), wanted)


def test_padded_to_the_longest_of_a_batch():
    ds = TFRecordDataset(
        DATA / "elwc.tfrecord",
        replace(SPEC, example_features={"score": EXAMPLES["score"]}),
        index="memory",
    )
    batch, lengths = PaddedCollate(padding_values=(None, {"score": -1.0}), return_lengths=True)(
        [ds[0], ds[3]]
    )
    assert flat(batch) == {
        "query": ["learning", ""],
        "length": [[3], [0]],
        "score": [[0.5, 1.0, -1.0, -1.0], [-1.0, 2.0, -1.0, -1.0]],
        "size": [2, 4],
        "mask": [[True, True, False, False], [True] * 4],
    }
    assert lengths[1]["score"].tolist() == [2, 4]


def test_nothing_but_examples():
    spec = ListFeatures(None, REQUIRED)
    lists = [record({}, {"score": 1.0}, {"score": 2.0}), record({}, {"score": 3.0})]
    assert [parse_single_example(each, spec)[1]["score"].tolist() for each in lists] == [
        [1.0, 2.0],
        [3.0],
    ]
    with pytest.raises(
        ParseError,
        match=r"^record 1: expected a default_value to pad a list of 1 examples to 2: feature",
    ):
        parse_example(lists, spec)
    assert parse_single_example(b"", spec)[0] == {}
    assert parse_single_example(b"", spec)[1]["score"].shape == (0,)


def test_a_second_context_counts():
    first, second = record({"length": 1}), record({"length": 2})
    spec = ListFeatures({"length": FixedLenFeature((), torch.int64)}, EXAMPLES)
    assert parse_single_example(first + second, spec)[0]["length"] == 2  # as TF-Ranking reads it


def test_errors_name_the_example(tmp_path):
    good = record({"length": 1}, {"score": 1.0})
    part = encode_example({"score": 1.0})
    broken = elwc(part, b"\x0a\x7f")
    wrong = record({"length": 1}, {"score": 1.0}, {"score": 2})
    context = record({"length": 1.5})
    spec = ListFeatures({"length": FixedLenFeature((), torch.int64, 0)}, REQUIRED)
    told = {
        broken: "example 1: Could not parse example input: expected one Example message, got 2 bytes that are not one",
        wrong: "example 1: feature 'score' (float32): Data types don't match. "
        "Data type: int64 but expected type: float; the record holds int64: read torch.int64, then convert",
        context: "context: feature 'length' (int64): Data types don't match. Data type: float but expected type: int64"
        "; the record holds float32: read torch.float32, then convert",
        good[:-1]: "Could not parse example list: expected one ExampleListWithContext message, got "
        f"{len(good) - 1} bytes that are not one",
    }
    check_refusals(spec, good, told, tmp_path)


def test_what_lies_beyond_the_cut_is_not_read():
    broken = elwc(encode_example({"score": 1.0}), b"\x0a\x7f")
    spec = ListFeatures(None, REQUIRED, list_size=1, size_feature_name="size")
    assert parse_single_example(broken, spec)[1] == {
        "score": torch.tensor([1.0]),
        "size": torch.tensor(2),
    }


def test_values_that_are_whole():
    pixels = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
    rows = [
        {"image": encode_image(each, "png"), "text": f"t{number}"}
        for number, each in enumerate(pixels)
    ]
    spec = ListFeatures(None, {"image": Image(), "text": Text()})
    one, two, none = record({}, *rows), record({}, *rows[::-1]), record({})
    sample = parse_single_example(one, spec)[1]
    assert torch.equal(sample["image"], pixels)
    assert sample["text"] == ["t0", "t1"]
    batch = parse_example([one, two], spec)[1]
    assert torch.equal(batch["image"], torch.stack([pixels, pixels.flip(0)]))
    assert type(batch["image"]) is torch.Tensor
    assert batch["text"] == [["t0", "t1"], ["t1", "t0"]]
    assert parse_single_example(none, spec)[1] == {"image": [], "text": []}


def test_lists_of_nested_examples():
    inner = {"n": FixedLenFeature((), torch.int64, -1), "v": VarLenFeature(torch.int64)}
    rows = [
        {"inner": encode_example({"n": number, "v": torch.full((number,), number)})}
        for number in range(3)
    ]
    spec = ListFeatures(None, {"inner": NestedExample(inner)})
    _, sample = parse_single_example(record({}, *rows), spec)
    assert (sample["inner"]["n"].tolist(), plain(sample["inner"]["v"])) == (
        [0, 1, 2],
        [[], [1], [2, 2]],
    )
    _, batch = parse_example([record({}, *rows), record({}, *rows)], spec)
    assert batch["inner"]["n"].tolist() == [[0, 1, 2]] * 2
    assert plain(batch["inner"]["v"]) == [[[], [1], [2, 2]]] * 2


def test_shuffled_lists(tmp_path):
    path = tmp_path / "lists.tfrecord"
    with TFRecordWriter(path) as writer:
        for first in (0, 100):
            writer.write(record({}, *({"score": float(first + number)} for number in range(20))))
    spec = ListFeatures(None, REQUIRED, list_size=5, shuffle_examples=True)
    ds = TFRecordDataset(path, spec)
    seen = []
    for epoch in range(2):
        ds.set_epoch(epoch)
        seen.append(ds[0][1]["score"].tolist())
        assert ds[0][1]["score"].tolist() == seen[-1]
        assert len(set(seen[-1])) == 5
        assert [float(each) for each in collate(ds.__getitems__([0, 1]))[1]["score"][0]] == seen[-1]
    assert seen[0] != seen[1]
    whole = parse_example([ds.raw(0)], replace(spec, list_size=None))[1]["score"][0].tolist()
    assert sorted(whole) == [float(number) for number in range(20)]
    assert whole != sorted(whole)


def test_wrong_arguments():
    crop = {"image": Image(crop=RandomResizedCrop(8))}
    sparse = {"x": SparseFeature("i", "v", torch.int64, 3)}
    taken, count = "must be a name of its own, got 'id'", "must be an integer of at least 1, got 0"
    told = [
        (
            lambda: ListFeatures({}, {}),
            ValueError,
            "example_features must name at least one feature",
        ),
        (
            lambda: ListFeatures([], EXAMPLES),
            TypeError,
            "context_features must be a mapping of names to specs",
        ),
        (lambda: replace(SPEC, list_size=0), ValueError, f"list_size {count}"),
        (
            lambda: replace(SPEC, format="seq"),
            ValueError,
            "format must be 'elwc' or 'eie', got 'seq'",
        ),
        (lambda: replace(SPEC, mask_feature_name="id"), ValueError, f"mask_feature_name {taken}"),
        (
            lambda: replace(SPEC, size_feature_name=3),
            TypeError,
            "size_feature_name must be str or None, got int",
        ),
        (
            lambda: parse_example([], ListFeatures(crop, EXAMPLES)),
            ValueError,
            "no random crop",
        ),
        (
            lambda: parse_example([], ListFeatures({}, sparse)),
            ValueError,
            "Unsupported SparseFeature for key 'x'",
        ),
    ]
    for call, kind, text in told:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value)


def test_a_mask_of_a_billion_is_refused():
    spec = replace(SPEC, list_size=10**12)
    with pytest.raises(Exception, match="max_batch_bytes") as caught:
        parse_single_example(record({}, {"score": 1.0}), spec)
    assert type(caught.value).__name__ == "LimitExceededError"
