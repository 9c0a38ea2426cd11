"""Makes the files ``*.tfrecord`` here, in an environment with tensorflow-cpu 2.21: ``python
oracle.py``.
"""

import os
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def contents():
    """Short records, none, equal ones, one that TensorFlow puts into a block of its own, and what
    does not compress.
    """
    rng = np.random.default_rng(17)
    return {
        "short": [
            b"",
            b"abc",
            bytes(1000),
            *(b"%04d" % number * (number % 7) for number in range(400)),
        ],
        "long": [b"x" * 10, b"ab" * 200_000, rng.bytes(5000), b"", b"end"],
        "empty": [],
    }


def main():
    import tensorflow as tf

    for name, records in contents().items():
        path = str(FOLDER / f"{name}.tfrecord")
        dataset = tf.data.Dataset.from_tensor_slices(
            np.array(records, dtype=object) if records else np.zeros(0, "S1")
        )
        tf.data.experimental.TFRecordWriter(path, "SNAPPY").write(dataset)
        if max(map(len, records), default=0) < 1 << 18:  # its reader takes blocks up to its buffer
            assert [record.numpy() for record in tf.data.TFRecordDataset(path, "SNAPPY")] == records
        print(name, os.path.getsize(path))


if __name__ == "__main__":
    sys.exit(main())
