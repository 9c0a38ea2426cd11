"""Read the header of an encoded image: format, size, EXIF orientation, scans, and whether the image
is complete.

Nothing is decoded and no memory of the image's size is allocated here, so `codec` can reject a
decompression bomb before it costs memory, and a file truncated after its last pixel, which decoders
accept.

What is checked beyond the size:

- JPEG: marker segments up to the first scan (the decoder checks the scans)
- PNG: all chunks up to IEND; CRC-32 of the critical ones, as libpng does
- GIF: all blocks up to the trailer
- BMP: room for all rows, unless they are run-length encoded
- WebP: the length of the RIFF container
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import NamedTuple

from torch_tfrecord.errors import ImageDecodeError

__all__ = [
    "ImageHeader",
    "check_scans",
    "detect_format",
    "guess_content",
    "read_header",
]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SRGB_GAMMA, _SRGB_INTENTS = 45455, 4
_PNG_GAMMAS = range(16, 625_000_001)  # libpng ignores others

# The first bytes of each format. Two letters alone are not enough for BMP, as text may start with
# "BM": there follows one of the known sizes of the info header (12, 16, 40, 52, 56, 64, 108, 124).
_FORMAT = re.compile(
    rb"(?P<jpeg>\xff\xd8\xff)|(?P<png>\x89PNG\r\n\x1a\n)|(?P<gif>GIF8[79]a)|(?P<webp>RIFF.{4}WEBP)"
    rb"|(?P<bmp>BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0)",
    re.DOTALL,
)

# libjpeg writes 10 by default, mozjpeg up to 14, and cjpeg with a custom scan script at most 100.
_MOST_SCANS = 100
# Images with more pixels than this, over all scans, may have only as many scans as encoders write
# by default.
_MOST_SCANNED_PIXELS = 1 << 31
_USUAL_SCANS = 16

# Inside compressed pixels, FF is followed by 00 or a restart (D0 to D7). Below C0 there are no
# segments: decoders skip such two bytes, or reject them.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
# Before them, as in libjpeg, bytes between segments are skipped, any number of FF may precede a
# marker, and 00, 01 and D0 to D8 have no segment.
_SEGMENT = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")

# Content stored in an image feature by mistake, or in an unsupported format: what the first 64 bytes
# match, and what that is.
_OTHER_CONTENT = (
    (rb"\x1f\x8b", "gzip data"),
    (rb"PK\x03\x04", "a zip archive"),
    (rb"%PDF", "a PDF document"),
    (rb"II\*\0|MM\0\*", "a TIFF image"),
    (rb"8BPS", "a Photoshop image"),
    (rb"\0\0\x01\0", "an icon file"),
    (rb"\xff\x0a|\0\0\0\x0cJXL ", "a JPEG XL image"),
    (rb"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (rb"\x93NUMPY", "a NumPy array file"),
    (rb"\x80\x04\x95", "a Python pickle"),
    (rb".{4}ftyp", "an AVIF, HEIC or MP4 file"),
    (rb"\s*(?i:<!doctype|<html)", "HTML"),
    (rb"\s*(<\?xml|<svg)", "XML or SVG"),
    (rb"BM", "a BMP image truncated in its header, or text"),
    (rb"\0*\Z", "zeros"),
    (rb"[ -~\t\n\r]*\Z", "text"),
    (rb"", "an unknown format"),
)


class ImageHeader(NamedTuple):
    """The facts known about an encoded image without decoding it.

    ``exif`` has the half-open byte ranges of the JPEG or PNG segments that may contain EXIF,
    including their headers, and those of a PNG's compressed text, which decoders would inflate to
    up to a thousand times its size. ``orientation`` is the EXIF orientation, 1 to 8, and 1
    (upright) if it is missing or invalid. ``channels`` and ``bits`` are the stored ones for JPEG
    and PNG (palette: 1), and 0 for other formats. ``adobe`` is True if a JPEG has Adobe's marker,
    so that CMYK is stored inverted. ``scan`` is the start of a JPEG's first scan, else 0;
    ``progressive`` is True if further scans refine it. ``gamma`` is the exponent with which a PNG's
    colours are stored, times 100,000, and 0 if it does not say.
    """

    format: str
    height: int
    width: int
    channels: int = 0
    bits: int = 0
    exif: tuple[tuple[int, int], ...] = ()
    orientation: int = 1
    adobe: bool = False
    scan: int = 0
    progressive: bool = False
    gamma: int = 0


def detect_format(data: bytes) -> str | None:
    """Detect the format of an encoded image from its first 18 bytes: "jpeg", "png", "gif", "bmp",
    "webp", or None.
    """
    found = _FORMAT.match(data)
    return found and found.lastgroup


def guess_content(data: bytes) -> str:
    """Describe what bytes look like that are not a supported image, without showing them."""
    head = data[:64]
    if any(
        magic.startswith(head) for magic in (b"\xff\xd8\xff", _PNG_SIGNATURE, b"GIF89a", b"RIFF")
    ):
        return "an image truncated in its first bytes"
    return next(words for pattern, words in _OTHER_CONTENT if re.match(pattern, head, re.DOTALL))


def check_scans(data: bytes | memoryview, header: ImageHeader) -> None:
    """Reject a JPEG image with more scans than an encoder writes, in one pass over the bytes.

    Raises:
        ImageDecodeError: More than 100 scans, or more than 16 with more than 2^31 pixels over all
            scans.
    """
    if header.format != "jpeg":
        return
    # Without refinement, the first scan has all components, or leaves some to later scans.
    num_components = bytes(data[header.scan + 4 : header.scan + 5])
    if not header.progressive and num_components >= bytes([header.channels]):
        return  # a single scan: decoders reject a second one
    most = max(
        _USUAL_SCANS, min(_MOST_SCANS, _MOST_SCANNED_PIXELS // (header.height * header.width))
    )
    position, count = header.scan, 0
    while (found := _MARKER.search(data, position)) is not None:
        position = found.start() + 2
        marker = data[position - 1]
        if marker == 0xD9:  # anything may follow the end marker
            return
        count += marker == 0xDA
        if count > most:
            raise ImageDecodeError(
                f"expected at most {most} scans in a JPEG image of {header.height} x {header.width} pixels, got more"
            )
        if marker != 0xD8:  # the others have a segment
            position += int.from_bytes(data[position : position + 2], "big")


def read_header(data: bytes | memoryview) -> ImageHeader:
    """Read the format, size and orientation of an encoded image, and check from its structure that
    it is complete.

    Raises:
        ImageDecodeError: The format is not supported, or the image is truncated or its structure
            damaged.
    """
    data = bytes(data)
    kind = detect_format(data)
    if kind is None:
        content = f"{len(data)} bytes that look like {guess_content(data)}" if data else "0 bytes"
        raise ImageDecodeError(f"expected a JPEG, PNG, GIF, BMP or WebP image, got {content}")
    try:
        header = _READERS[kind](data)
    except (struct.error, IndexError) as exc:
        # Every read past the end ends up here: struct and indexing check bounds, and slices are
        # never relied on.
        raise ImageDecodeError(
            f"expected a whole {kind.upper()} image, got {len(data)} bytes that end early"
        ) from exc
    if not (header.height > 0 and header.width > 0):
        raise ImageDecodeError(
            f"expected a {kind.upper()} image of at least 1 x 1 pixels, got {header.height} x {header.width}"
        )
    return header


def _damage(kind: str, expected: str, offset: int, got: str) -> ImageDecodeError:
    return ImageDecodeError(f"expected {expected} at byte {offset} of a {kind} image, got {got}")


def _read_jpeg(data: bytes) -> ImageHeader:
    size: tuple[int, int, int, int] | None = None
    exif: list[tuple[int, int]] = []
    orientation = 1
    adobe = progressive = False
    position = 2
    while True:
        found = _SEGMENT.search(data, position)
        if found is None:
            raise IndexError
        position = found.start()
        marker = data[position + 1]
        if marker in (0xD9, 0xDA):  # end of image, start of scan
            break
        (length,) = struct.unpack_from(">H", data, position + 2)
        end = position + 2 + length
        if length < 2:
            raise _damage("JPEG", "a segment of 2 bytes or more", position, f"length {length}")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and size is None:
            size = struct.unpack_from(">BHHB", data, position + 4)
            progressive = marker & 3 == 2
        if marker == 0xE1:  # EXIF or XMP; torchcodec treats both as EXIF
            if orientation == 1 and data[position + 4 : position + 10] == b"Exif\x00\x00":
                orientation = _exif_orientation(data[position + 10 : end])
            exif.append((position, end))
        adobe = adobe or (marker == 0xEE and data[position + 4 : position + 9] == b"Adobe")
        position = end
    if size is None:
        raise _damage("JPEG", "a frame header", position, "the pixel data or the end")
    bits, height, width, channels = size
    return ImageHeader(
        "jpeg",
        height,
        width,
        channels,
        bits,
        tuple(exif),
        orientation,
        adobe,
        position,
        progressive,
    )


def _read_png(data: bytes) -> ImageHeader:
    exif: list[tuple[int, int]] = []
    orientation, gamma, knows_gamma = 1, 0, False
    position = len(_PNG_SIGNATURE)
    view = memoryview(data)
    while True:
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        (stored,) = struct.unpack_from(">I", data, end - 4)
        if position == 8 and (name != b"IHDR" or length != 13):
            raise _damage("PNG", "an IHDR chunk of 13 bytes", 8, f"another chunk of {length} bytes")
        # A capital first letter marks a critical chunk; libpng, and so TensorFlow, rejects only
        # those.
        if name[0] & 0x20 == 0 and zlib.crc32(view[position + 4 : end - 4]) != stored:
            raise _damage("PNG", "a chunk with a matching CRC", position, "another CRC")
        if name == b"eXIf":
            orientation = _exif_orientation(data[position + 8 : end - 4])
        if name in (b"eXIf", b"zTXt", b"iTXt"):
            exif.append((position, end))
        knows_gamma = knows_gamma or name in (b"PLTE", b"IDAT")  # libpng ignores what comes later
        if not knows_gamma:
            gamma, knows_gamma = _png_gamma(name, data[position + 8 : end - 4], gamma)
        if name == b"IEND":
            break
        position = end
    width, height, bits, color = struct.unpack_from(">IIBB", data, 16)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(color, 0)
    return ImageHeader("png", height, width, channels, bits, tuple(exif), orientation, gamma=gamma)


def _png_gamma(name: bytes, payload: bytes, gamma: int) -> tuple[int, bool]:
    """The gamma after one more chunk, and whether it is final: sRGB counts before gAMA, then the
    first one.
    """
    if name == b"sRGB" and len(payload) == 1 and payload[0] < _SRGB_INTENTS:
        return _SRGB_GAMMA, True
    if name == b"gAMA" and len(payload) == 4 and not gamma:
        stored = int.from_bytes(payload, "big")
        return (stored if stored in _PNG_GAMMAS else 0), False
    return gamma, False


def _read_gif(data: bytes) -> ImageHeader:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + _gif_table_bytes(flags)
    while data[position] != 0x3B:  # the trailer
        if data[position] == 0x2C:  # an image: descriptor, colours, code size, data
            position += 11 + _gif_table_bytes(data[position + 9])
        elif data[position] == 0x21:  # an extension
            position += 2
        else:
            raise _damage("GIF", "an image, an extension or the trailer", position, "another block")
        while data[position]:  # sub-blocks of up to 255 bytes, then an empty one
            position += 1 + data[position]
        position += 1
    return ImageHeader("gif", height, width)


def _gif_table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _read_bmp(data: bytes) -> ImageHeader:
    start, info_size = struct.unpack_from("<II", data, 10)
    compression = 0
    if info_size == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
        if info_size >= 40:
            (compression,) = struct.unpack_from("<I", data, 30)
    height = abs(height)  # negative: rows from the top
    row_bytes = (width * bits + 31) // 32 * 4
    if compression in (0, 3) and start + row_bytes * height > len(data):
        raise IndexError
    return ImageHeader("bmp", height, width)


def _read_webp(data: bytes) -> ImageHeader:
    (riff_size,) = struct.unpack_from("<I", data, 4)
    if riff_size + 8 > len(data):
        raise IndexError
    name = data[12:16]
    if name == b"VP8X":
        flags, wide, high = struct.unpack_from("<B3x3s3s", data, 20)
        width, height = (int.from_bytes(side, "little") + 1 for side in (wide, high))
        orientation = _webp_orientation(data, riff_size + 8) if flags & 0x08 else 1
        return ImageHeader("webp", height, width, orientation=orientation)
    if name == b"VP8L":
        signature, packed = struct.unpack_from("<BI", data, 20)
        if signature == 0x2F:
            return ImageHeader("webp", (packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1)
    if name == b"VP8 ":
        start_code, width, height = struct.unpack_from("<3sHH", data, 23)
        if start_code == b"\x9d\x01\x2a":
            return ImageHeader("webp", height & 0x3FFF, width & 0x3FFF)
    raise _damage("WEBP", "a VP8, VP8L or VP8X header", 12, "another chunk")


def _webp_orientation(data: bytes, end: int) -> int:
    position = 12
    while position + 8 <= end:
        name, length = struct.unpack_from("<4sI", data, position)
        if name == b"EXIF":
            return _exif_orientation(
                data[position + 8 : position + 8 + length].removeprefix(b"Exif\x00\x00")
            )
        position += 8 + length + length % 2
    return 1


def _exif_orientation(tiff: bytes) -> int:
    # Damaged EXIF is common in photos: treat them as upright, as viewers do, rather than reject
    # them.
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(entries):
            tag, kind, count, value = struct.unpack_from(
                order + "HHIH", tiff, directory + 2 + 12 * entry
            )
            if tag == 0x0112:
                return value if kind == 3 and count == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


_READERS = {
    "jpeg": _read_jpeg,
    "png": _read_png,
    "gif": _read_gif,
    "bmp": _read_bmp,
    "webp": _read_webp,
}
