"""Messages of the user's own classes, and JSON: in a bytes feature, and as whole records.

Covers columns/one_value, columns/containers, columns/record_parsers.
"""

import json
import math
import pickle

import numpy as np
import pytest
import torch
from scenario_messages import Scenario, unnamed_class
from torch.utils.data import DataLoader, default_collate

from torch_tfrecord import (
    FixedLenFeature,
    Json,
    NestedExample,
    PaddedCollate,
    ParseError,
    Proto,
    RawTensor,
    SequenceFeatures,
    SerializedTensor,
    Text,
    TFRecordDataset,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    encode_sequence_example,
    make_dataloader,
    parse_example,
    parse_single_example,
    serialize_tensor,
)

SCENARIOS = [
    Scenario(
        scenario_id=f"s{number}", timestamps_seconds=[number / 2] * number, tracks=[{"id": number}]
    )
    for number in range(4)
]
OBJECTS = [
    {"caption": "a", "boxes": [[1, 2], [3, 4]]},
    {"boxes": []},
    {"caption": None, "more": 2.5},
    {},
]


def write(path, records):
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def loaders(path, spec):
    """The batches of all records, each way."""
    ds = TFRecordDataset(path, spec)
    yield collate([ds[number] for number in range(4)])
    for loader in (
        DataLoader(ds, 4),
        DataLoader(ds, 4, collate_fn=collate),
        DataLoader(ds, 4, num_workers=2),
        DataLoader(TFRecordIterableDataset(path, spec), 4),
        DataLoader(TFRecordIterableDataset(path, spec, batch_size=4), batch_size=None),
        make_dataloader(path, 4, spec, shuffle=False),
    ):
        [batch] = loader
        yield batch
    yield PaddedCollate()([ds[number] for number in range(4)])
    for batch_of in (collate, default_collate):
        yield batch_of([touched(ds[number]) for number in range(4)])


def touched(sample):
    """As after a transform that makes a new dict."""
    return dict(sample.items()) if type(sample) is dict else sample


