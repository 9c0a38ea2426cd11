"""The keywords of make_dataloader: few of its own, those of TFRecordDataset and DataLoader typed and
checked, a batch sampler; labels and inferred features of datasets.

Covers train/loader.
"""

import inspect
import pydoc
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import torch_tfrecord
from torch_tfrecord import (
    FixedLenFeature,
    LengthBatchSampler,
    Mixture,
    PackedCollate,
    PaddedCollate,
    RecordLoader,
    SequenceFeatures,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    encode_sequence_example,
    infer_features,
    make_dataloader,
    tfds,
)
from torch_tfrecord.loading import DatasetOptions
from torch_tfrecord.train.loader import LoaderOptions

N = 40
SIZES = np.random.default_rng(1).integers(1, 20, N).tolist()
FEATURES = {
    "ids": VarLenFeature(torch.int64),
    "label": FixedLenFeature((), torch.int64),
    "scale": FixedLenFeature((), torch.float32),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "data.tfrecord"
    with TFRecordWriter(path) as writer:
        for number, size in enumerate(SIZES):
            writer.write({"ids": [number] * size, "label": number, "scale": number / 4})
    return path


# Keywords.


def test_few_are_named_and_the_others_are_those_of_the_dataset_and_of_dataloader():
    own = inspect.signature(make_dataloader).parameters
    assert len(own) <= 18
    named = {*own} - {"options"}
    of_dataset = {*inspect.signature(TFRecordDataset).parameters}
    assert {*DatasetOptions.__annotations__} == of_dataset - named
    of_loader = {*inspect.signature(DataLoader).parameters}
    assert of_loader - named - {"dataset", "sampler"} <= {*LoaderOptions.__annotations__}
    assert named.isdisjoint(LoaderOptions.__annotations__)


def test_help_shows_the_parameters():
    for thing in (make_dataloader, Mixture):
        names = [*inspect.signature(thing).parameters]
        shown = pydoc.render_doc(thing, renderer=pydoc.plaintext)
        begin = re.search(rf"{thing.__name__}\(\s*{names[0]}:", shown)
        places = [shown.find(f"{name}: ", begin.start()) for name in names]
        assert min(places) > -1 and places == sorted(places) and places[-1] < begin.start() + 2000
    assert [*inspect.signature(Mixture).parameters][:2] == ["datasets", "weights"]


def test_one_meaning_of_cache_bytes():
    """The limit of the folder that caches remote data, wherever it is a parameter."""
    public = [getattr(torch_tfrecord, name) for name in torch_tfrecord.__all__]
    public += [getattr(tfds, name) for name in tfds.__all__]
    callables = [thing for thing in public if callable(thing)]
    takes = [t for t in callables if "cache_bytes" in inspect.signature(t).parameters]
    assert {*takes} == {TFRecordDataset, TFRecordIterableDataset, tfds.RLDSDataset}
    assert all("cache_dir" in inspect.signature(thing).parameters for thing in takes)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("verify_crcs", "verify_crc"),
        ("pin_memmory", "pin_memory"),
        ("num_epoch", "num_epochs"),
        ("label_keys", "label_key"),
        ("batch_by", None),
        ("boundaries", None),
    ],
)
def test_a_misspelt_keyword(tmp_path, name, meant):
    hint = "" if meant is None else f"; did you mean '{meant}'[?]"
    text = f"^{name} is not a keyword of make_dataloader, TFRecordDataset or DataLoader{hint}$"
    with pytest.raises(TypeError, match=text):
        make_dataloader(tmp_path / "nothing", 2, **{name: 1})


def test_keywords_reach_the_dataset_and_dataloader(path):
    loader = make_dataloader(path, 4, FEATURES, max_batch_bytes=1234, timeout=0, in_order=False)
    assert loader.dataset._max_batch_bytes == 1234
    assert loader.in_order is False
    assert type(loader) is RecordLoader


PROGRAM = """\
from torch_tfrecord import RecordLoader, make_dataloader

loader: RecordLoader = make_dataloader("a", 4, verify_crc=True, pin_memory=True, on_error="skip")
make_dataloader("a", 4, verify_crcs=True)
make_dataloader("a", 4, on_error="ignore")
make_dataloader("a", 4, pin_memory="yes")
"""


