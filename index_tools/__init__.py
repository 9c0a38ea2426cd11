"""The command line tool ``tfrecord``: index, verify and show TFRecord files, and make them from
images.
"""
