"""Writes data.zip: `python make.py CLONE`, with TensorFlow 2.21.

CLONE is https://github.com/tensorflow/ranking (Apache License 2.0), commit 5b1d133:
build_ranking_dataset() of tensorflow_ranking/python/data.py reads the records. The records here
have the features of tensorflow_ranking/examples/data/train_numerical_elwc.tfrecord, with drawn
values.
"""

import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, example, keep, load, write

COMMIT = "5b1d1338c1cb76507466d062e2d48bae57b17ac4"
NAMES = [f"custom_features_{number}" for number in range(1, 137)]


def list_message():
    """tensorflow_serving's ExampleListWithContext (input.proto)."""
    file = descriptor_pb2.FileDescriptorProto(
        name="input.proto", package="tensorflow.serving", syntax="proto3"
    )
    file.dependency.append("tensorflow/core/example/example.proto")
    message = file.message_type.add(name="ExampleListWithContext")
    message.field.add(name="examples", number=1, label=3, type=11, type_name=".tensorflow.Example")
    message.field.add(name="context", number=2, label=1, type=11, type_name=".tensorflow.Example")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName("tensorflow.serving.ExampleListWithContext")
    return message_factory.GetMessageClass(found)


def document(number):
    """Like the real ones, a document lacks the features that are 0."""
    rng = np.random.default_rng(number)
    chosen = rng.choice(NAMES, 12, replace=False)
    numbers = {
        name: ("float_list", [value])
        for name, value in zip(chosen, rng.normal(size=12), strict=True)
    }
    return example(**numbers, utility=("int64_list", [rng.integers(0, 5)]))


def main(clone):
    tf.estimator = types.SimpleNamespace()  # no longer there, and not needed to read
    path = "tensorflow_ranking/python"
    stand_ins = {"tensorflow.estimator": None, "tensorflow_ranking": None}
    package = stand_ins["tensorflow_ranking.python"] = types.ModuleType("python")
    package.utils = load(clone, COMMIT, f"{path}/utils.py", "ranking_utils", **stand_ins)
    data = load(clone, COMMIT, f"{path}/data.py", "ranking_data", **stand_ins)
    message = list_message()
    lists = [
        message(examples=[document(100 * query + number) for number in range(size)])
        for query, size in enumerate([3, 1, 12, 10])
    ]
    column = tf.io.FixedLenFeature((1,), tf.float32, 0.0)
    label = tf.io.FixedLenFeature((1,), tf.int64, -1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train_numerical_elwc.tfrecord")
        write(file, lists)
        dataset = data.build_ranking_dataset(
            str(file),
            data.ELWC,
            batch_size=len(lists),
            context_feature_spec={},
            example_feature_spec=dict.fromkeys(NAMES, column) | {"utility": label},
            list_size=10,
            mask_feature_name="example_list_mask",
            num_epochs=1,
            shuffle=False,
        )
        (batch,) = dataset
        keep(Path(__file__).parent, {file.name: file}, arrays("batch", batch))


main(sys.argv[1])
