"""Masked CRC-32C, the checksum of TFRecord files.

CRC-32C is Castagnoli (reflected polynomial ``0x82F63B78``, initial and final xor ``0xFFFFFFFF``).
TFRecord stores it *masked*, so that the checksum of data that itself contains checksums stays
strong: rotated right by 15 bits, plus a constant, modulo 2^32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

__all__ = ["crc32c", "crc_table", "mask", "masked_crc32c"]

_Checksums: TypeAlias = "npt.NDArray[np.uint32]"
_Crc = TypeVar("_Crc", int, "_Checksums")

_MASK_DELTA = 0xA282EAD8
_UINT32 = 0xFFFFFFFF


def mask(crc: _Crc) -> _Crc:
    """Mask a CRC-32C, or a uint32 array of them: ``rotate_right(crc, 15) + 0xA282EAD8`` modulo
    2^32.
    """
    masked: _Crc = ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32  # type: ignore[assignment]  # the dtype stays uint32
    return masked


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Compute the masked CRC-32C of a bytes-like object.

    Example:
        >>> hex(masked_crc32c(b""))
        '0xa282ead8'
    """
    return mask(crc32c(data))


@lru_cache(maxsize=1)
def crc_table() -> _Checksums:
    """The standard CRC-32C byte table: uint32 [256]."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(0x82F63B78), crc >> 1).astype(np.uint32)
    return crc
