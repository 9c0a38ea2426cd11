"""The record layout of TFRecord files; no other module knows it.

=========== ====== ===============================================================
part        bytes  content
=========== ====== ===============================================================
length      8      uint64, little-endian: number of payload bytes
length CRC  4      uint32, little-endian: masked CRC-32C of the 8 length bytes
payload     length any bytes; a length of 0 is legal
payload CRC 4      uint32, little-endian: masked CRC-32C of the payload
=========== ====== ===============================================================

CRC-32C is Castagnoli (reflected polynomial ``0x82F63B78``, initial and final xor ``0xFFFFFFFF``).
TFRecord stores it *masked*, so that the checksum of data that itself contains checksums stays
strong: rotated right by 15 bits, plus a constant, modulo 2^32.

A file is a concatenation of records, without magic bytes, count or padding. An *offset* is the
first byte of a length field. Errors raised here have neither file nor offset; the caller adds them
(`TFRecordError.locate`).
"""

from __future__ import annotations

import struct
from functools import lru_cache

from crc32c import crc32c

from torch_tfrecord.errors import CorruptRecordError
from torch_tfrecord.native import native_module

__all__ = [
    "ARRAY_RECORD_MAGIC",
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "OVERHEAD_BYTES",
    "check_payload",
    "checksum_error",
    "encode_footer",
    "encode_header",
    "find_headers",
    "frame",
    "guess_content",
    "is_header",
    "payload_length",
]

_MASK_DELTA = 0xA282EAD8

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_FOOTER = struct.Struct("<I")

HEADER_BYTES = _HEADER.size  # length and its CRC
FOOTER_BYTES = _FOOTER.size  # CRC of the payload
OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES


def _mask(crc: int) -> int:
    """Mask a CRC-32C: ``rotate_right(crc, 15) + 0xA282EAD8`` modulo 2^32."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Compute the masked CRC-32C of a bytes-like object.

    Example:
        >>> hex(masked_crc32c(b""))
        '0xa282ead8'
    """
    return _mask(crc32c(data))


def encode_header(length: int) -> bytes:
    """The length field and its checksum (12 bytes) for a payload of `length` bytes, 0 <= length <
    2^64.
    """
    return _HEADER.pack(length, masked_crc32c(_LENGTH.pack(length)))


def encode_footer(payload: bytes | bytearray | memoryview) -> bytes:
    """The checksum of a payload (4 bytes)."""
    return _FOOTER.pack(masked_crc32c(payload))


def frame(payload: bytes) -> bytes:
    """A whole record: header, payload, footer.

    Example:
        >>> frame(b"abc").hex()
        '0300000000000000b099490e6162636e57f121'
    """
    return encode_header(len(payload)) + payload + encode_footer(payload)


def is_header(first_bytes: bytes) -> bool:
    """Whether bytes begin with a length field with a matching checksum (12 bytes)."""
    return len(first_bytes) >= HEADER_BYTES and _HEADER.unpack_from(first_bytes)[
        1
    ] == masked_crc32c(first_bytes[: _LENGTH.size])


@lru_cache(maxsize=1 << 14)  # lengths repeat in most files
def payload_length(header: bytes) -> int:
    """Read the payload length from a header (12 bytes).

    Raises:
        CorruptRecordError: The length does not match the checksum after it.
    """
    length, stored = _HEADER.unpack(header)
    expected = masked_crc32c(header[: _LENGTH.size])
    if stored != expected:
        raise CorruptRecordError(
            f"corrupted record: expected length checksum {expected:#010x} (of length {length}), got {stored:#010x}"
        )
    return length


def checksum_error(crc: int, footer: bytes | memoryview, length: int) -> CorruptRecordError | None:
    """The error for a payload with this CRC-32C and length, if its footer has another checksum;
    else None.
    """
    expected, stored = _mask(crc), _FOOTER.unpack(footer)[0]
    if stored == expected:
        return None
    return CorruptRecordError(
        f"corrupted record: expected payload checksum {expected:#010x}, got {stored:#010x} ({length} bytes)"
    )


def check_payload(payload: bytes | memoryview, footer: bytes | memoryview) -> None:
    """Raise CorruptRecordError unless a payload matches the checksum in its footer (4 bytes)."""
    error = checksum_error(crc32c(payload), footer, len(payload))
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback keeps this frame, and so the payload: until a collection


def find_headers(buffer: bytes) -> list[int]:
    """Find the positions of valid headers (12 bytes) in a buffer, ascending; used to continue after
    damage.

    Only headers with lengths below 2^48: no file is longer, and the zero bytes of such a length are
    found fast.
    """
    native = native_module("frames")
    if native is not None:
        return native.headers(buffer)
    places = range(len(buffer) - HEADER_BYTES + 1)
    return [at for at in places if not any(buffer[at + 6 : at + 8]) and is_header(buffer[at:])]


# Eight bytes: as the length of a record, the first four would be one of 3.5 GB.
ARRAY_RECORD_MAGIC = b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"

# First bytes of files that are often mistaken for TFRecord files. `compression` detects compressed
# streams.
_SIGNATURES = (
    (b"version https://git-lfs", "a git-LFS pointer; fetch the file itself with `git lfs pull`"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"PAR1", "a parquet file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"ARROW1", "an Arrow file"),
    (b"Obj\x01", "an Avro file"),
    (b"BZh", "a bzip2 stream"),
    (b"\xfd7zXZ\x00", "an xz stream"),
    (b"\x28\xb5\x2f\xfd", "a zstd stream"),
    (b"\xff\x06\x00\x00sNaPpY", "a snappy stream"),
    (ARRAY_RECORD_MAGIC, "an ArrayRecord or Riegeli file"),
)


def guess_content(first_bytes: bytes) -> str | None:
    """Guess what a file is that is not a TFRecord file, from its first bytes; None if unknown.

    Example:
        >>> guess_content(b"<!DOCTYPE html><html>")
        'an HTML page'
    """
    for signature, name in _SIGNATURES:
        if first_bytes.startswith(signature):
            return name
    if not first_bytes:
        return None
    # Servers answer with a page where a file is missing.
    start = first_bytes.lstrip()[:15].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page"
    if start.startswith(b"<?xml"):
        return "an XML file"
    if not any(first_bytes):
        return "zeros (a hole left by an interrupted download?)"
    if all(0x20 <= byte < 0x7F or byte in b"\t\n\r" for byte in first_bytes):
        return "text"
    return None
