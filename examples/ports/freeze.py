"""Run the TensorFlow pipelines and store their first batches, which tests/docs/test_ports.py
compares with the ports.

    python examples/ports/freeze.py tests/data/ports

Run by hand, in an environment with TensorFlow; the rest of the project does not need it.
"""

import sys

import imagenet_tf
import numpy as np
import tabular_tf
import tensorflow as tf
import text_tf

BATCH_SIZE = 4


def main(folder):
    images, labels = next(iter(imagenet_tf.pipeline(f"{folder}/imagenet-*", BATCH_SIZE)))
    text, text_labels = next(iter(text_tf.pipeline(f"{folder}/text-*", BATCH_SIZE)))
    table, clicked = next(iter(tabular_tf.pipeline(f"{folder}/table-*", BATCH_SIZE)))
    arrays = {
        "imagenet/image": images,
        "imagenet/label": labels,
        "text/label": text_labels,
        "table/clicked": clicked,
    }
    arrays |= {f"text/{name}": value for name, value in text.items()}
    arrays |= {f"table/{name}": value for name, value in table.items() if name != "tags"}
    # Each row of tags is the values of that row in the sparse tensor.
    arrays |= {"table/tags": tf.sparse.to_dense(table["tags"], default_value="")}
    plain = {name: value.numpy() for name, value in arrays.items()}
    plain = {
        name: value.astype(str) if value.dtype == object else value for name, value in plain.items()
    }
    np.savez_compressed(f"{folder}/first_batches.npz", **plain)


if __name__ == "__main__":
    main(sys.argv[1])
