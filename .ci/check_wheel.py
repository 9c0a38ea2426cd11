"""Whether an installed wheel is whole: ``python .ci/check_wheel.py CHECKOUT``, from a folder
outside of the checkout.

Every part runs compiled, libjpeg-turbo is inside, a file that TensorFlow wrote reads as TensorFlow
reads it, and a region of a JPEG image has the pixels of the whole image.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

from torch_tfrecord import decode_image, encode_image, read_records
from torch_tfrecord.images.headers import read_header
from torch_tfrecord.images.regions import Region, decode_region, region_decoder
from torch_tfrecord.native import fallback_reason, has_native

PARTS = ("columns", "frames", "jpeg", "memory", "pixels", "shared")


def check_parts() -> None:
    """Every module of the compiled core loads; `shared` is for Linux only, but built everywhere."""
    missing = {part: reason for part in PARTS if (reason := fallback_reason(part)) is not None}
    if missing or not has_native() or region_decoder() != "libjpeg":
        sys.exit(f"expected every part compiled, got {missing or region_decoder()}")


def check_golden(records: Path) -> None:
    """One file that TensorFlow wrote, record by record."""
    wanted = [
        record["sha256"]
        for record in json.loads((records / "plain.tfrecord.json").read_text())["records"]
    ]
    got = [
        hashlib.sha256(payload).hexdigest() for payload in read_records(records / "plain.tfrecord")
    ]
    if (
        not wanted
        or [full[: len(short)] for full, short in zip(got, wanted, strict=True)] != wanted
    ):
        sys.exit(
            f"{records / 'plain.tfrecord'}: expected the records that TensorFlow reads, got others"
        )


def check_jpeg() -> None:
    """A region decoded alone, against the same pixels of the whole image by another decoder."""
    rows, columns = torch.meshgrid(torch.arange(96), torch.arange(128), indexing="ij")
    image = torch.stack([2 * rows, columns, rows + columns]).to(torch.uint8)
    data = encode_image(image, "jpeg")
    region = Region(17, 33, 40, 50)
    got = decode_region(data, read_header(data), "RGB", region)
    wanted = decode_image(data, backend="pillow").permute(1, 2, 0).numpy()[17:57, 33:83]
    if got is None or not np.array_equal(got, wanted):
        sys.exit(
            "expected a region of a JPEG image with the pixels of the whole image, got other pixels"
        )


if __name__ == "__main__":
    check_parts()
    check_golden(Path(sys.argv[1]) / "tests" / "data" / "records")
    check_jpeg()
    print("the wheel is whole")
