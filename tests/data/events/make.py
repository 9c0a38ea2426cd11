"""Writes tensors.tfevents and values.tfevents with TensorFlow 2.21: python make.py."""

import glob
import os
import shutil
import tempfile

import tensorflow as tf

PNG = tf.io.encode_png(tf.zeros((4, 6, 3), tf.uint8)).numpy()


def metadata(plugin):
    """What tf.summary.scalar and others write besides the value."""
    found = tf.compat.v1.SummaryMetadata()
    found.plugin_data.plugin_name = plugin
    return found


def copy(folder, name):
    (path,) = glob.glob(f"{folder}/*")
    shutil.copy(path, os.path.join(os.path.dirname(os.path.abspath(__file__)), name))


with tempfile.TemporaryDirectory() as folder:
    writer = tf.summary.create_file_writer(folder)
    with writer.as_default():
        for step in range(3):
            loss = tf.constant(1 / (step + 1))
            tf.summary.write("loss", loss, step, metadata("scalars"))
        tf.summary.write("picture", tf.constant([b"6", b"4", PNG]), 3, metadata("images"))
        tf.summary.write("note", tf.constant("a line of text"), 4, metadata("text"))
        weights = tf.constant([[1.0, 2.0, 3.0]])
        tf.summary.write("weights", weights, 5, metadata("histograms"))
    writer.close()
    copy(folder, "tensors.tfevents")

with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default():
    Summary = tf.compat.v1.Summary
    picture = Summary.Image(height=4, width=6, colorspace=3, encoded_image_string=PNG)
    writer = tf.compat.v1.summary.FileWriter(folder)
    values = [
        Summary.Value(tag="loss", simple_value=0.5),
        Summary.Value(tag="picture", image=picture),
        Summary.Value(tag="weights", histo=tf.compat.v1.HistogramProto(min=0, max=1, num=2)),
    ]
    writer.add_summary(Summary(value=values), 7)
    writer.close()
    copy(folder, "values.tfevents")
