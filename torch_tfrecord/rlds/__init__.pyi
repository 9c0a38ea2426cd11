from .dataset import RLDSDataset, RLDSEpisodes
from .statistics import Normalize, dataset_statistics
from .windows import UniformGoals

__all__ = ["Normalize", "RLDSDataset", "RLDSEpisodes", "UniformGoals", "dataset_statistics"]
