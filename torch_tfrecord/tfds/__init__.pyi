from . import features
from .dataset_info import DatasetInfo, SplitInfo, info
from .dataset_info import info_of as info_of
from .episodes import (
    Mask,
    Normalize,
    OneOf,
    RLDSDataset,
    RLDSEpisodes,
    UniformGoals,
    dataset_statistics,
)
from .leaves import Leaf as Leaf
from .loading import load
from .loading import open_split as open_split
from .parser import Chosen as Chosen
from .parser import LeafPlace as LeafPlace
from .parser import leaves_of as leaves_of
from .splits import ReadInstruction, even_splits
from .splits import Split as Split
from .writing import write

__all__ = [
    "DatasetInfo",
    "Mask",
    "Normalize",
    "OneOf",
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
