"""The recipe of docs/tensorflow.md for tf.image.resize: what torchvision must be told, and how near
it comes.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode

with np.load(Path(__file__).parents[1] / "data" / "resize.npz") as stored:
    GOLDEN = dict(stored)
SIZES = [(7, 9), (26, 34), (20, 11)]
# Of 255; the largest difference measured is 1.8e-4.
TOLERANCE = 5e-4


def draw(height, width):
    """The picture that TensorFlow was given: a gradient, a moire pattern, hard edges."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [
        (x * 37 + y * 11) % 256,
        (x * y * 5 + 90) % 256,
        np.where((x // 3 + y // 2) % 2, 230, 15),
    ]
    return np.stack(planes, -1).astype(np.uint8)


def picture():
    return torch.from_numpy(draw(13, 17)).permute(2, 0, 1)


def expected(name, size):
    return torch.from_numpy(GOLDEN[f"{name}_{size[0]}x{size[1]}"]).permute(2, 0, 1)


def difference(name, size, **options):
    """Largest difference of torchvision's result on a float picture from TensorFlow's."""
    wanted = expected(name, size)
    found = v2.Resize(size, **options)(picture().float())
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max())


def test_the_stored_picture_is_the_drawn_one():
    assert (GOLDEN["source"] == draw(13, 17)).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_default_is_bilinear_without_antialias(size):
    assert difference("bilinear", size, antialias=False) < TOLERANCE
    assert expected("bilinear", size).dtype == torch.float32


def test_torchvisions_default_is_another_one():
    assert difference("bilinear", (7, 9)) > 50


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("bilinear_antialias", InterpolationMode.BILINEAR),
        ("bicubic_antialias", InterpolationMode.BICUBIC),
    ],
)
def test_with_antialias(name, mode, size):
    assert difference(name, size, interpolation=mode, antialias=True) < TOLERANCE


@pytest.mark.parametrize("size", SIZES)
def test_nearest_is_exact_and_keeps_uint8(size):
    found = v2.Resize(size, interpolation=InterpolationMode.NEAREST_EXACT)(picture())
    assert found.dtype == torch.uint8
    assert found.equal(expected("nearest", size))


def test_nearest_is_not_torchs_nearest():
    assert difference("nearest", (7, 9), interpolation=InterpolationMode.NEAREST) > 200


def test_bicubic_without_antialias():
    # Another kernel (a = -0.75 in torch, -0.5 in TensorFlow), but when enlarging torch's
    # antialiased one is the same.
    bicubic = InterpolationMode.BICUBIC
    assert difference("bicubic", (26, 34), interpolation=bicubic, antialias=False) > 20
    assert difference("bicubic", (26, 34), interpolation=bicubic, antialias=True) < TOLERANCE
    assert difference("bicubic", (7, 9), interpolation=bicubic, antialias=True) > 20


def test_area_is_the_same_at_whole_ratios_only():
    def area(size):
        found = torch.nn.functional.interpolate(picture().float()[None], size, mode="area")[0]
        return float((found - expected("area", size)).abs().max())

    assert area((26, 34)) < TOLERANCE
    assert area((7, 9)) > 50


@pytest.mark.parametrize("size", SIZES)
def test_resizing_uint8_rounds(size):
    found = v2.Resize(size, antialias=False)(picture())
    assert found.dtype == torch.uint8
    assert float((found - expected("bilinear", size)).abs().max()) <= 1


def test_preserve_aspect_ratio():
    wanted = torch.from_numpy(GOLDEN["preserve_aspect_ratio_5x5"]).permute(2, 0, 1)
    assert wanted.shape == (3, 4, 5)
    found = v2.Resize((4, 5), antialias=False)(picture().float())
    assert float((found - wanted).abs().max()) < TOLERANCE
