from .buckets import Buckets, checked_lengths
from .length_sampler import LengthBatchSampler
from .packing import PackedCollate
from .packs import PackOrder
from .padding import PaddedCollate

__all__ = [
"Buckets",
"LengthBatchSampler",
"PackOrder",
"PackedCollate",
"PaddedCollate",
"checked_lengths",
]
