"""``tfrecord doctor``: what this installation can do, and how to get what is missing: compiled
parts, image backends, FFmpeg, shared memory of workers, versions.

Everything is tried out, never guessed from versions: a part is compiled if it loads, and shared
memory is available if a DataLoader worker gets some.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from index_tools._terminal import Verb
from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    TFRecordDataset,
    TFRecordWriter,
    decode_image,
    encode_image,
    make_dataloader,
)
from torch_tfrecord.errors import optional_import
from torch_tfrecord.media import decoders_state
from torch_tfrecord.native import (
    PURE_PYTHON,
    fallback_reason,
    how_to_install,
    native_module,
    optional_module,
)
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
    "inflate": "seek points in gzip and zlib files",
    "jpeg": "crops of JPEG images",
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

_HEADERS = {
    "inflate": "Seek points: apt install zlib1g-dev or dnf install zlib-devel",
    "jpeg": "JPEG regions: apt install libjpeg-dev, dnf install libjpeg-turbo-devel or brew install jpeg-turbo",
}


def _run(as_json: bool) -> int:
    if as_json:
        sections = _sections()
        print(json.dumps({**sections, "Missing": _remedies(sections)}))
    else:
        print(installation_report())
    return 0


DOCTOR = Verb(_DESCRIPTION, _run, "--json")


def installation_report() -> str:
    """Report in plain text what runs compiled, what decodes, how workers send batches, and what is
    missing.

    Decodes a region, reads by obstore, and starts a DataLoader worker.

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
    head = f"torch_tfrecord {_version('torch-tfrecord')}, Python {platform.python_version()}, "
    lines = [head + f"{platform.system()} {platform.machine()}"]
    sections = _sections()
    for title, rows in sections.items():
        lines += ["", title, *(f"  {name:<11}  {text}" for name, text in rows.items())]
    missing = [f"  {remedy}" for remedy in _remedies(sections)]
    lines += ["", "Missing", *missing] if missing else ["", "Nothing is missing."]
    return "\n".join(lines)


def _sections() -> dict[str, dict[str, str]]:
    tried = {name: _tried(trial) for name, trial in _TRIALS.items()}
    return {
        "Compiled core": {name: _part(name) for name in _PARTS},
        "Tried out": tried,
        "Images": _image_rows(not tried.get("region", "").startswith(_FAILS)),
        "Sounds and videos": {
            "WAV": "this package (PCM and float samples, not resampled)",
            "others": decoders_state(),
        },
        "Versions": {name: _version(name) for name in _PACKAGES},
    }


def _remedies(sections: dict[str, dict[str, str]]) -> list[str]:
    tried = sections["Tried out"].items()
    remedies = [f"{name}: it {text}" for name, text in tried if text.startswith(_FAILS)]
    remedies += map(_remedy, _PARTS)
    if how := _torchcodec_remedy():
        remedies.append(f"torchcodec: {how}")
    # one compiler is the remedy of several parts
    return [*filter(None, dict.fromkeys(remedies))]


def _part(name: str) -> str:
    reason, what = fallback_reason(name), _PARTS[name]
    return f"Python fallback ({what}): {reason}" if reason else f"compiled ({what})"


def _remedy(name: str) -> str:
    """How to get a part compiled; "" where it is, or where it is not available."""
    reason = fallback_reason(name)
    if reason is None:
        return ""
    # somebody wants the fallback: no compiler is missing
    if reason.startswith(PURE_PYTHON):
        return f"Compiled core: unset {PURE_PYTHON}."
    if name in _HEADERS:
        return f"{_HEADERS[name]}, then {how_to_install()}."
    is_available = name != "shared" or platform.system() == "Linux"
    return f"Compiled core: install a C compiler, then {how_to_install()}." if is_available else ""


def _image_rows(works: bool) -> dict[str, str]:
    torchcodec = not _torchcodec_remedy()
    whole = "torchcodec" if torchcodec else "Pillow"
    is_compiled = works and fallback_reason("jpeg") is None
    return {
        "JPEG": f"libjpeg-turbo in batches of one size, else {whole}" if is_compiled else whole,
        "JPEG crops": (
            "libjpeg-turbo" if is_compiled else f"none: {whole} decodes the whole image"
        ),
        "others": "Pillow (PNG, GIF, BMP, WebP)",
        "torchcodec": f'decode_image(backend="torchcodec") {"works" if torchcodec else "is not available"}',
    }


