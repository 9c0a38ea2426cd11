"""``python -m torch_tfrecord``: report what this installation can do, like ``tfrecord doctor``."""

from torch_tfrecord.doctor import installation_report

__all__: list[str] = []

if __name__ == "__main__":  # worker processes import this module again
    print(installation_report())
