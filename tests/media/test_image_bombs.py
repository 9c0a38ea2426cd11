"""Small images that would cost minutes or gigabytes, and damaged ones: the same for every
decoder.
"""

import contextlib
import io
import re
import resource
import struct
import zlib

import numpy as np
import pytest
import torch
from helpers import pure_python
from image_kinds import decode_stack
from PIL import Image as PillowImage

from torch_tfrecord import (
    Image,
    ImageDecodeError,
    RandomResizedCrop,
    ResizedCenterCrop,
    decode_image,
    encode_example,
    encode_image,
    encode_sequence_example,
    parse_example,
    parse_sequence_example,
    parse_single_example,
)

BACKENDS = ["pillow", "auto"]
with contextlib.suppress(ImportError):
    decode_image(encode_image(torch.zeros(1, 8, 8, dtype=torch.uint8)), backend="torchcodec")
    BACKENDS.append("torchcodec")


def jpeg(height, width, mode="RGB", **options):
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([columns * 3, rows * 4, columns + rows], -1).astype(np.uint8)
    buffer = io.BytesIO()
    PillowImage.fromarray(pixels).convert(mode).save(buffer, "jpeg", **options)
    return buffer.getvalue()


def last_scan(data):
    return data[data.rindex(b"\xff\xda") : -2]


def with_scans(count, height=16, width=16, mode="RGB"):
    """A progressive JPEG whose last scan comes again and again, up to ``count`` scans."""
    data = jpeg(height, width, mode, progressive=True)
    return data[:-2] + last_scan(data) * (count - data.count(b"\xff\xda")) + data[-2:]


def one_scan_for_each_component(repeats):
    """A sequential JPEG (SOF0) whose components have a scan each, all of them again and again."""
    data = bytearray(jpeg(8, 8, subsampling=0))
    scan = data.rindex(b"\xff\xda")
    tables = data[scan + 5 : scan + 11]  # of each component its number and its tables
    # A DC difference of none and an end of block, in Huffman codes of the standard's tables; filled
    # up with ones.
    codes = {b"\x00": b"\x2b", b"\x11": b"\x07"}  # 00 1010 11, 00 00 ...
    parts = [
        b"\xff\xda\x00\x08\x01"
        + tables[2 * n : 2 * n + 2]
        + b"\x00\x3f\x00"
        + codes[bytes(tables[2 * n + 1 : 2 * n + 2])]
        for n in range(3)
    ]
    return bytes(data[:scan]) + b"".join(parts) * repeats + b"\xff\xd9"


def chunk(name, content):
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


@pytest.fixture(params=["compiled", "without"])
def by(request):
    """With and without the compiled decoder of JPEGs."""
    with pure_python(request.param == "without"):
        yield request.param


def crop_one(crop, data, key):
    return Image(crop=crop)._reader("x").from_values([data], [()], [key])


WAYS = {
    "stack": lambda data: decode_stack([data, data], "RGB", [0, 1], 2),
    "centre": lambda data: crop_one(ResizedCenterCrop(8, 8), data, 0),
    "region": lambda data: crop_one(RandomResizedCrop(8, scale=(0.05, 0.2), seed=1), data, 3),
    **{
        backend: lambda data, backend=backend: decode_image(data, backend=backend)
        for backend in BACKENDS
    },
}


# Scans


@pytest.mark.parametrize("count", [101, 1000, 8000])
@pytest.mark.parametrize("way", WAYS)
def test_a_jpeg_of_many_scans_is_refused(by, way, count):
    text = "expected at most 100 scans in a JPEG image of 16 x 16 pixels, got more"
    with pytest.raises(ImageDecodeError, match=f"^{text}$"):
        WAYS[way](with_scans(count))


def test_a_sequential_jpeg_of_many_scans_is_refused(by):
    expected = decode_image(one_scan_for_each_component(1), backend="pillow")
    for decode in WAYS.values():
        assert decode(one_scan_for_each_component(1)).unique().equal(expected.unique())
        with pytest.raises(ImageDecodeError, match="expected at most 100 scans"):
            decode(one_scan_for_each_component(34))


