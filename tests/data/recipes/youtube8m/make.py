"""Writes data.zip: `python make.py CLONE`, with TensorFlow 2.21.

CLONE is https://github.com/google/youtube-8m (Apache License 2.0), commit e6f6bf6: quantize() of
feature_extractor/extract_tfrecords_main.py and the message that its main() makes write the records
here, and the readers of readers.py read them. Features are drawn, so that no video is needed.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from originals import arrays, keep, load, tensorflow1, write

COMMIT = "e6f6bf682d20bb21904ea9c081c15e070809d914"


def feature_of(kind, values):
    made = tf.train.Feature()
    getattr(made, kind).value.extend(values)
    return made


def video(quantize, number, num_frames, context):
    """As main() makes it, with frames of four kinds, so that they pack well."""
    kinds = np.random.default_rng(0).uniform(-2.5, 2.5, (4, 1152)).astype("float32")
    frames = kinds[np.random.default_rng(number).integers(0, 4, num_frames)]
    feature_lists = {}
    for name, columns in (("rgb", slice(0, 1024)), ("audio", slice(1024, 1152))):
        strings = [feature_of("bytes_list", [quantize(frame[columns])]) for frame in frames]
        feature_lists[name] = tf.train.FeatureList(feature=strings)
    context["id"] = feature_of("bytes_list", [f"vid{number}".encode()])
    return tf.train.SequenceExample(
        context=tf.train.Features(feature=context),
        feature_lists=tf.train.FeatureLists(feature_list=feature_lists),
    )


def main(clone):
    modules = {"tensorflow": tensorflow1, "cv2": None, "feature_extractor": None}
    writer = load(
        clone, COMMIT, "feature_extractor/extract_tfrecords_main.py", "extract", **modules
    )
    utils = load(clone, COMMIT, "utils.py", "utils", tensorflow=tensorflow1)
    readers = load(clone, COMMIT, "readers.py", "readers", tensorflow=tensorflow1, utils=utils)
    videos = [
        video(writer.quantize, number, num_frames, {"labels": feature_of("int64_list", labels)})
        for number, (num_frames, labels) in enumerate(
            [(4, [3, 0, 3861]), (1, [7]), (303, [12, 40]), (2, [])]
        )
    ]
    segments = [
        video(
            writer.quantize,
            number,
            num_frames,
            {
                "segment_labels": feature_of("int64_list", labels),
                "segment_start_times": feature_of("int64_list", starts),
                "segment_end_times": feature_of("int64_list", [start + 5 for start in starts]),
                "segment_scores": feature_of("float_list", scores),
            },
        )
        for number, num_frames, labels, starts, scores in [
            (10, 30, [5, 9, 5], [10, 10, 20], [1, 0, 1]),
            (11, 25, [1900], [5], [1]),
            # Segments in the order of their first labels, and one that goes past the last frame.
            (12, 22, [8, 8, 2], [15, 0, 20], [0, 1, 1]),
        ]
    ]
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"train00.tfrecord": videos, "validate00.tfrecord": segments}
        for name, messages in files.items():
            reader = readers.YT8MFrameFeatureReader(segment_labels=messages is segments)
            files[name] = Path(folder, name)
            write(files[name], messages)
            for number, record in enumerate(tf.data.TFRecordDataset(str(files[name]))):
                found = reader.prepare_serialized_examples(record)
                expected |= {f"{name[:5]}/{k}": v for k, v in arrays(number, found).items()}
        keep(Path(__file__).parent, files, expected)


main(sys.argv[1])
