"""The names of episodes that users find beside those of datasets."""

from torch_tfrecord.rlds import (
    Mask,
    Normalize,
    OneOf,
    RLDSDataset,
    RLDSEpisodes,
    UniformGoals,
    dataset_statistics,
)

__all__ = [
    "Mask",
    "Normalize",
    "OneOf",
    "RLDSDataset",
    "RLDSEpisodes",
    "UniformGoals",
    "dataset_statistics",
]
