"""Re-encode pictures: the options for it, which keep their bytes and why, many in threads, and the price of
each way: bytes, and how far the pixels are from those before.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import PIL.Image

from index_tools._terminal import align, integer, pluralize
from torch_tfrecord import decode_image
from torch_tfrecord.errors import needs_extra
from torch_tfrecord.media import check_image
from torch_tfrecord.per_process import num_processors
from torch_tfrecord.progress import ProgressBar

__all__ = ["Encoding", "add_image_options", "map_in_threads", "print_prices"]

_T = TypeVar("_T")
_Item = TypeVar("_Item")

_DEFAULT_QUALITY = 90
_SAMPLE = 100  # pictures
_COLUMNS = ("encoding", "bytes", "ratio", "psnr", "worst_psnr", "ssim", "worst_ssim")
_FORMS = (".0f", ".3f", ".2f", ".2f", ".4f", ".4f")
_ORIENTATION = 0x0112  # EXIF's tag
_quality = integer(1, 100)


class Encoding(NamedTuple):
    """How pictures are re-encoded: the options that `add_image_options` adds.

    Attributes:
        image_format: "jpeg", "png" (optimised) or "webp" (lossless).
        image_quality: 1 to 100, for JPEG.
        drop_alpha: Leave out alpha; else JPEG, which has none, is not made of pictures with alpha.
        to_8bit: Drop the lower half of 16-bit values; else such pictures keep their bytes.
        recompress: Also encode JPEG files as JPEG, so that they lose a second time.
        orientation: "kept": EXIF's orientation is carried over; "applied": the pixels are turned.
    """

    image_format: Literal["jpeg", "png", "webp"] = "jpeg"
    image_quality: int = _DEFAULT_QUALITY
    drop_alpha: bool = False
    to_8bit: bool = False
    recompress: bool = False
    orientation: Literal["kept", "applied"] = "kept"

    @classmethod
    def take(cls, options: dict[str, Any]) -> Encoding | None:
        """Take these options out of those of a verb; None where every picture keeps its bytes.

        Raises:
            ValueError: An option would have no effect.
        """
        format, quality, *others = map(options.pop, cls._fields)
        if quality and format in ("png", "webp"):
            raise ValueError(f"--image-quality is for JPEG: {format} is lossless here")
        if format or quality:
            return cls(format or "jpeg", quality or _DEFAULT_QUALITY, *others)
        if others != [False, False, False, "kept"]:
            raise ValueError(
                "--drop-alpha, --to-8bit, --recompress and --orientation need --image-format or "
                "--image-quality: otherwise no image is re-encoded"
            )
        return None

    def encode(self, encoded: bytes) -> tuple[bytes, str]:
        """The picture in this encoding, or its own bytes and why; without a reason where it is such
        a picture already, and the other would not be smaller.

        Raises:
            ImageDecodeError: The bytes are no picture, or a damaged one.
        """
        header = check_image(encoded, decodes=False)
        turn = header.orientation if self.orientation == "applied" else 1
        is_same = header.format == self.image_format and turn == 1
        if is_same and self.image_format == "jpeg" and not self.recompress:
            check_image(encoded)
            return encoded, ""
        pixels = decode_image(encoded, "unchanged")
        # Takes a second: not for pictures that stay as they are.
        from torchvision.transforms.functional import to_pil_image

        if pixels.element_size() > 1 and not self.to_8bit:
            # half of the bits would be lost, for example of a depth map
            return encoded, "16-bit"
        # A file may declare one colour transparent without an alpha channel.
        full = decode_image(encoded, "RGBA", apply_orientation=turn != 1)
        is_opaque = len(pixels) in (1, 3) and bool((full[3] == 255).all())
        if is_opaque or self.drop_alpha:
            full = full[:1] if len(pixels) < 3 else full[:3]
        elif self.image_format == "jpeg":
            return encoded, "alpha"
        # Without `exact`, WebP changes the colours where all is transparent.
        lossless = {"png": {"optimize": True}, "webp": {"lossless": True, "exact": True}}
        options: Any = lossless.get(self.image_format, {"quality": self.image_quality})
        if header.orientation != turn:
            options["exif"] = exif = PIL.Image.Exif()
            exif[_ORIENTATION] = header.orientation
        buffer = io.BytesIO()
        try:
            # The second picture of a JPEG is a preview.
            picture: Any = PIL.Image.open(io.BytesIO(encoded))
            if header.format != "jpeg" and getattr(picture, "n_frames", 1) > 1:
                return encoded, "animation"
            to_pil_image(full).save(buffer, self.image_format, **options)
        except (OSError, ValueError):
            return encoded, "too large"  # sides over 65,535 pixels, for WebP over 16,383
        new = buffer.getvalue()
        return (encoded if is_same and len(new) >= len(encoded) else new), ""


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `Encoding.take` takes."""
    parser.add_argument(
        "--image-format",
        choices=("jpeg", "png", "webp"),
        help="encode images so: jpeg loses, png (optimised) and webp do not (default: each keeps its bytes)",
    )
    parser.add_argument(
        "--image-quality",
        "--jpeg-quality",
        type=lambda text: text if text == "table" else _quality(text),
        metavar="Q|table",
        help=f"of JPEG, 1 to 100 (default: {_DEFAULT_QUALITY}); `table` writes nothing, and prints what each choice "
        "costs",
    )
    flag = partial(parser.add_argument, action="store_true")
    flag("--drop-alpha", help="also re-encode images with alpha, without it")
    flag("--to-8bit", help="also re-encode 16-bit images, with the upper 8 bits")
    flag("--recompress", help="also re-encode JPEG files as JPEG, which lose a second time")
    parser.add_argument(
        "--orientation",
        choices=("kept", "applied"),
        default="kept",
        help="of re-encoded images: carry EXIF's over, or turn the pixels (default: %(default)s)",
    )


def map_in_threads(
    task: Callable[[_Item], _T], items: Iterable[_Item], num_threads: int | None
) -> Iterator[_T]:
    """`map` with threads (decoding releases the GIL), in order, with few results waiting; None for
    one thread per processor.
    """
    most = num_threads or num_processors()
    # not daemons: Python cannot end while they are in torch
    with ThreadPoolExecutor(most, "tfrecord-images") as pool:
        begun = (pool.submit(task, item) for item in items)
        # as many wait as are being worked on: the writer is faster than the decoders
        waiting = deque(islice(begun, 2 * most))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(islice(begun, 1))


def print_prices(
    pictures: Iterable[bytes], encoding: Encoding, num_threads: int | None, *, as_json: bool
) -> None:
    """Encode the first 100 pictures in several ways, compare the pixels, and print a table.

    It has the bytes of all these pictures, and their ratio to those of the files; the median and the
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
    import torch

    with needs_extra("the table", "tools", "torchmetrics"):
        from torchmetrics.functional import image as metrics
    from torchvision.transforms.functional import rgb_to_grayscale

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
