"""The files of this folder, written by TensorFlow: `python oracle.py FOLDER` makes them again.

What they hold needs no TensorFlow: `contents()`.
"""

import random
import sys

# Options of TensorFlow's writer, and what it writes. Blocks have 250 to 2,000 symbols at these
# mem_levels, and 32,000 at TensorFlow's own, 9.
MEM_LEVELS = {1: 5, 2: 5, 3: 5, 4: 3, 5: 3, 6: 3, 7: 3, 8: 2, 9: 2}
LEVELS = {
    f"{kind.lower()}_level{level}": (
        kind,
        {"compression_level": level, "mem_level": mem_level},
        "words",
    )
    for kind in ("GZIP", "ZLIB")
    for level, mem_level in MEM_LEVELS.items()
}
WAYS = {
    **LEVELS,
    "gzip_default": ("GZIP", {}, "runs"),  # level -1
    "zlib_default": ("ZLIB", {}, "runs"),
    "gzip_flushed": ("GZIP", {}, "words"),
    "zlib_flushed": ("ZLIB", {}, "words"),
    "gzip_empty": ("GZIP", {}, "nothing"),
    "zlib_empty": ("ZLIB", {}, "nothing"),
}
FLUSHED_AFTER = 20  # records


def words():
    """Small, and other matches at each level: pieces of one string that begin and end anywhere."""
    rng = random.Random(1)
    text = rng.randbytes(2000)
    begins = [[rng.randrange(1500) for _ in range(rng.randrange(1, 41))] for _ in range(46)]
    return [
        b"%d " % number + b"".join(text[at : at + rng.randrange(20, 400)] for at in places)
        for number, places in enumerate(begins)
    ]


def runs():
    """Blocks of 31 KB: of each run four bytes are new, and nothing comes again in another."""
    rng = random.Random(2)
    return [
        b"%d " % number
        + b"".join(rng.randbytes(4) * rng.randrange(2, 8) for _ in range(rng.randrange(1, 61)))
        for number in range(500)
    ]


def contents():
    """The records of each file."""
    kinds = {"words": words(), "runs": runs(), "nothing": []}
    return {name: kinds[kind] for name, (_, _, kind) in WAYS.items()}


def main(folder):
    import tensorflow as tf

    for name, records in contents().items():
        kind, options, _ = WAYS[name]
        options = tf.io.TFRecordOptions(compression_type=kind, **options)
        with tf.io.TFRecordWriter(f"{folder}/{name}.tfrecord", options) as writer:
            for number, record in enumerate(records, 1):
                writer.write(record)
                if name.endswith("flushed") and number % FLUSHED_AFTER == 0:
                    writer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
