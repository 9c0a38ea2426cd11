"""Other readers of a folder that we have read, indexed and written: what a pattern for the data
matches stays.
"""

import fnmatch
import glob
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from index_tools.main import main
from torch_tfrecord import (
    FixedLenFeature,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordIterableDataset,
    encode_image,
    find_files,
    make_dataloader,
)

FEATURES = {"label": FixedLenFeature((), torch.int64)}
# Patterns that match data alone: they say something of the names of the data.
PATTERNS = [
    "train-*",
    "train*",
    "*train*",
    "tr*0000?-of-*",
    "*.tfrecord*",
    "*.tfrecord-*-of-*",
    "*.tfrecord",
    "*tfrecord*",
    "validation-?????-of-00002",
    "[a-z]*-of-*",
    "*-of-*",
    "*0000*",
    "*/*train*",
    "*/*/*of*",
]
# Prints what TensorFlow finds for each of PATTERNS, and the labels that
# make_batched_features_dataset reads.
TENSORFLOW = """
import json, sys
import tensorflow as tf

folder, patterns = sys.argv[1], json.loads(sys.argv[2])
found = {}
for pattern in patterns:
    names = sorted(tf.io.gfile.glob(f"{folder}/{pattern}"))
    try:
        listed = sorted(name.decode() for name in tf.data.Dataset.list_files(f"{folder}/{pattern}").as_numpy_iterator())
    except tf.errors.InvalidArgumentError:  # no file matches
        listed = []
    assert listed == names, pattern
    found[pattern] = names
features = {"label": tf.io.FixedLenFeature((), tf.int64)}
labels = {}
for pattern in ("train-*", "validation-*", "*-of-*"):
    dataset = tf.data.experimental.make_batched_features_dataset(
        f"{folder}/{pattern}", 3, features, num_epochs=1, shuffle=False
    )
    labels[pattern] = sorted(int(label) for batch in dataset for label in batch["label"])
print(json.dumps([found, labels]))
"""


def write(folder, **options):
    for prefix, suffix, labels in (
        ("train", "", range(10)),
        ("validation", ".tfrecord", range(10, 14)),
    ):
        with ShardedTFRecordWriter(
            folder / prefix, num_shards=2, suffix=suffix, **options
        ) as writer:
            for label in labels:
                writer.write({"label": label})


@pytest.fixture
def folder(tmp_path):
    """Data as others leave it, before we come, two folders deep."""
    folder = tmp_path / "data" / "sets"
    folder.mkdir(parents=True)
    write(folder)
    (folder / "name-train.tfrecord-00000-of-00001").write_bytes(
        (folder / "train-00000-of-00002").read_bytes()
    )
    return folder


def use(folder):
    """Everything of ours that leaves something beside the data."""
    for paths in ("train-*", "validation@2", "name-*"):
        assert len(list(TFRecordDataset(str(folder / paths), FEATURES))) in (10, 4, 5)
        assert len(list(TFRecordIterableDataset(str(folder / paths), FEATURES))) in (10, 4, 5)
        list(make_dataloader(str(folder / paths), 3, FEATURES, num_workers=0))
    assert main(["index", "--force", str(folder)]) == 0
    assert main(["verify", str(folder)]) == 0
    write(folder, write_index=True)


def found_by_python(folder):
    """What each pattern matches: Python's glob, pathlib's, which knows no hidden names, and a walk
    over all files.
    """
    walked = [name for _, _, names in os.walk(folder.parent) for name in names]
    return {
        pattern: (
            sorted(glob.glob(f"{folder}/{pattern}")),
            sorted(glob.glob(f"{folder.parent}/**/{pattern}", recursive=True, include_hidden=True))
            if "include_hidden" in glob.glob.__kwdefaults__
            else None,
            sorted(folder.glob(pattern)),
            sorted(folder.parent.rglob(pattern)),
            sorted(fnmatch.filter(walked, pattern)),
        )
        for pattern in PATTERNS
    }


def test_python_finds_what_it_found_before(folder):
    before = found_by_python(folder)
    all_before = sorted(glob.glob(f"{folder}/*")), sorted(glob.glob(f"{folder}/**", recursive=True))
    use(folder)
    assert (folder / ".torch_index").is_dir()
    assert found_by_python(folder) == before
    # Python's `*` leaves hidden names out.
    assert (
        sorted(glob.glob(f"{folder}/*")),
        sorted(glob.glob(f"{folder}/**", recursive=True)),
    ) == all_before
    assert sorted(os.listdir(folder)) == [
        ".torch_index",
        *sorted(map(os.path.basename, all_before[0])),
    ]


def test_while_a_file_is_written(folder):
    before = found_by_python(folder)
    with (
        pytest.raises(RuntimeError),
        ShardedTFRecordWriter(folder / "train", max_shard_bytes=1, write_index=True) as w,
    ):
        for label in range(3):
            w.write({"label": label})
        assert len(list(folder.glob(".*.tmp"))) == 1  # a hidden folder of all shards so far
        assert found_by_python(folder) == before
        raise RuntimeError


def test_images_and_their_labels(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "a.png").write_bytes(
            encode_image(torch.zeros(3, 4, 4, dtype=torch.uint8), "png")
        )
    for prefix in ("train", "validation"):
        assert main(["from-images", "photos", f"out/{prefix}", "--num-shards", "2"]) == 0
    assert (
        Path("out/labels-train.txt").read_bytes()
        == Path("out/labels-validation.txt").read_bytes()
        == b"cat\ndog\n"
    )
    shards = [f"out/train-0000{number}-of-00002.tfrecord" for number in range(2)]
    for pattern in ("train-*", "train*", "train*-of-*", "tr*"):
        assert sorted(glob.glob(f"out/{pattern}")) == shards
        assert find_files(f"out/{pattern}") == shards
        assert main(["verify", f"out/{pattern}"]) == 0
    # Ours know the labels where a pattern matches them, under the name of before, too; a shell
    # expands `*` itself.
    Path("out/train-labels.txt").write_bytes(b"cat\ndog\n")
    for paths in ("out/*", "out", "out/*train*", "out/train-*"):
        assert set(shards) <= set(find_files(paths)) <= set(glob.glob("out/*.tfrecord"))
    assert main(["verify", *sorted(glob.glob("out/*"))]) == 0
    assert main(["verify", "out/labels-train.txt"]) == 2
    assert "got only index files or labels: out/labels-train.txt" in capsys.readouterr().err
    assert find_files("out/labels-train.txt") == ["out/labels-train.txt"]  # asked for by its name


@pytest.mark.skipif(
    "TENSORFLOW_PYTHON" not in os.environ,
    reason="TENSORFLOW_PYTHON names no Python with tensorflow",
)
def test_tensorflow_finds_and_reads_what_it_did_before(folder):
    before = ask_tensorflow(folder)
    assert before[1] == {
        "train-*": list(range(10)),
        "validation-*": [10, 11, 12, 13],
        "*-of-*": sorted([*range(14), *range(0, 10, 2)]),
    }
    use(folder)
    assert ask_tensorflow(folder) == before


def ask_tensorflow(folder):
    command = [os.environ["TENSORFLOW_PYTHON"], "-c", TENSORFLOW, str(folder), json.dumps(PATTERNS)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
