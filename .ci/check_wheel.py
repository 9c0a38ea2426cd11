"""Whether an installed wheel is whole: ``python .ci/check_wheel.py CHECKOUT``, from a folder
outside of the checkout.

Every part runs compiled, libjpeg-turbo is inside, a file that TensorFlow wrote reads as TensorFlow
reads it, and a region of a JPEG image has the pixels of the whole image.
"""

import hashlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import torch_tfrecord
from torch_tfrecord import decode_image, encode_image, read_records
from torch_tfrecord.media.crop_jobs import decode_region
from torch_tfrecord.native import fallback_reason, has_native

PARTS = ("columns", "examples", "frames", "inflate", "jpeg", "memory", "shared")


def check_parts() -> None:
    """Every module of the compiled core loads; `shared` is for Linux only, but built everywhere."""
    missing = {part: reason for part in PARTS if (reason := fallback_reason(part)) is not None}
    if missing or not has_native():
        sys.exit(f"expected every part compiled, got {missing}")


def check_version() -> None:
    """The module says the version that was installed."""
    installed = importlib.metadata.version("torch-tfrecord")
    if torch_tfrecord.__version__ != installed:
        sys.exit(f"expected version {installed}, got {torch_tfrecord.__version__}")


def check_gil() -> None:
    """Importing the compiled core leaves the GIL of a free-threaded Python off (it warns else)."""
    program = "".join(f"import torch_tfrecord.native.{part}\n" for part in PARTS)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"expected a core that imports without a warning, got {done.stderr.strip()}")


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
    got = decode_region(data, "RGB", (17, 33, 40, 50))
    wanted = decode_image(data, backend="pillow").permute(1, 2, 0).numpy()[17:57, 33:83]
    if got is None or not np.array_equal(got, wanted):
        sys.exit(
            "expected a region of a JPEG image with the pixels of the whole image, got other pixels"
        )


if __name__ == "__main__":
    check_parts()
    check_version()
    check_gil()
    check_golden(Path(sys.argv[1]) / "tests" / "data" / "records")
    check_jpeg()
    print("the wheel is whole")
