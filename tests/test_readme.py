"""What the README shows is run as it stands; what it names exists."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import torch_tfrecord
from index_tools.main import main
from torch_tfrecord import FixedLenFeature, Image, ShardedTFRecordWriter, encode_image, tfds

README = Path(__file__).parent.parent / "README.md"
pytestmark = pytest.mark.skipif(not README.is_file(), reason="not beside an installed package")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with ShardedTFRecordWriter("data/train", num_shards=4) as writer:
        for label in range(70):
            jpeg = encode_image(torch.full((3, 240, 250), label, dtype=torch.uint8))
            writer.write({"image/encoded": jpeg, "image/class/label": label})
    return tmp_path


def write_digits(directory):
    """Ten drawn digits as TFDS would lay MNIST out."""
    features = {
        "image": tfds.features.Image(shape=(28, 28, 1), encoding_format="png"),
        "label": tfds.features.ClassLabel(names=list("0123456789")),
    }
    digits = [{"image": torch.full((1, 28, 28), 20 * label, dtype=torch.uint8), "label": label} for label in range(10)]
    tfds.write(directory, {"train": digits}, features, name="mnist", supervised_keys=("image", "label"))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
def test_python_blocks_run(folder):
    first, write, one_call, cropped, resumed, from_tfds = blocks("python")
    namespace = {}
    exec(first, namespace)  # the 30-second example
    assert namespace["batch"]["image"].shape == (6, 3, 224, 224)
    assert namespace["batch"]["image"].dtype == torch.float32
    assert namespace["batch"]["label"].dtype == torch.int64
    namespace |= {name: getattr(torch_tfrecord, name) for name in torch_tfrecord.__all__}
    namespace["features"] = {
        "image": Image(key="image/encoded"),
        "label": FixedLenFeature((), torch.int64, key="image/class/label"),
    }
    exec(one_call, namespace)
    assert isinstance(namespace["loader"], DataLoader)
    images, labels = next(iter(namespace["loader"]))
    assert images["image"].shape == (64, 3, 240, 250)
    assert len(set(labels.tolist())) == 64
    exec(cropped, namespace)
    assert namespace["x"]["image"].shape == (6, 3, 224, 224)
    assert namespace["x"]["image"].dtype == torch.float32
    exec(resumed, namespace)
    left = [label for _, labels in namespace["loader"] for label in labels.tolist()]
    assert sorted(left) == list(range(70))  # the second epoch: the first one's two batches were taken
    write_digits("mnist/3.0.1")
    exec(from_tfds, namespace)
    assert len(namespace["ds"]) == 9
    assert namespace["image"].shape == (1, 28, 28)
    assert namespace["label"].dtype == torch.int64
    exec(write, namespace)
    (record,) = [
        record for path in sorted(Path("data").glob("train-*.tfrecord")) for record in torch_tfrecord.read_records(path)
    ]
    decoded = torch_tfrecord.decode_example(record)
    assert decoded["label"].tolist() == [3]
    np.testing.assert_array_equal(decoded["x"], np.zeros(16, np.float32))


def test_command_line_as_shown(folder, capsys):
    assert main(["index", "data/"]) == 0
    assert main(["verify", "data/train-*"]) == 0
    assert "70 records" in capsys.readouterr().out
    assert main(["show", "data/train-00000-of-00004.tfrecord", "-n", "2"]) == 0


def test_every_public_name_is_in_the_readme_or_the_docs():
    pages = [README, *(README.parent / "docs").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in torch_tfrecord.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert [target for target in targets if not (README.parent / target).exists()] == []