def test_the_scans_of_a_large_picture_are_fewer():
    # 5000 x 8600 x 100 scans is more than 2^31; nothing is decoded.
    data = bytearray(with_scans(60))
    frame = data.index(b"\xff\xc2")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 5000, 8600)
    with pytest.raises(
        ImageDecodeError, match="at most 49 scans in a JPEG image of 5000 x 8600 pixels"
    ):
        decode_image(bytes(data))
    data[frame + 5 : frame + 9] = struct.pack(">HH", 13000, 13000)
    with pytest.raises(
        ImageDecodeError, match="at most 16 scans in a JPEG image of 13000 x 13000 pixels"
    ):
        decode_image(bytes(data))


def test_as_many_scans_as_encoders_write_are_read(by):
    for decode in WAYS.values():
        assert decode(with_scans(100)).dtype == torch.uint8
        assert torch.equal(
            decode(one_scan_for_each_component(33)), decode(one_scan_for_each_component(1))
        )


def test_what_lies_behind_the_end_or_in_a_segment_is_no_scan():
    data = jpeg(16, 16, progressive=True)
    expected = decode_image(data)
    # a film behind a photo, say
    assert torch.equal(decode_image(data + b"\xff\xda\0\2" * 500), expected)
    comment = b"\xff\xfe" + struct.pack(">H", 2002) + b"\xff\xda" * 1000
    scan = data.rindex(b"\xff\xda")
    assert torch.equal(decode_image(data[:scan] + comment + data[scan:]), expected)
    assert torch.equal(decode_image(memoryview(data)), expected)


def test_scans_behind_a_damaged_segment_are_counted():
    # Where it lost its way, libjpeg passes over markers below C0, which have no segment.
    data = with_scans(200)
    first = data.index(b"\xff\xda")
    with pytest.raises(ImageDecodeError, match="at most 100 scans"):
        decode_image(data[: first + 14] + b"\xff\x02\xff\xff" + data[first + 14 :])


# The same for core and fallback


TAILS = {
    "a second scan": last_scan(jpeg(60, 80)),
    "a second frame": jpeg(60, 80)[158:177],
    "a second beginning": b"\xff\xd8",
    "a marker of no meaning": b"\xff\x02\0\4ab",
    "a broken table": b"\xff\xc4\0\4ab",
}


@pytest.mark.parametrize("tail", TAILS)
def test_what_must_not_follow_the_last_row_is_refused(by, tail):
    assert jpeg(60, 80)[158:160] == b"\xff\xc0"
    data = jpeg(60, 80)[:-2] + TAILS[tail] + b"\xff\xd9"
    for decode in WAYS.values():
        with pytest.raises(ImageDecodeError, match="expected a whole JPEG image of 60 x 80 pixels"):
            decode(data)


@pytest.mark.parametrize("tail", [b"junk", b"\xff\xd0", b"\xff\xff", b"\xff\xfe\0\4ab"])
def test_what_may_follow_the_last_row_changes_nothing(by, tail):
    data = jpeg(60, 80)
    for decode in WAYS.values():
        assert torch.equal(decode(data[:-2] + tail + b"\xff\xd9"), decode(data))


# Text of PNGs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [b"zTXta\0\0", b"iTXta\0\1\0\0\0"])
def test_compressed_text_is_not_inflated(backend, kind):
    bomb = chunk(kind[:4], kind[4:] + zlib.compress(bytes(7 << 20), 9))
    buffer = io.BytesIO()
    PillowImage.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)).save(buffer, "png")
    data = buffer.getvalue()
    expected = decode_image(data)
    assert torch.equal(
        decode_image(
            data[:33] + bomb * 20 + data[33:-12] + bomb * 20 + data[-12:], backend=backend
        ),
        expected,
    )


# Run-length coded BMPs


def run_length_bmp(height, width, rows):
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(rows), 0, 0, 256, 0)
    palette = b"".join(bytes([n, n, n, 0]) for n in range(256))
    return b"BM" + struct.pack("<IHHI", 1078 + len(rows), 0, 0, 1078) + header + palette + rows


def test_a_run_length_coded_bmp_has_four_million_pixels_at_most():
    small = decode_image(run_length_bmp(2, 4, b"\4\x09\0\0\1\x07\0\0\0\1"), "L")
    assert small.tolist() == [[[7, 0, 0, 0], [9, 9, 9, 9]]]
    bomb = run_length_bmp(1000, 100_000, b"\1\1\0\0" * 1000)
    with pytest.raises(
        ImageDecodeError,
        match="expected at most 4194304 pixels in a run-length encoded BMP image, got 1000 x 100000",
    ):
        decode_image(bomb)


