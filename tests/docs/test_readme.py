"""What the README and the short pages of docs/ show is run as it stands; what they name exists."""

import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from rlds_episodes import write_episodes
from torch.utils.data import DataLoader
from torchvision import tv_tensors

import torch_tfrecord
from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    Mixture,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordWriter,
    build_index,
    encode_example,
    encode_image,
    encode_sequence_example,
    tfds,
)

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))] if README.is_file() else []
pytestmark = pytest.mark.skipif(not README.is_file(), reason="not beside an installed package")


def blocks(page, language="python"):
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def jpeg(label, height=240, width=250):
    return encode_image(torch.full((3, height, width), label, dtype=torch.uint8))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    with ShardedTFRecordWriter("data/train", num_shards=4) as writer:
        for label in range(70):
            ids = np.arange(label % 3)
            writer.write({"image/encoded": jpeg(label), "image/class/label": label, "ids": ids})
    return tmp_path


def write_digits(directory):
    """Ten drawn digits as TFDS would lay MNIST out."""
    features = {
        "image": tfds.features.Image(shape=(28, 28, 1), encoding_format="png"),
        "label": tfds.features.ClassLabel(names=list("0123456789")),
    }
    digits = [
        {"image": torch.full((1, 28, 28), 20 * label, dtype=torch.uint8), "label": label}
        for label in range(10)
    ]
    tfds.write(
        directory, {"train": digits}, features, name="mnist", supervised_keys=("image", "label")
    )


