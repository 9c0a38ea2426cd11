"""docs/migration.md and docs/migration/: our half of each pair gives what the original gave on the
same samples, as tests/data/migration/make.py kept it.
"""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import load_script

from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    Image,
    Text,
    TFRecordDataset,
    TFRecordWriter,
    decode_example,
    read_records,
)

DOCS = Path(__file__).parents[2] / "docs"
DATA = Path(__file__).parents[1] / "data" / "migration"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="not beside an installed package")

# page, what is in our block, and the original's name in expected.npz
PAIRS = [
    ("migration", "import FixedLenFeature, TFRecordDataset, collate", "tfrecord"),
    ("migration", "import decode_example, read_records", "lite"),
    ("migration", "TFRecordIterableDataset", "torchdata"),
    ("migration", "Image()", "dali"),
    ("migration/webdataset", "from_tar", "webdataset"),
    ("migration/mds", "from_mds-*", "mds"),
    ("migration/ffcv", "from_beton-*", "ffcv"),
]


def text_of(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for path in filter(Path.is_file, DATA.iterdir()):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def expected():
    with np.load(DATA / "expected.npz") as stored:
        return dict(stored)


def drawn():
    samples = load_script(DATA / "make.py").samples()
    return [sample | {"image": np.asarray(sample["image"])} for sample in samples]


def test_every_pair_is_here():
    assert len(blocks("migration")) == sum(page == "migration" for page, _, _ in PAIRS)
    for page in ("migration/webdataset", "migration/mds", "migration/ffcv"):
        assert len(blocks(page)) == 1 and f"({page}.md)" in text_of("migration")


@pytest.mark.parametrize(("page", "marker", "original"), PAIRS)
def test_ours_gives_what_the_original_gave(page, marker, original, expected):
    if original == "webdataset":
        (command,) = re.findall(r"^    (tfrecord convert .*?) +#", text_of(page), re.MULTILINE)
        assert main(shlex.split(command)[1:]) == 0
    (program,) = [block for block in blocks(page) if marker in block]
    names = {}
    exec(program, names)
    keys = [name.partition("/")[2] for name in expected if name.startswith(f"{original}/")]
    assert len(keys) >= 2
    for key in keys:
        found, wanted = (
            np.array([np.asarray(value) for value in names[key]]),
            expected[f"{original}/{key}"],
        )
        if original == "dali" and key == "image":
            wanted = wanted.transpose(0, 3, 1, 2)
        assert found.shape == wanted.shape and (found == wanted).all(), key
        assert found.dtype == wanted.dtype or (original, key) == ("dali", "label")


def test_what_was_converted_are_the_samples():
    """Each format's records are the pictures that were drawn, not only alike."""
    assert main(["convert", "samples.tar", "from_tar.tfrecord"]) == 0
    features = {"image": Image(), "label": FixedLenFeature((), torch.int64)}
    more = {"name": Text(), "score": FixedLenFeature((2,), torch.float32)}
    of_tar = {"image": Image(key="png"), "label": FixedLenFeature((), torch.int64, key="cls")}
    for path, read in (
        ("samples.tfrecord", features | more),
        ("from_mds-*", features | more),
        ("from_beton-*", features),
        ("from_tar.tfrecord", of_tar),
    ):
        ds = TFRecordDataset(path, read, index="memory")
        assert len(ds) == 8
        for sample, wanted in zip(ds, drawn(), strict=True):
            assert (sample["image"].permute(1, 2, 0).numpy() == wanted["image"]).all(), path
            assert sample["label"] == wanted["label"]
            if "name" in read:
                assert sample["name"] == wanted["name"]
                assert sample["score"].tolist() == wanted["score"]


def test_pictures_of_mds_keep_their_bytes():
    pictures = [
        [decode_example(record)["image"] for record in read_records(path)]
        for path in ("samples.tfrecord", "from_mds-00000-of-00001.tfrecord")
    ]
    assert pictures[0] == pictures[1]  # both were written by Pillow's own defaults


def test_a_split_of_tfx(capsys):
    """The commands of the page, on gzip files under the names that TFX gives."""
    folder = Path("examples/4/Split-train")
    folder.mkdir(parents=True)
    records = [*read_records("samples.tfrecord")]
    for number in range(2):
        name = folder / f"data_tfrecord-{number:05d}-of-00002.gz"
        with TFRecordWriter(name, compression_type="GZIP") as writer:
            for record in records[number::2]:
                writer.write(record)
    commands = re.findall(r"^    (tfrecord (?:show|reshard) .*?) +#", text_of("migration"), re.M)
    assert [command.split()[1] for command in commands] == ["show", "reshard"]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    assert '"label": FixedLenFeature((), torch.int64)' in capsys.readouterr().out
    written = sorted(Path().glob("train-*.tfrecord"))
    assert written[0].name == "train-00000-of-00004.tfrecord"
    assert len(written) == 4 and not any(path.read_bytes()[:2] == b"\x1f\x8b" for path in written)
    found = [record for path in written for record in read_records(path)]
    assert found == records[::2] + records[1::2]
    assert len(TFRecordDataset(folder, index="memory")) == len(records)


def test_dali_reads_the_index_that_we_write():
    assert (
        main(
            [
                "index",
                "--format",
                "tfrecord2idx",
                "--force",
                "samples.tfrecord",
                "--output-dir",
                "idx",
            ]
        )
        == 0
    )
    assert Path("idx/samples.tfrecord.idx").read_text() == Path("samples.tfrecord.idx").read_text()