# max_pixels


def claiming(height, width):
    """A JPEG of some hundred bytes that says it has that many pixels."""
    data = bytearray(jpeg(16, 16, "L"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def readings(spec, data):
    """Every way to read a record's image."""
    record = encode_example({"x": data})
    features = {"x": spec}
    yield lambda: parse_single_example(record, features)["x"]
    for count in (1, 5):
        yield lambda count=count: parse_example([record] * count, features)["x"][0]


CENTRE = ResizedCenterCrop(4, 4)
NORMAL = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "bmp", "webp"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"crop": CENTRE},
        {"crop": RandomResizedCrop(4)},
        {"normalize": NORMAL},
        {"apply_orientation": True},
    ],
)
def test_an_image_has_max_pixels_at_most(by, options, kind):
    buffer = io.BytesIO()
    PillowImage.new("RGB", (9, 7)).save(buffer, kind)
    for read in readings(Image(max_pixels=63, **options), buffer.getvalue()):
        assert read().shape[0] == 3
    for read in readings(Image(max_pixels=62, **options), buffer.getvalue()):
        with pytest.raises(
            ImageDecodeError,
            match=r"expected at most 62 pixels \(max_pixels\), got an image of 7 x 9 = 63",
        ):
            read()


def test_what_a_crop_resizes_to_has_max_pixels_at_most():
    # 4 x 40 to 8 x 80, of which 8 x 8 would be taken.
    data = jpeg(4, 40)
    for read in readings(Image(crop=ResizedCenterCrop(8, 8), max_pixels=640), data):
        assert read().shape == (3, 8, 8)
    for read in readings(Image(crop=ResizedCenterCrop(8, 8), max_pixels=639), data):
        with pytest.raises(
            ImageDecodeError,
            match=r"at most 639 pixels after resizing, got 4 x 40 resized to 8 x 80",
        ):
            read()


@pytest.mark.parametrize(
    "spec", [Image(), Image(crop=CENTRE), Image(crop=CENTRE, normalize=NORMAL)]
)
def test_the_default_is_178956970_pixels(spec):
    for read in readings(spec, claiming(13378, 13377)):
        with pytest.raises(
            ImageDecodeError,
            match=r"at most 178956970 pixels \(max_pixels\), got an image of 13378 x 13377",
        ):
            read()


def test_normalised_whole_images_have_a_quarter_of_that():
    # 45 million pixels are half a gigabyte of float32; nothing is decoded.
    for read in readings(Image(normalize=NORMAL), claiming(6700, 6700)):
        with pytest.raises(
            ImageDecodeError,
            match=r"at most 44739242 pixels \(max_pixels\), got an image of 6700 x 6700",
        ):
            read()


@pytest.mark.parametrize(
    "options", [{}, {"crop": CENTRE}, {"crop": RandomResizedCrop(4)}, {"normalize": NORMAL}]
)
def test_the_largest_jpeg_that_a_header_can_claim_takes_no_memory(by, options):
    data = claiming(65_500, 65_500)
    assert len(data) < 631
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    for read in [*readings(Image(**options), data), lambda: decode_image(data)]:
        with pytest.raises(
            ImageDecodeError, match=r"\(max_pixels\), got an image of 65500 x 65500 = 4290250000"
        ):
            read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_images_of_sequences_have_max_pixels_at_most():
    record = encode_sequence_example({}, {"x": [jpeg(7, 9)] * 2})
    steps = parse_sequence_example([record], None, {"x": Image(max_pixels=63)})[1]["x"]
    assert steps[0][0].shape == (3, 7, 9)
    with pytest.raises(ImageDecodeError, match="expected at most 62 pixels"):
        parse_sequence_example([record], None, {"x": Image(max_pixels=62)})


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"max_pixels": "9"},
            TypeError,
            "max_pixels must be an integer of at least 1, got '9' (str)",
        ),
        (
            {"max_pixels": True},
            TypeError,
            "max_pixels must be an integer of at least 1, got True (bool)",
        ),
        ({"max_pixels": 0}, ValueError, "max_pixels must be an integer of at least 1, got 0"),
        (
            {"max_pixels": 15, "crop": CENTRE},
            ValueError,
            "max_pixels must be an integer of at least 16, got 15",
        ),
    ],
)
def test_wrong_max_pixels(options, kind, text):
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        Image(**options)
