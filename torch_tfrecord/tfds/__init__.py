"""Read and write TensorFlow Datasets (TFDS) directories of TFRecord files without TensorFlow."""

import torch_tfrecord.tfds.features as features
from torch_tfrecord.tfds.dataset_info import DatasetInfo, SplitInfo, info
from torch_tfrecord.tfds.loading import load
from torch_tfrecord.tfds.normalization import Normalize
from torch_tfrecord.tfds.rlds import RLDSDataset, RLDSEpisodes
from torch_tfrecord.tfds.splits import ReadInstruction, even_splits
from torch_tfrecord.tfds.statistics import dataset_statistics
from torch_tfrecord.tfds.windows import UniformGoals
from torch_tfrecord.tfds.writing import write

__all__ = [
    "DatasetInfo",
    "Normalize",
    "RLDSDataset",
    "RLDSEpisodes",
    "ReadInstruction",
    "SplitInfo",
    "UniformGoals",
    "dataset_statistics",
    "even_splits",
    "features",
    "info",
    "load",
    "write",
]