def test_first_block_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = blocks(README)[0]
    exec(first, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print\(.*\)  # (.*)$", first, re.M)
    assert Path(".torch_index").is_dir()


def test_the_code_comes_first():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert lines.index("```python") < 20
    assert len(lines) < 110
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == [
        f"## {name}" for name in ("Install", "Train", "Write", "Come from tf.data", "More")
    ]


@pytest.mark.daily
def test_training_block_runs(folder):
    (_, train) = blocks(README)
    names = {}
    exec(train, names)
    assert isinstance(names["loader"], DataLoader)
    assert names["x"]["image"].shape == (6, 3, 224, 224)
    assert names["x"]["image"].dtype == torch.uint8
    assert names["label"].dtype == torch.int64
    assert math.isfinite(names["loss"].item())
    assert names["state"]["epoch"] == 2
    labels = [label for _, label in names["loader"]]
    assert sorted(torch.cat(labels).tolist()) == sorted([*range(70)] * 2)


def test_rows_of_tfds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_digits("mnist/3.0.1")
    write_episodes("bridge/1.0.0", (20, 12), name="bridge")
    rows = re.findall(r"^\|.*\| `(tfds\..*?)`", README.read_text(encoding="utf-8"), re.MULTILINE)
    digits, steps = (eval(call, {"tfds": tfds}) for call in rows)
    assert len(digits) == 9
    assert digits[0]["image"].shape == (1, 28, 28)
    assert steps[0]["observation"]["image"].shape[0] == 2
    assert steps[0]["action"].shape[0] == 8


@pytest.mark.daily
def test_features_blocks_run(folder, capsys):
    with TFRecordWriter("data/video.tfrecord") as writer:
        writer.write(
            encode_sequence_example({"id": 7}, {"frame": [[jpeg(n, 8, 16)] for n in range(5)]})
        )
    read, infer, batches, *specs, sequences = blocks(DOCS / "features.md")
    names = {}
    exec(read, names)
    assert names["batch"]["image"].shape == (4, 3, 240, 250)
    assert names["batch"]["label"].shape == (4,)
    exec(infer, names)
    assert '"ids": VarLenFeature(torch.int64)' in capsys.readouterr().out
    exec(batches, names)
    assert names["lengths"].tolist() == (names["batch"]["label"] % 3).tolist()
    assert [row.tolist() for row in names["rows"]] == [
        list(range(n)) for n in names["lengths"].tolist()
    ]
    assert names["padded"].shape == (4, int(names["lengths"].max()))
    for code in specs:
        exec(code, names)
    assert names["masks"].several == "stack"
    assert names["again"]["label"] == names["batch"]["label"][0]
    exec(sequences, names)
    assert names["context"]["id"] == 7
    assert type(names["sequences"]["frame"]) is tv_tensors.Video
    assert names["sequences"]["frame"].shape == (5, 3, 8, 16)


def migration_code():
    """The right-hand side of each row of the tables "what you wrote" in docs/migration.md."""
    text = (DOCS / "migration.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| what you wrote .*\n\|---.*\n((?:\|.*\n)+)", text, re.M)
    rows = re.findall(r"^\| .* \| (.*) \|$", "".join(tables), re.M)
    codes = [code for right in rows for code in re.findall(r"`([^`]+)`", right)]
    return [code for code in codes if code != "with_info=True"]  # a keyword, also in TFDS


@pytest.mark.parametrize("code", migration_code() if README.is_file() else [])
def test_migration_row_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = encode_example({"image": b"abc", "label": 3, "x": [0.5, 1.5]})
    with TFRecordWriter("a.tfrecord") as writer:
        writer.write(record)
    if code == "tfrecord2idx":
        return  # the name of a format
    if code.startswith("tfrecord "):
        assert (
            main([*shlex.split(code)[1:], *([] if "a.tfrecord" in code else ["a.tfrecord"])]) == 0
        )
        return
    build_index("a.tfrecord").to_tfrecord2idx("a.idx")
    monkeypatch.setenv("HOME", str(tmp_path))
    if "directory" in code or "data_dir" in code:
        write_digits("mnist/3.0.1" if "directory" in code else "tensorflow_datasets/mnist/3.0.1")
    names = {name: getattr(torch_tfrecord, name) for name in torch_tfrecord.__all__} | {
        "torch": torch
    }
    names |= {"path": "a.tfrecord", "pattern": "{}.tfrecord", "splits": {"a": 0.3, "b": 0.7}}
    Path("b.tfrecord").write_bytes(Path("a.tfrecord").read_bytes())
    features = {"label": FixedLenFeature((), torch.int64)}
    ds = TFRecordDataset("a.tfrecord", features)
    names |= {"directory": "mnist/3.0.1", "name": "mnist", "features": features, "ds": ds}
    names |= {"mixture": Mixture([ds]), "batch_size": 64}
    try:
        value = eval(code, names)
    except SyntaxError:
        exec(code, names)
        assert names["record"] == record
        return
    if isinstance(value, DataLoader):
        assert next(iter(value))["label"].tolist() == [3]
    elif isinstance(value, TFRecordDataset):
        assert value[0]
    elif isinstance(value, Mixture):
        assert next(iter(value))["label"] == 3
    elif ".save(" in code:
        assert TFRecordDataset("a.tfrecord", index="require")[0] == record


@pytest.mark.daily
def test_command_line_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        Path("photos", "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Path("photos", "ab"[number % 2], f"{number}.jpg").write_bytes(jpeg(number, 8, 8))
    (commands,) = blocks(README, "console")
    convert, split, gallery = re.findall(r"^\$ tfrecord (.*?)(?: +#.*)?$", commands, re.MULTILINE)
    assert main(shlex.split(convert)) == 0
    assert len(list(Path("data").glob("train-*-of-00008.tfrecord"))) == 8
    assert Path("data/labels-train.txt").read_text(encoding="utf-8").split() == ["a", "b"]
    assert main(shlex.split(split)) == 0
    label = {"label": FixedLenFeature((), torch.int64, key="image/class/label")}
    for name, count in {"train": 18, "val": 2}.items():
        found = [sample["label"].item() for sample in TFRecordDataset(f"sets/{name}*", label)]
        assert sorted(found) == sorted([0, 1] * (count // 2))
    assert main([*shlex.split(gallery), "--png", "sheet.png"]) == 0
    assert Path("sheet.png").stat().st_size > 1000


def test_every_public_name_is_in_the_readme_or_the_docs():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in torch_tfrecord.__all__ if not re.search(rf"\b{name}\b", text)] == []


def anchors(page):
    """GitHub's names of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Of the README and the pages that it names; the documentation site's own pages are checked when it
# is built.
LINKED = [
    page
    for page in PAGES
    if page == README or f"(docs/{page.name}" in README.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
