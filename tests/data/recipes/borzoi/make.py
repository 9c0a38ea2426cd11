"""Make the files of the recipe borzoi, and what Borzoi's own program reads from them.

    python make.py CLONE

CLONE is a clone of github.com/calico/baskerville, with which Borzoi is trained, at commit
544073b87245d9f43ba63442c75bdbf32a9f8720 (Apache License 2.0). Needs TensorFlow, h5py, pysam, natsort,
pandas and scipy.

* ``hg38/tfrecords/*.tfr``: written by ``src/baskerville/scripts/hound_data_write.py`` itself, from a
  made-up genome and coverage; ``hg38/statistics.json`` has the fields that ``hound_data.py`` writes.
* ``expected.npz``: what the `SeqDataset` of ``src/baskerville/dataset.py`` gives, without and with
  ``seq_length_crop``. (With ``targets_slice_file`` it fails: TensorFlow takes no array as an index.)
"""

import json
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pysam

HERE, CLONE = Path(__file__).parent / "hg38", Path(sys.argv[1])
LENGTH, CROP, POOL, TARGETS = 96, 16, 4, 5
TARGET_LENGTH = (LENGTH - 2 * CROP) // POOL
FOLDS = {"fold0": (0, 4), "fold1": (4, 6)}


def inputs(folder):
    """A genome, the places of the sequences (one begins before it), and the coverage."""
    random = np.random.default_rng(1)
    letters = "".join(random.choice(list("ACGTN"), 6 * LENGTH, p=[0.24] * 4 + [0.04]))
    (folder / "genome.fa").write_text(f">chr1\n{letters}\n")
    pysam.faidx(str(folder / "genome.fa"))
    places = [f"chr1\t{LENGTH * n - 20}\t{LENGTH * (n + 1) - 20}" for n in range(6)]
    (folder / "sequences.bed").write_text("\n".join(places) + "\n")
    (folder / "coverage").mkdir()
    for target in range(TARGETS):
        with h5py.File(folder / f"coverage/{target}.h5", "w") as file:
            values = random.gamma(0.5, 20, (6, TARGET_LENGTH))
            file["targets"] = values.astype("float16")


def write(folder, begin, end, path):
    """The project's own program, as hound_data.py calls it."""
    files = (str(folder / name) for name in ("genome.fa", "sequences.bed", "coverage"))
    arguments = ["-d", "2", "-s", str(begin), "-e", str(end), *files, str(path)]
    with mock.patch.object(sys, "argv", ["hound_data_write", *arguments]):
        program = CLONE / "src/baskerville/scripts/hound_data_write.py"
        runpy.run_path(str(program), run_name="__main__")


def read(fold, **options):
    from baskerville.dataset import SeqDataset

    dataset = SeqDataset(str(HERE), fold, batch_size=1, mode="eval", **options).dataset
    pairs = [(x[0], y[0]) for x, y in dataset.as_numpy_iterator()]
    return [np.stack(each) for each in zip(*pairs, strict=True)]


def main():
    sys.path.insert(0, str(CLONE / "src"))
    folder = Path(tempfile.mkdtemp())
    inputs(folder)
    records = HERE / "tfrecords"
    records.mkdir(exist_ok=True, parents=True)
    for name, begin, end in (("fold0-0", 0, 2), ("fold0-1", 2, 4), ("fold1-0", 4, 6)):
        write(folder, begin, end, records / f"{name}.tfr")
    statistics = {"num_targets": TARGETS, "seq_length": LENGTH, "seq_1hot": True}
    statistics |= {"pool_width": POOL, "crop_bp": CROP, "target_length": TARGET_LENGTH}
    statistics |= {f"{fold}_seqs": end - begin for fold, (begin, end) in FOLDS.items()}
    (HERE / "statistics.json").write_text(json.dumps(statistics, indent=4))
    expected = {}
    for fold in FOLDS:
        expected[f"{fold}:sequence"], expected[f"{fold}:target"] = read(fold)
        expected[f"{fold}:cropped"], _ = read(fold, seq_length_crop=64)
    np.savez_compressed(HERE.with_name("expected.npz"), **expected)


main()