CASES = {
    "proto": ([each.SerializeToString() for each in SCENARIOS], Proto(Scenario), SCENARIOS),
    "json": ([json.dumps(each).encode() for each in OBJECTS], Json(), OBJECTS),
    "json lists": (
        [json.dumps([each]).encode() for each in OBJECTS],
        Json(),
        [[each] for each in OBJECTS],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_records_every_way(tmp_path, case):
    records, spec, values = CASES[case]
    path = write(tmp_path / "x.tfrecord", records)
    for batch in loaders(path, spec):
        assert (type(batch), batch) == (list, values)
    assert parse_single_example(records[0], spec) == values[0]
    assert parse_example(records, spec) == values
    assert parse_example([], spec) == []


@pytest.mark.parametrize("case", CASES)
def test_features_every_way(tmp_path, case):
    records, spec, values = CASES[case]
    examples = [
        encode_example({"part": record, "n": number}) for number, record in enumerate(records)
    ]
    path = write(tmp_path / "x.tfrecord", examples)
    features = {"n": FixedLenFeature((), torch.int64), "part": spec}
    for batch in loaders(path, features):
        assert batch["n"].tolist() == [0, 1, 2, 3]
        assert (type(batch["part"]), batch["part"]) == (list, values)
    assert parse_example(examples, features)["part"] == values


@pytest.mark.daily
def test_messages_from_a_spawned_worker(tmp_path):
    records, spec, values = CASES["proto"]
    ds = TFRecordDataset(write(tmp_path / "x.tfrecord", records), spec)
    [batch] = DataLoader(ds, 4, num_workers=1, multiprocessing_context="spawn")
    assert batch == values


def test_json_values():
    texts = [
        b'"x"',
        b"2",
        b"true",
        b"null",
        b"1.5",
        b"[1]",
        b' {"a": {"b": 1, "b": 2}} \n',
        '"\u00e9"'.encode(),
    ]
    assert parse_example(texts, Json()) == ["x", 2, True, None, 1.5, [1], {"a": {"b": 2}}, "\u00e9"]


DEEP = {
    "lists": (b"[", b"]"),
    "objects": (b'{"a":', b"}"),
    "both": (b'[1,{"a":"]", "b":', b"}]"),
    "text with brackets": (b'["]}[", "\\"[{", "\\\\",', b", []]"),
}


def levels(value):
    parts = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if parts is None else 1 + max(map(levels, parts), default=0)


@pytest.mark.parametrize("kind", DEEP)
def test_levels_of_json(kind):
    # A worker's queue cannot send many more, and the loader would wait for ever.
    opening, closing = DEEP[kind]
    for count in (99, 100, 101, 198, 199, 200, 201, 202):
        text = opening * count + b"1" + closing * count
        wide = b"[" + b",".join([b'{"a":[1,"x"]}'] * 300 + [text]) + b"]"
        for each in (text, wide):
            wanted = json.loads(each)
            if levels(wanted) <= 200:
                assert parse_single_example(each, Json()) == wanted
                continue
            with pytest.raises(
                ParseError,
                match=r"^Json: expected JSON of at most 200 levels, got lists or objects nest",
            ):
                parse_single_example(each, Json())


@pytest.mark.parametrize("kind", ["lists", "objects"])
def test_a_worker_sends_the_most_levels(tmp_path, kind):
    opening, closing = DEEP[kind]
    text = opening * 200 + b"1" + closing * 200
    with TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for _ in range(2):
            writer.write({"j": text})
    [batch] = DataLoader(
        TFRecordDataset(tmp_path / "x.tfrecord", {"j": Json()}), 2, num_workers=1, timeout=120
    )
    assert batch["j"] == [json.loads(text)] * 2


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 0.1], torch.float64),
        ([0.1, 1], torch.float64),
        ([True, 2], None),
        ([2, True], None),
        ([True, 2.5], None),
        ([2.5, True], None),
        ([2**63, 1], None),
        ([1, 2**64], None),
        ([-(2**63), 2**63 - 1], torch.int64),
        ([-(2**63) - 1], None),
        ([10**400, 0.5], None),
        ([2**53, 0.5], torch.float64),
        ([2**53 + 1, 0.5], None),
        ([0.5, 2**53 + 1], None),
        ([True, False], torch.bool),
        ([1, None], None),
        ([None, 1], None),
        ([1, "a"], None),
        (["a", 1], None),
        ([1, {"a": 1}], None),
        ([1, [2]], None),
    ],
)
def test_batches_of_json_hold_what_the_samples_hold(tmp_path, values, dtype):
    with TFRecordWriter(tmp_path / "x.tfrecord") as writer:
        for value in values:
            writer.write({"j": json.dumps(value)})
    ds = TFRecordDataset(tmp_path / "x.tfrecord", {"j": Json()})
    size, samples = len(values), [*ds]
    assert [sample["j"] for sample in samples] == values
    changed = TFRecordDataset(tmp_path / "x.tfrecord", {"j": Json()}, transform=with_one_more)
    stream = TFRecordIterableDataset(tmp_path / "x.tfrecord", {"j": Json()}, batch_size=size)
    loaders = [
        DataLoader(ds, size),
        DataLoader(ds, size, collate_fn=collate),
        DataLoader(stream, batch_size=None),
        make_dataloader(ds, size, shuffle=False),
    ]
    if isinstance(values[0], (int, float)):  # torch's own looks at the first alone
        loaders.append(DataLoader(changed, size))
    if values == [2**63, 1]:
        loaders.append(DataLoader(ds, size, num_workers=1, multiprocessing_context="fork"))
    batches = [next(iter(loader)) for loader in loaders]
    batches += [collate(samples), collate([{**sample} for sample in samples])]
    if dtype is not None:
        batches.append(PaddedCollate()([*ds]))
    elif not {*map(type, values)} - {bool, int, float}:  # the list would be no batch to pad
        with pytest.raises(
            TypeError,
            match=r"\['j'\]: expected only numbers, in lists of equal length, that one dtype",
        ):
            PaddedCollate()([*ds])
    for batch in batches:
        found = batch["j"]
        assert (found.dtype if isinstance(found, torch.Tensor) else None) == dtype
        found = found.tolist() if isinstance(found, torch.Tensor) else found
        assert found == values
        assert dtype is not None or [*map(repr, found)] == [*map(repr, values)]  # True == 1
    assert parse_example([ds.raw(number) for number in range(size)], {"j": Json()})["j"] == values


def with_one_more(sample):
    sample["more"] = 1
    return sample


def test_numbers_of_a_transform_that_are_not_json(tmp_path):
    assert collate([1, np.float64(0.5)]).dtype == torch.float64
    assert collate([math.nan, 1]).isnan().tolist() == [True, False]
    assert collate([0.5, np.float64(1)]).tolist() == [0.5, 1]
    assert collate([1, torch.tensor(2)]) == [1, torch.tensor(2)]


def test_steps_of_json_are_padded_exactly_or_not_at_all():
    def padded(rows):
        records = [
            encode_sequence_example({}, {"j": [[json.dumps(value)] for value in row]})
            for row in rows
        ]
        samples = [
            parse_single_example(record, SequenceFeatures({}, {"j": Json()}))[1]
            for record in records
        ]
        return PaddedCollate()(samples)["j"].tolist()

    assert padded([[1, 2], [3]]) == [[1, 2], [3, 0]]
    assert padded([[1, 0.5], [2**53]]) == [[1, 0.5], [2**53, 0]]
    for rows in (
        [[1, 0.5], [2**53 + 1]],
        [[2**53 + 1, 0.5]],
        [[True, 2]],
        [[True], [0.5]],
        [[2**63]],
        [[2**64]],
    ):
        with pytest.raises(
            TypeError, match=r"\['j'\]: expected only numbers, in lists of equal length"
        ):
            padded(rows)


