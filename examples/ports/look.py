"""A look at what was written, by torch_tfrecord; the counterpart of look_tf.py."""

from torch_tfrecord import TFRecordDataset, infer_features


def look(pattern):
    features = infer_features(pattern)
    print(features)  # as code to paste
    ds = TFRecordDataset(pattern, features)
    print(ds.to_pandas(range(2)))