@pytest.mark.daily
def test_mypy_knows_the_keywords(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--follow-imports=silent", "--no-error-summary", "--no-incremental"]
    command = [sys.executable, "-m", "mypy", *options, tmp_path / "program.py"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    errors = [line.split(": ", 1) for line in run.stdout.splitlines() if ": error: " in line]
    assert [place.rpartition(":")[2] for place, _ in errors] == ["4", "5", "6"]
    wanted = ('keyword argument "verify_crcs"', '"on_error"', '"pin_memory"')
    for (_, text), part in zip(errors, wanted, strict=True):
        assert part in text, text


# A batch sampler.


def sampler(dataset, **options):
    options = {"lengths": SIZES, "max_tokens": 40, "boundaries": [5, 10], "seed": 3} | options
    return LengthBatchSampler(dataset, **options)


def labels(loader):
    return [label.tolist() for _, label in loader]


@pytest.mark.parametrize(
    "way", ["threads", "none", pytest.param("workers", marks=pytest.mark.slow)]
)
def test_a_batch_sampler_with_everything_else(path, way):
    ways = {
        "threads": {"num_threads": 2},
        "none": {"num_threads": 0},
        "workers": {"num_workers": 2},
    }
    ds, seen = TFRecordDataset(path, FEATURES), sampler(range(N))
    epochs = []
    for epoch in range(4):
        seen.set_epoch(epoch)
        epochs.append(list(seen))
    assert sorted(position for batch in epochs[0] for position in batch) == [*range(N)]
    options = {"label_key": "label", "collate_fn": PaddedCollate(), **ways[way]}
    loader = make_dataloader(
        ds, batch_sampler=sampler(ds), transform=doubled, num_epochs=2, **options
    )
    assert len(loader) == len(epochs[0]) + len(epochs[1])
    for features, label in loader:
        for row, number in zip(features["ids"].tolist(), (label // 2).tolist(), strict=True):
            assert row == [number] * SIZES[number] + [0] * (len(row) - SIZES[number])
        assert features["ids"].numel() <= 40
    later = [[2 * position for position in batch] for batch in epochs[2] + epochs[3]]
    assert labels(loader) == later
    again = make_dataloader(
        ds, batch_sampler=sampler(ds), transform=doubled, num_epochs=2, **options
    )
    again.set_epoch(2)
    taken = iter(again)
    first = [next(taken)[1].tolist() for _ in range(3)]
    resumed = make_dataloader(
        path,
        batch_sampler=sampler(ds),
        features=FEATURES,
        transform=doubled,
        num_epochs=2,
        **options,
    )
    resumed.load_state_dict(again.state_dict())
    assert first + labels(resumed) == later


def doubled(sample):
    return {**sample, "label": 2 * sample["label"]}


def test_a_batch_sampler_begins_where_it_is_and_splits_ranks(path):
    ds = TFRecordDataset(path, FEATURES)
    found = []
    for rank in range(2):
        batches = sampler(ds, rank=rank, world_size=2)
        batches.set_epoch(5)
        loader = make_dataloader(ds, batch_sampler=batches)
        assert loader.epoch == 5
        expected = list(batches)
        found.append([batch["label"].tolist() for batch in loader])
        assert found[-1] == expected
    assert sorted(label for rank in found for batch in rank for label in batch)[:N] == [*range(N)]


def test_a_resumed_batch_sampler_begins_there_also_where_the_trainer_counts_from_0(path):
    ds, first = TFRecordDataset(path, FEATURES), sampler(range(N))
    first.set_epoch(2)
    batches = iter(first)
    taken = [next(batches) for _ in range(3)]
    resumed = sampler(ds)
    resumed.load_state_dict(first.state_dict())
    loader = make_dataloader(ds, batch_sampler=resumed)
    loader.batch_sampler.sampler.set_epoch(0)  # as Fabric does
    rest = [batch["label"].tolist() for batch in loader]
    assert rest == list(batches)
    assert sorted(label for batch in taken + rest for label in batch) == [*range(N)]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 4}, ValueError, "batch_size cannot be given with a batch_sampler"),
        ({"shuffle": False}, ValueError, "shuffle cannot be given with a batch_sampler"),
        ({"seed": 1}, ValueError, "seed cannot be given with a batch_sampler"),
        ({"drop_last": True}, ValueError, "drop_last cannot be given with a batch_sampler"),
        ({"lengths": SIZES}, ValueError, "lengths cannot be given with a batch_sampler"),
        ({"max_tokens": 9}, ValueError, "max_tokens cannot be given with a batch_sampler"),
        ({"rank": 0, "world_size": 1}, ValueError, "rank cannot be given with a batch_sampler"),
        (
            {"batch_sampler": BatchSampler(SequentialSampler(range(N)), 4, False)},
            TypeError,
            r"batch_sampler must be a LengthBatchSampler, got BatchSampler: give others to DataLoader\(",
        ),
    ],
)
def test_wrong_batch_samplers(path, options, error, text):
    ds = TFRecordDataset(path, FEATURES)
    with pytest.raises(error, match=f"^{text}"):
        make_dataloader(ds, **{"batch_sampler": sampler(ds)} | options)


