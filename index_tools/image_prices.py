"""The price of each way to encode some pictures: bytes, and how far the pixels are from theirs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import islice

import numpy as np
import torch
from torchvision.transforms.functional import rgb_to_grayscale  # torchvision ships no types

from index_tools._terminal import align, pluralize
from index_tools.pictures import Encoding, map_in_threads
from torch_tfrecord import decode_image
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.progress import ProgressBar

__all__ = ["print_prices"]

_SAMPLE = 100  # pictures
_COLUMNS = ("encoding", "bytes", "ratio", "psnr", "worst_psnr", "ssim", "worst_ssim")
_FORMS = (".0f", ".3f", ".2f", ".2f", ".4f", ".4f")


def print_prices(
    pictures: Iterable[bytes], encoding: Encoding, num_threads: int | None, *, as_json: bool
) -> None:
    """Encode the first 100 pictures in several ways, compare the pixels, and print a table.

    Of all these pictures it has the bytes, and their ratio to those of the files; the median and the
    worst PSNR of RGB in dB, infinite where no pixel differs; the same of the SSIM of luma, 1 where
    none does.

    Args:
        pictures: The bytes of picture files, each of at least 6 x 6 pixels.
        encoding: What becomes of alpha, 16 bits and the orientation.
        num_threads: How many are worked on at once; None for one per processor.
        as_json: Print a line of JSON for each way instead, with null for infinite.

    Raises:
        ImageDecodeError: A picture is damaged.
        ImportError: torchmetrics is missing.
        ValueError: There is no picture.
    """
    with needs_extra("the table", "tools", "torchmetrics"):
        from torchmetrics.functional import image as metrics
    jpeg = encoding._replace(image_format="jpeg", recompress=True)
    ways: dict[str, Encoding | None] = {
        "as they are": None,
        "PNG optimised": encoding._replace(image_format="png"),
        "WebP lossless": encoding._replace(image_format="webp"),
        **{f"JPEG {each}": jpeg._replace(image_quality=each) for each in (100, 95, 90, 85, 75)},
    }
    turns = encoding.orientation == "applied"

    def measure(encoded: bytes) -> list[tuple[float, ...]]:
        target = decode_image(encoded, apply_orientation=turns).float()
        found = []
        for way in ways.values():
            new = way.encode(encoded)[0] if way else encoded
            pixels = decode_image(new, apply_orientation=turns).float()
            qualities = [math.inf, 1]
            if not torch.equal(pixels, target):
                gray = rgb_to_grayscale(torch.stack([pixels, target])).split(1)
                psnr = metrics.peak_signal_noise_ratio(pixels, target, data_range=255.0)
                ssim = metrics.structural_similarity_index_measure(
                    gray[0], gray[1], data_range=255.0
                )
                qualities = [float(psnr), float(ssim)]  # type: ignore[arg-type]
            found.append((len(new), *qualities))
        return found

    sample = islice(pictures, _SAMPLE)
    done = map_in_threads(measure, sample, num_threads)
    found = np.array([*ProgressBar(done, desc="measuring", unit="image")])
    if not len(found):
        raise ValueError("expected at least one picture to measure, got none")
    sizes, middle, worst = found[..., 0].sum(0), np.median(found, 0).T, found.min(0).T
    table = sizes, sizes / sizes[0], middle[1], worst[1], middle[2], worst[2]
    rows = [_COLUMNS]
    for name, *values in zip(ways, *table, strict=True):
        rows.append((name, *map(format, values, _FORMS)))
        if as_json:
            finite = (None if value == math.inf else value for value in values[1:])
            facts = zip(_COLUMNS, (name, int(values[0]), *finite), strict=True)
            print(json.dumps(dict(facts)))
    if not as_json:
        print("\n".join(align(rows, "<>>>>>>")))
        print(
            f"\nmedian and worst of {pluralize(len(found), 'picture')}: PSNR of RGB in dB, SSIM of luma"
        )
