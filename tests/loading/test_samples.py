"""A sample is a dict in everything people do with one, and the row of a block until somebody
changes it.

Covers loading/sample.
"""

import collections.abc
import copy
import itertools
import json
import pickle
import threading

import numpy as np
import pytest
import torch
from batches import assert_same
from helpers import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree
from torch.utils.data import DataLoader, default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors

from torch_tfrecord import RaggedTensor, SparseList, collate
from torch_tfrecord.columns import Nested
from torch_tfrecord.loading import ColumnBatch


def columns_of(numbers):
    """A column of each kind, which tell of which number each row is."""
    n, number = len(numbers), torch.tensor(numbers, dtype=torch.int64)
    lengths = number.remainder(3)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    splits = (torch.arange(n + 1), offsets)
    many = int(offsets[-1])
    return {
        "scalar": number.clone(),
        "row": number[:, None].repeat(1, 3).float(),
        "empty": torch.zeros(n, 0),
        "image": tv_tensors.Image(number[:, None, None, None].repeat(1, 3, 2, 2).to(torch.uint8)),
        "var": Nested(np.arange(many), torch.int64, (offsets.numpy(),)),
        "name": [b"%d" % each for each in numbers],
        "words": [[f"w{each}"] * (each % 2) for each in numbers],
        "unlike": [torch.full((each % 2 + 1,), each) for each in numbers],
        "ragged": RaggedTensor(torch.arange(many), splits),
        "sparse": torch.sparse_coo_tensor(
            torch.stack([torch.arange(n), number % 4]),
            number.float(),
            (n, 4),
            is_coalesced=True,
            check_invariants=False,
        ),
        "sparse_words": SparseList(
            torch.stack([torch.arange(n), number % 4]), [f"s{each}" for each in numbers], (n, 4)
        ),
        "inner": {"deep": number * 2, "list": [b"x"] * n},
    }


def samples_of(numbers, names=None):
    columns = columns_of(numbers)
    return list(ColumnBatch({name: columns[name] for name in names or columns}, len(numbers)))


def plain(samples):
    """The same as dicts that nobody else holds."""
    return [
        {
            name: plain([value])[0] if isinstance(value, dict) else value
            for name, value in sample.items()
        }
        for sample in samples
    ]


Sample = type(ColumnBatch({"a": [1]}, 1)[0])
UNSEEN = next(dict.__iter__(ColumnBatch({"a": [1]}, 1)[0]))


def fresh(**columns):
    return ColumnBatch({"a": [1, 2], "b": ["x", "y"], **columns}, 2)[0]


EXPECTED = {"a": 1, "b": "x"}


# As a dict


def unpacked(**values):
    return values


def matched(sample):
    match sample:
        case {"b": value, **rest}:
            return value, rest
    return None


READ = {
    "dict": (dict, EXPECTED),
    "display": (lambda s: {**s}, EXPECTED),
    "call": (lambda s: unpacked(**s), EXPECTED),
    "format": (lambda s: "{a}{b}".format(**s), "1x"),
    "percent": (lambda s: "%(a)s%(b)s" % s, "1x"),  # noqa: UP031
    "or": (lambda s: s | {"c": 3}, {**EXPECTED, "c": 3}),
    "or of two": (lambda s: s | fresh(c=[3, 4]), {**EXPECTED, "c": 3}),
    "ror": (lambda s: {"c": 3, "a": 0} | s, {"c": 3, "a": 1, "b": "x"}),
    "equal": (lambda s: s == EXPECTED, True),
    "equal of two": (lambda s: s == fresh(), True),
    "not equal": (
        lambda s: (s != EXPECTED, s != {"a": 2}, s == {"a": 2, "b": "x"}),
        (False, True, False),
    ),
    "json": (json.dumps, '{"a": 1, "b": "x"}'),
    "copy": (copy.copy, EXPECTED),
    "own copy": (lambda s: s.copy(), EXPECTED),
    "deepcopy": (copy.deepcopy, EXPECTED),
    "pickle": (lambda s: pickle.loads(pickle.dumps(s)), EXPECTED),
    "len": (len, 2),
    "in": (lambda s: ("a" in s, "c" in s), (True, False)),
    "iter": (list, ["a", "b"]),
    "reversed": (lambda s: list(reversed(s)), ["b", "a"]),
    "keys": (lambda s: list(s.keys()), ["a", "b"]),
    "values": (lambda s: list(s.values()), [1, "x"]),
    "items": (lambda s: list(s.items()), [("a", 1), ("b", "x")]),
    "reversed items": (lambda s: list(reversed(s.items())), [("b", "x"), ("a", 1)]),
    "get": (lambda s: (s.get("a"), s.get("c"), s.get("c", 4)), (1, None, 4)),
    "repr": (repr, "{'a': 1, 'b': 'x'}"),
    "match": (matched, ("x", {"a": 1})),
    "eval locals": (lambda s: eval("a", {}, s), 1),
    "type": (lambda s: type("X", (), s).b, "x"),
    "update of another": (lambda s: updated({}, s), EXPECTED),
    "chain map": (lambda s: dict(collections.ChainMap({}, s)), EXPECTED),
    "ordered": (lambda s: dict(collections.OrderedDict(s)), EXPECTED),
    "default_convert": (default_convert, EXPECTED),
    "pin_memory": (pin_memory, EXPECTED),
    "tree_map": (lambda s: _pytree.tree_map(lambda value: value * 2, s), {"a": 2, "b": "xx"}),
    "tree_flatten": (lambda s: _pytree.tree_flatten(s)[0], [1, "x"]),
    "tree_paths": (
        lambda s: [path for path, _ in _pytree.tree_flatten_with_path(s)[0]],
        [path for path, _ in _pytree.tree_flatten_with_path(EXPECTED)[0]],
    ),
}


