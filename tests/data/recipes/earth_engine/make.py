"""Make the files of the recipe earth_engine, and what Google's notebooks read from them.

    python make.py CLONE

CLONE is a clone of github.com/google/earthengine-community at commit
c9cbf6c6f4b036f3a63035e4c295ba5f4e8d2d7d (its notebooks are under the Apache License 2.0). Needs
TensorFlow.

Earth Engine writes its exports on Google's servers, so `export_image` and `export_table` follow its
documentation, developers.google.com/earth-engine/guides/tfrecord: GZIP; an Example for each patch,
in row-major order; a float list for each band, row by row; ``kernelSize`` enlarges each patch by
half of it on all sides; all numbers as floats; the mixer with ``projection``, ``patchDimensions``,
``patchesPerRow`` and ``totalPatches``.

* ``demo_00000.tfrecord.gz``, ``demo_00001.tfrecord.gz``, ``demo_mixer.json``: a drawn picture of
  two bands, with the fields of the mixer that the notebooks use, and ``projection``.
* ``training.tfrecord.gz``: a table of points.
* ``expected.npz``: ``picture`` is the drawn one; ``patches`` what `parse_image` and `toTupleImage` of
  ``guides/linked/UNET_regression_demo.ipynb`` give, and ``table`` what `parse_tfrecord` of
  ``guides/linked/TF_demo1_keras.ipynb`` gives. This program runs these functions as they stand,
  with the sizes and bands of these files.
"""

import json
import sys
import textwrap
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE, CLONE = Path(__file__).parent, Path(sys.argv[1])
BANDS = ["B2", "B3"]
PATCH, KERNEL = [8, 8], [4, 4]
ACROSS, DOWN = 3, 2
AFFINE = [30.0, 0.0, 399960.0, 0.0, -30.0, 5300040.0]


def examples(rows):
    for row in rows:
        features = {
            name: tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(values)))
            for name, values in row.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        yield example.SerializeToString(deterministic=True)


def write(name, rows):
    with tf.io.TFRecordWriter(str(HERE / name), "GZIP") as writer:
        for record in examples(rows):
            writer.write(record)


def drawn():
    """The picture with what lies around it, [band, y, x]."""
    y, x = np.mgrid[: PATCH[1] * DOWN + KERNEL[1], : PATCH[0] * ACROSS + KERNEL[0]]
    return np.stack([x + 100 * y, (x * y % 17) / 4]).astype(np.float32)


def export_image(picture):
    patches = []
    for top in range(0, PATCH[1] * DOWN, PATCH[1]):
        for left in range(0, PATCH[0] * ACROSS, PATCH[0]):
            part = picture[:, top : top + PATCH[1] + KERNEL[1], left : left + PATCH[0] + KERNEL[0]]
            patches.append(dict(zip(BANDS, part, strict=True)))
    write("demo_00000.tfrecord.gz", patches[:4])
    write("demo_00001.tfrecord.gz", patches[4:])
    mixer = {
        "projection": {"crs": "EPSG:32610", "affine": {"doubleMatrix": AFFINE}},
        "patchDimensions": PATCH,
        "patchesPerRow": ACROSS,
        "totalPatches": ACROSS * DOWN,
    }
    (HERE / "demo_mixer.json").write_text(json.dumps(mixer, indent=2) + "\n", encoding="utf-8")


def export_table():
    rows = [{"B2": n / 8, "B3": 3 - n / 4, "landcover": n % 3} for n in range(10)]
    write("training.tfrecord.gz", rows)


def cells(name):
    path = CLONE / f"guides/linked/{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_part(source, begin, end, names):
    """Run the indented lines of a cell from one up to another."""
    exec(textwrap.dedent(source[source.index(begin) : source.index(end)]), names)


def main():
    export_image(drawn())
    export_table()
    (cell,) = (cell for cell in cells("UNET_regression_demo") if "def doPrediction" in cell)
    names = {"tf": tf, "BANDS": BANDS, "KERNEL_SHAPE": PATCH, "kernel_buffer": KERNEL}
    names["imageFilesList"] = sorted(map(str, HERE.glob("demo_*.tfrecord.gz")))
    run_part(cell, "  x_buffer =", "  # Perform inference.", names)
    patches = [patch[0] for patch in names["imageDataset"].as_numpy_iterator()]

    sources = cells("TF_demo1_keras")
    (described,) = (cell for cell in sources if cell.startswith("# List of fixed-length"))
    (parse,) = (cell for cell in sources if "def parse_tfrecord" in cell)
    names = {"tf": tf, "LABEL": "landcover", "FEATURE_NAMES": [*BANDS, "landcover"]}
    names |= {"pprint": lambda value: None}
    names["train_dataset"] = tf.data.TFRecordDataset(
        str(HERE / "training.tfrecord.gz"), compression_type="GZIP"
    )
    exec(described, names)
    exec(parse, names)
    table = [({**x}, y) for x, y in names["parsed_dataset"].as_numpy_iterator()]
    half = KERNEL[1] // 2, KERNEL[0] // 2
    np.savez_compressed(
        HERE / "expected.npz",
        picture=drawn()[:, half[0] : -half[0], half[1] : -half[1]],
        patches=np.stack(patches),
        landcover=np.stack([y for _, y in table]),
        **{name: np.stack([x[name] for x, _ in table]) for name in BANDS},
    )


main()
