"""examples/ports: the first batch of each port is the one that TensorFlow gave, what is written is
what TensorFlow wrote, and docs/ports.md shows the code.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from helpers import load_script

from index_tools.main import main
from torch_tfrecord import decode_example, read_records

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data" / "ports"
BATCH_SIZE = 4
NAMES = ["imagenet", "text", "tabular"]

with np.load(DATA / "first_batches.npz") as stored:
    GOLDEN = dict(stored)


def load(name):
    return load_script(ROOT / "examples" / "ports" / f"{name}.py")


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


# The writing halves.

WRITTEN = DATA / "written_by_tensorflow"


def rows(paths):
    return [decode_example(record) for path in paths for record in read_records(path)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the commands of the page run, with the data that they name."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "pictures", "pictures")
    Path("data").mkdir()
    for kind in ("table", "text"):
        for path in DATA.glob(f"{kind}-*.tfrecord"):
            shutil.copy(path, "data")
    return tmp_path


@pytest.fixture
def run_block(folder, capsys):
    """Run the commands of the page's bash blocks that have some text; what they print."""

    def run(text):
        page = (ROOT / "docs" / "ports.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
        (block,) = [block for block in blocks if text in block]
        printed = []
        for line in block.splitlines():
            assert main(shlex.split(line)[1:]) == 0
            printed.append(capsys.readouterr().out)
        return printed

    return run


@pytest.mark.parametrize("name", ["pictures", "table"])
def test_what_is_written_is_what_tensorflow_wrote(name, folder):
    program, source = {
        "pictures": ("write_folder", "pictures"),
        "table": ("write_table", DATA / "table.csv"),
    }[name]
    load(program).write(source, "out", 2)
    for number in range(2):
        own = f"out-{number:05d}-of-00002"
        expected = rows([WRITTEN / f"{name}-{number:05d}-of-00002.tfrecord"])
        assert str(rows(folder.glob(f"{own}*"))) == str(expected)
        assert len(expected) > 1


def test_prices_are_tensorflows(run_block, capsys):
    _, written = run_block("--image-quality table")
    assert "wrote 4 records of 2 classes" in written
    assert main(["convert", "pictures", "x/y", "--image-quality", "table", "--json"]) == 0
    printed = map(json.loads, capsys.readouterr().out.splitlines())
    found = {row["encoding"]: row for row in printed}
    golden = json.loads((WRITTEN / "jpeg_prices.json").read_text())
    for quality in ("95", "85", "75"):
        row, (num_bytes, psnr, _) = found[f"JPEG {quality}"], golden[quality]
        assert row["bytes"] == num_bytes
        assert row["psnr"] == pytest.approx(psnr, abs=0.1)


def test_split(run_block, folder):
    run_block("tfrecord split")
    sizes, found = [], []
    for name in ("train", "validation", "test"):
        own = rows(folder.glob(f"sets/{name}-*"))
        sizes.append((len(own), len(rows([WRITTEN / f"text-{name}.tfrecord"]))))
        found += own
    assert sizes == [(4, 4), (2, 2), (1, 1)]
    assert sorted(map(str, found)) == sorted(map(str, rows(WRITTEN.glob("text-*"))))


def test_look(run_block, folder, capsys):
    load("look").look("data/table-*")
    printed = capsys.readouterr().out
    assert '"clicked": FixedLenFeature((), torch.int64)' in printed
    assert "20" in printed
    load("write_folder").write("pictures", "data/pictures", 2)
    shown, stats, _ = run_block("tfrecord show")
    assert "clicked" in shown
    assert "income" in stats
    with PIL.Image.open("sheet.png") as sheet:
        assert sheet.format == "PNG"


PROGRAMS = [*NAMES, "write_folder", "write_table", "look", "split_text", "to_jpeg"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_docs_show_the_code(name):
    text = (ROOT / "docs" / "ports.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for file in (f"{name}_tf.py", f"{name}.py"):
        if name in PROGRAMS[-2:] and not file.endswith("_tf.py"):
            continue  # ours is a command
        source = (ROOT / "examples" / "ports" / file).read_text(encoding="utf-8")
        code = source.split('"""', 2)[2].strip() + "\n"  # without the docstring
        assert code in blocks, f"docs/ports.md does not show {file} as it is"
