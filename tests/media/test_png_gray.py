"""Unusual GIFs, BMPs and PNGs against TensorFlow's pixels, frozen; and gray from a PNG's colours as
libpng has it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_images import NEEDS_TORCHCODEC

from torch_tfrecord import decode_image

FROZEN = dict(np.load(Path(__file__).parents[1] / "data/images/pictures.npz"))
MODES = {"0": "unchanged", "1": "L", "3": "RGB", "4": "RGBA"}
CASES = [
    name for name in FROZEN if name[-1] in MODES and name[-2] == "|" and "one small" not in name
]
# Without a gamma gray is Pillow's, which rounds where libpng cuts; of 16 bits the gamma is that of
# the upper 8.
WITHOUT = (
    "png|1",
    "png unknown sRGB|1",
    "png long sRGB|1",
    "png late gamma|1",
    "png gamma behind palette|1",
    "png 16|1",
)
GRAY_WITHIN = {**dict.fromkeys(WITHOUT, 1), "png 16 gamma|1": 4}
GRAY_WITHIN.update({f"png gamma {value}|1": 1 for value in (0, 15, 97000, 105000, 2**31 - 1)})
# TensorFlow's own libpng, as Pillow, takes none of these for a gamma; torchcodec's takes some.
NO_GAMMA = ("png gamma 0|1", "png gamma 15|1", "png gamma 2147483647|1")


def pixels(case: str, **options) -> np.ndarray:
    name, _, channels = case.partition("|")
    return (
        decode_image(FROZEN[name], MODES.get(channels, "unchanged"), **options)
        .permute(1, 2, 0)
        .numpy()
    )


def difference(found: np.ndarray, expected: np.ndarray) -> int:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    return int(np.abs(found.astype(int) - expected).max())


@pytest.mark.parametrize("case", CASES)
def test_tensorflows_pixels(case):
    if case == "png 16|0" or case == "png 16 gamma|0" or case == "png 16 gray|0":
        # ours has all 16 bits
        assert difference((pixels(case) >> 8).astype(np.uint8), FROZEN[case]) == 0
    else:
        assert difference(pixels(case), FROZEN[case]) <= GRAY_WITHIN.get(case, 0)


@NEEDS_TORCHCODEC
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case[:3] == "png" and case[-1] == "1" and case not in NO_GAMMA],
)
def test_gray_of_torchcodec(case):
    assert difference(pixels(case, backend="torchcodec"), FROZEN[case]) <= GRAY_WITHIN.get(case, 0)


def test_16_bits_are_those_of_decode_png_with_uint16():
    for name in ("png 16", "png 16 gamma", "png 16 gray"):
        assert difference(pixels(name), FROZEN[f"{name}|uint16"]) == 0
    assert difference(pixels("png").astype(np.uint16) * 257, FROZEN["png|uint16"]) == 0


def test_what_a_gif_paints_nothing_on_is_0_in_every_mode():
    for mode in ("RGBA", "L"):
        image = decode_image(FROZEN["gif small"], mode)
        painted = torch.zeros(image.shape[1:], dtype=torch.bool)
        painted[1:3, 2:5] = True
        assert image[:, painted].any(0).all() and not image[:, ~painted].any()
    assert decode_image(FROZEN["gif whole"], "RGBA")[3].unique().tolist() == [255]
