"""Records split into a training, a validation and a test file, in TensorFlow; the counterpart of
split_text.py.
"""

import tensorflow as tf

SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}


def split(pattern, prefix):
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    records = tf.data.TFRecordDataset(files)
    total = sum(1 for _ in records)  # reads everything once to count it
    begin, share = 0, 0.0
    for name in SHARES:
        share += SHARES[name]
        end = round(share * total)
        with tf.io.TFRecordWriter(f"{prefix}-{name}.tfrecord") as writer:
            for record in records.skip(begin).take(end - begin):
                writer.write(record.numpy())
        begin = end