def updated(target, *sources):
    for source in sources:
        target.update(source)
    return target


@for_each("way", READ)
def test_read_as_a_dict(way):
    read, expected = READ[way]
    sample = fresh()
    assert isinstance(sample, dict)
    assert isinstance(sample, collections.abc.MutableMapping)
    found = read(sample)
    assert found == expected
    assert type(found) is type(expected)
    assert read(sample) == expected


def test_no_look_at_what_needs_none():
    sample = fresh()
    assert (len(sample), list(sample), "a" in sample, list(sample.keys())) == (
        2,
        ["a", "b"],
        True,
        ["a", "b"],
    )
    assert dict.__getitem__(sample, "a") is UNSEEN
    assert sample["a"] == 1
    assert dict.__getitem__(sample, "b") is UNSEEN
    assert not sample.is_unseen
    assert fresh().is_unseen


def deleted(sample):
    del sample["a"]


CHANGES = {
    "set": (lambda s: s.__setitem__("c", 3), {**EXPECTED, "c": 3}, None),
    "set again": (lambda s: s.__setitem__("a", 3), {"a": 3, "b": "x"}, None),
    "delete": (deleted, {"b": "x"}, None),
    "pop": (lambda s: s.pop("a"), {"b": "x"}, 1),
    "pop a default": (lambda s: s.pop("z", 5), EXPECTED, 5),
    "popitem": (lambda s: s.popitem(), {"a": 1}, ("b", "x")),
    "clear": (lambda s: s.clear(), {}, None),
    "update": (lambda s: s.update({"a": 2}, c=3), {"a": 2, "b": "x", "c": 3}, None),
    "setdefault": (lambda s: s.setdefault("c", 3), {**EXPECTED, "c": 3}, 3),
    "setdefault of a value": (lambda s: s.setdefault("b", 3), EXPECTED, "x"),
    "ior": (lambda s: s.__ior__({"c": 3}) == {**EXPECTED, "c": 3}, {**EXPECTED, "c": 3}, True),
}


@for_each("look", [lambda s: None, lambda s: s["b"], dict])
@for_each("way", CHANGES)
def test_changed_as_a_dict(way, look):
    change, expected, result = CHANGES[way]
    batch = ColumnBatch({"a": [1, 2], "b": ["x", "y"]}, 2)
    sample, other = batch
    look(sample)
    assert change(sample) == result
    assert sample == expected
    assert list(sample) == list(expected)
    assert other == {"a": 2, "b": "y"}
    if len(sample):
        assert collate([sample]) == collate([expected])
        assert_same(default_collate([sample]), default_collate([expected]))


