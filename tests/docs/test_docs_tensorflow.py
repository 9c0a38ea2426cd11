"""docs/tensorflow.md: what stands on the right-hand side of a row runs as it stands."""

import gzip
import re
import runpy
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.data
from media_files import FOLDER
from media_files import torchcodec as torchcodec
from PIL import Image as PillowImage
from PIL import ImageSequence
from scenario_messages import Scenario
from torchvision.transforms import v2

import torch_tfrecord
from torch_tfrecord import (
    FixedLenFeature,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordWriter,
    VarLenFeature,
    encode_example,
    encode_image,
    encode_sequence_example,
    serialize_tensor,
)

DOC = Path(__file__).parents[2] / "docs" / "tensorflow.md"
# Sections whose rows show code on the right; those of the differences say in words what other tests
# assert.
WITHOUT_CODE = "Deliberate differences"
NUM_RECORDS = 140
WAV = runpy.run_path(str(FOLDER / "make.py"))["WAVS"]["stereo"]


def rows():
    """(section, left, right) of each row of each table that shows code."""
    found, section = [], ""
    for line in DOC.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        if line.startswith("|") and not line.startswith(
            ("|---", "| TensorFlow", "| `tf.image.resize` |")
        ):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if section != WITHOUT_CODE:
                found.append((section, cells[0], cells[1]))
    return found


def snippets(right):
    return re.findall(r"`([^`]+)`", right)


