from .buckets import LengthBatchSampler
from .packing import PackedCollate
from .padding import PaddedCollate

__all__ = [
    "LengthBatchSampler",
    "PackedCollate",
    "PaddedCollate",
]
