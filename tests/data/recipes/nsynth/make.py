"""Writes data.zip: `python make.py CLONE`, with TensorFlow 2.21.

CLONE is https://github.com/magenta/magenta (Apache License 2.0), commit 526d3eb: get_example() of
magenta/models/nsynth/reader.py reads the records. NSynth's writer is not public; the records here
have the features that https://magenta.tensorflow.org/datasets/nsynth lists, of made-up notes.
"""

import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, example, keep, load, tensorflow1, write

COMMIT = "526d3eb1a39df21215d286079cb0b8fc179fd4b3"
FAMILIES = ["bass", "brass", "flute", "guitar"]
SOURCES = ["acoustic", "electronic", "synthetic"]


def note(number, family, source, pitch, velocity, qualities):
    """A tone that swells and fades in steps, so that it packs well."""
    period = np.sin(np.arange(40 + number) * 2 * np.pi / (40 + number))
    wave = np.resize(period, 64000) * np.repeat([0.2, 0.9, 0.5, 0], 16000)
    name = f"{FAMILIES[family]}_{SOURCES[source]}_{number:03d}"
    return example(
        note=("int64_list", [1000 + number]),
        note_str=("bytes_list", [f"{name}-{pitch:03d}-{velocity:03d}".encode()]),
        instrument=("int64_list", [number]),
        instrument_str=("bytes_list", [name.encode()]),
        pitch=("int64_list", [pitch]),
        velocity=("int64_list", [velocity]),
        sample_rate=("int64_list", [16000]),
        audio=("float_list", wave.astype("float32")),
        qualities=("int64_list", [int(place in qualities) for place in range(10)]),
        qualities_str=("bytes_list", [f"quality {place}".encode() for place in qualities]),
        instrument_family=("int64_list", [family]),
        instrument_family_str=("bytes_list", [FAMILIES[family].encode()]),
        instrument_source=("int64_list", [source]),
        instrument_source_str=("bytes_list", [SOURCES[source].encode()]),
    )


def main(clone):
    magenta = types.ModuleType("magenta.models.nsynth")
    magenta.utils = None  # for spectrograms
    stand_ins = {"magenta": None, "magenta.models": None, "magenta.models.nsynth": magenta}
    reader = load(clone, COMMIT, "magenta/models/nsynth/reader.py", "reader", **stand_ins)
    notes = [
        note(0, 0, 1, 22, 100, [1, 4]),
        note(1, 2, 0, 60, 25, []),
        note(2, 3, 0, 108, 127, [9]),
        note(3, 1, 0, 24, 50, [0, 2]),
    ]
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nsynth-train.tfrecord")
        write(file, notes)
        with tf.Graph().as_default(), tensorflow1.Session() as session:
            read = reader.NSynthDataset(str(file), is_training=False).get_example(1)
            session.run(tensorflow1.local_variables_initializer())
            coordinator = tensorflow1.train.Coordinator()
            threads = tensorflow1.train.start_queue_runners(session, coordinator)
            for number in range(len(notes)):
                expected |= arrays(number, session.run(read))
            coordinator.request_stop()
            coordinator.join(threads)
        keep(Path(__file__).parent, {file.name: file}, expected)


main(sys.argv[1])