def test_what_is_not_json():
    told = {
        b"": "Json: expected JSON, got something else at character 0",
        b"[1,]": "Json: expected JSON, got something else at character 3",
        b"[NaN]": "Json: expected JSON, got NaN",
        b"-Infinity": "Json: expected JSON, got -Infinity",
        b'"\xff"': "Json: expected UTF-8 text, got an invalid byte at 1 of 3",
        b"["
        * 100_000: "Json: expected JSON of at most 200 levels, got lists or objects nested more deeply",
        b"1" * 5000: "Json: expected JSON, got an integer of too many digits",
    }
    for text, message in told.items():
        with pytest.raises(ParseError) as caught:
            parse_single_example(text, Json())
        assert str(caught.value) == message
        with pytest.raises(ParseError) as caught:
            parse_example([encode_example({"a": b"1"}), encode_example({"a": text})], {"a": Json()})
        assert str(caught.value) == f"record 1: feature 'a' ({message[:4]}){message[4:]}"


def test_what_is_not_the_message(tmp_path):
    good = SCENARIOS[1].SerializeToString()
    text = f"Could not parse demo.Scenario: expected one Scenario message, got {len(good) - 1} bytes that are not one"
    path = write(tmp_path / "x.tfrecord", [good, good[:-1]])
    ds = TFRecordDataset(path, Proto(Scenario))
    for read in (
        lambda: ds[1],
        lambda: ds.__getitems__([0, 1]),
        lambda: [*TFRecordIterableDataset(path, Proto(Scenario))],
    ):
        with pytest.raises(ParseError) as caught:
            read()
        assert str(caught.value) == f"{path}: record 1 at byte {ds.locate(1)[1]}: Proto: {text}"
    with pytest.raises(ParseError) as caught:
        parse_single_example(encode_example({"a": good[:-1]}), {"a": Proto(Scenario)})
    assert str(caught.value) == f"feature 'a' (Proto): {text}"


def test_a_class_that_no_module_has(tmp_path):
    path = write(tmp_path / "x.tfrecord", CASES["proto"][0])
    ds = TFRecordDataset(path, Proto(unnamed_class()))
    [batch] = DataLoader(ds, 4)
    assert [each.scenario_id for each in batch] == ["s0", "s1", "s2", "s3"]
    with pytest.raises(
        TypeError,
        match=r"Proto: a DataLoader worker sends messages by .*demo\.Scenario cannot be imported",
    ):
        next(iter(DataLoader(ds, 4, num_workers=1, multiprocessing_context="fork")))


@pytest.mark.daily
def test_other_values_as_records(tmp_path):
    arrays = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    tensors = [serialize_tensor(each) for each in arrays]
    assert parse_example(tensors, SerializedTensor()).equal(arrays)
    ds = TFRecordDataset(write(tmp_path / "x.tfrecord", tensors), SerializedTensor())
    assert ds[1].equal(arrays[1])
    [batch] = DataLoader(ds, 2)
    assert batch.equal(arrays)
    raw = [each.numpy().tobytes() for each in arrays]
    assert parse_example(raw, RawTensor((3,), torch.int32)).equal(arrays)
    assert parse_example([b"a", b"b"], Text()) == ["a", "b"]
    assert parse_example([b"a", b"b"], FixedLenFeature((), bytes)) == [b"a", b"b"]
    with pytest.raises(
        TFRecordError,
        match=r"^record 1: RawTensor: expected 12 bytes for shape \[3\] of int32, got 2",
    ):
        parse_example([raw[0], b"ab"], RawTensor((3,), torch.int32))


def test_wrong_arguments():
    for spec in (
        VarLenFeature(bytes),
        FixedLenFeature((), torch.int64),
        RawTensor(("n",), torch.uint8),
        Text(key="a"),
    ):
        with pytest.raises(
            ValueError, match="features must be a mapping of names to specs, or one spec that reads"
        ):
            parse_example([], spec)
    for kind in (Scenario(), dict, "Scenario", None):
        with pytest.raises(TypeError, match="message_class must be a generated protobuf class"):
            Proto(kind)
    with pytest.raises(ValueError, match="The `label_key` provided"):
        make_dataloader("x", 4, Json(), label_key="a")


def test_specs_pickle_compare_and_print():
    for spec in (Proto(Scenario), Proto(Scenario, key="a"), Json(), Json(key="b")):
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    assert repr(Proto(Scenario, key="a")) == "Proto(Scenario, key='a')"
    assert Json() != Json(key="a")


def test_in_a_nested_example():
    inner = encode_example({"m": SCENARIOS[3].SerializeToString(), "j": b"[1]"})
    features = {"inner": NestedExample({"m": Proto(Scenario), "j": Json()})}
    sample = parse_single_example(encode_example({"inner": inner}), features)
    assert sample == {"inner": {"m": SCENARIOS[3], "j": [1]}}
