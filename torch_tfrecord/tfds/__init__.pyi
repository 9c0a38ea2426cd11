from . import features
from .dataset_info import (
    FEATURES_FILE as FEATURES_FILE,
)
from .dataset_info import (
    DatasetInfo,
    SplitInfo,
    info,
)
from .dataset_info import (
    are_specs as are_specs,
)
from .dataset_info import (
    info_of as info_of,
)
from .elements import (
    BytesElement as BytesElement,
)
from .elements import (
    NumberElement as NumberElement,
)
from .elements import (
    PictureElement as PictureElement,
)
from .elements import (
    TextElement as TextElement,
)
from .episodes import Normalize, RLDSDataset, RLDSEpisodes, UniformGoals, dataset_statistics
from .features_json import read_json as read_json
from .leaves import MAX_LENGTH as MAX_LENGTH
from .leaves import Leaf as Leaf
from .loading import load
from .loading import open_split as open_split
from .parser import (
    Chosen as Chosen,
)
from .parser import (
    LeafPlace as LeafPlace,
)
from .parser import (
    choose_leaves as choose_leaves,
)
from .parser import (
    list_leaves as list_leaves,
)
from .parser import (
    make_element as make_element,
)
from .parser import (
    make_leaf as make_leaf,
)
from .parser import (
    paths_below as paths_below,
)
from .splits import ReadInstruction, even_splits
from .splits import Split as Split
from .writing import write

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
