"""Features that another process imports by name."""

import torch

from torch_tfrecord import FixedLenFeature

SMALL = {"a": FixedLenFeature((2,), torch.uint8)}
