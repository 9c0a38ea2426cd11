"""Masked CRC-32C, the checksum of TFRecord files.

CRC-32C is Castagnoli (reflected polynomial ``0x82F63B78``, initial and final xor ``0xFFFFFFFF``). TFRecord stores it
*masked*, so that the checksum of bytes that themselves hold a checksum stays strong: rotated right by 15 bits, plus a
constant, modulo 2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

__all__ = ["crc32c", "mask", "mask_array", "masked_crc32c", "unmask", "unmask_array"]

_MASK_DELTA = 0xA282EAD8
_UINT32 = 0xFFFFFFFF


def mask(crc: int) -> int:
    """Mask a CRC-32C as it is stored: ``rotate_right(crc, 15) + 0xA282EAD8`` modulo 2^32."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32


def unmask(masked: int) -> int:
    """Undo `mask`."""
    rotated = (masked - _MASK_DELTA) & _UINT32
    return (rotated << 15 | rotated >> 17) & _UINT32


def mask_array(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Mask many CRC-32Cs at once; uint32 in, uint32 out, same shape."""
    masked: npt.NDArray[np.uint32] = ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)
    return masked


def unmask_array(masked: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Undo `mask_array`."""
    rotated = masked - np.uint32(_MASK_DELTA)
    crcs: npt.NDArray[np.uint32] = (rotated << np.uint32(15)) | (rotated >> np.uint32(17))
    return crcs


def masked_crc32c(data: Any) -> int:
    """Masked CRC-32C of a bytes-like object.

    Example:
        >>> hex(masked_crc32c(b""))
        '0xa282ead8'
    """
    return mask(crc32c(data))
