"""The command line ``tfrecord``: index, verify and show TFRecord files, and make them from images."""
