"""docs/images.md: its code runs as it stands, and gives what stands beside it."""

import re
from pathlib import Path

import pytest
import torch

from torch_tfrecord import ShardedTFRecordWriter, encode_image

PAGE = Path(__file__).parents[2] / "docs" / "images.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not beside an installed package")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with ShardedTFRecordWriter("data/train", num_shards=2) as writer:
        for label in range(66):
            jpeg = encode_image(torch.full((3, 60, 80), 3 * label, dtype=torch.uint8))
            writer.write({"image/encoded": jpeg, "image/class/label": label})
    Path("data/photo.jpg").write_bytes(jpeg)


def test_python_blocks_run(folder):
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    names, train, evaluate, transforms, one = blocks
    namespace = {}
    exec(names, namespace)
    exec(train, namespace)
    batch = namespace["batch"]
    assert type(batch["image"]) is torch.Tensor
    assert (batch["image"].shape, batch["image"].dtype) == ((64, 3, 224, 224), torch.uint8)
    assert (batch["image"][:, 0, 0, 0].int() - 3 * batch["label"]).abs().max() <= 1
    exec(evaluate, namespace)
    batch = namespace["batch"]
    assert (batch["image"].shape, batch["image"].dtype) == ((64, 3, 224, 224), torch.float32)
    first = (batch["image"][:, 0, 0, 0] * 0.229 + 0.485) * 255
    assert (first - 3 * batch["label"]).abs().max() < 1.01
    exec(transforms, namespace)
    assert (namespace["images"].shape, namespace["images"].dtype) == (
        (64, 3, 224, 224),
        torch.float32,
    )
    exec(one, namespace)
    assert namespace["image"].shape == (3, 60, 80)


def test_other_pages_link_to_what_is_measured():
    """How far TensorFlow's default JPEG decoding is from ours is told once."""
    assert "\n### TensorFlow's default JPEG decoding\n" in PAGE.read_text(encoding="utf-8")
    for name in ("ports", "rlds", "tensorflow", "tfds"):
        text = PAGE.with_name(f"{name}.md").read_text(encoding="utf-8")
        assert "[images.md](images.md) says by how much" in text
        assert "by up to 5" not in text
