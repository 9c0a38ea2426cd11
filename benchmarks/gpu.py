"""How well a GPU is fed: rates of batches on the host, pinned and on the device; a ResNet-50, and a step of many small
kernels, with one batch again and again and then fed by a loader; beside DALI and nvJPEG where they are installed.

    python benchmarks/gpu.py                          # at most six minutes; draws its own JPEGs
    python benchmarks/gpu.py --photos ~/photos
    python benchmarks/gpu.py --device cpu --seconds 0.2 --batch 4 --fraction 0.01    # whether it runs

Without a GPU it measures what needs none, and says what it left out. "waits" is the share of its time in which the
device has nothing to do: what is missing from the rate with one constant batch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from corpus import Corpora
from lock import WORKS
from workloads import CROP, MEAN, STD

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    RandomResizedCrop,
    TFRecordDataset,
    make_dataloader,
)

__all__: list[str] = []

_CACHE = Path("~/.cache/torch_tfrecord_benchmarks/gpu").expanduser()
_LABEL = {"label": FixedLenFeature((), torch.int64)}
# Batches before the clock starts: cudnn's choice of kernels, and what a loader has made ahead.
_LEAD_IN = 8
_NUM_KERNELS = 2_000


class _Bench:
    """What all measurements share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seconds, self.batch = arguments.seconds, arguments.batch
        self.device = None if arguments.device is None else torch.device(arguments.device)
        self.corpora = Corpora(_CACHE, arguments.photos, arguments.fraction)

    def loader(self, work: str, **options: Any) -> tuple[Any, int]:
        """A loader that never ends, and its batch size."""
        corpus, fraction, size, features = WORKS[work]
        corpora = Corpora(_CACHE, None, fraction * self.corpora.fraction)
        size = min(size, corpora.count(corpus))
        path = corpora.path(corpus)
        return make_dataloader(
            path, size, features, num_epochs=None, drop_last=True, **options
        ), size

    def images(self, **options: Any) -> Any:
        """Random crops with a flip, uint8, and labels."""
        crop = Image(crop=RandomResizedCrop(CROP, horizontal_flip=0.5))
        path, features = self.corpora.path("few-images"), {"image": crop, **_LABEL}
        size = min(self.batch, self.corpora.count("few-images"))
        return make_dataloader(path, size, features, num_epochs=None, drop_last=True, **options)

    def per_second(self, step: Callable[[Any], object], batches: Iterator[Any]) -> float:
        """Steps a second, until the device has done them all."""
        for batch in itertools.islice(batches, _LEAD_IN):
            step(batch)
        self.synchronize()
        done, begin = 0, time.perf_counter()
        while done < 2 or time.perf_counter() < begin + self.seconds:
            step(next(batches))
            done += 1
        self.synchronize()
        return done / (time.perf_counter() - begin)

    def synchronize(self) -> None:
        if self.device is not None and self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def rate(self, loader: Any) -> float:
        """Batches a second that nobody looks at."""
        return self.per_second(lambda batch: None, iter(loader))


def _row(*cells: object) -> None:
    print(
        "|", *(f"{cell:,.2f}" if isinstance(cell, float) else cell for cell in cells), "|", sep=" "
    )


def _table(*names: str) -> None:
    print()
    print("|" + "|".join(f" {name} " for name in names) + "|")
    print("|---|" + "---:|" * (len(names) - 1), flush=True)


def _rates(bench: _Bench) -> None:
    _table("samples a second", "host", "pinned", "on the device", "device/host")
    for work in ("tokens", "embeddings", "40 scalars", "crops"):
        cells = []
        for options in ({}, {"pin_memory": True}, {"device": bench.device}):
            if options and bench.device is None:
                continue
            if bench.device is not None and bench.device.type == "cpu":
                options = {name: value for name, value in options.items() if name != "pin_memory"}
            loader, size = bench.loader(work, **options)
            cells.append(size * bench.rate(loader))
        shares = [f"| {cells[2] / cells[0]:.2f}"] if len(cells) == 3 else ["| left out"] * 3
        _row(work, *(f"| {cell:,.0f}" for cell in cells), *shares)


def _threads(bench: _Bench) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = sorted({1, 2, 4, 8, cores - 1, cores} & {*range(1, cores + 1)})
    _table("images a second, on the host", *(f"{count} threads" for count in counts))
    rates = [bench.batch * bench.rate(bench.images(num_threads=count)) for count in counts]
    _row("RandomResizedCrop 224, uint8", *(f"| {rate:,.0f}" for rate in rates))


class _ResNet:
    """A step of training in bfloat16, channels last."""

    def __init__(self, device: torch.device) -> None:
        self._model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.1, momentum=0.9)
        self._mean, self._std = (
            torch.tensor([255 * value for value in values], device=device).view(3, 1, 1)
            for values in (MEAN, STD)
        )
        self._type = device.type

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        with torch.autocast(self._type, torch.bfloat16):
            images = (batch["image"] - self._mean) / self._std
            images = images.to(memory_format=torch.channels_last)
            loss = torch.nn.functional.cross_entropy(self._model(images), batch["label"])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class _SmallKernels:
    """As many launches as a model of many small layers has."""

    def __init__(self, device: torch.device) -> None:
        self._x = torch.zeros(64, device=device)

    def __call__(self, batch: dict[str, torch.Tensor]) -> None:
        for _ in range(_NUM_KERNELS):
            self._x.add_(1)
        column = next(iter(batch.values()))
        self._x.add_(column[(0,) * column.dim()])


