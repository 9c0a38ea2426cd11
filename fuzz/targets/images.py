"""Encoded images: Pillow's own reading, every backend, stacks and regions: the same pixels, or
ImageDecodeError.
"""

import io
import struct
import warnings
import zlib
from itertools import pairwise

import numpy as np
import torch
from PIL import Image as PillowImage
from tools import damage, outcome
from torchvision.transforms.v2 import functional

from torch_tfrecord import Image, ImageDecodeError, decode_image
from torch_tfrecord.media.codec import image_size, open_image
from torch_tfrecord.media.crop_jobs import decode_region, resizes_in_core
from torch_tfrecord.native import optional_module

COMPILED = True
_MOST_PIXELS = 1 << 16  # larger sizes are refused by the header


def _encoded(kind, mode="RGB", size=(21, 18), **options):
    noise = np.random.default_rng(1).integers(0, 60, (size[1], size[0], 3), np.uint8)
    rows = np.linspace(0, 190, size[1], dtype=np.uint8)[:, None, None]
    buffer = io.BytesIO()
    PillowImage.fromarray(noise + rows).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def _scans(count):
    """A progressive JPEG whose last scan is repeated: small, and slow to read."""
    data = _encoded("jpeg", progressive=True)
    last = data.rfind(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:]


def seeds():
    jpeg = _encoded("jpeg")
    # a second SOS behind the last row
    twice = jpeg[:-2] + jpeg[jpeg.find(b"\xff\xda") : -2] + jpeg[-2:]
    frame = jpeg.find(b"\xff\xc0")
    again = jpeg[:-2] + jpeg[frame : frame + 19] + jpeg[-2:]  # a second SOF there
    kinds = [
        jpeg,
        _encoded("jpeg", subsampling=0),
        _encoded("jpeg", "L"),
        _encoded("jpeg", progressive=True),
    ]
    kinds += [
        _encoded("jpeg", "CMYK"),
        _encoded("jpeg", restart_marker_blocks=1),
        twice,
        again,
        _scans(3),
        _scans(90),
    ]
    kinds += [
        _encoded("png"),
        _encoded("png", "P"),
        _encoded("png", "LA"),
        _encoded("png", "I;16"),
        _encoded("png", "1"),
    ]
    return [
        *kinds,
        _encoded("gif"),
        _encoded("bmp"),
        _encoded("webp"),
        _encoded("webp", lossless=True),
    ]


def mutate(rng, data):
    if data[:2] == b"\xff\xd8" and rng.random() < 0.5:
        return _damage_segments(rng, data)
    if data[1:4] == b"PNG" and rng.random() < 0.6:
        return _damage_chunks(rng, data)
    return damage(rng, data, 3)


def _damage_segments(rng, data):
    """A marker's segment damaged, left out, doubled, or put elsewhere."""
    starts = [
        at for at in range(len(data) - 1) if data[at] == 255 and data[at + 1] not in (0, 255)
    ] + [len(data)]
    parts = [data[begin:end] for begin, end in pairwise(starts)]
    at = rng.randrange(len(parts))
    part = parts.pop(at)
    how = rng.randrange(4)
    if how == 0:
        parts.insert(at, part[:2] + damage(rng, part[2:], 2))
    elif how < 3:
        parts[at:at] = [part] * (how == 1)
        parts.insert(rng.randrange(len(parts) + 1), part)
    return b"".join(parts)


def _damage_chunks(rng, data):
    """A chunk changed, its checksum mended."""
    parts, at = [], 8
    while at < len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        parts.append(data[at + 4 : at + 8 + size])
        at += size + 12
    at = rng.randrange(len(parts))
    parts[at] = parts[at][:4] + damage(rng, parts[at][4:], 2)
    packed = [
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
        for part in parts
    ]
    return data[:8] + b"".join(packed)


