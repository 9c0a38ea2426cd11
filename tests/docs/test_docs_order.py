"""docs/order.md: its code runs as it stands, in its order, and its picture is the one that the
script draws.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from helpers import load_script

from torch_tfrecord import FixedLenFeature, RecordSampler, TFRecordDataset, TFRecordWriter

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "order.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    first = 0
    for name, count in (("train-0", 300), ("train-1", 200), ("real-0", 100), ("drawn-0", 40)):
        with TFRecordWriter(tmp_path / name) as writer:
            for number in range(first, first + count):
                writer.write({"id": number, "label": number % 3})
        first += count
    monkeypatch.chdir(tmp_path)
    return tmp_path


# DataLoader thinks more workers than processors a mistake; torchdata 0.11 with torch 2.15; forks
# where threads run.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",
    "ignore:'set_vital' is deprecated",
    "ignore:This process .* is multi-threaded",
)


@pytest.mark.daily
def test_the_code(folder):
    pytest.importorskip("torchdata.stateful_dataloader")
    trained = []
    features = {"id": FixedLenFeature((), torch.int64), "label": FixedLenFeature((), torch.int64)}
    names = {"features": features, "train": lambda batch: trained.append(batch["id"].tolist())}
    blocks = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    assert len(blocks) == 9
    seen = []
    for block in blocks:
        exec(compile(block, "docs/order.md", "exec"), names)
        seen.append(trained.copy())
        trained.clear()
    first, _, made, plain, resumed, stream, other_workers, _, _ = seen
    order = RecordSampler(TFRecordDataset("train-*"), seed=0)
    epochs = []
    for epoch in range(2):
        order.set_epoch(epoch)
        epochs.append(list(order))
    assert [number for batch in first for number in batch] == epochs[0] + epochs[1]
    assert [number for batch in made for number in batch] == epochs[0] + epochs[1]
    assert len(stream) == 5
    assert sorted(number for batch in stream + other_workers for number in batch) == list(
        range(500)
    )
    # The sampler was in epoch 1; its state after the last batch leaves nothing of it.
    assert [number for batch in plain for number in batch] == epochs[1]
    assert resumed == []
    assert sorted(names["balanced"].state_dict()) and len(list(names["balanced"])) == 500
    samples = [
        int(sample["id"])
        for batch in names["loader"]
        for sample in [{"id": n} for n in batch["id"]]
    ]
    assert len(samples) == len(names["mixture"])
    assert set(samples) == set(range(500, 640))
    share = sum(number < 600 for number in samples) / len(samples)
    assert abs(share - 0.7) < 1 / len(samples)


@pytest.mark.slow
def test_a_state_in_the_middle(folder):
    # The lines of the page, stopped after 3 batches.
    features = {"id": FixedLenFeature((), torch.int64), "label": FixedLenFeature((), torch.int64)}
    blocks = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    trained = []

    class Killed(Exception):
        pass

    def train(batch):
        if len(trained) == 3:
            raise Killed
        trained.append(batch["id"].tolist())

    names = {"features": features, "train": lambda batch: None}
    exec(blocks[0], names)
    names["train"] = train
    with pytest.raises(Killed):
        exec(blocks[3], names)
    before = [number for batch in trained for number in batch]
    trained = []
    names["train"] = lambda batch: trained.append(batch["id"].tolist())
    exec(blocks[4], names)
    assert sorted(before + [number for batch in trained for number in batch]) == list(range(500))


@pytest.mark.daily
def test_a_loader_in_the_middle(folder):
    features = {"id": FixedLenFeature((), torch.int64), "label": FixedLenFeature((), torch.int64)}
    block = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)[2]
    runs = [[]]

    class Killed(Exception):
        pass

    def train(batch):
        if len(runs) == 1 and len(runs[0]) == 11:
            raise Killed
        runs[-1].append(batch["id"].tolist())

    names = {"features": features, "train": train}
    with pytest.raises(Killed):
        exec(block, names)
    runs.append([])
    exec(block, names)
    Path("checkpoint.pt").unlink()
    runs.append([])
    exec(block, names)
    assert runs[0] + runs[1] == runs[2]


def test_the_picture():
    module = load_script(ROOT / "docs" / "draw_order.py")
    assert module.draw() == module.PICTURE.read_text(encoding="utf-8")
    assert os.path.getsize(module.PICTURE) < 100_000
