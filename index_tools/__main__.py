"""``python -m index_tools``: the same as the console script ``tfrecord``."""

from index_tools.main import entry_point

if __name__ == "__main__":  # worker processes import this module again
    entry_point()
