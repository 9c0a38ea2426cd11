from .epochs import RecordOrder, digest
from .iteration import StateForm
from .nested import Leaves, Part, defines_last
from .orders import Permutation, balanced_weights, block_starts
from .plan import Place
from .position_batch import DrawEpoch
from .ranks import Rank
from .samplers import RecordBatchSampler, RecordSampler
from .trainers import check_loaded_epoch, prepared_loader

__all__ = [
    "DrawEpoch",
    "Leaves",
    "Part",
    "Permutation",
    "Place",
    "Rank",
    "RecordBatchSampler",
    "RecordOrder",
    "RecordSampler",
    "StateForm",
    "balanced_weights",
    "block_starts",
    "check_loaded_epoch",
    "defines_last",
    "digest",
    "prepared_loader",
]
