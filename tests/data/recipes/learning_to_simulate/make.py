"""Make the files of the recipe learning_to_simulate, and what the project's own program reads.

    python make.py CLONE

CLONE is a clone of github.com/google-deepmind/deepmind-research at commit
f5de0ede8430809180254ee957abf36ed62579ef (Apache License 2.0). Needs TensorFlow.

DeepMind published no writer: `record` writes what `parse_serialized_simulation_example` of
``learning_to_simulate/reading_utils.py`` decodes, line by line: a SequenceExample whose context has
``key`` and the int64 bytes of ``particle_type``, and whose lists have the float32 bytes of each step's
``position`` and ``step_context``. metadata.json has the fields of the published sets.

* ``WaterRamps/``: without ``step_context``. ``Sand/``: with it, as where ``context_mean`` is there.
* ``expected.npz``: what that function gives, and `split_trajectory`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE, CLONE = Path(__file__).parent, Path(sys.argv[1])
STEPS, DIM = 8, 2  # one position more than STEPS


def metadata(has_context):
    found = {"bounds": [[0.1, 0.9], [0.1, 0.9]], "sequence_length": STEPS, "default_connectivity_radius": 0.015,
             "dim": DIM, "dt": 0.0025, "vel_mean": [0.0, 0.0], "vel_std": [1.0, 1.0],
             "acc_mean": [0.0, 0.0], "acc_std": [1.0, 1.0]}  # fmt: skip
    return found | (
        {"context_mean": [0.0, 0.5, 1.0], "context_std": [1.0] * 3} if has_context else {}
    )


def strings(*arrays):
    values = [array.tobytes() for array in arrays]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def record(number, has_context):
    random = np.random.default_rng(number)
    particles = 3 + number
    context = {"particle_type": strings(random.integers(0, 9, particles))}
    if number:  # the parser has a default
        context["key"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    shapes = {"position": (particles, DIM)} | ({"step_context": (3,)} if has_context else {})
    lists = {}
    for name, shape in shapes.items():
        steps = random.random((STEPS + 1, *shape), np.float32)
        lists[name] = tf.train.FeatureList(feature=[strings(step) for step in steps])
    example = tf.train.SequenceExample(
        context=tf.train.Features(feature=context),
        feature_lists=tf.train.FeatureLists(feature_list=lists),
    )
    return example.SerializeToString(deterministic=True)


def main():
    sys.path.insert(0, str(CLONE))
    from learning_to_simulate import reading_utils

    expected = {}
    for name, has_context in (("WaterRamps", False), ("Sand", True)):
        folder, meta = HERE / name, metadata(has_context)
        folder.mkdir(exist_ok=True)
        (folder / "metadata.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")
        path = str(folder / "train.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for number in range(3):
                writer.write(record(number, has_context))
        for number, data in enumerate(tf.data.TFRecordDataset(path)):
            found = reading_utils.parse_serialized_simulation_example(data, meta)
            for part in found:
                expected |= {f"{name}:{number}:{key}": value.numpy() for key, value in part.items()}
            windows = [*reading_utils.split_trajectory(*found).as_numpy_iterator()]
            for key in windows[0]:
                expected[f"{name}:{number}:windows:{key}"] = np.stack(
                    [each[key] for each in windows]
                )
    np.savez_compressed(HERE / "expected.npz", **expected)


main()
