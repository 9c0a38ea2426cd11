from .epochs import STATE_VERSION, Epochs, check_number, check_state, digest
from .iteration import Iteration
from .nested import Inner, LeafBatch, defines_last, draw_salt, draws_at_random, has_mixture, has_places, join_samples, leaf_batches, leaves, needs_salt, read_leaf, record_lengths, salted, stores
from .orders import Permutation, balanced_weights, block_starts
from .plan import Job, Place, RecordOrder
from .position_batch import DrawEpoch, PositionBatch, is_batch_of_positions, list_of_positions
from .ranks import Rank, check_rank, consumer, in_process_group, ranks_on_host, resolve_rank
from .samplers import BLOCK_BYTES, RecordBatchSampler, RecordSampler
from .trainers import check_loaded_epoch, prepared_loader

__all__ = [
"BLOCK_BYTES",
"STATE_VERSION",
"DrawEpoch",
"Epochs",
"Inner",
"Iteration",
"Job",
"LeafBatch",
"Permutation",
"Place",
"PositionBatch",
"Rank",
"RecordBatchSampler",
"RecordOrder",
"RecordSampler",
"balanced_weights",
"block_starts",
"check_loaded_epoch",
"check_number",
"check_rank",
"check_state",
"consumer",
"defines_last",
"digest",
"draw_salt",
"draws_at_random",
"has_mixture",
"has_places",
"in_process_group",
"is_batch_of_positions",
"join_samples",
"leaf_batches",
"leaves",
"list_of_positions",
"needs_salt",
"prepared_loader",
"ranks_on_host",
"read_leaf",
"record_lengths",
"resolve_rank",
"salted",
"stores",
]
