"""PackedCollate: both layouts beside an oracle of loops, and what attention makes of them."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    PackedCollate,
    SerializedTensor,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    make_dataloader,
    serialize_tensor,
)
from torch_tfrecord.columns import Nested
from torch_tfrecord.loading import ColumnBatch

NAMES = ["ids", "mask"]


def ragged(values, offsets):
    return Nested(values.numpy(), values.dtype, (offsets,))


FEATURES = {
    "ids": VarLenFeature(torch.int64),
    "mask": VarLenFeature(torch.float32),
    "pair": FixedLenFeature((2,), torch.int64),
    "number": FixedLenFeature((), torch.int64),
    "name": FixedLenFeature((), bytes),
}
LENGTHS = st.lists(st.integers(0, 8), min_size=1, max_size=12)


def documents(lengths):
    """A sample for each length; no two values of `ids` are equal."""
    ids = torch.arange(100, 100 + sum(lengths)).split(lengths)
    return [
        {
            "ids": own,
            "mask": own / 2,
            "pair": torch.tensor([number, -number]),
            "number": torch.tensor(number),
            "name": b"n%d" % number,
        }
        for number, own in enumerate(ids)
    ]


def as_columns(samples):
    """The samples as a dataset gives them: columns, which are made anew if they are looked at."""

    def columns():
        offsets = np.cumsum([0, *(len(sample["ids"]) for sample in samples)])
        return {
            "ids": ragged(torch.cat([sample["ids"] for sample in samples]), offsets),
            "mask": ragged(torch.cat([sample["mask"] for sample in samples]), offsets),
            "pair": torch.stack([sample["pair"] for sample in samples]),
            "number": torch.stack([sample["number"] for sample in samples]),
            "name": [sample["name"] for sample in samples],
        }

    return ColumnBatch(columns(), len(samples), "record {}".format, columns)


def shown(batch):
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def flat(samples):
    """The oracle of ``layout="flat"``."""
    ids, mask, ends, positions = [], [], [0], []
    for sample in samples:
        for position, (one, weight) in enumerate(
            zip(sample["ids"].tolist(), sample["mask"].tolist(), strict=True)
        ):
            ids.append(one)
            mask.append(weight)
            positions.append(position)
        ends.append(len(ids))
    return {
        "ids": (torch.int64, ids),
        "mask": (torch.float32, mask),
        "pair": (torch.int64, [sample["pair"].tolist() for sample in samples]),
        "number": (torch.int64, [sample["number"].item() for sample in samples]),
        "name": [sample["name"] for sample in samples],
        "cu_seqlens": (torch.int32, ends),
        "position_ids": (torch.int64, positions),
        "max_seqlen": max(len(sample["ids"]) for sample in samples),
    }


def rows_in_order(lengths, size):
    """How many values each row has: a new row where the next document does not fit."""
    rows = [[]]
    for length in lengths:
        if sum(rows[-1]) + length > size:
            rows.append([])
        rows[-1].append(length)
    return rows


def rows_by_best_fit(lengths, size):
    """The rows of best-fit decreasing."""
    rows = []
    for length in sorted(lengths, reverse=True):
        space = [size - sum(row) - length for row in rows]
        fitting = [left for left in space if left >= 0]
        if fitting:
            rows[space.index(min(fitting))].append(length)
        else:
            rows.append([length])
    return rows


def blocks(samples, rows, size, num_rows, fill):
    """The oracle of ``layout="blocks"`` for documents in order, by the lengths in each row."""
    found = {"ids": [], "mask": [], "position_ids": [], "document_ids": []}
    left = list(enumerate(samples))
    for row in rows + [[]] * (num_rows - len(rows)):
        values = {name: [] for name in found}
        for _ in row:
            number, sample = left.pop(0)
            values["ids"] += sample["ids"].tolist()
            values["mask"] += sample["mask"].tolist()
            values["position_ids"] += range(len(sample["ids"]))
            values["document_ids"] += [number] * len(sample["ids"])
        for name, own in values.items():
            padding = {"position_ids": 0, "document_ids": -1}.get(name, fill.get(name, 0))
            found[name].append(own + [padding] * (size - len(own)))
    assert not left
    return {
        name: (torch.float32 if name == "mask" else torch.int64, values)
        for name, values in found.items()
    }


@given(LENGTHS)
def test_flat_is_what_loops_make(lengths):
    samples = documents(lengths)
    expected = flat(samples)
    assert shown(PackedCollate(8)(as_columns(samples))) == expected
    assert shown(PackedCollate(8, features=NAMES)(samples)) == expected
    assert shown(PackedCollate(8, features=NAMES)(as_columns(samples))) == expected


@given(LENGTHS, st.integers(8, 12), st.booleans(), st.integers(0, 3))
def test_blocks_are_what_loops_make(lengths, size, is_columns, spare):
    samples = documents(lengths)
    fill = {"ids": -7, "mask": 0.5}
    in_order, best = rows_in_order(lengths, size), rows_by_best_fit(lengths, size)
    num_rows = min(len(in_order), len(best))
    pack = PackedCollate(
        size,
        layout="blocks",
        padding_values=fill,
        num_rows=num_rows + spare if spare else None,
        features=None if is_columns else NAMES,
    )
    batch = pack(as_columns(samples) if is_columns else samples)
    # The features that are not packed say which documents come in which order.
    order = batch["number"].tolist()
    assert sorted(order) == [*range(len(samples))]
    samples = [samples[number] for number in order]
    assert batch["name"] == [sample["name"] for sample in samples]
    assert batch["pair"].tolist() == [sample["pair"].tolist() for sample in samples]
    rows = rows_in_order([len(sample["ids"]) for sample in samples], size)
    assert len(rows) == num_rows
    if len(in_order) == num_rows:
        assert order == [*range(len(samples))]
    expected = blocks(samples, rows, size, num_rows + spare, fill)
    assert {name: shown(batch)[name] for name in expected} == expected
    assert batch.keys() == samples[0].keys() | expected.keys()


def test_values_of_a_small_batch():
    samples = [
        {"ids": torch.tensor([4, 5])},
        {"ids": torch.tensor([7])},
        {"ids": torch.tensor([8, 9])},
    ]
    assert shown(PackedCollate(3, features=["ids"])(samples)) == {
        "ids": (torch.int64, [4, 5, 7, 8, 9]),
        "cu_seqlens": (torch.int32, [0, 2, 3, 5]),
        "position_ids": (torch.int64, [0, 1, 0, 0, 1]),
        "max_seqlen": 2,
    }
    pack = PackedCollate(3, layout="blocks", features=["ids"], padding_values=-100, num_rows=3)
    assert shown(pack(samples)) == {
        "ids": (torch.int64, [[4, 5, 7], [8, 9, -100], [-100] * 3]),
        "position_ids": (torch.int64, [[0, 1, 0], [0, 1, 0], [0, 0, 0]]),
        "document_ids": (torch.int64, [[0, 0, 1], [2, 2, -1], [-1, -1, -1]]),
    }


@pytest.mark.parametrize("layout", ["flat", "blocks"])
def test_empty_documents_alone(layout):
    samples = documents([0, 0])
    batch = PackedCollate(4, layout=layout)(as_columns(samples))
    shape = (0,) if layout == "flat" else (1, 4)
    assert batch["ids"].shape == batch["position_ids"].shape == shape
    assert batch["number"].tolist() == [0, 1]


def test_values_of_several_dimensions():
    values = torch.arange(12).reshape(6, 2)
    offsets = np.array([0, 2, 2, 6])
    columns = {"x": ragged(values, offsets), "y": ragged(values[:, 0] > 4, offsets)}
    batch = PackedCollate(4)(ColumnBatch(columns, 3))
    assert batch["x"].tolist() == values.tolist()
    batch = PackedCollate(4, layout="blocks", padding_values={"x": -1, "y": True})(
        ColumnBatch(columns, 3)
    )
    assert batch["x"].tolist() == [[[0, 1], [2, 3], [-1, -1], [-1, -1]], values[2:].tolist()]
    assert batch["y"].tolist() == [[False, False, True, True], [False, True, True, True]]
    # of one length, so that `collate` stacks them
    batch = PackedCollate(4, features=["x"])([{"x": values[:3]}, {"x": values[3:]}])
    assert batch["x"].tolist() == values.tolist()
    assert batch["cu_seqlens"].tolist() == [0, 3, 6]


# Which features are packed.


def test_fixed_sizes_are_not_packed(tmp_path):
    with TFRecordWriter(tmp_path / "a") as writer:
        for number in range(4):
            writer.write({"ids": [number] * 2, "box": [number] * 2})
    features = {"ids": VarLenFeature(torch.int64), "box": FixedLenFeature((2,), torch.int64)}
    dataset = TFRecordDataset(tmp_path / "a", features)
    # All lengths are equal: nothing in the values tells them apart.
    for pack in (PackedCollate(2), PackedCollate(2, features=["ids"])):
        (batch,) = DataLoader(dataset, 4, collate_fn=pack)
        assert batch["ids"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert batch["box"].tolist() == [[n, n] for n in range(4)]
    # one that is named
    (batch,) = DataLoader(dataset, 4, collate_fn=PackedCollate(2, features=["ids", "box"]))
    assert batch["box"].tolist() == batch["ids"].tolist()
    # After a transform there is nothing to tell them by.
    changed = TFRecordDataset(tmp_path / "a", features, transform=lambda sample: {**sample})
    with pytest.raises(ValueError, match=r"or features=, got \['ids', 'box'\]"):
        next(iter(DataLoader(changed, 4, collate_fn=PackedCollate(2))))
    (batch,) = DataLoader(changed, 4, collate_fn=PackedCollate(2, features=["ids"]))
    assert batch["ids"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch["box"].tolist() == [[n, n] for n in range(4)]


@pytest.mark.parametrize("lengths", [[2, 2], [2, 3]])
def test_serialized_tensors_are_named(tmp_path, lengths):
    with TFRecordWriter(tmp_path / "a") as writer:
        for length in lengths:
            tensor = serialize_tensor(torch.arange(length))
            writer.write({"ids": [*range(length)], "mask": tensor})
    features = {"ids": VarLenFeature(torch.int64), "mask": SerializedTensor()}
    dataset = TFRecordDataset(tmp_path / "a", features)
    (batch,) = DataLoader(dataset, 2, collate_fn=PackedCollate(3, features=["ids", "mask"]))
    assert (
        batch["mask"].tolist() == batch["ids"].tolist() == [*range(lengths[0]), *range(lengths[1])]
    )
    if lengths == [2, 3]:  # their features do not say that they vary
        with pytest.raises(TypeError, match=r"\['mask'\] cannot be packed: .* \(see features=\)"):
            next(iter(DataLoader(dataset, 2, collate_fn=PackedCollate(3))))


def test_samples_that_were_looked_at(tmp_path):
    with TFRecordWriter(tmp_path / "a") as writer:
        for number in range(4):
            writer.write({name: torch.full((number,), number) for name in NAMES})
    dataset = TFRecordDataset(tmp_path / "a", {name: VarLenFeature(torch.int64) for name in NAMES})

    def packed(pack):
        def keep(samples):
            return pack([sample for sample in samples if len(sample["ids"]) != 1])

        return next(iter(DataLoader(dataset, 4, collate_fn=keep)))

    # `mask`, which nobody has looked at, is not packed alone.
    with pytest.raises(TypeError, match=r"\['ids'\] cannot be packed: .* got list"):
        packed(PackedCollate(4))
    batch = packed(PackedCollate(4, features=NAMES))
    assert batch["ids"].tolist() == batch["mask"].tolist() == [2, 2, 3, 3, 3]
    assert batch["cu_seqlens"].tolist() == [0, 0, 2, 5]


# Errors.


def two(**changes):
    first, second = documents([2, 3])
    return [first, second | changes]


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        ([], ValueError, "at least one sample, got none"),
        ([torch.zeros(2)], TypeError, "samples that are mappings, got Tensor"),
        ([({"ids": torch.zeros(2)}, 1)], TypeError, "samples that are mappings, got tuple"),
        (
            two(mask=torch.zeros(2)),
            ValueError,
            r"sample 1 \(record unknown\): .* one length up to 4, got {'ids': 3, 'mask': 2}",
        ),
        (
            two(ids=torch.zeros(5, dtype=torch.int64)),
            ValueError,
            r"sample 1 \(record unknown\): .* one length up to 4, got {'ids': 5}",
        ),
        (
            two(ids=torch.tensor(1)),
            ValueError,
            r"\['ids'\]: cannot batch tensors with different shapes",
        ),
        (two(ids=torch.zeros(3)), ValueError, r"\['ids'\]: cannot batch .* different dtypes"),
    ],
)
def test_wrong_samples(samples, error, message):
    with pytest.raises(error, match=message):
        PackedCollate(4, features=NAMES)(samples)


def test_errors_name_the_record():
    samples = documents([2, 5, 3])
    with pytest.raises(ValueError, match=r"sample 1 \(record 1\): .* up to 4, got {'ids': 5}"):
        PackedCollate(4)(as_columns(samples))


@pytest.mark.parametrize("name", ["number", "name", "missing"])
def test_what_cannot_be_packed(name):
    with pytest.raises(TypeError, match=rf"\['{name}'\] cannot be packed: expected tensors \[n, "):
        PackedCollate(4, features=["ids", name])(documents([2, 3]))


@pytest.mark.parametrize(
    ("layout", "taken"),
    [
        ("flat", ["cu_seqlens", "max_seqlen", "position_ids"]),
        ("blocks", ["position_ids", "document_ids"]),
    ],
)
def test_names_that_are_added(layout, taken):
    for name in taken:
        samples = [{**sample, name: sample["number"]} for sample in documents([2, 3])]
        with pytest.raises(ValueError, match=r"the batch adds .*: expected other names"):
            PackedCollate(4, layout=layout, features=NAMES)(samples)


def test_more_rows_than_asked_for():
    pack = PackedCollate(4, layout="blocks", num_rows=2, features=NAMES)
    assert pack(documents([4, 2, 2]))["ids"].shape == (2, 4)
    with pytest.raises(ValueError, match=r"at most 2 rows \(num_rows\) of 4, got documents for 3"):
        pack(documents([3, 3, 3]))
    with pytest.raises(ValueError, match="at most 0 rows"):
        PackedCollate(4, layout="blocks", num_rows=0, features=NAMES)(documents([3]))


@pytest.mark.parametrize(
    ("padding", "error", "message"),
    [
        (
            {"typo": 1},
            ValueError,
            r"padding_values: expected some of the samples' keys .*\['typo'\]",
        ),
        ({"ids": 0.5}, TypeError, r"\['ids'\]: Invalid `padding_values`. int64 cannot hold 0.5"),
    ],
)
def test_wrong_padding(padding, error, message):
    with pytest.raises(error, match=message):
        PackedCollate(4, layout="blocks", padding_values=padding, features=NAMES)(documents([2]))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_length": 0}, ValueError),
        ({"max_length": 2.0}, TypeError),
        ({"max_length": 2, "layout": "rows"}, ValueError),
    ],
)
def test_wrong_arguments(arguments, error):
    with pytest.raises(error, match=r"max_length must be|layout must be 'flat' or 'blocks'"):
        PackedCollate(**arguments)


def test_pickles_and_compares():
    pack = PackedCollate(4, layout="blocks", padding_values={"ids": -1}, num_rows=2)
    assert pickle.loads(pickle.dumps(pack)) == pack != PackedCollate(4)


# What attention makes of it.


def attention(ids, mask=None):
    """Self-attention of embedded ids, [..., n] to [..., n, 8]."""
    table = torch.randn(3, 200, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    query, key, value = table[:, ids]
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)


# Through loaders.


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "a"
    with TFRecordWriter(path) as writer:
        for sample in documents([5, 0, 9, 3, 3, 12, 1, 7, 2, 2]):
            writer.write(sample)
    return path


@pytest.mark.parametrize(
    "how", [{"num_threads": 0}, {"num_threads": 2}, {"num_workers": 2}], ids=repr
)
@pytest.mark.parametrize("layout", ["flat", "blocks"])
def test_through_loaders(path, layout, how):
    pack = PackedCollate(64 if layout == "flat" else 14, layout=layout)
    loader = make_dataloader(path, 4, FEATURES, shuffle=False, collate_fn=pack, **how)
    samples = documents([5, 0, 9, 3, 3, 12, 1, 7, 2, 2])
    found = [shown(batch) for batch in loader]
    for number, batch in enumerate(found):
        own = samples[4 * number :][:4]
        expected = flat(own) if layout == "flat" else shown(pack(as_columns(own)))
        assert batch == expected
    assert len(found) == 3
