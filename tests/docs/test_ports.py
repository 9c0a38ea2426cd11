"""examples/ports: the first batch of each port is the one that TensorFlow gave, and docs/ports.md
shows the code.
"""

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data" / "ports"
BATCH_SIZE = 4
NAMES = ["imagenet", "text", "tabular"]

with np.load(DATA / "first_batches.npz") as stored:
    GOLDEN = dict(stored)


def load(name):
    spec = importlib.util.spec_from_file_location(
        f"port_{name}", ROOT / "examples" / "ports" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def batches(tmp_path):
    """All batches of a port; reads a copy, since an index is kept beside the data."""

    def read(name, pattern):
        for path in DATA.glob("*.tfrecord"):
            shutil.copy(path, tmp_path)
        return list(load(name).pipeline(tmp_path / pattern, BATCH_SIZE))

    return read


def assert_equal(tensor, name):
    expected = torch.from_numpy(GOLDEN[name])
    assert (tensor.dtype, tensor.tolist()) == (expected.dtype, expected.tolist())


def test_imagenet(batches):
    found = batches("imagenet", "imagenet-*")
    image, label = found[0]
    assert_equal(label, "imagenet/label")
    expected = torch.from_numpy(GOLDEN["imagenet/image"]).permute(0, 3, 1, 2)
    assert (image.dtype, image.shape) == (torch.float32, expected.shape)
    # The pixels decode the same bit for bit; resizing differs by 2e-4 of 255, that is 4e-6 of a
    # standard deviation.
    assert float((image - expected).abs().max()) < 2e-5
    assert len(found) == 2


def test_text(batches):
    found = batches("text", "text-*")
    features, label = found[0]
    assert [text.decode() for text in features["text"]] == GOLDEN["text/text"].tolist()
    assert_equal(features["tokens"], "text/tokens")
    assert_equal(label, "text/label")
    # len() of a tensor is a Python int, which makes int64; tf.size is int32.
    assert features["length"].tolist() == GOLDEN["text/length"].tolist()
    assert len(found) == 2


def test_tabular(batches):
    found = batches("tabular", "table-*")
    features, clicked = found[0]
    assert_equal(clicked, "table/clicked")
    assert_equal(features["age"], "table/age")
    assert_equal(features["income"], "table/income")
    assert [country.decode() for country in features["country"]] == GOLDEN["table/country"].tolist()
    # A list of each row's tags, in place of a sparse tensor.
    expected = [[tag for tag in row if tag] for row in GOLDEN["table/tags"].tolist()]
    assert [[tag.decode() for tag in row] for row in features["tags"]] == expected
    assert "clicked" not in features
    assert len(found) == 3


def test_the_data_shows_what_it_should():
    assert -1 in GOLDEN["table/age"]
    assert "unknown" in GOLDEN["table/country"]
    assert 0 in GOLDEN["text/length"]
    assert GOLDEN["text/tokens"].shape == (4, 6)  # cut to six tokens


def test_the_data_is_what_the_script_writes(tmp_path):
    # But for the pictures, whose JPEG bytes are Pillow's to choose.
    writer = load("write_data")
    writer.write_text(tmp_path)
    writer.write_table(tmp_path)
    written = sorted(path.name for path in tmp_path.iterdir())
    assert len(written) == 4
    for name in written:
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_docs_show_the_code(name):
    text = (ROOT / "docs" / "ports.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for file in (f"{name}_tf.py", f"{name}.py"):
        source = (ROOT / "examples" / "ports" / file).read_text(encoding="utf-8")
        code = source.split('"""', 2)[2].strip() + "\n"  # without the docstring
        assert code in blocks, f"docs/ports.md does not show {file} as it is"
