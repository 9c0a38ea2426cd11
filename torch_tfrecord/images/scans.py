"""The scans of a JPEG image, counted before it is decoded: each goes over the whole picture, however small."""

from __future__ import annotations

import re

from torch_tfrecord.errors import ImageDecodeError
from torch_tfrecord.images.headers import ImageHeader

__all__ = ["check_scans"]

# libjpeg writes 10 by itself, mozjpeg up to 14, and cjpeg by a script of the user's 100 at most.
_MOST_SCANS = 100
# Pictures of more pixels than this, over all scans, have fewer, but what encoders write by themselves.
_MOST_SCANNED_PIXELS = 1 << 31
_USUAL_SCANS = 16

# Inside compressed pixels 00 or a restart (D0 to D7) follows FF. Below C0 there are no segments: decoders pass over
# such two bytes, or refuse them.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")


def check_scans(data: bytes | memoryview, header: ImageHeader) -> None:
    """Refuse a JPEG image of more scans than an encoder writes; the bytes are passed over once.

    Raises:
        ImageDecodeError: More than 100 scans, or than 16 where that is more than 2^31 pixels over all scans.
    """
    if not (header.progressive or _is_partial(data, header)):
        return  # a single scan: decoders refuse a second one
    most = max(_USUAL_SCANS, min(_MOST_SCANS, _MOST_SCANNED_PIXELS // (header.height * header.width)))
    if _count_scans(data, header.scan, most + 1) > most:
        raise ImageDecodeError(
            f"expected at most {most} scans in a JPEG image of {header.height} x {header.width} pixels, got more"
        )


def _is_partial(data: bytes | memoryview, header: ImageHeader) -> bool:
    """Whether the first scan leaves components to others."""
    return header.format == "jpeg" and len(data) > header.scan + 4 and data[header.scan + 4] < header.channels


def _count_scans(data: bytes | memoryview, position: int, limit: int) -> int:
    """The scans from a position up to the end marker, ``limit`` at most."""
    count = 0
    while count < limit and (found := _MARKER.search(data, position)) is not None:
        position = found.start()
        marker = data[position + 1]
        if marker == 0xD9:  # behind it anything may follow
            break
        count += marker == 0xDA
        position += 2 if marker == 0xD8 else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return count
