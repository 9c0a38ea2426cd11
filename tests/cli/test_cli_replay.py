"""`tfrecord replay`: the very records that a run recorded, resumed and with other weights."""

from __future__ import annotations

import json
from itertools import chain, islice

import numpy as np
import pytest
import torch

from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    LengthBatchSampler,
    Mixture,
    PackedCollate,
    TFRecordDataset,
    TFRecordWriter,
    build_index,
    make_dataloader,
)

FEATURES = {"id": FixedLenFeature((), torch.int64)}


@pytest.fixture
def sets(tmp_path):
    paths = []
    for number, first in enumerate((0, 1000)):
        path = tmp_path / f"{number}.tfrecord"
        with TFRecordWriter(path) as writer:
            for name in range(first, first + 90):
                writer.write({"id": name, "tokens": np.full(name % 23, 1)})
        build_index(path, columns=["len(tokens)"])
        paths.append(str(path))
    return paths


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def replayed(capsys, state, *arguments):
    assert main(["replay", str(state), "--json", *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [int(value) for line in lines for name, _, _, value in line["features"] if name == "id"]


def test_a_resumed_run_with_other_weights(sets, tmp_path, capsys, monkeypatch):
    """Two ranks, then three; the weights change twice. The run notes what it received."""

    def loaders(world_size, state=None):
        mixture = [
            Mixture(
                [TFRecordDataset(path, FEATURES) for path in sets],
                [4, 1],
                seed=3,
                stop="never",
                num_samples=300,
            )
            for _ in range(world_size)
        ]
        found = [
            make_dataloader(each, 3, shuffle=False, rank=rank, world_size=world_size)
            for rank, each in enumerate(mixture)
        ]
        for loader in found:
            if state is not None:
                loader.load_state_dict(state)
        return found

    noted, state = [], None
    for world_size, weights in ((2, [1, 1]), (3, [1, 6])):
        ranks = loaders(world_size, state)
        received = [ids(islice(loader, 4)) for loader in ranks]
        for loader in ranks:
            at, mixture = loader.state_dict(), loader.dataset.dataset
            mixture.set_epoch(at["epoch"])
            mixture.set_weights(weights, at["consumed"])
            loader.load_state_dict(loader.state_dict())
        after = [ids(islice(loader, 5)) for loader in ranks]
        for part in (received, after):
            noted += [[*chain.from_iterable(step)] for step in zip(*part, strict=True)]
        state = ranks[0].state_dict()
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))
    monkeypatch.chdir(tmp_path)  # wherever the command runs
    for step, wanted in enumerate(noted):
        assert replayed(capsys, file, "--step", str(step)) == wanted
    # The step that comes next, and one from a state that torch saved.
    coming = [i for loader in loaders(3, state) for i in next(iter(loader))["id"].tolist()]
    torch.save(state, tmp_path / "state.pt")
    assert replayed(capsys, tmp_path / "state.pt", "--step", str(len(noted))) == coming
    assert replayed(capsys, file, "--step", "3", "-n", "2") == noted[3][:2]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "shuffle": False, "drop_last": True},
        {"lengths": "tokens", "max_tokens": 66},
        {"batch_sampler": {"lengths": "tokens", "max_tokens": 66, "boundaries": (5, 12)}},
        {"batch_sampler": {"batch_size": 3, "multiple_of": 2, "drop_last": True}},
        {"batch_size": 2, "lengths": "tokens", "collate_fn": PackedCollate(40, features=["id"])},
    ],
)
def test_each_kind_of_batch(sets, tmp_path, capsys, options):
    def make():
        if "batch_sampler" in options:
            ds = TFRecordDataset(sets, FEATURES)
            batches = LengthBatchSampler(ds, seed=2, **options["batch_sampler"])
            return make_dataloader(ds, batch_sampler=batches, collate_fn=first_ids)
        parts = {"paths": sets, "features": FEATURES, "seed": 2}
        return make_dataloader(**parts, **({"collate_fn": first_ids} | options))

    loader = make()
    batches = [[position for *_, position in loader.records_of(step)] for step in range(4)]
    file = tmp_path / "state.json"
    file.write_text(json.dumps(make().state_dict()))
    for step, wanted in enumerate(batches):
        found = replayed(capsys, file, "--step", str(step))
        assert found == [number if number < 90 else number + 910 for number in wanted]
    later = [position for *_, position in loader.records_of(1, epoch=2)]
    found = replayed(capsys, file, "--step", "1", "--epoch", "2")
    assert found == [number if number < 90 else number + 910 for number in later]


def first_ids(samples):
    return [sample["id"] for sample in samples]


def test_as_text(sets, tmp_path, capsys):
    state = make_dataloader(sets[0], 2, FEATURES, shuffle=False).state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert main(["replay", str(tmp_path / "state.json"), "--step", "1"]) == 0
    head, feature, *_ = capsys.readouterr().out.splitlines()
    ds = TFRecordDataset(sets[0])
    assert (
        head
        == f"record 2: {sets[0]}, offset {ds.locate(2)[1]}, {len(ds.raw(2))} bytes, Example, 2 features"
    )
    assert feature.split() == ["id", "int64", "1", "2"]


def test_what_is_no_state(sets, tmp_path, capsys):
    path = tmp_path / "state"
    part = TFRecordDataset(sets[0], FEATURES).where("len(tokens)", range(5))
    cases = [
        (
            json.dumps(make_dataloader(part, 2).state_dict()),
            "does not say which records the loader",
        ),
        ("{}", "expected the state_dict() of a loader that make_dataloader made, got {}"),
        ("{", "expected a state, got JSONDecodeError"),
        (
            "\x80\x04nonsense",
            "expected a state, got UnpicklingError: json.dump or torch.save writes a state_dict()\n",
        ),
        (
            json.dumps(make_dataloader(sets, 2).state_dict()),
            "step 999 is out of range: epoch 0 has 90 steps",
        ),
    ]
    for text, wanted in cases:
        path.write_text(text)
        assert main(["replay", str(path), "--step", "999"]) == 2
        assert wanted in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "none"), "--step", "0"]) == 2
    assert "none" in capsys.readouterr().err
