"""docs/tfds.md: its Python is run as it stands, and what its comments promise is so."""

import re
from pathlib import Path

import pytest
import torch
from torchvision import tv_tensors

from torch_tfrecord import tfds

DOC = Path(__file__).parents[2] / "docs" / "tfds.md"
pytestmark = pytest.mark.skipif(not DOC.is_file(), reason="not beside an installed package")


def blocks():
    return re.findall(
        r"^```python\n(.*?)^```$", DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features = {
        "image": tfds.features.Image((24, 32, 3)),
        "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        "objects": tfds.features.Sequence(
            {"label": tfds.features.ClassLabel(3), "box": tfds.features.BBoxFeature()}
        ),
    }

    def samples(count):
        for number in range(count):
            objects = {"label": [1] * (number % 3), "box": [[0.0, 0.0, 0.5, 1.0]] * (number % 3)}
            image = torch.full((3, 24, 32), number, dtype=torch.uint8)
            yield {"image": image, "label": number % 2, "objects": objects}

    splits = {"train": samples(40), "test": samples(5)}
    keys = ("image", "label")
    tfds.write("data/toy/1.0.0", splits, features, name="toy", supervised_keys=keys, num_shards=3)


@pytest.mark.slow
def test_python_blocks_run(folder, capsys):
    names = {}
    for block in blocks():
        exec(block, names)
    assert "train: 40 examples in 3 shards" in capsys.readouterr().out
    assert names["info"].splits["train"].num_examples == 40
    assert names["info"].features["label"].int2str(1) == "dog"
    assert len(names["ds"]) == 36
    sample = names["ds"][2]
    assert type(sample["image"]) is tv_tensors.Image
    assert (sample["image"].dtype, tuple(sample["image"].shape)) == (torch.uint8, (3, 24, 32))
    assert sample["objects"]["label"].tolist() == [1, 1]
    assert sample["objects"]["box"].tolist() == [[0, 0, 32, 12]] * 2
    batch = next(iter(names["loader"]))
    assert batch["image"].shape == (4, 3, 24, 32)
    assert set(names["small"][0]) == {"image", "label"}
    assert int(names["pairs"][41][0].max()) == 1
    assert names["jpegs"][0]["image"][:4] == b"\x89PNG"
    assert int(tfds.load("out/mine")[0]["label"]) == 1


def test_every_class_of_features_has_its_row():
    text = DOC.read_text(encoding="utf-8")
    classes = set(tfds.features.__all__) - {
        "FeatureConnector",
        "STRING",
        "UnknownFeature",
        "as_feature",
        "torch_dtype_of",
    }
    assert [name for name in sorted(classes) if f"`{name}" not in text] == []
