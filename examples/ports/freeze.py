"""Run the TensorFlow pipelines and store their first batches, and what their writing halves write,
which tests/docs/test_ports.py compares with the ports.

    python examples/ports/freeze.py tests/data/ports

Run by hand, in an environment with TensorFlow; the rest of the project does not need it.
"""

import json
import sys
from pathlib import Path

import imagenet_tf
import numpy as np
import split_text_tf
import tabular_tf
import tensorflow as tf
import text_tf
import to_jpeg_tf
import write_folder_tf
import write_table_tf

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
    out = Path(folder, "written_by_tensorflow")
    out.mkdir(exist_ok=True)
    write_folder_tf.write(f"{folder}/pictures", f"{out}/pictures", 2)
    write_table_tf.write(f"{folder}/table.csv", f"{out}/table", 2)
    split_text_tf.split(f"{folder}/text-*", f"{out}/text")
    prices = to_jpeg_tf.measure(f"{folder}/pictures")
    (out / "jpeg_prices.json").write_text(json.dumps(prices) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
