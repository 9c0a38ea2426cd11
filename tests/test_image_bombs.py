"""Small images that would cost minutes or gigabytes, and damaged ones: the same for every decoder."""

import io
import re
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

from torch_tfrecord import ImageDecodeError, decode_image
from torch_tfrecord.images import backends, regions, scans, stacks
from torch_tfrecord.images.crops import RandomResizedCrop, ResizedCenterCrop
from torch_tfrecord.images.samples import CroppedImages
from torch_tfrecord.images.stacks import decode_stack

HAS_TORCHCODEC = backends.torchcodec_decoders() is not None
BACKENDS = ["pillow", "auto", *(["torchcodec"] if HAS_TORCHCODEC else [])]


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
    # A DC difference of none and an end of block, in Huffman codes of the standard's tables; filled up with ones.
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
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@pytest.fixture(params=["compiled", "without"])
def by(request, monkeypatch):
    """With and without the compiled decoder of JPEGs."""
    if request.param == "without":
        for module in (regions, stacks):
            monkeypatch.setattr(module, "optional_module", lambda _: None)
    return request.param


WAYS = {
    "stack": lambda data: decode_stack([data, data], "RGB", [0, 1], 2),
    "centre": lambda data: CroppedImages("RGB", ResizedCenterCrop(8, 8)).batch([data], [()], [0]),
    "region": lambda data: CroppedImages("RGB", RandomResizedCrop(8, scale=(0.05, 0.2), seed=1)).batch(
        [data], [()], [3]
    ),
    **{backend: lambda data, backend=backend: decode_image(data, backend=backend) for backend in BACKENDS},
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
    with pytest.raises(ImageDecodeError, match="at most 49 scans in a JPEG image of 5000 x 8600 pixels"):
        decode_image(bytes(data))
    data[frame + 5 : frame + 9] = struct.pack(">HH", 13000, 13000)
    with pytest.raises(ImageDecodeError, match="at most 16 scans in a JPEG image of 13000 x 13000 pixels"):
        decode_image(bytes(data))


def test_as_many_scans_as_encoders_write_are_read(by):
    for decode in WAYS.values():
        assert decode(with_scans(100)).dtype == torch.uint8
        assert torch.equal(decode(one_scan_for_each_component(33)), decode(one_scan_for_each_component(1)))


def test_what_lies_behind_the_end_or_in_a_segment_is_no_scan():
    data = jpeg(16, 16, progressive=True)
    expected = decode_image(data)
    assert torch.equal(decode_image(data + b"\xff\xda\0\2" * 500), expected)  # a film behind a photo, say
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


def test_counting_stops_at_the_limit(monkeypatch):
    found = []

    class Counting:
        def search(self, data, position):
            found.append(position)
            return re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]").search(data, position)

    monkeypatch.setattr(scans, "_MARKER", Counting())
    with pytest.raises(ImageDecodeError):
        decode_image(with_scans(8000))
    assert len(found) < 250  # the tables of scans are markers, too


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
        decode_image(data[:33] + bomb * 20 + data[33:-12] + bomb * 20 + data[-12:], backend=backend), expected
    )
