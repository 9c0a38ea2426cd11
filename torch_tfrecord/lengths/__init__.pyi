from .buckets import Buckets, LengthOptions, TooLong, checked_lengths
from .packing import PackedCollate
from .packs import PackOrder
from .padding import PaddedCollate

__all__ = [
    "Buckets",
    "LengthOptions",
    "PackOrder",
    "PackedCollate",
    "PaddedCollate",
    "TooLong",
    "checked_lengths",
]
