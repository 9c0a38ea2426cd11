"""decode_stack: several images in one piece of memory, each with the pixels of decode_image,
whatever its kind.
"""

import random
from functools import partial

import numpy as np
import pytest
import torch
from helpers import pure_python
from image_kinds import decode_stack, encode, exif
from PIL import Image as PillowImage

from torch_tfrecord import ImageDecodeError, decode_image
from torch_tfrecord.media import image
from torch_tfrecord.media.headers import read_header
from torch_tfrecord.native import optional_module

NEEDS_LIBJPEG = pytest.mark.skipif(
    optional_module("jpeg") is None, reason="built without libjpeg-turbo's headers"
)


def draw(height, width):
    rows, columns = np.mgrid[:height, :width] / height
    pixels = np.stack(
        [np.sin(a * rows) + np.cos(b * columns * rows) for a, b in ((3, 9), (17, 2), (5, 5))], -1
    )
    noise = np.random.default_rng(0).normal(0, 6, pixels.shape)
    return PillowImage.fromarray((128 + 60 * pixels + noise).clip(0, 255).astype(np.uint8))


PHOTO = draw(45, 61)
KINDS = {
    "4:2:0": encode(PHOTO, quality=93),
    "4:2:2": encode(PHOTO, subsampling=1),
    "4:4:4": encode(PHOTO, subsampling=0, quality=60),
    "RGB": encode(PHOTO, keep_rgb=True),
    "gray": encode(PHOTO.convert("L")),
    "restarts": encode(PHOTO, restart_marker_blocks=3),
    "EXIF": encode(PHOTO, exif=exif(6)),
    "progressive": encode(PHOTO, progressive=True),
    "CMYK": encode(PHOTO.convert("CMYK")),
    "PNG": encode(PHOTO, "png"),
    "PNG with alpha": encode(PHOTO.convert("RGBA"), "png"),
    "WebP": encode(PHOTO, "webp"),
    "bytes behind the end": encode(PHOTO) + b"\0" * 9,
    "comment": encode(PHOTO, comment=b"a picture"),
    "fill bytes": encode(PHOTO).replace(b"\xff\xda", b"\xff\xff\xff\xda"),
    "EXIF with a thumbnail": encode(PHOTO, exif=b"Exif\0\0" + encode(draw(9, 9))),
    # libjpeg warns of bytes before a marker
    "doubtful": encode(PHOTO).replace(b"\xff\xda", b"\0\0\xff\xda"),
}


@pytest.fixture(params=["compiled", "without"])
def by(request):
    """With and without the compiled decoder."""
    if request.param == "compiled" and optional_module("jpeg") is None:
        pytest.skip("built without libjpeg-turbo's headers")
    with pure_python(request.param == "without"):
        yield request.param


def decodable(mode):
    """All kinds that decode_image reads, with what it gives."""
    found = {}
    for name, data in KINDS.items():
        try:
            found[name] = decode_image(data, mode)
        except ImageDecodeError:
            assert name == "doubtful"
    return found


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_each_image_is_what_decode_image_gives(by, mode):
    expected = decodable(mode)
    rows = random.Random(0).sample(range(len(expected) + 3), len(expected))
    stack = decode_stack([KINDS[name] for name in expected], mode, rows, len(expected) + 3)
    assert stack.shape == (len(expected) + 3, {"RGB": 3, "L": 1, "RGBA": 4}[mode], 45, 61)
    assert stack.dtype == torch.uint8 and stack.permute(0, 2, 3, 1).is_contiguous()
    for row, (name, pixels) in zip(rows, expected.items(), strict=True):
        assert torch.equal(stack[row], pixels), name


def test_images_of_several_sizes_and_no_images(by):
    values = [KINDS["4:2:0"], encode(draw(45, 60))]
    assert decode_stack(values, "RGB", [0, 1], 2) is None
    assert decode_stack([], "RGB", [], 0) is None


def is_refused(data):
    """Whether both refuse it, in the same words."""
    with pytest.raises(ImageDecodeError) as expected:
        decode_image(data)
    with pytest.raises(ImageDecodeError) as found:
        decode_stack([KINDS["4:2:0"], data, KINDS["gray"]], "RGB", [0, 1, 2], 3)
    return str(found.value) == str(expected.value)


def test_what_libjpeg_would_read_and_decode_image_refuses(by):
    data, thumbnail = KINDS["4:2:0"], KINDS["EXIF with a thumbnail"]
    assert data.endswith(b"\xff\xd9") and thumbnail.index(b"\xff\xd9") < thumbnail.rindex(
        b"\xff\xda"
    )
    assert is_refused(data[:-2]) and is_refused(data[:-1])  # all pixels are there
    assert is_refused(thumbnail[:-2])  # whose end marker is not the picture's
    assert is_refused(KINDS["bytes behind the end"][:-11] + b"\xff\xd8\0\0")
    for length in (0, 1):  # of a comment; two bytes of it are the length itself
        assert is_refused(data[:2] + b"\xff\xfe" + length.to_bytes(2, "big") + data[2:])
    frame = data.index(b"\xff\xc0") + 4
    assert is_refused(data[:frame] + b"\x0c" + data[frame + 1 :])  # 12 bits
    assert (
        is_refused(data[: data.index(b"\xff\xda")])
        and is_refused(data[:3])
        and is_refused(data[:12])
    )