def check(data):
    mode = "L" if sum(data[-8:]) % 4 == 0 else "RGB"
    whole, error = outcome(
        decode_image, data, mode, max_pixels=_MOST_PIXELS, errors=ImageDecodeError
    )
    other, other_error = outcome(
        decode_image, data, mode, backend="pillow", max_pixels=_MOST_PIXELS, errors=ImageDecodeError
    )
    opened, header_error = outcome(open_image, data, _MOST_PIXELS, errors=ImageDecodeError)
    if header_error is not None:
        assert error is not None and other_error is not None
        return
    assert whole is None or tuple(whole.shape[1:]) == image_size(data)
    if whole is not None and other is not None:
        assert whole.shape == other.shape and (whole.int() - other.int()).abs().max() <= 0
    stack, _ = outcome(Image(mode)._decoded, [data], [()], [0], errors=ImageDecodeError)
    assert (stack is None) == (whole is None)
    assert stack is None or (stack[0] == whole).all()
    header = opened[1]
    top, left = header.height // 3, header.width // 3
    region = (top, left, header.height - top - header.height // 4, header.width - left)
    _check_job(data, header, mode, region, whole)
    part = decode_region(data, mode, region)
    if part is not None:
        assert whole is not None
        assert (part == whole[:, top : top + region[2], left:].permute(1, 2, 0).numpy()).all()
    if (
        other is not None
        and mode == "RGB"
        and header.format in ("jpeg", "gif", "bmp", "webp")
        and header.channels != 4
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = np.array(PillowImage.open(io.BytesIO(data)).convert("RGB"))
        other = other.permute(1, 2, 0).numpy()
        differs = (pixels != other).any(axis=2)
        # 0 where no frame paints
        assert not other[differs].any() if header.format == "gif" else not differs.any()


def _check_job(data, header, mode, region, whole):
    """A job of the core that resizes the region, and another picture's row behind it."""
    native, channels = optional_module("jpeg"), {"L": 1, "RGB": 3}[mode]
    if native is None:
        return
    kinds = ("bilinear", "bicubic") if resizes_in_core("bilinear") else (None,)
    kind = kinds[data[-9] % len(kinds)] if len(data) > 8 else kinds[0]
    size = tuple(region[2:]) if kind is None else (1 + data[-1] % 40, 1 + data[len(data) // 2] % 40)
    # What is resized, and the window in it, or around it on an axis.
    begins = [0, 0] if kind is None else [data[at] % 9 - 4 for at in (-10, -11)]
    window = [max(side - 2 * begin, 1) for side, begin in zip(size, begins, strict=True)]
    begins = [min(begin, side - 1) for side, begin in zip(size, begins, strict=True)]
    out = np.full((2, *window, channels), 77, np.uint8)
    plans = np.array([[*region, *size, *begins, 0, 0]] * 2)
    options = {"plans": plans, "bicubic": kind == "bicubic", "resizes": kind is not None}
    options |= {"max_pixels": _MOST_PIXELS, "ignores_exif": False}
    left = native.CropJob(None, [data, b""], out.reshape(-1), out.shape, **options, num_left=2)
    made = native.CropJob(None, [data, b""], out.reshape(-1), out.shape, **options)
    optional_module("jobs").run([left])
    if left.left.any():
        assert (out == 77).all() and (left.left == [plans[0], [0] * 10]).all()
        assert header.format == "jpeg" and not header.progressive and header.channels in (1, 3)
        assert left.sizes.tolist() == [[header.height, header.width], [0, 0]]
    out[:] = 77
    optional_module("jobs").run([made])
    assert (out[1] == 77).all() and made.sizes[1].tolist() == [0, 0]
    if made.done:
        assert whole is not None and header.orientation == 1
        assert made.sizes[0].tolist() == [header.height, header.width]
        top, left, height, width = region
        image = whole[None, :, top : top + height, left : left + width]
        if kind is not None:
            image = image.contiguous(memory_format=torch.channels_last)
            options = {"mode": kind, "align_corners": False, "antialias": True}
            image = torch.nn.functional.interpolate(image, size, **options)
        image = functional.crop(image[0], *begins, *window)
        assert (out[0] == image.permute(1, 2, 0).numpy()).all()
