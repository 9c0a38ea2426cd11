"""Make the files of the recipe meshgraphnets, and what MeshGraphNets' own program reads from them.

    python make.py CLONE

CLONE is a clone of github.com/google-deepmind/deepmind-research at commit
f5de0ede8430809180254ee957abf36ed62579ef (Apache License 2.0). Needs TensorFlow.

DeepMind published no writer: `record` writes what `_parse` of ``meshgraphnets/dataset.py`` decodes,
line by line: the bytes of each array in one string, and the row lengths of a ``dynamic_varlen``
array as int32 in ``length_<name>``. The meta.json have the fields of those of the published sets.

* ``flow/``: fixed meshes, like cylinder_flow. ``cloth/``: meshes that change, like
  flag_dynamic_sizing.
* ``expected.npz``: what `load_dataset` and `add_targets` give; a ragged array as its values and row
  lengths.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE, CLONE = Path(__file__).parent, Path(sys.argv[1])
STEPS = 5


def field(kind, last, dtype="float32"):
    first = {"static": [1, -1], "dynamic": [STEPS, -1], "dynamic_varlen": [-1]}[kind]
    return {"type": kind, "shape": [*first, last], "dtype": dtype}


SETS = {
    "flow": {
        "cells": field("static", 3, "int32"),
        "mesh_pos": field("static", 2),
        "node_type": field("static", 1, "int32"),
        "velocity": field("dynamic", 2),
        "pressure": field("dynamic", 1),
    },
    "cloth": {
        "cells": field("dynamic_varlen", 3, "int32"),
        "mesh_pos": field("dynamic_varlen", 2),
        "world_pos": field("dynamic_varlen", 3),
        "node_type": field("dynamic_varlen", 1, "int32"),
    },
}


def meta_of(features):
    lengths = [f"length_{name}" for name in features if features[name]["type"] == "dynamic_varlen"]
    return {
        "simulator": "comsol", "dt": 0.01, "collision_radius": None, "features": features,
        "field_names": [*features, *lengths], "trajectory_length": STEPS,
    }  # fmt: skip


def record(features, number):
    random = np.random.default_rng(number)
    nodes, cells = 4 + number, 3 + number
    values = {}
    for name, each in features.items():
        rows = cells if name == "cells" else nodes
        if each["type"] == "dynamic_varlen":
            lengths = np.array([rows + step % 3 for step in range(STEPS)], np.int32)
            lengths[number] = 0
            values[f"length_{name}"] = lengths
            shape = lengths.sum(), each["shape"][-1]
        else:
            shape = each["shape"][0], rows, each["shape"][-1]
        values[name] = random.integers(0, 9, shape).astype(each["dtype"])
        if each["dtype"] == "float32":
            values[name] += random.random(shape, np.float32)
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[array.tobytes()]))
        for name, array in values.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


def arrays(prefix, sample):
    for name, value in sample.items():
        if isinstance(value, tf.RaggedTensor):
            yield f"{prefix}:{name}:lengths", value.row_lengths().numpy()
            value = value.values
        yield f"{prefix}:{name}", value.numpy()


def main():
    sys.path.insert(0, str(CLONE))
    from meshgraphnets import dataset

    expected = {}
    for folder, features in SETS.items():
        (HERE / folder).mkdir(exist_ok=True)
        text = json.dumps(meta_of(features), indent=2)
        (HERE / folder / "meta.json").write_text(text + "\n", encoding="utf-8")
        with tf.io.TFRecordWriter(str(HERE / folder / "train.tfrecord")) as writer:
            for number in range(3):
                writer.write(record(features, number))
        read = dataset.load_dataset(str(HERE / folder), "train")
        for number, sample in enumerate(read):
            expected |= arrays(f"{folder}:{number}", sample)
        if folder == "flow":
            for number, sample in enumerate(dataset.add_targets(read, ["velocity"], True)):
                expected |= arrays(f"targets:{number}", sample)
    np.savez_compressed(HERE / "expected.npz", **expected)


main()