def record(number):
    picture = torch.full((3, 24, 32), number, dtype=torch.uint8)
    return encode_example(
        {
            "label": number,
            "ids": np.arange(number % 4),
            "image/encoded": encode_image(picture, "png"),
            "raw": picture.permute(1, 2, 0).numpy().tobytes(),
            "height": 24,
            "width": 32,
            "shape": [24, 32, 3],
            "rows": [bytes(8), bytes(8)],
            "zipped": zlib.compress(bytes(8)),
            "masks": [encode_image(picture[:1], "png")] * 2,
            "tensor": serialize_tensor(torch.ones(2)),
            "sound": WAV,
            "moving": (FOLDER / "moving.gif").read_bytes(),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs")
    with ShardedTFRecordWriter(path / "train", num_shards=2, suffix="") as writer:
        for number in range(NUM_RECORDS):
            writer.write(record(number))
    with TFRecordWriter(path / "more.tfrecord") as writer:
        writer.write(record(0))
        writer.write(record(1))
    (path / "zipped.gz").write_bytes(gzip.compress((path / "more.tfrecord").read_bytes(), mtime=0))
    snappy = Path(__file__).parents[1] / "data/snappy/short.tfrecord"
    (path / "snappy.tfrecord").write_bytes(snappy.read_bytes())
    (path / "picture.png").write_bytes(encode_image(torch.zeros(3, 4, 4, dtype=torch.uint8), "png"))
    frames = [PillowImage.new("L", (4, 4), value) for value in (0, 255)]
    frames[0].save(path / "moving.gif", save_all=True, append_images=frames[1:])
    return path


def augment(sample):
    return sample


def keep(sample):
    return int(sample["label"]) % 2 == 0


@pytest.fixture
def names(folder, monkeypatch, torchcodec):
    """What the page takes for granted."""
    monkeypatch.chdir(folder)
    features = {"label": FixedLenFeature((), torch.int64), "ids": VarLenFeature(torch.int64)}
    picture = torch.randint(
        0, 256, (3, 24, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    context = encode_example({"id": 1})
    given = {name: getattr(torch_tfrecord, name) for name in torch_tfrecord.__all__}
    given |= {name: getattr(torch.utils.data, name) for name in torch.utils.data.__all__}
    return given | {
        "torch": torch,
        "v2": v2,
        "Path": Path,
        "PillowImage": PillowImage,
        "ImageSequence": ImageSequence,
        "paths": "train-*",
        "features": features,
        "ds": TFRecordDataset("train-*", features),
        "other": TFRecordDataset("more.tfrecord", features),
        "record": record(3),
        "records": [record(number) for number in range(4)],
        "serialized": serialize_tensor(torch.ones(2)),
        "sequence": encode_sequence_example({"id": 1}, {"step": [[1, 2], [3]]}),
        "context_features": {"id": FixedLenFeature((), torch.int64)},
        "sequence_features": {"step": VarLenFeature(torch.int64)},
        "data": encode_image(picture, "png"),
        "Scenario": Scenario,
        "example_features": {"score": FixedLenFeature((), torch.float32, -1.0)},
        "lists": [b"\x12" + bytes([len(context)]) + context],
        "messages": [encode_example({"message": Scenario(scenario_id="s").SerializeToString()})],
        "outer": [encode_example({"inner": record(3)})],
        "pairs": [encode_example({"serialized_context": context})],
        "texts": [b'{"features": {"feature": {"label": {"int64List": {"value": [3]}}}}}'],
        "image": picture,
        "augment": augment,
        "keep": keep,
    }


def first_of(value):
    """Loaders and streams must also give something, not only be made."""
    if isinstance(value, torch.utils.data.DataLoader | torch.utils.data.IterableDataset):
        return next(iter(value))
    return value


@pytest.mark.parametrize(("section", "left", "right"), rows(), ids=lambda text: text[:50])
def test_row_runs(section, left, right, names):
    code = snippets(right)
    if left.startswith("Snappy"):
        assert not code
        return
    assert code, f"{left}: nothing to run"
    for snippet in code:
        if re.fullmatch(r"\[[A-Z, ]+\]|antialias=False|NEAREST", snippet):
            continue  # a layout or an argument that the text speaks of
        try:
            compiled = compile(snippet, left, "eval")
        except SyntaxError:
            exec(compile(snippet, left, "exec"), names)
            continue
        first_of(eval(compiled, names))


def test_rows_are_found():
    sections = {section for section, _, _ in rows()}
    assert len(rows()) > 80
    assert len(sections) == 7
    assert all(
        left.startswith(
            ("`tf.", "`tfr.", "`method", "default", "`antialias", "Snappy", "ArrayRecord")
        )
        for _, left, _ in rows()
    )


def test_some_results(names):
    """Rows whose result is easily wrong."""
    ds = names["ds"]
    assert [int(sample["label"]) for sample in ds[1::4]][:3] == [2, 10, 18]
    assert len(names["Subset"](ds, [i for i in range(len(ds)) if keep(ds[i])])) == 70
    windows = [ds[i : i + 3] for i in range(len(ds) - 2)]
    assert [len(window) for window in windows] == [3] * 138
    x = names["image"].float()
    standard = v2.Lambda(lambda x: (x - x.mean()) / max(x.std(correction=0), x.numel() ** -0.5))(x)
    assert abs(float(standard.mean())) < 1e-5
    assert abs(float(standard.std(correction=0)) - 1) < 1e-5


def test_every_public_name_that_ports_need_is_on_the_page():
    text = DOC.read_text(encoding="utf-8")
    ours_alone = {
        "RecordIndex",
        "build_index",
        "build_manifest",
        "RaggedTensor",
        "SparseList",
        "SequenceFeatures",
        "SalvageReport",
        "salvage",
        "PackedCollate",
        "RecordLoader",
        "ScanTask",
        "show",
        "write_arrow",
    }
    ours_alone |= {
        "RandomResizedCrop",
        "ResizedCenterCrop",
        "tfds",
    }
    errors = {name for name in torch_tfrecord.__all__ if name.endswith("Error")}
    for name in set(torch_tfrecord.__all__) - ours_alone - errors:
        assert name in text, name


def test_links_of_the_page():
    text = DOC.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in text.splitlines()
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (
            (DOC.parent / target).exists() if not target.startswith("#") else target[1:] in headings
        ), target
