"""Make the files of the recipe basenji, and what Basenji's own program reads from them.

    python make.py CLONE

CLONE is a clone of github.com/calico/basenji at commit 74b867105a235a3e0eb663022cee2fbf430deaf0
(Apache License 2.0). Needs TensorFlow, h5py, pysam and natsort.

* ``tfrecords/*.tfr``: written by ``bin/basenji_data_write.py`` itself, from a made-up genome and
  coverage; ``statistics.json`` has the fields of ``bin/basenji_data.py``. ``tfrecords/valid-3.tfr``
  has no record, as a file of a finished data set may. (The order of the keys in a record varies.)
* ``expected.npz``: what the `SeqDataset` of ``basenji/dataset.py`` gives, with and without
  ``seq_length_crop``.
* ``old/``: the same sequences one-hot, as the data of 2018 has them; Basenji reads these where
  ``seq_1hot`` is not in statistics.json.
"""

import collections
import json
import runpy
import shutil
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pysam
import tensorflow as tf

HERE, CLONE = Path(__file__).parent, Path(sys.argv[1])
LENGTH, POOL, TARGETS = 64, 8, 3
SPLITS = {"train": (0, 4), "valid": (4, 7)}


def statistics(**more):
    counts = {f"{split}_seqs": end - begin for split, (begin, end) in SPLITS.items()}
    return {"num_targets": TARGETS, "seq_length": LENGTH, "pool_width": POOL, "crop_bp": 0,
            "target_length": LENGTH // POOL, **counts, **more}  # fmt: skip


def inputs(folder):
    """A genome, the places of the sequences (the last one reaches beyond its end), the coverage."""
    random = np.random.default_rng(0)
    letters = "".join(random.choice(list("ACGTN"), 7 * LENGTH - 10, p=[0.24] * 4 + [0.04]))
    (folder / "genome.fa").write_text(f">chr1\n{letters}\n")
    pysam.faidx(str(folder / "genome.fa"))
    places = [f"chr1\t{LENGTH * n}\t{LENGTH * (n + 1)}" for n in range(7)]
    (folder / "sequences.bed").write_text("\n".join(places) + "\n")
    (folder / "coverage").mkdir()
    for target in range(TARGETS):
        with h5py.File(folder / f"coverage/{target}.h5", "w") as file:
            file["targets"] = random.integers(0, 64, (7, LENGTH // POOL)).astype("float16") / 8


def write(folder, begin, end, path):
    """The project's own program; of `basenji_data`, which needs bedtools, it wants one tuple."""
    data = types.ModuleType("basenji_data")
    data.ModelSeq = collections.namedtuple("ModelSeq", ["chr", "start", "end", "label"])
    arguments = [
        "-s",
        str(begin),
        "-e",
        str(end),
        *(str(folder / name) for name in ("genome.fa", "sequences.bed", "coverage")),
        str(path),
    ]
    with (
        mock.patch.dict(sys.modules, basenji_data=data),
        mock.patch.object(sys, "argv", ["write", *arguments]),
    ):
        runpy.run_path(str(CLONE / "bin/basenji_data_write.py"), run_name="__main__")


def read(folder, split, **options):
    from basenji.dataset import SeqDataset

    dataset = SeqDataset(str(folder), split, batch_size=1, mode="eval", **options).dataset
    pairs = [(x[0], y[0]) for x, y in dataset.as_numpy_iterator()]
    return [np.stack(each) for each in zip(*pairs, strict=True)]


def main():
    sys.path.insert(0, str(CLONE))
    folder = Path(tempfile.mkdtemp())
    inputs(folder)
    records, old = HERE / "tfrecords", HERE / "old" / "tfrecords"
    records.mkdir(exist_ok=True)
    old.mkdir(exist_ok=True, parents=True)
    files = {"train-0": (0, 3), "train-1": (3, 4)}
    files |= {"valid-0": (4, 5), "valid-2": (5, 6), "valid-3": (6, 6), "valid-10": (6, 7)}
    for name, (begin, end) in files.items():
        write(folder, begin, end, records / f"{name}.tfr")
    (HERE / "statistics.json").write_text(json.dumps(statistics(seq_1hot=True), indent=4))
    (HERE / "old/statistics.json").write_text(json.dumps(statistics(train_seqs=3), indent=4))
    expected = {}
    for split in SPLITS:
        expected[f"{split}:sequence"], expected[f"{split}:target"] = read(HERE, split)
        expected[f"{split}:cropped"], _ = read(HERE, split, seq_length_crop=48)
    options = tf.io.TFRecordOptions(compression_type="ZLIB")
    with tf.io.TFRecordWriter(str(old / "valid-0.tfr"), options) as writer:
        for sequence, target in zip(
            expected["valid:sequence"], expected["valid:target"], strict=True
        ):
            values = {"sequence": sequence.astype(bool), "target": target.astype("float16")}
            feature = {
                key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.tobytes()]))
                for key, value in values.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString(deterministic=True))
    shutil.copy(old / "valid-0.tfr", old / "train-0.tfr")
    expected["old:sequence"], expected["old:target"] = read(HERE / "old", "valid")
    np.savez_compressed(HERE / "expected.npz", **expected)


main()