def test_a_batch_sampler_of_another_dataset(path):
    ds = TFRecordDataset(path, FEATURES)
    text = "^the batch_sampler is for 40 records, the dataset has 30$"
    with pytest.raises(ValueError, match=text):
        make_dataloader(ds[:30], batch_sampler=sampler(ds))


def test_padding_decides_how_lengths_are_rounded(path):
    pad = PaddedCollate(multiple_of=8)
    batches = LengthBatchSampler(range(N), lengths=SIZES, max_tokens=64, multiple_of=8)
    loader = make_dataloader(path, features=FEATURES, lengths=SIZES, max_tokens=64, collate_fn=pad)
    assert [batch["label"].tolist() for batch in loader] == list(batches)
    assert all(batch["ids"].numel() <= 64 for batch in loader)


def test_rows_leave_out_what_is_too_long(path):
    options = {"features": FEATURES, "lengths": SIZES, "batch_size": 2}
    pack = PackedCollate(12, too_long="drop")
    loader = make_dataloader(path, collate_fn=pack, **options)
    found = [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(found) == [number for number, size in enumerate(SIZES) if size <= 12]
    with pytest.raises(
        ValueError, match=r"expected at most 12 \(max_length=12\), or too_long=\"drop\""
    ):
        make_dataloader(path, collate_fn=PackedCollate(12), **options)
    with pytest.raises(ValueError, match="too_long must be 'error' or 'drop', got 'alone'"):
        PackedCollate(12, too_long="alone")


# Datasets: labels, and inferred features.


def test_a_plain_dataloader_gives_x_and_y(path):
    ds = TFRecordDataset(path, FEATURES, label_key="label", transform=doubled)
    features, label = ds[7]
    assert (list(features), int(label)) == (["ids", "scale"], 14)
    assert [int(y) for _, y in ds[10:13]] == [20, 22, 24]
    plain = {name: FEATURES[name] for name in ("label", "scale")}
    for dataset in (
        TFRecordDataset(path, plain, label_key="label"),
        TFRecordDataset(path, plain, label_key="label")[:],
    ):
        for loader in (DataLoader(dataset, 4), make_dataloader(dataset, 4, shuffle=False)):
            x, y = next(iter(loader))
            assert y.tolist() == [0, 1, 2, 3]
            assert x["scale"].tolist() == [0, 0.25, 0.5, 0.75]
            assert list(x) == ["scale"]
    text = r"^The `label_key` provided \(y\) must be one of the `features` keys: \['ids', 'label', 'scale'\]"
    with pytest.raises(ValueError, match=text):
        TFRecordDataset(path, FEATURES, label_key="y")
    with pytest.raises(ValueError, match="keys: None"):
        TFRecordDataset(path, label_key="label")


def test_inferred_features(path):
    wanted = infer_features(path)
    assert wanted == FEATURES
    ds = TFRecordDataset(path, "auto")
    stream = TFRecordIterableDataset(path, "auto", batch_size=4)
    loader = make_dataloader(path, 4, "auto", label_key="label", shuffle=False)
    assert ds.features == stream.features == loader.dataset.features == FEATURES
    for each in (ds, stream):
        assert "'label': FixedLenFeature((), torch.int64)" in repr(each)
    assert ds[9]["ids"].tolist() == [9] * SIZES[9]
    x, y = next(iter(loader))
    assert (sorted(x), y.tolist()) == (["ids", "scale"], [0, 1, 2, 3])
    assert next(iter(stream))["label"].tolist() == [0, 1, 2, 3]
    for open_it in (TFRecordDataset, TFRecordIterableDataset):
        with pytest.raises(ValueError, match=r"^features must be 'auto' or None, got 'atuo'"):
            open_it(path, "atuo")


def test_inferred_features_of_sequences(tmp_path):
    with TFRecordWriter(tmp_path / "a") as writer:
        writer.write(encode_sequence_example({"id": 3}, {"x": [[1, 2], [3, 4]]}))
    ds = TFRecordDataset(tmp_path / "a", "auto")
    assert isinstance(ds.features, SequenceFeatures)
    context, steps = ds[0]
    assert (int(context["id"]), steps["x"].tolist()) == (3, [[1, 2], [3, 4]])
