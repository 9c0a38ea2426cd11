"""``tfrecord doctor``: what this installation can do, and how to get what is missing: compiled
parts, image backends, FFmpeg, shared memory of workers, versions.

Everything is tried out, never guessed from versions: a part is compiled if it loads, and shared
memory is available if a DataLoader worker gets some.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from index_tools._terminal import Verb, add_json
from torch_tfrecord.columns.media_decoders import FFMPEG, decoders_obstacle, ffmpeg_version
from torch_tfrecord.images.backends import (
    NVIMGCODEC_PIP,
    TORCHCODEC_PIP,
    nvimgcodec,
    torchcodec_decoders,
)
from torch_tfrecord.images.regions import region_decoder
from torch_tfrecord.native import PURE_PYTHON, fallback_reason, how_to_install
from torch_tfrecord.shared_memory import WorkerMemory

__all__ = ["DOCTOR", "installation_report"]

_DESCRIPTION = """\
Prints which parts of the library run compiled, what decodes images, whether DataLoader workers send
batches through shared memory, the versions of the packages used, and how to install what is missing.
Include it in bug reports. Without the console script: python -m index_tools doctor.

examples:
  tfrecord doctor
  tfrecord doctor > report.txt"""

_PARTS = {
    "frames": "records and checksums",
    "columns": "Examples to tensors",
    "memory": "memory of batches",
    "shared": "memory of workers",
    "pixels": "pixels into batches",
    "jpeg": "regions of JPEG images",
}
_PACKAGES = (
    "torch",
    "torchvision",
    "torchcodec",
    "numpy",
    "Pillow",
    "protobuf",
    "crc32c",
    "fsspec",
)
# A worker that cannot start must not stop the report.
_WORKER_SECONDS = 60

_HEADERS = "apt install libjpeg-dev, dnf install libjpeg-turbo-devel or brew install jpeg-turbo"


def _run(as_json: bool) -> int:
    if not as_json:
        print(installation_report())
        return 0
    sections = _sections()
    rows = {title: {row.name: row.text for row in own} for title, own in sections.items()}
    print(json.dumps({**rows, "Missing": _remedies(sections)}))
    return 0


DOCTOR = Verb(_DESCRIPTION, add_json, _run)


class _Row(NamedTuple):
    """A line of the report, and what to do if something is missing."""

    name: str
    text: str
    remedy: str = ""


def installation_report() -> str:
    """Report in plain text what runs compiled, what decodes, how workers send batches, and what is
    missing.

    Starts one DataLoader worker to see whether it can share memory.

    Returns:
        Lines to read; their form may change. The last part says how to get what is missing.

    Example:
        >>> print(installation_report())  # doctest: +SKIP
        torch_tfrecord 0.1.0, Python 3.12.3, Linux x86_64
        <BLANKLINE>
        Compiled core
          frames       compiled (records and checksums)
          ...
    """
    return _text(_sections())


def _sections() -> dict[str, list[_Row]]:
    return {
        "Compiled core": [_part(name) for name in _PARTS],
        "Images": list(_image_rows()),
        "Sounds and videos": [
            _Row("WAV", "this package (PCM and float samples, not resampled)"),
            _media_row(),
        ],
        "DataLoader workers": [_worker_row()],
        "Versions": [_Row(name, _version(name)) for name in _PACKAGES],
    }


def _remedies(sections: dict[str, list[_Row]]) -> list[str]:
    # one compiler is the remedy of several parts
    return [*dict.fromkeys(row.remedy for own in sections.values() for row in own if row.remedy)]


def _text(sections: dict[str, list[_Row]]) -> str:
    head = f"torch_tfrecord {_version('torch-tfrecord')}, Python {platform.python_version()}, "
    lines = [head + f"{platform.system()} {platform.machine()}"]
    for title, rows in sections.items():
        lines += ["", title, *(f"  {row.name:<11}  {row.text}" for row in rows)]
    missing = [f"  {remedy}" for remedy in _remedies(sections)]
    lines += ["", "Missing", *missing] if missing else ["", "Nothing is missing."]
    return "\n".join(lines)


def _part(name: str) -> _Row:
    reason = fallback_reason(name)
    if reason is None:
        return _Row(name, f"compiled ({_PARTS[name]})")
    # somebody wants the fallback: no compiler is missing
    if reason.startswith(PURE_PYTHON):
        remedy = f"Compiled core: unset {PURE_PYTHON}."
    elif name == "jpeg":
        remedy = f"JPEG regions: {_HEADERS}, then {how_to_install()}; or {NVIMGCODEC_PIP}."
    elif name == "shared" and platform.system() != "Linux":
        remedy = ""  # not available there
    else:
        remedy = f"Compiled core: install a C compiler, then {how_to_install()}."
    return _Row(name, f"Python fallback ({_PARTS[name]}): {reason}", remedy)


def _image_rows() -> Iterator[_Row]:
    whole = "Pillow" if torchcodec_decoders() is None else "torchcodec"
    is_compiled = fallback_reason("jpeg") is None
    text = f"libjpeg-turbo in batches of one size, else {whole}" if is_compiled else whole
    yield _Row("JPEG", text)
    regions = {
        "libjpeg": "libjpeg-turbo",
        "nvimgcodec": "nvImageCodec",
        None: f"none: {whole} decodes the whole image",
    }
    yield _Row("JPEG crops", regions[region_decoder()])
    yield _Row("others", "Pillow (PNG, GIF, BMP, WebP)")
    works, fails = 'decode_image(backend="{}") works', 'decode_image(backend="{}") is not available'
    name = "torchcodec"
    if torchcodec_decoders() is None:
        yield _Row(name, fails.format(name), f"{name}: {TORCHCODEC_PIP}")
    else:
        yield _Row(name, works.format(name))
    # nobody misses this one
    name = "nvimgcodec"
    optional = f"{fails.format(name)} (optional): {NVIMGCODEC_PIP}"
    yield _Row(name, optional if nvimgcodec() is None else works.format(name))


def _media_row() -> _Row:
    obstacle = decoders_obstacle()
    if obstacle is None:
        return _Row(
            "others", f"torchcodec and FFmpeg {ffmpeg_version()} (sounds, resampling, videos)"
        )
    how = {
        "torchcodec is not installed": "pip install torchcodec",
        "torchcodec finds no FFmpeg": FFMPEG,
    }
    remedy = how.get(obstacle, f"install the torchcodec that fits your torch, and FFmpeg: {FFMPEG}")
    return _Row("others", f"not available (optional): {obstacle}: {remedy}")


class _Question(Dataset[str]):
    """Finds out in a worker why it cannot share memory; "" if it can."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> str:
        try:
            WorkerMemory()
        except OSError as error:
            return str(error)
        return ""


def _worker_row() -> _Row:
    # With its own generator, since a loader would draw from torch's global one.
    generator = torch.Generator()
    try:
        loader = DataLoader(
            _Question(),
            batch_size=None,
            num_workers=1,
            timeout=_WORKER_SECONDS,
            generator=generator,
        )
        (obstacle,) = loader
    except (RuntimeError, OSError) as error:
        # torch adds the traceback of the worker below
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        obstacle = f"a worker could not be started ({reason})"
    how = f"by PyTorch itself, with a copy: {obstacle}"
    return _Row("batches", f"sent {how if obstacle else 'through shared memory, without a copy'}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
