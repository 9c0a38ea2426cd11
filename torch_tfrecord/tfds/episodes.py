"""The names of episodes that users find beside those of datasets."""

from torch_tfrecord.rlds import (
    Normalize,
    RLDSDataset,
    RLDSEpisodes,
    UniformGoals,
    dataset_statistics,
)

__all__ = ["Normalize", "RLDSDataset", "RLDSEpisodes", "UniformGoals", "dataset_statistics"]
