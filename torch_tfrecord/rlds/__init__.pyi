from .dataset import RLDSDataset, RLDSEpisodes
from .normalization import Normalize
from .statistics import dataset_statistics
from .windows import UniformGoals

__all__ = ["Normalize", "RLDSDataset", "RLDSEpisodes", "UniformGoals", "dataset_statistics"]
