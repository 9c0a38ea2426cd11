from .dataset import RLDSDataset, RLDSEpisodes
from .draws import Mask, OneOf
from .statistics import Normalize, dataset_statistics
from .windows import UniformGoals

__all__ = [
    "Mask",
    "Normalize",
    "OneOf",
    "RLDSDataset",
    "RLDSEpisodes",
    "UniformGoals",
    "dataset_statistics",
]
