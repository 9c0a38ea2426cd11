"""Decoding, encoding and crop-or-pad of images, on pictures drawn here; Pillow and literals are the
oracle.

Covers media/backends, media/codec, media/headers.
"""

import io
import random
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFile, ImageOps
from torchvision import tv_tensors

from torch_tfrecord import ImageDecodeError, decode_image, encode_image, resize_with_crop_or_pad
from torch_tfrecord.media import backends as image_backends
from torch_tfrecord.media import check_image, image_format, image_size
from torch_tfrecord.media.headers import read_header

HAS_TORCHCODEC = image_backends.torchcodec_decoders() is not None
NEEDS_TORCHCODEC = pytest.mark.skipif(
    not HAS_TORCHCODEC, reason="torchcodec 0.16 or newer is not installed"
)
BACKENDS = ["pillow", pytest.param("torchcodec", marks=NEEDS_TORCHCODEC), "auto"]
HEIGHT, WIDTH = 19, 26


# Pictures and files


def draw(mode: str = "RGB", height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """A gradient with shapes on it, so that no two corners, rows or channels are alike."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([columns * 9, rows * 12, (columns * rows) // 2 + 20], axis=-1) % 256
    picture = Image.fromarray(pixels.astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    pen.rectangle((2, 3, 9, 8), fill=(250, 20, 60))
    pen.ellipse((12, 6, 22, 16), fill=(10, 200, 90))
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray(((columns * 7 + rows * 5) % 256).astype(np.uint8))
        picture.putalpha(alpha)
    return picture.convert(mode)


def encode(kind: str, mode: str = "RGB", **options) -> bytes:
    buffer = io.BytesIO()
    draw(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))
        + name
        + payload
        + struct.pack(">I", zlib.crc32(name + payload))
    )


def write_png(rows: list[bytes], width: int, bits: int, color: int, *extra: bytes) -> bytes:
    """A PNG of any kind, all rows unfiltered."""
    header = struct.pack(">IIBBBBB", width, len(rows), bits, color, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + b"".join(extra)
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


def deep_png(channels: int, *extra: bytes) -> tuple[bytes, np.ndarray]:
    """A 16-bit PNG with Sub and Up filters, and its pixels [H, W, C]."""
    pixels = np.random.default_rng(3).integers(0, 1 << 16, (7, 5, channels)).astype(np.uint16)
    raw = pixels.astype(">u2").view(np.uint8).reshape(7, 5 * channels * 2)
    step, rows = 2 * channels, []
    for y, row in enumerate(raw):
        kind = y % 3
        shifted = np.concatenate([np.zeros(step, np.uint8), row[:-step]])
        reference = [np.zeros_like(row), shifted, raw[y - 1]][kind]
        rows.append(bytes([kind]) + (row - reference).tobytes())
    header = struct.pack(">IIBBBBB", 5, 7, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    body = chunk(b"IHDR", header) + b"".join(extra) + chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b""), pixels


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


SMALL_FILES = {
    "jpeg": encode("jpeg"),
    "jpeg gray": encode("jpeg", "L"),
    "jpeg cmyk": encode("jpeg", "CMYK"),
    "jpeg progressive": encode("jpeg", progressive=True),
    "jpeg exif": encode("jpeg", exif=exif(6)),
    "png": encode("png"),
    "png palette": encode("png", "P"),
    "png 16": deep_png(3)[0],
    "gif": encode("gif"),
    "gif animated": encode("gif", "P", save_all=True, append_images=[draw("P").rotate(180)]),
    "bmp": encode("bmp"),
    "bmp palette": encode("bmp", "P"),
    "webp": encode("webp"),
    "webp lossless": encode("webp", "RGBA", lossless=True),
}


def backends_of(data: bytes) -> list[str]:
    both = HAS_TORCHCODEC and image_format(data) in ("jpeg", "png")
    return ["pillow", "torchcodec"] if both else ["pillow"]


def chw(picture: Image.Image) -> np.ndarray:
    array = np.array(picture)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def error_of(call, *args, **kwargs) -> str:
    with pytest.raises(ImageDecodeError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# Values


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "unchanged"])
@pytest.mark.parametrize("stored", ["RGB", "RGBA", "L", "LA", "P", "1"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_png_pixels_are_exact_in_every_mode(backend, stored, mode):
    picture = draw(stored)
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    result = decode_image(buffer.getvalue(), mode, backend=backend)
    as_is = {"P": "RGB", "1": "L"}.get(stored, stored)
    expected = chw(picture.convert(as_is if mode == "unchanged" else mode))
    assert result.dtype == torch.uint8
    assert result.shape == expected.shape
    tolerance = (
        1 if mode == "L" and stored in ("RGB", "RGBA", "P") and backend == "torchcodec" else 0
    )
    assert np.abs(result.numpy().astype(int) - expected).max() <= tolerance


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"quality": 30}]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_jpeg_pixels_are_libjpegs(backend, options):
    data = encode("jpeg", **options)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    assert np.array_equal(decode_image(data, backend=backend), chw(expected))
    luma = Image.open(io.BytesIO(data))
    luma.draft("L", None)
    assert np.array_equal(decode_image(data, "L", backend=backend), chw(luma))
    opaque = decode_image(data, "RGBA", backend=backend)
    assert np.array_equal(opaque[:3], chw(expected)) and bool((opaque[3] == 255).all())
    assert decode_image(data, "unchanged", backend=backend).shape == (3, HEIGHT, WIDTH)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "unchanged"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cmyk_jpeg_becomes_rgb(backend, mode):
    data = encode("jpeg", "CMYK", quality=100)
    rgb = Image.open(io.BytesIO(data)).convert("RGB")
    expected = chw(rgb.convert("RGB" if mode == "unchanged" else mode))
    assert np.array_equal(decode_image(data, mode, backend=backend), expected)
    # Not inverted: the drawing itself is near (inks and chroma lose a little).
    assert np.abs(chw(rgb).astype(int) - chw(draw())).mean() < 12


def test_cmyk_without_adobes_marker_is_not_inverted():
    data = encode("jpeg", "CMYK")
    at = data.index(b"\xff\xee\x00\x0eAdobe")
    plain = data[:at] + data[at + 16 :]
    inks = 255 - chw(Image.open(io.BytesIO(data))).astype(int)  # Pillow inverted what was stored
    expected = (255 - inks[3]) * (255 - inks[:3]) / 255
    assert np.abs(decode_image(plain).numpy() - expected).max() <= 0.5
    assert torch.equal(decode_image(plain, "unchanged"), decode_image(plain))
    if HAS_TORCHCODEC:
        assert error_of(decode_image, plain, backend="torchcodec") == (
            "expected Adobe's marker in a CMYK JPEG image for backend='torchcodec', got none; "
            "backend='auto' and 'pillow' read it"
        )


@pytest.mark.parametrize(
    ("kind", "mode", "options", "exact"),
    [
        ("webp", "RGB", {"lossless": True}, "RGB"),
        ("webp", "RGBA", {"lossless": True, "exact": True}, "RGBA"),
        ("bmp", "RGB", {}, "RGB"),
        ("bmp", "L", {}, "L"),
        ("bmp", "1", {}, "L"),
        ("bmp", "P", {}, "RGB"),
        ("gif", "L", {}, "RGB"),
    ],
)
def test_other_lossless_formats_unchanged(kind, mode, options, exact):
    result = decode_image(encode(kind, mode, **options), "unchanged")
    assert np.array_equal(result, chw(draw(mode).convert(exact)))


def test_gif_and_webp_animations_give_the_first_frame():
    for kind, options in (("gif", {}), ("webp", {"lossless": True})):
        first, second = draw("L"), draw("L").rotate(180)
        buffer = io.BytesIO()
        first.save(buffer, kind, save_all=True, append_images=[second], **options)
        assert np.array_equal(decode_image(buffer.getvalue(), "RGB"), chw(first.convert("RGB")))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_interlaced_png(backend, channels, dtype):
    pixels = np.random.default_rng(4).integers(
        0, np.iinfo(dtype).max, (9, 11, channels), dtype, endpoint=True
    )
    passes = [
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ]
    rows = [
        row
        for x, y, dx, dy in passes
        for row in pixels[y::dy, x::dx].astype(pixels.dtype.newbyteorder(">"))
    ]
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(
        ">IIBBBBB", 11, 9, dtype().itemsize * 8, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 1
    )
    data = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )
    result = decode_image(data, "unchanged", backend=backend).numpy()
    assert result.dtype == dtype and np.array_equal(result, pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_narrow_gray_png_is_scaled_to_the_full_range(bits):
    values = list(range(1 << bits))
    packed = int(
        "".join(format(value, f"0{bits}b") for value in values).ljust(
            -(-len(values) * bits // 8) * 8, "0"
        ),
        2,
    )
    row = packed.to_bytes(-(-len(values) * bits // 8), "big")
    data = write_png([row], len(values), bits, 0)
    expected = [value * 255 // ((1 << bits) - 1) for value in values]
    for backend in backends_of(data):
        assert decode_image(data, "unchanged", backend=backend).tolist() == [[expected]]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_16_bit_png(backend, channels):
    data, pixels = deep_png(channels)
    unchanged = decode_image(data, "unchanged", backend=backend)
    assert unchanged.dtype == torch.uint16
    assert np.array_equal(unchanged.numpy(), pixels.transpose(2, 0, 1))
    high = (pixels >> 8).astype(np.uint8).transpose(2, 0, 1)
    rgb = high[:3] if channels > 2 else np.repeat(high[:1], 3, 0)
    assert np.array_equal(decode_image(data, "RGB", backend=backend), rgb)
    rgba = decode_image(data, "RGBA", backend=backend).numpy()
    assert np.array_equal(rgba[:3], rgb)
    assert np.array_equal(rgba[3], high[-1] if channels in (2, 4) else np.full((7, 5), 255))
    luma = np.round(np.tensordot([0.2989, 0.587, 0.114], rgb.astype(float), 1))
    assert np.abs(decode_image(data, "L", backend=backend).numpy()[0] - luma).max() <= (
        0 if channels < 3 else 1
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transparent_colour_makes_alpha_only_where_alpha_is_asked_for(backend):
    rgb = write_png(
        [bytes([1, 2, 3, 4, 5, 6])], 2, 8, 2, chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))
    )
    assert decode_image(rgb, "RGBA", backend=backend)[3].tolist() == [[0, 255]]
    assert decode_image(rgb, "RGB", backend=backend)[:, 0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert decode_image(rgb, "unchanged", backend=backend).shape == (3, 1, 2)
    palette = (chunk(b"PLTE", bytes([9, 8, 7, 6, 5, 4])), chunk(b"tRNS", bytes([0, 200])))
    indexed = write_png([bytes([0, 1])], 2, 8, 3, *palette)
    assert decode_image(indexed, "RGB", backend=backend)[:, 0].tolist() == [[9, 6], [8, 5], [7, 4]]
    for mode in ("RGBA", "unchanged"):
        assert decode_image(indexed, mode, backend=backend)[3].tolist() == [[0, 200]]
    deep, pixels = deep_png(3)
    y, x = 4, 2
    deep, _ = deep_png(3, chunk(b"tRNS", pixels[y, x].astype(">u2").tobytes()))
    alpha = decode_image(deep, "RGBA", backend=backend)[3]
    assert (alpha == 0).nonzero().tolist() == [[y, x]]


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_orientation_is_ignored_by_default_and_applied_on_request(kind, orientation):
    options = {"lossless": True} if kind == "webp" else {}
    plain = encode(kind, **options)
    turned = encode(kind, exif=exif(orientation), **options)
    upright = chw(ImageOps.exif_transpose(Image.open(io.BytesIO(turned))))
    for backend in (*backends_of(plain), "auto"):
        stored = decode_image(plain, backend=backend)
        assert torch.equal(decode_image(turned, backend=backend), stored)
        result = decode_image(turned, backend=backend, apply_orientation=True)
        assert np.array_equal(result, upright)
        result.zero_()  # writable
    assert image_size(turned) == (HEIGHT, WIDTH)


def test_an_xmp_segment_and_a_second_exif_segment_do_not_turn_the_picture():
    data = encode("jpeg")
    segments = [b"http:\0" + exif(6)[6:], exif(8), exif(3)]  # torchcodec looks behind any six bytes
    extra = b"".join(
        b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment for segment in segments
    )
    data = data[:2] + extra + data[2:]
    for backend in (*backends_of(data), "auto"):
        assert torch.equal(
            decode_image(data, backend=backend), decode_image(encode("jpeg"), backend=backend)
        )
        assert read_header(data).orientation == 8


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"MM",
        b"II*\0\xff\xff\xff\xff",
        b"XX*\0\0\0\0\x08",
        exif(6)[6:20],
        exif(6)[6:].replace(b"\x01\x12", b"\x01\x13"),
    ],
)
def test_damaged_exif_counts_as_upright(damage):
    data = encode("jpeg", exif=b"Exif\0\0" + damage)
    for backend in backends_of(data):
        result = decode_image(data, backend=backend, apply_orientation=True)
        assert torch.equal(result, decode_image(encode("jpeg"), backend=backend))


# The result and the input


@for_each("mode", ["RGB", "L", "RGBA", "unchanged"])
@for_each("name", SMALL_FILES)
def test_the_result_is_writable_and_apart_from_the_input(name, mode):
    data = SMALL_FILES[name]
    buffer = bytearray(data)
    for backend in backends_of(data):
        result = decode_image(buffer, mode, backend=backend)
        again = result.clone()
        assert buffer == data
        result.fill_(7)
        assert buffer == data
        assert torch.equal(decode_image(data, mode, backend=backend), again)
        assert result.untyped_storage().nbytes() <= result.numel() * result.element_size() * 2


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: memoryview(bytearray(data)),
        lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8),
        lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8).repeat_interleave(2)[::2],
        lambda data: np.frombuffer(data, np.uint8),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_kind_of_bytes_is_taken(backend, wrap):
    data = encode("png")
    assert np.array_equal(decode_image(wrap(data), backend=backend), chw(draw()))
    assert image_format(wrap(data)) == "png"
    assert image_size(wrap(data)) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("name", SMALL_FILES)
def test_size_and_format_without_decoding(name):
    data = SMALL_FILES[name]
    assert image_format(data) == name.split()[0]
    assert image_size(data) == ((7, 5) if name == "png 16" else (HEIGHT, WIDTH))


# Damage


@pytest.mark.parametrize("name", SMALL_FILES)
def test_every_cut_of_every_kind_is_an_error(name):
    data = SMALL_FILES[name]
    for backend in backends_of(data):
        for length in range(len(data)):
            text = error_of(decode_image, data[:length], backend=backend)
            assert text.startswith("expected ") and ", got " in text and len(text) < 250
            if backend == "pillow":
                assert error_of(check_image, data[:length]) == text
    assert check_image(data) == read_header(data)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's remarks on damaged metadata
@pytest.mark.parametrize("name", SMALL_FILES)
def test_changed_bytes_give_an_image_or_our_error_and_nothing_else(name):
    data, rng = SMALL_FILES[name], random.Random(5)
    for _ in range(250):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 4])):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        mode = rng.choice(["RGB", "L", "RGBA", "unchanged"])
        for backend in backends_of(data):
            try:
                result = decode_image(
                    damaged, mode, backend=backend, apply_orientation=True, max_pixels=1 << 22
                )
            except ImageDecodeError as exc:
                assert str(exc).startswith("expected ")
            else:
                assert result.ndim == 3 and result.dtype in (torch.uint8, torch.uint16)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [
            b"",
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"GIF89a",
            b"RIFF\x10\0\0\0WEBPVP8X",
            b"BM" + bytes(12),
        ]
    ),
    st.binary(max_size=80),
)
def test_any_bytes_behind_a_signature_are_refused(magic, tail):
    assert error_of(decode_image, magic + tail, max_pixels=1 << 20).startswith("expected ")


def test_a_changed_byte_in_png_pixels_is_found_by_its_crc():
    data = bytearray(encode("png"))
    at = data.index(b"IDAT") + 9
    data[at] ^= 1
    assert error_of(decode_image, data) == (
        f"expected a chunk with a matching CRC at byte {at - 13} of a PNG image, got another CRC"
    )


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (b"", "0 bytes"),
        (b"hello world, not an image", "25 bytes that look like text"),
        (b"<!DOCTYPE html><html>", "21 bytes that look like HTML"),
        (b"  <HTML>\n", "9 bytes that look like HTML"),
        (b"<?xml version='1.0'?>", "21 bytes that look like XML or SVG"),
        (b"\x1f\x8b\x08" + bytes(9), "12 bytes that look like gzip data"),
        (b"PK\x03\x04....", "8 bytes that look like a zip archive"),
        (b"II*\x00" + bytes(9), "13 bytes that look like a TIFF image"),
        (b"\0\0\0\x1cftypavif", "12 bytes that look like an AVIF, HEIC or MP4 file"),
        (b"SIMPLE  =                    T", "30 bytes that look like text"),
        (bytes(40), "40 bytes that look like zeros"),
        (b"\x89PN", "3 bytes that look like an image truncated in its first bytes"),
        (b"BM, a text", "10 bytes that look like a BMP image truncated in its header, or text"),
        (b"\xf3\x91\x07\xee", "4 bytes that look like an unknown format"),
    ],
)
def test_other_bytes_are_named_and_not_shown(data, got):
    expected = f"expected a JPEG, PNG, GIF, BMP or WebP image, got {got}"
    assert error_of(decode_image, data) == expected
    assert error_of(image_size, data) == expected
    assert image_format(data) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xd8\xff\xe0", "expected a whole JPEG image, got 4 bytes that end early"),
        (
            b"\xff\xd8\xff\xd9",
            "expected a frame header at byte 2 of a JPEG image, got the pixel data or the end",
        ),
        (
            b"\xff\xd8\xff\xe0\0\1",
            "expected a segment of 2 bytes or more at byte 2 of a JPEG image, got length 1",
        ),
        (
            b"\xff\xd8\xff\xc0\0\x11\x08" + bytes(4) + b"\3\xff\xda" + bytes(12),
            "expected a whole JPEG image, got 26 bytes that end early",
        ),
        (
            b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"x"),
            "expected an IHDR chunk of 13 bytes at byte 8 of a PNG image, got another chunk of 1 bytes",
        ),
        (write_png([], 5, 8, 2), "expected a PNG image of at least 1 x 1 pixels, got 0 x 5"),
        (
            b"GIF89a\1\0\1\0\0\0\0\x99",
            "expected an image, an extension or the trailer at byte 13 of a GIF image, got another block",
        ),
        (
            b"RIFF\x0c\0\0\0WEBPVP9 " + bytes(4),
            "expected a VP8, VP8L or VP8X header at byte 12 of a WEBP image, got another chunk",
        ),
    ],
)
def test_damaged_structure_says_where(data, text):
    assert error_of(decode_image, data) == text


def test_a_decoder_error_is_the_cause():
    with pytest.raises(ImageDecodeError) as caught:
        decode_image(encode("jpeg")[:-20], backend="pillow")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    "error",
    [
        SyntaxError,
        struct.error,
        ValueError,
        OverflowError,
        MemoryError,
        zlib.error,
        Image.DecompressionBombError,
        KeyError,
    ],
)
def test_no_other_exception_escapes(monkeypatch, error):
    def fail(*args):
        raise error("secret")

    monkeypatch.setitem(image_backends._PILLOW_PLUGINS, "png", fail)
    text = error_of(decode_image, encode("png"))
    assert text.endswith(f"bytes that pillow cannot decode ({error.__name__})")
    assert "secret" not in text


# Limits


def test_max_pixels_is_inclusive_and_may_be_raised():
    data = encode("png")
    assert decode_image(data, max_pixels=HEIGHT * WIDTH).shape == (3, HEIGHT, WIDTH)
    assert "expected at most 493 pixels" in error_of(
        decode_image, data, max_pixels=HEIGHT * WIDTH - 1
    )


def test_pillows_own_limit_and_settings_are_neither_used_nor_changed(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    for kind in ("jpeg", "png", "gif", "bmp"):
        assert decode_image(encode(kind)).shape == (3, HEIGHT, WIDTH)
    assert Image.MAX_IMAGE_PIXELS == 5
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_a_gif_frame_beyond_the_screen_is_refused():
    data = bytearray(encode("gif", "L"))
    data[6:10] = struct.pack("<HH", 4, 3)
    assert error_of(decode_image, data) == "expected 3 x 4 pixels as in the header, got 19 x 26"


# Arguments


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            {"mode": "rgb"},
            ValueError,
            "mode must be 'RGB', 'L', 'RGBA' or 'unchanged', got 'rgb'",
        ),
        (
            {"mode": None},
            ValueError,
            "mode must be 'RGB', 'L', 'RGBA' or 'unchanged', got None",
        ),
        (
            {"backend": "cv2"},
            ValueError,
            "backend must be 'auto', 'torchcodec' or 'pillow', got 'cv2'",
        ),
        ({"max_pixels": 0}, ValueError, "max_pixels must be an integer of at least 1, got 0"),
        (
            {"max_pixels": 1e9},
            TypeError,
            "max_pixels must be an integer of at least 1, got 1000000000.0 (float)",
        ),
        (
            {"data": "text"},
            TypeError,
            "expected data as bytes, bytearray, memoryview or a 1-D uint8 tensor or array, got str",
        ),
        (
            {"data": torch.zeros(2, 3)},
            ValueError,
            "expected data as a 1-D uint8 tensor or array, got float32 of shape [2, 3]",
        ),
    ],
)
def test_wrong_arguments_of_decode_image(arguments, kind, text):
    with pytest.raises(kind) as caught:
        decode_image(**{"data": encode("png"), **arguments})
    assert str(caught.value) == text


@NEEDS_TORCHCODEC
def test_torchcodec_names_the_formats_it_is_used_for():
    assert error_of(decode_image, encode("bmp"), backend="torchcodec") == (
        "expected a JPEG or PNG image for backend='torchcodec', got BMP; backend='auto' and 'pillow' read it"
    )


def test_without_torchcodec(monkeypatch):
    image_backends.torchcodec_decoders.cache_clear()
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    try:
        assert np.array_equal(decode_image(encode("png")), chw(draw()))
        assert decode_image(encode("jpeg")).shape == (3, HEIGHT, WIDTH)
        with pytest.raises(ImportError) as caught:
            decode_image(encode("jpeg"), backend="torchcodec")
        assert str(caught.value) == (
            "backend='torchcodec' needs torchcodec 0.16 or newer: pip install \"torchcodec>=0.16\""
        )
    finally:
        image_backends.torchcodec_decoders.cache_clear()


def test_an_old_torchcodec_is_told_once(monkeypatch):
    image_backends.torchcodec_decoders.cache_clear()
    monkeypatch.setattr(image_backends, "version", lambda name: "0.9.1+cpu")
    try:
        what = r"^torchcodec 0\.9\.1\+cpu does not decode images, 0\.16 or newer does: Pillow decodes them in its place"
        with pytest.warns(RuntimeWarning, match=what) as told:
            images = [decode_image(encode("jpeg")) for _ in range(2)]
        assert [warning.filename for warning in told] == [__file__]
        assert all(
            torch.equal(image, decode_image(encode("jpeg"), backend="pillow")) for image in images
        )
    finally:
        image_backends.torchcodec_decoders.cache_clear()


def test_threads_get_the_same_pixels():
    files = list(SMALL_FILES.values()) * 8
    expected = [decode_image(data) for data in files]
    started = threading.Barrier(4)

    def work(part):
        started.wait()
        return [decode_image(data) for data in files[part::4]]

    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(work, range(4)))
    for part, results in enumerate(parts):
        assert all(torch.equal(a, b) for a, b in zip(results, expected[part::4], strict=True))


# Encoding


@pytest.mark.parametrize(
    ("format", "channels"),
    [("png", 1), ("png", 2), ("png", 3), ("png", 4), ("bmp", 1), ("bmp", 3), ("gif", 1)],
)
def test_lossless_formats_round_trip(format, channels):
    image = torch.from_numpy(chw(draw({1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels])))
    data = encode_image(image, format)
    assert image_format(data) == format
    expected = image.expand(3, -1, -1) if format == "gif" else image
    assert torch.equal(decode_image(data, "unchanged"), expected)
    assert (
        data == encode_image(image.numpy(), format) == encode_image(tv_tensors.Image(image), format)
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(20, 30), (1, 1), (3, 1), (1, 4)])
def test_16_bit_png_round_trips(size, channels):
    image = torch.from_numpy(
        np.random.default_rng(1).integers(0, 1 << 16, (channels, *size)).astype(np.uint16)
    )
    data = encode_image(image, "png")
    for backend in backends_of(data):
        result = decode_image(data, "unchanged", backend=backend)
        assert result.dtype == torch.uint16 and np.array_equal(result.numpy(), image.numpy())
    with Image.open(io.BytesIO(data)) as picture:
        picture.verify()


@pytest.mark.parametrize("format", ["jpeg", "webp", "gif"])
def test_lossy_formats_are_near_and_repeatable(format):
    image = torch.from_numpy(chw(draw()))
    data = encode_image(image, format)
    assert data == encode_image(image.clone(), format)
    assert (decode_image(data).int() - image.int()).abs().float().mean() < 12
    if format != "gif":
        assert len(encode_image(image, format, quality=20)) < len(data)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_pil_images_are_encoded(mode):
    picture = draw().convert(mode)
    data = encode_image(picture, "png")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), np.asarray(picture))
    with pytest.raises(
        ValueError,
        match=r"expected a PIL image of mode L, LA, RGB or RGBA, got P: convert\('RGB'\) it",
    ):
        encode_image(draw().convert("P"), "png")


def test_jpg_is_jpeg():
    assert encode_image(IMAGE, "jpg") == encode_image(IMAGE, "jpeg")


def test_jpeg_bytes_are_pillows_and_strides_do_not_matter():
    buffer = io.BytesIO()
    draw().save(buffer, "jpeg", quality=95)
    last = torch.from_numpy(np.array(draw())).permute(2, 0, 1)
    assert encode_image(last) == encode_image(last.contiguous()) == buffer.getvalue()


IMAGE = torch.zeros(3, 4, 5, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            (IMAGE, "tiff"),
            ValueError,
            "format must be 'bmp', 'gif', 'jpeg', 'png' or 'webp', got 'tiff'",
        ),
        ((IMAGE, "jpeg", 0), ValueError, "quality must be an integer of at least 1, got 0"),
        ((IMAGE, "jpeg", 101), ValueError, "expected quality from 1 to 100, got 101"),
        (
            (IMAGE, "jpeg", 9.5),
            TypeError,
            "quality must be an integer of at least 1, got 9.5 (float)",
        ),
        (
            ([[1]], "png"),
            TypeError,
            "expected image as a tensor, an array or a PIL image, got list",
        ),
        (
            (IMAGE[0],),
            ValueError,
            "expected image as uint8 [C, H, W] with C of 1, 3 for jpeg, got uint8 [4, 5]",
        ),
        (
            (IMAGE.permute(1, 2, 0), "jpeg"),
            ValueError,
            "expected image as uint8 [C, H, W] with C of 1, 3 for jpeg, got uint8 [4, 5, 3]; permute(2, 0, 1) puts the "
            "channels of [H, W, C] first",
        ),
        (
            (IMAGE.float(), "png"),
            ValueError,
            "expected image as uint8 or uint16 [C, H, W] with C of 1, 2, 3, 4 for png, got float32 [3, 4, 5]",
        ),
        (
            (IMAGE[:2], "jpeg"),
            ValueError,
            "expected image as uint8 [C, H, W] with C of 1, 3 for jpeg, got uint8 [2, 4, 5]",
        ),
        (
            (IMAGE[:, :0], "bmp"),
            ValueError,
            "expected image as uint8 [C, H, W] with C of 1, 3 for bmp, got uint8 [3, 0, 5]",
        ),
        (
            (torch.zeros(3, 1, 70000, dtype=torch.uint8), "webp"),
            ValueError,
            "expected sides that webp can hold, got 1 x 70000",
        ),
        (
            (torch.zeros(3, 1, 70000, dtype=torch.uint8), "jpeg"),
            ValueError,
            "expected sides that jpeg can hold, got 1 x 70000",
        ),
    ],
)
def test_wrong_arguments_of_encode_image(arguments, kind, text):
    with pytest.raises(kind) as caught:
        encode_image(*arguments)
    assert str(caught.value) == text


# Crop or pad


@pytest.mark.parametrize(
    ("size", "target", "expected"),
    [
        (7, 4, [2, 3, 4, 5]),
        (8, 5, [2, 3, 4, 5, 6]),
        (5, 4, [1, 2, 3, 4]),
        (6, 3, [2, 3, 4]),
        (4, 7, [0, 1, 2, 3, 4, 0, 0]),
        (5, 8, [0, 1, 2, 3, 4, 5, 0, 0]),
        (3, 4, [1, 2, 3, 0]),
        (3, 6, [0, 1, 2, 3, 0, 0]),
        (3, 3, [1, 2, 3]),
    ],
)
def test_crop_or_pad_offsets_are_tensorflows(size, target, expected):
    line = torch.arange(1, size + 1)
    assert resize_with_crop_or_pad(line[None], 1, target).tolist() == [expected]
    assert resize_with_crop_or_pad(line[:, None], target, 1).flatten().tolist() == expected


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.float32, torch.bool, torch.int64]
)
@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6), (2, 3, 4, 6)])
def test_crop_or_pad_keeps_dtype_and_leading_sizes(dtype, shape):
    result = resize_with_crop_or_pad(torch.ones(shape, dtype=dtype), 2, 9)
    assert result.dtype == dtype and result.shape == (*shape[:-2], 2, 9)


@pytest.mark.parametrize("kind", [tv_tensors.Image, tv_tensors.Video, tv_tensors.Mask])
@pytest.mark.parametrize("target", [(2, 9), (3, 4), (8, 8), (4, 6)])
def test_crop_or_pad_keeps_tv_tensors(kind, target):
    result = resize_with_crop_or_pad(kind(torch.ones(2, 3, 4, 6, dtype=torch.uint8)), *target)
    assert type(result) is kind and result.shape[-2:] == target


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((IMAGE, 0, 3), ValueError, "height must be an integer of at least 1, got 0"),
        ((IMAGE, 3, -1), ValueError, "width must be an integer of at least 1, got -1"),
        ((IMAGE, 3.0, 1), TypeError, "height must be an integer of at least 1, got 3.0 (float)"),
        ((IMAGE[0, 0], 3, 1), ValueError, "expected image of shape [..., H, W], got [5]"),
        ((np.zeros((3, 4)), 3, 1), TypeError, "expected image as a tensor of pixels, got ndarray"),
        (
            (tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format="XYXY", canvas_size=(4, 4)), 3, 1),
            TypeError,
            "expected image as a tensor of pixels, got BoundingBoxes",
        ),
    ],
)
def test_wrong_arguments_of_crop_or_pad(arguments, kind, text):
    with pytest.raises(kind) as caught:
        resize_with_crop_or_pad(*arguments)
    assert str(caught.value) == text


# Headers


def test_bytes_between_jpeg_segments_and_fill_bytes_are_passed_over():
    data = encode("jpeg")
    at = data.index(b"\xff\xdb")
    odd = data[:at] + b"\x00\x11\xff\xff" + data[at:]
    assert image_size(odd) == (HEIGHT, WIDTH)
    assert read_header(odd).channels == 3