def _constant(loader: Any) -> Iterator[Any]:
    return itertools.repeat(next(iter(loader)))


def _resnet(bench: _Bench, device: torch.device) -> None:
    step = _ResNet(device)
    best = bench.batch * bench.per_second(step, _constant(bench.images(device=device)))
    _table(f"ResNet-50, batch {bench.batch}", "images/s", "of the constant batch", "waits")
    _row("one batch again and again", f"| {best:,.0f}", "| 1", "| 0 %")

    def fed(name: str, batches: Iterator[Any]) -> None:
        rate = bench.batch * bench.per_second(step, batches)
        share = rate / best
        _row(name, f"| {rate:,.0f}", f"| {share:.2f}", f"| {max(1 - share, 0):.0%}")

    fed('make_dataloader(device="cuda")', iter(bench.images(device=device)))
    moved = (
        {name: column.to(device) for name, column in batch.items()} for batch in bench.images()
    )
    fed("make_dataloader, batch.to(device)", moved)
    if (batches := _dali(bench, device)) is not None:
        fed("DALI, pictures decoded on the device", batches)


def _dali(bench: _Bench, device: torch.device) -> Iterator[Any] | None:
    try:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali import tfrecord as tfrec
        from nvidia.dali.plugin.pytorch import DALIGenericIterator
    except ImportError:
        print("left out: DALI is not installed")
        return None
    path = bench.corpora.path("few-images")
    decoder = "cpu" if device.type == "cpu" else "mixed"

    @pipeline_def(
        batch_size=bench.batch,
        num_threads=max((os.cpu_count() or 1) - 1, 1),
        device_id=None if device.type == "cpu" else device.index or 0,
    )
    def pipeline() -> Any:
        values = fn.readers.tfrecord(
            path=str(path),
            index_path=str(path.with_suffix(".idx")),
            random_shuffle=True,
            features={
                "image": tfrec.FixedLenFeature((), tfrec.string, ""),
                "label": tfrec.FixedLenFeature((), tfrec.int64, -1),
            },
        )
        image = fn.decoders.image_random_crop(
            values["image"], device=decoder, output_type=types.RGB
        )
        image = fn.resize(image, resize_x=CROP, resize_y=CROP)
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.UINT8,
            output_layout="CHW",
            mean=[0.0],
            std=[1.0],
            mirror=fn.random.coin_flip(),
        )
        return image, values["label"]

    batches = DALIGenericIterator(pipeline(), ["image", "label"], auto_reset=True)
    return (
        {"image": batch["image"], "label": batch["label"].flatten().to(device)}
        for _ in itertools.count()
        for (batch,) in batches
    )


def _kernels(bench: _Bench, device: torch.device) -> None:
    step = _SmallKernels(device)
    works = {
        "tokens": lambda: iter(bench.loader("tokens", device=device)[0]),
        "images": lambda: iter(bench.images(device=device)),
    }
    best = bench.per_second(step, _constant(bench.loader("tokens", device=device)[0]))
    _table(f"a step of {_NUM_KERNELS:,} small kernels", "ms", "times the constant batch")
    _row("one batch again and again", f"| {1000 / best:.1f}", "| 1")
    for name, batches in works.items():
        rate = bench.per_second(step, batches())
        _row(f"beside {name}", f"| {1000 / rate:.1f}", f"| {best / rate:.2f}")


def _nvjpeg(bench: _Bench, device: torch.device) -> None:
    if device.type != "cuda":
        print("left out: nvJPEG needs cuda")
        return
    features = {"image": FixedLenFeature((), bytes)}
    ds = TFRecordDataset(bench.corpora.path("few-images"), features)
    encoded = [
        torch.frombuffer(bytearray(ds[n]["image"]), dtype=torch.uint8)
        for n in range(min(256, len(ds)))
    ]
    try:
        rate = bench.per_second(
            lambda batch: torchvision.io.decode_jpeg(batch, device=device),
            itertools.repeat(encoded),
        )
    except (RuntimeError, AttributeError) as error:
        print(f"left out: nvJPEG by torchvision ({error})")
        return
    _table("whole pictures", "images a second")
    _row("nvJPEG by torchvision, one thread", f"| {len(encoded) * rate:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else None)
    parser.add_argument("--photos", type=Path, help="a folder of .jpg files; drawn ones otherwise")
    parser.add_argument("--batch", type=int, default=256, help="pictures in a batch")
    parser.add_argument("--seconds", type=float, default=6.0, help="at least, for a measurement")
    parser.add_argument("--fraction", type=float, default=1.0, help="how much data to write")
    bench = _Bench(parser.parse_args())
    where = "no GPU" if bench.device is None else str(bench.device)
    if bench.device is not None and bench.device.type == "cuda":
        where = torch.cuda.get_device_name(bench.device)
    print(f"torch {torch.__version__}, {os.cpu_count()} processors, {where}", flush=True)
    bench.batch = min(bench.batch, bench.corpora.count("few-images"))
    _rates(bench)
    _threads(bench)
    if bench.device is None:
        print(
            "\nleft out without a GPU: pinned, on the device, ResNet-50, small kernels, DALI, nvJPEG"
        )
        return
    _resnet(bench, bench.device)
    _kernels(bench, bench.device)
    _nvjpeg(bench, bench.device)


if __name__ == "__main__":
    main()
