"""Writes data.zip: `python make.py CLONE`, with TensorFlow 2.21.

CLONE is https://github.com/google-deepmind/deepmind-research (code: Apache License 2.0), commit
f5de0ed: create_tf_dataset() of alphafold_casp13/contacts_dataset.py reads the records. What wrote
the published ones is not public; the records here have the features and sizes of that file's table
FEATURES, with drawn values.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, example, keep, load, write

COMMIT = "f5de0ede8430809180254ee957abf36ed62579ef"
NAMES = [
    "profile",
    "hmm_profile",
    "num_alignments",
    "residue_index",
    "pseudo_frob",
    "gap_matrix",
    "beta_positions",
    "beta_mask",
    "domain_name",
    "resolution",
    "aatype",
    "sequence",
    "seq_length",
]


def protein(number, num_residues, module):
    rng = np.random.default_rng(number)
    features = {}
    for name in NAMES:
        dtype, _ = module.FEATURES[name]
        sizes = module.shape(name, num_residues)
        if dtype == tf.string:
            letters = "".join(rng.choice([*"ACDEFGHIKLMNPQRSTVWY"], num_residues))
            value = letters if name == "sequence" else f"T{1000 + number}-D1"
            features[name] = ("bytes_list", [value.encode()])
        elif dtype == tf.int64:
            values = rng.integers(0, 2 if "mask" in name else 500, np.prod(sizes))
            if name == "seq_length":
                values = [num_residues] * num_residues
            features[name] = ("int64_list", values)
        else:
            features[name] = ("float_list", rng.normal(size=np.prod(sizes)).round(2))
    return example(**features)


def main(clone):
    module = load(clone, COMMIT, "alphafold_casp13/contacts_dataset.py", "contacts_dataset")
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "T1000.tfrec")
        write(file, [protein(number, size, module) for number, size in enumerate([9, 1, 6])])
        for number, features in enumerate(module.create_tf_dataset(str(file), NAMES)):
            expected |= arrays(number, features)
        keep(Path(__file__).parent, {file.name: file}, expected)


main(sys.argv[1])