@pytest.mark.daily
def test_changed_headers_give_what_decode_image_gives(by):
    rng = random.Random(9)
    compared = refused = 0
    for name, data in KINDS.items():
        scan = max(data.find(b"\xff\xda"), 40)
        for _ in range(150 if "EXIF" not in name else 20):
            damaged = bytearray(data)
            for _ in range(rng.choice([1, 1, 3])):
                damaged[rng.randrange(scan + 14)] = rng.choice(
                    [0, 1, 2, 8, 255, 0xD9, rng.randrange(256)]
                )
            damaged = bytes(damaged)
            try:
                expected = decode_image(damaged)
            except ImageDecodeError:
                with pytest.raises(ImageDecodeError):
                    decode_stack([damaged], "RGB", [0], 1)
                refused += 1
            else:
                assert torch.equal(decode_stack([damaged], "RGB", [0], 1)[0], expected), name
                compared += 1
    assert compared > 300 and refused > 300


def test_no_memory_is_taken_before_all_sizes_are_known(by, monkeypatch):
    def refuse(*_):
        raise AssertionError("memory was taken")

    monkeypatch.setattr(image, "empty_batch", refuse)
    data = KINDS["4:2:0"]
    at = data.index(b"\xff\xc0") + 5
    huge = data[:at] + (13_000).to_bytes(2, "big") * 2 + data[at + 4 :]
    assert decode_stack([huge, data], "RGB", [0, 1], 2) is None
    assert decode_stack([data, huge], "RGB", [0, 1], 2) is None
    too_large = data[:at] + (14_000).to_bytes(2, "big") * 2 + data[at + 4 :]
    for values in ([too_large, data], [data, too_large]):
        with pytest.raises(ImageDecodeError, match="14000 x 14000"):
            decode_stack(values, "RGB", [0, 1], 2)


@NEEDS_LIBJPEG
def test_plain_images_are_found_by_their_headers():
    plain_sizes = partial(optional_module("jpeg").plain_sizes, max_pixels=45 * 61)
    not_plain = {"CMYK", "PNG", "PNG with alpha", "WebP", "doubtful"}
    values = list(KINDS.values())
    found = plain_sizes(values)
    assert found.dtype == np.int64
    expected = [[0, 0] if name in not_plain else [45, 61] for name in KINDS]
    assert found.tolist() == expected
    data = KINDS["4:2:0"]
    assert not plain_sizes([data[:end] for end in range(len(data))]).any()
    view = memoryview(b"x" + data)[1:]
    found = plain_sizes([view, bytearray(data), None, data]).tolist()
    assert found == [[45, 61], [45, 61], [0, 0], [45, 61]]
    assert plain_sizes([]).tolist() == []
    assert plain_sizes([data], max_pixels=45 * 61 - 1).tolist() == [[0, 0]]


@NEEDS_LIBJPEG
def test_what_is_found_plain_has_a_sound_header():
    plain_sizes, rng = optional_module("jpeg").plain_sizes, random.Random(10)
    count = 0
    for name, data in KINDS.items():
        scan = max(data.find(b"\xff\xda"), 40) + 14
        for _ in range(600):
            damaged = bytearray(data)
            for _ in range(rng.choice([1, 2])):
                at = (
                    rng.randrange(scan)
                    if rng.random() < 0.8
                    else rng.randrange(len(damaged) - 2, len(damaged))
                )
                damaged[at] = rng.choice([0, 1, 2, 8, 255, 0xD9, rng.randrange(256)])
            damaged = bytes(
                damaged[: rng.choice([len(damaged), len(damaged), rng.randrange(len(damaged))])]
            )
            if plain_sizes([damaged], 1 << 30).tolist() == [[45, 61]]:
                count += 1
                header = read_header(damaged)
                assert (header.format, header.height, header.width, header.bits) == (
                    "jpeg",
                    45,
                    61,
                    8,
                ), name
                assert header.channels in (1, 3) and b"\xff\xd9" in damaged[header.scan :], name
    assert count > 1000


def read_images(images, rows, out):
    """Which of them a job decodes, each to its row."""
    height, width = out.shape[1:3]
    plans = np.array([[0, 0, height, width, height, width, 0, 0, 0, 0]] * len(images))
    job = optional_module("jpeg").CropJob(
        None,
        images,
        out.reshape(-1),
        out.shape,
        plans=plans,
        rows=np.array(rows),
        max_pixels=1 << 30,
    )
    assert optional_module("jobs").run([job]) == 1 and job.problem == ""
    return (job.sizes[:, 0] > 0).tolist()


@NEEDS_LIBJPEG
def test_changed_bytes_never_write_outside_their_row():
    rng = random.Random(8)
    for name, data in KINDS.items():
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(rng.choice([1, 1, 5])):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            out = np.full((3, 45, 61, 3), 77, np.uint8)
            read_images([bytes(damaged)], [1], out)
            assert (out[0] == 77).all() and (out[2] == 77).all(), name