def test_errors_are_those_of_a_dict():
    for use in (
        lambda s: s["c"],
        lambda s: s.pop("c"),
        lambda s: s.__delitem__("c"),
        lambda s: "{c}".format_map(s),
    ):
        with pytest.raises(KeyError, match=r"^'c'$"):
            use(fresh())
    with pytest.raises(TypeError, match="unhashable"):
        hash(fresh())
    with pytest.raises(AttributeError):
        _ = fresh().other
    with pytest.raises(TypeError):
        _ = fresh() | 3
    with pytest.raises(TypeError, match="multiple values"):
        dict(**fresh(), a=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sample({"a": 1}),
        lambda: Sample([("a", 1)]),
        lambda: Sample(a=1),
        lambda: Sample.fromkeys("a", 1),
    ],
)
def test_made_by_somebody_else(make):
    """As Lightning, Accelerate and others do: `type(sample)({...})`."""
    sample = make()
    assert sample == {"a": 1}
    assert (sample["a"], sample.get("b"), dict(sample), json.dumps(sample)) == (
        1,
        None,
        {"a": 1},
        '{"a": 1}',
    )
    sample["b"] = 2
    assert sample | {} == {"a": 1, "b": 2}
    assert Sample() == {}
    assert default_collate([make(), make()])["a"].tolist() == [1, 1]
    assert collate([make(), fresh(b=[5, 6]) | {"a": 4}][:1])["a"].tolist() == [1]


# In batches


NAMES = list(columns_of([0, 1]))


BOTH = {"collate": collate, "torch": default_collate}


def untyped(batch):
    """torch makes plain tensors of images."""
    return {
        name: value.as_subclass(torch.Tensor) if name == "image" else value
        for name, value in batch.items()
    }


def joined(batch, way):
    return untyped(batch) if way == "torch" else batch


two_blocks = st.lists(st.integers(0, 11), min_size=1, max_size=14)


@pytest.mark.parametrize("way", BOTH)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(chosen=two_blocks, looked=st.sets(st.integers(0, 13)))
def test_any_rows_of_any_blocks(name, way, chosen, looked):
    """Samples of three blocks, in any order and again, some of them looked at."""
    numbers = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8]]
    every = [sample for block in numbers for sample in samples_of(block, [name, "scalar"])]
    twins = [sample for block in numbers for sample in plain(samples_of(block, [name, "scalar"]))]
    picked = [every[number] for number in chosen]
    for number in looked:
        if number < len(picked):
            assert_same(picked[number][name], twins[chosen[number]][name])
    expected = joined(collate([twins[number] for number in chosen]), way)
    assert_same(BOTH[way](picked), expected)
    assert_same(BOTH[way](tuple(picked)), expected)


@pytest.mark.parametrize("way", BOTH)
def test_a_batch_of_columns_is_handed_on_once(way):
    columns = columns_of([5, 6, 7])
    batch = ColumnBatch(
        {name: columns[name] for name in ("row", "var")}, 3, None, lambda: columns_of([5, 6, 7])
    )
    first = BOTH[way](batch)
    assert first["row"].data_ptr() == columns["row"].data_ptr()  # not copied
    second = BOTH[way](batch)
    first["row"].fill_(0)
    first["var"].values().fill_(0)
    expected = plain(samples_of([5, 6, 7], ["row", "var"]))
    assert_same({name: second[name] for name in ("row", "var")}, collate(expected))
    assert_same({name: batch[1][name] for name in ("row", "var")}, expected[1])


@pytest.mark.parametrize("way", BOTH)
def test_what_was_done_to_values_in_place_counts(way):
    samples = samples_of([5, 6, 7], ["scalar", "row", "var", "words"])
    samples[1]["row"].fill_(-1)
    samples[2]["row"].unsqueeze_(0).squeeze_(0)
    samples[0]["words"].append("more")
    samples[2]["var"].add_(100)
    batch = BOTH[way](samples)
    assert batch["row"].tolist() == [[5.0] * 3, [-1.0] * 3, [7.0] * 3]
    assert batch["words"] == [["w5", "more"], [], ["w7"]]
    assert [row.tolist() for row in batch["var"].unbind()] == [[0, 1], [], [102]]
    assert batch["scalar"].tolist() == [5, 6, 7]
    samples[0]["row"].unsqueeze_(0)  # of another shape now
    with pytest.raises(
        ValueError,
        match=r"^\['row'\]: cannot batch tensors with different shapes: \[1, 3\] in sample 0",
    ):
        BOTH[way](samples)


