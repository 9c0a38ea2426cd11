from .iteration import StateForm
from .leaves import DrawEpoch, Leaves, Part
from .orders import Permutation, balanced_weights, block_starts
from .ranks import Prepared, Rank
from .samplers import RecordBatchSampler, RecordSampler
from .steps import Place, RecordOrder, digest

__all__ = [
    "DrawEpoch",
    "Leaves",
    "Part",
    "Permutation",
    "Place",
    "Prepared",
    "Rank",
    "RecordBatchSampler",
    "RecordOrder",
    "RecordSampler",
    "StateForm",
    "balanced_weights",
    "block_starts",
    "digest",
]
