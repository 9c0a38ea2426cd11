"""Writes data.zip: `python make.py CLONE`, with TensorFlow 2.21 and ml_collections 1.1.0.

CLONE is https://github.com/google/deepvariant (BSD 3-Clause), or a repository that has it whole,
such as github.com/qte77/deepvariant-linux-arm64 at commit 19c789b (DeepVariant 1.9). Its writer is
C++: what `make_examples` wrote is in deepvariant/testdata. The records here have the features of
those, and go through dv_utils.get_tf_record_writer; the pileups are drawn. parse_example() of
data_providers.py reads them.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, example, keep

COMMIT = "19c789b672cb94601b11df9e2438c72e9d3b802a"
GOLDEN = "deepvariant/testdata/golden.training_examples.tfrecord.gz"
SHAPE = [12, 21, 7]  # 100 reads, 221 bases and 7 channels in the real ones


def modules(clone, folder):
    """dv_utils, data_providers, and the messages."""
    nucleus = "third_party/nucleus"
    paths = ["deepvariant/*.py", "deepvariant/protos", f"{nucleus}/protos", f"{nucleus}/io", GOLDEN]
    archive = subprocess.run(
        ["git", "-C", clone, "archive", COMMIT, "--", *paths], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    sys.path.insert(0, folder)
    for name in ("third_party", "third_party.nucleus", "third_party.nucleus.io", "deepvariant"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(folder, *name.split(".")))]
    from deepvariant import data_providers, dv_utils
    from deepvariant.protos import deepvariant_pb2
    from third_party.nucleus.protos import variants_pb2

    return dv_utils, data_providers, deepvariant_pb2, variants_pb2


def record(number, label, deepvariant_pb2, variants_pb2):
    variant = variants_pb2.Variant(
        reference_name="chr20",
        start=10_000 + 7 * number,
        end=10_001 + 7 * number,
        reference_bases="A",
        alternate_bases=["C", "G"][: 1 + number % 2],
    )
    indices = deepvariant_pb2.CallVariantsOutput.AltAlleleIndices(indices=[number % 2])
    pileup = np.random.default_rng(number).integers(0, 255, SHAPE, "uint8")
    locus = f"chr20:{variant.start + 1}-{variant.end}"
    return example(
        **{
            "locus": ("bytes_list", [locus.encode()]),
            "variant/encoded": ("bytes_list", [variant.SerializeToString()]),
            "variant_type": ("int64_list", [1]),
            "alt_allele_indices/encoded": ("bytes_list", [indices.SerializeToString()]),
            "image/encoded": ("bytes_list", [pileup.tobytes()]),
            "image/shape": ("int64_list", SHAPE),
            "sequencing_type": ("int64_list", [1]),
            "label": ("int64_list", [label]),
        }
    )


def kinds(message):
    return {name: value.WhichOneof("kind") for name, value in message.features.feature.items()}


def main(clone):
    with tempfile.TemporaryDirectory() as folder:
        dv_utils, data_providers, *messages = modules(clone, folder)
        records = [record(number, label, *messages) for number, label in enumerate([0, 2, 1])]
        golden = tf.data.TFRecordDataset(str(Path(folder, GOLDEN)), "GZIP")
        for data in golden.take(1):
            assert kinds(tf.train.Example.FromString(data.numpy())) == kinds(records[0])
        file = Path(folder, "training_examples.tfrecord-00000-of-00001.gz")
        with dv_utils.get_tf_record_writer(str(file)) as writer:
            for message in records:
                writer.write(message.SerializeToString())
        config = types.SimpleNamespace(denovo_enabled=False, class_weights="1,1,10")
        expected = {}
        for number, data in enumerate(tf.data.TFRecordDataset(str(file), "GZIP")):
            shape = dv_utils.get_shape_from_examples_path(str(file))
            debug = data_providers.create_parse_example_fn(config, "debug", shape)(data)
            train = data_providers.create_parse_example_fn(config, "train", shape)(data)
            names = ["image", "label", "sample_weight", "variant_type"]
            assert np.array_equal(train[0], debug["image"])
            debug |= {f"train/{name}": value for name, value in zip(names, train, strict=True)}
            debug["preprocessed"] = dv_utils.preprocess_images(debug["image"])
            for name in ("variant/encoded", "alt_allele_indices/encoded"):
                debug[name] = debug[name].numpy().hex()
            expected |= arrays(number, debug)
        keep(Path(__file__).parent, {file.name: file}, expected)


main(sys.argv[1])