def _torchcodec_remedy() -> str:
    """How to get torchcodec's image decoders; "" where they are there."""
    try:
        picture = encode_image(torch.zeros(3, 8, 8, dtype=torch.uint8), "jpeg")
        decode_image(picture, backend="torchcodec")
    except ImportError as error:
        return str(error).partition(": ")[2]
    return ""


# Tried out, each with its time: what loads may still fail when it is used.

_FAILS = "fails"
_BYTES = bytes(range(256)) * 4096
_PICTURES = 64


def _tried(trial: Callable[[], str]) -> str:
    began = time.perf_counter()
    try:
        found = trial()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        return f"{_FAILS}: {type(error).__name__}: {reason}"
    if found.startswith("not "):
        return found
    return f"{found}, in {(time.perf_counter() - began) * 1000:.1f} ms"


def _region() -> str:
    picture = torch.arange(64 * 64 * 3).reshape(3, 64, 64).div(48).to(torch.uint8)
    data, out = encode_image(picture, "jpeg"), np.empty((1, 16, 24, 3), np.uint8)
    whole = decode_image(data)[:, 8:24, 16:40].permute(1, 2, 0).numpy()
    native = optional_module("jpeg")
    if native is None:
        return "the whole picture was decoded for 16 x 24 pixels"
    plans = np.array([[8, 16, 16, 24, 16, 24, 0, 0, 0, 0]])
    job = native.CropJob(None, [data], out.reshape(-1), out.shape, plans=plans, max_pixels=1 << 12)
    native_module("jobs").run([job])  # type: ignore[union-attr]
    if job.problem:
        raise RuntimeError(job.problem)
    if not job.done or abs(out[0] - whole.astype(int)).max() > 2:
        raise ValueError("expected the pixels of the whole picture, got others")
    return "libjpeg-turbo decoded 16 x 24 of 64 x 64 pixels"


def _client() -> str:
    module: Any = optional_import("obstore.store", "")
    if module is None:
        return "not available (optional): it comes with the extra remote"
    store = module.MemoryStore()
    store.put("file", _BYTES)
    if bytes(store.get_range("file", start=1000, length=4096)) != _BYTES[1000:5096]:
        raise ValueError("expected the bytes of the file, got others")
    return f"4,096 of {len(_BYTES):,} bytes read by obstore"


def _forked_worker() -> str:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Python's, of forks of processes with threads
        warnings.simplefilter("ignore", DeprecationWarning)
        values = np.arange(1 << 18, dtype=np.float32)
        path = Path(folder, "doctor.tfrecord")
        with TFRecordWriter(path) as writer:
            writer.write({"x": values})
        dataset = TFRecordDataset(
            path, {"x": FixedLenFeature((len(values),), torch.float32)}, index="memory"
        )
        loader = make_dataloader(
            dataset,
            1,
            seed=0,
            num_workers=1,
            multiprocessing_context="fork",
            timeout=_WORKER_SECONDS,
        )
        (batch,) = loader
    if not np.array_equal(batch["x"][0].numpy(), values):
        raise ValueError("expected the values of the batch, got others")
    how = "through shared memory"
    if batch["x"].is_shared():
        how = "by PyTorch itself, with a copy"
        try:
            WorkerMemory()
        except OSError as error:
            how += f": {error}"
    return f"a forked worker read a record and sent {values.nbytes:,} bytes {how}"


def _device() -> str:
    if not torch.cuda.is_available():
        return "not tried: torch finds no GPU of NVIDIA's"
    rows = torch.arange(375)[:, None] * torch.arange(500) // 777
    picture = encode_image(rows.to(torch.uint8).expand(3, -1, -1), "jpeg")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "doctor.tfrecord")
        with TFRecordWriter(path) as writer:
            for _ in range(_PICTURES):
                writer.write({"image": picture})
        features = {"image": Image(crop=RandomResizedCrop(224), decode_on="device")}
        loader = make_dataloader(
            path, _PICTURES, features, seed=0, device="cuda", num_epochs=20, index="memory"
        )
        batches = iter(loader)
        next(batches)
        began = time.perf_counter()
        for _ in batches:
            torch.cuda.synchronize()
        rate = 19 * _PICTURES / (time.perf_counter() - began)
    if loader.stats().get("on_device") != _PICTURES:
        raise RuntimeError("the CPU decoded pictures in its place: see the warnings")
    return f"{torch.cuda.get_device_name()} decoded {rate:,.0f} pictures of 375 x 500 a second"


_TRIALS = {
    "region": _region,
    "worker": _forked_worker,
    "client": _client,
    "device": _device,
}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