@pytest.mark.parametrize("way", BOTH)
def test_changed_samples_are_dicts(way):
    samples = samples_of([5, 6, 7], ["scalar", "row"])
    samples[1]["scalar"] = torch.tensor(-6)
    assert BOTH[way](samples)["scalar"].tolist() == [5, -6, 7]
    for sample in samples:
        sample["more"] = 3
        del sample["row"]
    assert_same(
        BOTH[way](samples), {"scalar": torch.tensor([5, -6, 7]), "more": torch.tensor([3, 3, 3])}
    )
    samples = samples_of([5, 6, 7], ["scalar", "row"])
    samples[1] = {"scalar": torch.tensor(1), "row": torch.zeros(3)}
    assert BOTH[way](samples)["scalar"].tolist() == [5, 1, 7]
    assert BOTH[way](samples[::-1])["scalar"].tolist() == [7, 1, 5]
    samples[0] = dict(samples[0])
    assert BOTH[way](samples)["scalar"].tolist() == [5, 1, 7]


def test_samples_of_other_columns():
    one, two = samples_of([1, 2], ["scalar"]), samples_of([3], ["scalar", "row"])
    for collate_fn in BOTH.values():
        if collate_fn is collate:
            with pytest.raises(
                ValueError, match=r"^samples: expected the keys \['scalar'\] in each, got"
            ):
                collate_fn([*one, *two])
    other = ColumnBatch({"scalar": torch.tensor([1.5])}, 1)[0]
    with pytest.raises(
        ValueError,
        match=r"^\['scalar'\]: cannot batch tensors with different dtypes: torch.int64 in",
    ):
        collate([one[0], other])
    turned = ColumnBatch({"row": torch.zeros(1, 3), "scalar": torch.tensor([8])}, 1)[0]
    assert list(collate([two[0], turned])) == ["scalar", "row"]
    assert collate([two[0], turned])["scalar"].tolist() == [3, 8]


def test_samples_inside_others():
    """As (context, sequences), and as values of the user's own samples."""
    pairs = ColumnBatch(({"a": torch.tensor([1, 2])}, {"b": torch.tensor([3, 4])}), 2)
    expected = [{"a": torch.tensor([1, 2])}, {"b": torch.tensor([3, 4])}]
    assert_same(list(collate(list(pairs))), expected)
    assert_same(list(collate(pairs)), expected)
    assert_same(default_collate(pairs), expected)
    assert_same(default_collate(list(pairs)), expected)
    nested = [
        {"s": sample, "n": number} for number, sample in enumerate(samples_of([4, 5], ["var"]))
    ]
    for collate_fn in BOTH.values():
        found = collate_fn(nested)
        assert found["s"]["var"].offsets().tolist() == [0, 1, 3]
        assert found["n"].tolist() == [0, 1]
    changed = samples_of([4, 5], ["inner"])
    changed[0]["inner"]["deep"] = torch.tensor(1)
    assert collate(changed)["inner"]["deep"].tolist() == [1, 10]
    assert default_collate(changed)["inner"]["deep"].tolist() == [1, 10]


def test_a_batch_of_columns_pickles_and_copies():
    for look in (lambda batch: None, lambda batch: batch[1]["a"], list):
        batch = ColumnBatch({"a": torch.arange(3), "b": ["x", "y", "z"]}, 3)
        look(batch)
        for other in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), copy.copy(batch)):
            assert type(other) is ColumnBatch
            assert [dict(sample) for sample in other] == [dict(sample) for sample in batch]


def test_samples_of_threads():
    """All threads look at all values at once; each sample keeps what it gave."""
    samples = samples_of(range(200), ["scalar", "row", "name"])
    found = [None] * 8

    def look(number):
        found[number] = [
            (int(sample["scalar"]), float(sample["row"][0]), sample["name"]) for sample in samples
        ]

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[(n, float(n), b"%d" % n) for n in range(200)]] * 8


@pytest.mark.daily
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_samples_from_workers(method):
    for options in ({"batch_size": 3}, {"batch_size": None}, {"batch_size": 3, "collate_fn": list}):
        context = {"num_workers": 1, "multiprocessing_context": method}
        here = list(DataLoader(Blocks(), **options))
        there = list(DataLoader(Blocks(), **options, **context))
        assert len(here) == len(there) > 0
        for one, two in itertools.zip_longest(here, there):
            assert_same(plain(one) if isinstance(one, list) else one, two)


class Blocks(torch.utils.data.IterableDataset):
    """A stream of samples, of blocks of unequal sizes."""

    def __iter__(self):
        for numbers in ([1, 2], [3], [4, 5, 6, 7]):
            yield from samples_of(numbers, ["scalar", "row", "name", "image"])
